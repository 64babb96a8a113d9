"""`spark-sink query`: every type of DuckDB's in JSON and as text, versions, and the functions."""

import csv
import io
import json
import os
import resource
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import cycle
from pathlib import Path
from typing import Any

import psutil
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from spark_helpers import EPOCH, asked, feed_rows, filled, invoked
from spark_runs import BOUND
from spark_samples import KEY
from support import forking, vectors
from support.waiting import finished, wait_until

from recon_node.ceramic import Event
from recon_node.dag.dag_events import DAG_MODEL, shard_event
from recon_node.ipld import CID, RAW, car
from spark_sink import functions
from spark_sink.cli.query_output import print_table
from spark_sink.errors import TablesError
from spark_sink.query import question as query_module
from spark_sink.query.question import Duck, run_query
from spark_sink.query.show import load_json, show, to_json, to_text
from spark_sink.tables import retention
from spark_sink.tables.catalog import committed_at, text_of
from spark_sink.tables.tables import Tables
from spark_sink.upkeep.health import check_health

CUTS = (40, 80, 120)


@pytest.fixture(scope="module")
def tables(sample: list[Event], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables of some events, written in steps; not to be changed."""
    directory = tmp_path_factory.mktemp("tables")
    filled(directory, feed_rows(sample), *CUTS)
    return directory


def printed(*arguments: str | Path, stdin: str | None = None) -> list[Any]:
    """The JSON lines of the command."""
    result = invoked("query", *arguments, stdin=stdin)
    assert result.exit_code == 0, result.output

    def wrong(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return [
        json.loads(line, parse_float=Decimal, parse_constant=wrong)
        for line in result.stdout.splitlines()
    ]


def refused(*arguments: str | Path) -> str:
    result = invoked("query", *arguments)
    assert result.exit_code == 1, result.output
    assert result.output.count("\n") == 1, result.output
    assert result.output.startswith("Error: ")
    return result.output.removeprefix("Error: ").rstrip()


# SQL, as JSON, as text.
VALUES = json.loads((vectors.DATA / "spark/query_values.json").read_text(), parse_float=Decimal)


def test_every_type_has_its_json_and_its_text(tables: Path) -> None:
    """By itself, in a list and in a struct."""
    columns = [
        f"{sql} AS plain_{i}, [{sql}] AS list_{i}, {{'x': {sql}}} AS struct_{i}"
        for i, (sql, _, _) in enumerate(VALUES)
    ]
    select = f"SELECT {', '.join(columns)}"
    (as_json,) = printed("--tables", tables, select)
    (row,) = asked(tables, select)
    for i, (sql, value, text) in enumerate(VALUES):
        assert as_json[f"plain_{i}"] == value, sql
        assert as_json[f"list_{i}"] == [value], sql
        assert as_json[f"struct_{i}"] == {"x": value}, sql
        assert to_text(row[3 * i]) == text, sql


_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(max_size=5)
    | st.decimals(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(_VALUES)
def test_what_is_shown_is_json_and_steers_no_terminal(value: Any) -> None:
    shown = show(value)
    assert show(shown) == shown
    again = load_json(to_json(shown))
    assert load_json(to_json(again)) == again
    assert all(c.isprintable() or c in "\n\t" for c in to_text(shown))


def test_json_may_be_long_and_deep(tables: Path) -> None:
    """In the headers of events it is what strangers have written."""
    long, deep, large = "1" * 5_000, "[" * 600 + "]" * 600, f"1e{10**18}"
    sql = f"SELECT '{long}'::JSON, '{deep}'::JSON, '{large}'::JSON, '-0'::JSON"
    (row,) = asked(tables, sql)
    assert [*map(to_json, row)] == [long, f'"{deep}"', f'"{large}"', "-0"]


def test_a_name_is_one_line() -> None:
    assert to_text({"a\n\tb": "c\td"}) == "a\\n\\tb: c\td"


def test_columns_of_one_name_are_all_there(tables: Path) -> None:
    assert printed("--tables", tables, "SELECT 1 AS a, 2 AS a, 3 AS a_1, 4 AS a") == [
        {"a": 1, "a_1": 2, "a_1_1": 3, "a_2": 4}
    ]


def test_more_than_select(tables: Path, tmp_path: Path) -> None:
    """What DuckDB has to say of the tables, SQL from standard input, and files for others."""
    names = printed("--tables", tables, "SHOW TABLES")
    assert [row["name"] for row in names] == sorted(query_module.TABLES)
    columns = printed("--tables", tables, "DESCRIBE stream_tips")
    assert [row["column_name"] for row in columns] == query_module.TABLES[
        "stream_tips"
    ].schema.names
    assert printed("--tables", tables, "-", stdin="FROM range(2)") == [{"range": 0}, {"range": 1}]
    file = tmp_path / "events.csv"
    sql = f"COPY (SELECT position, cid(event_cid) FROM raw_events ORDER BY 1) TO '{file}'"
    result = invoked("query", "--tables", tables, f"{sql}; {sql}")
    assert (result.stdout, result.stderr) == ("", f"{2 * CUTS[-1]} rows written\n")
    with file.open() as lines:
        assert [int(row[0]) for row in list(csv.reader(lines))[1:]] == list(range(1, CUTS[-1] + 1))


def hinted(directory: Path, sql: str) -> str:
    result = invoked("query", "--tables", directory, sql)
    assert result.exit_code == 0, result.output
    return result.stderr


def test_text_where_the_tables_have_bytes_is_hinted_at(tables: Path, sample: list[Event]) -> None:
    """Where a query finds nothing that compares them; where it finds something, it knows better."""
    init = next(event for event in sample if event.header is not None)
    cid, stream, model = str(init.cid), str(init.stream_id(init.header)), init.header.sort_value
    kinds = cycle(("event_cid", "count(*)", "max(position), sum(events)"))
    for where, words in (
        (
            f"event_cid = '{cid}'",
            f"event_cid is bytes, not text: compare it with from_cid('{cid}')",
        ),
        (f"t.event_cid IN ('{cid}', 'b')", f"from_cid('{cid}')"),
        (f"'{cid}' = \"stream_cid\"", '"stream_cid" is bytes, not text: compare it with from'),
        (f"stream_cid='{stream}'", f"compare it with stream_cid_of('{stream}')"),
        (f"dimensions['model'] = '{model}'", "dimensions['model'] is bytes, not text"),
        (f"dimensions['model'] = '{model}'", f"from_stream_id('{model}')"),
    ):
        text = hinted(tables, f"SELECT {next(kinds)} FROM stream_tips t WHERE {where}")
        assert text.startswith("Hint: ")
        assert text.count("\n") == 1
        assert words in text
    for where in (
        f"event_cid = from_cid('{cid}') AND false",
        f"stream_cid = stream_cid_of('{stream}') AND false",
        f"stream_id = '{stream}' AND false",
        f"cid(event_cid) = '{cid}' AND false",
        f"event_cid <> '{cid}'",
        "event_cid = 'bagc'",
        "event_type = 'bytes'",
    ):
        assert hinted(tables, f"FROM stream_tips WHERE {where}") == ""


def test_json_in_bytes_is_hinted_at(tables: Path) -> None:
    hint = "Hint: data is bytes: use decode(data)->'$.content'\n"
    states = "FROM stream_states LIMIT 3"
    assert hinted(tables, f"SELECT stream_id, data->'$.content' AS c {states}") == hint
    assert hinted(tables, f"SELECT s.data ->> '$.content' {states[:18]} s LIMIT 3") == hint
    assert hinted(tables, f"SELECT decode(data)->'$.nothing' {states}") == ""
    assert hinted(tables, f"SELECT stream_id, data {states}") == ""


def on_a_terminal(directory: Path, sql: str, width: int, *, wide: bool = False) -> str:
    console = Console(width=width, file=io.StringIO(), color_system=None)
    with run_query(directory, sql) as answer:
        print_table(answer, console, wide=wide)
    return console.file.getvalue()


def test_a_long_value_is_cut_on_a_terminal(tables: Path) -> None:
    shown = on_a_terminal(tables, "SELECT repeat('x', 1_000_000) AS long", 100)
    assert len(shown) < 1_000
    assert "x… (1,000,000 characters; --wide shows all of them)" in shown.replace("\n", "")
    whole = on_a_terminal(tables, "SELECT repeat('x', 10_000) AS long", 100, wide=True)
    assert whole.count("x") == 10_000


def test_a_terminal_shows_columns_where_they_fit_else_a_line_for_each_value(tables: Path) -> None:
    sql = "SELECT range AS number, 'x' || range AS \"a name\" FROM range(2)"
    lines = on_a_terminal(tables, sql, 40).splitlines()
    assert [line.split() for line in lines] == [["number", "a", "name"], ["0", "x0"], ["1", "x1"]]
    lines = on_a_terminal(tables, sql, 12).splitlines()
    assert [line.rstrip() for line in lines] == [
        "number  0",
        "a name  x0",
        "─" * 12,
        "number  1",
        "a name  x1",
    ]
    for width in (80, 40):
        text = on_a_terminal(tables, "FROM stream_tips LIMIT 2", width)
        assert all(len(line) <= width for line in text.splitlines())
        assert [line.split()[0] for line in text.splitlines()].count("stream_id") == 2
    one = on_a_terminal(tables, "SELECT repeat('x', 100) AS name", 40)
    assert [line.rstrip() for line in one.splitlines()] == ["name", "x" * 40, "x" * 40, "x" * 20]
    sql = "SELECT {'a': range, 'b': 'x'} AS pair FROM range(2)"
    pairs = on_a_terminal(tables, sql, 40)
    assert [line.strip() for line in pairs.splitlines()] == [
        "pair  a: 0",
        "b: x",
        "─" * 40,
        "pair  a: 1",
        "b: x",
    ]
    assert on_a_terminal(tables, "FROM range(0)", 40) == "no rows\n"


def test_rows_come_in_their_order_and_all_of_them(tables: Path) -> None:
    """Also those that are cast, and more than are fetched at once."""
    sql = "SELECT i, make_date(1970 + i % 50, 1, 1) FROM range(25000) t(i) ORDER BY i DESC"
    rows = asked(tables, sql)
    assert [row[0] for row in rows] == list(range(24_999, -1, -1))
    assert rows[0][1] == f"{1970 + 24_999 % 50}-01-01"


@pytest.mark.parametrize(
    ("sql", "words"),
    vectors.load("spark/query_refusals"),
)
def test_what_is_wrong_is_reported_in_one_line(tables: Path, sql: str, words: str) -> None:
    text = refused("--tables", tables, sql)
    assert words in text
    assert "site-packages" not in text
    assert "LINE 1" not in text


# What takes for ever: without a row, in one task of DuckDB's, in COPY, and row by row.
ENDLESS = (
    "SELECT * FROM range(1000000000000) WHERE range < 0",
    "SELECT count(*) FROM raw_events a, raw_events b, raw_events c, raw_events d, raw_events e "
    "WHERE a.position + b.position + c.position + d.position = e.position * 77",
    "COPY (FROM range(1000000000000)) TO '{}'",
    "FROM range(1000000000000)",
)


@pytest.mark.parametrize("sql", ENDLESS)
def test_a_query_without_end_is_interrupted(tables, tmp_path, monkeypatch, sql):
    """And leaves no thread behind that works on, or that closing waits for."""
    file = tmp_path / "rows.csv"
    at_work = threading.Event()
    spent: list[float] = []  # CPU seconds, for a busy machine takes its time

    def do(duck: Duck, work: Callable[[], Any]) -> Any:
        def begun() -> Any:
            spent.append(time.process_time())
            at_work.set()
            return work()

        return untouched(duck, begun)

    def interrupt() -> None:
        at_work.wait()
        wait_until(lambda: time.process_time() > spent[0] + 0.2, "DuckDB is at it")
        spent.append(time.process_time())
        os.kill(os.getpid(), signal.SIGINT)

    untouched = Duck.do
    monkeypatch.setattr(Duck, "do", do)
    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt), run_query(tables, sql.format(file)) as answer:
        for _ in answer.rows:
            pass
    thread.join()
    assert time.process_time() - spent[-1] < 20
    assert not file.exists()
    wait_until(at_rest, "nothing works on")


def at_rest() -> bool:
    """Whether this process has no thread of DuckDB's, and does nothing for a moment."""
    if any(thread.name.startswith("duckdb") for thread in threading.enumerate()):
        return False
    before = time.process_time()
    time.sleep(0.05)
    return time.process_time() - before < 0.01


def test_ctrl_c_ends_the_command_also_while_duckdb_is_at_one_value(tables, tmp_path):
    """Which it does to the end."""
    begun = tmp_path / "begun.csv"
    sql = f"COPY (SELECT 1) TO '{begun}'; "
    sql += "SELECT length(list_sort(list_transform(range(20000000), x -> hash(x))))"
    command = [sys.executable, "-m", "spark_sink", "query", "--tables", str(tables), sql]
    before = cpu_time(resource.getrusage(resource.RUSAGE_CHILDREN))
    with forking.Popen(command, stdout=-1, stderr=-1, text=True) as process:
        running = psutil.Process(process.pid)
        wait_until(begun.exists, "DuckDB has begun")
        start = cpu_time(running.cpu_times())
        wait_until(lambda: cpu_time(running.cpu_times()) > start + 0.5, "DuckDB is at the list")
        used = cpu_time(running.cpu_times())
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60) == ("", "Aborted!\n")
        assert process.returncode == 130
    spent = cpu_time(resource.getrusage(resource.RUSAGE_CHILDREN)) - before
    assert spent - used < 10  # it takes 1.1 s; DuckDB would take 20


