"""Recon messages on the wire (CIP-124, "Recon Message"): ``EventId (Ahash EventId)+``.

The first and the last EventId bound the range that the message speaks of; those between are keys
that the sender holds; an Ahash stands for all keys strictly between its neighbours. Both parts
begin with their multicodec, so the message needs no lengths: an EventId ends with its CID, and an
Ahash is the multihash

    92 e0 01 20 <32 bytes>      Sha256a of at least one key
    92 e0 01 00                 "0": no keys between

A message is canonical: bytes that decode encode to the same bytes again.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from recon_node.ceramic import EventId, EventIdError, scan
from recon_node.ipld import varint
from recon_node.recon.errors import RemoteProtocolError
from recon_node.recon.key_range import KeyRange
from recon_node.recon.sha256a import DIGEST_SIZE, MULTICODEC, ZERO, Sha256a

_AHASH_CODE = varint.encode(MULTICODEC)
_ZERO_AHASH = _AHASH_CODE + b"\x00"
_AHASH_PREFIX = _AHASH_CODE + bytes((DIGEST_SIZE,))
AHASH_SIZE = len(_AHASH_PREFIX) + DIGEST_SIZE
"""Bytes of an Ahash that is not zero."""


@dataclass(frozen=True, slots=True)
class Message:
    """Bounds and keys in ascending order, and a hash for each gap between two of them."""

    bounds: tuple[bytes, ...]
    hashes: tuple[Sha256a, ...]

    @property
    def key_range(self) -> KeyRange:
        """The range that the message speaks of."""
        return KeyRange(self.bounds[0], self.bounds[-1])

    @property
    def is_single(self) -> bool:
        """Whether the message states one hash for the whole of its range."""
        return len(self.hashes) == 1

    def check(self) -> None:
        """Raise RemoteProtocolError unless the bounds ascend and each gap has its hash.

        The one exception is the empty range (b, 0, b), with which a peer says that it has no
        interest in what it was asked for.
        """
        if len(self.hashes) < 1 or len(self.bounds) != len(self.hashes) + 1:
            raise RemoteProtocolError(
                f"message has {len(self.bounds)} bounds and {len(self.hashes)} hashes; "
                "n hashes stand between n + 1 bounds"
            )
        if self.is_single and self.bounds[0] == self.bounds[1] and not self.hashes[0]:
            return
        for index, (lower, upper) in enumerate(pairwise(self.bounds)):
            if lower >= upper:
                what = "a repeated key" if lower == upper else "bounds out of order"
                raise RemoteProtocolError(f"message has {what} at bound {index + 1}: {upper.hex()}")


def encode_message(message: Message) -> bytes:
    """Encode a message as the bytes of one frame."""
    parts = [message.bounds[0]]
    for ahash, bound in zip(message.hashes, message.bounds[1:], strict=True):
        parts.append(_AHASH_PREFIX + ahash.digest if ahash else _ZERO_AHASH)
        parts.append(bound)
    return b"".join(parts)


def decode_message(data: bytes) -> Message:
    """Decode the bytes of one frame.

    Raises RemoteProtocolError, with the offset, when they are no message: an EventId or an Ahash
    that does not parse, bounds that do not ascend, a fencepost between keys, or bytes after the
    end.
    """
    bound, offset = _read_event_id(data, 0)
    bounds: list[EventId] = [bound]
    hashes: list[Sha256a] = []
    while offset < len(data):
        ahash, offset = _read_ahash(data, offset)
        bound, offset = _read_event_id(data, offset)
        hashes.append(ahash)
        bounds.append(bound)
    message = Message(tuple(bounds), tuple(hashes))
    message.check()
    for index, bound in enumerate(bounds[1:-1], start=1):
        if bound.is_fencepost:
            raise RemoteProtocolError(f"message has a fencepost among its keys at bound {index}")
    return message


def _read_event_id(data: bytes, offset: int) -> tuple[EventId, int]:
    try:
        return scan(data, offset)
    except EventIdError as error:
        raise RemoteProtocolError(f"message does not parse: {error}") from error


def _read_ahash(data: bytes, offset: int) -> tuple[Sha256a, int]:
    if data.startswith(_AHASH_PREFIX, offset):
        end = offset + AHASH_SIZE
        if end > len(data):
            raise RemoteProtocolError(f"message ends inside the Ahash at byte {offset}")
        digest = data[offset + len(_AHASH_PREFIX) : end]
        if digest == ZERO.digest:
            raise RemoteProtocolError(f"Ahash at byte {offset}: no keys are written with length 0")
        return Sha256a(digest), end
    if data.startswith(_ZERO_AHASH, offset):
        return ZERO, offset + len(_ZERO_AHASH)
    found = data[offset : offset + len(_AHASH_PREFIX)].hex(" ") or "the end"
    raise RemoteProtocolError(
        f"no Ahash at byte {offset} of the message: expected {_AHASH_CODE.hex(' ')} and the length "
        f"20 or 00, found {found}"
    )
