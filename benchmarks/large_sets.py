"""What a node takes that holds tens of millions of keys.

    python -m benchmarks.large_sets DIRECTORY --keys N [--json FILE]

The keys are made up and written by the store's own code as those of an empty log, which takes half
a minute for ten million, once for each directory. In the row,

    load_cpu_s, load_s   loading them, checksum included
    bytes_per_key        by which the process has grown then, the file not counted
    unpacked_per_key     the same once each key has been read
    hash_us, insert_us   the hash of a random range, and an insert, in leaves that are packed still;
                         `_again` once they are not
    sketch_s, lthash_s   the sums of all keys, which a store makes once and keeps up to date: CPU
    again_cpu_s          loading the keys with these sums, which were saved, too
    rounds, bytes, session_ms   a session with one difference; CPU of both sides
    start_s, start_cpu_s, node_mb   a node until it answers, and its memory, the file not counted
    killed_start_s       the same after it got 1,000 events and was killed (SIGKILL)

CPU is that of the process, all threads together.
"""

from __future__ import annotations

import os
import random
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.admission import signed_events
from benchmarks.contestants import reconcile
from benchmarks.daemon import NETWORK
from benchmarks.plain_http import post, send
from benchmarks.processes import cpu_seconds, memory
from benchmarks.report import Row, command_line, count, progress, show
from recon_node.base.program import no_garbage_collection
from recon_node.base.steps import run_steps
from recon_node.ceramic import network_range
from recon_node.recon import RECON_1_2, KeyRange, KeyStore, KeyView
from recon_node.store import StoreSettings
from recon_node.store.db.log import EventLog
from recon_node.store.db.log_schema import open_database
from recon_node.store.db.saved_keys import (
    KEYS,
    SUMS_FILE,
    Extent,
    load_latest_keys,
    save_keys,
    save_sums,
)
from recon_node.testnet import TestnetNode

WHOLE: Final = KeyRange(*map(bytes, network_range(NETWORK)))
CALLS: Final = 2_000
ADDED: Final = 1_000
"""Events that a node gets before it is killed."""
_FENCEPOST_TAIL: Final = 20 + 1 + 4
"""Bytes of a fencepost after the network: fields, height and CID."""
_HEAD: Final = WHOLE.lower[:-_FENCEPOST_TAIL]
_TAIL: Final = b"\x00" + bytes.fromhex("01711220")
_RANDOM: Final = 12, 32
"""Random bytes before and after the tail."""
_KEYS_PER_STEP: Final = 100_000
_NODE: Final = "node"


class MadeUpKeys(KeyView):
    """Random EventIds in order, which are never all in memory."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def __len__(self) -> int:
        return self.number

    def packed(self) -> Iterator[bytes]:
        """Yield them as a store does."""
        size = len(self.key(0, random.Random(0)))
        yield size.to_bytes(2, "little") * self.number
        for rows in self._rows(size):
            yield rows.tobytes()
        for rows in self._rows(size):
            keys = rows.tobytes()
            starts = range(0, len(keys), size)
            yield b"".join([sha256(keys[start : start + size]).digest() for start in starts])

    def key(self, place: int, rng: random.Random) -> bytes:
        """Return a key with the first eight bytes after the network's."""
        before, after = map(rng.randbytes, _RANDOM)
        return _HEAD + place.to_bytes(8, "big") + before + _TAIL + after

    def _rows(self, size: int) -> Iterator[np.ndarray[tuple[int, int], np.dtype[np.uint8]]]:
        gap = 2**64 // self.number
        tail = size - _RANDOM[1] - len(_TAIL)
        for start in range(0, self.number, _KEYS_PER_STEP):
            rng = np.random.default_rng([1, start])
            some = min(_KEYS_PER_STEP, self.number - start)
            rows = np.frombuffer(bytearray(rng.bytes(some * size)), np.uint8).reshape(some, size)
            places = np.arange(start, start + some, dtype=np.uint64) * np.uint64(gap)
            places += rng.integers(0, gap, some, np.uint64)
            rows[:, : len(_HEAD)] = np.frombuffer(_HEAD, np.uint8)
            in_order = places.astype(">u8").view(np.uint8).reshape(some, 8)
            rows[:, len(_HEAD) : len(_HEAD) + 8] = in_order
            rows[:, tail : tail + len(_TAIL)] = np.frombuffer(_TAIL, np.uint8)
            yield rows


def make(directory: Path, keys: int) -> None:
    """Make the data directory of a node whose log is empty and whose keys are saved."""
    progress(f"{keys:,} keys are made up")
    directory.mkdir(parents=True)
    EventLog(directory, NETWORK, StoreSettings()).close()
    connection = open_database(directory, NETWORK, "normal")
    save_keys(directory, connection, KEYS, MadeUpKeys(keys))
    connection.close()


def load(directory: Path) -> KeyStore:
    """Return the saved keys, each time in a store of its own."""
    connection = open_database(directory, NETWORK, "normal")
    with no_garbage_collection(for_good=True):
        latest = load_latest_keys(directory, connection, lambda: Extent(0, frozenset()))
    connection.close()
    assert latest is not None
    return latest[0]


