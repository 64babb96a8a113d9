"""Recon messages on the wire (CIP-124, "Recon Message"): `EventId (Ahash EventId)+`.

The first and the last EventId bound the range that the message is about; those between are keys
that the sender holds; an Ahash stands for all keys strictly between its neighbours. Both begin with
their multicodec, and the message needs no lengths: an EventId ends with its CID, and an Ahash is
the multihash

    92 e0 01 20 <32 bytes>      Sha256a of at least one key
    92 e0 01 00                 "0": no keys between

A message is canonical: bytes that decode encode to the same bytes again.
"""

from dataclasses import dataclass
from itertools import islice, pairwise
from operator import lt
from typing import Final

from recon_node.ceramic import EventId, EventIdError, scan
from recon_node.ipld import encode_varint
from recon_node.recon.keys.ordered_keys import KeyRange
from recon_node.recon.keys.sha256a import DIGEST_SIZE, MULTICODEC, ZERO
from recon_node.recon.session import RemoteProtocolError

_AHASH_CODE = encode_varint(MULTICODEC)
_ZERO_AHASH = _AHASH_CODE + b"\x00"
_AHASH_PREFIX = _AHASH_CODE + bytes((DIGEST_SIZE,))
_NO_KEYS = bytes(ZERO)
_WEIGHT_PER_BOUND: Final = 144
"""Bytes of memory that a bound takes in addition to its own, with its hash, in CPython."""
AHASH_SIZE: Final = len(_AHASH_PREFIX) + DIGEST_SIZE
"""Bytes of an Ahash that is not zero."""


@dataclass(frozen=True, slots=True)
class Cip124Message:
    """Bounds and keys in ascending order, and a hash for each gap between two of them."""

    bounds: tuple[bytes, ...]
    hashes: tuple[bytes, ...]
    """The 32 bytes of a Sha256a each."""

    @property
    def key_range(self) -> KeyRange:
        """The range that the message is about."""
        return KeyRange(self.bounds[0], self.bounds[-1])

    @property
    def is_single(self) -> bool:
        """Whether the message states one hash for the whole of its range."""
        return len(self.hashes) == 1

    def check(self) -> None:
        """Check that the bounds ascend and that each gap has its hash.

        The one exception is the empty range (b, 0, b), with which a peer says that it has no
        interest in what it was asked for.

        Raises:
            RemoteProtocolError: they do not, or a gap has no hash.
        """
        if len(self.hashes) < 1 or len(self.bounds) != len(self.hashes) + 1:
            raise RemoteProtocolError(
                f"the peer's message has {len(self.bounds)} bounds and {len(self.hashes)} hashes; "
                "n hashes stand between n + 1 bounds"
            )
        if self.is_single and self.bounds[0] == self.bounds[1] and self.hashes[0] == ZERO:
            return
        if all(map(lt, self.bounds, islice(self.bounds, 1, None))):
            return
        for index, (lower, upper) in enumerate(pairwise(self.bounds)):
            if lower >= upper:
                what = "a repeated key" if lower == upper else "bounds out of order"
                raise RemoteProtocolError(
                    f"the peer's message has {what} at bound {index + 1}: {upper.hex()}"
                )


def weigh(message: Cip124Message) -> int:
    """Return about how many bytes of memory a message takes."""
    return sum(map(len, message.bounds)) + _WEIGHT_PER_BOUND * len(message.bounds)


def encode_message(message: Cip124Message) -> bytes:
    """Encode a message as the bytes of one frame."""
    parts = [message.bounds[0]]
    for ahash, bound in zip(message.hashes, message.bounds[1:], strict=True):
        if ahash == _NO_KEYS:
            parts += (_ZERO_AHASH, bound)
        else:
            parts += (_AHASH_PREFIX, ahash, bound)
    return b"".join(parts)


def decode_message(data: bytes) -> Cip124Message:
    """Decode the bytes of one frame.

    Raises:
        RemoteProtocolError: they are not a message: an EventId or an Ahash that does not parse,
            bounds that do not ascend, a fencepost between keys, or bytes after the end. The text
            has the offset.
    """
    bounds: list[EventId] = []
    hashes: list[bytes] = []
    try:
        bound, offset = scan(data)
        bounds.append(bound)
        while offset < len(data):
            ahash, offset = _read_ahash(data, offset)
            bound, offset = scan(data, offset)
            hashes.append(ahash)
            bounds.append(bound)
    except EventIdError as error:
        raise RemoteProtocolError(f"the peer's message does not parse: {error}") from error
    message = Cip124Message(tuple(bounds), tuple(hashes))
    message.check()
    for index, bound in enumerate(bounds[1:-1], start=1):
        if bound.is_fencepost:
            raise RemoteProtocolError(
                f"the peer's message has a fencepost among its keys at bound {index}"
            )
    return message


def _read_ahash(data: bytes, offset: int) -> tuple[bytes, int]:
    start = offset + len(_AHASH_PREFIX)
    head, end = data[offset:start], start + DIGEST_SIZE
    if head == _AHASH_PREFIX:
        if end > len(data):
            raise RemoteProtocolError(f"the peer's message ends inside the Ahash at byte {offset}")
        digest = data[start:end]
        if digest == _NO_KEYS:
            raise RemoteProtocolError(
                f"the peer's message has an Ahash of zeros at byte {offset}: no keys are written "
                "with length 0"
            )
        return digest, end
    if head == _ZERO_AHASH:
        return _NO_KEYS, start
    raise RemoteProtocolError(
        f"the peer's message has no Ahash at byte {offset}: expected {_AHASH_CODE.hex(' ')} and "
        f"the length 20 or 00, found {head.hex(' ') or 'the end'}"
    )
