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

from recon_node.ipld import varint
from recon_node.recon.keys.ranges import KeyRange, common_prefix
from recon_node.recon.keys.sha256a import COUNT_SHIFT, fold

FINGERPRINT_SIZE: Final = 16
"""Bytes of a fingerprint."""
MAX_BOUND: Final = 256
"""Maximum bytes of a bound; an EventID has about 62."""
MIB: Final = 1 << 20
MAX_WEIGHT: Final = 16
"""Maximum bytes of memory (``weight_of``) that a message may take for each byte of its own, or of a
MiB if it is shorter: four times what an honest one takes."""
WEIGHT_OF_EACH: Final = 64
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
MORE: Final = Say.MORE

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
    number = _ONE_BYTE[count] if count < MORE_BYTES else varint.encode(count)
    return sha256(fold(lanes) + number).digest()[:FINGERPRINT_SIZE]


def weight_of(strings: Sequence[bytes]) -> int:
    """Return about how many bytes of memory some bounds or keys take, without front-coding."""
    return sum(map(len, strings)) + WEIGHT_OF_EACH * len(strings)


def weigh(message: Message) -> int:
    """Return about how many bytes of memory a message takes."""
    gaps = message.gaps
    of_bodies = WEIGHT_OF_EACH * len(gaps.bodies)
    return weight_of(gaps.uppers) + weight_of(gaps.keys()) + of_bodies


def encode_message(message: Message) -> bytes:
    """Encode a message as the bytes of one frame."""
    flags = 0
    parts: list[bytes] = []
    before = b""
    if message.key_range is not None:
        flags |= FLAG_RANGE
        before, upper = message.key_range
        parts += [_front_code(b"", before), _front_code(before, upper)]
    if message.closing is not None:
        flags |= FLAG_CLOSING
        parts.append(message.closing)
    if message.left_out is not None:
        flags |= FLAG_LEFT_OUT
        parts += [varint.encode(message.left_out.number), message.left_out.fingerprint]
    if message.verdict is not None:
        flags |= message.verdict.value
    if message.goes_on:
        flags |= FLAG_GOES_ON
    _write_gaps(parts, before, message.gaps)
    return bytes((flags,)) + b"".join(parts)


def _write_gaps(parts: list[bytes], before: bytes, gaps: Gaps) -> None:
    """Append the bytes of some gaps, the first of which starts at the bound ``before``.

    This and reading them (reader.py) take most of the time of a message: the usual cases of
    ``_front_code`` and of its counterpart are written out in the loops.
    """
    for upper, say, body in gaps.columns():
        shared = common_prefix(before, upper)
        head, size = shared * SAYS + say, len(upper) - shared
        if head < MORE_BYTES and size < MORE_BYTES:
            parts += (_ONE_BYTE[head], _ONE_BYTE[size], upper[shared:])
        else:
            parts.append(_front_code(before, upper, say, SAYS))
        if say is FINGERPRINT or say is AGREED:
            parts.append(body)  # type: ignore[arg-type]
        else:
            _write_keys(parts, before, body)  # type: ignore[arg-type]
        before = upper


def _write_keys(parts: list[bytes], before: bytes, keys: tuple[bytes, ...]) -> None:
    """Append the number of some keys, and the keys. Most are as long as the key before."""
    parts.append(varint.encode(len(keys)))
    size_before = number_before = 0
    for key in keys:
        size, number = len(key), _from_bytes(key)
        if size == size_before:
            shared = size - (((number ^ number_before).bit_length() + 7) >> 3)
        else:
            shared = common_prefix(before, key)
        if size < MORE_BYTES:
            parts += (_ONE_BYTE[shared], _ONE_BYTE[size - shared], key[shared:])
        else:
            parts.append(_front_code(before, key))
        before, size_before, number_before = key, size, number


def _front_code(before: bytes, string: bytes, below: int = 0, radix: int = 1) -> bytes:
    """Write the length shared with the string before (radix * length + below), and the rest."""
    shared = common_prefix(before, string)
    head, size = shared * radix + below, len(string) - shared
    return varint.encode(head) + varint.encode(size) + string[shared:]


FLAG_RANGE: Final = MessageFlag.RANGE.value
FLAG_CLOSING: Final = MessageFlag.CLOSING.value
FLAG_GOES_ON: Final = MessageFlag.GOES_ON.value
FLAG_LEFT_OUT: Final = MessageFlag.LEFT_OUT.value
VERDICTS: Final = (MessageFlag.AGREED | MessageFlag.REFUSED).value
"""As plain integers: & and | of an enum's flags take ten times as long."""
ALL_FLAGS: Final = sum(MessageFlag)
SAY: Final = tuple(Say)
SAYS: Final = len(SAY)
MORE_BYTES: Final = 0x80
"""From here on a varint takes more than one byte."""
_ONE_BYTE: Final = tuple(bytes((number,)) for number in range(MORE_BYTES))
"""The varints below that."""
_from_bytes = int.from_bytes
