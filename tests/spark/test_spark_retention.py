"""How much disk the tables take while they change, and which old versions stay readable."""

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable
from spark_helpers import EPOCH, asked, feed_rows, read_on, told
from spark_samples import change, document, replace
from support import forking

from recon_node.ceramic import Event
from spark_sink.query.question import run_query
from spark_sink.run.pipeline import Sink
from spark_sink.serve.database import Database
from spark_sink.serve.served_feed import ServedFeed
from spark_sink.tables import retention
from spark_sink.tables.catalog import table_status
from spark_sink.tables.location import files_below
from spark_sink.tables.retention import Leftovers, Retention, held, oldest_held
from spark_sink.tables.tables import Tables


def small_batches(
    directory: Path,
    sample: list[Event],
    documents: int,
    batches: int,
    size: float | None,
    updates: int = 1,
) -> float:
    """Change a few of many streams in each batch; return how many times the live size is there."""
    model = next(event for event in sample if event.header and event.header.model)
    events = [
        document(model.header.model, {"n": n}, n.to_bytes(4, "big")) for n in range(documents)
    ]
    for n in range(batches * updates):
        events.append(change(events[n % documents], replace("/n", -n)))
    sink = Sink(Tables(directory, EPOCH))
    sink.tables.set_retention(Retention(1.0, size))
    rows = feed_rows(events)
    for end in range(documents, len(events) + 1, updates):
        read_on(sink, rows.slice(0, end))
        sink.tables.tidy(idle=True)
    sink.finish()
    status = table_status(directory)
    assert all(table.files < 300 for table in status)  # those of streams are small
    written = sum(file.size for t in status for file in files_below(directory / t.name))
    assert sum(table.total for table in status) == written
    logs = sum(f.size for t in status for f in files_below(directory / t.name, "_delta_log"))
    return (written - logs) / sum(table.size for table in status)


@pytest.mark.long
def test_small_batches_do_not_fill_the_disk(sample, tmp_path, monkeypatch):
    monkeypatch.setattr(retention, "LEAST_KEPT", 10_000)
    monkeypatch.setattr(retention, "_GRACE", 0.0)
    assert small_batches(tmp_path / "bounded", sample, 600, 50, None, updates=8) < 3
    assert small_batches(tmp_path / "by-time", sample, 600, 50, math.inf, updates=8) > 6


class Versions:
    """A table of streams, changed again and again, of which as little as possible is kept."""

    def __init__(self, directory: Path, sample: list[Event], patch: pytest.MonkeyPatch) -> None:
        patch.setattr(retention, "_GRACE", 0.0)
        self.directory = directory
        self.sink = Sink(Tables(directory, EPOCH, ["stream_tips"]))
        self.sink.tables.set_retention(Retention(1.0, 0))
        self.rows = feed_rows(sample[:400])
        self.done = 0
        self.step(100)

    def step(self, count: int = 20) -> None:
        self.done += count
        read_on(self.sink, self.rows.slice(0, self.done))
        self.sink.tables.tidy(idle=False)


