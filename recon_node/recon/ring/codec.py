"""Messages of `/ceramic/recon/0.1.0`, as ceramic-one 0.58 writes them.

A stream carries CBOR values one after the other, with nothing between them:

    {"sync_id"?: text, "body": body}

    initiator's bodies                        responder's bodies
    {"InterestRequest": [interest ...]}       {"InterestResponse": [interest ...]}
    {"RangeRequest": range}                   {"RangeResponse": [range ...]}
    {"Value": {"key", "value"}}               {"Value": {"key", "value"}}
    "Finished"

    interest = {"start", "end"}               both ends are open
    range    = {"first", "hash", "last"}      `first` is in the range, `last` is not
    hash     = {"hash": 32 bytes, or none for no keys, "count"}

Keys and bounds are byte strings on the model ring and text on the peer ring. A value is an array of
integers, one a byte. Fields may come in any order, lengths must be definite.

Reading them is the business of `decoder.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from recon_node.ipld import dag_cbor
from recon_node.recon.keys.ordered_keys import Summary
from recon_node.recon.keys.ranges import KeyRange
from recon_node.recon.session import Value


class KeyForm(Enum):
    """How a ring writes its keys and bounds: the CBOR major type."""

    BYTES = 2
    """The model ring's."""
    TEXT = 3
    """The peer ring's."""


@dataclass(frozen=True, slots=True)
class RangeHash:
    """A half-open range of keys with what the sender holds there."""

    first: bytes
    summary: Summary
    last: bytes


@dataclass(frozen=True, slots=True)
class InterestRequest:
    """The initiator's interests."""

    interests: tuple[KeyRange, ...]


@dataclass(frozen=True, slots=True)
class InterestResponse:
    """The overlaps of the responder's interests with the initiator's."""

    interests: tuple[KeyRange, ...]


@dataclass(frozen=True, slots=True)
class RangeRequest:
    """The initiator's state of a range. It is answered by exactly one RangeResponse."""

    range: RangeHash


@dataclass(frozen=True, slots=True)
class RangeResponse:
    """The range where the sides agree, its parts where they differ, or nothing after values."""

    ranges: tuple[RangeHash, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    """The initiator's last message."""


Message: TypeAlias = (
    InterestRequest | InterestResponse | RangeRequest | RangeResponse | Value | Finished
)

UINT, BYTES, TEXT, ARRAY, MAP = 0, 2, 3, 4, 5
"""CBOR major types (RFC 8949, section 3.1)."""
LARGEST_IN_HEAD: Final = 23
"""Numbers up to this one stand in the head's own byte."""
ONE_BYTE_FOLLOWS: Final = 24
"""The head's low bits where the number stands in one more byte; 25, 26 and 27: two, four, eight."""


def encode(message: Message, keys: KeyForm, sync_id: str | None = None) -> bytes:
    """Encode a message, byte for byte as ceramic-one does.

    Args:
        message: what to say.
        keys: how the ring writes keys.
        sync_id: the session's id, which the initiator chooses and the responder echoes.
    """
    start = _head(MAP, 1)
    if sync_id is not None:
        start = _head(MAP, 2) + _text("sync_id") + _text(sync_id)
    return start + _text("body") + _encode_body(message, keys)


def _encode_body(message: Message, keys: KeyForm) -> bytes:
    if isinstance(message, Finished):
        return _text("Finished")
    if isinstance(message, InterestRequest | InterestResponse):
        content = _array(_encode_interest(each, keys) for each in message.interests)
    elif isinstance(message, RangeRequest):
        content = _encode_range(message.range, keys)
    elif isinstance(message, RangeResponse):
        content = _array(_encode_range(each, keys) for each in message.ranges)
    else:
        integers = dag_cbor.encode(list(message.value))  # a canonical encoding, as serde's is
        content = _struct(key=_string(message.key, keys), value=integers)
    return _head(MAP, 1) + _text(type(message).__name__) + content


def _encode_interest(interest: KeyRange, keys: KeyForm) -> bytes:
    return _struct(start=_string(interest.lower, keys), end=_string(interest.upper, keys))


def _encode_range(each: RangeHash, keys: KeyForm) -> bytes:
    digest = each.summary.hash.digest if each.summary.count else b""
    summary = _struct(
        hash=_head(BYTES, len(digest)) + digest, count=_head(UINT, each.summary.count)
    )
    return _struct(first=_string(each.first, keys), hash=summary, last=_string(each.last, keys))


def _struct(**fields: bytes) -> bytes:
    named = b"".join(_text(name) + content for name, content in fields.items())
    return _head(MAP, len(fields)) + named


def _array(items: Iterable[bytes]) -> bytes:
    items = list(items)
    return _head(ARRAY, len(items)) + b"".join(items)


def _string(data: bytes, keys: KeyForm) -> bytes:
    return _head(keys.value, len(data)) + data


def _text(text: str) -> bytes:
    data = text.encode()
    return _head(TEXT, len(data)) + data


def _head(major: int, number: int) -> bytes:
    if number <= LARGEST_IN_HEAD:
        return bytes([major << 5 | number])
    size = 1 << max(0, (number.bit_length() - 1).bit_length() - 3)  # 1, 2, 4 or 8 bytes
    low = ONE_BYTE_FOLLOWS + size.bit_length() - 1
    return bytes([major << 5 | low]) + number.to_bytes(size, "big")
