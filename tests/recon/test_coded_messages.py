"""The codec of `/ceramic/recon/1.2.0` against bytes that nobody honest would send."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from drawn_messages import RANGE
from drawn_messages import messages as uncoded
from hypothesis import given
from hypothesis import strategies as st
from peers import damaged

from recon_node.ipld import varint
from recon_node.recon import RemoteProtocolError
from recon_node.recon.coded.encoding import decode_message, encode_message
from recon_node.recon.coded.messages import (
    END,
    MAX_WEIGHT,
    Estimate,
    Gaps,
    Listed,
    Message,
    Say,
    weigh,
)
from recon_node.recon.keys.sketch import MAX_SYMBOLS, NO_IDS, TABLE_SIZE, Symbols

MIB = 1 << 20
COUNT, ESTIMATE, SYMBOLS, IDS, SALT = (bytes((1 << bit,)) for bit in range(5))
"""Messages with one flag."""
NOTHING = b"\x00"

ids = st.lists(st.integers(0, 2**64 - 1), max_size=5).map(lambda each: np.array(each, np.uint64))


@st.composite
def estimates(draw: st.DrawFn) -> Estimate:
    bounds = draw(st.sets(st.binary(max_size=256) | st.binary(max_size=3), max_size=6))
    head = draw(st.binary(max_size=20))
    ordered = sorted({(head + each)[:256] for each in bounds})
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
    plain = draw(uncoded())
    listed = [
        Listed(draw(ids), draw(ids) if say is Say.LACKING else NO_IDS)
        for say in plain.gaps.says
        if say >= Say.KEYS
    ]
    has_ids = any(len(each.ids) or len(each.wanted) for each in listed)
    return replace(
        plain,
        count=draw(st.none() | st.integers(0, 2**63 - 1)),
        estimate=draw(st.none() | estimates()),
        symbols=draw(st.none() | symbols()),
        listed=listed if has_ids and draw(st.booleans()) else (),
        salt=draw(st.none() | st.binary(min_size=16, max_size=16)),
    )


def parts_of(message: Message) -> Any:
    """What can be compared: arrays as lists."""
    of_symbols = [column.tolist() for column in message.symbols or ()]
    of_lists = [[each.ids.tolist(), each.wanted.tolist()] for each in message.listed]
    return replace(message, symbols=None, listed=()), of_symbols, of_lists


def assert_refused_or_canonical(raw: bytes) -> None:
    try:
        decoded = decode_message(raw)
    except RemoteProtocolError:
        return
    assert encode_message(decoded) == raw
    assert weigh(decoded) >= 0


@given(messages())
def test_messages_survive_the_wire(message: Message) -> None:
    assert parts_of(decode_message(encode_message(message))) == parts_of(message)


@given(messages(), st.data())
def test_damaged_messages_are_refused_or_canonical(message: Message, data: st.DataObject) -> None:
    assert_refused_or_canonical(data.draw(damaged(encode_message(message))))


@given(st.sampled_from(range(32)), st.binary(max_size=300))
def test_random_bytes_are_refused_or_canonical(flags: int, rest: bytes) -> None:
    assert_refused_or_canonical(bytes((flags,)) + rest)


# --- claims -------------------------------------------------------------------------------------

HUGE = varint.encode(2**60)
TABLE = bytes(TABLE_SIZE)
MANY_BYTES = bytes(MIB // 2)

CLAIMS = {
    "2^60 symbols": SYMBOLS + HUGE + MANY_BYTES,
    "a symbol too many": SYMBOLS + varint.encode(MAX_SYMBOLS + 1) + MANY_BYTES,
    "symbols that are not there": SYMBOLS + varint.encode(MAX_SYMBOLS) + bytes(100),
    "2^60 lists": IDS + HUGE + MANY_BYTES,
    "2^60 ids told": IDS + b"\x01" + HUGE + MANY_BYTES,
    "2^60 ids wanted": IDS + b"\x01\x00" + HUGE + MANY_BYTES,
    "more ids than bytes": IDS + b"\x01" + varint.encode(MIB) + MANY_BYTES,
    "2^60 parts": ESTIMATE + TABLE + HUGE + MANY_BYTES,
    "a part too many": ESTIMATE + TABLE + varint.encode(256) + MANY_BYTES,
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


def lists(number: int, of_each: bytes = b"\x01" + bytes(8) + b"\x00") -> bytes:
    """As many gaps as lists, each of which has one id of 8 bytes."""
    gaps = Gaps()
    for index in range(number):
        upper = END if index == number - 1 else b"\x01" + index.to_bytes(3, "big")
        gaps.append(upper, Say.KEYS, ())
    return IDS + varint.encode(number) + of_each * number + encode_message(Message(gaps=gaps))[1:]


def test_what_lists_of_ids_take_in_memory_is_bounded() -> None:
    """Objects for a list take thirty times its bytes: their number is limited by that."""
    most = MAX_WEIGHT * MIB // 300
    message = decode_message(lists(most))
    assert len(message.listed) == message.gaps.lists() == most
    assert weigh(message) < 3 * MAX_WEIGHT * MIB
    with pytest.raises(RemoteProtocolError, match="where at most"):
        decode_message(lists(most + 1))


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


ONE_HINT, THREE_HINTS = bytes(4), bytes(12)

MALFORMED = {
    "nothing": (b"", "ends too early"),
    "unknown flags": (b"\x20" + NOTHING, "unknown flags 32"),
    "a count that ends": (COUNT + b"\x80", "end within"),
    "a count that could be shorter": (COUNT + b"\x80\x00" + NOTHING, "shortest"),
    "nothing after a count": (COUNT + b"\x05", "ends too early"),
    "a table that ends": (ESTIMATE + TABLE[1:], "ends too early"),
    "bounds out of order": (
        ESTIMATE + TABLE + b"\x02\x01\x01" + b"\x01\x03" + b"\x01\x02" + THREE_HINTS + NOTHING,
        "out of order",
    ),
    "equal bounds": (
        ESTIMATE + TABLE + b"\x02\x02\x01\x02" + b"\x00" + b"\x00" + THREE_HINTS + NOTHING,
        "out of order",
    ),
    "shared bytes of no bounds": (
        ESTIMATE + TABLE + b"\x00\x01\x01" + ONE_HINT + NOTHING,
        "share more or less",
    ),
    "fewer bytes shared than there are": (
        ESTIMATE + TABLE + b"\x02\x00" + b"\x02\x01\x02" + b"\x02\x01\x03" + THREE_HINTS + NOTHING,
        "share more or less",
    ),
    "hints that end": (ESTIMATE + TABLE + b"\x00\x00" + ONE_HINT[1:], "ends too early"),
    "a salt that ends": (SALT + bytes(15), "ends too early"),
    "ids without lists": (IDS + b"\x01\x01" + bytes(8) + b"\x00" + NOTHING, "1 lists, but 0"),
    "lists without any id": (IDS + b"\x00" + NOTHING, "without an id"),
    "empty lists": (lists(3, b"\x00\x00"), "without an id"),
    "keys wanted beside all keys": (lists(1, b"\x00\x01" + bytes(8)), "beside a list of all"),
}


@pytest.mark.parametrize(("raw", "complaint"), MALFORMED.values(), ids=MALFORMED)
def test_malformed_messages_are_refused(raw: bytes, complaint: str) -> None:
    with pytest.raises(RemoteProtocolError, match=complaint):
        decode_message(raw)


def test_a_count_of_2_to_the_60_is_only_a_number() -> None:
    opening = Message(RANGE, closing=bytes(32), count=2**60)
    assert decode_message(encode_message(opening)).count == 2**60
