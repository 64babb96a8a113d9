"""EventIds: the keys that Recon reconciles (CIP-124, "EventIds").

    varint(0xce) varint(0x05) varint(network id)
    separator    last 8 bytes of sha256(sort value)
    controller   last 8 bytes of sha256(controller DID)
    stream       last 4 bytes of the init event's CID
    height       CBOR unsigned int, shortest form: such ints sort bytewise as numbers do
    event CID

They sort by network, sort value, controller, stream, height, so every possible interest is one
open range of keys between two *fenceposts*. A fencepost is a bound that is not a key: an EventId
whose event CID is the empty identity CID, which no event has.

Why every key of an interest lies strictly between its fenceposts, whatever its hashes:
a fencepost's fixed part is zeros (lower) or ff bytes (upper) where the interest says nothing, so
a key's can only equal it or lie inside. If it is equal, height and CID decide. At the lower end the
fencepost has the least height, 0, and its CID `01 55 00 00` sorts before every CID that an event
may have. At the upper end heights stop at 2^64 - 2, one below the fencepost's. And if the bounds
share a prefix, everything between them shares it: varints and hashes are never cut short, so
no key of another network, sort value, controller or stream can be there.
"""

import hashlib
import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import repeat
from typing import Final, NamedTuple, Self

from recon_node.ceramic.errors import EventIdError
from recon_node.ceramic.network import Network
from recon_node.ipld import (
    CID,
    DAG_CBOR,
    IDENTITY,
    RAW,
    IpldError,
    dag_cbor,
    decode_varint,
    encode_varint,
    multibase,
    read_cid,
)

DEFAULT_SORT_KEY: Final = "model"
DAG_SORT_KEY: Final = "dag"
NO_SORT_KEY: Final = ""
_BYTES_KEYS: Final = frozenset({DEFAULT_SORT_KEY, DAG_SORT_KEY, "unique", "context"})
STREAM_ID_CODEC: Final = 0xCE
EVENT_ID_TYPE: Final = 0x05
MAX_HEIGHT: Final = 2**64 - 2
FENCEPOST_CID: Final = CID(bytes([0x01, RAW, IDENTITY, 0x00]))

EVENT_ID_HEAD: Final = encode_varint(STREAM_ID_CODEC) + encode_varint(EVENT_ID_TYPE)
_RENDEZVOUS_HEAD: Final = encode_varint(STREAM_ID_CODEC) + encode_varint(DAG_CBOR)
_RENDEZVOUS_HASH: Final = 16
"""Bytes of the sort value's hash in its rendezvous."""
MAX_CACHED_SIZE: Final = 512
"""Characters of a sort value and a controller whose hashes are cached: strangers choose them."""
SHORT_HASH_SIZE: Final = 8
"""Bytes of the sort value's and of the controller's hash."""
_INIT: Final = 4
"""Bytes of the init event's CID."""
FIELDS_SIZE: Final = SHORT_HASH_SIZE + SHORT_HASH_SIZE + _INIT
"""Bytes of the separator, the controller and the stream together."""

# CBOR unsigned ints: up to 23 in the first byte itself, larger ones in 1, 2, 4 or 8 bytes after it.
_CBOR_UINT8: Final = 0x18
_CBOR_UINT64: Final = 0x1B

# What nearly all EventIds look like: any network (a varint), a height below 24, and the CID of a
# DAG-CBOR or DAG-JOSE block by its sha2-256. One match instead of some forty steps.
USUAL_HEAD: Final = (
    re.escape(EVENT_ID_HEAD) + rb"(?:[\x00-\x7f]|[\x80-\xff]{1,8}[\x01-\x7f]).{20}[\x00-\x17]"
)
"""A pattern of all before the event's CID, for `re.DOTALL`."""
_USUAL: Final = re.compile(USUAL_HEAD + rb"\x01(?:\x71|\x85\x01)\x12\x20.{32}", re.DOTALL)

_LOWEST: Final = b"\x00"
_HIGHEST: Final = bytes([_CBOR_UINT64]) + b"\xff" * 8


def network_id_of(bound: bytes) -> int | None:
    """Return the network id in a key, or in the bound of a key range; None if it is too short."""
    if not bound.startswith(EVENT_ID_HEAD):
        return None
    try:
        return decode_varint(bound, len(EVENT_ID_HEAD))[0]
    except IpldError:
        return None


