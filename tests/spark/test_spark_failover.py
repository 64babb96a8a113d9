"""The source in Spark itself: found by its name, filtered, gone over to another node; its lag."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from spark_helpers import Node, NodeProcesses, wait_until

from recon_node.ceramic import Event
from spark_sink.source.data_source import lag

pytestmark = pytest.mark.spark


@pytest.fixture
def pair(node_processes: NodeProcesses, tmp_path: Path) -> Iterator[list[Node]]:
    """Two nodes without events."""
    nodes = [Node(node_processes, tmp_path / name) for name in ("first", "second")]
    yield nodes
    for node in nodes:
        if node.pid in node_processes.pids:
            node.kill()


def test_it_is_found_by_its_name_in_a_session_that_was_told_nothing(
    spark: SparkSession, full_node: Node, sample: list[Event]
) -> None:
    """What Spark finds when it looks through Python's modules; nothing was registered here."""
    models = [e.header.model for e in sample if e.header is not None]
    busiest, documents = Counter(map(str, models)).most_common(1)[0]
    options = {"url": full_node.url, "sortKey": "model", "sortValue": busiest}
    frame = spark.newSession().read.format("recon").options(**options).load()
    found = Counter(row.event_type for row in frame.select("event_type").collect())
    assert found["init"] == documents
    assert 0 < sum(found.values()) < len(sample)


def test_a_query_goes_over_to_another_node_and_each_event_counts_once_by_its_cid(
    spark: SparkSession, pair: list[Node], sample: list[Event], tmp_path: Path
) -> None:
    """The first node dies for good, under a query that does not end; the sink merges by CID."""
    pair[0].add(sample[:60])
    pair[1].add(sample[:45])  # it is somewhat behind
    seen: dict[bytes, int] = {}
    rows = 0

    def merge(frame: DataFrame, batch: int) -> None:
        nonlocal rows
        for row in frame.select("event_cid", "position").toLocalIterator():
            seen[bytes(row.event_cid)] = row.position
            rows += 1

    options: dict[str, Any] = {
        "url": ",".join(node.url for node in pair),
        "failoverAfter": "0.3",
        "maxRowsPerBatch": "40",
    }
    query = (
        spark.readStream.format("recon")
        .options(**options)
        .load()
        .writeStream.foreachBatch(merge)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="20 milliseconds")
        .start()
    )
    try:
        wait_until(lambda: len(seen) == 60, "all of the first node is in")
        query.processAllAvailable()
        assert lag(query.lastProgress["sources"][0]) == 0
        assert rows == 60, "without deaths each event comes once"
        pair[0].kill()
        wait_until(lambda: rows == 105, "the second one's log was read from its beginning")
        pair[1].add(sample[45:80])
        wait_until(lambda: len(seen) == 80, "and is followed")
        assert query.isActive
        assert seen.keys() == {bytes(event.cid) for event in sample[:80]}
        assert rows == 60 + 80
    finally:
        query.stop()
