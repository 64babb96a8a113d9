"""Messages of `/ceramic/recon/1.2.0`, and their bytes. docs/wire.md has the layout.

The range is stated once and then implied. The bound that splits a gap is the shortest string that
separates two keys: a few bytes instead of an EventId. Bounds and keys are front-coded, and a list
may have ids in the place of some keys or of all: 8 bytes instead of some 57. A gap on which the
sides agree carries nothing, and one that differs a fingerprint of 16 bytes. Half a sha256 is
enough, because it only decides what to look at more closely. What ends a session is the digest of
an LtHash.

A front-coded string is usual if its lengths have a byte each and it goes on with a byte above the
one in its place in the string before. Then it is in its shortest form and ascends. The loops over
gaps and keys read such strings themselves, and leave all others to the methods that check each rule
by itself.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from functools import lru_cache
from hashlib import sha256
from itertools import islice
from operator import ge
from typing import Final, NamedTuple

import numpy as np

from recon_node.ceramic import EventId, EventIdError, event_ids
from recon_node.ipld import VarintError, decode_varint, encode_varint
from recon_node.recon.keys.key_hashes import ID_SIZE, NO_IDS, Ids
from recon_node.recon.keys.ordered_keys import KeyRange, common_prefix
from recon_node.recon.keys.sha256a import COUNT_SHIFT, fold
from recon_node.recon.keys.sketch import MAX_SYMBOLS, TABLE_SIZE, Symbols
from recon_node.recon.session import RemoteProtocolError

FINGERPRINT_SIZE: Final = 16
"""Bytes of a fingerprint."""
RANGE_DIGEST_SIZE: Final = 32
"""Bytes of the digest of an LtHash."""
SALT_SIZE: Final = 16
HINT_SIZE: Final = 4
"""Bytes of a fingerprint that are sent as a hint."""
_MAX_HINTED_PARTS: Final = 256
"""Maximum parts of a range that an estimate has hints of."""
SYMBOL_SIZE: Final = 13
"""Bytes of a symbol: 8 of the sum, 4 of the check, 1 of the count."""
MAX_BOUND: Final = 256
"""Maximum bytes of a bound; an EventId has about 62."""
MIB: Final = 1 << 20
MAX_WEIGHT: Final = 16
"""Maximum bytes of memory (`weight_of`) that a message may take for each byte of its own, or of a
MiB if it is shorter: four times what an honest one takes."""
_WEIGHT_PER_STRING: Final = 64
"""Bytes of memory that a bound, a fingerprint or a key takes on top of its own, in CPython."""
_WEIGHT_PER_LIST: Final = 300
"""Bytes of memory that the ids of a gap take on top of their own."""
END: Final = b""
"""Upper bound of a gap that reaches to the end of the session's range."""


class Mode(IntEnum):
    """How a message covers a gap (the term is negentropy's)."""

    SKIP = 0
    """Nothing: the sides agree on the gap."""
    FINGERPRINT = 1
    """The fingerprint of the sender's keys in it."""
    KEYS = 2
    """All keys that the sender holds in it, perhaps none: list those that I lack."""
    LACKING = 3
    """Keys in it that the receiver lacks: with these, the sides agree on it."""


# Looking a member up in its class takes as long as a call.
SKIP: Final = Mode.SKIP
FINGERPRINT: Final = Mode.FINGERPRINT
KEYS: Final = Mode.KEYS
LACKING: Final = Mode.LACKING

Body = bytes | tuple[bytes, ...]
"""What a gap carries, by its `Mode`: a fingerprint, some keys, or the empty string."""
NO_KEYS: Final[tuple[bytes, ...]] = ()


