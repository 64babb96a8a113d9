"""Times without a chain, for local networks: whoever makes a time event says when it was.

The proof names the chain `local:clock`, and its `txHash` holds the time itself: 24 zero bytes, then
Unix seconds as a big-endian number of 8 bytes. There is no transaction. Nothing proves such a time,
so only nodes of a local network that are told to (`development_time`) believe it.
"""

from typing import Final

from recon_node.ceramic.errors import InvalidEventError
from recon_node.ceramic.time_proof import TimeProof

DEVELOPMENT_CHAIN: Final = "local:clock"
"""As proofs name it (CAIP-2)."""
_PADDING: Final = bytes(24)
_MAX_TIME: Final = 2**40
"""Later times, after the year 36,000, are mistakes: readers cannot show them."""


def transaction_of(time: int) -> bytes:
    """Return what stands for a transaction at a time, in Unix seconds."""
    return _PADDING + time.to_bytes(8, "big")


def development_time_of(proof: TimeProof) -> int:
    """Return the time that a proof of `local:clock` states, in Unix seconds.

    Raises:
        InvalidEventError: it states none.
    """
    digest = proof.tx_hash.digest
    time = int.from_bytes(digest[len(_PADDING) :], "big")
    if digest != transaction_of(time & (2**64 - 1)) or time > _MAX_TIME:
        raise InvalidEventError(f"the proof's 'txHash' {proof.tx_hash} does not state a time")
    return time
