"""The source "recon_snapshot", without a Java machine: partitions are pickled as Spark does."""

import pickle
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
import trio
from nacl.signing import SigningKey
from pyspark.sql.datasource import InputPartition
from pyspark.sql.functions import broadcast
from spark_helpers import ran
from spark_oracle import assert_tables

from recon_node.api.routes.node_info import did_of_peer
from recon_node.base.connection import Answer
from recon_node.ceramic import Event, Network
from recon_node.ceramic.auth.did import controller_of
from recon_node.snapshot.creating import create_snapshot
from recon_node.snapshot.event_source import LogSource
from recon_node.snapshot.objects import Objects
from recon_node.snapshot.snapshot_reader import read_root
from recon_node.store import StoreSettings, open_store, parse_interest
from spark_sink.errors import SinkError
from spark_sink.run import runner
from spark_sink.run.backfill import ANYONE, find_backfill
from spark_sink.run.runner import Runner, RunSettings
from spark_sink.source.feed_client import Feed, Head
from spark_sink.source.snapshot_source import SNAPSHOT, ReconSnapshotSource
from spark_sink.tables.delta_log import Reading

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
    write_snapshot(tmp_path / "node", str(tmp_path / "snapshots"))


def write_snapshot(data_dir: Path, url: str) -> None:
    with LogSource(data_dir) as source:
        objects = Objects.open(url, make=True)
        create_snapshot(source, objects, KEY, lambda *step: None, pack_bytes=50_000)


def table(**options: str) -> tuple[pa.Table, int]:
    """What Spark does: the driver finds partitions, each worker gets the reader and one of them."""
    source = ReconSnapshotSource(options)
    reader = source.reader(source.schema())
    partitions = reader.partitions() or [InputPartition(None)]  # Spark has at least one
    batches: list[pa.RecordBatch] = []
    for partition in partitions:
        worker, its_part = pickle.loads(pickle.dumps((reader, partition)))
        batches += worker.read(its_part)
    return pa.Table.from_batches(batches, schema=SNAPSHOT), len(partitions)


def test_the_rows_are_the_events(url: str, sample: list[Event]) -> None:
    rows, partitions = table(url=url, partitions="4", signers=controller_of(KEY))
    assert partitions == 4
    positions = {event.cid: at for at, event in enumerate(sample, 1)}
    by_cid = {row["event_cid"]: row for row in rows.to_pylist()}
    with LogSource(Path(url).parent / "node") as source:
        delivered = {row[0]: row[4] for row in source.feed_rows(0, len(sample))}
    assert len(by_cid) == rows.num_rows == len(sample)
    for event in sample:
        row = by_cid[bytes(event.cid)]
        assert row["car"] == event.car
        assert row["stream_cid"] == bytes(event.init)
        assert row["event_type"] == event.kind.value
        assert row["position"] == positions[event.cid]
        assert row["delivered_at"].timestamp() == delivered[row["position"]] / 1000
    ids = rows["event_id"].to_pylist()
    assert ids == sorted(ids)


def test_a_snapshot_stays_the_same_while_a_newer_one_is_written(tmp_path, sample):
    make_snapshot(tmp_path, sample[:50])
    source = ReconSnapshotSource({"url": str(tmp_path / "snapshots")})
    reader = source.reader(source.schema())
    make_snapshot(tmp_path, sample)
    rows = [batch for part in reader.partitions() for batch in reader.read(part)]
    assert sum(batch.num_rows for batch in rows) == 50


def test_an_empty_snapshot_has_no_rows(tmp_path: Path) -> None:
    make_snapshot(tmp_path, [])
    assert table(url=str(tmp_path / "snapshots"))[0].num_rows == 0


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
        ({"url": "/x", "partitions": "0"}, "partitions must be at least 1, not 0"),
        ({"url": "EMPTY"}, "no snapshot exists there"),
    ],
)
def test_options_that_cannot_be_used(options: dict[str, str], message: str, tmp_path: Path) -> None:
    if options.get("url") == "EMPTY":
        options = {"url": str(tmp_path)}
    with pytest.raises(SinkError, match=message):
        table(**options)


