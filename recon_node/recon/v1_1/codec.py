"""Messages of `/ceramic/recon/1.1.0`: what 1.0.0 says in fewer bytes. docs/wire.md has the layout.

The range is stated once and then implied. The bound that splits a gap is the shortest string that
separates two keys: a few bytes instead of an EventID. Bounds and keys are front-coded. A gap on
which the sides agree carries nothing, and one that differs a fingerprint of 16 bytes. Half a sha256
is enough, because it only decides what to look at more closely: where it matters, keys are named.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
from hashlib import sha256
from typing import Final, NamedTuple

from recon_node.ceramic import EventId, EventIdError
from recon_node.ipld import VarintError, varint
from recon_node.recon.keys.ranges import KeyRange, common_prefix
from recon_node.recon.keys.sha256a import COUNT_SHIFT, fold
from recon_node.recon.side import RemoteProtocolError

FINGERPRINT_SIZE: Final = 16
"""Bytes of a fingerprint."""
MAX_BOUND: Final = 256
"""Maximum bytes of a bound; an EventID has about 62."""
MIB: Final = 1 << 20
MAX_WEIGHT: Final = 16
"""Maximum bytes of memory (``weight_of``) that a message may take for each byte of its own, or of a
MiB if it is shorter: four times what an honest one takes."""
_WEIGHT_OF_EACH: Final = 64
"""Bytes of memory that a bound, a fingerprint or a key takes on top of its own, in CPython."""
END: Final = b""
"""Upper bound of a gap that reaches to the end of the session's range."""


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


# Looking a member up in its class takes as long as a call.
AGREED: Final = Say.AGREED
FINGERPRINT: Final = Say.FINGERPRINT
KEYS: Final = Say.KEYS

Body = bytes | tuple[bytes, ...]
"""What a gap carries: a fingerprint, some keys, or the empty string, depending on its ``Say``."""


@dataclass(slots=True)
class Gaps:
    """The gaps of a message, ascending, in three lists of equal length.

    A gap has the keys from the previous bound (inclusive) to its own (exclusive). There may be a
    hundred thousand. As objects they would cost the garbage collector more time than the answer
    takes, because it visits the whole key store whenever many objects are made.
    """

    uppers: list[bytes] = field(default_factory=list)
    says: list[Say] = field(default_factory=list)
    bodies: list[Body] = field(default_factory=list)

    def append(self, upper: bytes, say: Say, body: Body = b"") -> None:
        """Add a gap above the others."""
        self.uppers.append(upper)
        self.says.append(say)
        self.bodies.append(body)

    def columns(self) -> Iterator[tuple[bytes, Say, Body]]:
        """Iterate over the upper bounds, says and bodies of the gaps."""
        return zip(self.uppers, self.says, self.bodies, strict=True)

    def keys(self) -> list[bytes]:
        """Return the keys of all gaps."""
        return [key for body in self.bodies if isinstance(body, tuple) for key in body]


class MessageFlag(IntFlag):
    """What a message has in addition to its gaps."""

    RANGE = 1
    """The range that the session is about: in the first message, and where it is trimmed."""
    CLOSING = 2
    """A fingerprint of the whole range."""
    AGREED = 4
    """The session is done; nothing follows."""
    REFUSED = 8
    """The sender has no interest in the range asked for; nothing follows."""
    GOES_ON = 16
    """The turn continues in another message, with gaps above those of this one."""
    LEFT_OUT = 32
    """With CLOSING or AGREED: keys that the sender was told of and does not hold."""


class LeftOut(NamedTuple):
    """Keys of the receiver's that the sender could not get, or refused."""

    number: int
    fingerprint: bytes
    """Of the sender's keys in the whole range together with these."""


@dataclass(frozen=True, slots=True)
class Message:
    """A turn, or a part of it. The sides agree on whatever lies above its last gap."""

    key_range: KeyRange | None = None
    gaps: Gaps = field(default_factory=Gaps)
    closing: bytes | None = None
    verdict: MessageFlag | None = None
    """AGREED or REFUSED, without gaps; or None."""
    goes_on: bool = False
    """Whether the turn continues in another message, whose first gap starts where this one ends."""
    left_out: LeftOut | None = None
    """Keys that the closing, or AGREED, does not count."""


def fingerprint(lanes: int) -> bytes:
    """Return the 16-byte fingerprint of the set with these lanes (sha256a.py).

    It is the first half of sha256(Sha256a || varint(count)).
    """
    count = lanes >> COUNT_SHIFT
    number = _ONE_BYTE[count] if count < _MORE else varint.encode(count)
    return sha256(fold(lanes) + number).digest()[:FINGERPRINT_SIZE]


def weight_of(strings: Sequence[bytes]) -> int:
    """Return about how many bytes of memory some bounds or keys take, without front-coding."""
    return sum(map(len, strings)) + _WEIGHT_OF_EACH * len(strings)


def weigh(message: Message) -> int:
    """Return about how many bytes of memory a message takes."""
    gaps = message.gaps
    of_bodies = _WEIGHT_OF_EACH * len(gaps.bodies)
    return weight_of(gaps.uppers) + weight_of(gaps.keys()) + of_bodies


