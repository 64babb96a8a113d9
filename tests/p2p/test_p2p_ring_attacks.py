"""Hostile peers on `/ceramic/recon/0.1.0`, over real hosts: each costs its own session only.

The victim syncs with an honest node all the while. What an attacker's messages mean to a session is
tested without hosts in tests/recon/test_ring.py and test_p2p_ring_wire.py.
"""

import itertools
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from attackers import CUT_OFF
from nacl.signing import SigningKey
from p2p_support import (
    NETWORK,
    PATIENCE,
    Node,
    connect,
    eventually,
    loopback_host,
    node,
    read_to_end,
)

from recon_node.ceramic import METAMODEL
from recon_node.ceramic.builder import data_event, init_event
from recon_node.ceramic.heightless_event_id import HeightlessEventId, network_range
from recon_node.fairness.pacing import SPREAD
from recon_node.ipld import CID, DAG_CBOR, car
from recon_node.p2p import AGREED
from recon_node.p2p.errors import MISBEHAVED
from recon_node.p2p.peers.book import MAX_INTERESTS
from recon_node.p2p.sync import ring_events, rings
from recon_node.p2p.sync.rings import MODEL_RING, PEER_RING
from recon_node.p2p.sync.sessions import SyncReport
from recon_node.p2p.sync.sync_scheduler import BETWEEN_RING_SYNCS
from recon_node.p2p.transport.framing import PeerStream
from recon_node.p2p.transport.host import Host
from recon_node.recon.actions import Value
from recon_node.recon.keys.ordered_keys import KeyRange, Summary
from recon_node.recon.keys.sha256a import ZERO, Sha256a
from recon_node.recon.ring.peer_ring import MAX_ENTRIES, expiry_bound, sign_entry, unexpired
from recon_node.recon.ring.ring_codec import (
    Finished,
    InterestRequest,
    InterestResponse,
    KeyForm,
    Message,
    RangeHash,
    RangeRequest,
    RangeResponse,
    encode,
)

ONLY_RINGS = {"versions": ()}
WHOLE = KeyRange(*network_range(NETWORK))
KEY = SigningKey(bytes(32))
CLOCK_SLACK = 0.1
"""Seconds by which the clocks of a report may disagree."""
LATENCY_LIMIT = 1.0
"""Seconds of its thread's CPU time that the loop may spend at once on an attacker."""


def said(*messages: Message, form: KeyForm = KeyForm.BYTES) -> bytes:
    return b"".join(encode(message, form, "an attack") for message in messages)


INTERESTS = InterestRequest((WHOLE,))
NOTHING = RangeRequest(RangeHash(WHOLE.lower, Summary(ZERO, 0), WHOLE.upper))


@asynccontextmanager
async def victim_and_honest(
    tmp_path: Path, cars: list[bytes], **changes: Any
) -> AsyncIterator[tuple[Node, Node]]:
    """A victim with most of some events, and an honest node that dialled it and gives the rest.

    `changes` are settings of the victim.
    """
    async with (
        node(tmp_path / "victim", cars[:30], **ONLY_RINGS, **changes) as victim,
        node(tmp_path / "honest", cars[:30], **ONLY_RINGS) as honest,
    ):
        await honest.p2p.connect(victim.address)
        await eventually(lambda: any(peer.last_sync for peer in honest.p2p.peers()))
        yield victim, honest


async def assert_honest_does_not_notice(victim: Node, honest: Node, cars: list[bytes]) -> None:
    """What the honest node gets now, the victim has soon."""
    await honest.store.admit_local(cars[30:])
    await eventually(lambda: victim.store.head == len(cars))
    assert victim.failures(honest.p2p.peer_id) == 0


async def open_ring(attacker: Host, victim: Node, ring: str = MODEL_RING) -> PeerStream:
    await connect(attacker, victim)
    return await attacker.open_stream(victim.p2p.peer_id, ring)


def outside() -> Value:
    """A value whose key is outside the range that was asked for and outside all interests."""
    return Value(b"\xfe" * 60, b"an event")


def of_another_event() -> Value:
    """A value under the key of another event."""
    one, two = (init_event(KEY, METAMODEL, {"n": number}) for number in range(2))
    key = HeightlessEventId.build(NETWORK, METAMODEL, one.header.controller, one.cid, one.cid)
    return Value(key, two.car)


GARBAGE = {
    "breaks": b"\xff" * 100_000,
    "maps in maps": b"\xa1" * 100_000,
    "2^64 items": b"\x9b\xff\xff\xff\xff\xff\xff\xff\xff",
    "a key of 2^40 bytes": (
        b"\xa1\x64body\xa1\x65Value\xa2\x63key\x5b\x00\x00\x01\x00\x00\x00\x00\x00"
    ),
    "2^40 interests": b"\xa1\x64body\xa1\x6fInterestRequest\x9b\x00\x00\x01\x00\x00\x00\x00\x00",
}


