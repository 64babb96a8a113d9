"""Rows of streams that are changed in few small files, beside what delta-rs does to the table."""

import hashlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
from itertools import count, pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st
from spark_helpers import EPOCH, feed_rows

from recon_node.ceramic import Event
from spark_sink.errors import TablesError
from spark_sink.schema import RAW, TABLES, partition_of
from spark_sink.tables import commits, delta_files, leaves, raw_files, retention
from spark_sink.tables.delta import FeedTable
from spark_sink.tables.delta_files import optimize, query
from spark_sink.tables.directory import Tables

SPEC = TABLES["stream_states"]
KINDS = {"insert", "update_preimage", "update_postimage"}


def cid_of(stream: int) -> bytes:
    return b"\x01\x71\x12\x20" + hashlib.sha256(stream.to_bytes(4, "big")).digest()


def row(stream: int, value: int) -> dict[str, Any]:
    cid = cid_of(stream)
    return {
        "stream_id": f"k{cid.hex()}",
        "stream_cid": cid,
        "stream_type": 3,
        "controller": "did:key:z6Mk",
        "dimensions": [("model", b"model"), ("none", None)],
        "event_cid": cid,
        "event_type": "data",
        "event_height": value,
        "data": b"%d" % value * 9,
        "position": 1,
        "stream_cid_partition": partition_of(cid),
    }


def table_of(values: dict[int, int]) -> pa.Table:
    return pa.Table.from_pylist([row(*item) for item in values.items()], SPEC.schema)


def rows_in(table: DeltaTable) -> dict[bytes, int]:
    found = query({"t": table}, "SELECT stream_cid, event_height FROM t").to_pylist()
    assert len({each["stream_cid"] for each in found}) == len(found)
    return {each["stream_cid"]: each["event_height"] for each in found}


def replayed(path: Path) -> dict[bytes, int]:
    """What the change data feed makes of nothing; no change of it is none."""
    rows: dict[bytes, int] = {}
    feed = pa.table(DeltaTable(path).load_cdf(starting_version=0).read_all())
    by_version: dict[int, dict[str, dict[bytes, int]]] = {}
    for each in feed.to_pylist():
        kinds = by_version.setdefault(each["_commit_version"], {kind: {} for kind in KINDS})
        kinds[each["_change_type"]][each["stream_cid"]] = each["event_height"]
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
def test_a_table_is_what_was_put_into_it_and_so_is_its_change_feed(
    steps: list[tuple[str, dict[int, int]]],
) -> None:
    expected: dict[bytes, int] = {}
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(leaves, "_LEAF_BYTES", 2_000)
        patch.setattr(leaves, "_PORTION_BYTES", 20_000)
        patch.setattr(retention, "_COMMITS_PER_TIDY", 1)
        patch.setattr(commits, "_COMMITS_PER_CHECKPOINT", 3)
        path = Path(name) / SPEC.name
        table = FeedTable(SPEC, path, EPOCH)
        position = 0
        for step, values in steps:
            if step == "reopen":
                table = FeedTable(SPEC, path, EPOCH)
            elif step == "tidy":
                table.tidy(idle=True)
            elif step == "optimize":
                optimize(DeltaTable(path))
                table = FeedTable(SPEC, path, EPOCH)
            else:
                position += 1
                patch.setattr(commits, "MOST_ROWS", -1 if step == "many" else 10_000)
                table.put(table_of(values), position)
                expected |= {cid_of(stream): value for stream, value in values.items()}
        assert rows_in(DeltaTable(path)) == expected
        assert replayed(path) == expected
        assert FeedTable(SPEC, path, EPOCH).position == position


def test_a_few_rows_rewrite_few_bytes_and_files_stay_bounded(tmp_path: Path) -> None:
    """The rows of many streams come in one file a partition; what is touched of it is divided."""
    path, streams = tmp_path / SPEC.name, 20_000
    table = FeedTable(SPEC, path, EPOCH)
    table.put(table_of(dict.fromkeys(range(streams), 0)), 1)
    chance = random.Random(37)
    for position in range(2, 12):
        some = {chance.randrange(streams): position for _ in range(32)}
        table.put(table_of(some), position)
    last = path / "_delta_log" / f"{DeltaTable(path).version():020}.json"
    actions = [json.loads(line) for line in last.read_text().splitlines()]
    written = sum(a[kind]["size"] for a in actions for kind in ("add", "cdc") if kind in a)
    live = pa.table(DeltaTable(path).get_add_actions(flatten=True))
    assert written < sum(live["size_bytes"].to_pylist()) / 3
    assert 16 < live.num_rows < 400
    # Readers skip files by StreamID, and nothing overlaps.
    for partition in range(16):
        mine = live.filter(pa.compute.field("partition.stream_cid_partition") == partition)
        spans = sorted(zip(mine["min.stream_id"], mine["max.stream_id"], strict=True), key=str)
        assert all(one[1].as_py() < other[0].as_py() for one, other in pairwise(spans))


