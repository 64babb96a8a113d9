"""The beginning of a name as ranges of CIDs: what people have of a CID or StreamID.

CIDs in base32 and StreamIDs in base36 are numbers of a known length, the highest digit first. So
the names with a prefix are those between the prefix filled up with the lowest digit, and filled up
with the highest.
"""

from collections.abc import Iterator
from typing import Final

from recon_node.ceramic import StreamType
from recon_node.ceramic.event_id import STREAM_ID_CODEC
from recon_node.ipld import CID, DAG_CBOR, DAG_JOSE, encode_varint
from recon_node.ipld.multibase import BASE32, BASE36

MIN_PREFIX: Final = 10
"""Characters; the first nine say no more than that it is an event or a stream."""

_DIGEST: Final = 32
_HEADS: Final = tuple(CID.of(codec, b"")[:-_DIGEST] for codec in (DAG_CBOR, DAG_JOSE))
"""What events' CIDs start with; a sha2-256 digest follows."""

Range = tuple[bytes, bytes]
"""The first and the last CID of a range."""


def cid_ranges(prefix: str) -> Iterator[Range]:
    """Yield the ranges of events' CIDs whose text starts with a prefix."""
    for head in _HEADS if prefix.startswith("b") else ():
        bits = 8 * (len(head) + _DIGEST)
        digits = -(-bits // 5)
        spare = digits * 5 - bits  # bits: zeros at the end of the text
        numbers = _numbers(prefix[1:], BASE32, digits)
        yield from _within(head, numbers and (-(-numbers[0] >> spare), numbers[1] >> spare))


def init_ranges(prefix: str) -> Iterator[Range]:
    """Yield the ranges of init events' CIDs whose StreamIDs' text starts with a prefix."""
    for stream_type in StreamType if prefix.startswith("k") else ():
        name = encode_varint(STREAM_ID_CODEC) + encode_varint(stream_type)
        for head in _HEADS:
            lowest = int.from_bytes(name + head + bytes(_DIGEST), "big")
            numbers = _numbers(prefix[1:], BASE36, _digits_of(lowest))
            for first, last in _within(name + head, numbers):
                yield first[len(name) :], last[len(name) :]


def _within(head: bytes, numbers: tuple[int, int] | None) -> Iterator[Range]:
    """Yield what begins with `head`, a digest behind it, and lies between two numbers."""
    if numbers is not None:
        lowest, highest = head + bytes(_DIGEST), head + b"\xff" * _DIGEST
        first = max(numbers[0], int.from_bytes(lowest, "big"))
        last = min(numbers[1], int.from_bytes(highest, "big"))
        if first <= last:
            yield first.to_bytes(len(lowest), "big"), last.to_bytes(len(lowest), "big")


def _digits_of(number: int) -> int:
    """Return how many digits a number has in base 36."""
    digits = 0
    while number:
        number, digits = number // len(BASE36), digits + 1
    return digits


def _numbers(prefix: str, alphabet: str, digits: int) -> tuple[int, int] | None:
    """Return the least and the greatest number of some digits that starts with a prefix."""
    if len(prefix) > digits or not set(prefix) <= set(alphabet):
        return None
    base, number = len(alphabet), 0
    for character in prefix:
        number = number * base + alphabet.index(character)
    span = base ** (digits - len(prefix))
    return number * span, (number + 1) * span - 1
