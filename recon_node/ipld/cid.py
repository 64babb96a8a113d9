"""CIDs, self-describing content addresses, kept as their raw bytes; and varints, their numbers.

An unsigned varint is little-endian base 128, seven bits a byte; the high bit means "more"
(https://github.com/multiformats/unsigned-varint). A number has exactly one encoding, the shortest,
of at most nine bytes (63 bits).

A CIDv1 is `varint(1) varint(codec) multihash`, and a multihash is
`varint(hash code) varint(length) digest` (https://github.com/multiformats/cid). `CID` is a
`bytes` that was checked once, when it was made: it compares, hashes and sorts like its bytes, and
becomes text only at the edges.

A CIDv0 ("Qm...") is a bare multihash, by sha2-256, of a DAG-PB block. It is another CID than the
CIDv1 of that block, and stays as it is where bytes are signed or hashed; `cid_of_block` makes both
one where blocks are looked up.

The codes of hash functions are those of the multicodec table
(https://github.com/multiformats/multicodec/blob/master/table.csv). A digest may be shortened, but
not below 20 bytes.
"""

import hashlib
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Final, Self

from recon_node.ipld import multibase
from recon_node.ipld.errors import CidError, MultibaseError, VarintError, required_for

MAX_VARINT: Final = 9
"""Bytes of a varint."""
MAX_VARINT_VALUE: Final = 2**63 - 1
MAX_VARINT_64: Final = 10
"""Bytes of a number of 64 bits, which some read."""
_BITS_64: Final = 64

# In each byte, 0x80 says that more bytes follow and 0x7F are the seven bits of the number. They are
# written out because a lookup of a name would be a good part of the cost.


def encode_varint(value: int) -> bytes:
    """Encode `value` in its shortest form.

    Raises:
        VarintError: `value` is negative or does not fit in 63 bits.
    """
    if 0 <= value < 0x80:
        return value.to_bytes(1, "little")
    if 0 < value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if 0 < value < 0x20_0000:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    if not 0 <= value <= MAX_VARINT_VALUE:
        raise VarintError(f"{value} is not an unsigned varint: it must be from 0 to 2^63 - 1")
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def decode_varint(
    data: bytes | bytearray | memoryview,
    offset: int = 0,
    max_bytes: int = MAX_VARINT,
    *,
    in_any_form: bool = False,
) -> tuple[int, int]:
    """Read the varint at `offset`; return its value and the offset after it.

    It has at most `max_bytes`: `MAX_VARINT`, or `MAX_VARINT_64` for any number of 64 bits. Those of
    protobuf need not be in their shortest form: they may be `in_any_form`.

    Raises:
        VarintError: the bytes end within it, it is too long, or not in its shortest form.
    """
    # Nearly all have one byte or two, and there are several in every block of a CAR.
    if 0 <= offset < len(data) - 1:
        first = data[offset]
        if first < 0x80:
            return first, offset + 1
        second = data[offset + 1]
        if 0 < second < 0x80:
            return first & 0x7F | second << 7, offset + 2
    return _decode_any_varint(data, offset, max_bytes, in_any_form)


def _decode_any_varint(
    data: bytes | bytearray | memoryview,
    offset: int,
    max_bytes: int = MAX_VARINT,
    in_any_form: bool = False,
) -> tuple[int, int]:
    if offset < 0:
        raise VarintError(f"a varint cannot start at the negative offset {offset}")
    value = 0
    window = data[offset : offset + max_bytes]
    for index, byte in enumerate(window):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if byte == 0 and index and not in_any_form:
                raise VarintError(f"the varint at byte {offset} is not in its shortest form")
            if value >> _BITS_64:
                raise VarintError(f"the varint at byte {offset} does not fit in 64 bits")
            return value, offset + index + 1
    if len(window) < max_bytes:
        raise VarintError(f"the bytes end within the varint at byte {offset}")
    raise VarintError(f"the varint at byte {offset} is longer than {max_bytes} bytes")


DAG_CBOR: Final = 0x71
DAG_JOSE: Final = 0x85
DAG_PB: Final = 0x70
RAW: Final = 0x55

IDENTITY: Final = 0x00
SHA2_256: Final = 0x12