async def send_garbage(victim: Node) -> None:
    for ring, garbage in itertools.product((MODEL_RING, PEER_RING), GARBAGE.values()):
        async with loopback_host() as attacker:
            stream = await open_ring(attacker, victim, ring)
            with suppress(*CUT_OFF):
                await stream.send_all(garbage)
                await read_to_end(stream)
            await eventually(lambda: victim.failures(attacker.peer_id) >= MISBEHAVED)


async def send_what_no_honest_peer_sends(victim: Node) -> None:
    """A value outside and one of another event, a range outside, interests again, and none."""
    for messages in (
        [INTERESTS, outside()],
        [INTERESTS, of_another_event(), NOTHING],
        [INTERESTS, RangeRequest(RangeHash(b"", Summary(ZERO, 0), b"\xff"))],
        [INTERESTS, INTERESTS],
        [NOTHING],
    ):
        async with loopback_host() as attacker:
            stream = await open_ring(attacker, victim)
            await stream.send_all(said(*messages))
            with suppress(*CUT_OFF):
                await read_to_end(stream)
            await eventually(lambda: victim.failures(attacker.peer_id) >= MISBEHAVED)


async def send_counts_of_2_to_the_40(victim: Node) -> None:
    """They are answered like others."""
    async with loopback_host() as attacker:
        stream = await open_ring(attacker, victim)
        claim = RangeHash(WHOLE.lower, Summary(Sha256a.of(b"made up"), 2**40), WHOLE.upper)
        await stream.send_all(said(INTERESTS, *[RangeRequest(claim)] * 200))
        answer = b""
        with trio.fail_after(PATIENCE):
            while answer.count(b"RangeResponse") < 200:
                answer += await stream.receive_some(64 * 1024)


async def send_endless_interests(victim: Node) -> None:
    """Few and short ones are kept."""
    long = [KeyRange(bytes([n]) * 4000, bytes([n]) * 4001) for n in range(100)]
    short = [
        KeyRange(bytes([1, *divmod(n, 256), 0]), bytes([1, *divmod(n, 256), 9]))
        for n in range(5000)
    ]
    async with loopback_host() as attacker:
        stream = await open_ring(attacker, victim)
        await stream.send_all(said(InterestRequest((*long, *short)), Finished()))
        await read_to_end(stream)
        assert victim.p2p.interests_of(attacker.peer_id) == short[:MAX_INTERESTS]
        await attacker.disconnect(victim.p2p.peer_id)
        await eventually(lambda: not victim.p2p.interests_of(attacker.peer_id))


async def send_an_event_that_is_named_by_another_codec(victim: Node) -> None:
    """ceramic-one takes an envelope whose CID says DAG-CBOR; here that is the DAG-JOSE event. It is
    refused, and nobody is blamed."""
    event = init_event(KEY, METAMODEL, {})
    blocks = {CID.of(DAG_CBOR, block): block for block in car.decode(event.car).blocks.values()}
    [root] = [block for block in blocks if block.digest == event.cid.digest]
    key = HeightlessEventId.build(NETWORK, METAMODEL, event.header.controller, root, root)
    async with loopback_host() as attacker:
        stream = await open_ring(attacker, victim)
        await stream.send_all(said(INTERESTS, Value(key, car.encode([root], blocks)), Finished()))
        with suppress(*CUT_OFF):
            await read_to_end(stream)
        await eventually(lambda: reports_about(victim, attacker))
        [report] = reports_about(victim, attacker)
        assert (report.outcome, report.keys_left_out) == (AGREED, 1)
        assert victim.failures(attacker.peer_id) == 0


async def test_each_costs_its_own_session_only(tmp_path, sdk_cars):
    async with victim_and_honest(tmp_path, sdk_cars[:40]) as (victim, honest):
        await send_garbage(victim)
        await send_what_no_honest_peer_sends(victim)
        await send_counts_of_2_to_the_40(victim)
        await send_endless_interests(victim)
        await send_an_event_that_is_named_by_another_codec(victim)
        await assert_honest_does_not_notice(victim, honest, sdk_cars[:40])


async def test_values_without_end(tmp_path, sdk_cars, monkeypatch):
    """Events whose history never comes, each of them valid: neither kept nor taken for ever."""
    monkeypatch.setattr(ring_events, "MAX_REPEATED", 200)
    cars = sdk_cars[:40]
    init = init_event(KEY, METAMODEL, {})
    controller = init.header.controller
    lost = data_event(KEY, init, [init.cid], [])
    orphans = []
    for number in range(50):
        event = data_event(KEY, init, [lost.cid], [{"n": number}])
        key = HeightlessEventId.build(NETWORK, METAMODEL, controller, init.cid, event.cid)
        orphans.append(Value(key, event.car))
    async with victim_and_honest(tmp_path, cars) as (victim, honest), loopback_host() as attacker:
        stream = await open_ring(attacker, victim)
        await stream.send_all(said(INTERESTS))
        with pytest.raises(CUT_OFF):  # noqa: PT012 - it does not matter which message is too many
            with trio.fail_after(PATIENCE):
                for value in itertools.cycle(orphans):
                    await stream.send_all(said(value))
        await eventually(lambda: victim.failures(attacker.peer_id) >= MISBEHAVED)
        assert "more than once" in str(victim.outcomes())
        await assert_honest_does_not_notice(victim, honest, cars)


