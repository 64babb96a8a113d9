"""Long streams: gone on from their summaries, the tables are as if all were read whole."""

import random
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spark_helpers import EPOCH, KilledError, StreamCounter, feed_rows, read_on
from spark_oracle import KEYS, assert_tables, sorted_rows, tables_of
from spark_samples import (
    CAPABILITY,
    DEFINITION,
    EXPIRED,
    KEY,
    Scenario,
    change,
    delegated,
    document,
    replace,
)
from support.time_events import time_event

from recon_node.ceramic import Event
from recon_node.ceramic.builder import data_event, model_event, signed_event
from recon_node.streams import no_version
from spark_sink.derive import derivation, feed_streams
from spark_sink.derive.feed_streams import SummaryCache
from spark_sink.derive.portion import Computer, Portion, Step
from spark_sink.run.pipeline import Sink
from spark_sink.schema import DERIVED, FORMER, TABLES, UNPROCESSED, with_partition
from spark_sink.tables.raw_files import RawFiles
from spark_sink.tables.sink_table import SinkTable
from spark_sink.tables.staging import DataFile, Stager
from spark_sink.tables.tables import Tables

COMPARED = [name for name in DERIVED if name != UNPROCESSED]
PATCHES: list[Any] = [
    [replace("/t", "text")],
    [replace("/t", "x" * 21)],  # too long for the model
    [replace("/n", 2)],  # immutable by the model
    [{"op": "add", "path": "/z", "value": {"y": 1.5, "a": [b"\x00", None, True]}}],
    [{"op": "remove", "path": "/z"}],
    "not a patch",
    [],
]


@pytest.fixture(autouse=True, scope="module")
def _everything_is_long() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(feed_streams, "LONG", 2)
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
        self.model_next = change(self.model, replace("/name", "N"))

    def write(self, size: int) -> Scenario:
        for number in range(size):
            if len(self.streams) < 2:
                self._start(number)
            elif number == 5 or self.rng.random() < 0.05:
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
            self.model_top = self.model_next
            self.model_next = change(self.model_top, replace("/name", f"N{number}"))
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
        patch = self.rng.choice(PATCHES)
        payload = {"id": stream[0].cid, "prev": prevs, "data": patch}
        if self.rng.random() < 0.15:
            versions = [self.model, self.model_top, self.model_next]
            payload["header"] = {"modelVersion": self.rng.choice(versions).cid}
        signed_by = CAPABILITY if stream[0].capability else None
        event = signed_event(KEY, payload, capability=signed_by)
        if any(event.payload == written.payload for written in stream):
            return  # the same event, or the same forgery: a feed has each once
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
    raw: tuple[DataFile, ...] = ()
    summaries: SummaryCache = field(default_factory=SummaryCache)
    position: int = 0
    rows: dict[str, dict[Any, Any]] = field(default_factory=lambda: defaultdict(dict))

    def step(self, upto: int) -> None:
        new = with_partition(self.feed.slice(self.position, upto - self.position))
        self.raw += Stager(TABLES["raw_events"], self.directory).stage(new).files
        raw = RawFiles(self.raw, self.directory)
        step = Step(raw, DERIVED, self.position, upto)
        touched = raw.streams_between(self.position, upto)
        computer = Computer(self.summaries)
        done = computer.compute(step, touched)
        for name in COMPARED:
            self._put(name, done.rows[name].read(TABLES[name].schema))
            if name in done.revised:
                self._put(name, done.revised[name].read(TABLES[name].schema))
        of_changed = [
            row["stream_cid"]
            for row in self.rows["stream_states"].values()
            if dict(row["dimensions"])["model"] in done.arrived.values()
        ]
        lacking = {no_version(version) for version in done.versions}
        of_changed += [
            row["stream_cid"]
            for row in self.rows["event_states"].values()
            if not lacking.isdisjoint(row["validation_errors"])
        ]
        if done.arrived or done.changed:
            anew = Step(raw, ("event_states", "stream_states"), 0, upto)
            revised = computer.compute(anew, sorted({*of_changed} - {*touched})).rows
            for name in anew.names:
                self._put(name, revised[name].read(TABLES[name].schema))
        self.position = upto

    def _put(self, name: str, rows: pa.Table) -> None:
        for row in rows.to_pylist():
            self.rows[name][row[KEYS[name]]] = row


@settings(max_examples=8, deadline=None)
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
            for table in COMPARED:
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


