"""The hash functions by which blocks can be checked, by their codes in the multicodec table.

Source: https://github.com/multiformats/multicodec/blob/master/table.csv. All that kubo allows are
here. A digest may be shortened, but not below 20 bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from typing import Final

from recon_node.ipld.errors import required_for

MIN_DIGEST: Final = 20
"""Bytes of a shortened digest, at least, as for kubo."""

_BLAKE2B, _BLAKE2S = 0xB200, 0xB240
"""The codes of the functions with digests of N bytes are these plus N."""
_BLAKE2B_SIZE, _BLAKE2S_SIZE = 64, 32
"""Bytes of the longest."""


def _hashlib(name: str, block: bytes) -> bytes:
    return hashlib.new(name, block).digest()


def _shake_256(block: bytes) -> bytes:
    return hashlib.shake_256(block).digest(64)


def _twice_sha2_256(block: bytes) -> bytes:
    return hashlib.sha256(hashlib.sha256(block).digest()).digest()


def _keccak(bits: int, block: bytes) -> bytes:
    with required_for("Keccak hashes"):
        from Crypto.Hash import keccak  # seldom needed

    return bytes(keccak.new(digest_bits=bits, data=block).digest())


def _blake3(block: bytes) -> bytes:
    with required_for("BLAKE3 hashes"):
        from blake3 import blake3  # seldom needed

    return bytes(blake3(block).digest(length=64))  # a shorter digest is the beginning of it


FUNCTIONS: Final[dict[int, tuple[str, Callable[[bytes], bytes]]]] = {
    0x00: ("identity", bytes),
    0x11: ("sha1", partial(_hashlib, "sha1")),
    0x12: ("sha2-256", partial(_hashlib, "sha256")),
    0x13: ("sha2-512", partial(_hashlib, "sha512")),
    0x14: ("sha3-512", partial(_hashlib, "sha3_512")),
    0x15: ("sha3-384", partial(_hashlib, "sha3_384")),
    0x16: ("sha3-256", partial(_hashlib, "sha3_256")),
    0x17: ("sha3-224", partial(_hashlib, "sha3_224")),
    0x19: ("shake-256", _shake_256),
    0x1A: ("keccak-224", partial(_keccak, 224)),
    0x1B: ("keccak-256", partial(_keccak, 256)),
    0x1C: ("keccak-384", partial(_keccak, 384)),
    0x1D: ("keccak-512", partial(_keccak, 512)),
    0x1E: ("blake3", _blake3),
    0x20: ("sha2-384", partial(_hashlib, "sha384")),
    0x56: ("dbl-sha2-256", _twice_sha2_256),
    0x1013: ("sha2-224", partial(_hashlib, "sha224")),
    0x1014: ("sha2-512-224", partial(_hashlib, "sha512_224")),
    0x1015: ("sha2-512-256", partial(_hashlib, "sha512_256")),
}
"""Name and function of each code, but for blake2."""


def digest_of(code: int, block: bytes) -> bytes | None:
    """Return the digest of a block by a hash function; None if the function is not known."""
    if MIN_DIGEST <= code - _BLAKE2B <= _BLAKE2B_SIZE:
        return hashlib.blake2b(block, digest_size=code - _BLAKE2B).digest()
    if MIN_DIGEST <= code - _BLAKE2S <= _BLAKE2S_SIZE:
        return hashlib.blake2s(block, digest_size=code - _BLAKE2S).digest()
    found = FUNCTIONS.get(code)
    return None if found is None else found[1](block)
