"""Rows of streams that are changed in few small files, beside what delta-rs does to the table."""

import json
import os
import random
import signal
import tempfile
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import obstore
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st
from obstore.exceptions import GenericError
from spark_helpers import EPOCH, feed_rows
from spark_leaf_child import SPEC, cid_of, put_and_die, put_often, row, table_of

from recon_node.base.latest import Remembered
from spark_sink.errors import ConflictError, TablesError
from spark_sink.query.dataset import dataset_of
from spark_sink.schema import RAW, partition_of
from spark_sink.tables import leaves, raw_files, retention
from spark_sink.tables.delta_log import names_of, query, read_commit
from spark_sink.tables.location import (
    Location,
    files_below,
    has_objects,
    location_of,
    open_delta_table,
)
from spark_sink.tables.retention import optimize
from spark_sink.tables.sink_table import SinkTable
from spark_sink.tables.tables import Tables

KINDS = {"insert", "update_preimage", "update_postimage"}


def rows_in(table: DeltaTable) -> dict[bytes, int]:
    rows = query(table, "SELECT stream_cid, event_height FROM t").to_pylist()
    assert len({row["stream_cid"] for row in rows}) == len(rows)
    return {row["stream_cid"]: row["event_height"] for row in rows}


def replayed(path: Location) -> dict[bytes, int]:
    """Apply the change data feed to an empty table; each change must change something."""
    rows: dict[bytes, int] = {}
    feed = pa.table(open_delta_table(path).load_cdf(starting_version=0).read_all())
    by_version: dict[int, dict[str, dict[bytes, int]]] = {}
    for change in feed.to_pylist():
        kinds = by_version.setdefault(change["_commit_version"], {kind: {} for kind in KINDS})
        kinds[change["_change_type"]][change["stream_cid"]] = change["event_height"]
    for _, kinds in sorted(by_version.items()):
        before, after = kinds["update_preimage"], kinds["update_postimage"]
        assert before.keys() == after.keys()
        assert all(rows[cid] == before[cid] != after[cid] for cid in before)
        assert rows.keys().isdisjoint(kinds["insert"])
        rows |= after | kinds["insert"]
    return rows


PUTS = st.dictionaries(st.integers(0, 300), st.integers(0, 3), max_size=40)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("few"), PUTS),
        st.tuples(st.just("many"), PUTS),  # which delta-rs merges
        st.tuples(st.sampled_from(["reopen", "tidy", "optimize"]), st.just({})),
    ),
    max_size=12,
)


@settings(max_examples=15, deadline=None)
@given(STEPS)
def test_a_table_is_what_was_put_into_it_and_so_is_its_change_feed(steps):
    expected: dict[bytes, int] = {}
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(leaves, "_LEAF_BYTES", 2_000)
        patch.setattr(leaves, "_CHUNK_BYTES", 20_000)
        patch.setattr(leaves, "_FOOTER_BYTES", 16)  # less than a footer has, as of many columns
        patch.setattr(retention, "_COMMITS_PER_TIDY", 1)
        patch.setattr("spark_sink.tables.sink_table._COMMITS_PER_CHECKPOINT", 3)
        path = Path(name) / SPEC.name
        table = SinkTable(SPEC, path, EPOCH)
        position = 0
        for step, values in steps:
            if step == "reopen":
                table = SinkTable(SPEC, path, EPOCH)
            elif step == "tidy":
                table.tidy(idle=True)
            elif step == "optimize":
                optimize(DeltaTable(path))
                table = SinkTable(SPEC, path, EPOCH)
            else:
                position += 1
                patch.setattr(
                    "spark_sink.tables.sink_table.MOST_ROWS", -1 if step == "many" else 10_000
                )
                table.put(table_of(values), position)
                expected |= {cid_of(stream): value for stream, value in values.items()}
        assert rows_in(DeltaTable(path)) == expected
        assert replayed(path) == expected
        assert SinkTable(SPEC, path, EPOCH).position == position


def test_a_few_rows_rewrite_few_bytes_and_files_stay_bounded(place: Location) -> None:
    """The rows of many streams come in one file a partition; what is touched of it is divided."""
    streams = 20_000
    table = SinkTable(SPEC, place, EPOCH)
    table.put(table_of(dict.fromkeys(range(streams), 0)), 1)
    chance = random.Random(37)
    for position in range(2, 12):
        changed = {chance.randrange(streams): position for _ in range(32)}
        table.put(table_of(changed), position)
    delta = open_delta_table(place)
    actions = read_commit(place, delta.version())
    written = sum(a[kind]["size"] for a in actions for kind in ("add", "cdc") if kind in a)
    live = pa.table(delta.get_add_actions(flatten=True))
    assert written < sum(live["size_bytes"].to_pylist()) / 3
    assert 16 < live.num_rows < 400
    # Readers skip files by StreamID, and nothing overlaps.
    for partition in range(16):
        mine = live.filter(pa.compute.field("partition.stream_cid_partition") == partition)
        spans = sorted(zip(mine["min.stream_id"], mine["max.stream_id"], strict=True), key=str)
        assert all(one[1].as_py() < other[0].as_py() for one, other in pairwise(spans))