class EventId(bytes):
    """An EventId as its bytes, checked when made; it compares and sorts as they do.

    Raises:
        EventIdError: not an EventId, or bytes after one.
    """

    __slots__ = ()

    def __new__(cls, raw: bytes) -> Self:  # noqa: D102 - the class docstring speaks for it
        if not _USUAL.fullmatch(raw):
            end = _check(raw, 0)
            if end != len(raw):
                raise EventIdError(f"{len(raw) - end} extra bytes after the EventId")
        return bytes.__new__(cls, raw)

    @classmethod
    def build(
        cls,
        network: Network,
        sort_value: str,
        controller: str,
        init_cid: CID,
        height: int,
        event_cid: CID,
    ) -> Self:
        """Build the EventId of an event; its height is 0 or 1 + the largest height of its prevs.

        Raises:
            EventIdError: the height is out of range, or the CID cannot be an event's.
        """
        if not 0 <= height <= MAX_HEIGHT:
            raise EventIdError(f"an event's height is from 0 to 2^64 - 2, not {height}")
        stream = stream_prefix(network, sort_value, controller, init_cid)
        number = bytes((height,)) if height < _CBOR_UINT8 else dag_cbor.encode(height)
        raw = stream + number + event_cid
        if not _USUAL.fullmatch(raw):
            _check_event_cid(event_cid)
        return bytes.__new__(cls, raw)

    @property
    def network_id(self) -> int:
        """The id of the network, as in `Network.id`."""
        return decode_varint(self, len(EVENT_ID_HEAD))[0]

    @property
    def separator(self) -> bytes:
        """The last 8 bytes of the sort value's sha256."""
        start = self._fields_start
        return self[start : start + SHORT_HASH_SIZE]

    @property
    def controller(self) -> bytes:
        """The last 8 bytes of the controller DID's sha256."""
        start = self._fields_start + SHORT_HASH_SIZE
        return self[start : start + SHORT_HASH_SIZE]

    @property
    def stream(self) -> bytes:
        """The last 4 bytes of the init event's CID."""
        start = self._fields_start + 2 * SHORT_HASH_SIZE
        return self[start : start + _INIT]

    @property
    def prefix(self) -> bytes:
        """Everything before the height: the same for all events of a stream."""
        return self[: self._fields_start + FIELDS_SIZE]

    @property
    def height(self) -> int:
        """The longest distance from the init event of the stream."""
        at = self._fields_start + FIELDS_SIZE
        return self[at] if self[at] < _CBOR_UINT8 else _read_height(self, at)[0]

    @property
    def event_cid(self) -> CID:
        """The event's CID; `FENCEPOST_CID` in a fencepost."""
        at = self._fields_start + FIELDS_SIZE
        end = at + 1 if self[at] < _CBOR_UINT8 else _read_height(self, at)[1]
        return bytes.__new__(CID, self[end:])  # checked when this was made

    @property
    def is_fencepost(self) -> bool:
        """Whether this is a bound, not a key."""
        return self.endswith(FENCEPOST_CID) and self.event_cid == FENCEPOST_CID

    @property
    def _fields_start(self) -> int:
        position = len(EVENT_ID_HEAD)
        while self[position] & 0x80:  # the network's id: a varint, checked when this was made
            position += 1
        return position + 1

    def __str__(self) -> str:
        return self.hex()

    def __repr__(self) -> str:
        return f"EventId({self.hex()})"


def scan(data: bytes, offset: int = 0) -> tuple[EventId, int]:
    """Read the EventId at `offset`; return it and the offset after it.

    An EventId delimits itself; the bytes after it are ignored.

    Raises:
        EventIdError: there is no EventId, or the bytes end within it.
    """
    end = _check(data, offset)
    return bytes.__new__(EventId, data[offset:end]), end


def event_ids(raws: Sequence[bytes]) -> tuple[EventId, ...]:
    """Return the EventIds of some events, given their bytes: faster than one by one.

    Raises:
        EventIdError: one is not an EventId, or is a fencepost.
    """
    if all(map(_USUAL.fullmatch, raws)):  # no fencepost looks like that
        return tuple(map(bytes.__new__, repeat(EventId), raws))
    checked = tuple(map(EventId, raws))
    if any(event_id.is_fencepost for event_id in checked):
        raise EventIdError("a fencepost among the keys")
    return checked


def network_range(network: Network) -> tuple[EventId, EventId]:
    """Return the fenceposts around all keys of the network."""
    return _fenceposts(_network_prefix(network.id))


def sort_value_range(network: Network, sort_value: str) -> tuple[EventId, EventId]:
    """Return the fenceposts around all keys with that sort value: of a model's documents, say."""
    return _fenceposts(_network_prefix(network.id) + short_hash(sort_value))


def controller_range(network: Network, sort_value: str, controller: str) -> tuple[EventId, EventId]:
    """Return the fenceposts around all keys with that sort value and controller."""
    return _fenceposts(_stream_prefix(network.id, sort_value, controller))


