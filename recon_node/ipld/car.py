"""CARs in memory, and CAR files of any size.

CARv1 is a header that names the roots, then blocks, each behind its CID:

    varint(length) dag-cbor {roots: [CID...], version: 1}
    ( varint(length) CID block )*

Source: https://ipld.io/specs/transport/car/carv1/. The root is the one that the header names; it
need not be the first block, nor in the file. Reading checks the hash of every block. A block behind
a CIDv0 is the one of the CIDv1 with the same hash. An identity CID carries its block inside: such a
block may be left out of the file. A header that has its version first is read, too: some programs
write it in the order of the specification's schema, which is not that of DAG-CBOR.

A CARv2 is a CARv1 with a header before it, and perhaps an index after it, which is ignored:

    0a a1 67 "version" 02       the pragma: the header of a CAR that has nothing but its version
    characteristics             16 bytes, ignored
    offset, size                of the CARv1 in the file, and the offset of the index: each 8 bytes,
                                little-endian

Source: https://ipld.io/specs/transport/car/carv2/. `read_layout` and `sections` say where blocks
are, and don't read them, so nothing is checked against its CID. Errors count bytes from the start
of the file.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, Final, NamedTuple

from recon_node.ipld import dag_cbor
from recon_node.ipld.cid import (
    CID,
    DAG_CBOR,
    DAG_JOSE,
    IDENTITY,
    MAX_DIGEST,
    MAX_INLINE,
    MAX_VARINT,
    cid_head,
    cid_of_block,
    decode_varint,
    encode_varint,
    read_cid,
)
from recon_node.ipld.errors import CarError, CidError, DagCborError, IpldError, VarintError


@dataclass(frozen=True, slots=True)
class Car:
    """A CAR in memory: the CIDs of its roots, and its blocks in the order of the file.

    If `is_exact`, `encode` reproduces the file byte for byte. It cannot if the file holds a block
    more than once, one that was restored, or a CIDv0, or names its version before its roots;
    nothing else in a CAR is a matter of choice.
    """

    roots: tuple[CID, ...]
    blocks: dict[CID, bytes]
    is_exact: bool = True

    def block(self, cid: CID) -> bytes | None:
        """Return the block of that CID, or None if the CAR does not have it."""
        block = self.blocks.get(cid)
        if block is None and cid.hash_code == IDENTITY:
            return cid.digest
        return block


Restore = Callable[[bytes], bytes | None]
"""Returns the canonical form of a block that does not match its CID, or None."""


_MAX_ROOTS: Final = 64 * 1024
"""Bytes of the header of a CAR in memory: more than a thousand roots."""


def decode(data: bytes, restore: Restore | None = None, *, max_digest: int = MAX_DIGEST) -> Car:
    """Read a CARv1, checking every block against its CID.

    A block that does not match is passed to `restore`, whose result takes its place if it matches.
    `max_digest` limits the bytes of a CID's digest.

    Raises:
        CarError: not a CARv1, a block that does not match its CID, or bytes left over.
    """
    try:
        roots, offset = read_header(data)
        blocks, is_exact = _read_blocks(data, offset, restore, max_digest)
    except (VarintError, CidError) as error:
        raise CarError(f"broken CAR: {error}") from None
    return Car(roots, blocks, is_exact and data.startswith(encode(roots, {})))


def encode(roots: Iterable[CID], blocks: Mapping[CID, bytes]) -> bytes:
    """Write a CARv1 with these roots and blocks, in the given order. Nothing is checked."""
    header = dag_cbor.encode({"roots": list(roots), "version": 1})
    parts = [encode_varint(len(header)), header]
    for cid, block in blocks.items():
        parts += (encode_varint(len(cid) + len(block)), cid, block)
    return b"".join(parts)


def _read_section(data: bytes, offset: int, what: str) -> tuple[int, int]:
    """The start and end of the section whose length is at `offset`."""
    length, start = decode_varint(data, offset)
    if length > len(data) - start:
        raise CarError(
            f"broken CAR: the {what} at byte {offset} claims {length} bytes, "
            f"{len(data) - start} are left"
        )
    return start, start + length


def read_header(data: bytes) -> tuple[tuple[CID, ...], int]:
    """Return the roots that a CARv1 names, and the offset of its first block.

    Raises:
        CarError, VarintError: the header is not that of a CARv1.
    """
    common = read_common_header(data)
    return _read_any_header(data) if common is None else ((common[0],), common[1])


def read_common_header(data: bytes) -> tuple[CID, int] | None:
    """Return the root and the offset of the first block if the header is that of nearly all CARs:
    its bytes are known but for the digest of the one root. None if it is another one."""
    for before, start, end in _COMMON_HEADERS:
        if data.startswith(before) and data.startswith(_AFTER_ROOT, end):
            return bytes.__new__(CID, data[start:end]), end + len(_AFTER_ROOT)  # its head is known
    return None


def _read_any_header(data: bytes) -> tuple[tuple[CID, ...], int]:
    if not data:
        raise CarError("an empty file is not a CAR")
    start, end = _read_section(data, 0, "header")
    if end - start > _MAX_ROOTS:
        raise CarError(f"its header has {end - start} bytes; the limit is {_MAX_ROOTS}")
    text = data[start:end]
    if text.startswith(_VERSION_FIRST):
        text = text[:1] + text[len(_VERSION_FIRST) :] + _AFTER_ROOT
    try:
        header = dag_cbor.decode(text)
    except DagCborError as error:
        raise CarError(f"not a CAR, its header is {error}") from None
    return _check_header(header), end


def _check_header(header: Any) -> tuple[CID, ...]:
    if not isinstance(header, dict) or type(header.get("version")) is not int:
        raise CarError("not a CAR: its header has no version")
    if header["version"] != 1:
        raise CarError(f"a CAR of version {header['version']}; expected a CARv1")
    roots = header.get("roots")
    if header.keys() != {"roots", "version"} or not isinstance(roots, list):
        raise CarError("not a CARv1: its header must be a map of `roots` and `version` only")
    if not all(isinstance(root, CID) for root in roots):
        raise CarError("not a CARv1: its roots must be CIDs")
    return tuple(map(cid_of_block, roots))


def _read_blocks(
    data: bytes, offset: int, restore: Restore | None, max_digest: int
) -> tuple[dict[CID, bytes], bool]:
    """The blocks from `offset` on, and whether each came once, by a CIDv1 that it matched."""
    blocks: dict[CID, bytes] = {}
    sections = 0
    changed = False
    while offset < len(data):
        start, end = _read_section(data, offset, "block")
        cid, body = read_cid(data, start, max_digest)
        if body > end:
            raise CarError(f"broken CAR: the block at byte {offset} is shorter than its CID")
        if cid.is_v0:
            cid, changed = cid_of_block(cid), True
        block = data[body:end]
        if not cid.matches(block):
            canonical = None if restore is None else restore(block)
            if canonical is None or not cid.matches(canonical):
                raise CarError(
                    f"the block at byte {offset} of the CAR does not match its CID {cid}"
                )
            block, changed = canonical, True
        blocks[cid] = block
        offset = end
        sections += 1
    return blocks, len(blocks) == sections and not changed


def _common_header(codec: int) -> tuple[bytes, int, int]:
    """The bytes before the digest in a header with one root, and where the root starts and ends.

    The root has that codec and is hashed with sha2-256.
    """
    root = CID.of(codec, b"")
    before = encode([root], {}).removesuffix(root.digest + _AFTER_ROOT)
    start = len(before) - len(cid_head(codec))
    return before, start, start + len(root)


# The headers of nearly all CARs differ only in the digest of their one root.
_AFTER_ROOT: Final = dag_cbor.encode("version") + dag_cbor.encode(1)
_VERSION_FIRST: Final = b"\xa2" + _AFTER_ROOT
"""How a header begins that has its version first."""
_COMMON_HEADERS: Final = tuple(_common_header(codec) for codec in (DAG_JOSE, DAG_CBOR))
SIGNED_HEADER: Final = b"%b(%b.{32})%b" % (
    *map(re.escape, (_COMMON_HEADERS[0][0].removesuffix(cid_head(DAG_JOSE)), cid_head(DAG_JOSE))),
    re.escape(_AFTER_ROOT),
)
"""A pattern of the first of them, that of signed events, for `re.DOTALL`; the root is a group."""

_PRAGMA: Final = bytes.fromhex("0aa16776657273696f6e02")
_CHARACTERISTICS: Final = 16
_NUMBER: Final = 8
"""Bytes of an offset or a size."""
_V2_HEADER: Final = len(_PRAGMA) + _CHARACTERISTICS + 3 * _NUMBER

_BEGINNING: Final = re.compile(rb".{1,9}[\xa1-\xb7](\x65roots|\x67version)", re.DOTALL)
"""A varint, and a map in CBOR that starts with a key of a CAR's header."""
BEGINNING_SIZE: Final = 32
"""Bytes that suffice to tell a CAR."""

