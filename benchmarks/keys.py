"""Synthetic EventIds of the usual length, for benchmarks that need a million of them quickly."""

from __future__ import annotations

import random

from recon_node.ceramic import IN_MEMORY, network_range

KEY_SIZE = 62

_HEAD = network_range(IN_MEMORY)[0][:5]
_CID_HEAD = bytes.fromhex("01711220")


def event_ids(count: int, seed: int) -> list[bytes]:
    """Return distinct EventIds in no order: 1 to 8 events a stream, hashes drawn at random."""
    rng = random.Random(seed)
    keys: list[bytes] = []
    while len(keys) < count:
        stream = _HEAD + rng.randbytes(20)
        for height in range(min(rng.randint(1, 8), count - len(keys))):
            keys.append(stream + bytes((height,)) + _CID_HEAD + rng.randbytes(32))
    return keys
