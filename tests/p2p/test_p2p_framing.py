"""Frames: the parser by Hypothesis, the stream over memory streams."""

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from p2p_support import PATIENCE, encode_frame
from support.settings import load_settings
from trio.testing import memory_stream_pair

from recon_node.ipld import encode_varint
from recon_node.ipld.cid import MAX_VARINT_VALUE
from recon_node.p2p import P2PSettings
from recon_node.p2p.errors import PeerGoneError, PeerProtocolError
from recon_node.p2p.settings import MAX_FRAME, MESSAGE_OVERRUN, MIB
from recon_node.p2p.transport.framing import FrameDecoder, FrameStream, FramingError
from recon_node.settings import SettingsError

frames = st.lists(st.binary(max_size=300), max_size=8)


def decode_all(decoder: FrameDecoder) -> list[bytes]:
    frames = []
    while (frame := decoder.next_frame()) is not None:
        frames.append(frame)
    return frames


@given(frames, st.data())
def test_frames_come_out_as_they_went_in_however_the_bytes_are_cut(sent, data):
    wire = b"".join(map(encode_frame, sent))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=10)))
    decoder = FrameDecoder(300)
    received = []
    for start, end in zip([0, *cuts], [*cuts, len(wire)], strict=True):
        decoder.feed(wire[start:end])
        received += decode_all(decoder)
    assert received == sent
    assert decoder.is_between_frames
    decoder.end()


@given(st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=4), st.data())
def test_an_end_within_a_frame_is_an_error(sent, data):
    wire = b"".join(map(encode_frame, sent))
    starts = {0}
    for frame in sent:
        starts.add(max(starts) + len(encode_frame(frame)))
    cut = data.draw(st.integers(0, len(wire)).filter(lambda at: at not in starts))
    decoder = FrameDecoder(300)
    decoder.feed(wire[:cut])
    decode_all(decoder)
    assert not decoder.is_between_frames
    with pytest.raises(PeerGoneError, match="ended"):
        decoder.end()


@given(st.binary(max_size=400))
def test_any_bytes_are_frames_or_a_framing_error(wire):
    decoder = FrameDecoder(64)
    decoder.feed(wire)
    try:
        received = decode_all(decoder)
    except FramingError:
        return
    assert all(len(frame) <= 64 for frame in received)
    assert wire.startswith(b"".join(map(encode_frame, received)))


@given(st.integers(65, MAX_VARINT_VALUE))
def test_a_longer_frame_is_refused_by_its_length_alone(length):
    decoder = FrameDecoder(64)
    decoder.feed(encode_varint(length))
    with pytest.raises(FramingError, match=rf"{length} bytes was announced; at most 64"):
        decoder.next_frame()


@pytest.mark.parametrize(
    ("prefix", "why"),
    [
        (b"\x80\x00", "shortest"),
        (b"\x81\x80\x00", "shortest"),
        (b"\xff" * 9, "longer than 9"),
        (b"\x80" * 12, "longer than 9"),
    ],
)
def test_a_length_that_is_not_a_varint_is_refused(prefix, why):
    decoder = FrameDecoder(64)
    decoder.feed(prefix)
    with pytest.raises(FramingError, match=why):
        decoder.next_frame()


@given(frames)
async def test_a_stream_carries_frames_and_counts_their_bytes(sent):
    left, right = memory_stream_pair()
    sender, receiver = FrameStream(left, 300), FrameStream(right, 300)
    await sender.send(sent, PATIENCE)
    await left.send_eof()
    received = []
    while (frame := await receiver.receive(PATIENCE)) is not None:
        received.append(frame)
    assert received == sent
    assert sender.bytes_sent == receiver.bytes_received == sum(len(encode_frame(f)) for f in sent)


@given(frames)
async def test_all_frames_that_are_here_come_at_once(sent):
    left, right = memory_stream_pair()
    await FrameStream(left, 300).send([*sent, b"the last one"], PATIENCE)
    await left.send_all(encode_varint(301))  # which is refused after the frames before it
    receiver = FrameStream(right, 300)
    assert await receiver.receive_all(PATIENCE) == [*sent, b"the last one"]
    with pytest.raises(FramingError, match="at most 300"):
        await receiver.receive_all(PATIENCE)


async def test_no_frames_are_the_end_of_the_stream():
    left, right = memory_stream_pair()
    await left.send_eof()
    assert await FrameStream(right, 300).receive_all(PATIENCE) == []


@pytest.mark.parametrize("trickles", [False, True])
async def test_a_peer_without_a_complete_frame_is_given_up_on(autojump_clock, nursery, trickles):
    left, right = memory_stream_pair()

    async def trickle() -> None:
        while True:
            await left.send_all(b"x")
            await trio.sleep(1)

    await left.send_all(encode_varint(100) + b"hello")
    if trickles:
        nursery.start_soon(trickle)
    started = trio.current_time()
    with pytest.raises(PeerProtocolError, match="sent no complete frame within 30 s"):
        await FrameStream(right, 100).receive(30)
    assert trio.current_time() - started == pytest.approx(30)


async def test_a_peer_that_takes_nothing_is_given_up_on(autojump_clock):
    left, _right = trio.testing.lockstep_stream_pair()
    with pytest.raises(PeerProtocolError, match="took no data for 30 s"):
        await FrameStream(left, 10).send([b"hello"], 30)


def test_a_node_sends_and_takes_as_much_as_its_settings_allow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RECON_NODE_MESSAGE_BYTES", str(2 * MIB))
    p2p = load_settings(flags={"max_frame": 8 * MIB}).p2p
    assert p2p.max_frame == 8 * MIB
    assert p2p.session_settings.message_bytes == 2 * MIB


def test_messages_are_kept_below_frames() -> None:
    p2p = load_settings(flags={"message_bytes": 8 * MIB}).p2p
    assert p2p.max_frame == MIB
    assert p2p.session_settings.message_bytes == MIB - MESSAGE_OVERRUN


@pytest.mark.parametrize("size", [1000, MAX_FRAME + 1])
def test_frames_that_hold_no_event_or_fill_the_memory_are_refused(size: int) -> None:
    with pytest.raises(SettingsError, match="max-frame"):
        load_settings(flags={"max_frame": size})
    with pytest.raises(ValueError, match="max_frame"):
        P2PSettings(max_frame=size)