_MAX_HEADER: Final = 1024 * 1024
"""Bytes of a CARv1's header."""
_MAX_HEAD: Final = 5 * MAX_VARINT + MAX_INLINE
"""Bytes of a section's length and CID."""


class Section(NamedTuple):
    """A block in a file: its CID, the offset of its bytes, and their number."""

    cid: CID
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class CarLayout:
    """The roots that a CAR file names, and the offsets between which it has its blocks.

    `begin` is where the CARv1 begins that these blocks are in.
    """

    roots: tuple[CID, ...]
    begin: int
    start: int
    end: int


def looks_like_car(beginning: bytes) -> bool:
    """Whether a file that begins with these bytes is a CAR of any version, intact or not."""
    return _BEGINNING.match(beginning) is not None


def read_layout(file: BinaryIO) -> CarLayout:
    """Read the header of a CARv1, or those of a CARv2.

    Raises:
        CarError: not a CAR, or damaged.
        OSError: the file cannot be read.
    """
    end = file.seek(0, os.SEEK_END)
    file.seek(0)
    beginning = file.read(_V2_HEADER)
    at, end = _inner(beginning, end) if beginning.startswith(_PRAGMA) else (0, end)
    with _placed(at):
        file.seek(at)
        length, start = decode_varint(file.read(MAX_VARINT)) if at < end else (0, 0)
        if length > _MAX_HEADER:
            raise CarError(f"its header claims {length} bytes; the limit is {_MAX_HEADER}")
        file.seek(at)
        roots, start = read_header(file.read(min(start + length, end - at)))
    return CarLayout(roots, at, at + start, end)