@pytest.fixture
def versions(sample: list[Event], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Versions:
    return Versions(tmp_path, sample, monkeypatch)


def test_a_query_can_read_to_its_end(versions: Versions) -> None:
    with run_query(versions.directory, "SELECT * FROM stream_tips ORDER BY position") as answer:
        for _ in range(5):
            versions.step()
        assert len(list(answer.rows)) > 0
    before = len(list((versions.directory / "stream_tips").rglob("*.parquet")))
    versions.step()
    assert len(list((versions.directory / "stream_tips").rglob("*.parquet"))) < before


def test_what_is_read_stays_however_short_the_history_is(versions, monkeypatch):
    monkeypatch.setattr(retention, "_COMMITS_PER_TIDY", 1)
    versions.sink.tables.set_retention(Retention(0.0, math.inf))
    table = DeltaTable(versions.directory / "stream_tips")
    files = [Path(uri) for uri in table.file_uris()]
    with held(versions.directory / "stream_tips", table.version()):
        for _ in range(3):
            versions.step()
        assert all(file.exists() for file in files)
    versions.step()
    assert not all(file.exists() for file in files)


def test_a_feed_can_read_every_change(versions: Versions) -> None:
    database = Database(versions.directory, memory_mb=200, threads=1)
    statement = database.understand("SELECT * FROM tables.stream_tips_feed")
    schema = database.schema(statement, {})
    steps = ServedFeed(database, "stream_tips").steps()
    seen: dict[bytes, int] = {}

    def take() -> None:
        """Read on until all is there; if a change cannot be read any more, the feed fails."""
        sql = "SELECT hex(stream_cid), position FROM stream_tips"
        now = {bytes.fromhex(cid): at for cid, at in asked(versions.directory, sql)}
        while seen != now:
            next(steps)
            for batch in database.answer(statement, {}, schema):
                seen.update((row["stream_cid"], row["position"]) for row in batch.to_pylist())

    take()
    for _ in range(5):
        versions.step()
    take()


def test_who_has_ended_holds_nothing(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path\n"
        "from spark_sink.tables.retention import held\n"
        "with held(Path(sys.argv[1]), 7): print(flush=True); time.sleep(600)"
    )
    with (
        held(tmp_path, 9) as move,
        forking.Popen([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE) as other,
    ):
        other.stdout.readline()
        assert oldest_held(tmp_path) == 7
        os.kill(other.pid, signal.SIGKILL)
        other.wait()
        assert oldest_held(tmp_path) == 9
        move(12)
        assert oldest_held(tmp_path) == 12
    assert oldest_held(tmp_path) is None
    assert list((tmp_path / "_readers").iterdir()) == []


def test_what_was_live_a_moment_ago_stays(versions: Versions) -> None:
    table = versions.sink.tables.table("stream_tips")
    now = [1000.0]
    leftovers = Leftovers(table.path, table._table, lambda: now[0])
    leftovers._grace = 10.0
    versions.sink.tables.set_retention(Retention(1.0, math.inf))
    known = table._tidying._leftovers
    size = known.size
    leftovers.trim(0)  # nothing yet: what was there counts from now on
    for _ in range(3):
        versions.step()
        leftovers.follow(table._table.version())
    assert known.size == size, "what nothing limits takes no memory"
    now[0] += 9
    assert leftovers.trim(0) == 0
    now[0] += 2
    assert leftovers.trim(leftovers.size - 1) == 1
    assert leftovers.trim(0) > 1
    assert leftovers.size == 0


def test_what_vacuum_has_deleted_is_not_remembered(versions: Versions) -> None:
    """With a large --history-size, it grew for as long as the pipeline ran."""
    tables = versions.sink.tables
    tables.set_retention(Retention(0.0, 1e12))
    for _ in range(20):
        versions.step()
        tables.tidy(idle=False)
    table = tables.table("stream_tips")
    leftovers = table._tidying._leftovers
    there = {file.path for file in files_below(table.path)}
    assert {left.name for left in leftovers._files if left.name.endswith(".parquet")} <= there
    assert leftovers.size == sum(left.size for left in leftovers._files)


def entries_of(directory: Path) -> list[int]:
    return sorted(int(file.name[:20]) for file in (directory / "_delta_log").glob("0*.json"))


def test_the_log_goes_with_the_versions(versions: Versions) -> None:
    """Entries that a checkpoint has replaced take space, too, and are deleted with the files."""
    table = versions.sink.tables.table("stream_tips")
    path = versions.directory / "stream_tips"
    with held(path, table._table.version()):
        first = entries_of(path)[0]
        for _ in range(3):
            versions.step()
            table._table.create_checkpoint()
        versions.step()
        assert entries_of(path)[0] == first
    versions.step()
    versions.step()
    checkpoint = json.loads((path / "_delta_log" / "_last_checkpoint").read_text())["version"]
    assert entries_of(path) == list(range(checkpoint, table._table.version() + 1))
    assert len(list((path / "_delta_log").glob("*.checkpoint.parquet"))) == 1
    sql = "SELECT max(position) AS last FROM stream_tips"
    assert asked(versions.directory, sql) == [(versions.done,)]
    told("status", "--tables", versions.directory)


def test_the_log_stays_for_those_who_follow_changes(versions: Versions) -> None:
    versions.sink = Sink(Tables(versions.directory, EPOCH, ["stream_tips"]))
    versions.sink.tables.set_retention(Retention(1.0, 0, changes=1.0))
    table = versions.sink.tables.table("stream_tips")
    for _ in range(3):
        versions.step()
        table._table.create_checkpoint()
    assert entries_of(versions.directory / "stream_tips")[0] == 0