@dataclass(slots=True)
class Gaps:
    """The gaps of a message, ascending, in three lists of equal length.

    A gap has the keys from the previous bound (inclusive) to its own (exclusive). There may be a
    hundred thousand. As objects they would cost the garbage collector more time than the answer
    takes, because it visits the whole key store whenever many objects are made.
    """

    uppers: list[bytes] = field(default_factory=list)
    modes: list[Mode] = field(default_factory=list)
    bodies: list[Body] = field(default_factory=list)

    def append(self, upper: bytes, mode: Mode, body: Body = b"") -> None:
        """Add a gap above the others."""
        self.uppers.append(upper)
        self.modes.append(mode)
        self.bodies.append(body)

    def columns(self) -> Iterator[tuple[bytes, Mode, Body]]:
        """Iterate over the upper bounds, modes and bodies of the gaps."""
        return zip(self.uppers, self.modes, self.bodies, strict=True)

    def keys(self) -> list[bytes]:
        """Return the keys of all gaps."""
        return [key for body in self.bodies if isinstance(body, tuple) for key in body]

    def lists(self) -> int:
        """Return how many gaps are KEYS or LACKING."""
        return self.modes.count(KEYS) + self.modes.count(LACKING)


class Conclusion(IntEnum):
    """How a message ends the session, as one of its `flags`."""

    AGREED = 4
    """The session is done; nothing follows."""
    REFUSED = 8
    """The sender has no interest in the range asked for; nothing follows."""


class LeftOut(NamedTuple):
    """The keys that the receiver listed and the sender left out (`Side.left_out`)."""

    number: int
    digest: bytes
    """Of an LtHash: of the sender's keys in the whole range together with these."""


class Estimate(NamedTuple):
    """About how many keys differ, and where."""

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
    """Of keys that the sender lacks and asks to have in full. Only where a gap is LACKING."""


NOTHING_LISTED: Final = Listed(NO_IDS, NO_IDS)


class TurnKind(Enum):
    """What a turn is about. The values are for error messages."""

    __hash__ = object.__hash__  # Enum's is slow, and each message takes one

    NONE = "nothing"
    DIGEST = "a digest of the whole range"
    """It opens or closes, perhaps with gaps."""
    ESTIMATE = "an estimate"
    """With the first symbols."""
    SYMBOLS = "symbols"
    """As many as the estimate asks for, or half as many again."""
    GAPS = "gaps"


_DIGEST, _GAPS = TurnKind.DIGEST, TurnKind.GAPS  # a lookup in the class is as slow as a call


@dataclass(slots=True)  # not frozen, which takes a microsecond more for each
class Message:
    """A turn, or a part of it. The sides agree on whatever lies above its last gap."""

    key_range: KeyRange | None = None
    gaps: Gaps = field(default_factory=Gaps)
    digest: bytes | None = None
    """The digest of the LtHash of the sender's keys in the whole range: in a message that *opens*
    a session, or *closes*, because its sender has nothing left to ask."""
    conclusion: Conclusion | None = None
    """If there is one, there are no gaps."""
    continues: bool = False
    """Whether the turn continues in another message, whose first gap starts where this one ends."""
    left_out: LeftOut | None = None
    """Keys that the digest, or AGREED, does not count."""
    count: int | None = None
    """How many keys the sender holds in the range: beside an opening, and beside an estimate."""
    estimate: Estimate | None = None
    symbols: Symbols | None = None
    """The sender's first symbols."""
    listed: Sequence[Listed] = ()
    """For each gap that is KEYS or LACKING, in order; or none at all if no gap has ids."""
    salt: bytes | None = None
    """What precedes each key in the fingerprints of this message, if anything."""

    @property
    def kind(self) -> TurnKind:
        """The kind of a turn that ends with this message."""
        if self.estimate is not None:
            return TurnKind.ESTIMATE
        if self.symbols is not None:
            return TurnKind.SYMBOLS
        return _GAPS if self.digest is None else _DIGEST

    @property
    def has_gaps_or_ends(self) -> bool:
        """Whether it has anything that may not stand beside symbols or an estimate."""
        return bool(
            self.key_range
            or self.gaps.uppers
            or self.digest
            or self.conclusion
            or self.continues
            or self.left_out
            or self.salt
        )

    @property
    def asks_by_digest_only(self) -> bool:
        """Whether only its digest is left to answer: it has one, and does not open with a list.

        A message that closes may also list keys that the receiver lacks. The receiver fetches them
        before it compares the digest; if that is wrong then, the answer is about the whole range.
        """
        opens_with_list = self.key_range is not None and bool(self.gaps.uppers)
        return self.digest is not None and not opens_with_list

    def lists(self) -> Sequence[Listed]:
        """Return what each list has beside keys in full."""
        return self.listed or [NOTHING_LISTED] * self.gaps.lists()


