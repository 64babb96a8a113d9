"""One machine cannot take all connections, sessions and event streams: addresses share them.

The attackers come from 127.0.0.2, whoever is honest from 127.0.0.1.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from p2p_support import PATIENCE, eventually, loopback_host, node, read_to_end

from recon_node.p2p.sync.reports import GAVE_WAY
from recon_node.p2p.transport import hardening
from recon_node.p2p.transport.hardening import inbound_places
from recon_node.p2p.transport.host import Host
from recon_node.p2p.transport.places import Places
from recon_node.p2p.transport.streams import EVENTS_PROTOCOL

ELSEWHERE = "127.0.0.2"
RECON_1_1 = "/ceramic/recon/1.1.0"

needs_two_loopback_addresses = pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere 127.0.0.2 is not an address of the loopback"
)


@contextmanager
def dialling_from(monkeypatch: pytest.MonkeyPatch, address: str) -> Iterator[None]:
    """Make all connections of this process from an address."""
    stock = trio.open_tcp_stream

    async def from_there(host, port, **options):
        return await stock(host, port, **options, local_address=address)

    with monkeypatch.context() as patch:
        patch.setattr(trio, "open_tcp_stream", from_there)
        yield


class Crowd:
    """Takes places for addresses; who is told to give way leaves when `settle` is called."""

    def __init__(self, limit: int) -> None:
        self.places = Places(limit)
        self.held: list[tuple[str, ExitStack]] = []
        self.leaving: list[tuple[str, ExitStack]] = []

    def come(self, address: str) -> bool:
        stack = ExitStack()
        place = address, stack
        has_place = stack.enter_context(
            self.places.taken_by(address, lambda: self.leaving.append(place))
        )
        if has_place:
            self.held.append(place)
        return has_place

    def settle(self) -> None:
        for place in self.leaving:
            self.held.remove(place)
            place[1].close()
        self.leaving.clear()

    def of(self, address: str) -> int:
        return sum(each == address for each, _ in self.held)


def test_the_address_that_has_the_most_places_gives_way():
    crowd = Crowd(4)
    assert [crowd.come("192.0.2.1") for _ in range(5)] == [True] * 4 + [False]
    assert [crowd.come("192.0.2.2") for _ in range(3)] == [True, True, False]
    crowd.settle()
    assert crowd.of("192.0.2.1") == crowd.of("192.0.2.2") == 2


def test_the_latest_gives_way_and_a_place_that_is_left_can_be_taken_again():
    crowd = Crowd(2)
    crowd.come("192.0.2.1")
    crowd.come("192.0.2.1")
    first, latest = crowd.held
    assert crowd.come("192.0.2.2")
    assert crowd.leaving == [latest]
    crowd.settle()
    first[1].close()
    crowd.held.remove(first)
    assert crowd.come("192.0.2.3")
    assert not crowd.come("192.0.2.4")


def test_the_addresses_of_one_customer_count_as_one():
    crowd = Crowd(2)
    assert crowd.come("2001:db8::1")
    assert crowd.come("2001:db8::2")
    assert not crowd.come("2001:db8::3")
    assert crowd.come("2001:db8:1::1")


@given(st.integers(1, 8), st.lists(st.sampled_from("abcd"), max_size=40))
def test_nobody_who_has_less_than_a_fair_share_gives_way(limit, comers):
    crowd = Crowd(limit)
    for address in comers:
        before = {each: crowd.of(each) for each in "abcd"}
        had_room = len(crowd.held) < limit
        has_place = crowd.come(address)
        assert has_place or not had_room
        for loser, _ in crowd.leaving:
            assert before[loser] > before[address] + 1
        crowd.settle()
        assert len(crowd.held) <= limit


def test_our_own_dials_keep_a_part_of_the_connections():
    assert inbound_places(200) == 150
    assert inbound_places(2) == inbound_places(1) == 1


@needs_two_loopback_addresses
async def test_connections_that_say_nothing_keep_nobody_out():
    async with loopback_host(max_connections=8) as victim, AsyncExitStack() as stack:
        port = int(victim.addresses[0].split("/")[4])
        for _ in range(12):
            await stack.enter_async_context(
                await trio.open_tcp_stream("127.0.0.1", port, local_address=ELSEWHERE)
            )
        honest = await stack.enter_async_context(loopback_host())
        with trio.fail_after(PATIENCE):
            await honest.connect(victim.addresses[0])
            await eventually(lambda: victim.is_connected(honest.peer_id))


@needs_two_loopback_addresses
async def test_peers_of_one_address_keep_neither_others_nor_our_own_dials_out(monkeypatch):
    monkeypatch.setattr(hardening, "_CLEANUP_LIMIT", PATIENCE)
    async with loopback_host(max_connections=4) as victim, AsyncExitStack() as stack:
        with dialling_from(monkeypatch, ELSEWHERE):
            for _ in range(3):
                attacker = await stack.enter_async_context(loopback_host())
                await attacker.connect(victim.addresses[0])
        await eventually(lambda: len(victim.connected_peers()) == 3)
        dialled = await stack.enter_async_context(loopback_host())
        await victim.connect(dialled.addresses[0])
        honest = await stack.enter_async_context(loopback_host())
        await honest.connect(victim.addresses[0])
        await eventually(lambda: victim.is_connected(honest.peer_id))
        await eventually(lambda: len(victim.connected_peers()) == 4)
        assert victim.is_connected(dialled.peer_id)


async def hold(host: Host, victim, protocol: str, count: int) -> list:
    await host.connect(victim.address)
    streams = [await host.open_stream(victim.p2p.peer_id, protocol) for _ in range(count)]
    for stream in streams:
        await stream.send_all(b"\x7f")  # half a frame: it has begun
    return streams


@needs_two_loopback_addresses
@pytest.mark.parametrize("protocol", [RECON_1_1, EVENTS_PROTOCOL])
async def test_sessions_of_one_address_keep_nobody_out(protocol, tmp_path, sdk_cars, monkeypatch):
    # No session ends by itself while the test waits.
    settings = {
        "idle_timeout": 3600,
        "turn_timeout": 3600,
        "max_sessions": 4,
        "max_event_streams": 4,
        "max_event_streams_per_peer": 2,
    }
    async with (
        node(tmp_path / "victim", sdk_cars[:20], **settings) as victim,
        AsyncExitStack() as stack,
    ):
        held = []
        with dialling_from(monkeypatch, ELSEWHERE):
            for _ in range(2):
                attacker = await stack.enter_async_context(loopback_host())
                held += await hold(attacker, victim, protocol, 2)
        used = (victim.p2p._sessions if protocol == RECON_1_1 else victim.p2p._events)._slots
        await eventually(lambda: used._used.total() == 4)
        honest = await stack.enter_async_context(node(tmp_path / "honest", sync_interval=0.1))
        await honest.p2p.connect(victim.address)
        await eventually(lambda: honest.holds_as_many_as(20))
        assert not any("refused" in each for each in honest.outcomes())
        if protocol == RECON_1_1:
            await eventually(lambda: GAVE_WAY in victim.outcomes())
            with suppress(trio.BrokenResourceError):
                await read_to_end(held[-1])
