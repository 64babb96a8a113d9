"""CAR files of any size: the roots that they name, and where their blocks are.

A CARv2 is a CARv1 with a header before it, and perhaps an index after it, which is ignored:

    0a a1 67 "version" 02       the pragma: the header of a CAR that has nothing but its version
    characteristics             16 bytes, ignored
    offset, size                of the CARv1 in the file, and the offset of the index: each 8 bytes,
                                little-endian

Source: https://ipld.io/specs/transport/car/carv2/. Errors count bytes from the start of the
file. Blocks are not read here, so nothing is checked against its CID.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO, Final, NamedTuple

from recon_node.ipld import car, varint
from recon_node.ipld.cid import CID, MAX_INLINE, cid_of_block, read_cid
from recon_node.ipld.errors import CarError, IpldError

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
_MAX_HEAD: Final = 5 * varint.MAX_BYTES + MAX_INLINE
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
        length, start = varint.decode(file.read(varint.MAX_BYTES)) if at < end else (0, 0)
        if length > _MAX_HEADER:
            raise CarError(f"its header claims {length} bytes; the limit is {_MAX_HEADER}")
        file.seek(at)
        roots, start = car.read_header(file.read(min(start + length, end - at)))
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
    """Yield the places of the blocks, in their order.

    Raises:
        CarError: damaged; raised at the place of the damage.
        OSError: the file cannot be read.
    """
    at = layout.start
    while at < layout.end:
        file.seek(at)
        left = layout.end - at
        head = file.read(min(_MAX_HEAD, left))
        with _placed(at):
            length, start = varint.decode(head)
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
