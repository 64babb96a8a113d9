"""Sorting, vacuuming, making anew: none of it changes what the tables say."""

import json
import os
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable, write_deltalake
from spark_helpers import Node, feed_rows, wait_until
from spark_oracle import assert_tables, table_rows
from spark_samples import scenario
from test_spark_crashes import assert_parquet

from recon_node.ceramic import Event
from spark_sink.cli import main
from spark_sink.errors import SinkError, TablesError
from spark_sink.query.question import run_query
from spark_sink.run.pipeline import Sink
from spark_sink.schema import DERIVED, RAW_EVENTS, TABLES
from spark_sink.source.feed import Feed
from spark_sink.tables import delta, delta_files
from spark_sink.tables.directory import Format, Tables
from spark_sink.tables.staging import Staged
from spark_sink.tables.status import table_status
from spark_sink.tables.versions import At
from spark_sink.upkeep.maintenance import rebuild

EPOCH = "5f0c8a10-aaaa-bbbb-cccc-000000000001"


def fill(directory: Path, rows: pa.Table, cuts: int = 4, table_format: Format = "delta") -> Sink:
    sink = Sink(Tables(directory, EPOCH, table_format=table_format))
    for i in range(1, cuts + 1):
        sink.tables.append(rows.slice(0, len(rows) * i // cuts))
        sink.catch_up()
    return sink


def told(*arguments: str | Path, code: int = 0) -> str:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result.output


def asked(directory: Path, sql: str, at: At = None) -> list[tuple[Any, ...]]:
    with run_query(directory, sql, at) as answer:
        return list(answer.rows)


def test_optimize_sorts_by_stream(
    sample: list[Event], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream's history is one row group of one file, and a reader can see that."""
    monkeypatch.setattr(delta_files, "ROW_GROUP", 8)
    rows = feed_rows(sample[:400])
    fill(tmp_path, rows)
    text = told("optimize", "--tables", tmp_path)
    files = {status.name: status.files for status in table_status(tmp_path)}
    assert all(0 < count <= 16 for count in files.values())
    assert [line.split()[:2] for line in text.splitlines()] == [
        [name, str(count)] for name, count in files.items()
    ]
    assert_tables(tmp_path, rows.to_pylist())
    largest = max(
        DeltaTable(tmp_path / "raw_events").file_uris(), key=lambda f: Path(f).stat().st_size
    )
    file = pq.ParquetFile(largest)
    column = file.schema_arrow.get_field_index("stream_cid")
    groups = [file.metadata.row_group(i).column(column) for i in range(file.num_row_groups)]
    bounds = [(g.statistics.min, g.statistics.max) for g in groups]
    assert len(bounds) > 1
    assert bounds == sorted(bounds)
    assert all(one[1] <= next_[0] for one, next_ in pairwise(bounds))
    told("optimize", "--tables", tmp_path, "raw_events")


def test_vacuum_keeps_what_it_is_told_to(sample: list[Event], tmp_path: Path) -> None:
    rows = feed_rows(sample[:200])
    sink = fill(tmp_path, rows)
    sink.tables.keep_history(5.0)
    version = DeltaTable(tmp_path / "stream_tips").version()
    sink.tables.keep_history(5.0)  # makes no version
    told_so = DeltaTable(tmp_path / "stream_tips")
    assert told_so.version() == version
    properties = told_so.metadata().configuration
    assert properties["delta.deletedFileRetentionDuration"] == "interval 18000 seconds"
    assert properties["delta.logRetentionDuration"] == "interval 24 hours"
    sink.tables.keep_history(168.0)
    properties = DeltaTable(tmp_path / "raw_events").metadata().configuration
    assert properties["delta.logRetentionDuration"] == "interval 168 hours"
    sink.tables.keep_history(5.0)
    count = "SELECT count(*) AS n FROM stream_tips"
    before = asked(tmp_path, count, 1)
    assert "stream_tips        0 files deleted" in told("vacuum", "--tables", tmp_path)
    changes = tmp_path / "stream_tips" / "_change_data"
    old = next(changes.rglob("*.parquet"))
    os.utime(old, (time.time() - 6 * 3600,) * 2)
    told("vacuum", "--tables", tmp_path, "stream_tips")
    assert not old.exists()
    assert asked(tmp_path, count, 1) == before

    dry = told("vacuum", "--tables", tmp_path, "--history", "0h", "--dry-run", "stream_tips")
    assert "files to delete" in dry
    told("vacuum", "--tables", tmp_path, "--history", "0h", "stream_tips")
    assert not list(changes.rglob("*.parquet"))
    with pytest.raises(TablesError, match="stream_tips has no version 1 that can be read"):
        asked(tmp_path, count, 1)
    assert_tables(tmp_path, rows.to_pylist())
    for command in (["vacuum"], ["optimize"], ["rebuild", "stream_tips"]):
        wrong = told(*command, "--tables", tmp_path / "none", code=1)
        assert "there are no tables in" in wrong
    assert not (tmp_path / "none").exists()
    Tables(tmp_path / "parquet", EPOCH, table_format="parquet")
    wrong = told("vacuum", "--tables", tmp_path / "parquet", "stream_tips", code=1)
    assert "stream_tips in" in wrong
    assert "plain Parquet files, which are in order as they are" in wrong
    wrong = told("optimize", "--tables", tmp_path / "parquet", code=1)
    assert "Error: raw_events, conclusion_events, event_states, stream_tips" in wrong


@pytest.mark.parametrize("name", DERIVED)
def test_a_derived_table_is_made_anew(tmp_path: Path, name: str) -> None:
    """In one commit, after which it goes on as if nothing had been."""
    trap = scenario()
    rows = feed_rows(trap.events, trap.times)
    fill(tmp_path, rows.slice(0, 20))
    table = DeltaTable(tmp_path / name)
    table.delete(f"{TABLES[name].key} IS NOT NULL")
    junk = pa.table({"junk": [1], "stream_cid_partition": pa.array([1], pa.int32())})
    write_deltalake(table, junk, mode="overwrite", schema_mode="overwrite")
    with pytest.raises(TablesError, match=f"spark-sink rebuild {name} --tables"):
        Tables(tmp_path, EPOCH)
    table.alter.set_table_properties({"delta.enableChangeDataFeed": "false"})
    version = DeltaTable(tmp_path / name).version()
    text = told("rebuild", "--tables", tmp_path, name)
    assert text == f"{name:18} position 20 of 20\n{name} is new\n"
    assert DeltaTable(tmp_path / name).version() == version + 2  # the feed is on again, the rows
    properties = DeltaTable(tmp_path / name).metadata().configuration
    assert properties["delta.enableChangeDataFeed"] == "true"
    assert not (tmp_path / "_rebuild").exists()
    assert_tables(tmp_path, rows.slice(0, 20).to_pylist())
    fill(tmp_path, rows)
    assert_tables(tmp_path, rows.to_pylist())


def test_a_rebuild_that_breaks_off_has_changed_nothing(sample: list[Event], tmp_path: Path) -> None:
    rows = feed_rows(sample[:60])
    fill(tmp_path, rows)
    before = [(t.name, t.version) for t in table_status(tmp_path)]

    def stop(name: str, position: int, goal: int) -> None:
        raise KeyboardInterrupt

    for name in ("event_states", "stream_tips"):
        with pytest.raises(KeyboardInterrupt):
            rebuild(tmp_path, name, None, stop)
    assert [(t.name, t.version) for t in table_status(tmp_path)] == before
    with pytest.raises(SinkError, match="say which with --url"):
        rebuild(tmp_path, "raw_events", None, stop)
    with pytest.raises(TablesError, match="there are no tables in"):
        rebuild(tmp_path / "none", "stream_tips", None, stop)


@pytest.mark.parametrize("table_format", ["delta", "parquet"])
def test_everything_is_made_anew_from_the_node(
    node: Node, tmp_path: Path, table_format: Format
) -> None:
    """What it was before does not matter, not even that it was wrong."""
    trap = scenario()
    node.add(trap.events)
    wait_until(lambda: len(node.feed()) == len(trap.events), "all anchors are looked up")
    head = Feed(node.url).head()
    without_times = pa.Table.from_pylist(
        [{**row, "time": None} for row in node.feed()], schema=feed_rows([]).schema
    )
    sink = Sink(Tables(tmp_path, head.epoch, table_format=table_format))
    sink.tables.append(without_times)
    sink.catch_up()
    told("rebuild", "--tables", tmp_path, "raw_events", "--url", node.url)
    check = assert_tables if table_format == "delta" else assert_parquet
    check(tmp_path, node.feed())
    assert {t.position for t in table_status(tmp_path)} == {head.head}


def old_raw_events(directory: Path, rows: pa.Table) -> None:
    """As version 0.1 wrote them."""
    names = [f.name for f in RAW_EVENTS if f.name not in ("time", "chain_id")]
    new = Tables(directory / "new", EPOCH, [])
    new.append(rows)
    kept = table_rows(directory / "new", "raw_events")
    schema = pa.schema([RAW_EVENTS.field(name) for name in names])
    table = DeltaTable.create(
        directory / "raw_events",
        schema=schema,
        partition_by=["stream_cid_partition"],
        configuration={"recon.epoch": EPOCH},
        raise_if_key_not_exists=False,
    )
    columns = [{name: row[name] for name in names} for row in kept]
    store = delta.DeltaStore(
        TABLES["raw_events"], directory / "raw_events", EPOCH, for_replacement=True
    )
    old = pa.Table.from_pylist(columns, schema=schema)
    store.append(Staged(tables=(old,)), len(rows))
    assert table.metadata().partition_columns == ["stream_cid_partition"]


def test_a_table_of_the_first_version_gets_its_new_columns(
    sample: list[Event], tmp_path: Path
) -> None:
    """The sample has no time events, so that nulls are right."""
    rows = feed_rows(sample[:80])
    old_raw_events(tmp_path, rows.slice(0, 50))
    fill(tmp_path, rows)
    assert_tables(tmp_path, rows.to_pylist())


def test_a_table_of_the_first_version_with_anchors_must_be_read_again(tmp_path: Path) -> None:
    trap = scenario()
    old_raw_events(tmp_path, feed_rows(trap.events))
    with pytest.raises(
        TablesError, match=r"of its 6 time events.*rebuild raw_events --tables .* --url URL"
    ):
        Tables(tmp_path, EPOCH)


def test_parquet_tables(
    sample: list[Event], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_sink.tables.parquet._ROWS_A_FILE", 30)
    rows = feed_rows(sample[:100])
    fill(tmp_path, rows, cuts=7, table_format="parquet")
    assert_parquet(tmp_path, rows.to_pylist())
    status = {t.name: t for t in table_status(tmp_path)}
    assert (status["raw_events"].rows, status["raw_events"].files) == (100, 4)
    assert status["raw_events"].version is None
    assert status["stream_tips"].files <= 16
    largest = "SELECT max(position), count(*) FROM raw_events"
    assert asked(tmp_path, largest) == [(100, 100)]
    with pytest.raises(TablesError, match="is a Parquet table, of which there are no older"):
        asked(tmp_path, largest, 1)
    lines = told("status", "--tables", tmp_path, "--json")
    assert [t["position"] for t in json.loads(lines)["tables"]] == [100] * 5

    with pytest.raises(SinkError, match="was made from log"):
        Tables(tmp_path, "another", table_format="parquet")
    (tmp_path / "stream_tips" / "_position.json").write_text("{")
    with pytest.raises(TablesError, match="is damaged; delete the table"):
        Tables(tmp_path, EPOCH, table_format="parquet")
    Tables(tmp_path / "delta", EPOCH)
    with pytest.raises(TablesError, match="is a Delta table"):
        Tables(tmp_path / "delta", EPOCH, table_format="parquet")
