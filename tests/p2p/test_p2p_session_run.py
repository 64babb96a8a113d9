"""The recon driver over memory streams: two real sessions, and peers that misbehave."""

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from p2p_support import LOOPBACK, NETWORK, PATIENCE
from trio.testing import memory_stream_pair

from recon_node.ceramic import network_range
from recon_node.ipld import encode_varint
from recon_node.p2p.errors import PeerGoneError, PeerProtocolError
from recon_node.p2p.sync.reconciler import FrameWire
from recon_node.p2p.sync.sessions import Tally, converse
from recon_node.p2p.transport.framing import FrameStream, FramingError
from recon_node.recon import (
    RECON_1_0,
    RECON_1_2,
    ZERO,
    Failed,
    Fetch,
    FetchById,
    KeyRange,
    KeyStore,
    RemoteProtocolError,
    Side,
    Version,
)
from recon_node.recon.cip124.cip124_codec import Cip124Message, encode_message
from recon_node.recon.coded.messages import Gaps, Mode
from recon_node.recon.coded.messages import Message as CodedMessage
from recon_node.recon.keys.key_hashes import LtHash
from recon_node.recon.keys.ordered_keys import common_prefix

WHOLE = KeyRange(*network_range(NETWORK))
MAX_FRAME = LOOPBACK.max_frame


def store_of(keys) -> KeyStore:
    store = KeyStore()
    store.load(keys)
    return store


class Events:
    """Gets the events of all keys; it has to see keys before events."""

    def __init__(self, store: KeyStore) -> None:
        self.store = store
        self.tally = Tally()

    async def perform(self, action: Fetch | FetchById) -> Failed | None:
        if isinstance(action, FetchById):
            return None
        for key in action.keys:
            self.store.add(key)
        return Failed([])


def wire_of(version, session, stream) -> FrameWire:
    frames = FrameStream(stream, MAX_FRAME)
    return FrameWire(version, session, frames, LOOPBACK, trio.CapacityLimiter(2))


async def reconcile(version, ours: KeyStore, theirs: KeyStore):
    left, right = memory_stream_pair()
    initiator = version.session(Side.initiator(ours, WHOLE, LOOPBACK.session_settings))
    responder = version.session(Side.responder(theirs, [WHOLE], LOOPBACK.session_settings))
    here, there = wire_of(version, initiator, left), wire_of(version, responder, right)

    async def respond():
        await converse(responder, there, Events(theirs))
        await right.send_eof()

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(respond)
            await converse(initiator, here, Events(ours))
            await left.aclose()
    assert initiator.side.done
    assert responder.side.done
    return initiator


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
async def test_two_sides_end_with_the_union(sdk_events, version, data):
    keys = st.frozensets(st.sampled_from([key for key, _ in sdk_events]), max_size=200)
    a, b = data.draw(keys), data.draw(keys)
    ours, theirs = store_of(a), store_of(b)
    await reconcile(version, ours, theirs)
    assert set(ours.keys(WHOLE)) == set(theirs.keys(WHOLE)) == a | b


async def test_long_messages_are_carried_too(sdk_events, version):
    keys = {key for key, _ in sdk_events}
    ours, theirs = store_of([]), store_of(keys)
    session = await reconcile(version, ours, theirs)
    assert set(ours.keys(WHOLE)) == keys
    assert session.side.rounds <= (5 if version is RECON_1_2 else 3)  # it names them by id first


# --- peers that misbehave --------------------------------------------------------------------


async def answer(wire: bytes, keys=(), *, ends: bool = True, version: Version = RECON_1_0) -> None:
    """Let a responder that holds these keys read these bytes."""
    left, right = memory_stream_pair()
    store = store_of(keys)
    session = version.session(Side.responder(store, [WHOLE], LOOPBACK.session_settings))
    await left.send_all(wire)
    if ends:
        await left.send_eof()
    await converse(session, wire_of(version, session, right), Events(store))


def framed(message: bytes) -> bytes:
    return encode_varint(len(message)) + message


GOOD = encode_message(Cip124Message(WHOLE, (ZERO,)))


@pytest.mark.parametrize(
    ("wire", "error", "text"),
    [
        (framed(b"garbage"), RemoteProtocolError, "does not parse"),
        (framed(b""), RemoteProtocolError, "does not parse"),
        (framed(GOOD[:-1]), RemoteProtocolError, "does not parse"),
        (framed(GOOD + b"\x00"), RemoteProtocolError, "no Ahash"),
        (framed(b"\xff" * 100_000), RemoteProtocolError, "does not parse"),
        (encode_varint(MAX_FRAME + 1), FramingError, "at most 1048576 are accepted"),
        (b"\x80\x00", FramingError, "shortest"),
        (framed(GOOD)[:-3], PeerGoneError, "ended after"),
        (b"", PeerGoneError, "before the session was over"),
    ],
)
async def test_what_is_not_a_recon_message_ends_the_session(wire, error, text):
    with pytest.raises(error, match=text):
        await answer(wire)


OTHER_KEYS = encode_message(Cip124Message(WHOLE, (b"\x01" * 32,)))
HALF_WAY = WHOLE.lower[: common_prefix(*WHOLE)] + b"\x80"
CONTINUES = RECON_1_2.encode(
    CodedMessage(WHOLE, Gaps([HALF_WAY], [Mode.FINGERPRINT], [bytes(16)]), continues=True)
)


@pytest.mark.parametrize(
    ("version", "wire", "limit"),
    [
        (RECON_1_0, b"", LOOPBACK.idle_timeout),
        (RECON_1_0, framed(GOOD)[:-3], LOOPBACK.idle_timeout),
        (RECON_1_0, framed(OTHER_KEYS), LOOPBACK.turn_timeout),
        (RECON_1_2, framed(CONTINUES), LOOPBACK.idle_timeout),
        (RECON_1_0, framed(OTHER_KEYS) + b"\x7f", LOOPBACK.idle_timeout),
    ],
    ids=[
        "silent",
        "half a frame",
        "before its answer",
        "in the middle of a turn",
        "half an answer",
    ],
)
async def test_a_peer_that_stalls_is_given_up_on(autojump_clock, version, wire, limit):
    assert LOOPBACK.idle_timeout < LOOPBACK.turn_timeout
    started = trio.current_time()
    with pytest.raises(PeerProtocolError, match=rf"sent no.* {limit:g} s"):
        await answer(wire, ends=False, version=version)
    assert trio.current_time() - started == pytest.approx(limit)


async def test_the_first_answer_of_a_peer_may_take_a_turns_time(autojump_clock):
    left, _right = memory_stream_pair()
    asking = RECON_1_0.session(Side.initiator(KeyStore(), WHOLE, LOOPBACK.session_settings))
    started = trio.current_time()
    wire = wire_of(RECON_1_0, asking, left)
    with pytest.raises(PeerProtocolError, match="sent nothing for 120 s"):
        await converse(asking, wire, Events(KeyStore()))
    assert trio.current_time() - started == pytest.approx(120)


async def test_an_answer_may_take_as_much_longer_as_keys_were_listed(autojump_clock):
    """The peer fetches their events before that."""
    held = [WHOLE.lower + number.to_bytes(4, "big") for number in range(20_480)]
    opening = CodedMessage(WHOLE, digest=LtHash().digest(), count=0)
    with pytest.raises(PeerProtocolError, match="sent nothing for 600 s"):
        await answer(framed(RECON_1_2.encode(opening)), held, ends=False, version=RECON_1_2)
