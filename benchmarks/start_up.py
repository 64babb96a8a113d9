"""How long a node of many events takes to have its key store: from the log, and from saved keys.

    python -m benchmarks.start_up [--events N] [--directory DIR] [--json FILE]

The events are rows of the usual sizes, written straight into the log; their CARs are random bytes.
Every start is a process of its own; the system's cache is warm. Times are in seconds: open is the
file with its checks, keys the key store, close what a clean end takes (which saves the keys).
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import tempfile
import time
from pathlib import Path

from benchmarks.keys import event_ids
from benchmarks.report import Row, progress, show
from recon_node.ceramic import IN_MEMORY
from recon_node.store import StoreSettings
from recon_node.store.db import saved_keys, schema
from recon_node.store.db.log import EventLog

CAR_SIZE = 600
_PIECE = 10_000


def fill(directory: Path, events: int) -> None:
    """Make a log with that many events, all delivered."""
    rng = random.Random(4)
    connection = schema.open_database(directory, IN_MEMORY, "normal")
    connection.execute("BEGIN")
    keys = event_ids(events, seed=1)
    for start in range(0, events, _PIECE):
        rows = list(enumerate(keys[start : start + _PIECE], start + 1))
        connection.executemany(
            "INSERT INTO events (id, event_id, cid, init_cid, kind, state, signer, position) "
            "VALUES (?1, ?2, ?3, ?3, 'data', 3, 'did:key:z6Mk', ?1)",
            ((row, key, key[-36:]) for row, key in rows),
        )
        connection.executemany(
            "INSERT INTO cars (id, car) VALUES (?, ?)",
            ((row, b"\x3a" + rng.randbytes(CAR_SIZE - 1)) for row, _ in rows),
        )
    connection.execute("COMMIT")
    connection.close()


def start(directory: Path, way: str) -> Row:
    """Start and end once; called in a process of its own."""
    if way == "from the log":
        (directory / saved_keys.FILE_NAME).unlink(missing_ok=True)
    started = time.perf_counter()
    log = EventLog(directory, IN_MEMORY, StoreSettings(synchronous="normal"))
    opened = time.perf_counter()
    keys = log.load_keys()
    loaded = time.perf_counter()
    summary = keys.summarize()
    if way == "from the log":  # so that the end has something to save
        log._saved_keys.current = False
    ending = time.perf_counter()
    log.close()
    return {
        "start": way,
        "events": summary.count,
        "open_s": opened - started,
        "keys_s": loaded - opened,
        "start_s": loaded - started,
        "close_s": time.perf_counter() - ending,
        "sha256a": summary.hash.hex()[:16],
    }


def run(events: int, directory: Path) -> list[Row]:
    """Measure both ways; the first start saves the keys for the second."""
    progress(f"writing {events:,} events")
    fill(directory, events)
    rows = []
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for way in ("from the log", "from saved keys"):
            progress(way)
            rows.append(pool.apply(start, (directory, way)))
    if rows[0]["sha256a"] != rows[1]["sha256a"]:
        raise SystemExit("the two starts gave different key stores")
    return rows


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--directory", type=Path, help="where the log is made; removed afterwards")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        show("Start-up", run(options.events, Path(directory)), options.json)


if __name__ == "__main__":
    main()
