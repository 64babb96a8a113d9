"""Messages of `/ceramic/recon/1.2.0`. docs/wire.md has the layout.

The range is stated once and then implied. The bound that splits a gap is the shortest string that
separates two keys: a few bytes instead of an EventId. Bounds and keys are front-coded, and a list
may have ids in the place of some keys or of all: 8 bytes instead of some 57. A gap on which the
sides agree carries nothing, and one that differs a fingerprint of 16 bytes. Half a sha256 is
enough, because it only decides what to look at more closely. What ends a session is the digest of
an LtHash.

`PeerTurn` is the peer's turn: its messages so far, each of which has to be one that is due.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
from hashlib import sha256
from typing import Final, NamedTuple

from recon_node.ipld import encode_varint
from recon_node.recon.keys.ordered_keys import KeyRange
from recon_node.recon.keys.sha256a import COUNT_SHIFT, fold
from recon_node.recon.keys.sums import ID_SIZE, NO_IDS, Ids, Symbols
from recon_node.recon.session import RemoteProtocolError, Side

FINGERPRINT_SIZE: Final = 16
"""Bytes of a fingerprint."""
CLOSING_SIZE: Final = 32
"""Bytes of the digest of an LtHash."""
SALT_SIZE: Final = 16
HINT_SIZE: Final = 4
"""Bytes of a fingerprint that are sent as a hint."""
MAX_HINTED_PARTS: Final = 256
"""Maximum parts of a range that an estimate has hints of."""
SYMBOL_SIZE: Final = 13
"""Bytes of a symbol: 8 of the sum, 4 of the check, 1 of the count."""
MAX_BOUND: Final = 256
"""Maximum bytes of a bound; an EventId has about 62."""
MIB: Final = 1 << 20
MAX_WEIGHT: Final = 16
"""Maximum bytes of memory (`weight_of`) that a message may take for each byte of its own, or of a
MiB if it is shorter: four times what an honest one takes."""
WEIGHT_OF_EACH: Final = 64
"""Bytes of memory that a bound, a fingerprint or a key takes on top of its own, in CPython."""
WEIGHT_OF_LIST: Final = 300
"""Bytes of memory that the ids of a gap take on top of their own."""
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
    LACKING = 3
    """Keys in it that the receiver lacks: with these, the sides agree on it."""


# Looking a member up in its class takes as long as a call.
AGREED: Final = Say.AGREED
FINGERPRINT: Final = Say.FINGERPRINT
KEYS: Final = Say.KEYS
LACKING: Final = Say.LACKING

Body = bytes | tuple[bytes, ...]
"""What a gap carries: a fingerprint, some keys, or the empty string, depending on its `Say`."""
NO_KEYS: Final[tuple[bytes, ...]] = ()


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

    def lists(self) -> int:
        """Return how many gaps say KEYS or LACKING."""
        return self.says.count(KEYS) + self.says.count(LACKING)


class MessageFlag(IntFlag):
    """What the second byte of a message tells of it."""

    RANGE = 1
    """The range that the session is about: in the first message, and where it is trimmed."""
    CLOSING = 2
    """A digest of the whole range."""
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
    digest: bytes
    """Of the sender's keys in the whole range together with these."""


class Estimate(NamedTuple):
    """What tells about how many keys differ, and where."""

    table: bytes
    """The sender's table of bits (sums.py)."""
    bounds: tuple[bytes, ...]
    """What divides the range into parts, ascending."""
    hints: tuple[bytes, ...]
    """The first bytes of the fingerprint of each part; one more than there are bounds."""


class Listed(NamedTuple):
    """Ids that complete the list of a gap."""

    ids: Ids
    """Of keys that the list has, but not in full."""
    wanted: Ids
    """Of keys that the sender lacks and asks to have in full. Only where a gap says LACKING."""


NOTHING_LISTED: Final = Listed(NO_IDS, NO_IDS)