def without_v2(data: bytes) -> bytes:
    """Return the CARv1 that is in a CARv2; other bytes as they are.

    Raises:
        CarError: a CARv2 that is damaged.
    """
    if not data.startswith(_PRAGMA):
        return data
    start, end = _inner(data[:_V2_HEADER], len(data))
    return data[start:end]


def sections(file: BinaryIO, layout: CarLayout) -> Iterator[Section]:
    """Yield where the blocks are, in their order.

    Raises:
        CarError: damaged; raised where the damage is.
        OSError: the file cannot be read.
    """
    at = layout.start
    while at < layout.end:
        file.seek(at)
        left = layout.end - at
        head = file.read(min(_MAX_HEAD, left))
        with _placed(at):
            length, start = decode_varint(head)
            if length > left - start:
                raise CarError(
                    f"the block at byte 0 claims {length} bytes, {left - start} are left"
                )
            cid, body = read_cid(head[: start + length], start, MAX_INLINE)
        yield Section(cid_of_block(cid), at + body, length - (body - start))
        at += start + length


def _inner(header: bytes, size: int) -> tuple[int, int]:
    """The offsets between which a CARv2 has its CARv1."""
    if len(header) < _V2_HEADER:
        raise CarError(f"a CARv2 that ends within its header, at byte {len(header)}")
    numbers = header[len(_PRAGMA) + _CHARACTERISTICS :]
    start, length = (int.from_bytes(numbers[at : at + _NUMBER], "little") for at in (0, _NUMBER))
    if start < _V2_HEADER or not length or start + length > size:
        raise CarError(
            f"a CARv2 whose header, at byte {len(_PRAGMA)}, places its CARv1 at byte {start} with "
            f"{length} bytes; the file has {size} bytes"
        )
    return start, start + length


@contextmanager
def _placed(at: int) -> Iterator[None]:
    """Count the positions in errors from the start of the file, not from `at`."""
    try:
        yield
    except IpldError as error:
        text = re.sub(r"\bat byte (\d+)", lambda match: f"at byte {int(match[1]) + at}", str(error))
        raise CarError(text) from None
