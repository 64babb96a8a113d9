"""The key store against other designs, all in one run.

    python -m benchmarks.key_store [--keys N] [--json FILE]

Times are in microseconds: a key for bulk_load and insert, a call (the median over random ranges)
for range_hash, middle and split16. bytes_per_key is what the process grew by, the keys included;
of SQLite it is the size of the file.

Every design lives in a process of its own. The measurements go round in passes, a share of each
design's in every pass, so that what else the machine does hits all of them alike. Of the loads and
the calls the median counts; of the inserts the mean.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.key_store_designs import (
    Design,
    ReconKeyStore,
    SqliteSums,
    SummingSortedList,
)
from benchmarks.keys import event_ids
from benchmarks.processes import memory
from benchmarks.report import Row, command_line, count, progress, show
from recon_node.recon import KeyRange

PASSES = 3
INSERTS = 6_000
"""Keys inserted in a pass."""

CALLS = 600
"""Calls of each kind in a pass."""

Times = dict[str, list[float]]


@dataclass(frozen=True, slots=True)
class Contestant:
    """A design, and its share of the calls: those that take milliseconds make fewer."""

    system: str
    make: Callable[[], Design]
    share: float = 1.0


DESIGNS = (
    Contestant("recon_node.KeyStore", ReconKeyStore),
    Contestant("SortedList, summing", SummingSortedList, 0.01),
    Contestant("SQLite with SUM()", SqliteSums, 0.005),
)


def run(keys: int, calls: int = CALLS) -> list[Row]:
    """Measure all designs over that many keys."""
    with _processes(keys, calls) as pipes:
        times: list[Times] = [{} for _ in DESIGNS]
        progress(f"{len(DESIGNS)} designs load {keys:,} keys each")
        sizes = [pipe.recv() for pipe in pipes]
        for number in range(PASSES):
            progress(f"pass {number + 1} of {PASSES}")
            for pipe, so_far in zip(pipes, times, strict=True):
                pipe.send(number)
                for name, more in pipe.recv().items():
                    so_far.setdefault(name, []).extend(more)
    return [
        {
            "system": design.system,
            "keys": keys,
            **{name: _average(name)(runs) * 1e6 for name, runs in so_far.items()},
            "bytes_per_key": size / keys,
        }
        for design, so_far, size in zip(DESIGNS, times, sizes, strict=True)
    ]


def _average(name: str) -> Callable[[list[float]], float]:
    return statistics.fmean if name == "insert_us" else statistics.median


@contextmanager
def _processes(keys: int, calls: int) -> Iterator[list[Connection]]:
    """Start a process for each design; yield the pipes to them."""
    context = multiprocessing.get_context("spawn")
    pipes: list[Connection] = []
    workers = []
    for index in range(len(DESIGNS)):
        ours, theirs = context.Pipe()
        worker = context.Process(target=_serve, args=(theirs, index, keys, calls), daemon=True)
        worker.start()
        theirs.close()
        pipes.append(ours)
        workers.append(worker)
    try:
        yield pipes
    finally:
        for pipe in pipes:
            pipe.close()  # the worker's next recv() ends it
        for worker in workers:
            worker.join()


def _serve(pipe: Connection, index: int, keys: int, calls: int) -> None:
    """Load one design, then measure a pass whenever asked to."""
    design = DESIGNS[index]
    try:
        store, size = _load_and_weigh(design, keys)
        contents = sorted(event_ids(keys, seed=1))
        gc.freeze()
        pipe.send(size)
        while True:
            number = pipe.recv()
            times = {"bulk_load_us": [_bulk_load(design, contents)]}
            pipe.send(times | _measure(store, number, max(2, int(calls * design.share))))
    except EOFError:
        return


def _load_and_weigh(design: Contestant, keys: int) -> tuple[Design, int]:
    """Return a loaded store, and the bytes that it takes together with its keys."""
    before = resident_bytes()
    contents = sorted(event_ids(keys, seed=1))
    store = design.make()
    store.load(contents)
    del contents
    if isinstance(store, SqliteSums):
        return store, store.file.stat().st_size
    return store, resident_bytes() - before


def _bulk_load(design: Contestant, keys: list[bytes]) -> float:
    """Return the seconds a key that loading a fresh store takes."""
    store = design.make()
    started = time.perf_counter()
    store.load(keys)
    return (time.perf_counter() - started) / len(keys)


def _measure(store: Design, number: int, calls: int) -> Times:
    fresh = event_ids(INSERTS, seed=2 + number)
    started = time.perf_counter()
    for key in fresh:
        store.add(key)
    inserted = (time.perf_counter() - started) / INSERTS
    rng = random.Random(number)
    ranges = [KeyRange(*sorted(rng.sample(fresh, 2))) for _ in range(calls)]
    return {
        "insert_us": [inserted],
        "range_hash_us": _times(store.hash, ranges),
        "middle_us": _times(lambda key_range: store.split(key_range, 2), ranges),
        "split16_us": _times(lambda key_range: store.split(key_range, 16), ranges),
    }


def _times(call: Callable[[KeyRange], Any], ranges: list[KeyRange]) -> list[float]:
    times = []
    for key_range in ranges:
        started = time.perf_counter()
        call(key_range)
        times.append(time.perf_counter() - started)
    return times


def resident_bytes() -> int:
    """Return what this process holds, after the allocator gave back what is free."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc alone has it
    if trim is not None:
        trim(0)
    return memory("VmRSS", os.getpid())


def main() -> None:
    """Run the benchmark from the command line."""
    parser = command_line("key_store", __doc__)
    parser.add_argument("--keys", type=count, default=1_000_000, metavar="N")
    options = parser.parse_args()
    show("Key store", run(options.keys), options.json)


if __name__ == "__main__":
    main()
