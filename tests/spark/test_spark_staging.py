"""Rows on their way into a table: in files that never get there, in too many, in large ones."""

import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from spark_helpers import EPOCH, ROWS, Bomb, KilledError, feed_rows, filled, read_on
from spark_oracle import assert_tables

from spark_sink.run.pipeline import Sink
from spark_sink.schema import TABLES
from spark_sink.tables import retention, staging
from spark_sink.tables.placement import Placement
from spark_sink.tables.raw_files import ordered_slices
from spark_sink.tables.sink_table import SinkTable
from spark_sink.tables.staging import Staged, Stager
from spark_sink.tables.staging import feed_rows as in_memory
from spark_sink.tables.tables import Tables


def files_in(directory: Path) -> set[Path]:
    return set(directory.rglob("part-*.parquet"))


def test_vacuum_deletes_files_that_never_were_the_tables(sample, tmp_path):
    """They were moved there, and then there was no commit. Those of now may still get theirs."""
    rows = feed_rows(sample[:200])
    filled(tmp_path, rows.slice(0, 100))
    committed = files_in(tmp_path)
    stager = Stager(TABLES["raw_events"], tmp_path / "raw_events")
    staged = stager.stage(in_memory(rows.slice(100)).staged.tables[0])
    left = {file.location / file.path for file in staged.files}
    assert files_in(tmp_path) == committed | left

    table = DeltaTable(tmp_path / "raw_events")
    assert retention.vacuum(tmp_path / "raw_events", table, 1.0, dry_run=False) == []
    for file in committed | left:
        os.utime(file, (time.time() - 2 * 3600,) * 2)
    assert len(retention.vacuum(tmp_path / "raw_events", table, 1.0, dry_run=True)) == len(left)
    assert len(retention.vacuum(tmp_path / "raw_events", table, 1.0, dry_run=False)) == len(left)
    assert files_in(tmp_path) == committed
    filled(tmp_path, rows)
    assert_tables(tmp_path, rows.to_pylist())


def test_files_that_workers_wrote_in_vain_are_gone_when_the_next_run_begins(
    sample, tmp_path, monkeypatch
):
    """However often it breaks off, the disk is not filled."""
    monkeypatch.setattr("spark_sink.derive.derivation._SHORT_POSITIONS", 0)
    rows = feed_rows(sample[:200])
    for _ in range(3):
        sink = Sink(Tables(tmp_path, EPOCH))
        assert files_in(tmp_path) == set()
        sink.tables.raw.stager().stage(in_memory(rows).staged.tables[0])
        assert files_in(tmp_path)
    sink = Sink(Tables(tmp_path, EPOCH))
    sink.tables.append(rows)
    in_raw = len(files_in(tmp_path / "raw_events"))
    with monkeypatch.context() as patch:
        append = sink.tables.derived["conclusion_events"].append
        patch.setattr(sink.tables.derived["conclusion_events"], "append", Bomb(append, 1))
        with pytest.raises(KilledError):
            sink.catch_up()
    assert len(files_in(tmp_path)) > in_raw
    sink = Sink(Tables(tmp_path, EPOCH))
    assert len(files_in(tmp_path)) == in_raw <= 16
    sink.catch_up()
    assert_tables(tmp_path, rows.to_pylist())


def test_the_files_of_a_long_batch_have_rows_of_several_times(sample, tmp_path, monkeypatch):
    """So that they are few, and still of a bounded size."""
    monkeypatch.setattr(staging, "_CHUNK_BYTES", 50_000)
    monkeypatch.setattr(staging, "_CHUNKS_PER_FILE", 8)
    rows = feed_rows(sample)
    stager = Stager(TABLES["raw_events"], tmp_path)
    parts = [*staging.stage_feed(rows.to_batches(50), stager, Placement.following(0, 0))]
    assert [part.first for part in parts] == [1, *(part.last + 1 for part in parts[:-1])]
    assert parts[-1].last == len(rows)
    files = [part.staged.files for part in parts if part.staged.files]
    assert 1 < len(files) == math.ceil(len(parts) / 8) < len(parts)
    for group in files:
        assert len({file.partition for file in group}) == len(group)
        for file in group:
            there = staging.read_file(file, TABLES["raw_events"].schema)["position"].to_pylist()
            assert (file.rows, file.first, file.last) == (len(there), min(there), max(there))
            assert file.size == (tmp_path / file.path).stat().st_size
    staged = sum((part.staged for part in parts), Staged())
    read = staged.read(TABLES["raw_events"].schema).sort_by("position")
    assert read.select(rows.schema.names).to_pylist() == rows.to_pylist()


