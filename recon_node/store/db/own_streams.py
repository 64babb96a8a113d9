"""Which streams the node's own clients have written to: those whose events its API admitted.

Time events do not count, since anybody can make them. Nothing here begins or ends a transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

from recon_node.ipld import CID
from recon_node.store.db.sql import select_in

if TYPE_CHECKING:  # its module needs the migrations, and this one is one of them
    from recon_node.store.db.reader import Reader

MIGRATION: Final = "CREATE TABLE own_streams (init_cid BLOB PRIMARY KEY) STRICT, WITHOUT ROWID;"


def note_own_streams(connection: sqlite3.Connection, inits: Collection[CID]) -> None:
    """Note that a client wrote to the streams that some init events start."""
    connection.executemany(
        "INSERT OR IGNORE INTO own_streams (init_cid) VALUES (?)", [(init,) for init in inits]
    )


def read_own_streams(inits: Sequence[CID], reader: Reader) -> set[CID]:
    """Return those of some streams to which clients wrote."""
    sql = "SELECT init_cid FROM own_streams WHERE init_cid IN (?)"
    return {CID(init) for (init,) in select_in(reader.connection, sql, inits)}
