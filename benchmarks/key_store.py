"""The key store against a sorted list that adds up the hashes of a range.

    python -m benchmarks.key_store [--keys N] [--json FILE]

Times are in microseconds: a key for bulk_load and insert, a call (the median over random ranges)
for range_hash, middle and split16. bytes_per_key is what the process grew by, the keys included.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import random
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

from sortedcontainers import SortedList

from benchmarks.keys import event_ids
from benchmarks.report import Row, progress, show
from recon_node.recon import KeyRange, KeyStore, Sha256a

INSERTS = 20_000


class Store(Protocol):
    """What both contestants offer."""

    def load(self, keys: Iterable[bytes]) -> None: ...
    def add(self, key: bytes) -> object: ...
    def hash(self, key_range: KeyRange) -> object: ...
    def middle(self, key_range: KeyRange) -> object: ...
    def split(self, key_range: KeyRange, parts: int) -> object: ...


class ReconKeyStore(KeyStore):
    """This project's key store."""

    def hash(self, key_range: KeyRange) -> object:
        return self.summarize(key_range)


class SummingSortedList:
    """sortedcontainers.SortedList with the digests beside it, added up for each range."""

    def __init__(self) -> None:
        self._keys: Any = SortedList()

    def load(self, keys: Iterable[bytes]) -> None:
        self._keys.update((key, sha256(key).digest()) for key in keys)

    def add(self, key: bytes) -> None:
        self._keys.add((key, sha256(key).digest()))

    def _inside(self, key_range: KeyRange) -> Iterator[tuple[bytes, bytes]]:
        after = key_range.lower + b"\x00"
        yield from self._keys.irange((after,), (key_range.upper,), inclusive=(True, False))

    def hash(self, key_range: KeyRange) -> Sha256a:
        digests = b"".join(digest for _, digest in self._inside(key_range))
        lanes = memoryview(digests).cast("I")
        sums = (sum(lanes[lane::8].tolist()) % 2**32 for lane in range(8))
        return Sha256a(b"".join(each.to_bytes(4, "little") for each in sums))

    def _ranks(self, key_range: KeyRange) -> tuple[int, int]:
        first = self._keys.bisect_left((key_range.lower + b"\x00",))
        return first, self._keys.bisect_left((key_range.upper,)) - first

    def middle(self, key_range: KeyRange) -> object:
        first, size = self._ranks(key_range)
        return self._keys[first + size // 2][0]

    def split(self, key_range: KeyRange, parts: int) -> list[bytes]:
        first, size = self._ranks(key_range)
        return [self._keys[first + i * size // parts][0] for i in range(1, parts)]


def measure(system: str, make: Callable[[], Store], keys: int, calls: int) -> Row:
    """Measure one store; called in a process of its own, so that memory is its own too."""
    progress(f"{system}: {keys:,} keys")
    before = _resident_bytes()
    contents = sorted(event_ids(keys, seed=1))
    store = make()
    gc.freeze()
    started = time.perf_counter()
    store.load(contents)
    loaded = time.perf_counter() - started
    del contents
    bytes_per_key = (_resident_bytes() - before) / keys
    fresh = event_ids(INSERTS, seed=2)
    started = time.perf_counter()
    for key in fresh:
        store.add(key)
    inserted = time.perf_counter() - started
    rng = random.Random(3)
    ranges = [KeyRange(*sorted(rng.sample(fresh, 2))) for _ in range(calls)]
    return {
        "system": system,
        "keys": keys,
        "bulk_load_us": loaded / keys * 1e6,
        "insert_us": inserted / INSERTS * 1e6,
        "range_hash_us": _median_us(store.hash, ranges),
        "middle_us": _median_us(store.middle, ranges),
        "split16_us": _median_us(lambda key_range: store.split(key_range, 16), ranges),
        "bytes_per_key": bytes_per_key,
    }


def _median_us(call: Callable[[KeyRange], object], ranges: list[KeyRange]) -> float:
    times = []
    for key_range in ranges:
        started = time.perf_counter()
        call(key_range)
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1e6


def _resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * 4096


def run(keys: int) -> list[Row]:
    """Measure all stores over that many keys."""
    contestants: list[tuple[str, Callable[[], Store], int, int]] = [
        ("recon_node.KeyStore", ReconKeyStore, keys, 2_000),
        ("SortedList, summing", SummingSortedList, keys, 20),
    ]
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        return pool.starmap(measure, contestants, chunksize=1)


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    show("Key store", run(options.keys), options.json)


if __name__ == "__main__":
    main()
