"""One bad stream never stops a table: it is set aside, by name, until another version comes."""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from nacl.signing import SigningKey
from spark_helpers import Bomb, KilledError, feed_rows, silent, told
from support.time_events import time_event

from recon_node.ceramic import Event
from recon_node.ceramic.builder import data_event, init_event, model_event
from recon_node.client import ModelDefinition
from recon_node.ipld import CID
from recon_node.processes import process as processes
from recon_node.streams import Stream, StreamStates, json_values
from spark_sink.derive import derivation, feed_streams, portion, transforms
from spark_sink.derive.child_process import COMMAND, ChildProcess
from spark_sink.derive.derivation import Derivation, worker_computer
from spark_sink.derive.portion import Step
from spark_sink.derive.workers import NoWorkers
from spark_sink.errors import SinkError, TablesError
from spark_sink.query.changes import Changes
from spark_sink.schema import DERIVED, UNPROCESSED
from spark_sink.tables.catalog import read_unprocessed
from spark_sink.tables.sink_table import SinkTable
from spark_sink.tables.tables import Tables
from spark_sink.upkeep import maintenance

CHILD = Path(__file__).with_name("spark_child_process.py")
KEY = SigningKey(bytes(range(32)))
DEFINITION = ModelDefinition(name="Post", schema={"properties": {"a": {}}}).to_json()
MODEL = model_event(KEY, DEFINITION)


def stream(name: str, updates: int, model: Event = MODEL) -> list[Event]:
    init = init_event(KEY, model.stream_id(), {"a": 0}, unique=name.encode())
    events = [init]
    for n in range(updates):
        patch = [{"op": "replace", "path": "/a", "value": n}]
        events.append(data_event(KEY, init, [events[-1].cid], patch))
    return events


GOOD, BAD = stream("good", 2), stream("bad", 40)


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    return Tables(tmp_path / "tables", "epoch")


def rows(tables: Tables, name: str) -> list[dict[str, Any]]:
    table_rows: list[dict[str, Any]] = tables.derived[name].select("*", "true").to_pylist()
    return table_rows


def streams_in(tables: Tables, name: str) -> set[bytes]:
    return {row["stream_cid"] for row in rows(tables, name)}


def derive(tables: Tables, events: list[Event], command: Sequence[str] | None = None) -> None:
    """Add all events that follow those in the tables; with a command, in a process of its own."""
    tables.append(feed_rows(events))
    made = Derivation(tables, NoWorkers(command))
    made.catch_up()
    made.close()


@pytest.mark.parametrize("error", [MemoryError("at an end"), None])
def test_the_others_go_on(tables, monkeypatch, error):
    with monkeypatch.context() as patch:
        if error is None:  # it takes more work than its events pay for
            patch.setattr(json_values, "STREAM_STEPS", 310_000)
            patch.setattr(json_values, "STREAM_STEPS_PER_BYTE", 0)
        else:
            fail_at(patch, BAD[0], error)
        derive(tables, [MODEL, *BAD, *GOOD])
        for name in ("event_states", "stream_states"):
            assert streams_in(tables, name) == {MODEL.cid, GOOD[0].cid}
        [row] = rows(tables, UNPROCESSED)
        assert row["stream_id"] == str(BAD[0].stream_id())
        assert ("BudgetError" if error is None else str(error)) in row["reason"]
        assert read_unprocessed(tables.directory)[0]["reason"] == row["reason"]
        assert set(tables.positions.values()) == {len(BAD) + len(GOOD) + 1}
    status = told("status", "--tables", tables.directory)
    assert f"set aside: {row['stream_id']}: {row['reason']}" in status


