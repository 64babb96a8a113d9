"""`spark-sink check`, and what `status` says of tables that have lost rows."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from spark_helpers import EPOCH, diagonal, feed_rows, filled, invoked, read_on

from recon_node.ceramic import Event
from spark_sink.run.pipeline import Sink
from spark_sink.tables import retention
from spark_sink.tables.delta_log import data_files
from spark_sink.tables.retention import Retention
from spark_sink.tables.staging import DataFile
from spark_sink.tables.tables import Tables
from spark_sink.upkeep import check


@pytest.fixture(scope="module")
def sound(sample: list[Event], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables of 60 events in several commits; not to be changed."""
    directory = tmp_path_factory.mktemp("tables")
    filled(directory, feed_rows(sample), *range(5, 65, 5))
    return directory


@pytest.fixture
def tables(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "tables"))


def test_sound_tables(sound: Path) -> None:
    for options in ((), ("--deep",)):
        result = invoked("check", "--tables", sound, *options)
        assert (result.exit_code, result.stderr) == (0, "")
        assert result.stdout.startswith("6 tables: ")
    assert json.loads(invoked("status", "--tables", sound, "--json").stdout)["troubles"] == []


@pytest.mark.parametrize("deep", [False, True])
def test_what_it_reads_stays_until_it_has_read_it(tables, sample, monkeypatch, deep):
    """`spark-sink run` replaces files meanwhile, and deletes those of older versions."""
    monkeypatch.setattr(retention, "_GRACE", 0.0)
    opened = check.open_delta

    def open_delta(directory: Path) -> dict[str, DeltaTable]:
        found = opened(directory)
        monkeypatch.setattr(check, "data_files", run_first)
        return found

    def run_first(*arguments: Any) -> list[DataFile]:
        monkeypatch.setattr(check, "data_files", data_files)
        sink = Sink(Tables(tables, EPOCH))
        sink.tables.set_retention(Retention(0.0, 0))
        for end in (70, 80):
            read_on(sink, feed_rows(sample[:end]))
            sink.tables.tidy(idle=True)
        return data_files(*arguments)

    monkeypatch.setattr(check, "open_delta", open_delta)
    result = invoked("check", "--tables", tables, *["--deep"] * deep)
    assert (result.exit_code, result.stderr) == (0, "")


@pytest.mark.parametrize("name", ["raw_events", "stream_tips"])
def test_a_lost_commit_is_reported(tables: Path, name: str) -> None:
    """No reader of the table notices: all that was committed later is there, and its position."""
    (tables / name / "_delta_log" / f"{5:020}.json").write_text("")
    for command in ("status", "check"):
        result = invoked(command, "--tables", tables)
        assert result.exit_code == 1
        assert f"{5:020}.json in the log of {name} is empty" in result.stderr
        assert f"spark-sink rebuild {name}" in result.stderr


def test_that_no_events_are_there_is_reported(tables: Path) -> None:
    shutil.rmtree(tables / "raw_events")
    for command in ("status", "check"):
        result = invoked(command, "--tables", tables)
        assert result.exit_code == 1
        assert "raw_events is missing" in result.stderr
        assert f"spark-sink rebuild raw_events --tables {tables} --url URL" in result.stderr


def _lose_rows(table: Path) -> None:
    """What the fifth commit added is lost, also if it is in a checkpoint, or was never empty."""
    commit = table / "_delta_log" / f"{5:020}.json"
    lines = [line for line in commit.read_text().splitlines() if "add" not in json.loads(line)]
    commit.write_text("\n".join(lines))


@pytest.mark.parametrize("name", ["raw_events", "conclusion_events", "event_states"])
def test_rows_that_are_missing_by_their_position_are_reported(tables: Path, name: str) -> None:
    _lose_rows(tables / name)
    fault = f"{name} is at position 60 but has 55 rows, and should have 60"
    for command in ("status", "check"):
        result = invoked(command, "--tables", tables)
        assert (result.exit_code, fault in result.stderr) == (1, True)


@pytest.mark.parametrize(
    ("names", "fault"),
    [
        (["conclusion_events", "event_states"], "it lacks 5 positions, the first is 21"),
        (["stream_tips", "stream_states"], "it lacks [0-9]+ streams of raw_events"),
    ],
)
def test_what_derived_tables_lack_is_reported_once_every_row_is_read(tables, names, fault):
    for name in names:
        _lose_rows(tables / name)
    result = invoked("check", "--tables", tables, "--deep")
    assert result.exit_code == 1
    for name in names:
        assert re.search(f"{name}: {fault}", result.stderr), result.stderr


def _without(file: Path) -> None:
    file.unlink()


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-50])


def _shorter(file: Path) -> None:
    pq.write_table(pq.read_table(file, partitioning=None).slice(1), file)


@pytest.mark.parametrize(
    ("name", "harm"),
    diagonal(["raw_events", "event_states", "stream_states"], [_without, _cut, _shorter]),
)
def test_a_file_that_is_gone_or_damaged_is_reported(tables, name, harm):
    kept = pa.table(Tables(tables, EPOCH).table(name)._table.get_add_actions())["path"].to_pylist()
    harm(tables / name / max(kept))
    shallow = invoked("check", "--tables", tables)
    assert (shallow.exit_code, f"{name}: 1 of " in shallow.stderr) == (1, True)
    assert f"spark-sink rebuild {name}" in shallow.stderr
    result = invoked("check", "--tables", tables, "--deep", "--json")
    troubles = json.loads(result.stdout)["troubles"]
    assert (result.exit_code, bool(troubles)) == (1, True)
    assert all(trouble.startswith(f"{name}: ") for trouble in troubles), troubles


@pytest.mark.parametrize(
    ("column", "keep", "words"),
    [("car", None, "b[0-9a-z]+: .*does not match"), ("event_cid", 1, "b..: .*another root")],
)
def test_an_event_that_is_not_what_its_cid_says(tables, column, keep, words):
    file = next((tables / "raw_events").glob("stream_cid_partition=*/*.parquet"))
    rows = pq.read_table(file, partitioning=None)
    values = rows[column].to_pylist()
    values[0] = values[0][:keep][:-1] + bytes([values[0][:keep][-1] ^ 1])
    at = rows.schema.get_field_index(column)
    pq.write_table(rows.set_column(at, rows.schema.field(at), pa.array(values, pa.binary())), file)
    result = invoked("check", "--tables", tables, "--deep")
    assert result.exit_code == 1
    assert re.search(f"raw_events: the event {words}", result.stderr)
