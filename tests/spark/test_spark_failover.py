"""Many events from two nodes: one is killed in the middle, and so is the pipeline, twice.

The tables are those of a run that reads one node and is left alone, but for positions. There are
100,000 events where the tables are on a disk, and fewer where they are in an object store.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import QueryBuilder
from nacl.signing import SigningKey
from spark_helpers import Node, environment_for
from support.waiting import post_events, wait_until

from recon_node.ceramic import Event
from recon_node.ceramic.builder import data_event, init_event, model_event
from recon_node.ipld import multibase
from spark_sink.schema import RAW, TABLES
from spark_sink.tables.location import Location, open_delta_table

pytestmark = [pytest.mark.spark, pytest.mark.long]

STREAM = 50  # events of a stream
PATIENCE = 900.0
KEY = SigningKey(bytes(range(32)))
# What depends on the node that an event was read from, and on the order of events.
POSITIONS = ("position", "conclusion_event_order", "delivered_at")


def events(number: int) -> list[list[Event]]:
    """A model and documents that change: streams in causal order, so many events in all."""
    model = model_event(
        KEY, {"version": "1.0", "name": "Note", "accountRelation": {"type": "list"}}
    )
    streams = [[model]]
    for n in range(number // STREAM):
        unique = n.to_bytes(4, "big")
        stream = [init_event(KEY, model.stream_id(), {"n": 0}, unique=unique)]
        while len(stream) < STREAM:
            patch = [{"op": "replace", "path": "/n", "value": len(stream)}]
            stream.append(data_event(KEY, stream[0], [stream[-1].cid], patch))
        streams.append(stream)
    del streams[-1][-1]  # for the model
    return streams


def shuffled(streams: list[list[Event]], seed: int) -> Iterator[Event]:
    """The events in one of many causal orders, the model first."""
    random = Random(seed)
    order = [n for n, stream in enumerate(streams) if n for _ in stream]
    random.shuffle(order)
    left = [iter(stream) for stream in streams]
    yield from left[0]
    yield from (next(left[n]) for n in order)


def load(node: Node, feed: Iterator[Event]) -> None:
    cars = [multibase.encode(event.car) for event in feed]
    for start in range(0, len(cars), 2_000):
        post_events(node.url, cars[start : start + 2_000])


class Driver:
    """`spark-sink run` in a process group of its own; its log is in a directory."""

    def __init__(self, directory: Path, tables: Location, *options: str) -> None:
        self.log = directory / f"{tables.name}-{len(list(directory.glob('*.log')))}.log"
        command = [sys.executable, "-m", "spark_sink", "run", "--tables", str(tables), *options]
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment_for(tables, directory / "state"),
                start_new_session=True,
            )

    def told(self) -> list[dict[str, Any]]:
        lines = self.log.read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def await_event(self, name: str) -> None:
        self._await(lambda facts: facts["event"] == name, name)

    def await_rows(self, number: int) -> None:
        """Wait for a batch that brings `raw_events` to so many rows."""
        self._await(
            lambda facts: facts["event"] == "batch" and facts["positions"][RAW] >= number,
            f"there are {number} rows",
        )

    def _await(self, wanted: Callable[[dict[str, Any]], bool], what: str) -> None:
        def there() -> bool:
            assert self.process.poll() is None, self.log.read_text()
            return any(map(wanted, self.told()))

        wait_until(there, what, limit=PATIENCE)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def end(self) -> None:
        assert self.process.wait(PATIENCE) == 0, self.log.read_text()


def rows(tables: Location, name: str) -> pa.Table:
    columns = ", ".join(c for c in TABLES[name].schema.names if c not in POSITIONS)
    builder = QueryBuilder().register("t", open_delta_table(tables / name))
    return pa.table(builder.execute(f"SELECT {columns} FROM t").read_all())


def assert_same(tables: Location, others: Location) -> None:
    for name in TABLES:
        with duckdb.connect() as connection:
            connection.register("one", rows(tables, name))
            connection.register("two", rows(others, name))
            for left, right in (("one", "two"), ("two", "one")):
                sql = f"SELECT count(*) FROM (FROM {left} EXCEPT ALL FROM {right})"
                assert connection.execute(sql).fetchone() == (0,), name


def assert_dense_and_causal(tables: Location, streams: list[list[Event]]) -> None:
    builder = QueryBuilder().register("t", open_delta_table(tables / RAW))
    sql = "SELECT position, event_cid FROM t ORDER BY position"
    found = pa.table(builder.execute(sql).read_all())
    assert found["position"].to_pylist() == list(range(1, sum(map(len, streams)) + 1))
    place = {cid: n for n, cid in enumerate(found["event_cid"].to_pylist())}
    for stream in streams:
        places = [place[bytes(event.cid)] for event in stream]
        assert places == sorted(places)


def test_a_run_that_changes_nodes_gives_the_tables_of_one_that_does_not(
    pair: list[Node], tmp_path: Path, place: Location
) -> None:
    number, batch = (100_000, 4_000) if isinstance(place, Path) else (10_000, 500)
    streams = events(number)
    assert sum(map(len, streams)) == number
    first, second = pair
    load(first, shuffled(streams, 1))
    load(second, shuffled(streams, 2))
    tables, others = place / "tables", place / "others"
    urls = ("--url", first.url, "--url", second.url, "--failover-after", "1s")
    several = (*urls, "--max-rows-per-batch", str(batch))

    driver = Driver(tmp_path, tables, *several)
    driver.await_rows(number // 5)
    first.kill()
    driver.await_event("taking_over")
    driver.kill()
    driver = Driver(tmp_path, tables, *several)
    driver.await_event("took_over")
    driver.await_event("batch")
    driver.kill()
    Driver(tmp_path, tables, *several, "--once").end()
    assert_dense_and_causal(tables, streams)

    Driver(tmp_path, others, "--url", second.url, "--once").end()
    assert_same(tables, others)