def has_ids(listed: Iterable[Listed]) -> bool:
    """Return whether any of these lists has an id in it."""
    return any(len(ids) or len(wanted) for ids, wanted in listed)


def fingerprint(lanes: int) -> bytes:
    """Return the 16-byte fingerprint of the set with these lanes (sha256a.py).

    It is the first half of sha256(Sha256a || varint(count)).
    """
    count = lanes >> COUNT_SHIFT
    number = _ONE_BYTE[count] if count < _MORE_BYTES else encode_varint(count)
    return sha256(fold(lanes) + number).digest()[:FINGERPRINT_SIZE]


def weight_of(strings: Sequence[bytes]) -> int:
    """Return about how many bytes of memory bounds or keys take, without front-coding."""
    return sum(map(len, strings)) + _WEIGHT_PER_STRING * len(strings)


def weigh(message: Message) -> int:
    """Return about how many bytes of memory a message takes."""
    gaps = message.gaps
    weight = weight_of(gaps.uppers) + weight_of(gaps.keys()) + _WEIGHT_PER_STRING * len(gaps.bodies)
    for ids, wanted in message.listed:
        weight += _WEIGHT_PER_LIST + ID_SIZE * (len(ids) + len(wanted))
    if message.symbols is not None:
        weight += SYMBOL_SIZE * len(message.symbols)
    if message.estimate is not None:
        table, bounds, hints = message.estimate
        weight += len(table) + weight_of(bounds) + weight_of(hints)
    return weight


_MORE_BYTES: Final = 0x80
"""From here on a varint takes more than one byte."""
_ONE_BYTE: Final = tuple(bytes((number,)) for number in range(_MORE_BYTES))
"""The varints below that."""


class _Coded:
    """The flags of the byte `coded` (docs/wire.md): what a message has beside its gaps.

    Plain integers, because & and | of an enum's flags take ten times as long.
    """

    COUNT: Final = 1
    ESTIMATE: Final = 2
    SYMBOLS: Final = 4
    IDS: Final = 8
    SALT: Final = 16
    ALL: Final = COUNT | ESTIMATE | SYMBOLS | IDS | SALT


class _Flag:
    """The flags of the byte `flags`, as plain integers, too."""

    RANGE: Final = 1
    """The range that the session is about: in the first message, and where it is trimmed."""
    DIGEST: Final = 2
    """A digest of the whole range."""
    CONCLUSIONS: Final = Conclusion.AGREED | Conclusion.REFUSED
    CONTINUES: Final = 16
    """The turn continues in another message, with gaps above those of this one."""
    LEFT_OUT: Final = 32
    """With DIGEST or AGREED: keys that the receiver listed and the sender left out."""
    ALL: Final = 63


_CONCLUDING: Final = frozenset(
    (Conclusion.AGREED, Conclusion.AGREED | _Flag.LEFT_OUT, Conclusion.REFUSED)
)
"""The `flags` of messages that end a session."""

_MODES: Final = tuple(Mode)
_MODE_COUNT: Final = len(_MODES)

_KEYS_PER_WEIGHING: Final = 256
"""Keys that are read before their memory is counted."""
_TOO_SHORT: Final = "the message ends too early"