def test_what_stays_as_it_was_is_not_written_and_of_two_writers_the_second_is_refused(tmp_path):
    path = tmp_path / SPEC.name
    table, other = (SinkTable(SPEC, path, EPOCH) for _ in range(2))
    table.put(table_of({1: 1, 2: 2}), 1)
    files = DeltaTable(path).file_uris()
    table.put(table_of({1: 1, 2: 2}), 2)
    assert (table.position, SinkTable(SPEC, path, EPOCH).position) == (2, 2)
    assert DeltaTable(path).file_uris() == files
    with pytest.raises(TablesError, match="another process has written"):
        other.put(table_of({2: 3}), 1)
    assert rows_in(DeltaTable(path)) == {cid_of(1): 1, cid_of(2): 2}


def test_a_table_of_an_older_version_in_a_store_goes_on_in_leaves(store, monkeypatch):
    """Which readers read at once, or not at all."""
    monkeypatch.setattr(leaves, "_LEAF_BYTES", 2_000)
    table = SinkTable(SPEC, store, EPOCH)
    with monkeypatch.context() as patch:
        patch.setattr("spark_sink.tables.sink_table.MOST_ROWS", -1)
        table.put(table_of(dict.fromkeys(range(300), 0)), 1)
    table.put(table_of({1: 1, 2: 2}), 2)
    optimize(open_delta_table(store))
    SinkTable(SPEC, store, EPOCH).put(table_of({2: 3, 300: 4}), 3)
    delta = open_delta_table(store)
    expected = dict.fromkeys(map(cid_of, range(300)), 0)
    expected |= {cid_of(1): 1, cid_of(2): 3, cid_of(300): 4}
    assert rows_in(delta) == replayed(store) == expected
    names = names_of(delta)
    assert sum(name.endswith(".leaf.parquet") for name in names) >= 4
    dataset = dataset_of(store, delta, names)
    heights = dataset.to_table(columns=["stream_cid", "event_height"])
    assert dict(zip(*(column.to_pylist() for column in heights.columns), strict=True)) == expected
    where = ds.field("stream_id") == row(2, 0)["stream_id"]
    where &= ds.field("stream_cid_partition") == partition_of(cid_of(2))
    assert dataset.to_table(filter=where)["event_height"].to_pylist() == [3]
    assert len([*dataset.get_fragments(where)]) == 1


def test_where_files_cannot_be_put_if_absent_rows_are_merged(store: Location) -> None:
    options = dict(store.options) | {"aws_s3_allow_unsafe_rename": "true", "max_retries": "3"}
    old = replace(store, options=tuple(options.items()))
    assert has_objects(store)
    assert not has_objects(old)
    table = SinkTable(SPEC, old, EPOCH)
    for value in (1, 2):
        table.put(table_of({1: value}), value)
    assert rows_in(open_delta_table(old)) == {cid_of(1): 2}
    assert not [name for name in names_of(open_delta_table(old)) if ".leaf." in name]


@pytest.mark.parametrize(
    ("variables", "options", "expected"),
    [
        ({}, {}, True),  # the role of a machine
        ({"AWS_ACCESS_KEY_ID": "x", "AWS_PROFILE": "p"}, {}, True),
        ({"AWS_PROFILE": "p"}, {}, False),
        ({"AWS_PROFILE": "p"}, {"AWS_ACCESS_KEY_ID": "x"}, True),
        ({"AWS_CONFIG_FILE": __file__}, {}, False),
        ({"AWS_S3_LOCKING_PROVIDER": "dynamodb"}, {}, False),
        ({}, {"aws_conditional_put": "disabled"}, False),
    ],
)
def test_what_delta_rs_does_in_another_way_is_left_to_it(
    variables, options, expected, monkeypatch, tmp_path
):
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in {"HOME": str(tmp_path), **variables}.items():
        monkeypatch.setenv(name, value)
    assert has_objects(location_of("s3://bucket/t", options)) is expected
    assert has_objects(location_of("gs://bucket/t", options))


def test_rows_are_there_before_or_after_a_kill_at_each_step_of_a_commit(place: Location) -> None:
    """What a killed process leaves behind belongs to no version, and a vacuum finds it."""
    before, change = dict.fromkeys(range(60), 0), {1: 1, 2: 2, 61: 3}
    SinkTable(SPEC, place, EPOCH).put(table_of(before), 1)
    context = get_context("forkserver")
    context.set_forkserver_preload(["spark_sink.tables.sink_table"])
    kills = 0
    while SinkTable(SPEC, place, EPOCH).position == 1:
        assert rows_in(open_delta_table(place)) == {
            cid_of(stream): before[stream] for stream in before
        }
        process = context.Process(target=put_and_die, args=(place, EPOCH, change, kills))
        process.start()
        process.join(60)
        assert process.exitcode == -signal.SIGKILL
        kills += 1
    assert kills > 5, "the files of rows and changes, the entry of the log, and after it"
    after = before | change
    assert rows_in(open_delta_table(place)) == {cid_of(stream): after[stream] for stream in after}
    table = SinkTable(SPEC, place, EPOCH)
    table.put(table_of({2: 5}), 3)  # and it goes on from there
    assert replayed(place) == rows_in(open_delta_table(place))
    assert replayed(place)[cid_of(2)] == 5
    delta = open_delta_table(place)
    files = delta.vacuum(0, enforce_retention_duration=False, dry_run=True, full=True)
    unused = {file.path for file in files_below(place)} - {*names_of(delta)}
    assert {*files} == {name for name in unused if not name.startswith("_delta_log")}
    assert len(files) > kills