async def responder(attacker: Host, answer) -> None:
    """Have the attacker answer sessions that the victim starts."""

    async def serve(stream: PeerStream) -> None:
        with suppress(*CUT_OFF):
            while data := await stream.receive_some(64 * 1024):
                for _ in range(data.count(b"InterestRequest")):
                    await stream.send_all(said(InterestResponse((WHOLE,))))
                for _ in range(data.count(b"RangeRequest")):
                    await stream.send_all(said(answer()))

    attacker.handle(MODEL_RING, serve)


def the_same_range() -> RangeResponse:
    summary = Summary(Sha256a.of(b"made up"), 5)
    return RangeResponse((RangeHash(WHOLE.lower, summary, WHOLE.upper),))


def overlapping_parts() -> RangeResponse:
    (part,) = the_same_range().ranges
    return RangeResponse((part, part))


def reports_about(node: Node, peer: Host) -> list[SyncReport]:
    """The reports of a node's sessions with a peer, the oldest first."""
    reports = [report for report in node.p2p.sync_reports if report.peer == peer.peer_id]
    return sorted(reports, key=lambda report: report.finished_at)


async def test_answers_that_lead_nowhere(tmp_path, sdk_cars):
    """From three peers at once."""
    cars = sdk_cars[:40]
    async with victim_and_honest(tmp_path, cars) as (victim, honest), AsyncExitStack() as stack:
        attackers = []
        for answer in (the_same_range, overlapping_parts, outside):
            attackers.append(await stack.enter_async_context(loopback_host()))
            await responder(attackers[-1], answer)
            await victim.p2p.connect(attackers[-1].addresses[0])
        for attacker in attackers:
            await eventually(lambda peer=attacker.peer_id: victim.failures(peer) >= MISBEHAVED)
        await assert_honest_does_not_notice(victim, honest, cars)
        for attacker in attackers:
            await eventually(lambda attacker=attacker: len(reports_about(victim, attacker)) > 1)
            ended = [report.finished_at for report in reports_about(victim, attacker)]
            begun = [
                report.finished_at - report.seconds for report in reports_about(victim, attacker)
            ]
            pauses = [start - end for start, end in zip(begun[1:], ended, strict=False)]
            for failures, pause in enumerate(pauses, 1):
                shortest = (1 - SPREAD) * BETWEEN_RING_SYNCS.wait(failures)
                assert pause > shortest - CLOCK_SLACK, "it is left alone for longer and longer"


def made_up_nodes(count: int, expiry: int) -> list[Value]:
    """Signed entries of nodes that do not exist, which nobody could reach."""
    nodes = (SigningKey(number.to_bytes(32, "big")) for number in range(1, count + 1))
    address = ("/ip4/127.0.0.1/tcp/1",)
    return [Value(sign_entry(node, expiry, address), b"") for node in nodes]


@pytest.mark.parametrize(
    ("count", "limit"), [(600, 400), pytest.param(100_000, 20_000, marks=pytest.mark.long)]
)
async def test_signed_entries_of_nodes_that_do_not_exist(
    tmp_path, sdk_cars, monkeypatch, count, limit
):
    monkeypatch.setattr(rings, "MAX_NEW_ENTRIES", limit)
    cars = sdk_cars[:40]
    now = int(time.time())
    entries = await trio.to_thread.run_sync(made_up_nodes, count, now + 3600)
    longest = 0.0
    async with (
        # It may dial some more nodes in each interval: however long this takes, here it is one.
        victim_and_honest(tmp_path, cars, sync_interval=3600.0) as (victim, honest),
        loopback_host() as attacker,
    ):

        async def watch_the_loop() -> None:
            nonlocal longest
            last = time.thread_time()
            while True:
                await trio.sleep(0.01)
                longest = max(longest, time.thread_time() - last)
                last = time.thread_time()

        stream = await open_ring(attacker, victim, PEER_RING)
        interests = InterestRequest((unexpired(now),))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch_the_loop)
            await stream.send_all(said(interests, form=KeyForm.TEXT))
            with pytest.raises(CUT_OFF), trio.fail_after(120):  # noqa: PT012 - cut off in between
                for start in range(0, count, 50):
                    await stream.send_all(said(*entries[start : start + 50], form=KeyForm.TEXT))
                whole = RangeHash(expiry_bound(now), Summary(ZERO, 0), expiry_bound(99_999_999_999))
                await stream.send_all(said(RangeRequest(whole), form=KeyForm.TEXT))
                while await stream.receive_some(64 * 1024):
                    pass
                raise trio.BrokenResourceError
            nursery.cancel_scope.cancel()
        await eventually(lambda: victim.failures(attacker.peer_id) >= MISBEHAVED)
        assert longest < LATENCY_LIMIT
        assert len(victim.p2p._rings._peer_ring) <= MAX_ENTRIES
        dialled = {peer.id for peer in victim.p2p.peers()}
        assert len(dialled) <= rings.FOUND_AT_ONCE + 4, "it must not dial whom an attacker names"
        await assert_honest_does_not_notice(victim, honest, cars)
