"""Messages of `/ceramic/recon/1.2.0`: those of 1.1.0, with coded symbols and ids in front of them.

docs/wire.md has the layout. A list of keys may have ids in the place of some keys or of all: 8
bytes instead of some 57. Symbols and ids stand before the message of 1.1.0, which they complete, so
that one codec serves both versions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from recon_node.ipld import VarintError, varint
from recon_node.recon.keys.ranges import common_prefix
from recon_node.recon.keys.sketch import (
    ID_SIZE,
    MAX_SYMBOLS,
    NO_IDS,
    TABLE_SIZE,
    Ids,
    Symbols,
)
from recon_node.recon.side import RemoteProtocolError
from recon_node.recon.v1_1 import RECON_1_1
from recon_node.recon.v1_1.codec import KEYS, MAX_BOUND, MAX_WEIGHT, MIB, MORE, Gaps, weight_of
from recon_node.recon.v1_1.codec import Message as Message11

HINT_SIZE: Final = 4
"""Bytes of a fingerprint that are sent as a hint."""
MAX_PARTS: Final = 256
"""Maximum parts of a range that an estimate has hints of."""
SYMBOL_SIZE: Final = 13
"""Bytes of a symbol: 8 of the sum, 4 of the check, 1 of the count."""
_WEIGHT_OF_LIST: Final = 300
"""Bytes of memory that the ids of a gap take on top of their own."""


class Estimate(NamedTuple):
    """What tells about how many keys differ, and where."""

    table: bytes
    """The sender's table of bits (sketch.py)."""
    bounds: tuple[bytes, ...]
    """What divides the range into parts, ascending."""
    hints: tuple[bytes, ...]
    """The first bytes of the fingerprint of each part; one more than there are bounds."""


class Listed(NamedTuple):
    """Ids that complete the list of a gap."""

    ids: Ids
    """Of keys that the list has, but not in full."""
    wanted: Ids
    """Of keys that the sender lacks and asks to be listed in full. Only where a gap says MORE."""


NOTHING_LISTED: Final = Listed(NO_IDS, NO_IDS)


# What stands before the message of 1.1.0. & and | of an enum's flags would take ten times as long.
_COUNT: Final = 1
_ESTIMATE: Final = 2
_SYMBOLS: Final = 4
_IDS: Final = 8
_ALL_FLAGS: Final = _COUNT | _ESTIMATE | _SYMBOLS | _IDS


@dataclass(frozen=True, slots=True)
class Message:
    """A turn, or a part of it."""

    plain: Message11
    """What 1.1.0 says as well."""
    count: int | None = None
    """How many keys the sender holds in the range: beside an opening, and beside an estimate."""
    estimate: Estimate | None = None
    symbols: Symbols | None = None
    """The sender's first symbols."""
    listed: Sequence[Listed] = ()
    """For each gap that says KEYS or MORE, in order; or none at all if no gap has ids."""

    @property
    def goes_on(self) -> bool:
        """Whether the turn continues in another message."""
        return self.plain.goes_on


def lists_of(gaps: Gaps) -> int:
    """Return how many of some gaps say KEYS or MORE."""
    return gaps.says.count(KEYS) + gaps.says.count(MORE)


def _has_ids(listed: Iterable[Listed]) -> bool:
    return any(len(each.ids) or len(each.wanted) for each in listed)


def weigh(message: Message) -> int:
    """Return about how many bytes of memory a message takes."""
    of_ids = sum(
        _WEIGHT_OF_LIST + ID_SIZE * (len(each.ids) + len(each.wanted)) for each in message.listed
    )
    of_symbols = 0 if message.symbols is None else SYMBOL_SIZE * len(message.symbols)
    of_estimate = 0
    if message.estimate is not None:
        table, bounds, hints = message.estimate
        of_estimate = len(table) + weight_of(bounds) + weight_of(hints)
    return RECON_1_1.weigh(message.plain) + of_ids + of_symbols + of_estimate


def encode_message(message: Message) -> bytes:
    """Encode a message as the bytes of one frame."""
    flags = 0
    parts: list[bytes] = []
    if message.count is not None:
        flags |= _COUNT
        parts.append(varint.encode(message.count))
    if message.estimate is not None:
        flags |= _ESTIMATE
        parts.append(_encode_estimate(message.estimate))
    if message.symbols is not None:
        flags |= _SYMBOLS
        sums, checks, counts = message.symbols
        parts.append(varint.encode(len(sums)))
        parts += [sums.astype("<u8").tobytes(), checks.astype("<u4").tobytes(), counts.tobytes()]
    if _has_ids(message.listed):
        flags |= _IDS
        parts.append(varint.encode(len(message.listed)))
        for each in message.listed:
            parts += [_encode_ids(each.ids), _encode_ids(each.wanted)]
    return bytes((flags,)) + b"".join(parts) + RECON_1_1.encode(message.plain)


