"""A process that does one thing to a data directory, and writes a byte before each SQL statement.

    python upkeep_child.py ACTION DIRECTORY [FILE]

Whoever reads the bytes can end the process at any statement.
"""

import os
import sqlite3
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import trio
from store_helpers import NETWORK

from recon_node.ipld import CID
from recon_node.store import StoreSettings, open_store
from recon_node.store.db import event_table
from recon_node.store.maintenance import compact_log, forget_streams, import_events, repair_log

SETTINGS = StoreSettings(max_batch_events=50, verifiers=0)


class Traced(sqlite3.Connection):
    """A connection that tells of its statements."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.set_trace_callback(lambda _: os.write(1, b"."))


async def act(action: str, directory: Path, *files: Path) -> None:
    if action == "open":
        async with open_store(directory, NETWORK):
            pass
    elif action == "forget":
        await trio.to_thread.run_sync(forget_streams, directory, [CID.parse(files[0].name)])
    elif action == "compact":
        await trio.to_thread.run_sync(compact_log, directory)
    elif action == "repair":
        await repair_log(directory, SETTINGS)
    elif action == "import":
        archive = BytesIO(b"".join(file.read_bytes() for file in files))
        await import_events(directory, archive, SETTINGS)
    else:
        raise SystemExit(f"no such action: {action}")


if __name__ == "__main__":
    event_table._COPIED_AT_ONCE = 10  # type: ignore[misc]
    connect = sqlite3.connect
    sqlite3.connect = lambda *args, **kwargs: connect(*args, factory=Traced, **kwargs)  # type: ignore
    trio.run(act, sys.argv[1], *map(Path, sys.argv[2:]))