def test_it_is_left_out_until_another_version_takes_it_up(tables, monkeypatch):
    with monkeypatch.context() as patch:
        fail_at(patch, BAD[0], ValueError("a bug"))
        derive(tables, [MODEL, *BAD[:30], *GOOD])
    derive(tables, [MODEL, *BAD[:30], *GOOD, *BAD[30:]])
    assert BAD[0].cid not in streams_in(tables, "stream_states")  # not even without the bug
    copied = {name: Changes(tables.directory, name, None).token for name in DERIVED}
    for module in (derivation, transforms):
        monkeypatch.setattr(module, "__version__", "next")
    derive(Tables(tables.directory, "epoch", ["stream_tips", UNPROCESSED]), [MODEL, *BAD, *GOOD])
    assert read_unprocessed(tables.directory) != []  # or other tables would lack its rows for good
    again = Tables(tables.directory, "epoch")
    Derivation(again).catch_up()
    states = {row["stream_cid"]: row for row in rows(again, "stream_states")}
    assert states[BAD[0].cid]["data"] == b'{"metadata":{"shouldIndex":true},"content":{"a":39}}'
    assert len([r for r in rows(again, "event_states") if r["stream_cid"] == BAD[0].cid]) == 41
    [row] = rows(again, UNPROCESSED)
    assert (row["reason"], row["version"]) == (None, "next")
    assert read_unprocessed(again.directory) == []
    for name, token in copied.items():  # those who follow the tables get its rows
        changed = [part for _, part in Changes(again.directory, name, token).rows()]
        assert BAD[0].cid in pa.concat_tables(changed)["stream_cid"].to_pylist()


def test_it_is_noted_when_one_table_alone_is_computed(tmp_path, monkeypatch):
    """Of tables that were left out before, are lost, or are rebuilt; until these have its rows."""
    directory = tmp_path / "tables"
    derive(Tables(directory, "epoch", ["stream_tips", UNPROCESSED]), [MODEL, *BAD, *GOOD])
    assert read_unprocessed(directory) == []
    monkeypatch.setattr(maintenance, "COMMAND", None)

    def assert_noted() -> None:
        [row] = read_unprocessed(directory)
        assert row["stream_id"] == str(BAD[0].stream_id())

    with monkeypatch.context() as patch:
        fail_at(patch, BAD[0], ValueError("a bug"))
        derive(Tables(directory, "epoch", ["event_states", UNPROCESSED]), [MODEL, *BAD, *GOOD])
        assert_noted()
        for name in ("event_states", UNPROCESSED):
            shutil.rmtree(directory / UNPROCESSED)
            maintenance.rebuild(directory, name, None, silent)
            assert_noted()
        derive(Tables(directory, "epoch"), [MODEL, *BAD, *GOOD])
    maintenance.rebuild(directory, UNPROCESSED, None, silent)
    assert_noted()


@pytest.mark.parametrize("call", range(1, 6))
def test_it_is_noted_before_a_table_lacks_it(tables, monkeypatch, call):
    """The process dies in between, and nothing fails afterwards: it was the machine's memory."""
    with monkeypatch.context() as patch, suppress(KilledError):
        fail_at(patch, BAD[0], MemoryError())
        tables.append(feed_rows([MODEL, *BAD, *GOOD]))
        bomb = Bomb(SinkTable.append, call, after=True)
        patch.setattr(SinkTable, "append", lambda *args, bomb=bomb: bomb(*args))
        Derivation(tables).catch_up()
    again = Tables(tables.directory, "epoch")
    Derivation(again).catch_up()
    assert streams_in(again, UNPROCESSED) == {BAD[0].cid}


def test_documents_of_a_model_that_cannot_be_computed(tables, monkeypatch):
    """Once it is set aside, it is not computed again: it may take a minute, for each of them."""
    later = stream("later", 1)
    computed = fail_at(monkeypatch, MODEL, ValueError("a bug"))
    derive(tables, [MODEL, *GOOD])
    computed.clear()
    derive(tables, [MODEL, *GOOD, *later])
    assert not computed
    reasons = {row["stream_cid"]: row["reason"] for row in rows(tables, UNPROCESSED)}
    assert "a bug" in reasons[MODEL.cid]
    assert "its model cannot be computed: ValueError: a bug" in reasons[GOOD[0].cid]
    assert "its model cannot be computed: it is set aside" in reasons[later[0].cid]