def cpu_time(times: Any) -> float:
    """Seconds that a process has worked, by itself and in the system."""
    if isinstance(times, resource.struct_rusage):
        return times.ru_utime + times.ru_stime
    return float(times.user + times.system)


# Asks questions of tables while one directory after the other may not be read.
UNREADABLE = """
import sys
from pathlib import Path
from click.testing import CliRunner
from spark_sink.cli import main
tables, *closed, tips, raw = sys.argv[1:]
for directory in map(Path, closed):
    mode = directory.stat().st_mode
    directory.chmod(0)
    for sql in (tips, raw):
        print(CliRunner().invoke(main, ["query", "--tables", tables, sql]).output, end="")
    directory.chmod(mode)
"""


def test_what_may_not_be_read_is_reported(sample: list[Event], tmp_path: Path) -> None:
    """In one line, to who asks for it; the other tables can be read."""
    filled(tmp_path, feed_rows(sample[:40]), names=["stream_tips"])
    tips = tmp_path / "stream_tips"
    file = next(tips.rglob("part-*.parquet"))
    questions = ("SELECT max(position) FROM stream_tips", "SELECT count(*) AS n FROM raw_events")
    program = [sys.executable, "-c", UNREADABLE, tmp_path, tips, file.parent, *questions]
    ended = finished([sys.executable, "-c", BOUND, *program], timeout=60)
    assert ended.stdout.splitlines() == [
        f"Error: this user may not read the table {tips}",
        '{"n": 40}',
        f"Error: this user may not read {file}",
        '{"n": 40}',
    ], ended.stderr


