"""Sorting, vacuuming, making anew: none of it changes what the tables say."""

import json
import os
import shutil
import threading
import time
from collections import Counter
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, WriterProperties, write_deltalake
from spark_helpers import (
    EPOCH,
    ROWS,
    Bomb,
    KilledError,
    Node,
    Served,
    asked,
    feed_rows,
    filled,
    make_old,
    silent,
    told,
)
from spark_oracle import KEYS, assert_tables
from spark_samples import TRAP

from recon_node.ceramic import Event
from spark_sink.derive import child_process
from spark_sink.errors import SinkError, TablesError
from spark_sink.run.pipeline import Sink
from spark_sink.schema import FEED, RAW, TABLES
from spark_sink.source import feed_client
from spark_sink.source.feed_client import Feed
from spark_sink.tables import retention, staging
from spark_sink.tables.catalog import table_status
from spark_sink.tables.retention import Retention
from spark_sink.tables.sink_table import SinkTable
from spark_sink.tables.tables import Tables
from spark_sink.upkeep import maintenance
from spark_sink.upkeep.health import check_health
from spark_sink.upkeep.maintenance import rebuild


def fill(directory: Path, rows: pa.Table, cuts: int = 2) -> Sink:
    return filled(directory, rows, *(len(rows) * i // cuts for i in range(1, cuts + 1)))


# Of the tables that a rebuild puts in their places: the first, one in the middle, the last.
SWAPS = (1, 3, len(TABLES))


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables with the first 20 of the scenario's rows; to be copied."""
    directory = tmp_path_factory.mktemp("begun")
    fill(directory, ROWS.slice(0, 20))
    return directory


def test_optimize_sorts_by_stream(sample, tmp_path, monkeypatch):
    """A stream's history is one row group of one file, and a reader can see that."""
    monkeypatch.setattr(retention, "WRITER", WriterProperties(max_row_group_size=8))
    rows = feed_rows(sample[:250])
    fill(tmp_path, rows)
    text = told("optimize", "--tables", tmp_path)
    files = {status.name: status.files for status in table_status(tmp_path)}
    assert files["unprocessed_streams"] == 0
    assert all(0 < files[name] <= 16 for name in {*KEYS} - {"unprocessed_streams"})
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
    [table] = json.loads(told("optimize", "--tables", tmp_path, "raw_events", "--json"))["tables"]
    assert table["name"] == "raw_events"


def test_vacuum_keeps_what_its_option_says(sample: list[Event], tmp_path: Path) -> None:
    rows = feed_rows(sample[:200])
    sink = fill(tmp_path, rows)
    sink.tables.set_retention(Retention(5.0))
    version = DeltaTable(tmp_path / "stream_tips").version()
    sink.tables.set_retention(Retention(5.0))  # makes no version
    told_so = DeltaTable(tmp_path / "stream_tips")
    assert told_so.version() == version
    properties = told_so.metadata().configuration
    assert properties["delta.deletedFileRetentionDuration"] == "interval 18000 seconds"
    assert properties["delta.logRetentionDuration"] == "interval 5 hours"
    sink.tables.set_retention(Retention(168.0))
    properties = DeltaTable(tmp_path / "raw_events").metadata().configuration
    assert properties["delta.logRetentionDuration"] == "interval 168 hours"
    sink.tables.set_retention(Retention(5.0))
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
    of = ("--tables", tmp_path, "--history", "0h", "--dry-run", "stream_tips", "--json")
    [table] = (answer := json.loads(told("vacuum", *of)))["tables"]
    assert (answer["deleted"], table["name"]) == (False, "stream_tips")
    assert table["files"] > 0
    told("vacuum", "--tables", tmp_path, "--history", "0h", "stream_tips")
    assert not list(changes.rglob("*.parquet"))
    with pytest.raises(TablesError, match="stream_tips has no version 1 that can be read"):
        asked(tmp_path, count, 1)
    assert_tables(tmp_path, rows.to_pylist())
    for command in (["vacuum"], ["optimize"], ["rebuild", "stream_tips"]):
        wrong = told(*command, "--tables", tmp_path / "none", code=1)
        assert "there are no tables in" in wrong
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("name", ["conclusion_events", "stream_states"])
def test_a_derived_table_is_rebuilt(begun, tmp_path, monkeypatch, name):
    """In one commit, after which it goes on as if nothing had been."""
    monkeypatch.setattr(maintenance, "COMMAND", child_process.COMMAND)
    rows = ROWS
    shutil.copytree(begun, tmp_path, dirs_exist_ok=True)
    table = DeltaTable(tmp_path / name)
    table.delete(f"{TABLES[name].key} IS NOT NULL")
    junk = pa.table({"junk": [1], "stream_cid_partition": pa.array([1], pa.int32())})
    write_deltalake(table, junk, mode="overwrite", schema_mode="overwrite")
    with pytest.raises(TablesError, match=f"spark-sink rebuild {name} --tables"):
        Tables(tmp_path, EPOCH)
    table.alter.set_table_properties({"delta.enableChangeDataFeed": "false"})
    version = DeltaTable(tmp_path / name).version()
    text = told("rebuild", "--tables", tmp_path, name)
    assert text == f"{name:18} position 20 of 20\n{name} is rebuilt\n"
    assert DeltaTable(tmp_path / name).version() == version + 2  # the feed is on again, the rows
    properties = DeltaTable(tmp_path / name).metadata().configuration
    assert properties["delta.enableChangeDataFeed"] == "true"
    assert not (tmp_path / "_rebuild").exists()
    assert_tables(tmp_path, rows.slice(0, 20).to_pylist())
    fill(tmp_path, rows)
    assert_tables(tmp_path, rows.to_pylist())


def test_tables_that_were_computed_by_other_rules_are_rebuilt(sample, tmp_path, monkeypatch):
    rows = feed_rows(sample[:30])
    with monkeypatch.context() as older:
        older.setattr("spark_sink.schema.RULES", 1)
        fill(tmp_path, rows.slice(0, 20))
    for name in ("conclusion_events", "event_states", "stream_states"):
        with pytest.raises(TablesError, match=f"rules of another version.*rebuild {name}"):
            fill(tmp_path, rows)
        told("rebuild", "--tables", tmp_path, name)
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
    with pytest.raises(SinkError, match="name it with --url"):
        rebuild(tmp_path, "raw_events", None, stop)
    with pytest.raises(TablesError, match="there are no tables in"):
        rebuild(tmp_path / "none", "stream_tips", None, stop)


def test_everything_is_rebuilt_from_the_node(node: Node, tmp_path: Path) -> None:
    """What it was before does not matter, not even that it was wrong."""
    node.add_scenario(TRAP)
    feed = node.feed()
    without_times = pa.Table.from_pylist([{**row, "time": None} for row in feed], FEED)
    filled(tmp_path, without_times, epoch=node.epoch)
    told("rebuild", "--tables", tmp_path, "raw_events", "--url", node.url)
    assert_tables(tmp_path, feed)
    assert {t.position for t in table_status(tmp_path)} == {len(feed)}


@pytest.mark.long
@pytest.mark.parametrize("again", ["rebuild", "run"])
def test_a_rebuild_of_all_that_is_killed_while_it_puts_tables_in_their_places(
    tmp_path, monkeypatch, begun, again
):
    """No derived table is ahead of raw_events then, though the node is."""
    rows = ROWS
    for call in SWAPS:
        directory = tmp_path / str(call)
        shutil.copytree(begun, directory)
        with monkeypatch.context() as patch:
            patch.setattr(maintenance, "_swap", Bomb(maintenance._swap, call, after=True))
            with pytest.raises(KilledError):
                rebuild(directory, "raw_events", Served(rows), silent)
        tables = Tables(directory, EPOCH)
        assert set(tables.positions.values()) == {20}
        assert_tables(directory, rows.slice(0, 20).to_pylist())
        if again == "rebuild":
            rebuild(directory, "raw_events", Served(rows), silent)
            assert_tables(directory, rows.slice(0, 20).to_pylist())
        fill(directory, rows, 1)
        assert_tables(directory, rows.to_pylist())


def test_raw_events_that_were_lost_are_read_again(tmp_path, monkeypatch, begun):
    """The other tables are ahead of it, whether it is missing or new: raw_events comes first."""
    rows = ROWS
    for call in SWAPS:
        directory = tmp_path / str(call)
        shutil.copytree(begun, directory)
        shutil.rmtree(directory / "raw_events")
        if call > 1:  # opening the tables makes a new one
            with pytest.raises(TablesError, match="but raw_events only at 0"):
                Tables(directory, EPOCH)
        with monkeypatch.context() as patch:
            patch.setattr(maintenance, "_swap", Bomb(maintenance._swap, call, after=True))
            with pytest.raises(KilledError):
                rebuild(directory, "raw_events", Served(rows, 25), silent)
        tables = Tables(directory, EPOCH)
        assert tables.raw_position == 25
        fill(directory, rows, 1)
        assert_tables(directory, rows.to_pylist())


def test_the_files_of_a_rebuilt_table_are_moved(sample, tmp_path, monkeypatch):
    """By one commit, which says all that others ask for: changes, older versions, statistics."""
    monkeypatch.setattr(staging, "ROW_GROUP", 8)
    rows = feed_rows(sample[:120])
    fill(tmp_path, rows).tables.set_retention(Retention(5.0))
    before = {t.name: t.version or 0 for t in table_status(tmp_path)}
    rebuild(tmp_path, "raw_events", Served(rows), silent)
    assert_tables(tmp_path, rows.to_pylist())
    for name, spec in TABLES.items():
        table = DeltaTable(tmp_path / name)
        assert table.version() == before[name] + 1
        assert asked(tmp_path, f"SELECT count(*) FROM {name}", before[name]) == asked(
            tmp_path, f"SELECT count(*) FROM {name}"
        )
        properties = table.metadata().configuration
        assert properties["delta.deletedFileRetentionDuration"] == "interval 18000 seconds"
        assert properties["delta.enableChangeDataFeed"] == "true"
        files = pa.table(table.get_add_actions(flatten=True))
        facts = ("path", "num_records", f"min.{spec.order}", f"max.{spec.order}")
        for path, *stated in zip(*(files[fact].to_pylist() for fact in facts), strict=True):
            file = pq.ParquetFile(tmp_path / name / path)
            columns = file.read(["stream_cid", spec.order]).to_pydict()
            order = columns[spec.order]
            assert stated == [len(order), min(order), max(order)]
            assert columns["stream_cid"] == sorted(columns["stream_cid"])
            groups = range(file.num_row_groups)
            assert all(file.metadata.row_group(i).num_rows <= 8 for i in groups)
        changes = table.load_cdf(starting_version=before[name] + 1).read_all()
        kinds = pa.table(changes)["_change_type"].to_pylist()
        count = sum(files["num_records"].to_pylist())
        assert Counter(kinds) == Counter(delete=count, insert=count)


def test_a_crash_before_the_commit_leaves_files_for_vacuum(sample, tmp_path, monkeypatch):
    rows = feed_rows(sample[:100])
    fill(tmp_path, rows)
    before = set((tmp_path / "stream_tips").rglob("part-*.parquet"))
    swap = maintenance._swap

    def killed(*args: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(SinkTable, "_write", Bomb(SinkTable._write, 1))
            swap(*args)

    with monkeypatch.context() as patch:
        patch.setattr(maintenance, "_swap", killed)
        with pytest.raises(KilledError):
            rebuild(tmp_path, "stream_tips", None, silent)
    assert_tables(tmp_path, rows.to_pylist())
    moved = set((tmp_path / "stream_tips").rglob("part-*.parquet")) - before
    assert moved
    told("vacuum", "--tables", tmp_path, "--history", "0h", "stream_tips")
    assert not any(file.exists() for file in moved)
    assert_tables(tmp_path, rows.to_pylist())


def test_many_commits_of_a_rebuild_leave_few_files(sample, tmp_path, monkeypatch):
    """They are merged meanwhile, and those merged are not kept."""
    monkeypatch.setattr(retention, "_COMMITS_PER_TIDY", 4)
    monkeypatch.setattr(retention, "_MIN_FILES", 2)
    monkeypatch.setattr(maintenance, "_ROWS_PER_READ", 10)
    rows = feed_rows(sample[:200])
    fill(tmp_path, rows)
    most = 0

    def look(name: str, position: int, goal: int) -> None:
        nonlocal most
        most = max(most, len(list((tmp_path / "_rebuild" / RAW).rglob("part-*.parquet"))))

    rebuild(tmp_path, "raw_events", Served(rows), look)
    assert 16 <= most < 80
    assert_tables(tmp_path, rows.to_pylist())


def test_a_rebuild_waits_for_a_node_that_is_away_for_a_moment(node, sample, tmp_path, monkeypatch):
    """An hour of reading is not to be in vain. One that is not there at all is reported at once."""
    node.add(sample[:60])
    filled(
        tmp_path, pa.Table.from_batches(Feed(node.url).read(0, 60, node.epoch)), epoch=node.epoch
    )
    restarts: list[Node] = []
    with monkeypatch.context() as patch:
        patch.setattr(maintenance, "_ROWS_PER_READ", 20)
        append = Tables.append

        def killing(tables: Tables, rows: pa.Table) -> int:
            if not restarts:
                node.kill()
                restarts.append(node)
                threading.Timer(0.5, node.start).start()
            return append(tables, rows)

        patch.setattr(Tables, "append", killing)
        told("rebuild", "--tables", tmp_path, "raw_events", "--url", node.url)
    assert restarts
    assert_tables(tmp_path, node.feed())

    def sleep(seconds: float) -> None:
        raise AssertionError("a node that was never there is waited for")

    monkeypatch.setattr(feed_client, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    gone = ("--tables", tmp_path, "raw_events", "--url", "http://127.0.0.1:1")
    assert "cannot be reached" in told("rebuild", *gone, code=1)


def test_what_arrow_cannot_do_is_reported_in_a_line(sample, tmp_path, monkeypatch):
    fill(tmp_path, feed_rows(sample[:20]))

    def fail(*args: Any) -> None:
        raise pa.ArrowInvalid("no\nsuch thing")

    monkeypatch.setattr(maintenance, "_swap", fail)
    with pytest.raises(TablesError, match=r"cannot write the tables in .*: no such thing"):
        rebuild(tmp_path, "stream_tips", None, silent)


def test_a_node_that_was_restored_from_an_older_copy_is_no_good_health(
    sample, tmp_path, monkeypatch
):
    """Its log is shorter than what was read from it: nothing is behind it, and nothing goes on."""
    rows = feed_rows(sample[:50])
    fill(tmp_path, rows)
    served = Served(rows, upto=25)
    monkeypatch.setattr(Feed, "head", lambda feed, patience=None: served.head())
    health = check_health(tmp_path, ["http://node"], None, 10, None)
    assert health.lag == {}
    (trouble,) = health.troubles
    assert "ends at position 25, but events up to 50 were read" in trouble
    served.upto = 60
    health = check_health(tmp_path, ["http://node"], None, 10, None)
    assert health.lag == dict.fromkeys(TABLES, 10)
    assert health.troubles == []


ADDED = ("time", "chain_id", "delivered_at", "fault")


def test_a_table_of_the_first_version_with_anchors_must_be_read_again(tmp_path: Path) -> None:
    filled(tmp_path, ROWS, names=())
    make_old(tmp_path, RAW, *ADDED)
    with pytest.raises(
        TablesError, match=r"of its 6 time events.*rebuild raw_events --tables .* --url URL"
    ):
        Tables(tmp_path, EPOCH)
    rebuild(tmp_path, RAW, Served(ROWS), silent)
    filled(tmp_path, ROWS)
    assert_tables(tmp_path, ROWS.to_pylist())


def test_a_table_without_times_of_delivery_gets_the_column(tmp_path: Path) -> None:
    """Null is right for its rows, time events included."""
    times = [datetime(2026, 5, 1, 12, 0, second, 7_000, UTC) for second in range(len(ROWS))]
    at = ROWS.schema.get_field_index("delivered_at")
    column = ROWS.schema.field(at)
    rows = ROWS.set_column(at, column, pa.array(times, column.type))
    half = len(rows) // 2
    filled(tmp_path, ROWS.slice(0, half), names=())
    make_old(tmp_path, RAW, "delivered_at", "fault")
    filled(tmp_path, rows)
    assert_tables(tmp_path, [*ROWS.slice(0, half).to_pylist(), *rows.slice(half).to_pylist()])
    sql = "SELECT count(*), max(delivered_at) FROM raw_events WHERE delivered_at >= '2026-05-01'"
    last = f"2026-05-01 12:00:{len(rows) - 1:02}.007+00"
    assert asked(tmp_path, sql) == [(len(rows) - half, last)]
