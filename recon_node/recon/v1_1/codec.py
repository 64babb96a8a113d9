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
- Keys that the sender was told but cannot have are *left out*: the closing does not count them, and
  beside it stand their number and the fingerprint of the sender's keys and them together.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntFlag
from hashlib import sha256
from typing import Final, NamedTuple

from recon_node.ceramic import EventId, EventIdError
from recon_node.ipld import VarintError, varint
from recon_node.recon.errors import RemoteProtocolError
from recon_node.recon.keys.key_store import Summary
from recon_node.recon.keys.ranges import KeyRange, common_prefix
from recon_node.recon.keys.sha256a import COUNT_SHIFT, fold
from recon_node.recon.v1_1.gaps import AGREED, END, FINGERPRINT, Gaps, Say

FINGERPRINT_SIZE = 16
MAX_TURN = 16
"""Messages of one turn at most."""
MAX_BOUND = 256
"""Bytes of a bound at most; an EventID has about 62."""
MAX_WEIGHT: Final = 16
"""Bytes that a message may have written out, for each of its own, or of a MiB where it is shorter:
four times what an honest one has. Bounds and keys are counted with 64 bytes more each."""
_WEIGHT_OF_EACH: Final = 64
"""Bytes of memory that a bound, a fingerprint or a key takes beside its own, in CPython."""


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
    LEFT_OUT = 32
    """With a closing or AGREED: keys that the sender was told and does not hold."""


class LeftOut(NamedTuple):
    """Keys of the receiver's that the sender could not get, or refused."""

    number: int
    fingerprint: bytes
    """Of the sender's keys in the whole range together with these."""


@dataclass(frozen=True, slots=True)
class Message:
    """One turn: gaps in ascending order. What lies above the last one is agreed on."""

    key_range: KeyRange | None = None
    gaps: Gaps = field(default_factory=Gaps)
    closing: bytes | None = None
    verdict: Flag | None = None
    """AGREED or REFUSED, without gaps; or None."""
    goes_on: bool = False
    """Whether the turn goes on in another message. The first gap of that one starts here."""
    left_out: LeftOut | None = None
    """Keys that the closing, or AGREED, is in spite of."""


def fingerprint(summary: Summary) -> bytes:
    """Return the 16-byte fingerprint of a set: sha256(Sha256a || varint(count)), cut in half."""
    hashed = summary.hash.digest + varint.encode(summary.count)
    return sha256(hashed).digest()[:FINGERPRINT_SIZE]


def fingerprint_of(lanes: int) -> bytes:
    """Return the fingerprint of the set whose lanes these are (sha256a.py)."""
    count = lanes >> COUNT_SHIFT
    number = _ONE_BYTE[count] if count < _MORE else varint.encode(count)
    return sha256(fold(lanes) + number).digest()[:FINGERPRINT_SIZE]


def weigh(message: Message) -> int:
    """Return about how many bytes of memory a message takes.

    Front-coding makes that another number than its size: a bound of 256 bytes may take three on the
    wire.
    """
    gaps = message.gaps
    keys = gaps.keys()
    written_out = sum(map(len, gaps.uppers)) + sum(map(len, keys))
    return written_out + _WEIGHT_OF_EACH * (2 * len(gaps) + len(keys))


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
    if message.left_out is not None:
        flags |= Flag.LEFT_OUT
        parts += [varint.encode(message.left_out.number), message.left_out.fingerprint]
    if message.verdict is not None:
        flags |= message.verdict
    if message.goes_on:
        flags |= Flag.GOES_ON
    _encode_gaps(message.gaps, before, parts)
    return bytes((flags,)) + b"".join(parts)


def _encode_gaps(gaps: Gaps, before: bytes, parts: list[bytes]) -> None:
    for upper, say, body in gaps.columns():
        parts.append(_front_code(before, upper, say, _SAYS))
        if isinstance(body, bytes):
            parts.append(body)
        else:
            parts.append(varint.encode(len(body)))
            for key in body:
                parts.append(_front_code(before, key))
                before = key
        before = upper


def _front_code(before: bytes, string: bytes, below: int = 0, radix: int = 1) -> bytes:
    """Write the length shared with the string before (and a number below it), and the rest."""
    shared = common_prefix(before, string)
    head, size = shared * radix + below, len(string) - shared
    if head < _MORE and size < _MORE:  # the usual case
        return _ONE_BYTE[head] + _ONE_BYTE[size] + string[shared:]
    return varint.encode(head) + varint.encode(size) + string[shared:]


def decode_message(data: bytes) -> Message:
    """Decode the bytes of one frame.

    Raises RemoteProtocolError, with the offset, when they are no message: fields that do not parse
    or are not in their shortest form, keys or bounds that do not ascend, keys that are no EventIDs
    or lie outside their gap, bytes after the end, or more to write out than ``MAX_WEIGHT`` allows.
    """
    return _Reader(data).message()