def test_streams_of_dags_can_be_left_out(tmp_path: Path, sample: list[Event]) -> None:
    """By one function, wherever `dimensions` are."""
    root = CID.of(RAW, b"a file")
    dag = shard_event(KEY, root, car.encode([root], {root: b"a file"}))
    filled(tmp_path, feed_rows([*sample[:10], dag]))
    assert functions.DAG_MODEL == DAG_MODEL
    kept = "SELECT count(*) FROM {} WHERE NOT is_dag(dimensions)"
    for name in ("conclusion_events", "event_states"):
        assert asked(tmp_path, kept.format(name)) == [(10,)]
    for name in ("stream_tips", "stream_states"):
        streams = len({event.init for event in sample[:10]})
        assert asked(tmp_path, kept.format(name)) == [(streams,)]
    events = """SELECT count(*) FROM raw_events
        ANTI JOIN (FROM stream_tips WHERE is_dag(dimensions)) USING (stream_cid)"""
    assert asked(tmp_path, events) == [(10,)]


def test_versions_by_number_and_by_time(tables: Path) -> None:
    """A version is what it was, and the times between two commits are the earlier one's."""
    count = "SELECT count(*) FROM raw_events"
    for version in range(len(CUTS) + 1):
        expected = [(([0, *CUTS])[version],)]
        assert asked(tables, count, version) == expected
        moment = committed_at(tables / "raw_events", version)
        assert asked(tables, count, moment) == expected
        if version:
            before = moment - timedelta(milliseconds=1)
            assert asked(tables, count, before) == [(([0, *CUTS])[version - 1],)]
    assert asked(tables, count, datetime.now(UTC)) == [(CUTS[-1],)]
    assert printed("--tables", tables, "--as-of", "0s", count) == [{"count_star()": CUTS[-1]}]
    text = committed_at(tables / "raw_events", 1).isoformat()
    rows = printed("--tables", tables, "--as-of", text, count)
    assert rows == [{"count_star()": CUTS[0]}]


