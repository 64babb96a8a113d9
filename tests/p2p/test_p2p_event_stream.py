"""The event stream over memory streams: what is asked for comes, and nothing else is taken."""

import re
from functools import partial

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from p2p_support import LOOPBACK, NETWORK, PATIENCE, Held, fetch_all, fetch_from, frame_pair

from recon_node.ceramic import EventId, network_range
from recon_node.ipld import CID, RAW, car
from recon_node.p2p.errors import PeerGoneError, PeerProtocolError
from recon_node.p2p.sync import event_stream
from recon_node.p2p.sync.event_server import LINGER, Searches, serve_events
from recon_node.p2p.sync.event_stream import (
    CAR,
    END,
    head_frame,
    parse_event,
    parse_request,
    root_of,
)
from recon_node.p2p.sync.key_rate_limit import KeyRateLimit
from recon_node.recon import KeyRange, KeyStore, SoughtIds, id_of

MAX_FRAME = 1 << 20
WHOLE = KeyRange(*network_range(NETWORK))


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@pytest.mark.parametrize("by_id", [False, True])
@given(data=st.data(), per_request=st.integers(1, 400))
async def test_what_the_peer_holds_comes_and_the_rest_is_named_missing(
    sdk_events, by_id, data, per_request
):
    """By EventIds, or by their ids within a range, some of which may be named twice."""
    all_keys = [key for key, _ in sdk_events]
    held = dict(data.draw(st.lists(st.sampled_from(sdk_events), max_size=300)))
    wanted = data.draw(st.lists(st.sampled_from(all_keys), unique=not by_id, max_size=600))
    ours, theirs = frame_pair()
    received = {}

    async def read_cars(keys):
        return [held.get(key) for key in keys]

    async def deliver(events) -> None:
        assert len(events) <= 250
        received.update(events)

    there, asked = [key for key in wanted if key in held], wanted
    serve = partial(serve_events, theirs, read_cars, NETWORK, LOOPBACK)
    if by_id:
        bounds = st.sampled_from([*WHOLE, *all_keys])
        part = KeyRange(*sorted(data.draw(st.lists(bounds, unique=True, min_size=2, max_size=2))))
        there, asked = (
            [key for key in there if part.covers(key)],
            SoughtIds(part, [*map(id_of, wanted)]),
        )
        search = partial(Searches(KeyStore(held), KeyRateLimit()).find, "192.0.2.1")
        serve = partial(serve, search)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        not_supplied = await fetch_all(ours, asked, deliver, PATIENCE, per_request)
        await ours._stream.send_eof()
    assert received == {key: held[key] for key in there}
    left = set(wanted).difference(there)
    assert set(not_supplied) == (set(map(id_of, left)) if by_id else left)


async def test_two_eventids_of_one_event_are_two_events(sdk_events):
    key, block = sdk_events[0]
    other = EventId(key.prefix + b"\x05" + key.event_cid)
    received = await fetch_from([CAR + block, CAR + block, END], [key, other])
    assert sorted(received) == sorted([(key, block), (other, block)])


# --- a peer that answers wrongly -------------------------------------------------------------


def wrong_answers(a: Held, b: Held) -> list[tuple[list[bytes], str]]:
    (key_a, car_a), (key_b, car_b) = a, b
    strange = CID.of(RAW, b"strange")
    return [
        ([CAR + car_b], "not asked for"),
        ([CAR + car_a, CAR + car_a], "not asked for"),
        ([CAR + car.encode([strange], {strange: b"strange"})], "not asked for"),
        ([CAR + b"\xff\xff"], "not a CAR"),
        ([CAR], "not a CAR"),
        ([CAR + b"\x09\xa1\x65roots\x81\x00"], "not a CAR"),  # the root is not a CID
        ([CAR + b"\x08\xa1\x65roots\x00"], "not a CAR"),  # the roots are a number
        ([b"\x07" + car_a], "unknown kind 07"),
        ([b""], "unknown kind nothing"),
        ([END], "names 0 .* 1 did not arrive"),
        ([END + key_b], "did not arrive"),
        ([END + key_a + key_a], "did not arrive"),
        ([CAR + car_a, END + key_a], "did not arrive"),
        ([END + b"\x00\x01"], "does not parse"),
        ([CAR + car_a, END, END], "more after the end"),
    ]


async def test_a_wrong_answer_ends_the_fetch(sdk_events):
    asked, other = sdk_events[:2]
    for answers, text in wrong_answers(asked, other):
        with pytest.raises(PeerProtocolError, match=text):
            await fetch_from(answers, [asked[0]])
    for answers in ([], [CAR + asked[1]]):
        with pytest.raises(PeerGoneError, match="within an answer"):
            await fetch_from(answers, [asked[0]])