@pytest.mark.spark
def test_spark_reads_a_snapshot_and_the_rest_from_a_feed(spark, full_node, tmp_path, sample):
    make_snapshot(tmp_path, sample[:500])
    spark.dataSource.register(ReconSnapshotSource)
    options = {"url": str(tmp_path / "snapshots"), "partitions": "2"}
    old = spark.read.format("recon_snapshot").options(**options).load()
    feed = spark.read.format("recon").option("url", full_node.url).load()
    new = feed.join(broadcast(old.select("event_id")), "event_id", "left_anti")
    cids = [row.event_cid for row in old.unionByName(new).select("event_cid").collect()]
    assert len(cids) == len(sample)
    assert {bytes(cid) for cid in cids} == {bytes(event.cid) for event in sample}


@pytest.mark.spark
@pytest.mark.usefixtures("borrowed")
def test_tables_start_from_a_snapshot_and_go_on_with_the_feed(node, tmp_path, sample):
    """They become what the feed alone would have made of them, row by row."""
    url, tables = str(tmp_path / "snapshots"), tmp_path / "tables"
    node.add(sample[:40])
    write_snapshot(node.data_dir, url)
    node.add(sample[40:60])
    write_snapshot(node.data_dir, url)  # on top of the first one
    node.add(sample[60:90])
    settings = RunSettings(
        node.url, tables, once=True, from_snapshot=url, signers=(controller_of(KEY),)
    )
    events = ran(settings)
    assert dict(events)["filled"]["rows"] == 60
    assert sum(facts["rows"] for event, facts in events if event == "batch") == 30
    assert_tables(tables, node.feed())
    again = dict(ran(settings))  # tables that exist just continue
    assert "filled" not in again
    assert (again["stopped"]["position"], again["stopped"]["rows"]) == (90, 0)


def test_a_snapshot_of_another_log_is_refused(url: str, tmp_path: Path) -> None:
    feed = read_root(Objects.open(url)).manifest.feed
    assert feed.position == 930
    head = Head(feed.epoch, 0, 931)
    assert find_backfill(url, (), head).position == 930
    for other, message in (
        (Head("another", 0, 931), "has log another"),
        (Head(feed.epoch, 0, 929), "ends at 929"),
    ):
        with pytest.raises(SinkError, match=message):
            find_backfill(url, (), other)
    with pytest.raises(SinkError, match="not trusted"):
        find_backfill(url, ("did:key:z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK",), head)
    model = parse_interest("kjzl6hvfrbw6c5ajfmes842lu09vjxu5956e3xq0xk12gp2jcf9s90cagt2god9")
    with LogSource(tmp_path / "node", [model]) as source:
        part = Objects.open(str(tmp_path / "part"), make=True)
        create_snapshot(source, part, KEY, lambda *step: None)
    with pytest.raises(SinkError, match="no feed positions"):
        find_backfill(str(tmp_path / "part"), (), head)


def test_tables_start_from_their_nodes_own_snapshot_or_a_named_signers(monkeypatch, tmp_path):
    peer = "12D3KooWGzh7mWVhuxSsMtSUKXuWvwCt2yXHR5wQTN6JhaUsqEZ5"
    own = did_of_peer(peer)
    answers = iter([{"peer_id": peer}, {}, {"peer_id": "Qm"}])
    feed = Feed("http://127.0.0.1:1")
    monkeypatch.setattr(feed, "ask", lambda *_: Answer(200, "", next(answers)))
    assert [feed.signer(), feed.signer(), feed.signer()] == [own, None, None]
    assert own.startswith("did:key:z6Mk")
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(runner, "find_backfill", lambda url, signers, head: asked.append(signers))
    for named, own_key in (((), own), ((ANYONE,), own), ((own, "did:key:x"), None)):
        settings = RunSettings(feed.url, tmp_path, from_snapshot="s3://x/y", signers=named)
        run = Runner(settings, lambda *_: None)
        monkeypatch.setattr(run, "_nodes", SimpleNamespace(current=feed))
        monkeypatch.setattr(feed, "signer", lambda key=own_key: key)
        tables = SimpleNamespace(raw_position=0, reading=Reading("log", 0))
        run._find_backfill(tables, Head("log", 0, 1))  # type: ignore[arg-type]
    assert asked == [(own,), (), (own, "did:key:x")]
    monkeypatch.setattr(run, "_settings", RunSettings(feed.url, tmp_path, from_snapshot="s3://x/y"))
    with pytest.raises(SinkError, match="does not say by which key"):
        run._find_backfill(tables, Head("log", 0, 1))  # type: ignore[arg-type]
