"""What a node that lacks some of many events fetches from a snapshot, beside recon/1.2.0.

    python -m benchmarks.snapshot --keys 1000000 --json FILE

A snapshot of N made-up events of 600 bytes is written to a directory, then one of 1,000 more. Then
nodes that lack some of the events sync from it. In each row,

    nodes_bytes     bytes fetched to find out what is missing: the root object and the tree
    event_bytes     bytes of the events fetched
    rounds          dependent round trips, that for the root object included
    recon_bytes     of recon/1.2.0, both directions, without the events; recon_rounds likewise
    seconds         of the sync, without admission

How fast events are admitted from a snapshot, and from a peer: `python -m benchmarks.admission`.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import trio
from nacl.signing import SigningKey

from benchmarks.contestants import CONTESTANTS
from benchmarks.keys import event_ids
from benchmarks.pairs import Pair, Population
from benchmarks.report import Row, count, new_file, progress, show
from recon_node.ceramic import IN_MEMORY, EventId, Network, network_range
from recon_node.ipld import CID, DAG_CBOR, car
from recon_node.recon import KeyRange, KeyStore, KeyView, Sha256a
from recon_node.snapshot.creating import create_snapshot
from recon_node.snapshot.feed_pages import Row as FeedRow
from recon_node.snapshot.objects import Objects
from recon_node.snapshot.reading import SnapshotReader, read_root
from recon_node.snapshot.syncing import Synced, sync_snapshot
from recon_node.snapshot.tree import matcher
from recon_node.store import Verdict

BODY: Final = 500
"""Bytes of an event's block; with its CIDs and header, its CAR has 600."""
NEW: Final = 1000
KEY: Final = SigningKey(b"k" * 32)
RANGES: Final = [KeyRange(*map(bytes, network_range(IN_MEMORY)))]


class MadeUpEvents:
    """A source of events whose blocks follow from a number; nobody could admit them."""

    network: Network = IN_MEMORY
    interests: Sequence[str] = ()
    ranges: Sequence[KeyRange] = RANGES

    def __init__(self, number: int) -> None:
        self.numbers: dict[bytes, int] = {}
        for at, key in enumerate(event_ids(number, seed=number)):
            block = self._block(at)
            self.numbers[key[:-36] + CID.of(DAG_CBOR, block)] = at
        self.use(self.numbers)

    def use(self, keys: Sequence[bytes] | dict[bytes, int]) -> None:
        """Have these keys only."""
        self.held = KeyStore(keys)
        self._matches = matcher(self.held, RANGES)

    def _block(self, number: int) -> bytes:
        return random.Random(number).randbytes(BODY)

    def count(self) -> int:
        return len(self.held)

    def matches(self, bounds: KeyRange, expected: Sha256a) -> bool:
        return self._matches(bounds, expected)

    def keys(self, bounds: KeyRange) -> Iterator[bytes]:
        return self.held.keys(bounds)

    def feed_end(self) -> tuple[str, int]:
        return "made up", 0

    def feed_rows(self, after: int, upto: int) -> list[FeedRow]:
        return []  # the made-up feed has no positions

    def cars(self, event_ids: Sequence[EventId]) -> list[bytes | None]:
        return [
            car.encode([each.event_cid], {each.event_cid: self._block(self.numbers[bytes(each)])})
            for each in event_ids
        ]


class Taker:
    """Takes all events without a look at them."""

    network = IN_MEMORY

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = KeyStore(keys)
        self.keys: KeyView = self._keys
        self.size = 0

    async def admit_remote(self, events: Sequence[tuple[EventId, bytes]]) -> list[Verdict]:
        for event_id, data in events:
            self._keys.add(bytes(event_id))
            self.size += len(data)
        await trio.lowlevel.checkpoint()
        return [Verdict("new", event_id, None) for event_id, _ in events]

    def is_refused(self, event_id: EventId) -> bool:
        del event_id
        return False


def sync(directory: Path, held: Sequence[bytes]) -> tuple[Row, Taker]:
    """Sync a node that has some keys."""
    objects = Objects.open(str(directory))
    started = time.perf_counter()
    root = read_root(objects)
    result, taker = Synced(), Taker(held)
    reader = SnapshotReader(objects, root, result.note)
    trio.run(partial(sync_snapshot, reader, taker, result, RANGES))
    assert not result.faults, result.faults[:3]
    header = len(car.encode([CID.of(DAG_CBOR, b"")], {}))
    event_bytes = taker.size - header * result.counts["new"]
    row: Row = {
        "events": result.counts["new"],
        "nodes_bytes": objects.traffic.received - event_bytes,
        "event_bytes": event_bytes,
        "requests": objects.traffic.requests,
        "rounds": 1 + result.waves,
        "seconds": round(time.perf_counter() - started, 2),
    }
    return row, taker


class _Rows(list[Row]):
    """Rows that are shown as they come: all take half an hour."""

    def append(self, row: Row) -> None:
        progress(", ".join(f"{name} {value}" for name, value in row.items()))
        super().append(row)


def run(number: int) -> list[Row]:
    """Measure everything."""
    rows = _Rows()
    progress(f"making {number:,} events")
    source = MadeUpEvents(number)
    everything = sorted(source.numbers)
    late = set(random.Random(1).sample(everything, NEW))
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        for what, keys in (
            ("create", [key for key in everything if key not in late]),
            (f"create, {NEW:,} new", everything),
        ):
            progress(what)
            source.use(keys)
            objects = Objects.open(name, make=True)
            started = time.perf_counter()
            made = create_snapshot(source, objects, KEY, lambda *step: None)
            rows.append(
                {
                    "what": what,
                    "events": made.events,
                    "written": objects.traffic.sent,
                    "nodes": made.nodes,
                    "nodes_bytes": objects.traffic.received,
                    "requests": objects.traffic.requests,
                    "seconds": round(time.perf_counter() - started, 2),
                }
            )
        population = Population(0)
        population.keys = everything
        for lacking, placement in ((100, "scattered"), (10_000, "recent"), (0, "none")):
            progress(f"lacking {lacking:,} {placement}")
            rng = random.Random(lacking)
            start = rng.randrange(number - lacking)
            chosen = (
                set(rng.sample(range(number), lacking))
                if placement == "scattered"
                else set(range(start, start + lacking))
            )
            here = bytearray(at not in chosen for at in range(number))
            pair = Pair(population, lacking, placement, here, bytearray(b"\x01") * number)
            row, taker = sync(directory, pair.keys()[0])
            assert len(taker.keys) == number
            cost = CONTESTANTS["recon/1.2.0"](pair)
            rows.append(
                {
                    "what": f"lacking {lacking:,} {placement}",
                    **row,
                    "recon_bytes": cost.bytes_sent + cost.bytes_received,
                    "recon_rounds": cost.rounds,
                }
            )
        progress("an empty node")
        row, taker = sync(directory, [])
        rows.append({"what": "an empty node", **row, "car_bytes": taker.size})
    columns = list(dict.fromkeys(column for row in rows for column in row))
    return [{column: row.get(column, 0) for column in columns} for row in rows]


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--keys", type=count, default=100_000, metavar="N")
    parser.add_argument("--json", type=new_file, metavar="FILE")
    options = parser.parse_args()
    show("Snapshots", run(options.keys), options.json)


if __name__ == "__main__":
    main()
