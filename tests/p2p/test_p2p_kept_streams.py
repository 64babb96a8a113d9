"""A recon stream carries one session after the other, and costs little while it is kept."""

from contextlib import asynccontextmanager

import pytest
import trio
from p2p_support import (
    LOOPBACK,
    NETWORK,
    PATIENCE,
    QUIET,
    eventually,
    loopback_host,
    node,
    read_to_end,
    sessions,
    streams_opened,
    victim_and_peer,
)
from trio.testing import memory_stream_pair

from recon_node.ceramic import network_range, sort_value_range
from recon_node.p2p.transport.framing import RECON_USED_FOR, FrameStream, KeptStreams, PeerFrames
from recon_node.recon import RECON_1_0, RECON_1_2, KeyRange, KeyStore, Side, turn_of
from recon_node.recon.coded.messages import Conclusion, Message
from recon_node.store import Interest

WHOLE = KeyRange(*network_range(NETWORK))
BUSY = {"sync_interval": 0.02, "push_delay": 3600}
AGREED = Message(conclusion=Conclusion.AGREED)


def opening(key_range: KeyRange = WHOLE) -> bytes:
    """The first message of a side that holds no key."""
    (first,) = turn_of(RECON_1_2.session(Side.initiator(KeyStore(), key_range)).start())
    return RECON_1_2.encode(first)


async def ask(frames: FrameStream, key_range: KeyRange = WHOLE) -> Message:
    """Begin a session; return the answer."""
    await frames.send([opening(key_range)], PATIENCE)
    answer = await frames.receive(PATIENCE)
    assert answer is not None, "the stream was ended"
    return RECON_1_2.decode(answer)


@asynccontextmanager
async def asking(tmp_path, **settings):
    """A node that holds nothing, and a host that opens recon streams to it."""
    async with victim_and_peer(tmp_path, **settings) as (victim, peer):

        async def open_frames() -> FrameStream:
            stream = await peer.open_stream(victim.p2p.peer_id, RECON_1_2.id)
            return FrameStream(stream, LOOPBACK.max_frame)

        yield victim, peer, open_frames


async def test_many_sessions_take_one_stream(tmp_path, sdk_cars):
    async with (
        node(tmp_path / "a", sdk_cars[:20], ceramic_one=False, **BUSY) as a,
        node(tmp_path / "b", sdk_cars[:20], ceramic_one=False, **BUSY) as b,
    ):
        opened = streams_opened(a, "recon"), streams_opened(b, "recon")
        await b.p2p.connect(a.address)
        counters = a.p2p.counters, b.p2p.counters
        await eventually(lambda: min(sessions(counts, "initiator") for counts in counters) >= 10)
        assert [len(streams) for streams in opened] == [1, 1]
        assert {*a.outcomes(), *b.outcomes()} == {"agreed"}
        sizes = {(report.bytes_sent, report.bytes_received) for report in b.p2p.sync_reports}
        assert len(sizes) == 2, "bytes are counted for each session: as initiator, as responder"


async def test_1_0_takes_a_stream_for_each_session(tmp_path):
    async with (
        node(tmp_path / "a", versions=[RECON_1_0], **BUSY) as a,
        node(tmp_path / "b", versions=[RECON_1_0], **QUIET) as b,
    ):
        opened = streams_opened(a, "recon")
        await b.p2p.connect(a.address)
        await eventually(lambda: sessions(a.p2p.counters, "initiator") >= 3)
        assert len(opened) >= 3


async def test_a_peer_that_ends_the_stream_after_each_session(tmp_path):
    """As nodes do that do not keep streams; also one that resets it."""
    served = []

    async def answer_once(stream):
        served.append(stream)
        await FrameStream(stream, LOOPBACK.max_frame).receive(PATIENCE)
        await FrameStream(stream, LOOPBACK.max_frame).send([RECON_1_2.encode(AGREED)], PATIENCE)
        if len(served) % 2:
            await stream.reset()

    async with node(tmp_path / "a", **BUSY) as a, loopback_host() as peer:
        peer.handle(RECON_1_2.id, answer_once)
        await a.p2p.connect(peer.addresses[0])
        await eventually(lambda: sessions(a.p2p.counters, "initiator") >= 6)
        assert len(served) >= 6
        assert set(a.outcomes()) == {"agreed"}
        assert sessions(a.p2p.counters, "failed") == a.failures(peer.peer_id) == 0


