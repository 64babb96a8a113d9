"""`/ceramic/events/1.1.0`: events by the ids of their EventIds, from peers of all kinds.

Over real hosts, but for the pace of searches, which runs on a mock clock.
"""

from collections import Counter
from contextlib import suppress
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
    assert_still_serves,
    encode_frame,
    eventually,
    fetch_all,
    fetch_from,
    frame_pair,
    rate_limit_of,
    read_to_end,
    victim_and_peer,
)

from recon_node.ceramic import EventId, network_range
from recon_node.ipld import encode_varint
from recon_node.p2p import network_side
from recon_node.p2p.errors import PeerError, PeerGoneError, PeerProtocolError
from recon_node.p2p.sync.event_server import KEYS_PER_EVENT, Searches, serve_events
from recon_node.p2p.sync.event_stream import (
    CAR,
    END,
    EVENTS_BY_ID_PROTOCOL,
    EVENTS_PROTOCOL,
    parse_id_request,
)
from recon_node.p2p.transport.framing import FrameStream, PeerStream
from recon_node.p2p.transport.host import Host
from recon_node.recon import KeyRange, KeyStore, SoughtIds, id_of

WHOLE = KeyRange(*network_range(NETWORK))
MAX_FRAME = 1 << 20
NO_ID = bytes(8)
CUT_OFF = (PeerError, PeerGoneError, PeerProtocolError, trio.BrokenResourceError)


def sized(part: bytes) -> bytes:
    return encode_varint(len(part)) + part


def request(ids: list[bytes], key_range: KeyRange = WHOLE) -> bytes:
    return sized(key_range.lower) + sized(key_range.upper) + b"".join(ids)


def event_frame(held: Held) -> bytes:
    event_id, car = held
    return CAR + sized(event_id[: -len(event_id.event_cid)]) + car


def end_frame(*ids: bytes) -> bytes:
    return END + b"".join(ids)


async def open_events(peer: Host, victim: Node) -> FrameStream:
    stream = await peer.open_stream(victim.p2p.peer_id, EVENTS_BY_ID_PROTOCOL)
    return FrameStream(stream, MAX_FRAME)


async def ask(frames: FrameStream, wanted: SoughtIds, per_request: int = 500):
    """Fetch; return the events that came and the ids that the peer does not hold."""
    received: dict[EventId, bytes] = {}

    async def deliver(events) -> None:
        received.update(events)

    not_supplied = await fetch_all(frames, wanted, deliver, PATIENCE, per_request)
    return received, not_supplied


async def test_the_largest_request_again_and_again(tmp_path, sdk_cars, sdk_events):
    """It is answered again and again, on as many streams as there are slots; others sync."""
    known = [id_of(key) for key, _ in sdk_events[:20]]
    ids = known + [id_of(b"%d" % number) for number in range(1000 - len(known))]
    async with victim_and_peer(tmp_path, sdk_cars[:20]) as (victim, peer):

        async def again_and_again(stream: PeerStream) -> None:
            frames = FrameStream(stream, MAX_FRAME)
            for _ in range(2):
                await frames.send([request(ids)], PATIENCE)
                answer = [await frames.receive(PATIENCE) for _ in range(21)]
                assert sum(len(frame or b"") - 1 for frame in answer if frame[:1] == END) == 7840

        streams = await streams_of(peer, victim.p2p.peer_id, EVENTS_BY_ID_PROTOCOL, 4)
        async with trio.open_nursery() as nursery:
            for stream in streams:
                nursery.start_soon(again_and_again, stream)
            await assert_still_serves(victim, tmp_path)
        assert victim.failures(peer.peer_id) == 0


# --- malformed requests --------------------------------------------------------------------------

BAD_REQUESTS = {
    "garbage": b"\xff" * 100,
    "nothing": b"",
    "no ids": request([]),
    "half an id": request([NO_ID])[:-1],
    "too many ids": request([NO_ID] * 1001),
    "bounds that do not ascend": request([NO_ID], KeyRange(b"b", b"a")),
    "a bound of 257 bytes": request([NO_ID], KeyRange(b"a", b"b" * 257)),
    "a bound of 2^60 bytes": encode_varint(2**60) + bytes(100),
    "a bound that is cut": b"\x40" + bytes(20),
    "EventIds, as in 1.0.0": WHOLE.lower + WHOLE.upper,
}


@pytest.mark.parametrize("name", BAD_REQUESTS)
def test_requests_that_are_none_are_refused(name):
    with pytest.raises(PeerProtocolError):
        parse_id_request(BAD_REQUESTS[name])


async def test_bad_requests_cost_their_own_stream(tmp_path, sdk_cars):
    async with victim_and_peer(tmp_path, sdk_cars[:20]) as (victim, peer):
        good = await open_events(peer, victim)
        for sent in (encode_frame(BAD_REQUESTS["garbage"]), encode_varint(2**60)):
            before = victim.failures(peer.peer_id)
            stream = await peer.open_stream(victim.p2p.peer_id, EVENTS_BY_ID_PROTOCOL)
            with suppress(*CUT_OFF):
                await stream.send_all(sent)
                await read_to_end(stream)
            await eventually(lambda b=before: victim.failures(peer.peer_id) > b)
            assert victim.p2p._host.is_connected(peer.peer_id)
        assert victim.p2p.counters.event_bytes_sent == 0
        await good.send([request([NO_ID])], PATIENCE)
        assert await good.receive(PATIENCE) == end_frame(NO_ID)


# --- malformed answers ---------------------------------------------------------------------------


