"""Messages of `/ceramic/recon/1.1.0`: the same turns in fewer bytes. docs/wire.md has the layout.

What is told is what 1.0.0 tells; it is written shorter:

- The range is stated once and then implied. Gaps are [lower, upper), and where one is split the
  bound is no key but the shortest string that separates two: a handful of bytes, not an EventID.
- Bounds and keys are front-coded: the length shared with the one before, and the rest.
- A gap on which the sides agree carries nothing, and one that differs a fingerprint of 16 bytes:
  the first half of the sha256 of Sha256a and count. The halved hash is that of a set which the
  other side names key by key where it matters, so it decides only what is worth naming.
- Whoever has nothing left to ask adds a *closing*: the whole range's fingerprint with all of this
  message taken in. It is answered with "agreed" in one byte.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from hashlib import sha256
from itertools import pairwise

from recon_node.ceramic import EventId, EventIdError
from recon_node.ipld import VarintError, varint
from recon_node.recon.errors import RemoteProtocolError
from recon_node.recon.key_range import KeyRange, common_prefix
from recon_node.recon.key_store import Summary

FINGERPRINT_SIZE = 16
END = b""
"""Upper bound of a gap that reaches to the end of the session's range."""
MAX_TURN = 16
"""Messages of one turn at most."""
MAX_BOUND = 256
"""Bytes of a bound at most; an EventID has about 62."""


class Say(IntEnum):
    """What a message says about a gap."""

    AGREED = 0
    """Nothing: the sides agree on it."""
    FINGERPRINT = 1
    """The fingerprint of the sender's keys in it."""
    KEYS = 2
    """All keys that the sender holds in it, perhaps none: tell me those that I lack."""
    MORE = 3
    """Keys in it that the receiver lacks: with these, the sides agree on it."""


class Flag(IntFlag):
    """What a message has beside its gaps."""

    RANGE = 1
    """The range that the session is about: in the first message, and where it is trimmed."""
    CLOSING = 2
    """A fingerprint of the whole range."""
    AGREED = 4
    """The session is done; nothing follows."""
    REFUSED = 8
    """The sender has no interest in the range asked for; nothing follows."""
    GOES_ON = 16
    """The turn goes on in another message, with gaps above those of this one."""


@dataclass(frozen=True, slots=True)
class Gap:
    """What is said about the keys from the bound before (inclusive) to ``upper`` (exclusive)."""

    upper: bytes
    say: Say
    fingerprint: bytes = b""
    keys: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Message:
    """One turn: gaps in ascending order. What lies above the last one is agreed on."""

    key_range: KeyRange | None = None
    gaps: tuple[Gap, ...] = ()
    closing: bytes | None = None
    verdict: Flag | None = None
    """AGREED or REFUSED, and nothing else in the message; or None."""
    goes_on: bool = False
    """Whether the turn goes on in another message. The first gap of that one starts here."""


def fingerprint(summary: Summary) -> bytes:
    """Return the 16-byte fingerprint of a set: sha256(Sha256a || varint(count)), cut in half."""
    return sha256(summary.hash.digest + varint.encode(summary.count)).digest()[:FINGERPRINT_SIZE]


def encode_message(message: Message) -> bytes:
    """Encode a message as the bytes of one frame."""
    flags = Flag(0)
    parts: list[bytes] = []
    before = b""
    if message.key_range is not None:
        flags |= Flag.RANGE
        lower, upper = message.key_range
        parts += [_front_code(b"", lower), _front_code(lower, upper)]
        before = lower
    if message.closing is not None:
        flags |= Flag.CLOSING
        parts.append(message.closing)
    if message.verdict is not None:
        flags |= message.verdict
    if message.goes_on:
        flags |= Flag.GOES_ON
    for gap in message.gaps:
        parts.append(_front_code(before, gap.upper, gap.say))
        if gap.say is Say.FINGERPRINT:
            parts.append(gap.fingerprint)
        elif gap.say is not Say.AGREED:
            parts.append(varint.encode(len(gap.keys)))
            parts += [_front_code(left, right) for left, right in pairwise((before, *gap.keys))]
        before = gap.upper
    return bytes((flags,)) + b"".join(parts)


def decode_message(data: bytes) -> Message:
    """Decode the bytes of one frame.

    Raises RemoteProtocolError, with the offset, when they are no message: fields that do not parse
    or are not in their shortest form, keys or bounds that do not ascend, keys that are no EventIDs
    or lie outside their gap, or bytes after the end.
    """
    return _Reader(data).message()