async def test_a_peer_that_stalls_is_given_up_on(sdk_events, autojump_clock):
    ours, _theirs = frame_pair()

    async def deliver(events) -> None:
        raise AssertionError("nothing was sent")

    with pytest.raises(PeerProtocolError, match="sent no complete frame within 30 s"):
        await fetch_all(ours, [sdk_events[0][0]], deliver, 30)


def test_the_root_is_read_from_the_header_alone(sdk_events):
    for key, block in sdk_events[:50]:
        assert root_of(block) == key.event_cid == car.decode(block).roots[0]
        assert root_of(block[:100]) == key.event_cid


# --- a peer that asks wrongly ----------------------------------------------------------------


def test_a_usual_frame_is_read_as_any_other(sdk_events, monkeypatch):
    """Two ways of reading agree on a signed event's frame, and on all with another byte."""
    event_id, car = next(event for event in sdk_events if event[0].height)
    usual = head_frame(event_id) + car
    frames = [
        usual[:at] + bytes([byte]) + usual[at + 1 :]
        for at in range(len(head_frame(event_id)) + 70)
        for byte in (usual[at], usual[at] ^ 1, usual[at] ^ 0x80, 0, 0x18)
    ]

    def read(frame: bytes) -> object:
        try:
            return parse_event(frame)
        except PeerProtocolError as error:
            return str(error)

    read_at_once = [*map(read, frames)]
    assert event_stream._USUAL_EVENT.match(usual)
    assert read_at_once[0] == (event_id, car)
    monkeypatch.setattr(event_stream, "_USUAL_EVENT", re.compile(b"(?!)"))
    assert [*map(read, frames)] == read_at_once


def test_requests_that_are_none_are_refused(sdk_events):
    keys = [key for key, _ in sdk_events]
    mainnet_key = EventId(b"\xce\x01\x05\x00" + keys[0][8:])
    assert mainnet_key.network_id == 0
    wrong = {
        b"": "0 events",
        b"\x00": "does not parse",
        keys[0][:-1]: "does not parse",
        keys[0] + b"\xce": "does not parse",
        b"".join((keys * 2)[:1001]): "for 1001 events",
        mainnet_key: "not an event of the network local-7",
        WHOLE.lower: "not an event of the network",
    }
    for request, text in wrong.items():
        with pytest.raises(PeerProtocolError, match=text):
            parse_request(request, NETWORK)
    assert parse_request(b"".join(keys[:1000]), NETWORK) == keys[:1000]


async def test_a_wrong_request_ends_the_stream_and_nothing_is_read(sdk_events):
    ours, theirs = frame_pair()

    async def read_cars(keys):
        raise AssertionError("nothing must be read")

    await ours.send([b"garbage"], PATIENCE)
    with pytest.raises(PeerProtocolError, match="does not parse"):
        await serve_events(theirs, read_cars, NETWORK, LOOPBACK)


async def test_a_peer_that_asks_for_nothing_is_given_up_on(sdk_events, autojump_clock):
    async def read_cars(keys):
        return [None] * len(keys)

    ours, theirs = frame_pair()
    started = trio.current_time()
    with pytest.raises(PeerProtocolError, match="sent no complete frame within 30 s"):
        await serve_events(theirs, read_cars, NETWORK, LOOPBACK)
    assert trio.current_time() - started == pytest.approx(30)
    await ours.send([sdk_events[0][0]], PATIENCE)
    started = trio.current_time()
    await serve_events(theirs, read_cars, NETWORK, LOOPBACK)
    assert trio.current_time() - started == pytest.approx(LINGER)


@pytest.mark.parametrize(("size", "events", "reads"), [(1_000, 500, 12), (200_000, 30, 31)])
async def test_events_are_read_by_hundreds_or_half_a_mebibyte(sdk_events, size, events, reads):
    """A hop to a thread costs as much as reading an event; of large ones, few are held at once."""
    wanted = [key for key, _ in sdk_events[:events]]
    header = sdk_events[0][1][:100]
    ours, theirs = frame_pair()
    parts = []

    async def read_cars(keys):
        parts.append(len(keys))
        return [header + bytes(size) for _ in keys]

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_events, theirs, read_cars, NETWORK, LOOPBACK)
        for _ in range(2):  # the second request begins with as many
            await ours.send([b"".join(wanted)], PATIENCE)
            while await ours.receive(PATIENCE) != END:
                pass
        await ours._stream.send_eof()
    assert sum(parts) == 2 * events
    assert len(parts) <= reads
    assert all(part * size <= 512 * 1024 for part in parts)