def decode_message(data: bytes) -> Message:
    """Decode the bytes of one frame.

    Raises:
        RemoteProtocolError: they are not a message: fields that do not parse or are not in their
            shortest form, keys or bounds that do not ascend, keys that are not EventIds or lie
            outside their gap, numbers of ids, symbols or parts that the message does not have or is
            not allowed to have, ids without a list, bytes after the end, or more to write out than
            `MAX_WEIGHT` allows. The text has the offset.
    """
    try:
        return _MessageReader(data).message()
    except IndexError:  # checking every offset would cost a tenth of the time
        raise _error(len(data), _TOO_SHORT) from None


class _MessageReader:
    """Reads one message from its bytes, from left to right.

    Each method takes the offset to read at, and returns the offset after what it has read.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._spare = MAX_WEIGHT * max(MIB, len(data))
        """How much more the message may weigh."""

    def message(self) -> Message:
        message, coded = Message(), self._data[0]
        if coded > _Coded.ALL:
            raise _error(1, f"unknown flags {coded}")
        at = self._read_coded(message, coded, 1)
        flags = self._data[at]
        if flags > _Flag.ALL:
            raise _error(at + 1, f"unknown flags {flags}")
        at = self._read_ends(message, flags, at + 1)
        gaps = self._gaps(at, b"" if message.key_range is None else message.key_range.lower)
        message.gaps = gaps
        if message.conclusion is not None and gaps.uppers:
            raise _error(at, "gaps after AGREED or REFUSED")
        if flags & _Flag.CONTINUES:
            message.continues = True
            if message.digest is not None or not gaps.uppers or gaps.uppers[-1] == END:
                raise _error(len(self._data), "CONTINUES at the end of the turn")
        if coded & _Coded.IDS:
            self._check_listed(gaps, message.listed)
        return message

    def _read_coded(self, message: Message, coded: int, at: int) -> int:
        """Read what the byte `coded` says is there; return the offset after it."""
        if coded & _Coded.COUNT:
            message.count, at = self._varint(at)
        if coded & _Coded.ESTIMATE:
            message.estimate, at = self._estimate(at)
        if coded & _Coded.SYMBOLS:
            message.symbols, at = self._symbols(at)
        if coded & _Coded.IDS:
            message.listed, at = self._listed(at)
        if coded & _Coded.SALT:
            message.salt, at = self._take(at, SALT_SIZE)
        return at

    def _read_ends(self, message: Message, flags: int, at: int) -> int:
        """Read what opens, closes or ends a session; return the offset after it."""
        if flags & _Flag.RANGE:
            lower, at = self._event_id(at, b"")
            upper, at = self._event_id(at, lower)
            message.key_range = KeyRange(lower, upper)
            if message.key_range.is_empty:
                raise _error(at, "the range is empty")
        if flags & _Flag.DIGEST:
            message.digest, at = self._take(at, RANGE_DIGEST_SIZE)
        if flags & _Flag.LEFT_OUT:
            message.left_out, at = self._left_out(at, flags)
        if flags & _Flag.CONCLUSIONS:
            if flags not in _CONCLUDING:
                raise _error(at, "AGREED or REFUSED with other flags")
            message.conclusion = Conclusion(flags & _Flag.CONCLUSIONS)
        return at

    def _estimate(self, at: int) -> tuple[Estimate, int]:
        table, at = self._take(at, TABLE_SIZE)
        number, at = self._varint(at, _MAX_HINTED_PARTS - 1)
        shared, at = self._varint(at, MAX_BOUND)
        head, at = self._take(at, shared)
        data, bounds = self._data, list[bytes]()
        for _ in range(number):
            size, start = data[at], at + 1
            if size >= _MORE_BYTES or shared + size > MAX_BOUND:
                size, start = self._varint(at, MAX_BOUND - shared)
            at = start + size
            bounds.append(head + data[start:at])
        if any(map(ge, bounds, islice(bounds, 1, None))):
            raise _error(at, "bounds of parts out of order")
        if shared != _shared_by(bounds):
            raise _error(at, "bounds share more or less than said")
        hints, at = self._take(at, HINT_SIZE * (number + 1))
        of_parts = tuple([hints[i : i + HINT_SIZE] for i in range(0, len(hints), HINT_SIZE)])
        return Estimate(table, tuple(bounds), of_parts), at

    def _symbols(self, at: int) -> tuple[Symbols, int]:
        number, at = self._varint(at, MAX_SYMBOLS)
        sums, at = self._take(at, 8 * number)
        checks, at = self._take(at, 4 * number)
        counts, at = self._take(at, number)
        symbols = Symbols(
            np.frombuffer(sums, "<u8").astype(np.uint64),
            np.frombuffer(checks, "<u4").astype(np.uint32),
            np.frombuffer(counts, np.uint8),
        )
        return symbols, at

    def _listed(self, at: int) -> tuple[list[Listed], int]:
        number, at = self._varint(at, self._spare // _WEIGHT_PER_LIST)
        listed = []
        for _ in range(number):
            ids, at = self._ids(at)
            wanted, at = self._ids(at)
            listed.append(Listed(ids, wanted))
        return listed, at

    def _ids(self, at: int) -> tuple[Ids, int]:
        number, at = self._varint(at, len(self._data) // ID_SIZE)
        if not number:
            return NO_IDS, at
        ids, at = self._take(at, ID_SIZE * number)
        return np.frombuffer(ids, "<u8").astype(np.uint64), at

    def _check_listed(self, gaps: Gaps, listed: Sequence[Listed]) -> None:
        """Check that ids fit the gaps that they are for."""
        end = len(self._data)
        if gaps.lists() != len(listed):
            raise _error(end, f"ids for {len(listed)} lists, but {gaps.lists()} lists")
        if not has_ids(listed):
            raise _error(end, "lists of ids without an id in them")
        modes = [mode for mode in gaps.modes if mode is KEYS or mode is LACKING]
        for mode, (_, wanted) in zip(modes, listed, strict=True):
            if mode is KEYS and len(wanted):
                raise _error(end, "asks for keys beside a list of all keys")

    def _left_out(self, at: int, flags: int) -> tuple[LeftOut, int]:
        if not flags & (_Flag.DIGEST | Conclusion.AGREED):
            raise _error(at, "LEFT_OUT without DIGEST or AGREED")
        count, at = self._varint(at)
        if not count:
            raise _error(at, "LEFT_OUT of 0 keys")
        union, at = self._take(at, RANGE_DIGEST_SIZE)
        return LeftOut(count, union), at

    def _gaps(self, at: int, before: bytes) -> Gaps:
        """Read the gaps, which reach to the end of the message."""
        data, end = self._data, len(self._data)
        gaps = Gaps()
        uppers, modes, bodies = gaps.uppers, gaps.modes, gaps.bodies
        body: Body
        while at < end:
            if before == END and uppers:
                raise _error(at, "bytes follow the last gap")
            head, size, start = data[at], data[at + 1], at + 2
            shared = head // _MODE_COUNT
            if (
                (head | size) < _MORE_BYTES
                and shared < len(before)
                and size
                and data[start] > before[shared]
            ):
                at = start + size
                upper = before[:shared] + data[start:at]
            else:
                head, at = self._varint(at)
                upper, at = self._string(at, before, head // _MODE_COUNT)
                if upper <= before and upper != END:
                    raise _error(at, "bounds out of order")
            mode = _MODES[head % _MODE_COUNT]
            if mode is FINGERPRINT:
                body = data[at : at + FINGERPRINT_SIZE]
                at += FINGERPRINT_SIZE
            elif mode is SKIP:
                body = b""
            else:
                body, at = self._keys(at, before, upper)
            self._charge(at, len(upper) + _WEIGHT_PER_STRING)
            uppers.append(upper)
            modes.append(mode)
            bodies.append(body)
            before = upper
        if at > end:
            raise _error(end, _TOO_SHORT)
        return gaps

    def _keys(self, at: int, lower: bytes, upper: bytes) -> tuple[tuple[EventId, ...], int]:
        number, at = self._varint(at)
        keys: list[bytes] = []
        while len(keys) < number:
            at = self._some_keys(at, keys[-1] if keys else lower, keys, number)
        if keys and upper != END and keys[-1] >= upper:
            raise _error(at, "a key outside its gap")
        try:
            return event_ids(keys), at
        except EventIdError as error:
            raise _error(at, str(error)) from error

    def _some_keys(self, at: int, before: bytes, keys: list[bytes], number: int) -> int:
        """Read keys until there are that many, or as many as may be read before they are weighed.

        The caller checks that they are EventIds.
        """
        data, read = self._data, len(keys)
        for _ in range(min(number - read, _KEYS_PER_WEIGHING)):
            shared, size, start = data[at], data[at + 1], at + 2
            whole = len(before)
            if (
                (shared | size) < _MORE_BYTES
                and size
                and (shared == whole or (shared < whole and data[start] > before[shared]))
            ):
                at = start + size
                before = before[:shared] + data[start:at]
            else:
                shared, at = self._varint(at)
                key, at = self._string(at, before, shared)
                if key < before or (key == before and keys):
                    raise _error(at, "keys out of order, or repeated")
                before = key
            keys.append(before)
        self._charge(at, weight_of(keys[read:]))
        return at

    def _charge(self, at: int, weight: int) -> None:
        self._spare -= weight
        if self._spare < 0:
            raise _error(at, "the message takes too much memory when written out")

    def _event_id(self, at: int, before: bytes) -> tuple[EventId, int]:
        shared, at = self._varint(at)
        string, at = self._string(at, before, shared)
        try:
            return _bound(string), at
        except EventIdError as error:
            raise _error(at, str(error)) from error

    def _string(self, at: int, before: bytes, shared: int) -> tuple[bytes, int]:
        """Read the rest of a front-coded string, which must be in its shortest form."""
        data = self._data
        size, at = self._varint(at)
        if shared + size > MAX_BOUND or shared > len(before):
            raise _error(at, f"a bound of {shared} + {size} bytes")
        rest = data[at : at + size]
        at += size
        if at > len(data):
            raise _error(len(data), _TOO_SHORT)
        if shared < len(before):
            if not rest:
                if shared:
                    raise _error(at, "a bound that is a prefix of the one before it")
            elif rest[0] == before[shared]:
                raise _error(at, "a bound shares more with the one before it than it says")
        return before[:shared] + rest, at

    def _varint(self, at: int, most: int | None = None) -> tuple[int, int]:
        first = self._data[at : at + 1]
        if b"" < first < b"\x80":  # the usual case
            number, at = first[0], at + 1
        else:
            try:
                number, at = decode_varint(self._data, at)
            except VarintError as error:
                raise _error(at, str(error)) from error
        if most is not None and number > most:
            raise _error(at, f"{number}, where at most {most} may be")
        return number, at

    def _take(self, at: int, size: int) -> tuple[bytes, int]:
        end = at + size
        if end > len(self._data):
            raise _error(at, _TOO_SHORT)
        return self._data[at:end], end


@lru_cache(maxsize=64)
def _bound(string: bytes) -> EventId:
    """Check a bound of a session's range. Most sessions are about the same few ranges."""
    return EventId(string)