def go_on(directory: Path, *cuts: int) -> Sink:
    """A process comes, and brings the tables to these positions, one after the other."""
    sink = Sink(Tables(directory, EPOCH))
    sink.catch_up()
    for upto in cuts:
        take(sink, upto)
    return sink


def take(sink: Sink, upto: int) -> None:
    read_on(sink, FEED.slice(0, upto))


def test_a_process_goes_on_from_what_it_computed(tmp_path, monkeypatch):
    counter = StreamCounter(monkeypatch)
    go_on(tmp_path, END - 4, *range(END - 3, END))
    assert (counter.whole, counter.later) == (3, 3)  # the model, and both documents once
    go_on(tmp_path, END)
    assert (counter.whole, counter.later) == (4, 3)
    assert_tables(tmp_path, FEED.to_pylist())


@pytest.mark.long
def test_ends_are_kept_within_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_streams, "_MAX_BYTES", 3_000)  # one of two
    counter = StreamCounter(monkeypatch)
    go_on(tmp_path, *range(1, END + 1))
    assert counter.later > 0
    assert_tables(tmp_path, FEED.to_pylist())


@pytest.mark.parametrize(("write", "in_workers"), [(1, False), (2, True), (4, True), (5, False)])
def test_killed_before_any_write_or_failed_and_repeated(tmp_path, monkeypatch, write, in_workers):
    """Those of one step: raw_events and four tables. The same process may try it again."""
    sink = go_on(tmp_path, END - 3, END - 2)
    if in_workers:
        monkeypatch.setattr(derivation, "_SHORT_POSITIONS", 0)
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
            patch.setattr(SinkTable, name, deadly(getattr(SinkTable, name)))
        with pytest.raises(KilledError):
            take(sink, END - 1)
    for upto in (END - 1, END):
        take(sink, upto)
    assert_tables(tmp_path, FEED.to_pylist())


def test_ends_ahead_of_a_table_are_not_used(tmp_path: Path) -> None:
    """A table that was lost is computed from events that the summaries have already."""
    go_on(tmp_path, *range(END - 8, END - 2))
    shutil.rmtree(tmp_path / "event_states")
    sink = Sink(Tables(tmp_path, EPOCH))
    sink.catch_up(step_length=9)
    assert_tables(tmp_path, FEED.slice(0, END - 3).to_pylist())
    take(sink, END)
    assert_tables(tmp_path, FEED.to_pylist())


def test_summaries_of_earlier_versions_are_deleted(tmp_path: Path) -> None:
    go_on(tmp_path, END - 1)
    shutil.copytree(tmp_path / "stream_tips", tmp_path / FORMER)
    go_on(tmp_path, END)
    assert not (tmp_path / FORMER).exists()
    assert_tables(tmp_path, FEED.to_pylist())


def test_a_model_s_author_does_not_have_its_documents_computed_again(tmp_path, monkeypatch):
    """Each event of a model, and each anchor of one, once recomputed all of its documents."""
    model = model_event(KEY, DEFINITION)
    documents = [document(model.stream_id(), {"n": 1, "t": "a"}, bytes([n])) for n in range(5)]
    second = change(model, replace("/name", "B"))
    third = change(second, replace("/name", "C"))
    first = documents[0].cid
    header = {"modelVersion": third.cid}
    early = signed_event(KEY, {"id": first, "prev": [first], "data": [], "header": header})
    anchor = time_event(model, model.cid)
    times = {anchor.cid: 5}
    computed: list[list[bytes]] = []
    real = derivation.Computer.compute

    def compute(here: derivation.Computer, step: Step, streams: list[bytes]) -> Portion:
        if not step.after and step.upto > len(documents):  # anew
            computed.append([*streams])
        return real(here, step, streams)

    monkeypatch.setattr(derivation.Computer, "compute", compute)
    events: list[Event] = []
    tables = Tables(tmp_path / "tables", "epoch")
    for new, expected in (
        ([*documents], []),
        ([model], [event.cid for event in documents]),
        ([anchor, second], []),
        ([early], []),
        ([third], [documents[0].cid]),
    ):
        events += new
        tables.append(feed_rows(events, times))
        computed.clear()
        derivation.Derivation(tables).catch_up()
        assert sorted(cid for cids in computed for cid in cids) == sorted(expected)
        assert_tables(tables.directory, feed_rows(events, times).to_pylist())