class _Reader:
    """Reads one message from its bytes, from left to right."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def message(self) -> Message:
        flags = self._byte("flags", sum(Flag))
        key_range = None
        before = b""
        if flags & Flag.RANGE:
            before = self._event_id(b"")
            key_range = KeyRange(before, self._event_id(before))
            if key_range.is_empty:
                raise self._error("the range is empty")
        closing = self._take(FINGERPRINT_SIZE) if flags & Flag.CLOSING else None
        verdict = flags & (Flag.AGREED | Flag.REFUSED)
        if verdict and (flags != verdict or verdict not in (Flag.AGREED, Flag.REFUSED)):
            raise self._error("a verdict stands alone")
        gaps = tuple(self._gaps(before))
        if verdict and gaps:
            raise self._error("nothing follows a verdict")
        goes_on = bool(flags & Flag.GOES_ON)
        if goes_on and (closing is not None or not gaps or gaps[-1].upper == END):
            raise self._error("a turn goes on after its end")
        return Message(key_range, gaps, closing, Flag(verdict) if verdict else None, goes_on)

    def _gaps(self, before: bytes) -> Iterator[Gap]:
        while self._at < len(self._data):
            say_and_shared = self._varint()
            say = Say(say_and_shared % len(Say))
            upper = self._string(before, say_and_shared // len(Say))
            if upper != END and upper <= before:
                raise self._error("bounds out of order")
            if say is Say.AGREED:
                yield Gap(upper, say)
            elif say is Say.FINGERPRINT:
                yield Gap(upper, say, fingerprint=self._take(FINGERPRINT_SIZE))
            else:
                yield Gap(upper, say, keys=tuple(self._keys(before, upper)))
            if upper == END and self._at < len(self._data):
                raise self._error("bytes follow the last gap")
            before = upper

    def _keys(self, lower: bytes, upper: bytes) -> Iterator[bytes]:
        before = lower
        for _ in range(self._varint()):
            key = self._event_id(before)
            if key < before or (key == before and before is not lower):
                raise self._error("keys out of order, or repeated")
            if key.is_fencepost:
                raise self._error("a fencepost among the keys")
            if upper != END and key >= upper:
                raise self._error("a key outside its gap")
            yield key
            before = key

    def _string(self, before: bytes, shared: int) -> bytes:
        """Read the rest of a front-coded string; only its shortest form is taken."""
        size = self._varint()
        if shared + size > MAX_BOUND or shared > len(before):
            raise self._error(f"a bound of {shared} + {size} bytes")
        rest = self._take(size)
        if shared < len(before) and rest[:1] == before[shared : shared + 1] and rest:
            raise self._error("a bound shares more with the one before it than it says")
        if not rest and 0 < shared < len(before):
            raise self._error("a bound that is a prefix of the one before it")
        return before[:shared] + rest

    def _event_id(self, before: bytes) -> EventId:
        string = self._string(before, self._varint())
        try:
            return EventId(string)
        except EventIdError as error:
            raise self._error(str(error)) from error

    def _byte(self, what: str, most: int) -> int:
        value = self._take(1)[0]
        if value > most:
            raise self._error(f"unknown {what} {value}")
        return value

    def _varint(self) -> int:
        first = self._data[self._at : self._at + 1]
        if first < b"\x80" and first:  # the usual case, without a call
            self._at += 1
            return first[0]
        try:
            value, self._at = varint.decode(self._data, self._at)
        except VarintError as error:
            raise self._error(str(error)) from error
        return value

    def _take(self, size: int) -> bytes:
        taken = self._data[self._at : self._at + size]
        if len(taken) < size:
            raise self._error("the message ends too early")
        self._at += size
        return taken

    def _error(self, what: str) -> RemoteProtocolError:
        return RemoteProtocolError(f"message does not parse before byte {self._at}: {what}")


def _front_code(before: bytes, string: bytes, say: Say | None = None) -> bytes:
    """Write the length shared with the string before (and what is said, below it), and the rest."""
    shared = common_prefix(before, string)
    head = shared if say is None else shared * len(Say) + say
    size = len(string) - shared
    if head < 0x80 and size < 0x80:  # the usual case, without two calls
        return bytes((head, size)) + string[shared:]
    return varint.encode(head) + varint.encode(size) + string[shared:]