@dataclass(slots=True)  # not frozen, which takes a microsecond more for each
class Message:
    """A turn, or a part of it. The sides agree on whatever lies above its last gap."""

    key_range: KeyRange | None = None
    gaps: Gaps = field(default_factory=Gaps)
    closing: bytes | None = None
    """The digest of the LtHash of the sender's keys in the whole range."""
    verdict: MessageFlag | None = None
    """AGREED or REFUSED, without gaps; or None."""
    goes_on: bool = False
    """Whether the turn continues in another message, whose first gap starts where this one ends."""
    left_out: LeftOut | None = None
    """Keys that the closing, or AGREED, does not count."""
    count: int | None = None
    """How many keys the sender holds in the range: beside an opening, and beside an estimate."""
    estimate: Estimate | None = None
    symbols: Symbols | None = None
    """The sender's first symbols."""
    listed: Sequence[Listed] = ()
    """For each gap that says KEYS or LACKING, in order; or none at all if no gap has ids."""
    salt: bytes | None = None
    """What precedes each key in the fingerprints of this message, if anything."""

    @property
    def is_coded(self) -> bool:
        """Whether it has symbols, or an estimate."""
        return self.symbols is not None or self.estimate is not None

    @property
    def has_gaps_or_ends(self) -> bool:
        """Whether it has anything that may not stand beside symbols or an estimate."""
        return bool(
            self.key_range
            or self.gaps.uppers
            or self.closing
            or self.verdict
            or self.goes_on
            or self.left_out
            or self.salt
        )

    @property
    def closes_only(self) -> bool:
        """Whether it has a digest, and does not open with a list of keys beside it."""
        opens_with_list = self.key_range is not None and bool(self.gaps.uppers)
        return self.closing is not None and not opens_with_list

    def lists(self) -> Sequence[Listed]:
        """Return what each list has beside keys in full."""
        return self.listed or [NOTHING_LISTED] * self.gaps.lists()


def has_ids(listed: Iterable[Listed]) -> bool:
    """Return whether any of some lists has an id in it."""
    return any(len(ids) or len(wanted) for ids, wanted in listed)


def fingerprint(lanes: int) -> bytes:
    """Return the 16-byte fingerprint of the set with these lanes (sha256a.py).

    It is the first half of sha256(Sha256a || varint(count)).
    """
    count = lanes >> COUNT_SHIFT
    number = ONE_BYTE[count] if count < MORE_BYTES else encode_varint(count)
    return sha256(fold(lanes) + number).digest()[:FINGERPRINT_SIZE]


def weight_of(strings: Sequence[bytes]) -> int:
    """Return about how many bytes of memory some bounds or keys take, without front-coding."""
    return sum(map(len, strings)) + WEIGHT_OF_EACH * len(strings)


def weigh(message: Message) -> int:
    """Return about how many bytes of memory a message takes."""
    gaps = message.gaps
    weight = weight_of(gaps.uppers) + weight_of(gaps.keys()) + WEIGHT_OF_EACH * len(gaps.bodies)
    for ids, wanted in message.listed:
        weight += WEIGHT_OF_LIST + ID_SIZE * (len(ids) + len(wanted))
    if message.symbols is not None:
        weight += SYMBOL_SIZE * len(message.symbols)
    if message.estimate is not None:
        table, bounds, hints = message.estimate
        weight += len(table) + weight_of(bounds) + weight_of(hints)
    return weight


MORE_BYTES: Final = 0x80
"""From here on a varint takes more than one byte."""
ONE_BYTE: Final = tuple(bytes((number,)) for number in range(MORE_BYTES))
"""The varints below that."""


class Has:
    """The flags of the first byte: what a message has beside its gaps.

    Plain integers, because & and | of an enum's flags take ten times as long.
    """

    COUNT: Final = 1
    ESTIMATE: Final = 2
    SYMBOLS: Final = 4
    IDS: Final = 8
    SALT: Final = 16
    ALL: Final = COUNT | ESTIMATE | SYMBOLS | IDS | SALT


class FlagBits:
    """The flags of the second byte as integers, likewise."""

    RANGE: Final = MessageFlag.RANGE.value
    CLOSING: Final = MessageFlag.CLOSING.value
    GOES_ON: Final = MessageFlag.GOES_ON.value
    LEFT_OUT: Final = MessageFlag.LEFT_OUT.value
    VERDICTS: Final = (MessageFlag.AGREED | MessageFlag.REFUSED).value
    ALL: Final = sum(MessageFlag)


