"""The source "recon_snapshot", without a Java machine: partitions are pickled as Spark does."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pytest
import trio
from nacl.signing import SigningKey
from pyspark.sql import SparkSession
from pyspark.sql.functions import broadcast
from spark_helpers import Node

from recon_node.ceramic import Event, Network
from recon_node.ceramic.auth.did import controller_of
from recon_node.snapshot.creating import create_snapshot
from recon_node.snapshot.objects import Objects
from recon_node.snapshot.sources import LogSource
from recon_node.store import StoreSettings, open_store
from spark_sink.errors import SinkError
from spark_sink.source.snapshot_source import SNAPSHOT, ReconSnapshotSource

KEY = SigningKey(b"k" * 32)


@pytest.fixture
def url(tmp_path: Path, sample: list[Event]) -> str:
    """A snapshot of the sample's events."""
    make_snapshot(tmp_path, sample)
    return str(tmp_path / "snapshots")


def make_snapshot(tmp_path: Path, sample: list[Event]) -> None:
    async def fill() -> None:
        settings = StoreSettings(synchronous="normal", verifiers=0)
        async with open_store(tmp_path / "node", Network.local(7), settings=settings) as store:
            await store.admit_local([event.car for event in sample])

    trio.run(fill)
    with LogSource(tmp_path / "node") as source:
        objects = Objects.open(str(tmp_path / "snapshots"), make=True)
        create_snapshot(source, objects, KEY, lambda *step: None, pack_bytes=50_000)


def table(**options: str) -> tuple[pa.Table, int]:
    """What Spark does: the driver finds partitions, each worker gets the reader and one of them."""
    source = ReconSnapshotSource(options)
    reader = source.reader(source.schema())
    partitions = reader.partitions()
    batches: list[pa.RecordBatch] = []
    for partition in partitions:
        worker, its_part = pickle.loads(pickle.dumps((reader, partition)))
        batches += worker.read(its_part)
    return pa.Table.from_batches(batches, schema=SNAPSHOT), len(partitions)


def test_the_rows_are_the_events(url: str, sample: list[Event]) -> None:
    rows, partitions = table(url=url, partitions="4", signers=controller_of(KEY))
    assert partitions == 4
    found = {row["event_cid"]: row for row in rows.to_pylist()}
    assert len(found) == rows.num_rows == len(sample)
    for event in sample:
        row = found[bytes(event.cid)]
        assert row["car"] == event.car
        assert row["stream_cid"] == bytes(event.init)
        assert row["event_type"] == event.kind.value
        assert row["position"] is None
    ids = rows["event_id"].to_pylist()
    assert ids == sorted(ids)


def test_a_snapshot_stays_the_same_while_a_newer_one_is_written(
    tmp_path: Path, sample: list[Event]
) -> None:
    make_snapshot(tmp_path, sample[:50])
    source = ReconSnapshotSource({"url": str(tmp_path / "snapshots")})
    reader = source.reader(source.schema())
    make_snapshot(tmp_path, sample)
    rows = [batch for part in reader.partitions() for batch in reader.read(part)]
    assert sum(batch.num_rows for batch in rows) == 50


def test_damage_is_named(url: str) -> None:
    for pack in sorted((Path(url) / "packs").iterdir())[:1]:
        pack.unlink()
    with pytest.raises(SinkError, match=r"is damaged.*is missing"):
        table(url=url)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs the option url"),
        ({"url": "nothing://"}, "cannot use the object store"),
        ({"url": "/x", "sortKey": "model"}, "has no option sortkey"),
        ({"url": "/x", "partitions": "0"}, "a number from 1 on"),
        ({"url": "EMPTY"}, "no snapshot there"),
    ],
)
def test_options_that_cannot_be_used(options: dict[str, str], message: str, tmp_path: Path) -> None:
    if options.get("url") == "EMPTY":
        options = {"url": str(tmp_path)}
    with pytest.raises(SinkError, match=message):
        table(**options)


@pytest.mark.spark
def test_spark_reads_a_snapshot_and_the_rest_from_a_feed(
    spark: SparkSession, full_node: Node, tmp_path: Path, sample: list[Event]
) -> None:
    make_snapshot(tmp_path, sample[:500])
    spark.dataSource.register(ReconSnapshotSource)
    options = {"url": str(tmp_path / "snapshots"), "partitions": "2"}
    old = spark.read.format("recon_snapshot").options(**options).load()
    feed = spark.read.format("recon").option("url", full_node.url).load()
    new = feed.join(broadcast(old.select("event_id")), "event_id", "left_anti")
    found = [row.event_cid for row in old.unionByName(new).select("event_cid").collect()]
    assert len(found) == len(sample)
    assert {bytes(cid) for cid in found} == {bytes(event.cid) for event in sample}