def encode_message(message: Message) -> bytes:
    """Encode a message as the bytes of one frame."""
    flags = MessageFlag(0)
    parts: list[bytes] = []
    before = b""
    if message.key_range is not None:
        flags |= MessageFlag.RANGE
        before, upper = message.key_range
        parts += [_front_code(b"", before), _front_code(before, upper)]
    if message.closing is not None:
        flags |= MessageFlag.CLOSING
        parts.append(message.closing)
    if message.left_out is not None:
        flags |= MessageFlag.LEFT_OUT
        parts += [varint.encode(message.left_out.number), message.left_out.fingerprint]
    if message.verdict is not None:
        flags |= message.verdict
    if message.goes_on:
        flags |= MessageFlag.GOES_ON
    for upper, say, body in message.gaps.columns():
        parts.append(_front_code(before, upper, say, _SAYS))
        if isinstance(body, bytes):
            parts.append(body)
        else:
            parts.append(varint.encode(len(body)))
            for key in body:
                parts.append(_front_code(before, key))
                before = key
        before = upper
    return bytes((flags,)) + b"".join(parts)


def _front_code(before: bytes, string: bytes, below: int = 0, radix: int = 1) -> bytes:
    """Write the length shared with the string before (radix * length + below), and the rest."""
    shared = common_prefix(before, string)
    head, size = shared * radix + below, len(string) - shared
    if head < _MORE and size < _MORE:  # the usual case
        return _ONE_BYTE[head] + _ONE_BYTE[size] + string[shared:]
    return varint.encode(head) + varint.encode(size) + string[shared:]


def decode_message(data: bytes) -> Message:
    """Decode the bytes of one frame.

    Raises:
        RemoteProtocolError: they are not a message: fields that do not parse or are not in their
            shortest form, keys or bounds that do not ascend, keys that are not EventIDs or lie
            outside their gap, bytes after the end, or more to write out than ``MAX_WEIGHT`` allows.
            The text has the offset.
    """
    return _Reader(data).message()


class _Reader:
    """Reads one message from its bytes, from left to right.

    Each method takes the offset to read at, and returns the offset after what it has read.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._spare = MAX_WEIGHT * max(MIB, len(data))
        """How much more the message may weigh."""

    def message(self) -> Message:
        raw, at = self._take(0, 1)
        flags = raw[0]
        if flags > _ALL_FLAGS:
            raise _error(at, f"unknown flags {flags}")
        key_range = closing = left_out = None
        before = b""
        if flags & MessageFlag.RANGE:
            before, at = self._event_id(at, b"")
            upper, at = self._event_id(at, before)
            key_range = KeyRange(before, upper)
            if key_range.is_empty:
                raise _error(at, "the range is empty")
        if flags & MessageFlag.CLOSING:
            closing, at = self._take(at, FINGERPRINT_SIZE)
        if flags & MessageFlag.LEFT_OUT:
            if not flags & (MessageFlag.CLOSING | MessageFlag.AGREED):
                raise _error(at, "LEFT_OUT without CLOSING or AGREED")
            count, at = self._varint(at)
            if not count:
                raise _error(at, "LEFT_OUT of 0 keys")
            union, at = self._take(at, FINGERPRINT_SIZE)
            left_out = LeftOut(count, union)
        verdict = flags & (MessageFlag.AGREED | MessageFlag.REFUSED)
        if verdict and flags not in (
            MessageFlag.AGREED,
            MessageFlag.AGREED | MessageFlag.LEFT_OUT,
            MessageFlag.REFUSED,
        ):
            raise _error(at, "AGREED or REFUSED with other flags")
        gaps = self._gaps(at, before)
        if verdict and gaps.uppers:
            raise _error(at, "gaps after AGREED or REFUSED")
        goes_on = bool(flags & MessageFlag.GOES_ON)
        if goes_on and (closing is not None or not gaps.uppers or gaps.uppers[-1] == END):
            raise _error(len(self._data), "GOES_ON at the end of the turn")
        final = MessageFlag(verdict) if verdict else None
        return Message(key_range, gaps, closing, final, goes_on, left_out)

    def _gaps(self, at: int, before: bytes) -> Gaps:
        """Read the gaps, which reach to the end of the message."""
        data, end = self._data, len(self._data)
        gaps = Gaps()
        uppers, says, bodies = gaps.uppers, gaps.says, gaps.bodies
        body: Body
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
                raise _error(at, "the message takes too much memory when written out")
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
                raise _error(at, "the message takes too much memory when written out")
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
        """Read the rest of a front-coded string, which must be in its shortest form."""
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


_ALL_FLAGS: Final = sum(MessageFlag)
_SAY: Final = tuple(Say)
_SAYS: Final = len(_SAY)
_MORE: Final = 0x80
"""From here on a varint takes more than one byte."""
_ONE_BYTE: Final = tuple(bytes((number,)) for number in range(_MORE))
"""The varints below that."""
