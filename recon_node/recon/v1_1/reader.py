"""Reading messages of `/ceramic/recon/1.1.0` from their bytes. codec.py has their parts.

A front-coded string is usual if its lengths have a byte each and it goes on with a byte above the
one in its place in the string before. Then it is in its shortest form and ascends. The loops over
gaps and keys read such strings themselves, and leave all others to the methods that check each rule
by itself.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from recon_node.ceramic import EventId, EventIdError, event_ids
from recon_node.ipld import VarintError, varint
from recon_node.recon.keys.ranges import KeyRange
from recon_node.recon.side import RemoteProtocolError
from recon_node.recon.v1_1.codec import (
    AGREED,
    ALL_FLAGS,
    END,
    FINGERPRINT,
    FINGERPRINT_SIZE,
    FLAG_CLOSING,
    FLAG_GOES_ON,
    FLAG_LEFT_OUT,
    FLAG_RANGE,
    MAX_BOUND,
    MAX_WEIGHT,
    MIB,
    MORE_BYTES,
    SAY,
    SAYS,
    VERDICTS,
    WEIGHT_OF_EACH,
    Body,
    Gaps,
    LeftOut,
    Message,
    MessageFlag,
    weight_of,
)

_KEYS_A_WEIGHING: Final = 256
"""Keys that are read before their memory is counted."""
_TOO_SHORT: Final = "the message ends too early"


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
        try:
            return self._message()
        except IndexError:  # checking every offset would cost a tenth of the time
            raise _error(len(self._data), _TOO_SHORT) from None

    def _message(self) -> Message:
        raw, at = self._take(0, 1)
        flags = raw[0]
        if flags > ALL_FLAGS:
            raise _error(at, f"unknown flags {flags}")
        key_range = closing = left_out = None
        before = b""
        if flags & FLAG_RANGE:
            before, at = self._event_id(at, b"")
            upper, at = self._event_id(at, before)
            key_range = KeyRange(before, upper)
            if key_range.is_empty:
                raise _error(at, "the range is empty")
        if flags & FLAG_CLOSING:
            closing, at = self._take(at, FINGERPRINT_SIZE)
        if flags & FLAG_LEFT_OUT:
            if not flags & (MessageFlag.CLOSING | MessageFlag.AGREED):
                raise _error(at, "LEFT_OUT without CLOSING or AGREED")
            count, at = self._varint(at)
            if not count:
                raise _error(at, "LEFT_OUT of 0 keys")
            union, at = self._take(at, FINGERPRINT_SIZE)
            left_out = LeftOut(count, union)
        verdict = flags & VERDICTS
        if verdict and flags not in (
            MessageFlag.AGREED,
            MessageFlag.AGREED | MessageFlag.LEFT_OUT,
            MessageFlag.REFUSED,
        ):
            raise _error(at, "AGREED or REFUSED with other flags")
        gaps = self._gaps(at, before)
        if verdict and gaps.uppers:
            raise _error(at, "gaps after AGREED or REFUSED")
        goes_on = bool(flags & FLAG_GOES_ON)
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

        The caller checks that they are EventIDs.
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
            raise _error(at, _TOO_SHORT)
        return self._data[at:end], end


@lru_cache(maxsize=64)
def _bound(string: bytes) -> EventId:
    """Check a bound of a session's range. Most sessions are about the same few ranges."""
    return EventId(string)


def _error(at: int, what: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"message does not parse before byte {at}: {what}")
