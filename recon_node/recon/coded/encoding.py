"""From the bytes of messages of `/ceramic/recon/1.2.0` to the messages (messages.py), and back.

A front-coded string is usual if its lengths have a byte each and it goes on with a byte above the
one in its place in the string before. Then it is in its shortest form and ascends. The loops over
gaps and keys read such strings themselves, and leave all others to the methods that check each rule
by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import islice
from operator import ge
from typing import Final

import numpy as np

from recon_node.ceramic import EventId, EventIdError, event_ids
from recon_node.ipld import VarintError, decode_varint, encode_varint
from recon_node.recon.coded.messages import (
    AGREED,
    CLOSING_SIZE,
    END,
    FINGERPRINT,
    FINGERPRINT_SIZE,
    HINT_SIZE,
    KEYS,
    LACKING,
    MAX_BOUND,
    MAX_HINTED_PARTS,
    MAX_WEIGHT,
    MIB,
    MORE_BYTES,
    ONE_BYTE,
    SALT_SIZE,
    SAY,
    SAYS,
    WEIGHT_OF_EACH,
    WEIGHT_OF_LIST,
    Body,
    Estimate,
    FlagBits,
    Gaps,
    Has,
    LeftOut,
    Listed,
    Message,
    MessageFlag,
    has_ids,
    weight_of,
)
from recon_node.recon.keys.ordered_keys import KeyRange, common_prefix
from recon_node.recon.keys.sums import ID_SIZE, MAX_SYMBOLS, NO_IDS, TABLE_SIZE, Ids, Symbols
from recon_node.recon.session import RemoteProtocolError

_KEYS_A_WEIGHING: Final = 256
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
    return _MessageReader(data).message()


class _MessageReader:
    """Reads one message from its bytes, from left to right.

    Each method takes the offset to read at, and returns the offset after what it has read.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._spare = MAX_WEIGHT * max(MIB, len(data))
        """How much more the message may weigh."""

    def message(self) -> Message:
        try:
            return self._message()
        except IndexError:  # checking every offset would cost a tenth of the time
            raise _error(len(self._data), _TOO_SHORT) from None

    def _message(self) -> Message:
        raw, at = self._take(0, 1)
        coded = raw[0]
        if coded > Has.ALL:
            raise _error(at, f"unknown flags {coded}")
        count = estimate = symbols = salt = None
        listed: Sequence[Listed] = ()
        if coded & Has.COUNT:
            count, at = self._varint(at)
        if coded & Has.ESTIMATE:
            estimate, at = self._estimate(at)
        if coded & Has.SYMBOLS:
            symbols, at = self._symbols(at)
        if coded & Has.IDS:
            listed, at = self._listed(at)
        if coded & Has.SALT:
            salt, at = self._take(at, SALT_SIZE)
        raw, at = self._take(at, 1)
        flags = raw[0]
        if flags > FlagBits.ALL:
            raise _error(at, f"unknown flags {flags}")
        key_range = closing = left_out = None
        before = b""
        if flags & FlagBits.RANGE:
            before, at = self._event_id(at, b"")
            upper, at = self._event_id(at, before)
            key_range = KeyRange(before, upper)
            if key_range.is_empty:
                raise _error(at, "the range is empty")
        if flags & FlagBits.CLOSING:
            closing, at = self._take(at, CLOSING_SIZE)
        if flags & FlagBits.LEFT_OUT:
            left_out, at = self._left_out(at, flags)
        verdict = flags & FlagBits.VERDICTS
        if verdict and flags not in (
            MessageFlag.AGREED,
            MessageFlag.AGREED | MessageFlag.LEFT_OUT,
            MessageFlag.REFUSED,
        ):
            raise _error(at, "AGREED or REFUSED with other flags")
        gaps = self._gaps(at, before)
        if verdict and gaps.uppers:
            raise _error(at, "gaps after AGREED or REFUSED")
        goes_on = bool(flags & FlagBits.GOES_ON)
        if goes_on and (closing is not None or not gaps.uppers or gaps.uppers[-1] == END):
            raise _error(len(self._data), "GOES_ON at the end of the turn")
        if coded & Has.IDS:
            self._check_listed(gaps, listed)
        return Message(
            key_range,
            gaps,
            closing,
            MessageFlag(verdict) if verdict else None,
            goes_on,
            left_out,
            count,
            estimate,
            symbols,
            listed,
            salt,
        )

    def _estimate(self, at: int) -> tuple[Estimate, int]:
        table, at = self._take(at, TABLE_SIZE)
        number, at = self._varint(at, MAX_HINTED_PARTS - 1)
        shared, at = self._varint(at, MAX_BOUND)
        head, at = self._take(at, shared)
        data, bounds = self._data, list[bytes]()
        for _ in range(number):
            size, start = data[at], at + 1
            if size >= MORE_BYTES or shared + size > MAX_BOUND:
                size, start = self._varint(at, MAX_BOUND - shared)
            at = start + size
            bounds.append(head + data[start:at])
        if any(map(ge, bounds, islice(bounds, 1, None))):
            raise _error(at, "bounds of parts out of order")
        if shared != shared_by(bounds):
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
        number, at = self._varint(at, self._spare // WEIGHT_OF_LIST)
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
        says = [say for say in gaps.says if say is KEYS or say is LACKING]
        for say, (_, wanted) in zip(says, listed, strict=True):
            if say is KEYS and len(wanted):
                raise _error(end, "asks for keys beside a list of all keys")

    def _left_out(self, at: int, flags: int) -> tuple[LeftOut, int]:
        if not flags & (MessageFlag.CLOSING | MessageFlag.AGREED):
            raise _error(at, "LEFT_OUT without CLOSING or AGREED")
        count, at = self._varint(at)
        if not count:
            raise _error(at, "LEFT_OUT of 0 keys")
        union, at = self._take(at, CLOSING_SIZE)
        return LeftOut(count, union), at

    def _gaps(self, at: int, before: bytes) -> Gaps:
        """Read the gaps, which reach to the end of the message."""
        data, end = self._data, len(self._data)
        gaps = Gaps()
        uppers, says, bodies = gaps.uppers, gaps.says, gaps.bodies
        body: Body
        while at < end:
            if before == END and uppers:
                raise _error(at, "bytes follow the last gap")
            head, size, start = data[at], data[at + 1], at + 2
            shared = head // SAYS
            if (
                (head | size) < MORE_BYTES
                and shared < len(before)
                and size
                and data[start] > before[shared]
            ):
                at = start + size
                upper = before[:shared] + data[start:at]
            else:
                head, at = self._varint(at)
                upper, at = self._string(at, before, head // SAYS)
                if upper <= before and upper != END:
                    raise _error(at, "bounds out of order")
            say = SAY[head % SAYS]
            if say is FINGERPRINT:
                body = data[at : at + FINGERPRINT_SIZE]
                at += FINGERPRINT_SIZE
            elif say is AGREED:
                body = b""
            else:
                body, at = self._keys(at, before, upper)
            self._charge(at, len(upper) + WEIGHT_OF_EACH)
            uppers.append(upper)
            says.append(say)
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
        for _ in range(min(number - read, _KEYS_A_WEIGHING)):
            shared, size, start = data[at], data[at + 1], at + 2
            whole = len(before)
            if (
                (shared | size) < MORE_BYTES
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
    return RemoteProtocolError(f"message does not parse before byte {at}: {what}")


def encode_message(message: Message) -> bytes:
    """Encode a message as the bytes of one frame."""
    coded, parts = _encode_coded(message)
    flags, at = 0, len(parts)
    before = b""
    if message.key_range is not None:
        flags |= FlagBits.RANGE
        before, upper = message.key_range
        parts += [_front_code(b"", before), _front_code(before, upper)]
    if message.closing is not None:
        flags |= FlagBits.CLOSING
        parts.append(message.closing)
    if message.left_out is not None:
        flags |= FlagBits.LEFT_OUT
        parts += [encode_varint(message.left_out.number), message.left_out.digest]
    if message.verdict is not None:
        flags |= message.verdict.value
    if message.goes_on:
        flags |= FlagBits.GOES_ON
    parts.insert(at, bytes((flags,)))
    _write_gaps(parts, before, message.gaps)
    return bytes((coded,)) + b"".join(parts)


def _encode_coded(message: Message) -> tuple[int, list[bytes]]:
    """Return the flags of the first byte, and what they are about."""
    flags, parts = 0, list[bytes]()
    if message.count is not None:
        flags |= Has.COUNT
        parts.append(encode_varint(message.count))
    if message.estimate is not None:
        flags |= Has.ESTIMATE
        parts.append(_encode_estimate(message.estimate))
    if message.symbols is not None:
        flags |= Has.SYMBOLS
        sums, checks, counts = message.symbols
        parts.append(encode_varint(len(sums)))
        parts += [sums.astype("<u8").tobytes(), checks.astype("<u4").tobytes(), counts.tobytes()]
    if has_ids(message.listed):
        flags |= Has.IDS
        parts.append(encode_varint(len(message.listed)))
        for ids, wanted in message.listed:
            parts += [_encode_ids(ids), _encode_ids(wanted)]
    if message.salt is not None:
        flags |= Has.SALT
        parts.append(message.salt)
    return flags, parts


def _encode_estimate(estimate: Estimate) -> bytes:
    table, bounds, hints = estimate
    shared = shared_by(bounds)
    head = bounds[0][:shared] if bounds else b""
    rests = list[bytes]()
    for bound in bounds:
        size = len(bound) - shared
        rests += (ONE_BYTE[size] if size < MORE_BYTES else encode_varint(size), bound[shared:])
    number = encode_varint(len(bounds)) + encode_varint(shared)
    return b"".join([table, number, head, *rests, *hints])


def shared_by(bounds: Sequence[bytes]) -> int:
    """Return how many bytes all of some bounds begin with, which ascend."""
    return common_prefix(bounds[0], bounds[-1]) if bounds else 0


def _encode_ids(ids: Ids) -> bytes:
    return encode_varint(len(ids)) + ids.astype("<u8").tobytes()


def _write_gaps(parts: list[bytes], before: bytes, gaps: Gaps) -> None:
    """Append the bytes of some gaps, the first of which starts at the bound `before`.

    This and reading them take most of the time of a message: the usual cases of
    `_front_code` and of its counterpart are written out in the loops.
    """
    for upper, say, body in gaps.columns():
        shared = common_prefix(before, upper)
        head, size = shared * SAYS + say, len(upper) - shared
        if head < MORE_BYTES and size < MORE_BYTES:
            parts += (ONE_BYTE[head], ONE_BYTE[size], upper[shared:])
        else:
            parts.append(_front_code(before, upper, say, SAYS))
        if say is FINGERPRINT or say is AGREED:
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
        if size < MORE_BYTES:
            parts += (ONE_BYTE[shared], ONE_BYTE[size - shared], key[shared:])
        else:
            parts.append(_front_code(before, key))
        before, size_before, number_before = key, size, number


def _front_code(before: bytes, string: bytes, below: int = 0, radix: int = 1) -> bytes:
    """Write the length shared with the string before (radix * length + below), and the rest."""
    shared = common_prefix(before, string)
    head, size = shared * radix + below, len(string) - shared
    return encode_varint(head) + encode_varint(size) + string[shared:]


_from_bytes: Final = int.from_bytes
