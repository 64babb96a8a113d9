"""A node against hosts that misbehave: each costs its own session, and nothing else.

The peer is a real host that speaks the protocols' first words, and then does as it likes.
"""

from contextlib import suppress
from dataclasses import replace

import pytest
import trio
from p2p_support import (
    LOOPBACK,
    NETWORK,
    PATIENCE,
    QUIET,
    Held,
    Node,
    assert_still_serves,
    connect,
    encode_frame,
    eventually,
    loopback_host,
    node,
    read_to_end,
    sessions,
    victim_and_peer,
)

from recon_node.ceramic import EventId, network_range, parse_event
from recon_node.ipld import encode_varint
from recon_node.p2p import ANOTHER_NETWORK, open_p2p
from recon_node.p2p.errors import MISBEHAVED, PeerError
from recon_node.p2p.sync.event_stream import CAR, END, EVENTS_PROTOCOL, parse_request
from recon_node.p2p.transport.framing import FrameStream, PeerStream
from recon_node.p2p.transport.host import Host
from recon_node.recon import ZERO, KeyRange, SessionSettings, Sha256a
from recon_node.recon.cip124.cip124_codec import Cip124Message, decode_message, encode_message
from recon_node.store import StoreSettings, open_store

RECON_PROTOCOL = "/ceramic/recon/1.0.0"  # spoken by hand here; the node falls back to it
WHOLE = KeyRange(*network_range(NETWORK))
MAX_FRAME = 1 << 20


def listing(events: list[Held]) -> bytes:
    """The frame of a message that lists these keys, and nothing else."""
    keys = sorted(key for key, _ in events)
    hashes = (ZERO,) * (len(keys) + 1)
    return encode_frame(encode_message(Cip124Message((WHOLE.lower, *keys, WHOLE.upper), hashes)))


def other_network() -> bytes:
    """The frame of a message about another network's range."""
    lower, upper = (EventId(b"\xce\x01\x05\x00" + bound[8:]) for bound in WHOLE)
    return encode_frame(encode_message(Cip124Message((lower, upper), (Sha256a.of(b"key"),))))


async def open_recon(peer: Host, victim) -> PeerStream:
    await connect(peer, victim)
    return await peer.open_stream(victim.p2p.peer_id, RECON_PROTOCOL)


async def assert_refused(peer: Host, victim, protocol: str) -> None:
    """One stream more is reset, within its negotiation or after."""
    with suppress(PeerError):
        await read_to_end(await peer.open_stream(victim.p2p.peer_id, protocol))


async def test_garbage_on_the_recon_stream(tmp_path, sdk_cars):
    async with node(tmp_path / "victim", sdk_cars[:20], **QUIET) as victim:
        for sends, outcome in (
            (encode_frame(b"garbage"), "does not parse"),
            (encode_varint(MAX_FRAME + 1), "at most 1048576 are accepted"),
        ):
            async with loopback_host() as peer:
                stream = await open_recon(peer, victim)
                await stream.send_all(sends)
                await read_to_end(stream)
                await eventually(
                    lambda it=outcome: any(it in outcome for outcome in victim.outcomes())
                )
                assert victim.failures(peer.peer_id) >= MISBEHAVED
        await assert_still_serves(victim, tmp_path)


async def test_a_range_of_another_network_is_answered_with_no_interest(tmp_path, sdk_cars):
    async with victim_and_peer(tmp_path, sdk_cars[:20]) as (victim, peer):
        stream = await open_recon(peer, victim)
        await stream.send_all(other_network())
        answer = await FrameStream(stream, MAX_FRAME).receive(PATIENCE)
        bounds = decode_message(answer).bounds
        assert bounds[0] == bounds[1]
        await eventually(lambda: len(victim.outcomes()) == 1)
        assert victim.outcomes()[0].startswith(ANOTHER_NETWORK)


@pytest.mark.parametrize(
    ("setting", "outcome"),
    [
        ("idle_timeout", "the peer sent no complete frame within 0.2 s"),
        ("session_timeout", "the session took longer than 0.2 s"),
    ],
)
async def test_a_peer_that_stalls_in_its_turn_is_cut_off(tmp_path, sdk_cars, setting, outcome):
    async with victim_and_peer(tmp_path, sdk_cars[:20], **{setting: 0.2}) as (victim, peer):
        stream = await open_recon(peer, victim)
        with suppress(trio.BrokenResourceError):
            await stream.send_all(b"\x7f")  # half a frame
            await read_to_end(stream)
        await eventually(lambda: victim.outcomes() == [outcome])
        await eventually(lambda: victim.failures(peer.peer_id) >= MISBEHAVED)


async def test_a_peer_may_run_only_so_many_sessions_at_once(tmp_path, sdk_cars):
    settings = {"max_sessions_per_peer": 2}
    async with victim_and_peer(tmp_path, sdk_cars[:20], **settings) as (victim, peer):
        held = [await open_recon(peer, victim) for _ in range(2)]
        await assert_refused(peer, victim, RECON_PROTOCOL)
        assert victim.p2p.counters.sessions_refused == 1
        await assert_still_serves(victim, tmp_path)
        for stream in held:
            await stream.reset()
        await eventually(lambda: len(victim.p2p.sync_reports) >= 2)
        frames = FrameStream(await open_recon(peer, victim), MAX_FRAME)
        await frames.send([encode_message(Cip124Message(WHOLE, (ZERO,)))], PATIENCE)
        assert await frames.receive(PATIENCE)


# --- peers that list keys and then do not deliver them ---------------------------------------


