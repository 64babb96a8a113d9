"""Files on their way into a table: those that never get there, and those that it has too many of."""

import os
import time
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from spark_helpers import feed_rows
from spark_oracle import assert_tables

from recon_node.ceramic import Event
from spark_sink import delta, delta_files
from spark_sink.pipeline import Sink
from spark_sink.staging import feed_rows as in_memory
from spark_sink.tables import Tables

EPOCH = "5f0c8a10-aaaa-bbbb-cccc-000000000001"


def files_in(directory: Path) -> set[Path]:
    return set(directory.rglob("part-*.parquet"))


def test_vacuum_deletes_files_that_never_were_the_tables(
    sample: list[Event], tmp_path: Path
) -> None:
    """A worker wrote them, and then there was no commit. Those of now may still get theirs."""
    rows = feed_rows(sample[:200])
    sink = Sink(Tables(tmp_path, EPOCH))
    sink.tables.append(rows.slice(0, 100))
    sink.catch_up()
    committed = files_in(tmp_path)
    staged = sink.tables.raw.stager().stage(in_memory(rows.slice(100)).staged.tables[0])
    left = {file.path for file in staged.files}
    assert files_in(tmp_path) == committed | left

    table = DeltaTable(tmp_path / "raw_events")
    assert delta_files.vacuum(table, 1.0, dry_run=False) == []
    for file in committed | left:
        os.utime(file, (time.time() - 2 * 3600,) * 2)
    assert len(delta_files.vacuum(table, 1.0, dry_run=True)) == len(left)
    assert len(delta_files.vacuum(table, 1.0, dry_run=False)) == len(left)
    assert files_in(tmp_path) == committed
    sink = Sink(Tables(tmp_path, EPOCH))
    sink.tables.append(rows)
    sink.catch_up()
    assert_tables(tmp_path, rows.to_pylist())


def test_small_files_are_merged_however_many_commits_a_step_makes(
    sample: list[Event], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta, "_TIDY_EVERY", 10)
    rows = feed_rows(sample[:400])
    sink = Sink(Tables(tmp_path, EPOCH, ["event_states"]))
    store = sink.tables.derived["event_states"]
    store.keep_history(1.0)  # from here on the version is odd whenever a step ends
    for end in range(10, 401, 10):
        sink.tables.append(rows.slice(0, end))
        store.keep_history(float(end))
        sink.catch_up()
        sink.tables.tidy()
    files = pa.table(DeltaTable(store.path).get_add_actions(flatten=True))
    assert files.num_rows < 150
    assert_tables(tmp_path, rows.to_pylist(), ["event_states"])
