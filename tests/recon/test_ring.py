"""Sessions of `/ceramic/recon/0.1.0`: recorded ones byte for byte, random ones to equal sets."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import sdk_sample, vectors

from recon_node.ceramic.heightless_event_id import HeightlessEventId, is_fencepost
from recon_node.ceramic.network import Network
from recon_node.recon.actions import Admit, Send, SendValues, Value, turn_of
from recon_node.recon.keys.key_store import KeyStore
from recon_node.recon.keys.ordered_keys import KeyRange, Summary, merge_ranges
from recon_node.recon.keys.sha256a import ZERO, Sha256a
from recon_node.recon.ring import ring_codec
from recon_node.recon.ring.ring import Ring
from recon_node.recon.ring.ring_codec import (
    Decoder,
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
from recon_node.recon.ring.ring_session import (
    MAX_IN_FLIGHT,
    MAX_USELESS_VALUES,
    MAX_WAITING,
    Initiator,
    Responder,
)
from recon_node.recon.session import RemoteProtocolError

RECORDED = vectors.load("recon_0_1_sessions")
SESSIONS = [name for name, messages in RECORDED.items() if isinstance(messages, list)]
EVERYTHING = KeyRange(b"", b"\xff")


def form_of(name: str) -> KeyForm:
    return KeyForm.TEXT if name.endswith("peer") else KeyForm.BYTES


class Side:
    """A set of keys and a session over it, driven as the node drives it, without a network."""

    def __init__(self, keys: Iterable[bytes], role: type, interests: Iterable[KeyRange]):
        self.store = KeyStore(keys)
        self.ring = Ring(self.store, lambda bound: bound in (b"", b"\xff"))
        self.session = role(self.ring, interests)
        self.sent: list[Message] = []
        self.admitted = 0

    def take(self, message: Message) -> Iterator[Message]:
        for action in self.session.receive(message):
            match action:
                case Send([reply]):
                    self.sent.append(reply)
                    yield reply
                case SendValues(first, last):
                    yield from [Value(key, b"v" + key) for key in self.ring.keys(first, last)]
                case Admit(values):
                    self.admitted += len(values)
                    for value in values:
                        assert value.value == b"v" + value.key
                        self.store.add(value.key)


def reconcile(initiator: Side, responder: Side) -> int:
    """Run a session to its end; return the number of messages."""
    to_responder, to_initiator = turn_of(initiator.session.start()), []
    count = 0
    in_flight = 0
    while to_responder or to_initiator:
        count += 1
        if to_responder:
            message = to_responder.pop(0)
            in_flight += isinstance(message, RangeRequest)
            to_initiator += responder.take(message)
        else:
            message = to_initiator.pop(0)
            in_flight -= isinstance(message, RangeResponse)
            to_responder += initiator.take(message)
        assert in_flight <= MAX_IN_FLIGHT
    assert initiator.session.end_of_stream()
    assert responder.session.done
    return count


keys_of_one_side = st.sets(st.binary(min_size=1, max_size=3).filter(lambda k: k[0] < 255))


@given(keys_of_one_side, keys_of_one_side)
def test_any_two_sets_become_equal(a, b):
    one = Side(a, Initiator, [EVERYTHING])
    two = Side(b, Responder, [EVERYTHING])
    reconcile(one, two)
    assert list(one.store) == list(two.store) == sorted(a | b)
    # Each key that one side lacked was sent to it; few others were.
    assert one.admitted == len(b - a)
    assert two.admitted == len(a - b)


@given(
    keys_of_one_side,
    keys_of_one_side,
    st.lists(st.tuples(st.binary(max_size=2), st.binary(max_size=2)), max_size=4),
    st.lists(st.tuples(st.binary(max_size=2), st.binary(max_size=2)), max_size=4),
)
def test_only_common_interests_are_reconciled(a, b, mine, theirs):
    # Interests are open ranges between fenceposts: bounds that are nobody's keys.
    mine, theirs = (
        [KeyRange(low + b"\0", high + b"\0") for low, high in bounds] for bounds in (mine, theirs)
    )
    bounds = {bound for bounds in (*mine, *theirs) for bound in bounds}
    a, b = a - bounds, b - bounds
    one = Side(a, Initiator, mine)
    two = Side(b, Responder, theirs)
    for side in (one, two):
        side.ring._is_fencepost = lambda bound: bound in bounds
    reconcile(one, two)

    def common(key):
        return any(r.covers(key) for r in mine) and any(r.covers(key) for r in theirs)

    assert set(one.store) == a | {key for key in b if common(key)}
    assert set(two.store) == b | {key for key in a if common(key)}


def test_equal_sets_take_one_range_request():
    keys = [b"%05d" % n for n in range(1000)]
    one, two = Side(keys, Initiator, [EVERYTHING]), Side(keys, Responder, [EVERYTHING])
    assert reconcile(one, two) == 5  # interests, their overlap, a request, its echo, Finished


def test_few_differences_among_many_keys_take_few_messages():
    keys = [b"%05d" % n for n in range(10_000)]
    one = Side(keys[:5000] + keys[5001:], Initiator, [EVERYTHING])
    two = Side(keys[:7000] + keys[7001:], Responder, [EVERYTHING])
    assert reconcile(one, two) < 80
    assert len(one.store) == len(two.store) == 10_000


@pytest.mark.parametrize("name", SESSIONS)
@pytest.mark.parametrize("chunk", [1, 1 << 20])
def test_recorded_messages_are_read_and_written_byte_for_byte(name, chunk):
    form = form_of(name)
    decoders = {
        side: Decoder(form, from_initiator=side == "initiator")
        for side in ("initiator", "responder")
    }
    for recorded in RECORDED[name]:
        raw, decoder = bytes.fromhex(recorded["hex"]), decoders[recorded["from"]]
        messages = [
            message
            for at in range(0, len(raw), chunk)
            for message in decoder.feed(raw[at : at + chunk])
        ]
        assert [encode(message, form, decoder.sync_id) for message in messages] == [raw]
        assert decoder.buffered == 0


def recorded_messages(name: str) -> list[tuple[str, Message]]:
    form = form_of(name)
    messages = []
    for recorded in RECORDED[name]:
        decoder = Decoder(form, from_initiator=recorded["from"] == "initiator")
        [message] = decoder.feed(bytes.fromhex(recorded["hex"]))
        messages.append((recorded["from"], message))
    return messages


def events_of_the_recorded_node() -> dict[HeightlessEventId, bytes]:
    """The CARs of the first 24 sample events, by their EventIds without height."""
    return sdk_sample.ring_events(Network.from_id(RECORDED["network_id"]), 24)


def said_to(session, ring: Ring, values, messages: list[Message]) -> Iterator[Message]:
    """What a session says to the messages of the other side."""
    for message in messages:
        for action in session.receive(message):
            match action:
                case Send([reply]):
                    yield reply
                case SendValues(first, last):
                    yield from [Value(key, values[key]) for key in ring.keys(first, last)]


@pytest.mark.parametrize("name", ["initiator-wrong-hash", "initiator-one-key"])
def test_a_responder_answers_as_the_recorded_node_did(name):
    messages, events = recorded_messages(name), events_of_the_recorded_node()
    overlap = next(m.interests for _, m in messages if isinstance(m, InterestResponse))
    ring = Ring(KeyStore(events), is_fencepost)
    session = Responder(ring, overlap)
    ours = [message for side, message in messages if side == "initiator"]
    assert list(said_to(session, ring, events, ours)) == [
        message for side, message in messages if side == "responder"
    ]
    assert session.end_of_stream()


@pytest.mark.parametrize("name", ["responder-peer", "responder-model"])
def test_an_initiator_asks_as_the_recorded_node_did(name):
    messages = recorded_messages(name)
    values = {m.key: m.value for _, m in messages if isinstance(m, Value)}
    [interests] = [m.interests for _, m in messages if isinstance(m, InterestRequest)]
    ring = Ring(KeyStore(values), lambda bound: bound not in values)
    session = Initiator(ring, interests)
    asked: list[Message] = turn_of(session.start())
    asked += said_to(session, ring, values, [m for side, m in messages if side == "responder"])
    assert asked == [message for side, message in messages if side == "initiator"]


def initiator(keys=(), interests=(EVERYTHING,)) -> Side:
    return Side(keys, Initiator, interests)


def responder(keys=(), interests=(EVERYTHING,)) -> Side:
    return Side(keys, Responder, interests)


def summary(*keys: bytes) -> Summary:
    return Summary(Sha256a.of(*keys) if keys else ZERO, len(keys))


def asking(side: Side) -> Side:
    """An initiator that has asked for its first range."""
    list(side.take(InterestResponse((EVERYTHING,))))
    return side


@pytest.mark.parametrize(
    ("side", "messages"),
    [
        (initiator, [RangeResponse(())]),
        (initiator, [Value(b"a", b"va")]),
        (initiator, [InterestResponse((EVERYTHING,)), InterestResponse((EVERYTHING,))]),
        (lambda: initiator(interests=[KeyRange(b"a", b"b")]), [InterestResponse((EVERYTHING,))]),
        (initiator, [InterestResponse((EVERYTHING,)), Finished()]),
        (lambda: asking(initiator()), [RangeResponse(()), RangeResponse(())]),
        (
            lambda: asking(initiator([b"m"])),
            [RangeResponse((RangeHash(b"", summary(), b"\xff\xff"),))],
        ),
        (
            lambda: asking(initiator([b"m"])),
            [RangeResponse((RangeHash(b"c", summary(), b"d"), RangeHash(b"a", summary(), b"b")))],
        ),
        (
            lambda: asking(initiator([b"m", b"n"])),
            [RangeResponse((RangeHash(b"", summary(b"x", b"y", b"z"), b"\xff"),))],
        ),
        (responder, [RangeRequest(RangeHash(b"", summary(), b"\xff"))]),
        (responder, [Value(b"a", b"va")]),
        (responder, [InterestRequest(()), Value(b"a", b"va")]),
        (responder, [InterestRequest(()), InterestRequest(())]),
        (responder, [InterestRequest(()), RangeRequest(RangeHash(b"", summary(), b"\xff"))]),
        (responder, [InterestRequest((EVERYTHING,)), RangeResponse(())]),
    ],
)
def test_a_peer_that_breaks_the_protocol_is_distinguished_from_an_honest_one(side, messages):
    one = side()
    for message in messages[:-1]:
        list(one.take(message))
    with pytest.raises(RemoteProtocolError):
        list(one.take(messages[-1]))


def test_values_that_are_of_no_use_are_bounded():
    side = responder([b"a"])
    list(side.take(InterestRequest((EVERYTHING,))))
    for _ in range(MAX_USELESS_VALUES):
        list(side.take(Value(b"a", b"va")))
    with pytest.raises(RemoteProtocolError, match="that we hold"):
        list(side.take(Value(b"a", b"va")))


def test_a_peer_that_cuts_ranges_for_ever_is_stopped():
    side = asking(initiator([b"m"]))
    with pytest.raises(RemoteProtocolError, match="cut into parts 256 times"):
        cut_for_ever(side)


def cut_for_ever(side: Side) -> None:
    """Answer each request about a key with a slightly smaller range around it."""
    wrong = Summary(Sha256a.of(b"?"), 50)
    for depth in range(600):
        asked = [m.range for m in side.sent if isinstance(m, RangeRequest)][depth]
        upper = b"m" + bytes(depth // 250) + bytes([250 - depth % 250])
        part = RangeHash(max(asked.first, b"m"), wrong, upper)
        list(side.take(RangeResponse((part,) if asked.summary.count else ())))


def test_parts_of_parts_without_end_are_charged_and_bounded():
    side = asking(initiator([b"m"]))
    held: list[int] = []
    with pytest.raises(RemoteProtocolError, match="parts of ranges that differ"):
        answer_with_many_parts(side, held)
    assert len(held) < 2 * MAX_WAITING / 199
    assert held[-1] > 100 * len(held) * 199, "at least a hundred bytes for each part that waits"


def answer_with_many_parts(side: Side, held: list[int]) -> None:
    """Answer each request with 199 parts of it, whose hashes are made up."""
    wrong = Summary(Sha256a.of(b"?"), 50)
    for at in range(MAX_WAITING):
        asked = [message.range for message in side.sent if isinstance(message, RangeRequest)][at]
        bounds = [asked.first + bytes([n]) for n in range(1, 201)]
        bounds = [bound for bound in bounds if bound < asked.last]
        parts = tuple(RangeHash(first, wrong, last) for first, last in pairwise(bounds))
        list(side.take(RangeResponse(parts)))
        held.append(side.session.held)


def test_many_parts_are_compared_in_many_steps():
    side = asking(initiator(bytes([n, 1]) for n in range(1, 200)))
    wrong = Summary(Sha256a.of(b"?"), 50)
    parts = tuple(RangeHash(bytes([n]), wrong, bytes([n + 1])) for n in range(1, 200))
    assert list(side.session.receive(RangeResponse(parts))).count(None) > 5


def test_interests_are_charged():
    interests = [KeyRange(b"%04d" % n, b"%04d~" % n) for n in range(1000)]
    two = responder()
    list(two.take(InterestRequest(tuple(interests))))
    assert two.session.held > 2 * 1000 * 9
    one = initiator()
    list(one.take(InterestResponse(tuple(interests))))
    assert one.session.held > 1000 * 9
    assert len(one.sent) == MAX_IN_FLIGHT, "the other ranges are not hashed before their turn"


@given(
    st.lists(st.tuples(st.binary(max_size=2), st.binary(max_size=2)), max_size=5),
    st.binary(max_size=2),
    st.binary(max_size=2),
)
def test_only_what_lies_in_the_interests_is_taken_and_answered(interests, first, last):
    ranges = [KeyRange(*interest) for interest in interests]
    for message, is_inside in [
        (Value(first, b""), any(key_range.covers(first) for key_range in ranges)),
        (
            RangeRequest(RangeHash(first, summary(), last)),
            any(
                key_range.lower <= first and last <= key_range.upper
                for key_range in merge_ranges(ranges)
                if not key_range.is_empty
            ),
        ),
    ]:
        side = responder()
        list(side.take(InterestRequest(tuple(ranges))))
        if is_inside:
            list(side.take(message))
        else:
            with pytest.raises(RemoteProtocolError):
                list(side.take(message))


def test_a_list_that_comes_byte_by_byte_is_read_once(monkeypatch):
    """Else the last bytes of many interests would cost as much as all of them, each."""
    reads = 0
    read = ring_codec._PieceReader._interest

    def count(self):
        nonlocal reads
        reads += 1
        return read(self)

    monkeypatch.setattr(ring_codec._PieceReader, "_interest", count)
    interests = tuple(KeyRange(b"%04d" % n, b"%04d~" % n) for n in range(500))
    for message in (InterestRequest(interests), RangeRequest(RangeHash(b"a", summary(), b"b"))):
        raw = encode(message, KeyForm.BYTES, "an id")
        decoder = Decoder(KeyForm.BYTES, from_initiator=True)
        messages = [message for byte in raw * 2 for message in decoder.feed(bytes([byte]))]
        assert messages == [message, message]
    most = 2 * len(raw) + 2 * sum(len(lower + upper) + 15 for lower, upper in interests)
    assert reads <= most, "once for each byte that it takes"


@pytest.mark.parametrize("items", [b"\x18", b"\x17\x18", b"\xff", b"\0"])
def test_a_value_that_comes_in_pieces_is_read_once(monkeypatch, items):
    """All that was here was read again with each piece: the loop was held for half a second."""
    reads = 0
    integers = ring_codec._SMALL_INTEGERS

    class Counted:
        def match(self, data, position):
            nonlocal reads
            run = integers.match(data, position)
            reads += run.end() - run.start()
            return run

    monkeypatch.setattr(ring_codec, "_SMALL_INTEGERS", Counted())
    value = Value(b"key", items * 100_000)
    raw = encode(value, KeyForm.BYTES)
    decoder = Decoder(KeyForm.BYTES, from_initiator=True)
    pieces = (raw[at : at + 1000] for at in range(0, len(raw), 1000))
    assert [message for piece in pieces for message in decoder.feed(piece)] == [value]
    assert reads < len(raw) + 1000, "each byte once"


@given(st.binary(max_size=300), st.booleans(), st.sampled_from(KeyForm))
def test_random_bytes_are_refused_or_waited_for(data, from_initiator, form):
    decoder = Decoder(form, from_initiator=from_initiator)
    try:
        messages = list(decoder.feed(data))
    except RemoteProtocolError:
        return
    assert all(encode(message, form) for message in messages)


@given(st.data(), st.sampled_from(SESSIONS), st.booleans())
def test_a_damaged_message_is_refused_or_another_message(data, name, cut):
    recorded = data.draw(st.sampled_from(RECORDED[name]))
    raw = bytearray.fromhex(recorded["hex"])
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] = data.draw(st.integers(0, 255))
    decoder = Decoder(form_of(name), from_initiator=recorded["from"] == "initiator")
    with suppress(RemoteProtocolError):
        messages = list(decoder.feed(bytes(raw[:-1] if cut else raw)))
        assert len(messages) <= 1


@pytest.mark.parametrize(
    ("raw", "match"),
    vectors.load("ring_refusals"),
)
def test_what_is_too_large_or_malformed_is_refused_before_it_is_built(raw, match):
    decoder = Decoder(KeyForm.BYTES, from_initiator=True)
    with pytest.raises(RemoteProtocolError, match=match):
        list(decoder.feed(bytes.fromhex(raw)))


def test_a_message_larger_than_the_limit_is_refused_unread(monkeypatch):
    monkeypatch.setattr(ring_codec, "MAX_MESSAGE", 500)
    raw = encode(Value(b"key", bytes(1000)), KeyForm.BYTES)
    decoder = Decoder(KeyForm.BYTES, from_initiator=True)
    with pytest.raises(RemoteProtocolError, match="limit is 500 bytes"):
        list(decoder.feed(raw[:100]))