MAX_DIGEST: Final = 64
"""Bytes of a digest, whatever the hash function makes, as for ceramic-one (the `cid` crate). An
identity "hash" carries its block inside, without bound."""
MAX_INLINE: Final = 128
"""Bytes inside an identity CID in a DAG, as for kubo: its blocks are not Ceramic's."""

_VERSION: Final = 1
_DIGEST: Final = 32
"""Bytes of a sha2-256."""
_SHA2_256_HEAD: Final = bytes([SHA2_256, _DIGEST])
_CID_V0_SIZE: Final = len(_SHA2_256_HEAD) + _DIGEST
_CID_V0_TEXT: Final = "Qm"
"""How the text of every CIDv0 begins."""
_BASE58: Final = "z"
"""The multibase code of the base in which it is written."""


@lru_cache(maxsize=64)
def cid_head(codec: int) -> bytes:
    """Return what precedes the digest in every CID of that codec with sha2-256, and in no other."""
    return encode_varint(_VERSION) + encode_varint(codec) + _SHA2_256_HEAD


# The first bytes of nearly all CIDs.
_COMMON_HEADS: Final = tuple(cid_head(codec) for codec in (DAG_CBOR, DAG_JOSE, RAW))
_COMMON_HEADS_BY_SIZE: Final = {
    size: tuple(head for head in _COMMON_HEADS if len(head) + _DIGEST == size) for size in (36, 37)
}


