"""How long a node of many events takes to have its keys: from the log, and from saved keys.

With `ceramic_one` off and on: the second index, for ceramic-one nodes, has the same keys in their
form.

    python -m benchmarks.start_up [--events N,N...] [--directory DIR] [--json FILE]

The events are rows of the usual sizes, written straight into the log; their CARs are random bytes.
Every start is a process of its own; the system's cache is warm. Times are in seconds: open is the
file with its checks, keys the key store, ring the second index, close what a clean end takes (which
saves the keys). The memory is that of the key store and that of the second index. An insert adds a
key to both, or to the first; a hash is that of a range between two keys, of any size. To start, no
CAR is read: with `--car-size 1` the largest logs fit on a small disk.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import random
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from benchmarks.key_store import resident_bytes
from benchmarks.keys import KEY_SIZE, event_ids
from benchmarks.report import Row, numbers, progress, show
from recon_node.ceramic import IN_MEMORY, EventId, StreamId
from recon_node.ceramic.event_id import short_hash
from recon_node.ipld import CID
from recon_node.recon import KeyRange
from recon_node.store import StoreSettings
from recon_node.store.db import saved_keys, schema
from recon_node.store.db.log import EventLog

CAR_SIZE = 600
MODELS = 50
INSERTS = 20_000
HASHES = 20_000
_PIECE = 10_000
_SEPARATOR = slice(KEY_SIZE - 57, KEY_SIZE - 49)
"""Where the separator is in an EventId of `benchmarks.keys`."""


def models() -> list[StreamId]:
    """Return the models of the streams."""
    rng = random.Random(5)
    return [StreamId(2, CID(bytes.fromhex("01711220") + rng.randbytes(32))) for _ in range(MODELS)]


def of_models(count: int, seed: int) -> list[bytes]:
    """Return EventIds of streams of these models."""
    hashes = [short_hash(str(each)) for each in models()]
    keys = event_ids(count, seed)
    stop = _SEPARATOR.stop
    return [
        key[: _SEPARATOR.start] + hashes[int.from_bytes(key[stop : stop + 4]) % MODELS] + key[stop:]
        for key in keys
    ]


def fill(directory: Path, events: int, car_size: int = CAR_SIZE) -> None:
    """Make a log with that many events, all delivered."""
    rng = random.Random(4)
    connection = schema.open_database(directory, IN_MEMORY, "normal")
    connection.execute("PRAGMA cache_size = -2000000")  # 2 GB: EventIds land anywhere
    connection.execute("BEGIN")
    keys = of_models(events, seed=1)
    connection.executemany(
        "INSERT INTO streams VALUES (?, 'did:key:z6Mk', 'model', ?)",
        ((rng.randbytes(36), str(each)) for each in models() for _ in range(events // MODELS // 4)),
    )
    for start in range(0, events, _PIECE):
        rows = list(enumerate(keys[start : start + _PIECE], start + 1))
        connection.executemany(
            "INSERT INTO events (id, name, cid, kind, state, position, stream) "
            "VALUES (?1, ?2, ?3, 'data', 3, ?1, ?1)",
            ((row, key[:-36], key[-36:]) for row, key in rows),
        )
        connection.executemany(
            "INSERT INTO cars (id, car) VALUES (?, ?)",
            ((row, b"\x3a" + rng.randbytes(car_size - 1)) for row, _ in rows),
        )
    connection.execute("COMMIT")
    connection.close()


def start(directory: Path, way: str, ceramic_one: bool) -> Row:
    """Start and end once; called in a process of its own."""
    if way == "from the log":
        for name in saved_keys.FILE_NAMES.values():
            (directory / name).unlink(missing_ok=True)
    empty = resident_bytes()
    started, cpu = time.perf_counter(), time.process_time()
    log = EventLog(directory, IN_MEMORY, StoreSettings(synchronous="normal"))
    opened = time.perf_counter()
    gc.disable()  # as the store does
    keys = log.load_keys()
    loaded = time.perf_counter()
    before = resident_bytes()
    ring_starts = time.perf_counter()
    ring = log.load_ring_keys(keys) if ceramic_one else None
    ring_s = time.perf_counter() - ring_starts if ring else 0.0
    gc.enable()
    cpu = time.process_time() - cpu
    ring_bytes = resident_bytes() - before if ring else 0
    summary = keys.summarize()
    if way == "from the log":  # so that the end has something to save
        saved_keys.forget_keys(log.connection)
    ending = time.perf_counter()
    log.close(keys, ring.keys if ring else None)
    ended = time.perf_counter()
    ranges = [KeyRange(min(two), max(two)) for two in pairwise(of_models(HASHES + 1, seed=3))]
    hashing = time.perf_counter()
    for key_range in ranges:
        keys.summarize(key_range)
    hashed = time.perf_counter()
    fresh = [EventId(each) for each in of_models(INSERTS, seed=2)]
    inserting = time.perf_counter()
    for each in fresh:
        keys.add(each)
        if ring:
            ring.put_back(each)
    inserted = time.perf_counter()
    return {
        "start": way,
        "ceramic_one": "on" if ceramic_one else "off",
        "events": summary.count,
        "open_s": opened - started,
        "keys_s": loaded - opened,
        "ring_s": ring_s,
        "start_s": loaded - started + ring_s,
        "start_cpu_s": cpu,
        "close_s": ended - ending,
        "bytes_a_key": (before - empty) / summary.count,
        "ring_bytes_a_key": ring_bytes / summary.count,
        "hash_us": (hashed - hashing) / HASHES * 1e6,
        "insert_us": (inserted - inserting) / INSERTS * 1e6,
        "sha256a": summary.hash.hex()[:16],
    }


def run(events: int, directory: Path, car_size: int) -> list[Row]:
    """Measure both ways; the first start saves the keys for the second."""
    progress(f"writing {events:,} events")
    fill(directory, events, car_size)
    rows = []
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for ceramic_one in (False, True):
            for way in ("from the log", "from saved keys"):
                progress(way)
                rows.append(pool.apply(start, (directory, way, ceramic_one)))
    if len({row["sha256a"] for row in rows}) != 1:
        raise SystemExit("the starts gave different key stores")
    return rows


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--events", type=numbers, default=[1_000_000])
    parser.add_argument("--car-size", type=int, default=CAR_SIZE, metavar="BYTES")
    parser.add_argument("--directory", type=Path, help="where the log is made; removed afterwards")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows: list[Row] = []
    for events in options.events:
        with tempfile.TemporaryDirectory(dir=options.directory) as directory:
            rows += run(events, Path(directory), options.car_size)
    show("Start-up", rows, options.json)


if __name__ == "__main__":
    main()
