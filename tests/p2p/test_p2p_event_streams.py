"""One event stream serves many fetches, takes no slot in between, and is replaced if it ends."""

import pytest
import trio
from p2p_support import LOOPBACK, PATIENCE, connect, eventually, loopback_host, node, streams_opened

from recon_node.ipld import CID
from recon_node.p2p.errors import PeerGoneError, StaleStreamError
from recon_node.p2p.sync import event_server
from recon_node.p2p.sync.event_stream import EVENTS_PROTOCOL, EVENTS_USED_FOR, EventStreams
from recon_node.p2p.transport.framing import FrameStream
from recon_node.p2p.transport.guarded_connection import unlimited


class Ended:
    """Stands for a stream to a peer."""

    peer_id = "peer"

    def __init__(self) -> None:
        self.account = unlimited().account("peer")
        self.is_open = True

    async def receive_some(self, max_bytes: int) -> bytes:
        return b"\x01x"

    async def aclose(self) -> None:
        self.is_open = False

    reset = aclose


class Opener:
    """Opens such streams."""

    def __init__(self) -> None:
        self.opened = []

    async def open_stream(self, peer_id, *protocols):
        self.opened.append(Ended())
        return self.opened[-1]


@pytest.fixture
def host():
    return Opener()


@pytest.fixture
def streams(host):
    return EventStreams(host, 1000)


async def use(streams, error=None, *, within_answer: bool = False) -> None:
    async with streams.open("peer", EVENTS_PROTOCOL) as frames:
        if within_answer:
            await frames.receive(PATIENCE)
        if error is not None:
            raise error


async def test_a_stream_is_used_again_for_a_while(host, streams, autojump_clock):
    for _ in range(3):
        await use(streams)
        await trio.sleep(EVENTS_USED_FOR / 2)
    assert len(host.opened) == 1
    await trio.sleep(EVENTS_USED_FOR)
    await use(streams)
    assert len(host.opened) == 2
    assert not host.opened[0].is_open


async def test_a_stream_that_is_kept_holds_no_events(streams):
    """They are in the store. Each bulk fetch left the peer charged with up to six batches."""
    async with streams.open("peer", EVENTS_PROTOCOL) as frames:
        frames.account.hold("events", 1 << 20)
        budget = frames.account._budget
    assert budget.held == 0


async def test_two_fetches_at_once_take_two_streams_and_one_is_kept(host, streams):
    async with streams.open("peer", EVENTS_PROTOCOL), streams.open("peer", EVENTS_PROTOCOL):
        pass
    assert [stream.is_open for stream in host.opened].count(True) == 1
    await use(streams)
    assert len(host.opened) == 2


@pytest.mark.parametrize("error", [PeerGoneError("gone"), trio.BrokenResourceError("reset")])
async def test_a_kept_stream_that_had_ended_is_distinguished_from_a_failure(host, streams, error):
    with pytest.raises(type(error)) as of_new:
        await use(streams, error)
    assert not isinstance(of_new.value, StaleStreamError)
    await use(streams)
    with pytest.raises(StaleStreamError):
        await use(streams, error)
    await use(streams)
    with pytest.raises(type(error)) as within_answer:
        await use(streams, error, within_answer=True)
    assert not isinstance(within_answer.value, StaleStreamError)
    assert not any(stream.is_open for stream in host.opened)


async def test_a_stream_on_which_a_fetch_failed_is_not_kept(host, streams):
    with pytest.raises(ValueError, match="broken"):
        await use(streams, ValueError("broken"))
    assert not host.opened[0].is_open
    await use(streams)
    assert len(host.opened) == 2


async def test_many_pushes_take_one_event_stream(tmp_path, sdk_cars):
    options = {"sync_interval": 3600, "ceramic_one": False}
    async with (
        node(tmp_path / "a", push_delay=0.01, **options) as a,
        node(tmp_path / "b", push_delay=3600, **options) as b,
    ):
        opened = streams_opened(b, "events")
        await b.p2p.connect(a.address)
        for number in range(1, 6):
            await a.store.admit_local(sdk_cars[number - 1 : number])
            await eventually(lambda count=number: b.holds_as_many_as(count))
        assert len(opened) <= 2, "the sync on connection may be under way at the first push"


async def test_a_stream_between_two_fetches_takes_no_slot(tmp_path, sdk_cars, monkeypatch):
    monkeypatch.setattr(event_server, "LINGER", 0.05)
    limits = {"max_event_streams": 1, "max_event_streams_per_peer": 1}
    async with (
        node(tmp_path / "victim", sdk_cars[:2], **limits) as victim,
        loopback_host() as first,
        loopback_host() as second,
    ):
        (key, *_) = victim.store.keys.keys(victim.store.wanted.ranges[0])

        async def ask(frames: FrameStream) -> CID:
            await frames.send([key], PATIENCE)
            frame = await frames.receive(PATIENCE)
            assert frame is not None, "the stream was ended"
            end = await frames.receive(PATIENCE)
            assert (frame[0], end) == (0, b"\x01")

        opened = []
        for host in (first, second):
            await connect(host, victim)
            stream = await host.open_stream(victim.p2p.peer_id, EVENTS_PROTOCOL)
            opened.append(FrameStream(stream, LOOPBACK.max_frame))
            await ask(opened[-1])
            await eventually(lambda: not victim.p2p._events._slots._used)
        for frames in opened:
            await ask(frames)
            await eventually(lambda: not victim.p2p._events._slots._used)