def bad_answers(asked: Held, other: Held) -> list[tuple[list[bytes], str]]:
    """Those that differ from answers of 1.0.0, which test_p2p_event_stream.py has."""
    name = id_of(asked[0])
    head = sized(asked[0][: -len(asked[0].event_cid)])
    another_head = EventId(asked[0].prefix + b"\x05" + asked[0].event_cid)
    return [
        ([event_frame(other)], "was not asked for"),
        ([event_frame(asked)] * 2, "was not asked for"),
        ([event_frame((another_head, asked[1]))], "was not asked for"),
        ([CAR + asked[1]], "head|not a CAR"),
        ([CAR + sized(b"garbage") + asked[1]], "head does not parse"),
        ([CAR + encode_varint(2**60)], "bound or head of"),
        ([CAR + head], "not a CAR"),
        ([end_frame()], "names 0 missing"),
        ([end_frame(name, name)], "names 2 missing"),
        ([end_frame(name[:-1])], "did not arrive"),
        ([event_frame(asked), end_frame(name)], "did not arrive"),
    ]


async def test_bad_answers_end_the_fetch(sdk_events):
    asked, other = sdk_events[:2]
    for sent, complaint in bad_answers(asked, other):
        with pytest.raises(PeerProtocolError, match=complaint):
            await fetch_from(sent, SoughtIds(WHOLE, [id_of(asked[0])]))


async def test_events_outside_the_range_are_not_taken(sdk_events):
    (key, car), (above, _) = sorted(sdk_events[:30])[5:7]
    wanted = SoughtIds(KeyRange(above, WHOLE.upper), [id_of(key)])
    with pytest.raises(PeerProtocolError, match="was not asked for"):
        await fetch_from([event_frame((key, car))], wanted)


# --- the pace of searches -----------------------------------------------------------------------

KEYS = KeyStore(b"%06d" % number for number in range(10_000))
EVERYTHING = KeyRange(b"", b"\xff")


def real_keys(events: list[Held]) -> KeyStore:
    return KeyStore(key for key, _ in events)


async def test_searches_for_nothing_are_paced_by_address(autojump_clock):
    """However many streams and peers an address has, and whatever others do."""
    rate, burst, seconds = 100_000, 300_000, 5
    searches = Searches(KEYS, rate_limit_of(rate, burst))
    number = Counter()

    async def search_for_ever(address: str) -> None:
        with trio.move_on_after(seconds):
            while True:
                await searches.find(address, SoughtIds(EVERYTHING, [NO_ID]))
                number[address] += 1

    async with trio.open_nursery() as nursery:
        for address, streams in (("192.0.2.1", 16), ("192.0.2.2", 1), ("2001:db8::1", 3)):
            for _ in range(streams):
                nursery.start_soon(search_for_ever, address)
    most = (burst + seconds * rate) / len(KEYS) + 1
    assert len(number) == 3
    assert all(most / 2 < count <= most for count in number.values()), number


async def test_who_asks_for_what_is_there_need_not_wait(sdk_events, autojump_clock):
    """An event makes up for the keys that were looked at for it."""
    keys = real_keys(sdk_events)
    assert len(keys) < KEYS_PER_EVENT
    searches = Searches(keys, rate_limit_of(rate=1, burst=len(keys)))
    started = trio.current_time()
    for key, _ in sdk_events[:100]:
        assert await searches.find("192.0.2.1", SoughtIds(WHOLE, [id_of(key)])) == {key: id_of(key)}
    assert trio.current_time() == started
    await searches.find("192.0.2.1", SoughtIds(WHOLE, [NO_ID]))
    await searches.find("192.0.2.1", SoughtIds(WHOLE, [NO_ID]))
    assert trio.current_time() > started


async def test_a_stream_that_asks_too_much_waits_and_is_answered(sdk_events, autojump_clock):
    ours, theirs = frame_pair()
    keys = real_keys(sdk_events)
    searches = Searches(keys, rate_limit_of(rate=len(keys), burst=len(keys)))

    async def read_cars(wanted):
        raise AssertionError("nothing is held")

    started = trio.current_time()
    async with trio.open_nursery() as nursery:
        search = partial(searches.find, "192.0.2.1")
        nursery.start_soon(serve_events, theirs, read_cars, NETWORK, LOOPBACK, search)
        ids = [id_of(b"%d" % number) for number in range(10)]
        _, not_supplied = await ask(ours, SoughtIds(WHOLE, ids), per_request=1)
        await ours._stream.send_eof()
    assert not_supplied == ids
    assert 8 <= trio.current_time() - started <= 10


async def test_a_node_paces_its_peers(tmp_path, sdk_cars, monkeypatch):
    """Over real hosts: who asks too much waits for long; another stream of ours is served."""
    monkeypatch.setattr(network_side, "KeyRateLimit", partial(rate_limit_of, rate=1e-3, burst=100))
    async with victim_and_peer(tmp_path, sdk_cars[:60]) as (victim, peer):
        frames = await open_events(peer, victim)
        await frames.send([request([NO_ID])] * 3, PATIENCE)
        for _ in range(2):
            assert await frames.receive(PATIENCE) == end_frame(NO_ID)
        with trio.move_on_after(0.1):
            assert not await frames.receive(PATIENCE)
        assert victim.p2p._host.is_connected(peer.peer_id)
        by_key = await peer.open_stream(victim.p2p.peer_id, EVENTS_PROTOCOL)
        await FrameStream(by_key, MAX_FRAME).send([sorted(victim.store.keys)[0]], PATIENCE)
        assert await FrameStream(by_key, MAX_FRAME).receive(PATIENCE)
