"""The blocks that events share, in the table `blocks`: cut out on the way in, put back on the way
out (see `packing` for the form and for what it saves).

Rows never change, except that damaged ones are repaired; only `recon-node store compact` deletes
them, when no event refers to them any more. So a reader may keep those that it has read and that
match their CIDs. A block is cut out when its first event arrives, whether others will share it or
not: waiting for the second one would mean writing the first event again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

from recon_node.ceramic import Event
from recon_node.ipld import CID, CarError, CidError, read_cid, varint
from recon_node.store.db.packing import pack, references, section, shareable, unpack
from recon_node.store.db.sql import select_in
from recon_node.verification import Facts

MIGRATION = """
    CREATE TABLE blocks (
        id    INTEGER PRIMARY KEY,
        cid   BLOB NOT NULL UNIQUE,
        block BLOB NOT NULL
    ) STRICT;
    """

_CACHE_BYTES: Final = 4 * 1024 * 1024
"""Sections that a reader remembers."""


def cut_out_shared(connection: sqlite3.Connection, events: Sequence[Event | Facts]) -> list[bytes]:
    """Keep what events share, within a transaction; return what is to be stored as their CARs."""
    shared = [shareable(event) for event in events]
    blocks = {cid: block for each in shared for cid, block in each.items()}
    rows = _rows_of(connection, blocks) if blocks else {}
    return [
        pack(event.car, {cid: rows[cid] for cid in cids})
        for event, cids in zip(events, shared, strict=True)
    ]


def _rows_of(connection: sqlite3.Connection, blocks: dict[CID, bytes]) -> dict[CID, int]:
    """Return the rows of these blocks; new ones are written."""
    sql = "SELECT cid, id, block FROM blocks WHERE cid IN (?)"
    found = list(select_in(connection, sql, list(blocks)))
    rows = {CID(cid): row for cid, row, _ in found}
    # A damaged copy is replaced by the one at hand, which was checked: for all events with it.
    connection.executemany(
        "UPDATE blocks SET block = ? WHERE id = ?",
        ((blocks[CID(cid)], row) for cid, row, block in found if block != blocks[CID(cid)]),
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
        packed = [each for each in stored if each[:1] == b"\0"]
        if not packed:
            return list(stored)
        sections = self._load({row for each in packed for row in references(each)})
        return [unpack(each, sections) for each in stored]

    def restore_each(self, stored: Sequence[bytes | None]) -> list[bytes | CarError]:
        """Do the same, with an error in the place of each CAR that cannot be restored."""
        whole = [each for each in stored if each is not None]
        if len(whole) == len(stored):
            with suppress(CarError):
                return list(self.restore(whole))
        return [self._restore_one(each) for each in stored]

    def _restore_one(self, stored: bytes | None) -> bytes | CarError:
        if stored is None:
            return CarError("its CAR is missing")
        try:
            [car] = self.restore([stored])
        except CarError as error:
            return error
        return car

    def cids(self, stored: bytes) -> list[CID]:
        """Return the CIDs of the blocks that a stored CAR refers to, in its order.

        Raises:
            CarError: it is damaged, or a block that it refers to is missing.
        """
        rows = references(stored)
        sections = self._load(rows)
        try:
            found = [sections[row] for row in rows]
        except KeyError as error:
            raise CarError(f"the shared block in row {error} is damaged or missing") from None
        return [read_cid(each, varint.decode(each)[1])[0] for each in found]

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