@contextmanager
def counted() -> Iterator[pa.MemoryPool]:
    """Count the bytes that Arrow takes in the block."""
    usual = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(usual)
    pa.set_memory_pool(pool)
    try:
        yield pool
    finally:
        pa.set_memory_pool(usual)


def test_files_whose_rows_do_not_fit_into_memory_are_rewritten(sample, tmp_path, monkeypatch):
    """However small they are: a stranger's content may take a hundredth of its size in a file."""
    monkeypatch.setattr(retention, "_MIN_FILES", 2)
    monkeypatch.setattr(staging, "_PART_BYTES", 500_000)
    rows = feed_rows(sample[:200])
    for name, value in (("car", bytes(100_000)), ("stream_cid", bytes(sample[0].cid))):
        column = pa.array([value] * len(rows), pa.binary())
        rows = rows.set_column(rows.schema.get_field_index(name), name, column)
    tables = Tables(tmp_path, EPOCH, ())
    for end in range(40, 201, 40):
        tables.append(rows.slice(0, end))
    table = SinkTable(TABLES["raw_events"], tmp_path / "raw_events", EPOCH)
    table._tidying._tidied = -1_000
    first = pc.field("position") == 1
    with counted() as memory:
        table.tidy(idle=False)
        assert table.forget(range(16), first, lambda rows: rows.filter(~first)) == 1
    assert memory.max_memory() < 10_000_000  # of 20,000,000
    [file] = table.files_upto(200).files
    assert (file.rows, file.first, file.last) == (199, 2, 200)


@pytest.mark.long
def test_rows_of_more_bytes_than_a_column_of_one_piece_holds() -> None:
    """A stream can be that long. (Arrow's own sort raises "offset overflow".)"""
    count, size = 2_112, 1024 * 1024
    cars = [
        pa.array([bytes([i % 251]) * size for i in range(s, s + 64)]) for s in range(0, count, 64)
    ]
    table = pa.table({"position": pa.array(range(count, 0, -1)), "car": pa.chunked_array(cars)})
    assert table.nbytes > 1 << 31
    positions = []
    for part in ordered_slices(table, ["position"], 4096):
        assert part.num_rows <= 64
        for row in part.to_pylist():
            positions.append(row["position"])
            assert row["car"][:1] == bytes([(count - row["position"]) % 251])
    assert positions == list(range(1, count + 1))


@pytest.mark.long
def test_as_little_in_memory_as_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each stream is read by itself, each row written by itself; a crash in between is mended."""
    for name, least in (
        ("derive.derivation._SHORT_POSITIONS", 0),
        ("derive.derivation._MERGE_BYTES", 1),
        ("derive.portion._DATA_BYTES", 1),
        ("derive.portion.MAX_STAGED_BYTES", 1),
        ("tables.raw_files._READ_BYTES", 1),
        ("tables.raw_files._MIN_STREAMS", 1),
    ):
        monkeypatch.setattr(f"spark_sink.{name}", least)
    crashes = 0
    for call in (1, 2, 4, 1000):
        sink = Sink(Tables(tmp_path, EPOCH))
        table = sink.tables.derived["stream_states"]
        bomb = Bomb(table.revise, call, after=call % 2 == 0)
        with monkeypatch.context() as patch, suppress(KilledError):
            patch.setattr(table, "revise", bomb)
            for end in (12, 20, len(ROWS)):
                read_on(sink, ROWS.slice(0, end))
        crashes += bomb.went_off
    assert crashes > 1
    assert_tables(tmp_path, ROWS.to_pylist())