def test_of_processes_that_commit_at_once_one_succeeds_each_time(place: Location) -> None:
    times, streams = 3, range(3)
    SinkTable(SPEC, place, EPOCH)
    context = get_context("forkserver")
    context.set_forkserver_preload(["spark_sink.tables.sink_table"])
    processes = [
        context.Process(target=put_often, args=(place, EPOCH, stream, times)) for stream in streams
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode == 0
    table = open_delta_table(place)
    assert SinkTable(SPEC, place, EPOCH).position == table.version() == times * len(streams)
    assert rows_in(table) == replayed(place) == {cid_of(stream): times for stream in streams}


@pytest.mark.parametrize("arrives", [True, False])
def test_a_commit_whose_answer_was_lost_is_made_once(place, monkeypatch, arrives):
    table, other = (SinkTable(SPEC, place, EPOCH) for _ in range(2))
    put, left = obstore.put, 1

    def lost(*args: Any, **named: Any) -> Any:
        nonlocal left
        if named.get("mode") != "create" or not left:
            return put(*args, **named)
        left -= 1
        if arrives:
            put(*args, **named)
        raise GenericError("operation timed out")

    monkeypatch.setattr(obstore, "put", lost)
    table.put(table_of({1: 1}), 1)
    assert (left, table.position, open_delta_table(place).version()) == (0, 1, 1)
    with pytest.raises(ConflictError):
        other.put(table_of({1: 2}), 1)
    left = 10
    with nullcontext() if arrives else pytest.raises(OSError, match="timed out"):
        table.put(table_of({1: 3}), 2)
    assert rows_in(open_delta_table(place)) == {cid_of(1): 3 if arrives else 1}


def test_commits_of_our_own_have_checkpoints(tmp_path, monkeypatch):
    monkeypatch.setattr("spark_sink.tables.sink_table._COMMITS_PER_CHECKPOINT", 4)
    path = tmp_path / SPEC.name
    table = SinkTable(SPEC, path, EPOCH)
    for position in range(1, 7):
        table.put(table_of({position: position}), position)
    said = json.loads((path / "_delta_log" / "_last_checkpoint").read_text())
    assert said["version"] == 4
    assert len(rows_in(DeltaTable(path))) == 6


def test_merging_goes_on_next_time_where_it_was_too_much(sample, tmp_path, monkeypatch):
    monkeypatch.setattr(retention, "_COMMITS_PER_TIDY", 1)
    monkeypatch.setattr(retention, "_MIN_FILES", 2)
    tables = Tables(tmp_path, EPOCH, ())
    for end in (100, 200, 300):
        tables.append(feed_rows(sample[:end]))
    many = DeltaTable(tmp_path / RAW).file_uris()
    for end in range(301, 304):
        tables.append(feed_rows(sample[:end]))
        tables.tidy(most=1)
    left = DeltaTable(tmp_path / RAW).file_uris()
    assert 3 <= len({*many} - {*left}) < len(many) / 2  # one partition a time
    tables.append(feed_rows(sample[:304]))
    tables.tidy()
    assert len(DeltaTable(tmp_path / RAW).file_uris()) <= 16


def test_small_files_are_read_once_and_not_all_are_kept(sample, tmp_path, monkeypatch):
    tables = Tables(tmp_path, EPOCH, ())
    for end in (100, 200):
        tables.append(feed_rows(sample[:end]))
    raw = tables.raw.files_upto(200)
    streams = raw.streams_between(0, 200)
    read: list[pa.Table] = []

    def rows_in(whole: pa.Buffer, schema: pa.Schema) -> pa.Table:
        read.append(real(whole, schema))
        return read[-1]

    real = raw_files.rows_in
    monkeypatch.setattr(raw_files, "rows_in", rows_in)
    kept = Remembered[Any, pa.Table](1e9, weigh=lambda rows: int(rows.nbytes))
    monkeypatch.setattr(raw_files, "_small_files", kept)
    first = raw.events_of(streams, 150)
    assert sorted(first["position"].to_pylist()) == list(range(1, 151))
    assert len(read) == len([file for file in raw.files if file.first <= 150])
    read.clear()
    assert raw.events_of(streams, 150).num_rows == 150
    assert not read
    monkeypatch.setattr(kept, "_limit", 5_000)
    assert raw.events_of(streams, 200).num_rows == 200
    assert sum(rows.nbytes for _, rows in kept.items()) <= 5_000