SAY: Final = tuple(Say)
SAYS: Final = len(SAY)


_TURN_WEIGHT: Final = 96
"""Maximum memory for the bounds and keys of a turn (`weight_of`), as a multiple of a frame of a
MiB, or of our own messages if they may be larger: 1.5 times that of MAX_TURN honest frames."""


class Due(NamedTuple):
    """What the peer may send beside gaps and closings."""

    estimate: bool
    """Symbols with an estimate, and none without: our last turn had an opening or closing."""
    symbols: bool
    """Symbols: our last turn had some."""
    salt: bool
    """Salted fingerprints: enough closings were wrong."""


class PeerTurn:
    """What has been received of the peer's turn."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self._weight = 0
        """About how many bytes of memory its bounds and keys take."""
        self.messages: list[Message] = []

    def add(self, message: Message, due: Due) -> list[bytes]:
        """Take a message, and settle the session's range or end by it; return the keys it lists.

        Raises:
            RemoteProtocolError: it is not due, or not about the range.
        """
        self._check_coded(message, due)
        keys = self._read(message)
        self.messages.append(message)
        return keys

    def _read(self, message: Message) -> list[bytes]:
        """Check a message and settle the range by it; return the keys that it lists."""
        side = self._side
        if message.left_out is not None:
            side.left_out_by_peer = message.left_out.number
        if message.verdict is MessageFlag.AGREED and (side.initiates or side.rounds > 1):
            side.finish()
            return []
        if message.verdict is MessageFlag.REFUSED and side.initiates and side.rounds == 1:
            side.finish_refused()
            return []
        if message.verdict is not None:
            raise RemoteProtocolError(f"peer said {message.verdict.name} to nothing")
        if message.key_range is not None:
            if side.rounds > 1 or self.messages:
                raise RemoteProtocolError("peer changed the range in the middle of the session")
            side.settle_range(message.key_range)
        elif side.asked is None:
            raise RemoteProtocolError("the first message does not say what range it is about")
        return self._keys_of(message.gaps)

    def _keys_of(self, gaps: Gaps) -> list[bytes]:
        """Check that gaps lie in the range, above those before; return their keys.

        Decoding has checked that they ascend, and that no key lies above its gap.
        """
        keys, uppers, key_range = gaps.keys(), gaps.uppers, self._side.key_range
        self._weight += weight_of(uppers) + weight_of(keys)
        if self._weight > _TURN_WEIGHT * max(MIB, self._side.settings.message_bytes):
            raise RemoteProtocolError(f"a turn of {self._weight:,} bytes, written out")
        if key_range is None or not uppers:
            return []
        reached = self.messages[-1].gaps.uppers[-1] if self.messages else key_range.lower
        for upper in (uppers[0], uppers[-1]):
            if upper != END and not reached < upper < key_range.upper:
                raise RemoteProtocolError(f"gap ends outside the range: {upper.hex()}")
        if keys and keys[0] < reached:
            raise RemoteProtocolError(f"key below its gap: {keys[0].hex()}")
        for key in (keys[0], keys[-1]) if keys else ():
            if not key_range.covers(key):
                raise RemoteProtocolError(f"key outside the range: {key.hex()}")
        return keys

    def _check_coded(self, message: Message, due: Due) -> None:
        """Check that a salt, an estimate or symbols come where they are due, and alone.

        Raises:
            RemoteProtocolError: they do not.
        """
        if message.salt is not None and not due.salt:
            raise RemoteProtocolError("peer sent salted fingerprints where none were due")
        if not message.is_coded:
            return
        if self.messages or message.has_gaps_or_ends:
            raise RemoteProtocolError("peer sent symbols beside something else")
        if message.symbols is None or (message.estimate is not None) != due.estimate:
            raise RemoteProtocolError("peer sent symbols, or an estimate, where none was due")
        if message.estimate is None:
            if not due.symbols:
                raise RemoteProtocolError("peer sent symbols where none were due")
            return
        key_range, bounds = self._side.key_range, message.estimate.bounds
        assert key_range is not None
        if bounds and not (key_range.lower < bounds[0] and bounds[-1] < key_range.upper):
            raise RemoteProtocolError("peer's bounds lie outside the range")
