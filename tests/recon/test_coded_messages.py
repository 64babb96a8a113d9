"""The codec of `/ceramic/recon/1.2.0`, as a plain one writes and reads, and bytes of bad peers."""

import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from peers import damaged, gaps_of
from plain_codec import KEYS, PlainReader, columns, plain_bytes
from support import vectors

from recon_node.ceramic import IN_MEMORY, MAINNET, EventId, EventIdError, network_range
from recon_node.ipld import VarintError, encode_varint
from recon_node.recon import KeyRange, RemoteProtocolError
from recon_node.recon.coded import messages as messages_module
from recon_node.recon.coded.messages import (
    END,
    MAX_BOUND,
    Conclusion,
    Estimate,
    Gaps,
    LeftOut,
    Listed,
    Message,
    Mode,
    decode_message,
    encode_message,
    weigh,
)
from recon_node.recon.keys.key_hashes import NO_IDS
from recon_node.recon.keys.sketch import MAX_SYMBOLS, TABLE_SIZE, Symbols

MIB = 1 << 20
RANGE = KeyRange(network_range(MAINNET)[0], network_range(IN_MEMORY)[1])
DIGEST = bytes(range(32))
PRINT = DIGEST[:16]
LEFT_OUT = st.none() | st.builds(LeftOut, st.integers(1, 300), st.just(DIGEST))


def check_both(raw: bytes) -> None:
    try:
        expected = PlainReader(raw).gaps()
    except (ValueError, VarintError, EventIdError):
        expected = None
    try:
        columns = list(decode_message(raw).gaps.columns())
    except RemoteProtocolError:
        columns = None
    assert columns == expected


@given(columns(), st.data())
def test_gaps_are_written_and_read_as_a_plain_codec_does(gaps, data):
    raw = plain_bytes(gaps)
    assert encode_message(Message(gaps=gaps_of(*gaps))) == raw
    assert PlainReader(raw).gaps() == gaps == list(decode_message(raw).gaps.columns())
    check_both(bytes(2) + data.draw(damaged(raw[2:])))


def test_fenceposts_and_keys_of_unusual_lengths_in_one_list() -> None:
    decoded = decode_message(plain_bytes([(END, Mode.KEYS, tuple(KEYS))]))
    assert decoded.gaps.keys() == KEYS
    assert all(type(key) is EventId for key in decoded.gaps.keys())  # noqa: SIM118 - not a dict
    with_fencepost = tuple(sorted([*KEYS, RANGE.lower]))
    check_both(plain_bytes([(END, Mode.KEYS, with_fencepost)]))


# --- whole messages ------------------------------------------------------------------------------

ids = st.lists(st.integers(0, 2**64 - 1), max_size=5).map(lambda drawn: np.array(drawn, np.uint64))


@st.composite
def estimates(draw: st.DrawFn) -> Estimate:
    bounds = draw(st.sets(st.binary(max_size=256) | st.binary(max_size=3), max_size=6))
    head = draw(st.binary(max_size=20))
    ordered = sorted({(head + bound)[:256] for bound in bounds})
    table = draw(st.binary(min_size=TABLE_SIZE, max_size=TABLE_SIZE))
    hint = st.binary(min_size=4, max_size=4)
    hints = draw(st.lists(hint, min_size=len(ordered) + 1, max_size=len(ordered) + 1))
    return Estimate(table, tuple(ordered), tuple(hints))


@st.composite
def symbols(draw: st.DrawFn) -> Symbols:
    number = draw(st.integers(0, 10))
    raw = draw(st.binary(min_size=13 * number, max_size=13 * number))
    return Symbols(
        np.frombuffer(raw[: 8 * number], np.uint64),
        np.frombuffer(raw[8 * number : 12 * number], np.uint32),
        np.frombuffer(raw[12 * number :], np.uint8),
    )


@st.composite
def messages(draw: st.DrawFn) -> Message:
    """Any message that the format has, whether or not a session would write it."""
    key_range = draw(st.none() | st.just(RANGE))
    gaps = draw(columns(key_range.lower if key_range else b""))
    listed = [
        Listed(draw(ids), draw(ids) if mode is Mode.LACKING else NO_IDS)
        for _, mode, _ in gaps
        if mode >= Mode.KEYS
    ]
    has_ids = any(len(ids_of.ids) or len(ids_of.wanted) for ids_of in listed)
    continues = draw(st.booleans()) and bool(gaps) and gaps[-1][0] != END
    digest = None if continues else draw(st.none() | st.just(DIGEST))
    message = Message(
        key_range,
        gaps_of(*gaps),
        digest,
        continues=continues,
        left_out=draw(LEFT_OUT) if digest else None,
        count=draw(st.none() | st.integers(0, 2**63 - 1)),
        estimate=draw(st.none() | estimates()),
        symbols=draw(st.none() | symbols()),
        listed=listed if has_ids and draw(st.booleans()) else (),
        salt=draw(st.none() | st.binary(min_size=16, max_size=16)),
    )
    conclusions = [
        message,
        Message(conclusion=Conclusion.AGREED, left_out=draw(LEFT_OUT)),
        Message(conclusion=Conclusion.REFUSED),
    ]
    return draw(st.sampled_from(conclusions))


