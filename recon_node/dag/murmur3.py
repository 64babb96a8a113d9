"""MurmurHash3 (x64), by whose first 64 bits UnixFS places the entries of a large directory.

Source: https://github.com/aappleby/smhasher/blob/master/src/MurmurHash3.cpp, MurmurHash3_x64_128
with the seed 0; in the multicodec table, `murmur3-x64-64` is its first half. Not for secrets.
"""

from __future__ import annotations

from typing import Final

CODE: Final = 0x22
"""The multicodec of murmur3-x64-64."""

_MASK: Final = 2**64 - 1
_BLOCK: Final = 16
_C1, _C2 = 0x87C37B91114253D5, 0x4CF5AD432745937F


def murmur3_x64_64(data: bytes) -> bytes:
    """Return the hash, 8 bytes, the most significant first."""
    h1 = h2 = 0
    whole = len(data) - len(data) % _BLOCK
    for at in range(0, whole, _BLOCK):
        h1 ^= _first(int.from_bytes(data[at : at + 8], "little"))
        h1 = (_rotated(h1, 27) + h2) * 5 + 0x52DCE729 & _MASK
        h2 ^= _second(int.from_bytes(data[at + 8 : at + _BLOCK], "little"))
        h2 = (_rotated(h2, 31) + h1) * 5 + 0x38495AB5 & _MASK
    h2 ^= _second(int.from_bytes(data[whole + 8 :], "little"))
    h1 ^= _first(int.from_bytes(data[whole : whole + 8], "little"))
    h1, h2 = h1 ^ len(data), h2 ^ len(data)
    h1 = h1 + h2 & _MASK
    h2 = h2 + h1 & _MASK
    return (_mixed(h1) + _mixed(h2) & _MASK).to_bytes(8, "big")


def _first(word: int) -> int:
    return _rotated(word * _C1 & _MASK, 31) * _C2 & _MASK


def _second(word: int) -> int:
    return _rotated(word * _C2 & _MASK, 33) * _C1 & _MASK


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> (64 - bits)) & _MASK


def _mixed(word: int) -> int:
    word = (word ^ word >> 33) * 0xFF51AFD7ED558CCD & _MASK
    word = (word ^ word >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return word ^ word >> 33