def test_rows_of_a_stream_are_all_there_or_none(tables, monkeypatch):
    """Rows are packed while a stream is under way."""
    monkeypatch.setattr(portion, "_ROWS_PER_TABLE", 5)
    monkeypatch.setattr(portion, "_MAX_ROWS", 7)
    others = [stream(f"other {n}", 5) for n in range(4)]
    bad = [stream(f"bad {n}", 25) for n in range(3)]
    inits = {events[0].cid for events in bad}
    real = portion.rows_of

    def rows_of(stream: feed_streams.FeedStream, *args: Any) -> Any:
        yield from real(stream, *args)
        if stream.cid in inits:
            raise ValueError("at the end")

    monkeypatch.setattr(portion, "rows_of", rows_of)
    every = [e for pair in zip(others[:3], bad, strict=True) for part in pair for e in part]
    derive(tables, [MODEL, *every, *others[3]])
    good = {MODEL.cid, *(events[0].cid for events in others)}
    for name in set(DERIVED) - {UNPROCESSED}:
        assert streams_in(tables, name) == good
    assert len(rows(tables, "event_states")) == 1 + 4 * 6
    assert streams_in(tables, UNPROCESSED) == inits


def fail_at(patch: pytest.MonkeyPatch, init: Event, error: Exception) -> list[CID]:
    """Let the content of a stream fail; return a list that grows each time that it does."""
    real = Stream.states.fget
    failed: list[CID] = []

    def states(stream: Stream) -> Any:
        if stream.id.cid == init.cid:
            failed.append(init.cid)
            raise error
        return real(stream)

    of_chain = StreamStates.of_chain

    def contents(event: Event, *others: Any) -> Any:
        if event.cid == init.cid:
            failed.append(init.cid)
            raise error
        return of_chain(event, *others)

    patch.setattr(Stream, "states", property(states))
    patch.setattr(StreamStates, "of_chain", contents)
    return failed


def test_what_anybody_can_add_does_not_multiply_the_content(tables: Tables) -> None:
    """A time event costs a part of a transaction, whoever it belongs to; it once wrote 16 MB."""
    few, large = stream("few", 1), large_stream("large", 300_000, updates=1)
    anchors = [
        time_event(event.init, event.cid, tx_hash=bytes([n]) * 32)
        for event in (few[-1], large[-1])
        for n in range(20)
    ]
    times = {anchor.cid: 1_700_000_000 for anchor in anchors}
    tables.append(feed_rows([MODEL, *few, *large, *anchors], times))
    Derivation(tables).catch_up()
    assert rows(tables, UNPROCESSED) == []
    states = rows(tables, "event_states")
    data = {row["event_cid"]: row["data"] for row in states}
    for anchor in anchors:
        if anchor.init == few[0].cid:
            assert data[anchor.cid] == data[few[-1].cid]
        else:
            assert data[anchor.cid] == b'{"metadata":{"shouldIndex":true},"content":null}'
    assert len(data[large[-1].cid]) > 300_000
    at_tip = {row["stream_cid"]: row["data"] for row in rows(tables, "stream_states")}
    assert at_tip[large[0].cid] == data[large[-1].cid]


