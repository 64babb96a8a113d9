"""`spark-sink export postgres`, to a real server: the same rows as in the tables, at any time."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from spark_helpers import EPOCH, ROWS, feed_rows, filled, invoked, printed, read_on, told
from spark_oracle import table_rows
from spark_samples import KEY, TRAP, change, document, replace
from support import forking
from support.postgres_server import Server, server
from test_spark_views import DEFINITION, OF, history, model_with

from recon_node.ceramic import Event
from recon_node.ceramic.builder import model_event
from recon_node.ipld import CID
from spark_sink.export.postgres import Postgres
from spark_sink.query.changes import Changes
from spark_sink.run.pipeline import Sink
from spark_sink.schema import TABLES
from spark_sink.tables.tables import Tables

SCHEMA = "ceramic"


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    with server() as database_url:
        yield database_url


@pytest.fixture
def database(running: Server) -> Server:
    running.run(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
    return running


def exported(database: Server, tables: Path, *names: str) -> list[dict[str, Any]]:
    command = ("export", "postgres", "--tables", tables, "--to", database.url, "--once", *names)
    return [json.loads(line) for line in printed(*command).splitlines()]


def assert_is_the_table(database: Server, tables: Path, name: str = "stream_states") -> None:
    """The columns that both have in a form that can be compared."""
    wanted = {
        str(CID(row["stream_cid"])): (
            row["event_cid"] and str(CID(row["event_cid"])),
            row["controller"],
            row["position"],
            json.loads((row["data"] or b"null").replace(b"\\u0000", "\ufffd".encode())),
        )
        for row in table_rows(tables, name)
    }
    sql = f"SELECT stream_cid, event_cid, controller, position, data FROM {SCHEMA}.{name}"
    assert {cid: tuple(row) for cid, *row in database.ask(sql)} == wanted


def test_a_table_is_followed(database: Server, tmp_path: Path) -> None:
    sink = Sink(Tables(tmp_path, EPOCH, ["stream_states"]))
    for end in (*range(10, len(ROWS), 20), len(ROWS)):
        read_on(sink, ROWS.slice(0, end))
        assert exported(database, tmp_path)[0]["position"] == end
        assert_is_the_table(database, tmp_path)
    assert exported(database, tmp_path) == []
    nul = document(OF, {"t": "a\0b", "n\0": ["\0"]}, b"nul")
    read_on(sink, feed_rows([*TRAP.events, nul], TRAP.times))
    [copied] = exported(database, tmp_path)
    assert copied["rows"] == 1
    assert_is_the_table(database, tmp_path)


def test_every_table_can_be_copied(database: Server, tmp_path: Path) -> None:
    sink = Sink(Tables(tmp_path, EPOCH))
    names = [name for name in TABLES if name != "stream_states"]
    for end in (40, len(ROWS)):
        read_on(sink, ROWS.slice(0, end))
        exported(database, tmp_path, *names)
    assert exported(database, tmp_path, *names) == []
    for name in names:
        [(count,)] = database.ask(f"SELECT count(*) FROM {SCHEMA}.{name}")
        assert count == len(table_rows(tmp_path, name))
    [(car,)] = database.ask(f"SELECT car FROM {SCHEMA}.raw_events WHERE position = 1")
    assert car == TRAP.events[0].car
    dimensions, previous = (
        f"SELECT dimensions FROM {SCHEMA}.stream_tips WHERE stream_type = 2 LIMIT 1",
        f"SELECT previous FROM {SCHEMA}.conclusion_events WHERE cardinality(previous) = 2",
    )
    assert database.ask(dimensions)[0][0]["model"].startswith("kh4q0ozorrgaq2mezktnrmdwleo1d")
    assert all(CID.parse(cid) for cid in database.ask(previous)[0][0])


def test_a_view_is_followed_with_its_columns(database: Server, tmp_path: Path) -> None:
    events = history()
    sink = Sink(Tables(tmp_path, EPOCH, ["stream_states"]))

    def read(end: int) -> None:
        read_on(sink, feed_rows(events[:end]))
        sink.fill_new_views()
        exported(database, tmp_path)

    read_on(sink, feed_rows(events[:5]))
    told("view", "create", OF, "--as", "posts", "--tables", tmp_path)
    read(8)
    database.run(f"CREATE INDEX mine ON {SCHEMA}.posts (title)")
    database.run(f"ALTER TABLE {SCHEMA}.posts ADD COLUMN note text DEFAULT 'mine'")
    read(len(events))
    sql = (
        f"SELECT title, likes, place, tags, day, extra, note FROM {SCHEMA}.posts ORDER BY position"
    )
    *_, (title, likes, place, tags, day, extra, note) = database.ask(sql)
    assert (title, likes, tags, str(day)) == ("A post", 3, ["a", "b"], "2026-02-28")
    assert place == {"city": "Rome", "at": [41.9, 12]}
    assert (extra, note) == (None, "mine")
    assert database.ask("SELECT 1 FROM pg_indexes WHERE indexname = 'mine'") == [(1,)]
    joined = f"SELECT count(*) FROM {SCHEMA}.posts JOIN {SCHEMA}.stream_states USING (stream_cid)"
    assert database.ask(joined) == [(4,)]


def test_fields_of_a_model_may_have_the_names_of_columns_of_tables(database, tmp_path):
    """What those columns hold, these do not; and a map without members is one."""
    fields = {"data": "text", "event_id": "7", "car": "red", "xmin": "1", "map": {}}
    kinds: dict[str, Any] = {name: {"type": "string"} for name in fields}
    kinds["map"] = {"type": "object", "additionalProperties": {"type": "string"}}
    schema = {"type": "object", "properties": kinds, "additionalProperties": False}
    model = model_event(KEY, {**DEFINITION, "schema": schema, "relations": {}})
    post = document(model.stream_id(), fields, b"post")
    filled(tmp_path, feed_rows([model, post]), names=["stream_states"])
    told("view", "create", model.stream_id(), "--as", "posts", "--tables", tmp_path)
    exported(database, tmp_path)
    sql = f"SELECT data, event_id, car, xmin_, map FROM {SCHEMA}.posts"
    assert database.ask(sql) == [tuple(fields.values())]


def with_view(directory: Path, model: Event, name: str) -> tuple[Sink, list[Event]]:
    """Tables with a document of a model, and a view of the model."""
    (member, *_) = model.data["schema"]["properties"]
    events = [model, document(model.stream_id(), {member: "v"}, b"post")]
    filled(directory, feed_rows(events), names=["stream_states"])
    told("view", "create", model.stream_id(), "--as", name, "--tables", directory)
    sink = Sink(Tables(directory, EPOCH, ["stream_states"]))
    sink.fill_new_views()
    return sink, events


def test_fields_whose_names_begin_alike_are_columns(database: Server, tmp_path: Path) -> None:
    """PostgreSQL cuts names at 63 bytes, and takes none twice."""
    with_view(tmp_path, model_with(["x" * 70 + str(n) for n in range(20)]), "posts")
    assert exported(database, tmp_path)[-1]["table"] == "posts"
    assert database.ask(f"SELECT {'x' * 60} FROM {SCHEMA}.posts") == [("v",)]
    assert len(database.ask(f"SELECT * FROM {SCHEMA}.posts")[0]) > 20


def test_a_table_that_the_database_refuses_stops_no_other(database, tmp_path):
    """The database counts columns that were dropped, and an author can change a model's often."""
    sink, events = with_view(tmp_path, model_with([f"m{n}" for n in range(900)]), "a")
    exported(database, tmp_path)
    later = model_with([f"n{n}" for n in range(900)]).data["schema"]
    told("view", "create", events[0].stream_id(), "--as", "b", "--tables", tmp_path)
    read_on(sink, feed_rows([*events, change(events[0], replace("/schema", later))]))
    sink.fill_new_views()
    command = ("export", "postgres", "--tables", tmp_path, "--to", database.url, "--once")
    said = invoked(*command)
    assert "the table a cannot get more columns" in said.output
    assert said.exit_code == 1
    assert database.ask(f"SELECT n1 FROM {SCHEMA}.b") == [(None,)]
    database.run(f"DROP TABLE {SCHEMA}.a")
    assert [copied["table"] for copied in exported(database, tmp_path)] == ["a"]


