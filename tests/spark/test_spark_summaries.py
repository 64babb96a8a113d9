"""Long streams: with summaries of what came before, the tables are as if there were none."""

import random
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st
from spark_helpers import feed_rows
from spark_oracle import KEYS, assert_tables, sorted_rows, tables_of
from spark_samples import (
    DEFINITION,
    EXPIRED,
    KEY,
    Scenario,
    capability,
    change,
    delegated,
    document,
    replace,
)

from recon_node.ceramic import Event
from recon_node.ceramic.builder import data_event, model_event, signed_event, time_event
from recon_node.streams import long_stream
from spark_sink.derive import derivation, portion, streams
from spark_sink.derive.models import Models
from spark_sink.derive.portion import Step, compute, compute_anew
from spark_sink.run.pipeline import Sink
from spark_sink.schema import DERIVED, SUMMARIES, TABLES, with_partition
from spark_sink.tables import delta, delta_files
from spark_sink.tables.delta import DeltaStore
from spark_sink.tables.directory import Tables
from spark_sink.tables.raw_files import RawFile, RawFiles
from spark_sink.tables.staging import Staged, Stager
from spark_sink.tables.summaries import SummaryFiles
from spark_sink.upkeep import maintenance

EPOCH = "5f0c8a10-aaaa-bbbb-cccc-000000000001"
PATCHES: list[Any] = [
    [replace("/t", "text")],
    [replace("/t", "x" * 21)],  # too long for the model
    [replace("/n", 2)],  # immutable by the model
    [{"op": "add", "path": "/z", "value": {"y": 1.5, "a": [b"\x00", None, True]}}],
    [{"op": "remove", "path": "/z"}],
    "not a patch",
    [],
]

# Written like a link, but not one.
AMBIGUOUS = [{"op": "add", "path": "/a", "value": {"/": "not a link"}}]


@pytest.fixture(autouse=True, scope="module")
def _everything_is_long() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "LONG", 2)
        patch.setattr(streams, "_LATER", 1)
        patch.setattr(long_stream, "RECENT", 4)
        yield