def stream_range(
    network: Network, sort_value: str, controller: str, init_cid: CID
) -> tuple[EventId, EventId]:
    """Return the fenceposts around all keys of the stream."""
    return _fenceposts(stream_prefix(network, sort_value, controller, init_cid))


def streams_range(first: EventId, last: EventId) -> tuple[EventId, EventId]:
    """Return the fenceposts around all keys of two keys' streams, and of the streams between."""
    return _fenceposts(first.prefix)[0], _fenceposts(last.prefix)[1]


def prefix_range(network: Network, prefix: bytes) -> tuple[EventId, EventId]:
    """Return the fenceposts around all keys of the network whose fields start with some bytes.

    Args:
        network: of the keys.
        prefix: the first bytes of what follows the network id, at most `FIELDS_SIZE`. They may end
            within a field.
    """
    return _fenceposts(_network_prefix(network.id) + prefix)


def rendezvous(network: Network) -> bytes:
    """Return the bytes under which the network's peers find each other.

    CIP-124, "Discover all peers in the same network": an EventId that ends after the network id.
    """
    return _network_prefix(network.id)


def sort_value_rendezvous(network: Network, sort_value: str) -> bytes:
    """Return the bytes under which peers that are interested in a sort value find each other.

    CIP-124, "Discover peers using the same sort-value": `ce 01 71`, the network id, and the last
    16 bytes of sha256(sort value). It is as the CIP has it, although an EventId has `05` and only
    8 bytes there.

    Raises:
        EventIdError: the sort value is not valid Unicode.
    """
    return _RENDEZVOUS_HEAD + encode_varint(network.id) + _hash(sort_value)[-_RENDEZVOUS_HASH:]


def _fenceposts(prefix: bytes) -> tuple[EventId, EventId]:
    """The bounds of all keys that start with `prefix`, which has the network id at least."""
    missing = FIELDS_SIZE + decode_varint(prefix, len(EVENT_ID_HEAD))[1] - len(prefix)
    lower = prefix + bytes(missing) + _LOWEST + FENCEPOST_CID
    upper = prefix + b"\xff" * missing + _HIGHEST + FENCEPOST_CID
    return bytes.__new__(EventId, lower), bytes.__new__(EventId, upper)


def _check(data: bytes, offset: int) -> int:
    """The offset after the EventId that starts at `offset`."""
    usual = _USUAL.match(data, offset)
    if usual is not None:
        return usual.end()
    if data[offset : offset + len(EVENT_ID_HEAD)] != EVENT_ID_HEAD:
        raise EventIdError(
            f"no EventId at byte {offset}: it does not start with {EVENT_ID_HEAD.hex()}"
        )
    try:
        _, position = decode_varint(data, offset + len(EVENT_ID_HEAD))
        position += FIELDS_SIZE
        height, position = _read_height(data, position)
        cid, end = read_cid(data, position)
    except IpldError as error:
        raise EventIdError(f"no EventId at byte {offset}: {error}") from None
    if cid != FENCEPOST_CID:
        _check_event_cid(cid)
        if height > MAX_HEIGHT:
            raise EventIdError(f"the EventId at byte {offset} claims the height {height}")
    return end


def _check_event_cid(cid: CID) -> None:
    """Refuse CIDs that would not lie between fenceposts, and those that do not name a block."""
    if cid <= FENCEPOST_CID or cid.is_v0 or cid.hash_code == IDENTITY:
        raise EventIdError(f"{cid} cannot be the CID of an event")


def _read_height(data: bytes, offset: int) -> tuple[int, int]:
    """Read the CBOR unsigned int at `offset`; return it and the offset after it."""
    first = data[offset : offset + 1]
    if not first:
        raise EventIdError("the bytes end within an EventId, before its height")
    if first[0] < _CBOR_UINT8:
        return first[0], offset + 1
    if first[0] > _CBOR_UINT64:
        raise EventIdError(f"the height at byte {offset} is not a CBOR unsigned int")
    size = 1 << (first[0] - _CBOR_UINT8)
    raw = data[offset + 1 : offset + 1 + size]
    if len(raw) < size:
        raise EventIdError(f"the bytes end within the height at byte {offset}")
    height = int.from_bytes(raw, "big")
    if height < (_CBOR_UINT8 if size == 1 else 1 << (4 * size)):  # half the bits are too many
        raise EventIdError(f"the height {height} at byte {offset} is not in its shortest form")
    return height, offset + 1 + size


@lru_cache(maxsize=64)
def _network_prefix(network_id: int) -> bytes:
    return EVENT_ID_HEAD + encode_varint(network_id)