def test_a_stream_whose_rows_are_too_much(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each event of 600 bytes writes 50 kB again."""
    monkeypatch.setattr(json_values, "ROW_BYTES", 1_000_000)
    monkeypatch.setattr(json_values, "STREAM_STEPS_PER_BYTE", 2)
    derive(tables, [MODEL, *large_stream("large", 50_000, updates=40), *GOOD])
    [row] = rows(tables, UNPROCESSED)
    assert "the content after all events of the stream takes more than" in row["reason"]
    assert streams_in(tables, "event_states") == {MODEL.cid, GOOD[0].cid}


def large_stream(name: str, size: int, updates: int) -> list[Event]:
    init = init_event(KEY, MODEL.stream_id(), {"a": "x" * size}, unique=name.encode())
    events = [init]
    for _ in range(updates):
        events.append(data_event(KEY, init, [events[-1].cid], []))
    return events


@pytest.mark.parametrize(
    ("way", "long"),
    [
        ("hangs", True),
        pytest.param("crashes when it is read", False, marks=pytest.mark.long),
        pytest.param("sleeps", False, marks=pytest.mark.long),
        pytest.param("crashes", True, marks=pytest.mark.long),
    ],
)
def test_a_stream_that_holds_or_ends_its_process(tables, monkeypatch, way, long):
    """A call of native code cannot be interrupted: it once held a step, and Spark, for good."""
    monkeypatch.setattr(derivation, "_SHORT_POSITIONS", 0 if long else 1000)
    bad = [stream(f"{way} {n}", 3) for n in range(2)]
    good = [stream(f"good {n}", 3) for n in range(9)]
    events = [event for part in (*good, *bad) for event in part]
    command = (sys.executable, str(CHILD), way, *(events[0].cid.hex() for events in bad))
    derive(tables, [MODEL, *events], command)
    worker_computer(command).close()
    for name in set(DERIVED) - {UNPROCESSED}:
        assert streams_in(tables, name) == {MODEL.cid, *(events[0].cid for events in good)}
    reason = "takes more than 0.2 s" if way in ("hangs", "sleeps") else "signal 6 (Aborted)"
    unprocessed = {row["stream_cid"]: row for row in rows(tables, UNPROCESSED)}
    assert unprocessed.keys() == {events[0].cid for events in bad}
    for init, *_ in bad:
        row = unprocessed[init.cid]
        assert reason in row["reason"]
        readable = "read" not in way
        assert row["stream_id"] == str(init.stream_id() if readable else init.cid)
    derive(tables, [MODEL, *events, *stream("later", 1)])  # they are not touched again
    assert set(tables.positions.values()) == {len(events) + 3}


def test_a_model_that_holds_its_process(tables: Tables) -> None:
    """It is set aside by name, and so are its documents."""
    command = (sys.executable, str(CHILD), "hangs", MODEL.cid.hex())
    derive(tables, [MODEL, *GOOD], command)
    reasons = {row["stream_cid"]: row["reason"] for row in rows(tables, UNPROCESSED)}
    assert "takes more than 0.2 s" in reasons[MODEL.cid]
    assert "its model cannot be computed: it is set aside" in reasons[GOOD[0].cid]


def test_a_process_that_somebody_kills(tables: Tables, tmp_path: Path) -> None:
    """No stream is to blame."""
    command = (sys.executable, str(CHILD), f"killed once {tmp_path / 'mark'}", GOOD[0].cid.hex())
    derive(tables, [MODEL, *GOOD], command)
    assert (tmp_path / "mark").exists()
    assert rows(tables, UNPROCESSED) == []
    assert GOOD[0].cid in streams_in(tables, "stream_states")


def test_errors_of_the_tables_come_from_the_process(tables: Tables) -> None:
    tables.append(feed_rows([MODEL, *GOOD]))
    made = Derivation(tables, NoWorkers(COMMAND))
    [*files] = tables.directory.glob("raw_events/**/*.parquet")
    for file in files:
        file.write_bytes(b"damaged")
    with pytest.raises(TablesError, match="spark-sink rebuild"):
        made.catch_up()
    made.close()
    broken = Derivation(tables, NoWorkers((sys.executable, "-c", "raise SystemExit(3)")))
    tables_before = tables.positions
    with pytest.raises(SinkError, match="its exit code is 3"):
        broken._computer.compute(Step(tables.raw.files_upto(1), DERIVED, 0, 1), [GOOD[0].cid])
    assert tables.positions == tables_before


def test_the_process_does_without_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "Popen", subprocess.Popen)  # what is forked has it already
    process = ChildProcess(COMMAND, 0.0)
    process.ask(partial(exec, "import pyarrow; pyarrow.array([b'a'])"))
    modules = process.ask(partial(eval, "set(__import__('sys').modules)"))
    process.close()
    assert "pyarrow" in modules
    assert "pandas" not in modules


def test_small_events_do_not_multiply_what_the_init_event_says(tables: Tables) -> None:
    """`unique` was in each row: 2.6 MB of events took 4.5 GB, and ended each run."""
    unique = bytes(950_000)
    init = init_event(KEY, MODEL.stream_id(), {"a": 0}, unique=unique)
    events = [init]
    for _ in range(100):
        events.append(data_event(KEY, init, [events[-1].cid], []))
    derive(tables, [MODEL, *events])
    assert rows(tables, UNPROCESSED) == []
    for name in ("conclusion_events", "event_states"):
        table_rows = tables.derived[name].select("*", "true")
        assert table_rows.nbytes < 4_000_000
        of_stream = [row for row in table_rows.to_pylist() if row["stream_cid"] == init.cid]
        uniques = {row["event_cid"]: dict(row["dimensions"])["unique"] for row in of_stream}
        assert uniques == {event.cid: unique if event is init else None for event in events}
    [tip] = [row for row in rows(tables, "stream_tips") if row["stream_cid"] == init.cid]
    assert dict(tip["dimensions"])["unique"] == unique