def test_what_stays_as_it_was_is_not_written_and_of_two_writers_the_second_is_refused(
    tmp_path: Path,
) -> None:
    path = tmp_path / SPEC.name
    table, other = (FeedTable(SPEC, path, EPOCH) for _ in range(2))
    table.put(table_of({1: 1, 2: 2}), 1)
    files = DeltaTable(path).file_uris()
    table.put(table_of({1: 1, 2: 2}), 2)
    assert (table.position, FeedTable(SPEC, path, EPOCH).position) == (2, 2)
    assert DeltaTable(path).file_uris() == files
    with pytest.raises(TablesError, match="another process has written"):
        other.put(table_of({2: 3}), 1)
    assert rows_in(DeltaTable(path)) == {cid_of(1): 1, cid_of(2): 2}


def put_and_die(path: Path, values: dict[int, int], steps: int) -> None:
    """In a process: put rows; SIGKILL before this many files were opened, linked or deleted."""
    left = steps

    def look(event: str, args: tuple[Any, ...]) -> None:
        nonlocal left
        if event in {"os.link", "os.remove"} or (event == "open" and is_written(*args)):
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def is_written(file: object, mode: str | None, flags: int) -> bool:
        return str(path) in str(file) and bool(flags & os.O_CREAT)

    table = FeedTable(SPEC, path, EPOCH)
    leaves._LEAF_BYTES = 2_000  # type: ignore[misc]
    sys.addaudithook(look)
    table.put(table_of(values), 2)


def test_rows_are_there_before_or_after_a_kill_at_each_step_of_a_commit(tmp_path: Path) -> None:
    before, change = dict.fromkeys(range(60), 0), {1: 1, 2: 2, 61: 3}
    FeedTable(SPEC, tmp_path / "before", EPOCH).put(table_of(before), 1)
    context = get_context("forkserver")
    context.set_forkserver_preload(["spark_sink.tables.delta"])
    outcomes = []
    for steps in count():
        path = tmp_path / SPEC.name
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(tmp_path / "before", path)
        process = context.Process(target=put_and_die, args=(path, change, steps))
        process.start()
        process.join(60)
        table = FeedTable(SPEC, path, EPOCH)
        outcomes.append(table.position)
        values = before if table.position == 1 else before | change
        assert rows_in(DeltaTable(path)) == {cid_of(each): values[each] for each in values}
        table.clear_staging()
        table.put(table_of({2: 5}), 3)  # and it goes on from there
        assert rows_in(DeltaTable(path))[cid_of(2)] == 5
        assert not [*path.glob("_staged/*")]
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
    assert outcomes == sorted(outcomes)
    assert outcomes.count(1) > 4, "files, the entry of the log and its link"
    assert outcomes.count(2) == 2, "killed when the version was there, and not at all"


def test_commits_of_our_own_have_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "_COMMITS_PER_CHECKPOINT", 4)
    path = tmp_path / SPEC.name
    table = FeedTable(SPEC, path, EPOCH)
    for position in range(1, 7):
        table.put(table_of({position: position}), position)
    said = json.loads((path / "_delta_log" / "_last_checkpoint").read_text())
    assert said["version"] == 4
    assert len(rows_in(DeltaTable(path))) == 6


def test_merging_goes_on_next_time_where_it_was_too_much(
    sample: list[Event], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "_COMMITS_PER_TIDY", 1)
    monkeypatch.setattr(delta_files, "_MIN_FILES", 2)
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


def test_small_files_are_read_once_and_not_all_are_kept(
    sample: list[Event], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = Tables(tmp_path, EPOCH, ())
    for end in (100, 200):
        tables.append(feed_rows(sample[:end]))
    raw = tables.raw.files_upto(200)
    streams = raw.streams_between(0, 200)
    read: list[str] = []

    def reading(location: Path, path: str, schema: pa.Schema) -> pa.Table:
        read.append(path)
        return pq.read_table(location / path, columns=schema.names, partitioning=None)

    monkeypatch.setattr(raw_files, "read_small_file", reading)
    monkeypatch.setattr(raw_files, "_small_files", kept := raw_files._SmallFiles())
    first = raw.events_of(streams, 150)
    assert sorted(first["position"].to_pylist()) == list(range(1, 151))
    assert sorted(read) == sorted(file.path for file in raw.files if file.first <= 150)
    read.clear()
    assert raw.events_of(streams, 150).num_rows == 150
    assert not read
    kept._files._limit = 5_000
    assert raw.events_of(streams, 200).num_rows == 200
    assert sum(rows.nbytes for _, rows in kept._files.items()) <= 5_000