def test_all_rows_come_again_where_changes_are_gone(database: Server, tmp_path: Path) -> None:
    """Those that are as they were stay untouched, and those that are not there any more go."""
    filled(tmp_path, ROWS, names=["stream_states"])
    exported(database, tmp_path)
    before = dict(database.ask(f"SELECT stream_cid, xmin::text FROM {SCHEMA}.stream_states"))
    changed = f"UPDATE {SCHEMA}.stream_states SET controller = 'x' WHERE position = 1"
    database.run(changed)
    database.run(f"INSERT INTO {SCHEMA}.stream_states (stream_cid) VALUES ('gone')")
    told("rebuild", "stream_states", "--tables", tmp_path)
    exported(database, tmp_path)
    assert_is_the_table(database, tmp_path)
    after = dict(database.ask(f"SELECT stream_cid, xmin::text FROM {SCHEMA}.stream_states"))
    assert set(after) == set(before)
    assert sum(before[cid] != after[cid] for cid in after) <= 1


def test_a_row_that_the_database_refuses_is_set_aside(database: Server, tmp_path: Path) -> None:
    """Also what it was before; the others go on, and a row that is taken later is there again."""
    filled(tmp_path, ROWS.slice(0, 10))
    exported(database, tmp_path)
    first = str(CID(table_rows(tmp_path, "stream_states")[0]["stream_cid"]))
    table = f"{SCHEMA}.stream_states"
    rule = f"ALTER TABLE {table} ADD CONSTRAINT mine CHECK (stream_cid <> '{first}') NOT VALID"
    database.run(rule)
    told("rebuild", "stream_states", "--tables", tmp_path)
    filled(tmp_path, ROWS)
    [copied] = exported(database, tmp_path)
    wanted = {str(CID(row["stream_cid"])) for row in table_rows(tmp_path, "stream_states")}
    assert (copied["refused"], copied["rows"]) == (1, len(wanted) - 1)
    there = {cid for (cid,) in database.ask(f"SELECT stream_cid FROM {table}")}
    assert there == wanted - {first}
    refused = f"SELECT name, key, reason FROM {SCHEMA}.spark_sink_refused"
    [(name, key, reason)] = database.ask(refused)
    assert (name, key) == ("stream_states", first)
    assert "mine" in reason
    database.run(f"ALTER TABLE {table} DROP CONSTRAINT mine")
    told("rebuild", "stream_states", "--tables", tmp_path)
    exported(database, tmp_path)
    assert_is_the_table(database, tmp_path)
    assert database.ask(refused) == []