def _error(at: int, what: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"the peer's message does not parse before byte {at}: {what}")


def encode_message(message: Message) -> bytes:
    """Encode a message as the bytes of one frame."""
    coded, parts = _encode_coded(message)
    flags, at = 0, len(parts)
    before = b""
    if message.key_range is not None:
        flags |= _Flag.RANGE
        before, upper = message.key_range
        parts += [_front_code(b"", before), _front_code(before, upper)]
    if message.digest is not None:
        flags |= _Flag.DIGEST
        parts.append(message.digest)
    if message.left_out is not None:
        flags |= _Flag.LEFT_OUT
        parts += [encode_varint(message.left_out.number), message.left_out.digest]
    if message.conclusion is not None:
        flags |= message.conclusion.value
    if message.continues:
        flags |= _Flag.CONTINUES
    parts.insert(at, bytes((flags,)))
    _write_gaps(parts, before, message.gaps)
    return bytes((coded,)) + b"".join(parts)


def _encode_coded(message: Message) -> tuple[int, list[bytes]]:
    """Return the byte `coded`, and the fields that it is about."""
    coded, parts = 0, list[bytes]()
    if message.count is not None:
        coded |= _Coded.COUNT
        parts.append(encode_varint(message.count))
    if message.estimate is not None:
        coded |= _Coded.ESTIMATE
        parts.append(_encode_estimate(message.estimate))
    if message.symbols is not None:
        coded |= _Coded.SYMBOLS
        sums, checks, counts = message.symbols
        parts.append(encode_varint(len(sums)))
        parts += [sums.astype("<u8").tobytes(), checks.astype("<u4").tobytes(), counts.tobytes()]
    if has_ids(message.listed):
        coded |= _Coded.IDS
        parts.append(encode_varint(len(message.listed)))
        for ids, wanted in message.listed:
            parts += [_encode_ids(ids), _encode_ids(wanted)]
    if message.salt is not None:
        coded |= _Coded.SALT
        parts.append(message.salt)
    return coded, parts