def test_versions_by_time_after_the_clock_went_back(tables: Path, tmp_path: Path) -> None:
    """The first commits are of tomorrow: now is the last version; status does not wait for then."""
    place = shutil.copytree(tables, tmp_path / "tables")
    count = "SELECT count(*) FROM raw_events"
    day = 86_400_000
    for version, ahead in ((2, day), (1, day - 1), (0, day - 2)):
        commit = place / f"raw_events/_delta_log/{version:020}.json"
        stamp = round(committed_at(place / "raw_events", version).timestamp() * 1000)
        commit.write_text(commit.read_text().replace(str(stamp), str(stamp + ahead)))
    assert asked(place, count, datetime.now(UTC)) == [(CUTS[-1],)]
    last = place / f"raw_events/_delta_log/{len(CUTS):020}.json"
    stamp = round(committed_at(place / "raw_events", len(CUTS)).timestamp() * 1000)
    last.write_text(last.read_text().replace(str(stamp), str(stamp + day)))
    [trouble] = check_health(place, (), None, max_lag=None, max_age=1.0).troubles
    assert trouble.startswith("the last commit of raw_events is 23 h in the future: ")


def test_a_commit_may_have_no_time(tables: Path, tmp_path: Path) -> None:
    """What is in `commitInfo` is left to the engine that wrote it: then that of the file counts."""
    place = shutil.copytree(tables, tmp_path / "tables")
    commit = place / f"raw_events/_delta_log/{len(CUTS):020}.json"
    commit.write_text(commit.read_text().replace('"timestamp":', '"when":'))
    assert asked(place, "SELECT count(*) FROM raw_events", datetime.now(UTC)) == [(CUTS[-1],)]


