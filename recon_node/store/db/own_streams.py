"""Which streams the node's own clients have written to: those whose events its API admitted.

Time events do not count, since anybody can make them. Nothing here begins or ends a transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from typing import Final

from recon_node.ipld import CID

MIGRATION: Final = "CREATE TABLE own_streams (init_cid BLOB PRIMARY KEY) STRICT, WITHOUT ROWID;"


def note_own_streams(connection: sqlite3.Connection, inits: Collection[CID]) -> None:
    """Note that a client wrote to the streams that some init events start."""
    connection.executemany(
        "INSERT OR IGNORE INTO own_streams (init_cid) VALUES (?)", [(init,) for init in inits]
    )