class CID(bytes):
    """A binary CID, checked when made; `str()` is its text, for a CIDv1 in multibase base32.

    Its codec and hash function may be any numbers of 64 bits, as in the events of ceramic-one. In
    CARs and DAGs (`read_cid`, `cid_of_block`) they have 63, as for kubo.

    Raises:
        CidError: not a CID, or bytes after one.
    """

    __slots__ = ()

    def __new__(cls, raw: bytes) -> Self:  # noqa: D102 - the class docstring speaks for it
        if not raw.startswith(_COMMON_HEADS_BY_SIZE.get(len(raw), ())):
            end = _end_of_cid(raw, 0, max_bytes=MAX_VARINT_64)
            if end != len(raw):
                raise CidError(f"{len(raw) - end} extra bytes after the CID {_shown(raw[:end])}")
        return bytes.__new__(cls, raw)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a CIDv1 in any multibase ("b..." is base32, "z..." base58btc), or a CIDv0 ("Qm...").

        Raises:
            CidError: not the text of a CID.
        """
        is_v0 = text.startswith(_CID_V0_TEXT)
        try:
            cid = cls(multibase.decode(_BASE58 + text if is_v0 else text))
        except (CidError, MultibaseError) as error:
            raise CidError(f"{text[:100]!r} is not a CID: {error}") from None
        if cid.is_v0 != is_v0:
            raise CidError(f"{text[:50]!r} is not a CID: a CIDv0 is written without a multibase")
        return cid

    @classmethod
    def of(cls, codec: int, block: bytes) -> Self:
        """Return the CID of `block`, hashed with sha2-256."""
        return bytes.__new__(cls, cid_head(codec) + hashlib.sha256(block).digest())

    @property
    def is_v0(self) -> bool:
        """Whether it is a CIDv0."""
        return self.startswith(_SHA2_256_HEAD)

    @property
    def codec(self) -> int:
        """How the block is encoded: `DAG_CBOR`, `DAG_JOSE`, `RAW`..."""
        return DAG_PB if self.is_v0 else self._number(1)[0]

    @property
    def hash_code(self) -> int:
        """The hash function: `SHA2_256`, `IDENTITY`..."""
        if self.startswith((*_COMMON_HEADS, _SHA2_256_HEAD)):
            return SHA2_256
        return self._number(self._number(1)[1])[0]

    @property
    def digest(self) -> bytes:
        """The hash of the block; for an identity CID the block itself."""
        if self.is_v0:
            return self[len(_SHA2_256_HEAD) :]
        _, offset = self._number(self._number(1)[1])
        return self[self._number(offset)[1] :]

    def _number(self, offset: int) -> tuple[int, int]:
        return decode_varint(self, offset, MAX_VARINT_64)

    def matches(self, block: bytes) -> bool:
        """Is this the CID of `block`?

        Raises:
            CidError: a hash function that cannot be computed here.
        """
        if self.startswith(_COMMON_HEADS):
            return self.endswith(hashlib.sha256(block).digest())
        expected, digest = digest_of(self.hash_code, block), self.digest
        if expected is None:
            raise CidError(f"{self}: cannot check a block by the hash {self.hash_code:#x}")
        is_long = len(digest) >= MIN_DIGEST and self.hash_code != IDENTITY
        return expected.startswith(digest) if is_long else expected == digest

    def __str__(self) -> str:
        if self.is_v0:
            return multibase.encode(self, "base58btc").removeprefix(_BASE58)
        return multibase.encode(self, "base32")

    def __repr__(self) -> str:
        return f"CID({self})"


def cid_of(raw: bytes) -> CID:
    """Return `CID(raw)`, for loops: a call of a class takes twice as long as that of a function."""
    if raw.startswith(_COMMON_HEADS_BY_SIZE.get(len(raw), ())):
        return bytes.__new__(CID, raw)
    return CID(raw)


def read_cid(data: bytes, offset: int = 0, limit: int = MAX_DIGEST) -> tuple[CID, int]:
    """Read the CID at `offset`; return it and the offset after it.

    A CID delimits itself; the bytes after it are ignored. Its digest has at most `limit` bytes.

    Raises:
        CidError: there is no CID, or the bytes end within it.
    """
    window = data[offset : offset + 37]
    if window.startswith(_COMMON_HEADS):
        size = 37 if window[1] == 0x85 else 36  # DAG-JOSE takes two bytes; literals are faster here
        if len(window) >= size:
            return bytes.__new__(CID, window[:size]), offset + size
    end = _end_of_cid(data, offset, limit)
    return bytes.__new__(CID, data[offset:end]), end


def cid_of_block(raw: bytes) -> CID:
    """Return the CIDv1 by which a block of a DAG is looked up, by any CID of it.

    Raises:
        CidError: not a CID.
    """
    if raw.startswith(_SHA2_256_HEAD):
        return CID(bytes((_VERSION, DAG_PB)) + raw)
    if isinstance(raw, CID):
        return raw
    if _end_of_cid(raw, 0, MAX_INLINE) != len(raw):
        raise CidError(f"extra bytes after the CID {_shown(raw)}")
    return bytes.__new__(CID, raw)


def _end_of_cid(
    data: bytes, offset: int, limit: int = MAX_DIGEST, max_bytes: int = MAX_VARINT
) -> int:
    if data[offset : offset + 2] == _SHA2_256_HEAD:
        return _checked_end(data, offset, offset + _CID_V0_SIZE)
    try:
        version, position = decode_varint(data, offset)
        if version != _VERSION:
            raise CidError(f"no CIDv1 at byte {offset}: its version is {version}")
        _, position = decode_varint(data, position, max_bytes)
        _, position = decode_varint(data, position, max_bytes)
        length, position = decode_varint(data, position)
    except VarintError as error:
        raise CidError(f"no CID at byte {offset}: {error}") from None
    if length > limit:
        raise CidError(
            f"the CID at byte {offset} claims a digest of {length} bytes; the limit is {limit}"
        )
    return _checked_end(data, offset, position + length)


def _checked_end(data: bytes, offset: int, end: int) -> int:
    if end > len(data):
        raise CidError(
            f"the bytes end within the CID at byte {offset}: {end - len(data)} are missing"
        )
    return end


def _shown(raw: bytes) -> str:
    return multibase.encode(bytes(raw), "base32")


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
"""Name and function of each code in the multicodec table, but for blake2; all that kubo allows."""


def digest_of(code: int, block: bytes) -> bytes | None:
    """Return the digest of a block by a hash function; None if the function is not known."""
    if MIN_DIGEST <= code - _BLAKE2B <= _BLAKE2B_SIZE:
        return hashlib.blake2b(block, digest_size=code - _BLAKE2B).digest()
    if MIN_DIGEST <= code - _BLAKE2S <= _BLAKE2S_SIZE:
        return hashlib.blake2s(block, digest_size=code - _BLAKE2S).digest()
    function = FUNCTIONS.get(code)
    return None if function is None else function[1](block)