class _Reader:
    """Reads one message from its bytes, from left to right.

    Each method takes the offset to read at, and returns the one behind what it has read.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._spare = MAX_WEIGHT * max(1 << 20, len(data))
        """How much more the message may weigh."""

    def message(self) -> Message:
        raw, at = self._take(0, 1)
        flags = raw[0]
        if flags > sum(Flag):
            raise _error(at, f"unknown flags {flags}")
        key_range = closing = left_out = None
        before = b""
        if flags & Flag.RANGE:
            before, at = self._event_id(at, b"")
            upper, at = self._event_id(at, before)
            key_range = KeyRange(before, upper)
            if key_range.is_empty:
                raise _error(at, "the range is empty")
        if flags & Flag.CLOSING:
            closing, at = self._take(at, FINGERPRINT_SIZE)
        if flags & Flag.LEFT_OUT:
            if not flags & (Flag.CLOSING | Flag.AGREED):
                raise _error(at, "keys are left out of nothing")
            left_out, at = self._left_out(at)
        verdict = flags & (Flag.AGREED | Flag.REFUSED)
        if verdict and flags not in (Flag.AGREED, Flag.AGREED | Flag.LEFT_OUT, Flag.REFUSED):
            raise _error(at, "a verdict stands alone")
        gaps = self._gaps(at, before)
        if verdict and gaps:
            raise _error(at, "nothing follows a verdict")
        goes_on = bool(flags & Flag.GOES_ON)
        if goes_on and (closing is not None or not gaps or gaps[-1].upper == END):
            raise _error(len(self._data), "a turn goes on after its end")
        final = Flag(verdict) if verdict else None
        return Message(key_range, gaps, closing, final, goes_on, left_out)

    def _left_out(self, at: int) -> tuple[LeftOut, int]:
        count, at = self._varint(at)
        if not count:
            raise _error(at, "no keys are left out")
        union, at = self._take(at, FINGERPRINT_SIZE)
        return LeftOut(count, union), at

    def _gaps(self, at: int, before: bytes) -> Gaps:
        """Read the gaps, which reach to the end of the message."""
        data, end = self._data, len(self._data)
        gaps = Gaps()
        uppers, says, bodies = gaps.uppers, gaps.says, gaps.bodies
        body: bytes | tuple[bytes, ...]
        while at < end:
            if before == END and uppers:
                raise _error(at, "bytes follow the last gap")
            head = data[at]
            if head < _MORE:  # the usual case, without a call
                at += 1
            else:
                head, at = self._varint(at)
            say = _SAY[head % _SAYS]
            upper, at = self._string(at, before, head // _SAYS)
            if upper <= before and upper != END:
                raise _error(at, "bounds out of order")
            if say is FINGERPRINT:
                body = data[at : at + FINGERPRINT_SIZE]
                at += FINGERPRINT_SIZE
            elif say is AGREED:
                body = b""
            else:
                body, at = self._keys(at, before, upper)
            self._spare -= len(upper) + _WEIGHT_OF_EACH
            if self._spare < 0:
                raise _error(at, "too much to write out")
            uppers.append(upper)
            says.append(say)
            bodies.append(body)
            before = upper
        if at > end:
            raise _error(end, "the message ends too early")
        return gaps

    def _keys(self, at: int, lower: bytes, upper: bytes) -> tuple[tuple[bytes, ...], int]:
        number, at = self._varint(at)
        keys: list[bytes] = []
        before = lower
        for _ in range(number):
            key, at = self._event_id(at, before)
            if key < before or (key == before and keys):
                raise _error(at, "keys out of order, or repeated")
            if key.is_fencepost:
                raise _error(at, "a fencepost among the keys")
            self._spare -= len(key) + _WEIGHT_OF_EACH
            if self._spare < 0:
                raise _error(at, "too much to write out")
            keys.append(key)
            before = key
        if keys and upper != END and before >= upper:
            raise _error(at, "a key outside its gap")
        return tuple(keys), at

    def _event_id(self, at: int, before: bytes) -> tuple[EventId, int]:
        shared, at = self._varint(at)
        string, at = self._string(at, before, shared)
        try:
            return EventId(string), at
        except EventIdError as error:
            raise _error(at, str(error)) from error

    def _string(self, at: int, before: bytes, shared: int) -> tuple[bytes, int]:
        """Read the rest of a front-coded string; only its shortest form is taken."""
        data = self._data
        first = data[at : at + 1]
        if b"" < first < b"\x80":  # the usual case, without a call
            size, at = first[0], at + 1
        else:
            size, at = self._varint(at)
        if shared + size > MAX_BOUND or shared > len(before):
            raise _error(at, f"a bound of {shared} + {size} bytes")
        rest = data[at : at + size]
        at += size
        if at > len(data):
            raise _error(len(data), "the message ends too early")
        if shared < len(before):
            if not rest:
                if shared:
                    raise _error(at, "a bound that is a prefix of the one before it")
            elif rest[0] == before[shared]:
                raise _error(at, "a bound shares more with the one before it than it says")
        return before[:shared] + rest, at

    def _varint(self, at: int) -> tuple[int, int]:
        first = self._data[at : at + 1]
        if b"" < first < b"\x80":  # the usual case
            return first[0], at + 1
        try:
            return varint.decode(self._data, at)
        except VarintError as error:
            raise _error(at, str(error)) from error

    def _take(self, at: int, size: int) -> tuple[bytes, int]:
        end = at + size
        if end > len(self._data):
            raise _error(at, "the message ends too early")
        return self._data[at:end], end


def _error(at: int, what: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"message does not parse before byte {at}: {what}")


_SAY: Final = tuple(Say)
_SAYS: Final = len(_SAY)
_MORE: Final = 0x80
"""From here on a varint takes more than one byte."""
_ONE_BYTE: Final = tuple(bytes((number,)) for number in range(_MORE))
