"""How a CAR is stored: as it came, without what it says twice, or without the blocks that other
events share.

Time events of one anchor batch carry the same proof and much of the same Merkle tree; events signed
under one capability carry the same CACAO. Such blocks are kept once, in the table `blocks`, and the
CARs refer to them. Envelope and payload belong to one event only and stay where they are, so that
an event without shared blocks is stored as its plain CAR: one row, no lookups. What was cut out is
put back in its place on reading: the same bytes come out as went in.

    plain     a CAR; its first byte is the length of its header, never 0, 1 (forgotten) or 2
    trimmed   02 | the CAR without its header and the CID of its first block
    packed    00 | size of the CAR, u32 | n, u32 | n references, u64 | the CAR without those blocks

Trimmed are the CARs that the network's programs write of a signed event: the payload, then the
envelope, which is the root. The header only repeats the envelope's CID, and the envelope begins
with the payload's: 95 bytes of the 660 of a small event. Nothing is hashed to put them back, so
damage is noticed as in a plain CAR.

A reference is `offset << 40 | block`: the section of that row of `blocks` belongs at that offset of
what is left of the CAR. Integers are little-endian.

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

Rows of `blocks` never change, except that damaged ones are repaired; only `recon-node store
compact` deletes them, when no event refers to them any more. So a reader may keep those that it has
read and that match their CIDs. A block is cut out when its first event arrives, whether others will
share it or not: waiting for the second one would mean writing the first event again.
"""

import sqlite3
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final

from recon_node.ceramic import Event, EventKind
from recon_node.ipld import (
    CID,
    CarError,
    CidError,
    IpldError,
    VarintError,
    decode_varint,
    encode_varint,
    read_cid,
)
from recon_node.store.db.sql import select_in
from recon_node.verification import Facts

_HEAD: Final = struct.Struct("<BII")
_ID_BITS: Final = 40
_ID_MASK: Final = (1 << _ID_BITS) - 1

SMALLEST: Final = 64
"""A section of fewer bytes stays where it is: a reference and a row would take more."""


def section(cid: CID, block: bytes) -> bytes:
    """Return a block as a section of a CAR."""
    return encode_varint(len(cid) + len(block)) + cid + block


def sections(car: bytes) -> Iterator[tuple[CID, int, int, int]]:
    """Yield each section of a CAR: its CID, its start, where its block starts, and the end of both.

    No hash is checked.

    Raises:
        CarError: this is not a CAR.
    """
    try:
        length, start = decode_varint(car)
        at = start + length
        while at < len(car):
            length, start = decode_varint(car, at)
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


_TRIMMED: Final = b"\2"
_HEADER_START: Final = b"\x3b\xa2eroots\x81\xd8*X\x26\x00"
_HEADER_END: Final = b"gversion\x01"
_ROOT: Final = slice(14, 51)
"""Where the header has the CID of an envelope."""
_ROOT_SIZE: Final = 37
_FIRST_BLOCK: Final = 60
_ENVELOPE_START: Final = b"\xa2gpayloadX\x24"
_CID_SIZE: Final = 36
"""Bytes of the CID of a payload."""
_PAYLOAD_CID: Final = _ROOT_SIZE + len(_ENVELOPE_START)
"""Where the section of an envelope has it."""
_CUT_OUT: Final = _FIRST_BLOCK + _CID_SIZE - len(_TRIMMED)


def trim(car: bytes) -> bytes:
    """Return a CAR without what it says twice, or as it is if it has another form."""
    root = car[_ROOT]
    if not car.startswith(_HEADER_START) or car[_ROOT.stop : _FIRST_BLOCK] != _HEADER_END:
        return car
    try:
        length, first = decode_varint(car, _FIRST_BLOCK)
        length, second = decode_varint(car, end := first + length)
    except VarintError:
        return car
    payload = first + _CID_SIZE
    envelope = root + _ENVELOPE_START + car[first:payload]
    if second + length != len(car) or payload > end or not car.startswith(envelope, second):
        return car
    return b"".join((_TRIMMED, car[_FIRST_BLOCK:first], car[payload:]))


def _untrim(stored: bytes) -> bytes:
    try:
        length, payload = decode_varint(stored, 1)
        _, root = decode_varint(stored, payload + length - _CID_SIZE)
    except VarintError as error:
        raise CarError(f"broken CAR: {error}") from None
    cid = root + _PAYLOAD_CID
    return b"".join((
        _HEADER_START, stored[root : root + _ROOT_SIZE], _HEADER_END,
        stored[1:payload], stored[cid : cid + _CID_SIZE], stored[payload:],
    ))  # fmt: skip


def pack(car: bytes, rows: Mapping[CID, int]) -> bytes:
    """Return a CAR without the blocks of these CIDs, whose rows are given."""
    if not rows:
        return trim(car)
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
    """Return whether a CAR is packed."""
    return stored[:1] == b"\0"


def full_size(stored: bytes | None, length: int | None = None) -> int:
    """Return the bytes of the CAR that was stored so.

    The first nine bytes of what is stored are enough, together with its `length` in bytes. SQLite's
    substr() of nothing, which is stored of forgotten events, is null.
    """
    if stored is None:
        return 0
    if not is_packed(stored) or len(stored) < _HEAD.size:  # shorter: damaged
        cut_out = _CUT_OUT if stored[:1] == _TRIMMED else 0
        return cut_out + (len(stored) if length is None else length)
    size: int = _HEAD.unpack_from(stored)[1]
    return size