def test_a_table_that_was_dropped_comes_again(database: Server, tmp_path: Path) -> None:
    """By whom may only write there, as soon as the table is there again."""
    filled(tmp_path, ROWS.slice(0, 40), names=["stream_states"])
    exported(database, tmp_path)
    database.run(f"DROP TABLE {SCHEMA}.stream_states")
    exported(database, tmp_path)
    assert_is_the_table(database, tmp_path)
    filled(tmp_path, ROWS, names=["stream_states"])
    database.run(f"CREATE ROLE writer LOGIN; GRANT USAGE ON SCHEMA {SCHEMA} TO writer")
    database.run(f"GRANT ALL ON ALL TABLES IN SCHEMA {SCHEMA} TO writer")
    told(
        "export", "postgres", "--tables", tmp_path, "--to", f"{database.url}&user=writer", "--once"
    )
    assert_is_the_table(database, tmp_path)
    database.run("DROP OWNED BY writer; DROP ROLE writer")


@pytest.mark.parametrize(
    "command", [f"DROP SCHEMA {SCHEMA} CASCADE", f"TRUNCATE {SCHEMA}.stream_states"]
)
def test_what_somebody_took_away_comes_again_with_the_next_change(database, tmp_path, command):
    sink = filled(tmp_path, ROWS.slice(0, 20), names=["stream_states"])
    with closing(Postgres(database.url, SCHEMA)) as target:
        take = partial(target.take, "stream_states", partial(Changes, tmp_path, "stream_states"))
        take()
        database.run(command)
        read_on(sink, ROWS)
        take()
    assert_is_the_table(database, tmp_path)


def test_a_database_may_have_another_encoding(database, tmp_path, monkeypatch):
    """As SQL_ASCII, in which text is bytes; `initdb` takes it in the locale C."""
    for end in (40, len(ROWS)):
        filled(tmp_path, ROWS.slice(0, end), names=["stream_states"])
        with monkeypatch.context() as patch:
            patch.setenv("PGCLIENTENCODING", "SQL_ASCII")
            exported(database, tmp_path)
    assert_is_the_table(database, tmp_path)


