"""How much of the work of reading a feed mirrors take off its node.

    python -m benchmarks.mirrors [--events N] [--mirrors 0,1,2] [--samples N] [--json FILE]

A node, and mirrors that have delivered the same events in another order, each a process of its own,
serve logs that `benchmarks.spark_log` filled. The reader of the source `recon` reads the whole feed
in this process, in two ranges for each node, without Spark. All share this machine's cores, so only
the CPU seconds count:

    node_cpu_s      the node whose feed is read
    mirror_cpu_s    the mirrors, on average
    reader_cpu_s    this process
"""

from __future__ import annotations

import argparse
import pickle
import random
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import InputPartition

from benchmarks.report import Row, numbers, progress, show
from benchmarks.spark import CpuMeter, program
from benchmarks.spark_log import NETWORK, LogFiller
from recon_node.store.db.schema import FILE_NAME, open_database
from spark_sink.source.data_source import ReconBatchReader, ReconDataSource

_MOST_LATE = 5_000
"""Positions by which a mirror delivers a stream's events later than the node, at most."""
_COLUMNS = "event_id, cid, init_cid, kind, signer, state"


def reorder(log: Path, mirror: Path, seed: int) -> None:
    """Create a log with the events of another one, each stream somewhat later or earlier."""
    late: dict[bytes, float] = {}
    chance = random.Random(seed)
    mirror.mkdir()
    with closing(open_database(mirror, NETWORK, "normal")) as connection:
        connection.execute("ATTACH ? AS node", (str(log / FILE_NAME),))
        sql = "SELECT id, position, init_cid FROM node.events ORDER BY position"
        places = connection.execute(sql).fetchall()
        late[places[0][2]] = -_MOST_LATE  # the model, which all build on
        for _, _, stream in places:
            late.setdefault(stream, chance.uniform(0, _MOST_LATE))
        places.sort(key=lambda place: (place[1] + late[place[2]], place[1]))
        connection.execute("BEGIN")
        for position, (row, _, _) in enumerate(places, 1):
            connection.execute(
                f"INSERT INTO events (id, position, {_COLUMNS}) "
                f"SELECT ?1, ?1, {_COLUMNS} FROM node.events WHERE id = ?2",
                (position, row),
            )
            connection.execute(
                "INSERT INTO cars SELECT ?, car FROM node.cars WHERE id = ?", (position, row)
            )
        connection.execute("INSERT INTO streams SELECT * FROM node.streams")
        connection.execute("COMMIT")
        connection.execute("DETACH node")


def read_all(reader: ReconBatchReader) -> int:
    """Read everything, all ranges at a time; return how many rows there were."""

    def read(partition: InputPartition) -> int:
        worker: ReconBatchReader = pickle.loads(pickle.dumps(reader))  # as Spark does
        return sum(batch.num_rows for batch in worker.read(partition))

    partitions = reader.partitions()
    with ThreadPoolExecutor(len(partitions)) as threads:
        return sum(threads.map(read, partitions))


def measure(urls: list[str], meters: list[CpuMeter], mirrors: int, events: int) -> Row:
    """Read the feed once."""
    options: dict[str, Any] = {"url": urls[0], "partitions": str(2 * (mirrors + 1))}
    if mirrors:
        options["mirrors"] = ",".join(urls[1 : mirrors + 1])
    source = ReconDataSource(options)
    before = [meter.read() for meter in meters]
    began = time.process_time()
    rows = read_all(source.reader(source.schema()))
    reader = time.process_time() - began
    node, *others = (meter.read() - taken for meter, taken in zip(meters, before, strict=True))
    if rows != events:
        raise SystemExit(f"{rows} rows were read instead of {events}")
    return {
        "mirrors": mirrors,
        "events": events,
        "node_cpu_s": round(node, 2),
        "mirror_cpu_s": round(sum(others) / mirrors, 2) if mirrors else None,
        "reader_cpu_s": round(reader, 2),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.mirrors",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--events", type=int, default=100_000, help="events of the feed")
    parser.add_argument("--mirrors", type=numbers, default=[0, 1, 2], help="how many mirrors")
    parser.add_argument("--samples", type=int, default=3, help="reads of each")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    options = parser.parse_args()
    rows: list[Row] = []
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        logs = [directory / str(number) for number in range(max(options.mirrors) + 1)]
        progress(f"writing {len(logs)} logs")
        LogFiller(logs[0], max(1, options.events // 10)).fill(options.events)
        for seed, log in enumerate(logs[1:]):
            reorder(logs[0], log, seed)
        nodes = [stack.enter_context(program("benchmarks.spark_log", str(log))) for log in logs]
        urls = [node.stdout.readline().strip() for node in nodes if node.stdout]
        meters = [CpuMeter(node.pid) for node in nodes]
        measure(urls, meters, len(nodes) - 1, options.events)  # imports, and caches
        for _ in range(options.samples):
            for mirrors in options.mirrors:
                progress(f"{mirrors} mirrors")
                rows.append(measure(urls, meters, mirrors, options.events))
    show("Mirrors", rows, options.json)


if __name__ == "__main__":
    main()
