"""How a CAR is stored: as it came, or without the blocks that other events share.

Time events of one anchor batch carry the same proof and much of the same Merkle tree; events signed
under one capability carry the same CACAO. Such blocks are kept once, in the table `blocks`, and the
CARs refer to them. Envelope and payload belong to one event only and stay where they are, so that
an event without shared blocks is stored as its plain CAR: one row, no lookups. What was cut out is
put back in its place on reading: the same bytes come out as went in.

    plain    a CAR; its first byte is the length of its header, never 0
    packed   00 | size of the CAR, u32 | n, u32 | n references, u64 | the CAR without those blocks

A reference is ``offset << 40 | block``: the section of that row of `blocks` belongs at that offset
of what is left of the CAR. Integers are little-endian.

Measured for 20,000 events each (bytes an event in the file), as whole CARs, with a row for each
block, and packed:

    time events, trees of 1024    2,052    616    557
    time events, trees of 16      1,027    524    503
    time events, trees of 1         457    509    511
    20 events a capability        1,369    730    722
    signed events                   605    674    605

With a row for each block, signed events are five times as slow to write and four times as slow to
read; packing costs them nothing. A packed time event takes 10 to 20 microseconds more to write, of
about 200, and 4 to 6 more to read, of about 8.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Final

from recon_node.ceramic import Event, EventKind
from recon_node.ipld import CID, CarError, IpldError, read_cid, varint
from recon_node.verification import Facts

_HEAD: Final = struct.Struct("<BII")
_ID_BITS: Final = 40
_ID_MASK: Final = (1 << _ID_BITS) - 1

SMALLEST: Final = 64
"""A section of fewer bytes stays where it is: a reference and a row would take more."""


def section(cid: CID, block: bytes) -> bytes:
    """Return a block as a section of a CAR."""
    return varint.encode(len(cid) + len(block)) + cid + block


def sections(car: bytes) -> Iterator[tuple[CID, int, int, int]]:
    """Yield each section of a CAR: its CID, its start, where its block starts, and the end of both.

    No hash is checked.

    Raises:
        CarError: this is not a CAR.
    """
    try:
        length, start = varint.decode(car)
        at = start + length
        while at < len(car):
            length, start = varint.decode(car, at)
            cid, block = read_cid(car, start)
            yield cid, at, block, start + length
            at = start + length
    except IpldError as error:
        raise CarError(f"broken CAR: {error}") from None
    if at > len(car):
        raise CarError("broken CAR: its last block is truncated")


def shareable(event: Event | Facts) -> dict[CID, bytes]:
    """Return the blocks of an event that other events may carry, too."""
    payload = None if event.envelope is None else event.envelope.payload
    if event.kind is not EventKind.TIME and (
        event.envelope is None or event.envelope.capability is None
    ):
        return {}
    return {
        cid: event.car[block:end]
        for cid, start, block, end in sections(event.car)
        if cid not in (event.cid, payload) and end - start >= SMALLEST
    }


def pack(car: bytes, rows: Mapping[CID, int]) -> bytes:
    """Return a CAR without the blocks of these CIDs, whose rows are given."""
    if not rows:
        return car
    parts: list[bytes] = []
    references: list[int] = []
    kept = left = 0  # up to where the CAR is dealt with; bytes that are left of it
    for cid, start, _, end in sections(car):
        row = rows.get(cid)
        if row is None:
            continue
        parts.append(car[kept:start])
        left += start - kept
        references.append(left << _ID_BITS | row)
        kept = end
    parts.append(car[kept:])
    head = _HEAD.pack(0, len(car), len(references))
    return b"".join((head, struct.pack(f"<{len(references)}Q", *references), *parts))


def is_packed(stored: bytes) -> bool:
    """Tell a packed CAR from a plain one."""
    return stored[:1] == b"\0"


def full_size(stored: bytes, length: int | None = None) -> int:
    """Return the bytes of the CAR that was stored so.

    The first nine bytes of what is stored are enough, together with its `length` in bytes.
    """
    if not is_packed(stored) or len(stored) < _HEAD.size:  # shorter: damaged
        return len(stored) if length is None else length
    size: int = _HEAD.unpack_from(stored)[1]
    return size


def references(stored: bytes) -> list[int]:
    """Return the rows of `blocks` that a stored CAR refers to, in its order.

    Raises:
        CarError: this is neither a packed CAR nor a plain one.
    """
    if not is_packed(stored):
        return []
    try:
        count = _HEAD.unpack_from(stored)[2]
        return [each & _ID_MASK for each in struct.unpack_from(f"<{count}Q", stored, _HEAD.size)]
    except struct.error as error:
        raise CarError(f"broken packed CAR: {error}") from None


def unpack(stored: bytes, sections_of: Mapping[int, bytes]) -> bytes:
    """Return the CAR that was stored so; `sections_of` has the sections of the rows it refers to.

    Raises:
        CarError: what is stored is damaged, or a row is missing.
    """
    if not is_packed(stored):
        return stored
    try:
        _, size, count = _HEAD.unpack_from(stored)
        found = struct.unpack_from(f"<{count}Q", stored, _HEAD.size)
        rest = stored[_HEAD.size + 8 * count :]
        parts: list[bytes] = []
        done = 0
        for reference in found:
            offset = reference >> _ID_BITS
            parts += (rest[done:offset], sections_of[reference & _ID_MASK])
            done = offset
    except struct.error as error:
        raise CarError(f"broken packed CAR: {error}") from None
    except KeyError as error:
        raise CarError(f"the shared block in row {error} is damaged or missing") from None
    parts.append(rest[done:])
    car = b"".join(parts)
    if len(car) != size:
        raise CarError(f"broken packed CAR: {len(car)} bytes came together, not {size}")
    return car
