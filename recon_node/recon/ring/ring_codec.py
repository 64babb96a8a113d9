"""Messages of `/ceramic/recon/0.1.0`, as ceramic-one 0.58 writes them.

A stream carries CBOR values one after the other, with nothing between them:

    {"sync_id"?: text, "body": body}

    initiator's bodies                        responder's bodies
    {"InterestRequest": [interest ...]}       {"InterestResponse": [interest ...]}
    {"RangeRequest": range}                   {"RangeResponse": [range ...]}
    {"Value": {"key", "value"}}               {"Value": {"key", "value"}}
    "Finished"

    interest = {"start", "end"}               both ends are open
    range    = {"first", "hash", "last"}      `first` is in the range, `last` is not
    hash     = {"hash": 32 bytes, or none for no keys, "count"}

Keys and bounds are byte strings on the model ring and text on the peer ring. A value is an array of
integers, one a byte. Fields may come in any order, lengths must be definite.

The reader is ours, and not a CBOR library, because it has to find the end of a value in bytes that
are still arriving, and must not build what a hostile peer describes before its size is checked. A
message whose end has not come is read again from its start when more bytes are here. A peer may
send them one by one, so the items of a list, of which there can be millions, are read only once.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeAlias, TypeVar

from recon_node.ipld import dag_cbor
from recon_node.recon.actions import Value
from recon_node.recon.keys.ordered_keys import KeyRange, Summary
from recon_node.recon.keys.sha256a import DIGEST_SIZE, ZERO, Sha256a
from recon_node.recon.session import RemoteProtocolError


class KeyForm(Enum):
    """How a ring writes its keys and bounds: the CBOR major type."""

    BYTES = 2
    """The model ring's."""
    TEXT = 3
    """The peer ring's."""


@dataclass(frozen=True, slots=True)
class RangeHash:
    """A half-open range of keys with what the sender holds there."""

    first: bytes
    summary: Summary
    last: bytes


@dataclass(frozen=True, slots=True)
class InterestRequest:
    """The initiator's interests."""

    interests: tuple[KeyRange, ...]


@dataclass(frozen=True, slots=True)
class InterestResponse:
    """The overlaps of the responder's interests with the initiator's."""

    interests: tuple[KeyRange, ...]


@dataclass(frozen=True, slots=True)
class RangeRequest:
    """The initiator's state of a range. It is answered by exactly one RangeResponse."""

    range: RangeHash