def run(directory: Path, keys: int) -> Row:
    """Measure everything about one size."""
    data_dir = directory / _NODE
    if not data_dir.exists():
        make(data_dir, keys)
    (data_dir / SUMS_FILE).unlink(missing_ok=True)
    row: Row = {"keys": keys}
    progress("a node starts")
    row |= _starts(directory)
    progress("the keys are loaded")
    before, cpu, started = _own_memory(), time.process_time(), time.perf_counter()
    ours = load(data_dir)
    row["load_cpu_s"], row["load_s"] = time.process_time() - cpu, time.perf_counter() - started
    row["bytes_per_key"] = (_own_memory() - before) / keys
    if len(ours) != keys:
        raise SystemExit(f"{directory} has {len(ours):,} keys")
    row |= measure_calls(ours)
    row |= measure_sums_and_session(ours, data_dir)
    progress("each key is read")
    with no_garbage_collection():
        assert sum(1 for _ in ours) >= keys
    row["unpacked_per_key"] = (_own_memory() - before) / keys
    return row


def _own_memory() -> int:
    return memory("RssAnon", os.getpid())


def _starts(directory: Path) -> Row:
    """Measure a start, and one of a copy that gets events and is killed."""
    flags = ["--network", NETWORK.name, "--no-discovery"]
    node = TestnetNode(_NODE, directory, flags)
    try:
        row: Row = {"start_s": _start(node)}
        row |= {
            "start_cpu_s": cpu_seconds(node.pid),
            "node_mb": memory("RssAnon", node.pid) / 1e6,
        }
    finally:
        node.stop()
    copy = TestnetNode("copy", directory, flags)
    shutil.copytree(node.data_dir, copy.data_dir, dirs_exist_ok=True)
    try:
        _start(copy)
        send(copy.api_url, [post(copy.api_url, car) for car in signed_events(ADDED)])
        copy.kill()
        row["killed_start_s"] = _start(copy)
    finally:
        copy.stop()
        shutil.rmtree(copy.data_dir)
    return row


def _start(node: TestnetNode) -> float:
    started = time.perf_counter()
    node.launch()
    node.wait_until_ready()
    return time.perf_counter() - started


def measure_calls(store: KeyStore) -> Row:
    """Measure hashes and inserts; what was inserted is removed."""
    rng, made_up = random.Random(1), MadeUpKeys(len(store))
    bounds = [sorted(_HEAD + rng.randbytes(8) for _ in range(2)) for _ in range(CALLS)]
    ranges = [KeyRange(*each) for each in bounds]
    new = [[made_up.key(rng.getrandbits(64), rng) for _ in range(CALLS)]]
    new.append([key[:-32] + rng.randbytes(32) for key in new[0]])  # to the same leaves
    row = {}
    for name, added in zip(("", "_again"), new, strict=True):
        row[f"hash{name}_us"] = _microseconds(store.summarize, ranges)
        row[f"insert{name}_us"] = _microseconds(store.add, added)
    for key in (*new[0], *new[1]):
        store.discard(key)
    return row


def _microseconds(function: Callable[..., object], arguments: Sequence[object]) -> float:
    """Return what a call takes, the median."""
    times = []
    for argument in arguments:
        started = time.perf_counter_ns()
        function(argument)
        times.append((time.perf_counter_ns() - started) / 1000)
    return statistics.median(times)


def measure_sums_and_session(ours: KeyStore, data_dir: Path) -> Row:
    """Measure the sums of all keys, saving them, and a session with one difference."""
    progress("the sums of all keys are made, and a session compares them")
    row: Row = {}
    for name, made in (("sketch", ours.sums.sketch), ("lthash", ours.sums.lthash)):
        started = time.process_time()
        run_steps(made(WHOLE))
        row[f"{name}_s"] = time.process_time() - started
    with closing(open_database(data_dir, NETWORK, "normal")) as connection:
        save_sums(data_dir, connection, ours)
    started = time.process_time()
    theirs = load(data_dir)
    run_steps(theirs.sums.sketch(WHOLE))
    run_steps(theirs.sums.lthash(WHOLE))
    row["again_cpu_s"] = time.process_time() - started
    theirs.add(MadeUpKeys(len(ours)).key(2**63, random.Random(9)))
    cost = reconcile(RECON_1_2, WHOLE, ours, theirs)
    assert ours.summarize() == theirs.summarize()
    row["rounds"], row["bytes"] = cost.rounds, cost.bytes_sent + cost.bytes_received
    row["session_ms"] = cost.cpu_s * 1000
    return row


def main() -> None:
    """Run the benchmark from the command line."""
    parser = command_line("large_sets", __doc__)
    parser.add_argument("directory", type=Path, metavar="DIRECTORY")
    parser.add_argument("--keys", type=count, default=1_000_000, metavar="N")
    options = parser.parse_args()
    show("Large sets", [run(options.directory, options.keys)], options.json)


if __name__ == "__main__":
    main()
