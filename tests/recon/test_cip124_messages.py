"""The wire format of `/ceramic/recon/1.0.0`: what it is to the byte, and all that it refuses."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from peers import damaged

from recon_node.ceramic import IN_MEMORY, EventId, network_range, sort_value_range
from recon_node.ipld import CID, DAG_CBOR
from recon_node.recon import ZERO, RemoteProtocolError, Sha256a
from recon_node.recon.cip124.cip124_codec import Cip124Message, decode_message, encode_message

LOWER, UPPER = network_range(IN_MEMORY)


def event_id(number: int, height: int) -> EventId:
    cid = CID.of(DAG_CBOR, b"%d" % number)
    return EventId.build(IN_MEMORY, "sort value", f"did:key:{number % 7}", cid, height, cid)


KEYS = st.sets(
    st.builds(event_id, st.integers(0, 10_000), st.integers(0, 2**64 - 2)), max_size=12
).map(sorted)
HASHES = st.one_of(
    st.just(ZERO), st.binary(max_size=9).map(Sha256a.of), st.just(Sha256a(b"\xff" * 32))
)


@st.composite
def messages(draw: st.DrawFn) -> Cip124Message:
    bounds = (LOWER, *draw(KEYS), UPPER)
    hashes = draw(st.lists(HASHES, min_size=len(bounds) - 1, max_size=len(bounds) - 1))
    return Cip124Message(bounds, tuple(hashes))


def test_a_message_byte_by_byte() -> None:
    key = event_id(1, 0)
    ahash = Sha256a.of(key)
    encoded = encode_message(Cip124Message((LOWER, key, UPPER), (ZERO, ahash)))
    assert encoded == (
        LOWER + bytes.fromhex("92e00100") + key + bytes.fromhex("92e00120") + ahash.digest + UPPER
    )
    assert LOWER.hex() == "ce0105ff01" + "00" * 20 + "00" + "01550000"
    assert UPPER.hex() == "ce0105ff01" + "ff" * 20 + "1b" + "ff" * 8 + "01550000"


def test_the_refusal_of_a_range_survives_the_wire() -> None:
    message = Cip124Message((LOWER, LOWER), (ZERO,))
    assert decode_message(encode_message(message)) == message


@given(messages(), st.data())
def test_messages_survive_the_wire_and_damaged_ones_are_refused_or_others(message, data):
    raw = encode_message(message)
    assert decode_message(raw) == message
    raw = data.draw(damaged(raw))
    try:
        decoded = decode_message(raw)
    except RemoteProtocolError:
        return
    assert encode_message(decoded) == raw


A, B = sorted((event_id(1, 0), event_id(2, 0)))
AHASH = bytes.fromhex("92e00120") + hashlib.sha256(b"x").digest()
NONE = bytes.fromhex("92e00100")
INNER_FENCEPOST = sort_value_range(IN_MEMORY, "sort value")[0]


@pytest.mark.parametrize(
    ("raw", "complaint"),
    [
        (b"", "no EventId at byte 0"),
        (bytes(A), "1 bounds and 0 hashes"),
        (A + NONE, "does not parse"),
        (A + AHASH[:20] + B, "does not parse"),
        (A + AHASH[:20], "ends inside the Ahash"),
        (A + bytes.fromhex("92e0011f") + bytes(31) + B, "length 20 or 00, found 92 e0 01 1f"),
        (A + bytes.fromhex("122020") + bytes(32) + B, "no Ahash at byte"),
        (A + bytes.fromhex("92e00120") + bytes(32) + B, "an Ahash of zeros at byte"),
        (A + B, "no Ahash at byte"),
        (B + AHASH + A, "out of order at bound 1"),
        (A + AHASH + A, "repeated key at bound 1"),
        (A + NONE + B + NONE + B, "repeated key at bound 2"),
        (A + AHASH + B + b"\x00", "no Ahash at byte"),
        (LOWER + NONE + INNER_FENCEPOST + NONE + UPPER, "fencepost among its keys at bound 1"),
    ],
)
def test_malformed_messages_are_refused_with_the_place(raw: bytes, complaint: str) -> None:
    with pytest.raises(RemoteProtocolError, match=complaint):
        decode_message(raw)