@dataclass(frozen=True, slots=True)
class RangeResponse:
    """The range where the sides agree, its parts where they differ, or nothing after values."""

    ranges: tuple[RangeHash, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    """The initiator's last message."""


Message: TypeAlias = (
    InterestRequest | InterestResponse | RangeRequest | RangeResponse | Value | Finished
)

UINT, BYTES, TEXT, ARRAY, MAP = 0, 2, 3, 4, 5
"""CBOR major types (RFC 8949, section 3.1)."""
LARGEST_IN_HEAD: Final = 23
"""Numbers up to this one stand in the head's own byte."""
ONE_BYTE_FOLLOWS: Final = 24
"""The head's low bits where the number stands in one more byte; 25, 26 and 27: two, four, eight."""


def encode(message: Message, keys: KeyForm, sync_id: str | None = None) -> bytes:
    """Encode a message, byte for byte as ceramic-one does.

    The initiator chooses `sync_id`, and the responder echoes it.
    """
    start = _head(MAP, 1)
    if sync_id is not None:
        start = _head(MAP, 2) + _text("sync_id") + _text(sync_id)
    return start + _text("body") + _encode_body(message, keys)


def _encode_body(message: Message, keys: KeyForm) -> bytes:
    if isinstance(message, Finished):
        return _text("Finished")
    if isinstance(message, InterestRequest | InterestResponse):
        content = _array(_encode_interest(interest, keys) for interest in message.interests)
    elif isinstance(message, RangeRequest):
        content = _encode_range(message.range, keys)
    elif isinstance(message, RangeResponse):
        content = _array(_encode_range(range_hash, keys) for range_hash in message.ranges)
    else:
        integers = dag_cbor.encode(list(message.value))  # a canonical encoding, as serde's is
        content = _struct(key=_string(message.key, keys), value=integers)
    return _head(MAP, 1) + _text(type(message).__name__) + content


def _encode_interest(interest: KeyRange, keys: KeyForm) -> bytes:
    return _struct(start=_string(interest.lower, keys), end=_string(interest.upper, keys))


def _encode_range(range_hash: RangeHash, keys: KeyForm) -> bytes:
    digest = range_hash.summary.hash.digest if range_hash.summary.count else b""
    summary = _struct(
        hash=_head(BYTES, len(digest)) + digest, count=_head(UINT, range_hash.summary.count)
    )
    return _struct(
        first=_string(range_hash.first, keys), hash=summary, last=_string(range_hash.last, keys)
    )


def _struct(**fields: bytes) -> bytes:
    named = b"".join(_text(name) + content for name, content in fields.items())
    return _head(MAP, len(fields)) + named


def _array(items: Iterable[bytes]) -> bytes:
    items = list(items)
    return _head(ARRAY, len(items)) + b"".join(items)


def _string(data: bytes, keys: KeyForm) -> bytes:
    return _head(keys.value, len(data)) + data


def _text(text: str) -> bytes:
    data = text.encode()
    return _head(TEXT, len(data)) + data


def _head(major: int, number: int) -> bytes:
    if number <= LARGEST_IN_HEAD:
        return bytes([major << 5 | number])
    size = 1 << max(0, (number.bit_length() - 1).bit_length() - 3)  # 1, 2, 4 or 8 bytes
    low = ONE_BYTE_FOLLOWS + size.bit_length() - 1
    return bytes([major << 5 | low]) + number.to_bytes(size, "big")


MAX_BOUND: Final = 4096
"""Maximum bytes of a key or a bound; an EventId has about 65, a signed peer entry some 600."""
MAX_INTERESTS: Final = 10_000
"""Maximum interests in one message."""
MAX_RANGES: Final = 256
"""Maximum ranges in one RangeResponse; ceramic-one sends at most 5."""
MAX_SYNC_ID: Final = 128
"""Maximum bytes of a sync id; it is a UUID of 36."""
MAX_VALUE: Final = 2 << 20
"""Maximum bytes of a value: twice the largest event that is admitted."""
MAX_MESSAGE: Final = 2 * MAX_VALUE + 2 * MAX_BOUND
"""Maximum bytes of a message: each byte of a value takes two where it is above 23."""

_MAX_NAME: Final = 32
"""Maximum bytes of a field's or a body's name."""

_NAME_OF_MAJOR: Final = {
    UINT: "an unsigned integer",
    BYTES: "a byte string",
    TEXT: "text",
    ARRAY: "an array",
    MAP: "a map",
}
_EIGHT_BYTES_FOLLOW: Final = 27
_PIECE: Final = 16 * 1024
"""Bytes of a value that are waited for before it is read on."""
_SMALL_INTEGERS: Final = re.compile(rb"(?:[\x00-\x17]++|(?:\x18[\x18-\xff])++)*+")
"""A run of integers from 0 to 255, each in its shortest form. No other data item starts so."""


class Decoder:
    """Reads one side's messages from a stream's bytes as they arrive."""

    def __init__(self, keys: KeyForm, *, from_initiator: bool) -> None:
        self._keys = keys
        self._from_initiator = from_initiator
        self._buffer = bytearray()
        self._needed = 1
        """Bytes that the next message has at least."""
        self._progress = _Progress()
        self.sync_id: str | None = None
        """The session's id, from the last message that had one."""

    @property
    def buffered(self) -> int:
        """Bytes of the message that is arriving; none between two messages."""
        return len(self._buffer) + len(self._progress.value)

    def feed(self, data: bytes) -> Iterator[Message]:
        """Take some bytes; yield the messages that they complete.

        Raises:
            RemoteProtocolError: the bytes are not a message of that side, or it is too large.
        """
        self._buffer += data
        while len(self._buffer) >= self._needed:
            reader = _PieceReader(self._buffer, self._progress, self._keys, self._from_initiator)
            try:
                message = reader.message()
            except _IncompleteError as error:
                self._wait_for(error.needed)
                return
            self._wait_for(1, read=reader.position)
            self.sync_id = reader.sync_id or self.sync_id
            yield message

    def _wait_for(self, needed: int, read: int = 0) -> None:
        if max(needed, read) > MAX_MESSAGE:
            raise RemoteProtocolError(
                f"the peer sent a message of at least {max(needed, read)} bytes; the limit is "
                f"{MAX_MESSAGE} bytes"
            )
        if read:
            del self._buffer[:read]
            self._progress = _Progress()
        self._needed = needed


class _IncompleteError(Exception):
    """The bytes end within a message, which has at least `needed` bytes."""

    def __init__(self, needed: int) -> None:
        super().__init__(needed)
        self.needed = needed


class _Progress:
    """How much of the list of the arriving message was read; a message has at most one list."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self.value = bytearray()
        """Its items, if they are the bytes of a value."""
        self.position = 0
        """Behind the last item."""


_T = TypeVar("_T")


class _PieceReader:
    """Reads one message from the start of some bytes."""

    def __init__(
        self, data: bytearray, progress: _Progress, keys: KeyForm, from_initiator: bool
    ) -> None:
        self._data = data
        self._progress = progress
        self._keys = keys
        self.position = 0
        self.sync_id: str | None = None
        bodies: dict[str, Callable[[], Message]] = {"Value": self._value}
        if from_initiator:
            bodies["InterestRequest"] = lambda: InterestRequest(self._interests())
            bodies["RangeRequest"] = lambda: RangeRequest(self._range())
        else:
            bodies["InterestResponse"] = lambda: InterestResponse(self._interests())
            bodies["RangeResponse"] = lambda: RangeResponse(
                self._list("ranges", MAX_RANGES, self._range)
            )
        self._bodies = bodies
        self._may_finish = from_initiator

    def message(self) -> Message:
        """Read the whole message.

        Raises:
            RemoteProtocolError: it is not a message that the peer sends in its role.
            _IncompleteError: the bytes end within it.
        """
        fields = self._struct("a message", {"body": self._body}, {"sync_id": self._sync_id})
        self.sync_id = fields.get("sync_id")
        body: Message = fields["body"]
        return body

    def _sync_id(self) -> str:
        return self._string(TEXT, "a sync id", MAX_SYNC_ID).decode("utf-8", "replace")

    def _body(self) -> Message:
        major, size = self._head("a body")
        if major == TEXT:
            unit = self._take(size, "a body's name", _MAX_NAME)
            if unit == b"Finished" and self._may_finish:
                return Finished()
            raise self._error(f"a body named {unit!r}")
        if (major, size) != (MAP, 1):
            raise self._error("a body that is not a map with one entry")
        name = self._name()
        if name not in self._bodies:
            raise self._error(f"a body named {name!r}")
        return self._bodies[name]()

    def _interests(self) -> tuple[KeyRange, ...]:
        return self._list("interests", MAX_INTERESTS, self._interest)

    def _interest(self) -> KeyRange:
        fields = self._struct("an interest", {"start": self._key, "end": self._key})
        return KeyRange(fields["start"], fields["end"])

    def _range(self) -> RangeHash:
        fields = self._struct(
            "a range", {"first": self._key, "hash": self._summary, "last": self._key}
        )
        if fields["first"] >= fields["last"]:
            raise self._error("a range whose bounds do not ascend")
        return RangeHash(fields["first"], fields["hash"], fields["last"])

    def _summary(self) -> Summary:
        fields = self._struct("a hash", {"hash": self._digest, "count": self._count})
        digest, count = fields["hash"], fields["count"]
        if bool(digest) != bool(count):
            raise self._error(f"a hash of {len(digest)} bytes for {count} keys")
        return Summary(Sha256a(digest) if digest else ZERO, count)

    def _digest(self) -> bytes:
        digest = self._string(BYTES, "a hash", DIGEST_SIZE)
        if len(digest) not in (0, DIGEST_SIZE):
            raise self._error(f"a hash of {len(digest)} bytes")
        return digest

    def _count(self) -> int:
        return self._head_of(UINT, "a count")

    def _key(self) -> bytes:
        key = self._string(self._keys.value, "a key", MAX_BOUND)
        if self._keys is KeyForm.TEXT:
            try:
                key.decode()
            except UnicodeDecodeError:
                raise self._error("a key that is not UTF-8") from None
        return key

    def _value(self) -> Value:
        fields = self._struct("a value", {"key": self._key, "value": self._byte_array})
        return Value(fields["key"], fields["value"])

    def _byte_array(self) -> bytes:
        """Read an array of integers, one a byte."""
        size = self._head_of(ARRAY, "a value")
        if size > MAX_VALUE:
            raise self._error(f"a value of {size} bytes; the limit is {MAX_VALUE}")
        progress = self._progress
        self.position = max(self.position, progress.position)
        run = _SMALL_INTEGERS.match(self._data, self.position)
        integers = run.group() if run else b""
        # Aligned as they are, two bytes 18 18 are the number 24, and any other 18 is a prefix.
        parts = integers.split(b"\x18\x18")
        progress.value += b"\x18".join([part.replace(b"\x18", b"") for part in parts])
        progress.position = self.position = self.position + len(integers)
        missing = size - len(progress.value)
        if missing == 0:
            return bytes(progress.value)
        if missing > 0 and len(self._data) - self.position <= 1:  # perhaps half an integer
            raise _IncompleteError(len(self._data) + min(missing, _PIECE))
        raise self._error(f"a value that is not an array of {size} integers from 0 to 255")

    def _list(self, what: str, limit: int, read: Callable[[], _T]) -> tuple[_T, ...]:
        size = self._head_of(ARRAY, what)
        if size > limit:
            raise self._error(f"{size} {what} in one message; the limit is {limit}")
        progress = self._progress
        if progress.items:
            self.position = progress.position
        while len(progress.items) < size:
            progress.items.append(read())
            progress.position = self.position
        return tuple(progress.items)

    def _struct(
        self,
        what: str,
        required: dict[str, Callable[[], Any]],
        optional: dict[str, Callable[[], Any]] | None = None,
    ) -> dict[str, Any]:
        readers = required | (optional or {})
        fields: dict[str, Any] = {}
        size = self._head_of(MAP, what)
        if not len(required) <= size <= len(readers):
            raise self._error(f"{what} with {size} fields")
        for _ in range(size):
            name = self._name()
            if name not in readers or name in fields:
                raise self._error(f"{what} with an unknown or repeated field {name!r}")
            fields[name] = readers[name]()
        if missing := required.keys() - fields.keys():
            raise self._error(f"{what} without the field {min(missing)!r}")
        return fields

    def _name(self) -> str:
        return self._string(TEXT, "a name", _MAX_NAME).decode("utf-8", "replace")

    def _string(self, major: int, what: str, limit: int) -> bytes:
        return self._take(self._head_of(major, what), what, limit)

    def _take(self, size: int, what: str, limit: int) -> bytes:
        if size > limit:
            raise self._error(f"{what} of {size} bytes; the limit is {limit}")
        self._need(size)
        self.position += size
        return bytes(self._data[self.position - size : self.position])

    def _head_of(self, major: int, what: str) -> int:
        actual, number = self._head(what)
        if actual != major:
            raise self._error(f"{what} that is not {_NAME_OF_MAJOR[major]}")
        return number

    def _head(self, what: str) -> tuple[int, int]:
        """Read the head of a data item: its major type, and its number, size or length."""
        self._need(1)
        first = self._data[self.position]
        self.position += 1
        low = first & 0x1F
        if low <= LARGEST_IN_HEAD:
            return first >> 5, low
        if low > _EIGHT_BYTES_FOLLOW:
            raise self._error(f"{what} of indefinite length")
        size = 1 << (low - ONE_BYTE_FOLLOWS)
        self._need(size)
        self.position += size
        number = int.from_bytes(self._data[self.position - size : self.position], "big")
        return first >> 5, number

    def _need(self, size: int) -> None:
        if self.position + size > len(self._data):
            raise _IncompleteError(self.position + size)

    def _error(self, what: str) -> RemoteProtocolError:
        return RemoteProtocolError(
            f"the peer sent {what}, before byte {self.position} of a message"
        )
