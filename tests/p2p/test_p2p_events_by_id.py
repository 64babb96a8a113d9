"""`/ceramic/events/1.1.0`: events by the ids of their EventIds, from peers of all kinds.

Over real hosts, but for the pace of searches, which runs on a mock clock.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial

import pytest
import trio
from attackers import streams_of
from p2p_support import (
    LOOPBACK,
    NETWORK,
    PATIENCE,
    Held,
    Node,
    connect,
    encode_frame,
    eventually,
    loopback_host,
    node,
    read_to_end,
)
from trio.testing import memory_stream_pair

from recon_node.ceramic import EventId, network_range
from recon_node.ipld import varint
from recon_node.p2p import AGREED, network_side
from recon_node.p2p.errors import MISBEHAVED, PeerError, PeerGoneError, PeerProtocolError
from recon_node.p2p.sync.event_frames import CAR, END, EVENTS_BY_ID_PROTOCOL
from recon_node.p2p.sync.event_server import serve_events_by_id
from recon_node.p2p.sync.event_stream import fetch_events
from recon_node.p2p.sync.key_rate_limit import KEYS_AN_EVENT, KeyRateLimit, Searches
from recon_node.p2p.transport.framing import FrameStream, PeerStream
from recon_node.p2p.transport.host import Host
from recon_node.recon import KeyRange, KeyStore, Missing, id_of

WHOLE = KeyRange(*network_range(NETWORK))
MAX_FRAME = 1 << 20
QUIET = {"sync_interval": 3600, "push_delay": 3600}
"""The node starts no session of its own accord, once it has synced with a new peer."""
NO_ID = bytes(8)
CUT_OFF = (PeerError, PeerGoneError, PeerProtocolError, trio.BrokenResourceError)


def sized(part: bytes) -> bytes:
    return varint.encode(len(part)) + part


def request(ids: list[bytes], key_range: KeyRange = WHOLE) -> bytes:
    return sized(key_range.lower) + sized(key_range.upper) + b"".join(ids)


def event_frame(held: Held) -> bytes:
    event_id, car = held
    return CAR + sized(event_id[: -len(event_id.event_cid)]) + car


def end_frame(*ids: bytes) -> bytes:
    return END + b"".join(ids)


@asynccontextmanager
async def victim_and_peer(tmp_path, cars, **changes) -> AsyncIterator[tuple[Node, Host]]:
    """A node with some events, and a host connected with it that speaks by hand."""
    async with (
        node(tmp_path / "victim", cars, **QUIET, **changes) as victim,
        loopback_host() as peer,
    ):
        await connect(peer, victim)
        yield victim, peer


async def open_events(peer: Host, victim: Node) -> FrameStream:
    stream = await peer.open_stream(victim.p2p.peer_id, EVENTS_BY_ID_PROTOCOL)
    return FrameStream(stream, MAX_FRAME)


async def ask(frames: FrameStream, wanted: Missing, per_request: int = 500):
    """Fetch; return the events that came and the ids that the peer does not hold."""
    received: dict[EventId, bytes] = {}

    async def deliver(events) -> None:
        received.update(events)

    missing = await fetch_events(frames, wanted, deliver, PATIENCE, per_request)
    return received, missing


async def assert_still_serves(victim: Node, tmp_path) -> None:
    async with node(tmp_path / "honest") as honest:
        await honest.p2p.connect(victim.address)
        await eventually(lambda: AGREED in honest.outcomes())
        assert honest.ahash() == victim.ahash()


# --- honest requests ----------------------------------------------------------------------------


async def test_what_is_held_comes_and_unknown_ids_are_named(tmp_path, sdk_events):
    events = sdk_events[:30]
    unknown = [id_of(b"%d" % number) for number in range(5)]
    ids = [*(id_of(key) for key, _ in events[::2]), *unknown]
    async with victim_and_peer(tmp_path, [car for _, car in events]) as (victim, peer):
        for per_request in (1, 7, 1000):
            frames = await open_events(peer, victim)
            received, missing = await ask(frames, Missing(WHOLE, ids), per_request)
            assert received == dict(events[::2])
            assert sorted(missing) == sorted(unknown)


async def test_events_outside_the_range_asked_for_do_not_come(tmp_path, sdk_events):
    events = sorted(sdk_events[:30])
    part = KeyRange(events[9][0], events[20][0])
    async with victim_and_peer(tmp_path, [car for _, car in sdk_events[:30]]) as (victim, peer):
        ids = [id_of(key) for key, _ in events]
        received, missing = await ask(await open_events(peer, victim), Missing(part, ids))
        assert received == dict(events[10:20])
        assert len(missing) == len(ids) - 10


async def test_an_id_that_is_named_twice_is_answered_once(tmp_path, sdk_events):
    (key, car), unknown = sdk_events[0], id_of(b"unknown")
    async with victim_and_peer(tmp_path, [car]) as (victim, peer):
        frames = await open_events(peer, victim)
        twice = [id_of(key), unknown, unknown, id_of(key)]
        await frames.send([request(twice)], PATIENCE)
        assert await frames.receive(PATIENCE) == event_frame((key, car))
        assert await frames.receive(PATIENCE) == end_frame(unknown)


async def test_the_largest_request_again_and_again(tmp_path, sdk_cars, sdk_events):
    """It is answered again and again, on as many streams as there are slots; others sync."""
    known = [id_of(key) for key, _ in sdk_events[:50]]
    ids = known + [id_of(b"%d" % number) for number in range(1000 - len(known))]
    async with victim_and_peer(tmp_path, sdk_cars[:50]) as (victim, peer):

        async def again_and_again(stream: PeerStream) -> None:
            frames = FrameStream(stream, MAX_FRAME)
            for _ in range(3):
                await frames.send([request(ids)], PATIENCE)
                answer = [await frames.receive(PATIENCE) for _ in range(51)]
                assert sum(len(each or b"") - 1 for each in answer if each[:1] == b"\x01") == 7600

        streams = await streams_of(peer, victim.p2p.peer_id, EVENTS_BY_ID_PROTOCOL, 4)
        async with trio.open_nursery() as nursery:
            for stream in streams:
                nursery.start_soon(again_and_again, stream)
            await assert_still_serves(victim, tmp_path)
        assert victim.failures(peer.peer_id) == 0


async def test_a_peer_may_have_only_so_many_streams(tmp_path, sdk_cars):
    async with victim_and_peer(tmp_path, sdk_cars[:20], max_event_streams_per_peer=2) as (
        victim,
        peer,
    ):
        held = await streams_of(peer, victim.p2p.peer_id, EVENTS_BY_ID_PROTOCOL, 2)
        with suppress(*CUT_OFF):
            await read_to_end(await peer.open_stream(victim.p2p.peer_id, EVENTS_BY_ID_PROTOCOL))
        frames = FrameStream(held[0], MAX_FRAME)
        await frames.send([request([NO_ID])], PATIENCE)
        assert await frames.receive(PATIENCE) == end_frame(NO_ID)


# --- requests that are none ---------------------------------------------------------------------

BAD_REQUESTS = {
    "garbage": encode_frame(b"\xff" * 100),
    "nothing": encode_frame(b""),
    "no ids": encode_frame(request([])),
    "half an id": encode_frame(request([NO_ID])[:-1]),
    "too many ids": encode_frame(request([NO_ID] * 1001)),
    "bounds that do not ascend": encode_frame(request([NO_ID], KeyRange(b"b", b"a"))),
    "a bound of 257 bytes": encode_frame(request([NO_ID], KeyRange(b"a", b"b" * 257))),
    "a bound of 2^60 bytes": encode_frame(varint.encode(2**60) + bytes(100)),
    "a bound that is cut": encode_frame(b"\x40" + bytes(20)),
    "a frame of 2^60 bytes": varint.encode(2**60),
    "EventIds, as in 1.0.0": encode_frame(WHOLE.lower + WHOLE.upper),
}


async def test_bad_requests_cost_their_own_stream(tmp_path, sdk_cars):
    async with victim_and_peer(tmp_path, sdk_cars[:20]) as (victim, peer):
        good = await open_events(peer, victim)
        for name, sent in BAD_REQUESTS.items():
            before = victim.failures(peer.peer_id)
            stream = await peer.open_stream(victim.p2p.peer_id, EVENTS_BY_ID_PROTOCOL)
            with suppress(*CUT_OFF):
                await stream.send_all(sent)
                await read_to_end(stream)
            await eventually(lambda b=before: victim.failures(peer.peer_id) > b)
            assert victim.p2p._host.is_connected(peer.peer_id), name
        assert victim.p2p.counters.event_bytes_sent == 0
        await good.send([request([NO_ID])], PATIENCE)
        assert await good.receive(PATIENCE) == end_frame(NO_ID)
        await assert_still_serves(victim, tmp_path)


async def test_half_a_request_and_silence(tmp_path, sdk_cars):
    async with victim_and_peer(tmp_path, sdk_cars[:20], idle_timeout=0.2) as (victim, peer):
        stream = await peer.open_stream(victim.p2p.peer_id, EVENTS_BY_ID_PROTOCOL)
        with suppress(*CUT_OFF):
            await stream.send_all(encode_frame(request([NO_ID]))[:-1])
            await read_to_end(stream)
        await eventually(lambda: victim.failures(peer.peer_id) >= MISBEHAVED)


async def test_a_request_that_trickles_for_ever(tmp_path, sdk_cars):
    async with victim_and_peer(tmp_path, sdk_cars[:20], idle_timeout=0.2) as (victim, peer):
        stream = await peer.open_stream(victim.p2p.peer_id, EVENTS_BY_ID_PROTOCOL)
        with trio.fail_after(PATIENCE), suppress(*CUT_OFF):
            for byte in varint.encode(MAX_FRAME) + bytes(MAX_FRAME):
                await stream.send_all(bytes((byte,)))
                await trio.sleep(0.02)
        await eventually(lambda: victim.failures(peer.peer_id) >= MISBEHAVED)


# --- answers that are none ----------------------------------------------------------------------


def bad_answers(asked: Held, other: Held) -> dict[str, tuple[list[bytes], str]]:
    name = id_of(asked[0])
    head = sized(asked[0][: -len(asked[0].event_cid)])
    return {
        "not asked for": ([event_frame(other)], "was not asked for"),
        "twice": ([event_frame(asked)] * 2, "was not asked for"),
        "another head": (
            [event_frame((EventId(asked[0].prefix + b"\x05" + asked[0].event_cid), asked[1]))],
            "was not asked for",
        ),
        "no head": ([CAR + asked[1]], "head|not a CAR"),
        "a head of garbage": (
            [CAR + sized(b"garbage") + asked[1]],
            "head does not parse",
        ),
        "a head of 2^60 bytes": ([CAR + varint.encode(2**60)], "bound or head of"),
        "a head and no CAR": ([CAR + head], "not a CAR"),
        "an empty frame": ([b""], "unknown kind nothing"),
        "an unknown kind": ([b"\x07" + asked[1]], "unknown kind 07"),
        "an end that leaves it open": ([end_frame()], "names 0 missing"),
        "an end that names it twice": ([end_frame(name, name)], "names 2 missing"),
        "an end that names another": ([end_frame(id_of(other[0]))], "did not arrive"),
        "an end that is cut": ([end_frame(name[:-1])], "did not arrive"),
        "an end that names what came": ([event_frame(asked), end_frame(name)], "did not arrive"),
    }


async def fetch_from(answers: list[bytes], wanted: Missing) -> None:
    """Fetch from a peer that sends these frames, whatever it is asked."""
    ours, theirs = (FrameStream(each, MAX_FRAME) for each in memory_stream_pair())
    await theirs.send(answers, PATIENCE)
    await theirs._stream.send_eof()
    await ask(ours, wanted)


async def test_bad_answers_end_the_fetch(sdk_events):
    asked, other = sdk_events[:2]
    for sent, complaint in bad_answers(asked, other).values():
        with pytest.raises(PeerProtocolError, match=complaint):
            await fetch_from(sent, Missing(WHOLE, [id_of(asked[0])]))


async def test_events_outside_the_range_are_not_taken(sdk_events):
    (key, car), (above, _) = sorted(sdk_events[:30])[5:7]
    wanted = Missing(KeyRange(above, WHOLE.upper), [id_of(key)])
    with pytest.raises(PeerProtocolError, match="was not asked for"):
        await fetch_from([event_frame((key, car))], wanted)


# --- the pace of searches -----------------------------------------------------------------------

KEYS = KeyStore(b"%06d" % number for number in range(10_000))
EVERYTHING = KeyRange(b"", b"\xff")


def real_keys(events: list[Held]) -> KeyStore:
    return KeyStore(key for key, _ in events)


async def search_for_ever(
    searches: Searches, address: str, done: Callable[[], None], seconds: float
) -> None:
    with trio.move_on_after(seconds):
        while True:
            await searches.find(address, Missing(EVERYTHING, [NO_ID]))
            done()


async def test_searches_for_nothing_are_paced_by_address(autojump_clock):
    """However many streams and peers an address has, and whatever others do."""
    rate, burst, seconds = 100_000, 300_000, 5
    searches = Searches(KEYS, KeyRateLimit(rate, burst))
    number = dict.fromkeys(["192.0.2.1", "192.0.2.2", "2001:db8::1"], 0)

    def count(address: str) -> None:
        number[address] += 1

    async with trio.open_nursery() as nursery:
        for address, streams in (("192.0.2.1", 16), ("192.0.2.2", 1), ("2001:db8::1", 3)):
            for _ in range(streams):
                done = partial(count, address)
                nursery.start_soon(search_for_ever, searches, address, done, seconds)
    most = (burst + seconds * rate) / len(KEYS) + 1
    assert all(most / 2 < each <= most for each in number.values()), number


async def test_who_asks_for_what_is_there_need_not_wait(sdk_events, autojump_clock):
    """An event makes up for the keys that were looked at for it."""
    keys = real_keys(sdk_events)
    assert len(keys) < KEYS_AN_EVENT
    searches = Searches(keys, KeyRateLimit(rate=1, burst=len(keys)))
    started = trio.current_time()
    for key, _ in sdk_events[:100]:
        assert await searches.find("192.0.2.1", Missing(WHOLE, [id_of(key)])) == [key]
    assert trio.current_time() == started
    await searches.find("192.0.2.1", Missing(WHOLE, [NO_ID]))
    await searches.find("192.0.2.1", Missing(WHOLE, [NO_ID]))
    assert trio.current_time() > started


async def test_a_stream_that_asks_too_much_waits_and_is_answered(sdk_events, autojump_clock):
    ours, theirs = (FrameStream(each, MAX_FRAME) for each in memory_stream_pair())
    keys = real_keys(sdk_events)
    searches = Searches(keys, KeyRateLimit(rate=len(keys), burst=len(keys)))

    async def read_cars(wanted):
        raise AssertionError("nothing is held")

    started = trio.current_time()
    async with trio.open_nursery() as nursery:
        search = partial(searches.find, "192.0.2.1")
        nursery.start_soon(serve_events_by_id, theirs, read_cars, search, LOOPBACK)
        ids = [id_of(b"%d" % number) for number in range(10)]
        _, missing = await ask(ours, Missing(WHOLE, ids), per_request=1)
        await ours._stream.send_eof()
    assert missing == ids
    assert 8 <= trio.current_time() - started <= 10


async def test_a_node_paces_its_peers(tmp_path, sdk_cars, monkeypatch):
    """Over real hosts: who asks too much waits for long; another stream of ours is served."""
    monkeypatch.setattr(network_side, "KeyRateLimit", partial(KeyRateLimit, rate=1e-3, burst=100))
    async with victim_and_peer(tmp_path, sdk_cars[:60]) as (victim, peer):
        frames = await open_events(peer, victim)
        await frames.send([request([NO_ID])] * 3, PATIENCE)
        for _ in range(2):
            assert await frames.receive(PATIENCE) == end_frame(NO_ID)
        with trio.move_on_after(0.1):
            assert not await frames.receive(PATIENCE)
        assert victim.p2p._host.is_connected(peer.peer_id)
        by_key = await peer.open_stream(victim.p2p.peer_id, "/ceramic/events/1.0.0")
        await FrameStream(by_key, MAX_FRAME).send([sorted(victim.store.keys)[0]], PATIENCE)
        assert await FrameStream(by_key, MAX_FRAME).receive(PATIENCE)