def _encode_estimate(estimate: Estimate) -> bytes:
    table, bounds, hints = estimate
    shared = _shared_by(bounds)
    head = bounds[0][:shared] if bounds else b""
    rests = list[bytes]()
    for bound in bounds:
        size = len(bound) - shared
        rests += (_ONE_BYTE[size] if size < _MORE_BYTES else encode_varint(size), bound[shared:])
    number = encode_varint(len(bounds)) + encode_varint(shared)
    return b"".join([table, number, head, *rests, *hints])


def _shared_by(bounds: Sequence[bytes]) -> int:
    """Return how many bytes all of some bounds begin with, which ascend."""
    return common_prefix(bounds[0], bounds[-1]) if bounds else 0


def _encode_ids(ids: Ids) -> bytes:
    return encode_varint(len(ids)) + ids.astype("<u8").tobytes()


def _write_gaps(parts: list[bytes], before: bytes, gaps: Gaps) -> None:
    """Append the bytes of some gaps, the first of which starts at the bound `before`.

    This and reading them take most of the time of a message: the usual cases of
    `_front_code` and of its counterpart are written out in the loops.
    """
    for upper, mode, body in gaps.columns():
        shared = common_prefix(before, upper)
        head, size = shared * _MODE_COUNT + mode, len(upper) - shared
        if head < _MORE_BYTES and size < _MORE_BYTES:
            parts += (_ONE_BYTE[head], _ONE_BYTE[size], upper[shared:])
        else:
            parts.append(_front_code(before, upper, mode, _MODE_COUNT))
        if mode is FINGERPRINT or mode is SKIP:
            parts.append(body)  # type: ignore[arg-type]
        else:
            _write_keys(parts, before, body)  # type: ignore[arg-type]
        before = upper


def _write_keys(parts: list[bytes], before: bytes, keys: tuple[bytes, ...]) -> None:
    """Append the number of some keys, and the keys. Most are as long as the key before."""
    parts.append(encode_varint(len(keys)))
    size_before = number_before = 0
    for key in keys:
        size, number = len(key), _from_bytes(key)
        if size == size_before:
            shared = size - (((number ^ number_before).bit_length() + 7) >> 3)
        else:
            shared = common_prefix(before, key)
        if size < _MORE_BYTES:
            parts += (_ONE_BYTE[shared], _ONE_BYTE[size - shared], key[shared:])
        else:
            parts.append(_front_code(before, key))
        before, size_before, number_before = key, size, number


def _front_code(before: bytes, string: bytes, below: int = 0, radix: int = 1) -> bytes:
    """Write the length shared with the string before (radix * length + below), and the rest."""
    shared = common_prefix(before, string)
    head, size = shared * radix + below, len(string) - shared
    return encode_varint(head) + encode_varint(size) + string[shared:]


_from_bytes: Final = int.from_bytes
