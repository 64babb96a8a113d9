"""Connections, sessions and event streams go to who earns them, not to whoever comes first.

Attackers come from 127.0.0.2 and on, whoever is honest from 127.0.0.1.
"""

from contextlib import AsyncExitStack, suppress

import pytest
import trio
import trio.testing
from p2p_support import (
    ELSEWHERE,
    PATIENCE,
    dialling_from,
    eventually,
    loopback_host,
    needs_two_loopback_addresses,
    node,
    read_to_end,
)

from recon_node.p2p.errors import PeerError
from recon_node.p2p.sync.event_stream import EVENTS_PROTOCOL
from recon_node.p2p.sync.sessions import GAVE_WAY
from recon_node.p2p.transport import hardening
from recon_node.p2p.transport.hardening import inbound_slots
from recon_node.p2p.transport.host import Host

RECON = "/ceramic/recon/1.2.0"


def test_our_own_dials_keep_a_part_of_the_connections():
    assert inbound_slots(200) == 150
    assert inbound_slots(2) == inbound_slots(1) == 1


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
    monkeypatch.setattr(hardening, "CLEANUP_LIMIT", PATIENCE)
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


@needs_two_loopback_addresses
async def test_idle_peers_of_many_addresses_do_not_keep_a_newcomer_out(monkeypatch):
    """But they do not push out who has delivered something, nor who is on the allow-list."""
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        sure, useful = await enter(loopback_host()), await enter(loopback_host())
        victim = await enter(loopback_host(max_connections=8, always_admit=(sure.peer_id,)))
        slots = 6
        with dialling_from(monkeypatch, "127.0.0.3"):
            await sure.connect(victim.addresses[0])
        with dialling_from(monkeypatch, "127.0.0.4"):
            await useful.connect(victim.addresses[0])
        await eventually(lambda: victim.is_connected(useful.peer_id))
        victim.note_supply(useful.peer_id)
        attackers = []
        for number in range(2 * slots):
            with dialling_from(monkeypatch, f"127.1.0.{number + 1}"):
                attackers.append(await enter(loopback_host()))
                await attackers[-1].connect(victim.addresses[0])
        await eventually(lambda: victim.is_connected(attackers[-1].peer_id))
        honest = await enter(loopback_host())
        await honest.connect(victim.addresses[0])
        await eventually(lambda: victim.is_connected(honest.peer_id))
        assert victim.is_connected(sure.peer_id)
        assert victim.is_connected(useful.peer_id)
        # Who has lost its slot does not get another one's at once.
        with dialling_from(monkeypatch, "127.1.0.1"), suppress(PeerError):
            again = await enter(loopback_host())
            await again.connect(victim.addresses[0])
        await trio.testing.wait_all_tasks_blocked(0.1)
        assert victim.is_connected(honest.peer_id)
        assert not victim.is_connected(again.peer_id)


async def test_the_address_of_a_peer_is_known_over_ipv6():
    async with loopback_host(listen=("/ip6/::1/tcp/0",)) as victim, loopback_host() as peer:
        await peer.connect(victim.addresses[0])
        await eventually(lambda: victim.is_connected(peer.peer_id))
        assert [muxer.get_remote_address()[0] for muxer in victim._muxers(peer.peer_id)] == ["::1"]
        assert peer.is_on_this_machine(victim.peer_id)


async def hold(host: Host, victim, protocol: str, count: int) -> list:
    await host.connect(victim.address)
    streams = [await host.open_stream(victim.p2p.peer_id, protocol) for _ in range(count)]
    for stream in streams:
        await stream.send_all(b"\x7f")  # half a frame: it has begun
    return streams


@needs_two_loopback_addresses
@pytest.mark.parametrize("protocol", [RECON, EVENTS_PROTOCOL])
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
        recon = protocol == RECON
        used = victim.p2p._reconciler.slots if recon else victim.p2p._events._slots
        await eventually(lambda: used._used.total() == 4)
        honest = await stack.enter_async_context(node(tmp_path / "honest", sync_interval=0.1))
        await honest.p2p.connect(victim.address)
        await eventually(lambda: honest.holds_as_many_as(20))
        assert not any("refused" in outcome for outcome in honest.outcomes())
        if protocol == RECON:
            await eventually(lambda: GAVE_WAY in victim.outcomes())
            await read_to_end(held[-1])