async def test_a_kept_stream_that_ends_under_the_opening_is_replaced(tmp_path):
    served = []

    async def leave_at_the_second_opening(stream):
        frames = FrameStream(stream, LOOPBACK.max_frame)
        served.append(stream)
        await frames.receive(PATIENCE)
        await frames.send([RECON_1_2.encode(AGREED)], PATIENCE)
        await frames.receive(60)

    async with node(tmp_path / "a", **BUSY) as a, loopback_host() as peer:
        peer.handle(RECON_1_2.id, leave_at_the_second_opening)
        await a.p2p.connect(peer.addresses[0])
        await eventually(lambda: sessions(a.p2p.counters, "initiator") >= 4)
        assert set(a.outcomes()) == {"agreed"}
        assert a.failures(peer.peer_id) == 0


async def test_kept_streams_take_no_slot_and_are_one_a_peer(tmp_path):
    async with asking(tmp_path, max_sessions_per_peer=1) as (victim, _, open_frames):
        streams = []
        for _ in range(5):
            streams.append(await open_frames())
            assert await ask(streams[-1]) == AGREED
        for frames in streams[1:]:
            await read_to_end(frames._stream)
        assert await ask(streams[0]) == AGREED
        assert victim.p2p.counters.sessions_refused == 0
        assert sessions(victim.p2p.counters, "responder") == 6


async def test_each_session_on_a_stream_has_the_interests_of_its_time(tmp_path):
    key_range = KeyRange(*sort_value_range(NETWORK, "some"))
    other = KeyRange(*sort_value_range(NETWORK, "other"))
    async with asking(tmp_path) as (victim, peer, open_frames):
        frames = await open_frames()
        assert await ask(frames, key_range) == AGREED
        await eventually(lambda: victim.p2p._book.interests(peer.peer_id) == [key_range])
        assert await ask(frames, other) == AGREED
        await eventually(lambda: {*victim.p2p._book.interests(peer.peer_id)} == {key_range, other})
        await victim.store.wanted.add(Interest("model", "some", None, None))
        assert await ask(frames, other) == Message(conclusion=Conclusion.REFUSED)
        assert (await ask(frames)).key_range == key_range


async def test_a_peer_that_is_gone_gives_its_place_back(tmp_path):
    async with asking(tmp_path) as (victim, peer, open_frames):
        for _ in range(3):
            await peer.connect(victim.address)
            assert await ask(await open_frames()) == AGREED
            assert victim.p2p._sessions._idle_streams._used.total() <= 1
            await peer.disconnect(victim.p2p.peer_id)
            await eventually(lambda: not victim.p2p._sessions._idle_streams._used.total())
        assert {*victim.outcomes()} == {"agreed"}


# --- how long a stream is kept ----------------------------------------------------------------


class Ended:
    """Stands for a stream to a peer, which may have frozen: its end takes a while then."""

    account = None

    def __init__(self, peer_id: str, seconds: float = 0) -> None:
        self.peer_id = peer_id
        self.seconds = seconds
        self.is_open = True

    async def aclose(self) -> None:
        await trio.sleep(self.seconds)
        self.is_open = False


def opened(peer_id: str, seconds: float = 0) -> PeerFrames:
    return PeerFrames(Ended(peer_id, seconds), 100)


async def test_an_initiator_ends_streams_that_it_does_not_use(autojump_clock):
    kept, first, second = KeptStreams(), opened("a"), opened("b")
    await kept.put(first)
    await kept.put(opened("a"))
    await trio.sleep(RECON_USED_FOR / 2)
    await kept.put(second)
    assert len(kept) == 2
    await trio.sleep(RECON_USED_FOR / 2)
    assert await kept.take("a") is None
    assert not first.stream.is_open
    taken = await kept.take("b")
    assert taken.stream is second.stream
    assert taken.was_kept
    assert len(kept) == 0
    await kept.put(second)
    second.stream.is_open = False
    assert await kept.take("b") is None


@pytest.mark.parametrize("end", ["silence", "close", "eof"])
async def test_a_responder_waits_only_so_long(autojump_clock, end):
    left, right = memory_stream_pair()
    if end == "eof":
        await left.send_eof()
    elif end == "close":
        await left.aclose()
    assert not await FrameStream(right, 100).wait_for_frame(300)
    assert trio.current_time() == pytest.approx(300 if end == "silence" else 0, abs=1)


async def test_streams_of_frozen_or_lost_peers_are_ended_side_by_side(autojump_clock):
    kept = KeptStreams()
    streams = [opened(str(number), seconds=2) for number in range(20)]
    for stream in streams:
        await kept.put(stream)
    for lost in streams[:2]:
        lost.stream.is_open = False
    assert (await kept.take("2")).stream is streams[2].stream
    assert (trio.current_time(), len(kept)) == (2, 17)
    await trio.sleep(RECON_USED_FOR)
    assert await kept.take("3") is None
    assert (trio.current_time(), len(kept)) == (4 + RECON_USED_FOR, 0)