@pytest.mark.parametrize(("query", "seconds"), [("", "30"), ("&keepalives_idle=7", "7")])
def test_a_network_that_says_nothing_any_more_is_noticed(database, query, seconds):
    """In a minute or so, where a system by itself takes two hours; or as the address says."""
    target = Postgres(database.url + query, SCHEMA)
    with closing(target), target._connected() as connection:
        assert connection.info.get_parameters()["keepalives_idle"] == seconds


PROGRAM = """
import os, sys
from pathlib import Path
from spark_sink.export import postgres
from spark_sink.export.following import follow
postgres._ROWS_AT_ONCE = 7
write, end, left = postgres._Copy.write, postgres._Copy.end, [int(sys.argv[3])]
def counted(self, *arguments, then):
    then(self, *arguments)
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), 9)
postgres._Copy.write = lambda self, rows: counted(self, rows, then=write)
postgres._Copy.end = lambda self: counted(self, then=end)
target = postgres.Postgres(sys.argv[2], "ceramic")
nothing = lambda *_: None
follow(Path(sys.argv[1]), (), target.take, every=None, on_taken=nothing, on_unreachable=nothing)
"""


def test_a_killed_copy_goes_on_where_it_was(database: Server, tmp_path: Path) -> None:
    """Wherever in a transaction: readers see the table as it was at a version, and all of it."""
    filled(tmp_path, ROWS.slice(0, 40), names=["stream_states"])
    at = 1
    while True:
        before = _position(database)
        command = [sys.executable, "-c", PROGRAM, str(tmp_path), database.url, str(at)]
        code = forking.run(command).returncode
        if code == 0:
            break
        assert code == -signal.SIGKILL
        assert _position(database) == before
        at *= 3
    assert_is_the_table(database, tmp_path)
    assert at > 3


def _position(database: Server) -> list[Any]:
    try:
        return database.ask(
            f"SELECT position, (SELECT count(*) FROM {SCHEMA}.stream_states) "
            f"FROM {SCHEMA}.spark_sink_positions WHERE token IS NOT NULL"
        )
    except Exception:
        return []


def test_it_waits_for_a_database_and_stops_on_a_signal(tmp_path: Path) -> None:
    sink = filled(tmp_path / "tables", ROWS.slice(0, 40), names=["stream_states"])
    with server() as own:
        own.stop()
        command = [sys.executable, "-m", "spark_sink", "export", "postgres", "--every", "100ms"]
        command += ["--tables", str(tmp_path / "tables"), "--to", own.url]
        with forking.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert json.loads(process.stdout.readline())["event"] == "waiting"
            own.start()
            await_copy(process)
            own.stop()
            read_on(sink, ROWS)
            assert json.loads(process.stdout.readline())["event"] == "waiting"
            own.start()
            await_copy(process)
            assert_is_the_table(own, tmp_path / "tables")
            process.send_signal(signal.SIGTERM)
            assert json.loads(process.stdout.readlines()[-1])["event"] == "stopped"
            assert process.wait() == 0


def await_copy(process: subprocess.Popen[str]) -> None:
    assert any(json.loads(line)["event"] == "copied" for line in process.stdout)


def test_what_is_wrong_is_reported(database: Server, tmp_path: Path) -> None:
    command = ("export", "postgres", "--once", "--tables", tmp_path, "--to")
    for address in (database.url, "postgresql://127.0.0.1:1/"):
        assert "there is no table stream_states" in told(*command, address, code=1)
    filled(tmp_path, ROWS.slice(0, 5), names=["stream_states"])
    database.run(f"CREATE SCHEMA {SCHEMA} CREATE TABLE stream_states (other int)")
    text = told(*command, database.url, code=1)
    assert 'the database refuses: relation "stream_states" already exists' in text
    assert "cannot use the database" in told(*command, "postgresql://127.0.0.1:1/", code=1)
    for wrong in (database.url.replace("/postgres?", "/gone?"), f"{database.url}&user=nobody"):
        assert "the database refuses: connection failed" in told(*command, wrong, code=1)
    for address in ("mysql://db/app", "app", "postgresql://db/app?tables=all"):
        assert "that is not the address of a database" in told(*command, address, code=1)
    for schema in ("", "é" * 32):
        text = told(*command, database.url, "--schema", schema, code=1)
        assert "the name of a schema has 1 to 63 bytes" in text
