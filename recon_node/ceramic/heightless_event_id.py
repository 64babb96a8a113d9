"""EventIds as the deployed network builds them: without a height (ceramic-one 0.58).

    varint(0xce) varint(0x05) varint(network id)
    separator    last 8 bytes of sha256("model" || model's StreamID bytes)
    controller   last 8 bytes of sha256(controller DID)
    stream       last 4 bytes of the init event's CID
    event CID

CIP-124's EventId, which this project's nodes speak with each other, is in `event_id.py`. The two
have the same head but are keys of different sets: an event has one of each, and no function takes
both.

A fencepost is such an EventId cut off before the event CID, so that it sorts before (zeros) or
after (ff bytes) every key of its prefix. The separator always hashes the model, whatever field of
the header is the sort key, so a stream without a model has no key here.
"""

import hashlib
from functools import lru_cache
from typing import Final, Self

from recon_node.ceramic.errors import EventIdError
from recon_node.ceramic.event_id import (
    EVENT_ID_HEAD,
    FIELDS_SIZE,
    MAX_CACHED_SIZE,
    SHORT_HASH_SIZE,
    Shard,
    short_hash,
)
from recon_node.ceramic.init_header import StreamId
from recon_node.ceramic.network import Network
from recon_node.ipld import CID, IDENTITY, IpldError, decode_varint, encode_varint, read_cid

_SORT_KEY: Final = b"model"
_STREAM_SIZE: Final = 4
"""Bytes of the init event's CID."""

LEAST: Final = b""
"""The bound below every key, which parses as no EventId."""
GREATEST: Final = b"\xff"
"""The bound above every key, which parses as no EventId."""


class HeightlessEventId(bytes):
    """The EventId of one event, without a height, as its bytes; it sorts as they do.

    Raises:
        EventIdError: the bytes are not such an EventId, or more than one.
    """

    __slots__ = ()

    def __new__(cls, raw: bytes) -> Self:  # noqa: D102 - the class docstring describes it
        _check(raw)
        return bytes.__new__(cls, raw)

    @classmethod
    def build(
        cls, network: Network, model: StreamId, controller: str, init_cid: CID, event_cid: CID
    ) -> Self:
        """Build the EventId of an event.

        Raises:
            EventIdError: the controller is not valid Unicode.
        """
        stream = _controller_prefix(network, model, controller) + init_cid[-_STREAM_SIZE:]
        return bytes.__new__(cls, stream + event_cid)

    @property
    def separator(self) -> bytes:
        """The hash of the model, see `model_hash`."""
        start = _fields_start(self)
        return self[start : start + SHORT_HASH_SIZE]

    @property
    def controller(self) -> bytes:
        """The last 8 bytes of the controller DID's sha256."""
        start = _fields_start(self) + SHORT_HASH_SIZE
        return self[start : start + SHORT_HASH_SIZE]

    @property
    def stream(self) -> bytes:
        """The last 4 bytes of the init event's CID."""
        start = _fields_start(self) + 2 * SHORT_HASH_SIZE
        return self[start : start + _STREAM_SIZE]

    @property
    def event_cid(self) -> CID:
        """The event's CID."""
        return CID(self[_fields_start(self) + FIELDS_SIZE :])

    def __str__(self) -> str:
        return self.hex()

    def __repr__(self) -> str:
        return f"HeightlessEventId({self.hex()})"


def model_hash(model: StreamId) -> bytes:
    """Return the separator of a model's streams: 8 bytes."""
    return hashlib.sha256(_SORT_KEY + model.to_bytes()).digest()[-SHORT_HASH_SIZE:]


def is_fencepost(bound: bytes) -> bool:
    """Return whether a bound is an EventId without an event CID, and so not a key.

    The upper fenceposts of ceramic-one end in one ff byte more than the fields have.
    """
    if bound in (LEAST, GREATEST):
        return True
    try:
        rest = bound[_fields_start(bound) :]
    except EventIdError:
        return False
    return len(rest) == FIELDS_SIZE or (len(rest) == FIELDS_SIZE + 1 and rest[-1:] == GREATEST)


def network_range(network: Network) -> tuple[bytes, bytes]:
    """Return the fenceposts around all keys of a network."""
    return _fenceposts(_network_prefix(network.id), 0)


def model_range(network: Network, model: StreamId) -> tuple[bytes, bytes]:
    """Return the fenceposts around all keys of a model's streams."""
    return _fenceposts(_model_prefix(network, model), SHORT_HASH_SIZE)


def controller_range(network: Network, model: StreamId, controller: str) -> tuple[bytes, bytes]:
    """Return the fenceposts around all keys of a controller's streams of a model.

    Raises:
        EventIdError: the controller is not valid Unicode.
    """
    prefix = _controller_prefix(network, model, controller)
    return _fenceposts(prefix, 2 * SHORT_HASH_SIZE)


def shard_range(network: Network, model: StreamId, shard: Shard) -> tuple[bytes, bytes]:
    """Return the fenceposts around all keys of a model's streams in a shard."""
    prefix = _model_prefix(network, model)
    lower, upper = (_fenceposts(prefix + bound, SHORT_HASH_SIZE + len(bound)) for bound in shard)
    return lower[0], upper[1]


def stream_range(
    network: Network, model: StreamId, controller: str, init_cid: CID
) -> tuple[bytes, bytes]:
    """Return the fenceposts around all keys of one stream.

    Raises:
        EventIdError: the controller is not valid Unicode.
    """
    prefix = _controller_prefix(network, model, controller) + init_cid[-_STREAM_SIZE:]
    return _fenceposts(prefix, FIELDS_SIZE)


def _fenceposts(prefix: bytes, known: int) -> tuple[bytes, bytes]:
    """Fill up a prefix that has `known` bytes of the fields, with zeros and with ff bytes."""
    missing = FIELDS_SIZE - known
    return prefix + bytes(missing), prefix + GREATEST * (missing + 1)


def _fields_start(raw: bytes) -> int:
    """Return the offset of the separator."""
    if not raw.startswith(EVENT_ID_HEAD):
        raise EventIdError(f"not an EventId: it does not start with {EVENT_ID_HEAD.hex()}")
    try:
        return decode_varint(raw, len(EVENT_ID_HEAD))[1]
    except IpldError as error:
        raise EventIdError(f"not an EventId: {error}") from None


def _check(raw: bytes) -> None:
    start = _fields_start(raw) + FIELDS_SIZE
    try:
        cid, end = read_cid(raw, start)
    except IpldError as error:
        raise EventIdError(f"not an EventId without a height: {error}") from None
    if end != len(raw):
        raise EventIdError(f"{len(raw) - end} extra bytes after the EventId")
    if cid.hash_code == IDENTITY:
        raise EventIdError(f"{cid} cannot be the CID of an event")


@lru_cache(maxsize=64)
def _network_prefix(network_id: int) -> bytes:
    return EVENT_ID_HEAD + encode_varint(network_id)


@lru_cache(maxsize=1024)
def _model_prefix(network: Network, model: StreamId) -> bytes:
    return _network_prefix(network.id) + model_hash(model)


def _controller_prefix(network: Network, model: StreamId, controller: str) -> bytes:
    made = _remembered_prefix if len(controller) <= MAX_CACHED_SIZE else _prefix_of_controller
    return made(network, model, controller)


def _prefix_of_controller(network: Network, model: StreamId, controller: str) -> bytes:
    return _model_prefix(network, model) + short_hash(controller)


_remembered_prefix = lru_cache(maxsize=4096)(_prefix_of_controller)
