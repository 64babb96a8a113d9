"""`spark-sink query`: every type of DuckDB's in JSON and as text, versions, and the functions."""

import csv
import json
import os
import shutil
import signal
import threading
import time
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st
from spark_helpers import feed_rows
from spark_samples import KEY

from recon_node.ceramic import Event
from recon_node.dag import DAG_MODEL, shard_event
from recon_node.ipld import CID, RAW, car
from spark_sink.cli import main
from spark_sink.errors import TablesError
from spark_sink.query import question as query_module
from spark_sink.query.question import run_query
from spark_sink.query.show import load_json, show, to_json, to_text
from spark_sink.run.pipeline import Sink
from spark_sink.tables import delta_files
from spark_sink.tables.directory import Tables
from spark_sink.tables.versions import At, committed_at, text_of

EPOCH = "5f0c8a10-aaaa-bbbb-cccc-000000000003"
CUTS = (40, 80, 120)


@pytest.fixture(scope="module")
def tables(sample: list[Event], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables of some events, written in steps; not to be changed."""
    directory = tmp_path_factory.mktemp("tables")
    sink = Sink(Tables(directory, EPOCH))
    for cut in CUTS:
        sink.tables.append(feed_rows(sample[:cut]))
        sink.catch_up()
    return directory


def asked(directory: Path, sql: str, at: At = None) -> list[tuple[Any, ...]]:
    with run_query(directory, sql, at) as answer:
        return list(answer.rows)


def printed(*arguments: str | Path, stdin: str | None = None) -> list[Any]:
    """The JSON lines of the command."""
    command = ["query", *map(str, arguments)]
    result = CliRunner().invoke(main, command, input=stdin)
    assert result.exit_code == 0, result.output

    def wrong(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return [
        json.loads(line, parse_float=Decimal, parse_constant=wrong)
        for line in result.stdout.splitlines()
    ]


def refused(*arguments: str | Path) -> str:
    result = CliRunner().invoke(main, ["query", *map(str, arguments)])
    assert result.exit_code == 1, result.output
    assert result.output.count("\n") == 1, result.output
    assert result.output.startswith("Error: ")
    return result.output.removeprefix("Error: ").rstrip()


HUGE = 170141183460469231731687303715884105727

# SQL, as JSON, as text.
VALUES: list[tuple[str, Any, str]] = [
    ("NULL", None, "NULL"),
    ("true", True, "true"),
    ("(-7)::TINYINT", -7, "-7"),
    ("18446744073709551615::UBIGINT", 2**64 - 1, "18446744073709551615"),
    ("(SELECT sum(range) FROM range(5))", 10, "10"),
    (f"{HUGE}::HUGEINT", HUGE, str(HUGE)),
    (f"{2 * HUGE + 1}::UHUGEINT", 2 * HUGE + 1, str(2 * HUGE + 1)),
    (f"'{HUGE}0'::BIGNUM", HUGE * 10, f"{HUGE}0"),
    ("1.10::DECIMAL(4,2)", Decimal("1.10"), "1.10"),
    ("(-5)::DECIMAL(4,0)", -5, "-5"),
    (
        "1234567890123456789012.123456::DECIMAL(38,6)",
        Decimal("1234567890123456789012.123456"),
        "1234567890123456789012.123456",
    ),
    ("0.1::DOUBLE", Decimal("0.1"), "0.1"),
    ("'nan'::DOUBLE", "NaN", "NaN"),
    ("'inf'::DOUBLE", "Infinity", "Infinity"),
    ("'-inf'::FLOAT", "-Infinity", "-Infinity"),
    ("DATE '2026-01-02'", "2026-01-02", "2026-01-02"),
    ("'infinity'::DATE", "infinity", "infinity"),
    ("'1500-01-01 (BC)'::DATE", "1500-01-01 (BC)", "1500-01-01 (BC)"),
    ("TIME '12:34:56.789'", "12:34:56.789", "12:34:56.789"),
    ("'12:34:56+02'::TIMETZ", "12:34:56+02", "12:34:56+02"),
    ("TIMESTAMP '2026-01-02 03:04:05.6'", "2026-01-02 03:04:05.6", "2026-01-02 03:04:05.6"),
    (
        "'2026-01-02 03:04:05.678901234'::TIMESTAMP_NS",
        "2026-01-02 03:04:05.678901234",
        "2026-01-02 03:04:05.678901234",
    ),
    ("'-infinity'::TIMESTAMP", "-infinity", "-infinity"),
    ("INTERVAL '1 month 2 days'", "1 month 2 days", "1 month 2 days"),
    ("'91a0715c-58b4-4b24-b177-d4e167cb2689'::UUID", *["91a0715c-58b4-4b24-b177-d4e167cb2689"] * 2),
    ("'101'::BIT", "101", "101"),
    ("'b'::ENUM('a', 'b')", "b", "b"),
    ("'\\xFF\\x00'::BLOB", "0xff00", "0xff00"),
    ("''::BLOB", "0x", "0x"),
    ("'did:key:z6Mk'::BLOB", "did:key:z6Mk", "did:key:z6Mk"),
    ("'{\"a\":1.50}'::BLOB", {"a": Decimal("1.50")}, "a: 1.50"),
    ("'a\"b'", 'a"b', 'a"b'),
    ("chr(27) || '[1m'", "\x1b[1m", "\\x1b[1m"),
    ("[1, NULL, 3]", [1, None, 3], "1\nNULL\n3"),
    ("[]", [], ""),
    ("[DATE '2026-01-02', 'infinity']", ["2026-01-02", "infinity"], "2026-01-02\ninfinity"),
    ("[1, 2]::INT[2]", [1, 2], "1\n2"),
    ("[INTERVAL 1 day]::INTERVAL[1]", ["1 day"], "1 day"),
    (
        "{'a b': 1, 'c': [{'d': '\\x01'::BLOB}]}",
        {"a b": 1, "c": [{"d": "0x01"}]},
        'a b: 1\nc: [{"d": "0x01"}]',
    ),
    ("{'t': TIME '01:02:03', 'n': NULL}", {"t": "01:02:03", "n": None}, "t: 01:02:03\nn: NULL"),
    ("row(1, DATE '2026-01-02')", [1, "2026-01-02"], "1\n2026-01-02"),
    ("row(1, 'x'::BLOB)", [1, "0x78"], "1\n0x78"),
    ("MAP {'k': 1.5}", {"k": Decimal("1.5")}, "k: 1.5"),
    ("MAP {2: DATE '2026-01-02'}", {"2": "2026-01-02"}, "2: 2026-01-02"),
    (
        "MAP {{'a': 1}: 'x'}",
        [{"key": {"a": 1}, "value": "x"}],
        '{"key": {"a": 1}, "value": "x"}',
    ),
    ("union_value(n := 1)", "1", "1"),
    ("'{\"a\": [1.50, null]}'::JSON", {"a": [Decimal("1.50"), None]}, "a: [1.50, null]"),
    ("['7'::JSON, '\"x\"'::JSON]", [7, "x"], "7\nx"),
]


@pytest.mark.parametrize(("sql", "value", "text"), VALUES, ids=[sql for sql, _, _ in VALUES])
def test_every_type_has_its_json_and_its_text(
    tables: Path, sql: str, value: Any, text: str
) -> None:
    assert printed("--tables", tables, f"SELECT {sql} AS v") == [{"v": value}]
    nested = printed("--tables", tables, f"SELECT [{sql}] AS v, {{'x': {sql}}} AS w")
    assert nested == [{"v": [value], "w": {"x": value}}]
    assert to_text(asked(tables, f"SELECT {sql}")[0][0]) == text


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
    assert all(c.isprintable() or c == "\n" for c in to_text(shown))


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
    assert printed("--tables", tables, sql) == []
    with file.open() as lines:
        assert [int(row[0]) for row in list(csv.reader(lines))[1:]] == list(range(1, CUTS[-1] + 1))


def test_rows_come_in_their_order_and_all_of_them(tables: Path) -> None:
    """Also those that are cast, and more than are fetched at once."""
    sql = "SELECT i, make_date(1970 + i % 50, 1, 1) FROM range(25000) t(i) ORDER BY i DESC"
    rows = asked(tables, sql)
    assert [row[0] for row in rows] == list(range(24_999, -1, -1))
    assert rows[0][1] == f"{1970 + 24_999 % 50}-01-01"


def test_binary_to_text_and_back(tables: Path, sample: list[Event]) -> None:
    """Each function against the code of the node."""
    init = next(event for event in sample if event.header is not None)
    assert init.header is not None
    stream_id = str(init.stream_id(init.header))
    sql = f"""SELECT cid(stream_cid), cid_string(stream_cid), stream_id(stream_type, stream_cid),
        from_cid('{init.cid}') = stream_cid, stream_cid_of('{stream_id}') = stream_cid,
        stream_partition(stream_cid) = stream_cid_partition,
        from_stream_id(stream_id_string(dimensions['model'])) = dimensions['model'],
        stream_id_string(dimensions['model']), stream_id, is_dag(dimensions)
        FROM stream_tips WHERE stream_id = '{stream_id}'"""
    cid, cid_string, made, *same, model, kept, is_dag = asked(tables, sql)[0]
    assert cid == cid_string == str(init.cid)
    assert made == kept == stream_id
    assert same == [True] * 4
    assert model == init.header.sep_value
    assert is_dag is False
    nulls = "SELECT cid(NULL), from_cid(NULL), from_stream_id(NULL), is_dag(NULL)"
    assert asked(tables, nulls) == [(None, None, None, False)]


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ("SELECT cid('abc'::BLOB)", "no CIDv1"),
        ("SELECT from_cid('abc')", "not a CID: 'abc' is not valid multibase"),
        ("SELECT stream_cid_of('k2')", "'k2' is not a StreamID"),
        ("SELECT from_stream_id('b')", "is not a StreamID"),
        ("SELEC", 'syntax error at or near "SELEC"'),
        ("SELECT nothing FROM stream_tips", 'Referenced column "nothing" not found'),
        ("FROM nowhere", "the tables here are raw_events, conclusion_events, event_states"),
        ("SELECT 1; SELECT 2 FROM nowhere", "the tables here are raw_events"),
        ("SELECT 'x'::INTEGER FROM raw_events", "Could not convert string 'x' to INT32"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(tables: Path, sql: str, told: str) -> None:
    text = refused("--tables", tables, sql)
    assert told in text
    assert "site-packages" not in text
    assert "LINE 1" not in text


def test_a_query_without_end_is_interrupted(tables: Path) -> None:
    """And leaves no thread behind that works on, or that closing waits for."""
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        asked(tables, "SELECT * FROM range(1000000000000) WHERE range < 0")
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.25


def test_streams_of_dags_can_be_left_out(tmp_path: Path, sample: list[Event]) -> None:
    """By one function, wherever `dimensions` are."""
    root = CID.of(RAW, b"a file")
    dag = shard_event(KEY, root, car.encode([root], {root: b"a file"}))
    sink = Sink(Tables(tmp_path, EPOCH))
    sink.tables.append(feed_rows([*sample[:10], dag]))
    sink.catch_up()
    assert query_module.DAG_MODEL == DAG_MODEL
    kept = "SELECT count(*) FROM {} WHERE NOT is_dag(dimensions)"
    for name in ("conclusion_events", "event_states"):
        assert asked(tmp_path, kept.format(name)) == [(10,)]
    for name in ("stream_tips", "stream_states"):
        streams = len({event.init for event in sample[:10]})
        assert asked(tmp_path, kept.format(name)) == [(streams,)]
    events = """SELECT count(*) FROM raw_events WHERE stream_cid NOT IN
        (SELECT stream_cid FROM stream_tips WHERE is_dag(dimensions))"""
    assert asked(tmp_path, events) == [(10,)]
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


def test_a_version_that_is_not_there_names_those_that_are(tables: Path, tmp_path: Path) -> None:
    path = tables / "raw_events"
    first, last = (text_of(committed_at(path, version)) for version in (0, len(CUTS)))
    there = f"its versions are 0 (of {first}) to {len(CUTS)} (of {last})"
    count = "SELECT count(*) FROM raw_events"
    text = refused("--tables", tables, "--version", "99", count)
    assert text == f"raw_events has no version 99 that can be read: {there}"
    text = refused("--tables", tables, "--as-of", "2020-01-01", count)
    assert text == f"raw_events has none of 2020-01-01T00:00:00Z that can be read: {there}"
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
    delta_files.optimize(states)
    delta_files.vacuum(states, 0, dry_run=False)
    sorted_at = len(CUTS) + 1
    with pytest.raises(TablesError, match=rf"its versions are {sorted_at} .* to .*--history says"):
        asked(copy, "FROM stream_states", 1)
    assert asked(copy, "SELECT count(*) > 0 FROM stream_states") == [(True,)]