class Author:
    """Writes streams that fork, merge, are anchored late, are rejected, expire, and have badly
    signed events."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.all = Scenario()
        self.model = model_event(KEY, DEFINITION)
        self.streams: list[list[Event]] = []
        self.model_top = self.model

    def write(self, size: int) -> Scenario:
        for number in range(size):
            if len(self.streams) < 2:
                self._start(number)
            elif number == 5 or self.rng.random() < 0.02:
                self._change_model(number)
            else:
                self._go_on(self.rng.choice(self.streams))
        return self.all

    def _start(self, number: int) -> None:
        content = {"n": 1, "t": "", "link": self.model.cid, "bytes": b"\xff"}
        init = document(self.model.stream_id(), content, bytes([number]))
        if not number and self.rng.random() < 0.5:
            init = delegated(self.model.stream_id(), content)
        self.streams.append([init])
        self.all.add(init)

    def _change_model(self, number: int) -> None:
        if self.model not in self.all.events:
            self.all.add(self.model)
        else:
            self.model_top = change(self.model_top, replace("/name", f"N{number}"))
            self.all.add(self.model_top)

    def _go_on(self, stream: list[Event]) -> None:
        covered = {prev for event in stream for prev in event.prevs}
        tips = [event.cid for event in stream if event.cid not in covered]
        prev = self.rng.choice([stream[-1], stream[-1], *stream[-4:], self.rng.choice(stream)])
        chance = self.rng.random()
        if chance < 0.3:
            self._anchor(stream, prev)
            return
        prevs = [prev.cid]
        if chance < 0.5:
            prevs = list(dict.fromkeys([prev.cid, *tips]))
        patch = self.rng.choice(PATCHES) if self.rng.random() < 0.98 else AMBIGUOUS
        payload = {"id": stream[0].cid, "prev": prevs, "data": patch}
        if self.rng.random() < 0.15:
            payload["header"] = {"modelVersion": self.rng.choice([self.model, self.model_top]).cid}
        signed_by = capability() if stream[0].capability else None
        event = signed_event(KEY, payload, capability=signed_by)
        if event in stream:
            return
        if self.rng.random() < 0.2:
            stream.append(self.all.forge(event))
        else:
            stream.append(event)
            self.all.add(event)

    def _anchor(self, stream: list[Event], prev: Event) -> None:
        time = self.rng.choice([None, 1_700_000_000 + self.rng.randrange(9), EXPIRED + 1])
        tx = self.rng.randbytes(32)
        event = time_event(prev.init, prev.cid, tx_hash=tx)
        if time is not None:
            self.all.times[event.cid] = time
        stream.append(event)
        self.all.add(event)


@dataclass
class Run:
    """Takes the feed in steps, as `Derivation` does, but with the rows in memory."""

    directory: Path
    feed: pa.Table
    raw: tuple[RawFile, ...] = ()
    summaries: SummaryFiles = field(default_factory=SummaryFiles)
    position: int = 0
    rows: dict[str, dict[Any, Any]] = field(default_factory=lambda: defaultdict(dict))

    def step(self, upto: int) -> None:
        new = with_partition(self.feed.slice(self.position, upto - self.position))
        self.raw += self._staged(Stager(TABLES["raw_events"], self.directory).stage(new))
        raw = RawFiles(self.raw, self.directory)
        stager = Stager(SUMMARIES, self.directory)
        step = Step(raw, DERIVED, self.position, upto, {}, {}, self.summaries, stager)
        touched = raw.streams_between(self.position, upto)
        models = Models(raw, self.position, upto)
        done = compute(step, touched, models)
        for name in DERIVED:
            self._put(name, done.rows[name].read(TABLES[name].schema))
            if name in done.revised:
                self._put(name, done.revised[name].read(TABLES[name].schema))
        of_changed = [
            row["stream_cid"]
            for row in self.rows["stream_states"].values()
            if dict(row["dimensions"])["model"] in done.changed.values()
        ]
        if done.changed:
            anew = Step(raw, ("event_states", "stream_states"), self.position, upto)
            revised = compute_anew(anew, sorted({*of_changed} - {*touched}), models)
            for name, rows in revised.items():
                self._put(name, rows)
        files = self.summaries.files + self._staged(done.summaries)
        self.summaries = SummaryFiles(files, self.directory)
        self.position = upto

    def _staged(self, staged: Staged) -> tuple[RawFile, ...]:
        return tuple(RawFile(f.path, f.partition, f.first, f.last, f.size) for f in staged.files)

    def _put(self, name: str, rows: pa.Table) -> None:
        for row in rows.to_pylist():
            self.rows[name][row[KEYS[name]]] = row


@settings(max_examples=12, deadline=None)
@given(st.integers(5, 45), st.integers(0, 2**32))
def test_in_any_steps_the_rows_are_the_same(size: int, seed: int) -> None:
    rng = random.Random(seed)
    written = Author(rng).write(size)
    feed = feed_rows(written.events, written.times, written.faults)
    with tempfile.TemporaryDirectory() as name:
        run = Run(Path(name), feed)
        while run.position < len(feed):
            run.step(min(len(feed), run.position + rng.choice([1, 1, 2, 3, 8])))
            expected = tables_of(feed.slice(0, run.position).to_pylist())
            for table in DERIVED:
                assert sorted_rows(table, run.rows[table].values()) == expected[table], table


def long_feed() -> pa.Table:
    """A model that comes late, a document with a fork and a merge, and one in the same partition
    or another."""
    all_ = Scenario()
    model = model_event(KEY, DEFINITION)
    for unique in (b"a", b"b"):
        init = document(model.stream_id(), {"n": 1, "t": "start", "link": model.cid}, unique)
        left, right = (change(init, replace("/t", text)) for text in ("left", "right"))
        all_.add(init, left)
        all_.anchor(left, 1_700_000_000)
        all_.add(right, change(left, replace("/t", "x" * 21)))
        if unique == b"a":
            all_.add(model)
        last = data_event(KEY, init, [left.cid, right.cid], [replace("/t", "both")])
        all_.add(last)
        for number in range(4):
            last = change(last, replace("/t", str(number)))
            all_.add(last)
    return feed_rows(all_.events, all_.times)


FEED = long_feed()
END = len(FEED)


def go_on(directory: Path, *cuts: int) -> Tables:
    """A process comes, brings the tables to these positions, one after the other, and goes."""
    tables = Tables(directory, EPOCH)
    sink = Sink(tables)
    sink.catch_up()
    for upto in cuts:
        tables.append(FEED.slice(0, upto))
        sink.catch_up()
        tables.tidy()
    return tables


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables that lack the last events; not to be changed."""
    directory = tmp_path_factory.mktemp("made")
    go_on(directory, 7, 15, END - 2)
    return directory


@pytest.fixture
def directory(made: Path, tmp_path: Path) -> Path:
    """A copy of these tables."""
    return Path(shutil.copytree(made, tmp_path / "tables"))


def summaries(directory: Path) -> pa.Table:
    table = DeltaTable(directory / SUMMARIES.name)
    return pa.concat_tables(pq.read_table(file) for file in table.file_uris())


