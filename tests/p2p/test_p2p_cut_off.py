"""Peers that were cut off for the memory that they made a node hold: what they meet afterwards."""

import pytest
import trio
from p2p_support import eventually, loopback_host, node, only_connection

from recon_node.p2p.errors import PeerError
from recon_node.p2p.transport.budget import REFUSED_FOR, OverBudgetError
from recon_node.p2p.transport.host import Host


def cut_off(host: Host, peer_id: str) -> None:
    """Let a host find that a peer makes it hold too much."""
    with pytest.raises(OverBudgetError):
        host.budget.account(peer_id).hold("unread", host.budget.limit + 1)


async def test_a_peer_that_was_cut_off_may_come_back_after_a_while():
    async with loopback_host() as a, loopback_host() as b:
        await a.connect(b.addresses[0])
        await eventually(lambda: b.is_connected(a.peer_id))
        cut_off(b, a.peer_id)
        await eventually(lambda: not (a.is_connected(b.peer_id) or b.is_connected(a.peer_id)))
        with pytest.raises(PeerError):
            await a.connect(b.addresses[0])
        with pytest.raises(PeerError, match=r"refused for another \d+ s"):
            await b.connect(a.addresses[0])
        b.budget._clock = lambda: trio.current_time() + REFUSED_FOR
        await a.connect(b.addresses[0])
        await eventually(lambda: b.is_connected(a.peer_id))


async def test_a_connection_that_there_is_no_room_for_leaves_no_account():
    async with loopback_host() as a, loopback_host() as b:
        leaving = a.budget.account("greedy")
        leaving.hold("unread", a.budget.limit)
        modest = a.budget.account("modest")
        modest.hold("unread", a.budget.limit // 4)  # cuts off the greedy one, which has yet to go
        with pytest.raises(PeerError, match="all peers together"):
            await a.connect(b.addresses[0])
        assert list(a.budget._holders) == ["modest"]


async def test_reset_and_read_work_for_a_peer_that_is_refused():
    """Streams that were opened since the last data are not paid for at the wrong moment."""
    async with loopback_host() as a, loopback_host() as b:
        await a.connect(b.addresses[0])
        connection = only_connection(a, b)
        stream = await connection.open_stream()
        a.budget._refused[b.peer_id] = trio.current_time() + REFUSED_FOR
        connection.stream_buffers[stream.stream_id].extend(b"come in before")
        assert await stream.read(100) == b"come in before"
        await stream.reset()


async def test_the_book_leaves_a_peer_alone_that_was_cut_off(tmp_path):
    async with node(tmp_path / "a") as a, node(tmp_path / "b") as b:
        await a.p2p.connect(b.address)
        await eventually(lambda: "agreed" in a.outcomes())
        cut_off(a.p2p._host, b.p2p.peer_id)
        assert a.failures(b.p2p.peer_id) > 1
        assert a.p2p._book.get(b.p2p.peer_id).not_before >= trio.current_time() + REFUSED_FOR - 1