def references(stored: bytes) -> list[int]:
    """Return the rows of `blocks` that a stored CAR refers to, in its order.

    Raises:
        CarError: it is damaged.
    """
    if not is_packed(stored):
        return []
    try:
        count = _HEAD.unpack_from(stored)[2]
        return [id_ & _ID_MASK for id_ in struct.unpack_from(f"<{count}Q", stored, _HEAD.size)]
    except struct.error as error:
        raise CarError(f"broken packed CAR: {error}") from None


def unpack(stored: bytes, sections_of: Mapping[int, bytes]) -> bytes:
    """Return the CAR that was stored so; `sections_of` has the sections of the rows it refers to.

    Raises:
        CarError: what is stored is damaged, or a row is missing.
    """
    if not is_packed(stored):
        return _untrim(stored) if stored[:1] == _TRIMMED else stored
    try:
        _, size, count = _HEAD.unpack_from(stored)
        rows = struct.unpack_from(f"<{count}Q", stored, _HEAD.size)
        rest = stored[_HEAD.size + 8 * count :]
        parts: list[bytes] = []
        done = 0
        for reference in rows:
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


_CACHE_BYTES: Final = 4 * 1024 * 1024
"""Sections that a reader remembers."""


def cut_out_shared(connection: sqlite3.Connection, events: Sequence[Event | Facts]) -> list[bytes]:
    """Keep what events share, within a transaction; return what is to be stored as their CARs."""
    shared = [shareable(event) for event in events]
    blocks = {cid: block for in_car in shared for cid, block in in_car.items()}
    rows = _rows_of(connection, blocks) if blocks else {}
    return [
        pack(event.car, {cid: rows[cid] for cid in cids})
        for event, cids in zip(events, shared, strict=True)
    ]


def _rows_of(connection: sqlite3.Connection, blocks: dict[CID, bytes]) -> dict[CID, int]:
    """Return the rows of these blocks; new ones are written."""
    sql = "SELECT cid, id, block FROM blocks WHERE cid IN (?)"
    stored_blocks = list(select_in(connection, sql, list(blocks)))
    rows = {CID(cid): row for cid, row, _ in stored_blocks}
    # A damaged copy is replaced by the one at hand, which was checked: for all events with it.
    connection.executemany(
        "UPDATE blocks SET block = ? WHERE id = ?",
        ((blocks[CID(cid)], row) for cid, row, block in stored_blocks if block != blocks[CID(cid)]),
    )
    missing = [cid for cid in blocks if cid not in rows]
    if missing:
        (last,) = connection.execute("SELECT coalesce(max(id), 0) FROM blocks").fetchone()
        rows.update((cid, last + n) for n, cid in enumerate(missing, 1))
        connection.executemany(
            "INSERT INTO blocks (id, cid, block) VALUES (?, ?, ?)",
            ((rows[cid], cid, blocks[cid]) for cid in missing),
        )
    return rows


class BlockReader:
    """Makes CARs whole again.

    Args:
        connection: to the log.
        remember: keep what was read, up to 4 MiB. Not within a transaction that may be rolled
            back: the ids of its rows may be given to other blocks.
    """

    def __init__(self, connection: sqlite3.Connection, *, remember: bool = False) -> None:
        self._connection = connection
        self._remember = remember
        self._sections: dict[int, bytes] = {}
        self._bytes = 0

    def restore(self, stored: Sequence[bytes]) -> list[bytes]:
        """Return the CARs that were stored so.

        Raises:
            CarError: one is damaged, or a block that it refers to is damaged or missing.
        """
        packed = [car for car in stored if car[:1] == b"\0"]
        sections = self._load({row for car in packed for row in references(car)}) if packed else {}
        return [unpack(car, sections) for car in stored]

    def restore_each(self, stored: Sequence[bytes | None]) -> list[bytes | CarError]:
        """Do the same, with an error in the place of each CAR that cannot be restored."""
        whole = [car for car in stored if car is not None]
        if len(whole) == len(stored):
            with suppress(CarError):
                return list(self.restore(whole))
        return [self._restore_one(car) for car in stored]

    def _restore_one(self, stored: bytes | None) -> bytes | CarError:
        if stored is None:
            return CarError("its CAR is missing")
        try:
            [car] = self.restore([stored])
        except CarError as error:
            return error
        return car

    def _load(self, rows: Iterable[int]) -> dict[int, bytes]:
        if not self._remember or self._bytes > _CACHE_BYTES:
            self._sections, self._bytes = {}, 0
        sections = self._sections
        missing = [row for row in rows if row not in sections]
        sql = "SELECT id, cid, block FROM blocks WHERE id IN (?)"
        for row, cid, block in select_in(self._connection, sql, missing):
            if _matches(cid, block):  # a damaged one counts as missing, and is not remembered
                sections[row] = section(CID(cid), block)
                self._bytes += len(sections[row])
        return sections


def _matches(cid: bytes, block: bytes) -> bool:
    try:
        return CID(cid).matches(block)
    except CidError:
        return False