def _encode_estimate(estimate: Estimate) -> bytes:
    table, bounds, hints = estimate
    shared = _shared_by(bounds)
    head = bounds[0][:shared] if bounds else b""
    rests = [varint.encode(len(each) - shared) + each[shared:] for each in bounds]
    number = varint.encode(len(bounds)) + varint.encode(shared)
    return b"".join([table, number, head, *rests, *hints])


def _shared_by(bounds: Sequence[bytes]) -> int:
    """Return how many bytes all of some bounds begin with, which ascend."""
    return common_prefix(bounds[0], bounds[-1]) if bounds else 0


def _encode_ids(ids: Ids) -> bytes:
    return varint.encode(len(ids)) + ids.astype("<u8").tobytes()


def decode_message(data: bytes) -> Message:
    """Decode the bytes of one frame.

    Raises:
        RemoteProtocolError: they are not a message: see 1.1.0. Likewise a number of ids, symbols or
            parts that the message does not have or is not allowed to have, bounds of parts that do
            not ascend or share more than they say, ids without a list, and lists without any id.
    """
    reader = _Reader(data)
    flags = reader.take(1)[0]
    if flags > _ALL_FLAGS:
        raise RemoteProtocolError(f"message does not parse: unknown flags {flags}")
    count = reader.varint() if flags & _COUNT else None
    estimate = reader.estimate() if flags & _ESTIMATE else None
    symbols = reader.symbols() if flags & _SYMBOLS else None
    if not flags & _IDS:
        return Message(RECON_1_1.decode(reader.rest()), count, estimate, symbols)
    listed = reader.listed()
    plain = RECON_1_1.decode(reader.rest())
    if lists_of(plain.gaps) != len(listed):
        raise RemoteProtocolError(
            f"message has ids for {len(listed)} lists, but {lists_of(plain.gaps)} lists"
        )
    if not _has_ids(listed):
        raise RemoteProtocolError("message has lists of ids without an id in them")
    _check_wanted(plain.gaps, listed)
    return Message(plain, count, estimate, symbols, listed)


def _check_wanted(gaps: Gaps, listed: Sequence[Listed]) -> None:
    says = [say for say in gaps.says if say is KEYS or say is MORE]
    for say, each in zip(says, listed, strict=True):
        if say is KEYS and len(each.wanted):
            raise RemoteProtocolError("message asks for keys beside a list of all keys")


class _Reader:
    """Reads the fields before the message of 1.1.0 from left to right."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        taken = self._data[self._at : self._at + size]
        if len(taken) < size:
            raise RemoteProtocolError(
                f"message does not parse before byte {self._at}: it ends too early"
            )
        self._at += size
        return taken

    def varint(self, most: int | None = None) -> int:
        try:
            number, at = varint.decode(self._data, self._at)
        except VarintError as error:
            raise RemoteProtocolError(
                f"message does not parse before byte {self._at}: {error}"
            ) from error
        if most is not None and number > most:
            raise RemoteProtocolError(
                f"message does not parse before byte {at}: {number}, where at most {most} may be"
            )
        self._at = at
        return number

    def rest(self) -> bytes:
        return self._data[self._at :]

    def estimate(self) -> Estimate:
        table = self.take(TABLE_SIZE)
        number = self.varint(MAX_PARTS - 1)
        head = self.take(self.varint(MAX_BOUND))
        most = MAX_BOUND - len(head)
        bounds = tuple([head + self.take(self.varint(most)) for _ in range(number)])
        if any(left >= right for left, right in pairwise(bounds)):
            raise RemoteProtocolError("message does not parse: bounds of parts out of order")
        if len(head) != _shared_by(bounds):
            raise RemoteProtocolError("message does not parse: bounds share more or less than said")
        size = HINT_SIZE * (number + 1)
        hints = self.take(size)
        of_parts = tuple([hints[at : at + HINT_SIZE] for at in range(0, size, HINT_SIZE)])
        return Estimate(table, bounds, of_parts)

    def symbols(self) -> Symbols:
        number = self.varint(MAX_SYMBOLS)
        return Symbols(
            np.frombuffer(self.take(8 * number), "<u8").astype(np.uint64),
            np.frombuffer(self.take(4 * number), "<u4").astype(np.uint32),
            np.frombuffer(self.take(number), np.uint8),
        )

    def listed(self) -> list[Listed]:
        # As in 1.1.0, a message may not take much more memory than its bytes.
        number = self.varint(MAX_WEIGHT * max(MIB, len(self._data)) // _WEIGHT_OF_LIST)
        return [Listed(self._ids(), self._ids()) for _ in range(number)]

    def _ids(self) -> Ids:
        number = self.varint(len(self._data) // ID_SIZE)
        if not number:
            return NO_IDS
        return np.frombuffer(self.take(ID_SIZE * number), "<u8").astype(np.uint64)