def test_a_version_that_is_not_there_names_those_that_are(tables: Path, tmp_path: Path) -> None:
    path = tables / "raw_events"
    first, last = (text_of(committed_at(path, version)) for version in (0, len(CUTS)))
    there = f"its versions are 0 (of {first}) to {len(CUTS)} (of {last})"
    count = "SELECT count(*) FROM raw_events"
    text = refused("--tables", tables, "--version", "99", count)
    assert text == f"raw_events has no version 99 that can be read: {there}"
    text = refused("--tables", tables, "--as-of", "2020-01-01", count)
    clock = "if a clock was set back meanwhile, use --version"
    what = "raw_events has no version of 2020-01-01T00:00:00Z that can be read"
    assert text == f"{what}: {there}; {clock}"
    # Another table's versions do not matter.
    copy = tmp_path / "copy"
    shutil.copytree(tables, copy)
    shutil.rmtree(copy / "stream_tips")
    Tables(copy, EPOCH, ["stream_tips"])
    assert asked(copy, count, len(CUTS)) == [(CUTS[-1],)]
    with pytest.raises(TablesError, match=r"stream_tips has no version 3 .* are 0 .* to 0 "):
        asked(copy, "FROM stream_tips", len(CUTS))
    # With the files gone that only older versions need, so are these.
    states = DeltaTable(str(copy / "stream_states"))
    retention.optimize(states)
    retention.vacuum(copy / "stream_states", states, 0, dry_run=False)
    sorted_at = len(CUTS) + 1
    with pytest.raises(TablesError, match=rf"its versions are {sorted_at} .* to .*--history sets"):
        asked(copy, "FROM stream_states", 1)
    assert asked(copy, "SELECT count(*) > 0 FROM stream_states") == [(True,)]