def stream_prefix(network: Network, sort_value: str, controller: str, init_cid: CID) -> bytes:
    """Return `EventId.prefix` of the events of a stream.

    Raises:
        EventIdError: the sort value or the controller is not valid Unicode.
    """
    return _stream_prefix(network.id, sort_value, controller) + init_cid[-_INIT:]


def _stream_prefix(network_id: int, sort_value: str, controller: str) -> bytes:
    is_short = len(sort_value) + len(controller) <= MAX_CACHED_SIZE
    made = _remembered_prefix if is_short else _prefix_of_stream
    return made(network_id, sort_value, controller)


def _prefix_of_stream(network_id: int, sort_value: str, controller: str) -> bytes:
    hashes = short_hash(sort_value) + short_hash(controller)
    return _network_prefix(network_id) + hashes


_remembered_prefix = lru_cache(maxsize=4096)(_prefix_of_stream)


def short_hash(text: str) -> bytes:
    """Return the last 8 bytes of a text's sha256, as a sort value or a controller is hashed.

    Raises:
        EventIdError: the text is not valid Unicode.
    """
    return _hash(text)[-SHORT_HASH_SIZE:]


def _hash(text: str) -> bytes:
    try:
        return hashlib.sha256(text.encode()).digest()
    except UnicodeEncodeError:
        raise EventIdError(f"{text[:100]!r} is not valid Unicode: it has no EventId") from None


def sort_value_of(sort_key: str, text: str) -> str:
    """Normalise a sort value that people and programs wrote to the form that EventIds hash.

    The values of `model`, `unique`, `context` and `dag` are bytes, given as multibase text of any
    base. Those of other fields stay as they are.

    Raises:
        MultibaseError: the value of such a field is not multibase text.
    """
    if sort_key not in _BYTES_KEYS:
        return text
    return multibase.encode(multibase.decode(text), "base36")


MAX_SHARDS: Final = 4096
"""Into how many shards a sort value can be cut."""
_ONE_BYTE: Final = 16
"""Up to this many shards are cut at one byte of the hash, which takes fewer prefixes to announce;
with more, they would differ too much in size."""

_PART: Final = re.compile(r"([1-9][0-9]{0,3})/([1-9][0-9]{0,3})", re.ASCII)
_BOUNDS: Final = re.compile(r"([0-9a-fA-F]{2,16})\.\.([0-9a-fA-F]{2,16})", re.ASCII)


class Shard(NamedTuple):
    """A part of a sort value's keys, cut by controller (CIP-124, "sharding a stream set").

    The controller's hash follows the sort value's in a key, so that controllers whose hashes begin
    with neighbouring bytes are one range of keys. A shard says from which beginning to which:
    `00..3f`, as bytes in hexadecimal, both included. `1/4` is the first of four of equal size.
    Hashes are uniform, so shards are of about equal size if no controller has much more than the
    others.
    """

    first: bytes
    last: bytes

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `00..3f`, or `1/4` for the first of four.

        Raises:
            EventIdError: it is neither.
        """
        if part := _PART.fullmatch(text):
            return cls.of(int(part[1]), int(part[2]))
        bounds = _BOUNDS.fullmatch(text)
        if bounds is None or len(bounds[1]) != len(bounds[2]) or len(bounds[1]) % 2:
            raise EventIdError(
                f"{text[:100]!r} is not a shard: `1/4`, or `00..3f`, from one beginning of the "
                "controllers' hashes to another, each of 1 to 8 bytes in hexadecimal"
            )
        first, last = map(bytes.fromhex, bounds.groups())
        if first > last:
            raise EventIdError(f"the shard {text} ends before it begins")
        return cls(first, last)

    @classmethod
    def of(cls, number: int, count: int) -> Self:
        """Return one of a number of shards of equal size, counted from 1.

        Raises:
            EventIdError: there is no such shard, or there are too many.
        """
        if not 1 <= number <= count <= MAX_SHARDS:
            raise EventIdError(
                f"there is no shard {number}/{count}: they are 1/{count} to {count}/{count}, and "
                f"at most {MAX_SHARDS}"
            )
        size = 1 if count <= _ONE_BYTE else 2
        whole = 1 << (8 * size)
        first, end = (whole * n // count for n in (number - 1, number))
        return cls(first.to_bytes(size), (end - 1).to_bytes(size))

    def covers(self, controller: str) -> bool:
        """Whether a controller's streams are in it."""
        return self.first <= short_hash(controller)[: len(self.first)] <= self.last

    def range(self, network: Network, sort_value: str) -> tuple[EventId, EventId]:
        """Return the fenceposts around its keys of a sort value."""
        lower, upper = (prefix_range(network, short_hash(sort_value) + bound) for bound in self)
        return lower[0], upper[1]

    def __str__(self) -> str:
        return f"{self.first.hex()}..{self.last.hex()}"