def parts_of(message: Message) -> Any:
    """What can be compared: arrays as lists."""
    of_symbols = [column.tolist() for column in message.symbols or ()]
    of_lists = [[ids.ids.tolist(), ids.wanted.tolist()] for ids in message.listed]
    return replace(message, symbols=None, listed=()), of_symbols, of_lists


@given(messages(), st.data())
def test_messages_survive_the_wire_and_damaged_ones_are_refused_or_canonical(message, data):
    raw = encode_message(message)
    assert parts_of(decode_message(raw)) == parts_of(message)
    raw = data.draw(damaged(raw))
    try:
        decoded = decode_message(raw)
    except RemoteProtocolError:
        return
    assert encode_message(decoded) == raw
    assert weigh(decoded) >= 0


# --- what is refused -----------------------------------------------------------------------------

COUNT, ESTIMATE, SYMBOLS, IDS = (bytes((1 << bit,)) for bit in range(4))
"""Messages with one flag."""
NOTHING = b"\x00"
HUGE = encode_varint(2**60)
TABLE = bytes(TABLE_SIZE)
MANY_BYTES = bytes(MIB // 2)


def lists(number: int) -> bytes:
    """As many gaps as lists, each of which has one id of 8 bytes."""
    gaps = Gaps()
    for index in range(number):
        upper = END if index == number - 1 else b"\x01" + index.to_bytes(3, "big")
        gaps.append(upper, Mode.KEYS, ())
    of_each = b"\x01" + bytes(8) + b"\x00"
    return IDS + encode_varint(number) + of_each * number + encode_message(Message(gaps=gaps))[1:]


MALFORMED = [
    (bytes.fromhex(raw), says)
    for rows in vectors.load("recon_1_2_malformed", TABLE=TABLE.hex()).values()
    for raw, says in rows
]


@pytest.mark.parametrize(("raw", "complaint"), MALFORMED)
def test_malformed_messages_are_refused(raw: bytes, complaint: str) -> None:
    with pytest.raises(RemoteProtocolError, match=complaint):
        decode_message(raw)


CLAIMS = {
    "2^60 symbols": SYMBOLS + HUGE + MANY_BYTES,
    "a symbol too many": SYMBOLS + encode_varint(MAX_SYMBOLS + 1) + MANY_BYTES,
    "symbols that are not there": SYMBOLS + encode_varint(MAX_SYMBOLS) + bytes(100),
    "2^60 lists": IDS + HUGE + MANY_BYTES,
    "2^60 ids told": IDS + b"\x01" + HUGE + MANY_BYTES,
    "2^60 ids wanted": IDS + b"\x01\x00" + HUGE + MANY_BYTES,
    "more ids than bytes": IDS + b"\x01" + encode_varint(MIB) + MANY_BYTES,
    "2^60 parts": ESTIMATE + TABLE + HUGE + MANY_BYTES,
    "a part too many": ESTIMATE + TABLE + encode_varint(256) + MANY_BYTES,
    "2^60 shared bytes": ESTIMATE + TABLE + b"\x02" + HUGE + MANY_BYTES,
    "a bound of 2^60 bytes": ESTIMATE + TABLE + b"\x02\x00" + HUGE + MANY_BYTES,
    "2^60 keys": b"\x00" + b"\x00" + b"\x02\x00" + HUGE,
    "2^60 keys left out, and nothing else": b"\x00" + b"\x20" + HUGE,
    "a varint of ten bytes": COUNT + b"\xff" * 9 + b"\x01" + NOTHING,
}


@pytest.mark.parametrize("raw", CLAIMS.values(), ids=CLAIMS)
def test_a_claim_is_refused_before_anything_is_allocated(raw: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError):
            decode_message(raw)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MIB // 8


@pytest.fixture
def most_weight(monkeypatch: pytest.MonkeyPatch) -> int:
    """A sixteenth of what a message may weigh."""
    monkeypatch.setattr(messages_module, "MAX_WEIGHT", 1)
    return MIB


def test_what_lists_of_ids_take_in_memory_is_bounded(most_weight: int) -> None:
    """Objects for a list take thirty times its bytes: their number is limited by that."""
    most = most_weight // 300
    message = decode_message(lists(most))
    assert len(message.listed) == message.gaps.lists() == most
    assert weigh(message) < 3 * most_weight
    with pytest.raises(RemoteProtocolError, match="where at most"):
        decode_message(lists(most + 1))


def test_a_message_that_swells_in_memory_is_refused_while_it_is_read(most_weight: int) -> None:
    def swelling(bounds: int) -> bytes:
        uppers = (b"\x80" * (MAX_BOUND - 3) + n.to_bytes(3, "big") for n in range(bounds))
        return encode_message(Message(gaps=gaps_of(*((upper, Mode.SKIP, b"") for upper in uppers))))

    most = most_weight // (MAX_BOUND + 64)
    assert len(swelling(most)) < most_weight // 64
    assert weigh(decode_message(swelling(most))) >= most_weight - MAX_BOUND
    with pytest.raises(RemoteProtocolError, match="too much memory"):
        decode_message(swelling(most + 2))


def test_what_a_message_takes_in_memory_is_what_it_weighs() -> None:
    """The weight is what the memory budget of all peers counts."""
    raw = lists(5_000)
    tracemalloc.start()
    try:
        message = decode_message(raw)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held / 2 < weigh(message) < held * 4