class Counter:
    """Counts the streams that are read whole, and those that are not."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.whole = self.later = 0
        add = portion._Work.add

        def counted(work: Any, stream: Any) -> None:
            add(work, stream)
            self.whole += stream.earlier is None
            self.later += stream.earlier is not None

        patch.setattr(portion._Work, "add", counted)


def test_a_process_goes_on_from_the_summaries_of_another(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter = Counter(monkeypatch)
    go_on(directory, END - 1, END)
    assert (counter.whole, counter.later) == (0, 2)
    assert_tables(directory, FEED.to_pylist())


def test_short_streams_have_no_summaries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "LONG", 100)
    go_on(tmp_path, END)
    assert not (tmp_path / SUMMARIES.name).exists()


class KilledError(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("write", range(1, 9))
def test_killed_before_any_write(
    directory: Path, monkeypatch: pytest.MonkeyPatch, write: int
) -> None:
    """The first six are those of one step: raw_events, four tables, and the summary."""
    monkeypatch.setattr(derivation, "_SHORT_POSITIONS", write % 2)
    left = write

    def deadly(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            nonlocal left
            left -= 1
            if not left:
                raise KilledError
            return real(*args)

        return call

    with monkeypatch.context() as patch:
        for name in ("append", "put"):
            patch.setattr(DeltaStore, name, deadly(getattr(DeltaStore, name)))
        with pytest.raises(KilledError):
            go_on(directory, END - 1, END)
    go_on(directory, END - 1, END)
    assert_tables(directory, FEED.to_pylist())


def cut(directory: Path) -> None:
    for file in directory.rglob("*.parquet"):
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def lose_files(directory: Path) -> None:
    for file in directory.rglob("*.parquet"):
        file.unlink()


def cut_log(directory: Path) -> None:
    for file in (directory / "_delta_log").glob("*.json"):
        file.write_bytes(file.read_bytes()[:10])


def lose_log(directory: Path) -> None:
    shutil.rmtree(directory / "_delta_log")


def change_rows(directory: Path) -> None:
    """As if a disk had forgotten a bit."""
    for file in directory.rglob("*.parquet"):
        rows = pq.ParquetFile(file).read()
        wrong = [s[:40] + bytes([s[40] ^ 1]) + s[41:] for s in rows["summary"].to_pylist()]
        at = rows.schema.get_field_index("summary")
        pq.write_table(rows.set_column(at, rows.schema.field(at), [wrong]), file)


def exchange_rows(directory: Path) -> None:
    """Summaries of other streams."""
    for file in directory.rglob("*.parquet"):
        rows = pq.ParquetFile(file).read()
        at = rows.schema.get_field_index("stream_cid")
        wrong = [
            FEED["stream_cid"][0 if cid != FEED["stream_cid"][0].as_py() else -1].as_py()
            for cid in rows["stream_cid"].to_pylist()
        ]
        pq.write_table(rows.set_column(at, rows.schema.field(at), [wrong]), file)


@pytest.mark.parametrize(
    "damage", [cut, lose_files, cut_log, lose_log, change_rows, exchange_rows, shutil.rmtree]
)
def test_a_damaged_table_of_summaries_starts_again(
    directory: Path, damage: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    damage(directory / SUMMARIES.name)
    counter = Counter(monkeypatch)
    go_on(directory, END - 1, END)
    assert (counter.whole, counter.later) == (1, 1)  # there is a new one after one event
    assert_tables(directory, FEED.to_pylist())


def test_summaries_of_another_raw_events_are_not_used(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on(tmp_path, END - 2)
    shutil.rmtree(tmp_path / SUMMARIES.name)
    shutil.copytree(made / SUMMARIES.name, tmp_path / SUMMARIES.name)
    counter = Counter(monkeypatch)
    go_on(tmp_path, END)
    assert counter.whole == 1
    assert_tables(tmp_path, FEED.to_pylist())


def test_summaries_ahead_of_a_table_are_not_used(directory: Path) -> None:
    """A table that was lost is computed from events that the summaries have already."""
    shutil.rmtree(directory / "event_states")
    Sink(Tables(directory, EPOCH)).catch_up(window=9)
    assert_tables(directory, FEED.slice(0, END - 2).to_pylist())


def test_a_rebuild_deletes_the_summaries(directory: Path) -> None:
    maintenance.rebuild(directory, "stream_tips", None, lambda *_: None)
    assert not (directory / SUMMARIES.name).exists()
    go_on(directory, END)
    assert_tables(directory, FEED.to_pylist())


def test_rows_that_newer_ones_replace_are_dropped(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert summaries(directory).num_rows >= 4
    monkeypatch.setattr(delta, "_COMMITS_PER_TIDY", 1)
    monkeypatch.setattr(delta_files, "_MIN_FILES", 2)
    counter = Counter(monkeypatch)
    go_on(directory, END - 1, END)
    assert summaries(directory).num_rows == 2
    assert counter.whole == 0
    assert_tables(directory, FEED.to_pylist())


def test_a_run_without_content_makes_no_use_of_it_later(tmp_path: Path) -> None:
    """`--table stream_tips` makes summaries without content."""
    for upto in range(6, END + 1, 6):
        tables = Tables(tmp_path, EPOCH, ["stream_tips"] if upto % 12 else DERIVED)
        tables.append(FEED.slice(0, upto))
        Sink(tables).catch_up()
    go_on(tmp_path, END)
    assert_tables(tmp_path, FEED.to_pylist())