class Lister:
    """Answers a sync with a list of keys, and serves their events as a test wants it to."""

    def __init__(self, host: Host, events: list[Held]) -> None:
        self.host = host
        self.events = events
        self.asked: list[EventId] = []
        host.handle(RECON_PROTOCOL, self._list)

    async def _list(self, stream: PeerStream) -> None:
        frames = FrameStream(stream, MAX_FRAME)
        await frames.receive(PATIENCE)
        await stream.send_all(listing(self.events))
        reply = await frames.receive(PATIENCE)
        if reply is not None:  # agree with whatever the node makes of it
            await frames.send([reply], PATIENCE)

    def serve(self, answer) -> None:
        """Serve events: `answer` turns the EventIds asked for into frames."""

        async def handler(stream: PeerStream) -> None:
            frames = FrameStream(stream, MAX_FRAME)
            while (request := await frames.receive(PATIENCE)) is not None:
                self.asked = parse_request(request, NETWORK)
                await frames.send(answer(self.asked), PATIENCE)

        self.host.handle(EVENTS_PROTOCOL, handler)


@pytest.fixture
async def lister(sdk_events):
    async with loopback_host() as host:
        yield Lister(host, sdk_events[:10])


async def sync_with(victim, lister: Lister) -> str:
    await victim.p2p.connect(lister.host.addresses[0])
    await eventually(lambda: victim.p2p.sync_reports)
    return victim.outcomes()[0]


async def test_a_peer_without_an_event_stream(tmp_path, lister):
    async with node(tmp_path / "victim", **QUIET) as victim:
        outcome = await sync_with(victim, lister)
        assert "cannot open a /ceramic/events/1.0.0 stream" in outcome
        await eventually(lambda: victim.failures(lister.host.peer_id))
        assert len(victim.store.keys) == 0


async def test_a_peer_that_has_none_of_what_it_lists(tmp_path, lister):
    lister.serve(lambda asked: [END + b"".join(asked)])
    async with node(tmp_path / "victim", **QUIET) as victim:
        assert await sync_with(victim, lister) == "agreed but for 10 keys left out here"
        assert victim.p2p.counters.keys_left_out == 10
        assert sessions(victim.p2p.counters, "failed") == 0
        assert victim.p2p.counters.events_missing >= 10
        assert len(victim.store.keys) == 0
        await eventually(lambda: victim.failures(lister.host.peer_id) in (1, 2))


async def test_a_peer_that_lists_too_much_that_it_does_not_have(tmp_path, lister, sdk_events):
    lister.events = sdk_events
    lister.serve(lambda asked: [END + b"".join(asked)])
    settings = {**QUIET, "recon": SessionSettings(max_not_supplied=100)}
    async with node(tmp_path / "victim", **settings) as victim:
        assert "delivered no event" in await sync_with(victim, lister)
        await eventually(lambda: victim.failures(lister.host.peer_id) == MISBEHAVED)


async def test_events_that_are_not_valid_are_left_out_and_the_others_kept(tmp_path, lister):
    held = dict(lister.events)
    forged = lister.events[7][0]

    def answer(asked):
        for key in asked:
            car = bytearray(held[key])
            if key == forged:
                car[-1] ^= 1
            yield CAR + bytes(car)
        yield END

    lister.serve(answer)
    async with node(tmp_path / "victim", **QUIET) as victim:
        await sync_with(victim, lister)
        assert victim.p2p.counters.events_refused >= 1
        assert forged not in victim.store.keys
        assert len(victim.store.keys) == 9
        await eventually(lambda: victim.failures(lister.host.peer_id) in (1, 2))


async def test_a_peer_that_hangs_up_within_a_session_is_not_blamed_for_it(tmp_path, lister):
    async def hang_up(stream: PeerStream) -> None:
        await FrameStream(stream, MAX_FRAME).receive(PATIENCE)
        await lister.host.disconnect(stream.peer_id)

    lister.host.handle(RECON_PROTOCOL, hang_up)
    async with node(tmp_path / "victim", **QUIET) as victim:
        await sync_with(victim, lister)
        await eventually(lambda: victim.failures(lister.host.peer_id) == 1)


# --- peers that ask wrongly ------------------------------------------------------------------


async def test_a_peer_may_have_only_so_many_event_streams(tmp_path, sdk_events):
    async with victim_and_peer(tmp_path, max_event_streams_per_peer=1) as (victim, peer):
        first = await peer.open_stream(victim.p2p.peer_id, EVENTS_PROTOCOL)
        await assert_refused(peer, victim, EVENTS_PROTOCOL)
        await first.send_all(encode_frame(sdk_events[0][0]))
        frames = FrameStream(first, MAX_FRAME)
        assert await frames.receive(PATIENCE) == END + sdk_events[0][0]


async def test_a_peer_is_not_blamed_for_events_that_there_is_no_room_for(
    tmp_path, lister, sdk_events
):
    lister.events = [held for held in sdk_events if parse_event(held[1]).prevs][:10]
    held = dict(lister.events)
    lister.serve(lambda asked: [*(CAR + held[key] for key in asked), END])
    settings = replace(LOOPBACK, discovery=False, **QUIET)
    no_room = StoreSettings(max_waiting=0)
    async with (
        open_store(tmp_path, NETWORK, settings=no_room) as store,
        open_p2p(settings, store, tmp_path) as p2p,
    ):
        victim = Node(store, p2p)
        await sync_with(victim, lister)
        assert lister.asked
        assert store.totals["refused"] == len(lister.asked)
        assert len(store.keys) == p2p.counters.events_refused == p2p.counters.events_missing == 0
        assert victim.failures(lister.host.peer_id) == 0
