"""`spark-sink serve`: what clients of Arrow Flight SQL see, by ADBC."""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, time
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from adbc_driver_manager import ProgrammingError
from flight_support import (
    answered,
    asked,
    connected,
    fill,
    in_table,
    raw_client,
    rows_of_scenario,
    served,
)
from hypothesis import example, given
from hypothesis import strategies as st
from pyarrow import flight

from spark_sink.errors import RequestError
from spark_sink.schema import TABLES
from spark_sink.serve import metadata
from spark_sink.serve.database import NAMES, Database
from spark_sink.serve.flight_messages import new, packed
from spark_sink.serve.flight_sql import IN_ALL, KEPT, PER_CLIENT, PreparedStatements
from spark_sink.serve.query_turns import QueryWorkers
from spark_sink.serve.query_worker import StatementPlan
from spark_sink.serve.statement import _with_bytes

# The tables of ceramic-one (rust-ceramic 0.58, pipeline/src/schemas.rs; values of dimensions are
# dictionaries there), and queries of its documentation.
CERAMIC_ONE = json.loads(
    (Path(__file__).parents[1] / "data" / "spark" / "ceramic_one_tables.json").read_text()
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory_made = tmp_path_factory.mktemp("flight") / "it's a directory"
    fill(directory_made, rows_of_scenario(more=50))
    return directory_made


@pytest.fixture(scope="module")
def url(directory: Path) -> Iterator[str]:
    with served(directory) as address:
        yield address


@pytest.fixture(scope="module")
def database(directory: Path) -> Database:
    """What the process of a query has."""
    return Database(directory, memory_mb=200, threads=1)


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[Any]:
    with connected(url) as connection:
        yield connection


def test_the_columns_are_those_of_ceramic_one(client: Any) -> None:
    for name, columns in CERAMIC_ONE["columns"].items():
        for table in (name, f"{name}_feed"):
            schema = client.adbc_get_table_schema(table, db_schema_filter="v0")
            described = {field.name: re.sub(r"\s*\(.*", "", str(field.type)) for field in schema}
            assert described == columns, table


def test_own_tables_have_all_columns_and_rows(client, database, directory):
    for name, spec in TABLES.items():
        sql = f"SELECT * FROM tables.{name} ORDER BY {spec.order}"
        answer = answered(database, sql)
        assert answer.column_names == spec.schema.names
        assert answer.to_pylist() == in_table(directory, name)
        if name == "event_states":
            assert asked(client, sql) == answer


def test_the_tables_of_ceramic_one_have_the_same_rows(database: Database, directory: Path) -> None:
    for name, columns in CERAMIC_ONE["columns"].items():
        order = next(iter(columns))
        rows = answered(database, f"SELECT * FROM {name} ORDER BY {order}").to_pylist()
        for row, own in zip(rows, in_table(directory, name), strict=True):
            for column in columns:
                expected = own.get(column, own[TABLES[name].order])
                if column == "event_type" and expected is not None:
                    expected = int(expected == "time")
                assert row[column] == expected, column


def test_clients_can_list_what_there_is(client: Any) -> None:
    [catalog] = client.adbc_get_objects(depth="all").read_all().to_pylist()
    assert catalog["catalog_name"] == "ceramic"
    tables_seen = {
        schema["db_schema_name"]: {
            table["table_name"]: table for table in schema["db_schema_tables"]
        }
        for schema in catalog["catalog_db_schemas"]
    }
    assert {schema: tuple(tables) for schema, tables in tables_seen.items()} == {
        **NAMES,
        "views": (),
    }
    columns = [
        column["column_name"] for column in tables_seen["v0"]["stream_tips"]["table_columns"]
    ]
    assert columns == list(CERAMIC_ONE["columns"]["stream_tips"])
    feed = client.adbc_get_objects(depth="tables", table_name_filter="raw\\_e%\\_feed").read_all()
    names = str(feed.to_pylist())
    assert "raw_events_feed" in names
    assert "conclusion" not in names
    assert client.adbc_get_table_types() == ["TABLE", "VIEW"]
    assert client.adbc_get_info()["vendor_name"] == "spark-sink"


@pytest.fixture(scope="module")
def duck() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        yield connection


WILD = st.lists(st.sampled_from(["a", "b", "%", "_", r"\%", r"\_"]), max_size=9).map("".join)


@given(st.text("ab%_", max_size=9), WILD)
@example("conclusion_events_feed", "%_" * 400 + "x")
@example("conclusion_events_feed", "%" * 999 + "x")
def test_filters_are_those_of_sql(duck: duckdb.DuckDBPyConnection, name: str, pattern: str) -> None:
    command = new("CommandGetTables", table_name_filter_pattern=pattern)
    answer = metadata.answer(command, lambda: {("v0", name): b""})
    [expected] = duck.execute(r"SELECT $1 LIKE $2 ESCAPE '\'", [name, pattern]).fetchall()
    assert (answer.num_rows == 1,) == expected


def test_a_filter_may_only_be_so_long() -> None:
    command = new("CommandGetTables", table_name_filter_pattern="%" * 1001)
    with pytest.raises(RequestError, match="a filter has at most 1000 characters, not 1001"):
        metadata.answer(command, lambda: {("v0", "stream_tips"): b""})


# What Arrow's JDBC driver 18.3 reads of the server, by the type that it takes it for; without a
# value, its methods fail with a null pointer.
READ_BY_JDBC = {
    "bool_value": [
        *(3, 515, 516, *range(518, 522), 523, 524, 527, 532, 536, 537, 539, 556, 563, 565, 566),
        *range(572, 577),
    ],
    "bigint_value": [*range(541, 556), *range(557, 563)],
    "int32_bitmask": [522, 525, 526, 528, 533, 534, 535, 538, 540, 564, 567],
    "int32_to_int32_list_map": [517],
}


def test_a_jdbc_driver_learns_all_that_it_asks_for(url: str) -> None:
    command = packed(new("CommandGetSqlInfo"))
    with raw_client(url) as raw:
        rows = raw.do_get(flight.Ticket(command)).read_all()
        [one] = raw.do_get(flight.Ticket(packed(new("CommandGetSqlInfo", info=[562])))).read_all()[
            "value"
        ]
    assert one.as_py() == 0
    info = dict(zip(rows["info_name"].to_pylist(), rows["value"].combine_chunks(), strict=True))
    fields = list(rows.schema.field("value").type)
    types = {number: fields[value.type_code].name for number, value in info.items()}
    for kind, numbers in READ_BY_JDBC.items():
        assert {types[number] for number in numbers} == {kind}
    assert {"select", "where"} <= set(info[508].as_py())
    assert "stream_cid" not in info[508].as_py()


def test_times_can_be_bound_by_clients_that_know_milliseconds_only(client: Any) -> None:
    """The JDBC driver writes them into a field of any unit; others bind what they have."""
    sql = "SELECT $a::TIMESTAMP a, $b::TIMESTAMPTZ b, $c::TIME c"
    with client.cursor() as cursor:
        kinds = [field.type for field in cursor.adbc_prepare(sql)]
    assert kinds[0] == pa.timestamp("ms")
    assert (kinds[1].unit, kinds[2]) == ("ms", pa.time32("ms"))
    values = datetime(2026, 1, 31, 12, 34, 56, 789012), datetime.now(UTC), time(12, 34, 56, 789012)
    [row] = asked(client, sql, values).to_pylist()
    assert tuple(row.values()) == values


def test_times_do_not_depend_on_the_zone_of_the_server(directory, monkeypatch):
    monkeypatch.setenv("TZ", "America/New_York")
    sql = "SELECT TIMESTAMPTZ '2026-01-31 12:00:00Z'::TIMESTAMP t, TIMESTAMPTZ '2026-01-31 12:00' z"
    with served(directory, workers=QueryWorkers) as url, connected(url) as connection:
        [row] = asked(connection, sql).to_pylist()
    assert row == {"t": datetime(2026, 1, 31, 12), "z": datetime(2026, 1, 31, 12, tzinfo=UTC)}


def test_bytes_are_written_as_in_standard_sql(client: Any, directory: Path) -> None:
    row = in_table(directory, "conclusion_events")[7]
    sql = f"SELECT event_cid FROM conclusion_events WHERE event_cid = X'{row['event_cid'].hex()}'"
    assert asked(client, sql).to_pylist() == [{"event_cid": row["event_cid"]}]
    model = dict(row["dimensions"])["model"].hex()
    where = f"array_extract(map_extract(dimensions, 'model'), 1) = x'{model}'"
    [counted] = asked(client, f"SELECT count(*) n FROM conclusion_events WHERE {where}")["n"]
    rows = in_table(directory, "conclusion_events")
    models = [dict(row["dimensions"])["model"].hex() for row in rows]
    assert counted.as_py() == models.count(model)
    with pytest.raises(ProgrammingError, match="not bytes in hex"):
        asked(client, "SELECT X'123'")


def test_queries_of_ceramic_ones_documentation_work(client: Any, database: Database) -> None:
    first, *others = CERAMIC_ONE["queries"]
    assert asked(client, first).column_names
    for sql in others:
        assert answered(database, sql).column_names, sql


def test_json_is_read_from_bytes(client: Any, directory: Path) -> None:
    sql = "SELECT data::varchar->'content'->>'name' AS name, data::varchar FROM stream_states "
    rows = asked(client, f"{sql} WHERE stream_type = 2 ORDER BY 1").to_pylist()
    assert {"Note", "Notes"} & {row["name"] for row in rows}
    texts = {row["data"].encode() for row in rows if row["data"]}
    assert texts
    assert texts <= {row["data"] for row in in_table(directory, "stream_states")}


def test_parameters_have_the_types_of_what_they_are_compared_with(client, directory):
    row = in_table(directory, "conclusion_events")[3]
    sql = (
        "SELECT conclusion_event_order FROM conclusion_events WHERE event_cid = $cid "
        "AND conclusion_event_order BETWEEN $first AND 1000000 AND controller IN ($who) LIMIT $n"
    )
    with client.cursor() as cursor:
        assert {field.name: field.type for field in cursor.adbc_prepare(sql)} == {
            "$cid": pa.binary(),
            "$first": pa.uint64(),
            "$who": pa.string(),
            "$n": pa.int64(),
        }
    expected = [{"conclusion_event_order": row["conclusion_event_order"]}]
    values = {"cid": row["event_cid"], "first": 1, "who": row["controller"], "n": 5}
    in_order = asked(client, sql, tuple(values.values()))
    assert in_order.to_pylist() == expected
    named = {f"${name}": [value] for name, value in reversed(values.items())}
    assert asked(client, sql, pa.table(named)).to_pylist() == expected
    assert asked(client, sql, pa.table({**named, "$n": [0]})).num_rows == 0
    largest = pa.table({"$first": pa.array([2**64 - 1], pa.uint64())})
    assert asked(client, "SELECT $first::UBIGINT AS n", largest)["n"].to_pylist() == [2**64 - 1]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (None, "no value is bound to"),
        ((b"a", b"b"), "1 parameters .*2 values"),
        (pa.table({"a": [b"a", b"b"]}), "one row"),
    ],
)
def test_wrong_parameters_are_refused(client: Any, parameters: Any, message: str) -> None:
    with pytest.raises(ProgrammingError, match=message):
        asked(client, "SELECT 1 FROM conclusion_events WHERE event_cid = $1", parameters)


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELEC 1", "syntax error"),
        ("SELECT * FROM nowhere", "nowhere does not exist"),
        ("SELECT * FROM conclusion_events WHERE nothing = 1", "nothing"),
        ("SELECT 1; SELECT 2", "one SELECT"),
        ("-- nothing", "one SELECT"),
        ("SELECT cid_string('abc'::BLOB)", "CID"),
        ("SELECT 1 LIMIT -1", "negative"),
    ],
)
def test_wrong_queries_are_explained(client: Any, sql: str, message: str) -> None:
    with pytest.raises(ProgrammingError, match=message):
        asked(client, sql)


@pytest.mark.parametrize("limit", ["ALL", "NULL", "1.6", "2e0", "99999999999999999"])
def test_limits_are_those_of_sql(database: Database, limit: str) -> None:
    few = limit[0] in "12"
    assert answered(database, f"FROM range(9) LIMIT {limit}").num_rows == (2 if few else 9)


def test_every_type_arrives(client: Any) -> None:
    """Also those that Arrow has otherwise: ENUM, 128-bit integers, nested and empty ones."""
    sql = "SELECT 'a'::ENUM('a', 'b') e, sum(range) s, {'x': [1, NULL]} n, uuid() u, [] l, NULL z"
    [row] = asked(client, f"{sql} FROM range(4)").to_pylist()
    assert (row["e"], row["s"], row["n"]) == ("a", 6, {"x": [1, None]})


def test_columns_may_have_the_same_name(client: Any) -> None:
    assert asked(client, "SELECT 1 AS a, 2 AS a").column_names == ["a", "a"]


def test_long_values_fit(client: Any) -> None:
    """Messages have at most 2 MiB where rows allow it, since many clients take no more than 4."""
    sql = "SELECT repeat(chr(65 + range::INTEGER), 900_000) AS t FROM range(7)"
    with client.cursor() as cursor:
        cursor.execute(sql)
        batches = list(cursor.fetch_record_batch())
    assert [len(text) for batch in batches for text in batch["t"].to_pylist()] == [900_000] * 7
    assert max(batch.nbytes for batch in batches) < 2.1e6


QUOTES = """' '' " X' x'ab' X'AB' -- /* */ $$ $a$ e' \\"""
PIECES = st.sampled_from([*QUOTES.split(), "\n", " "])


@given(st.lists(PIECES | st.text(max_size=3), max_size=12).map("".join))
@example("X'ab'")
@example("''X'ab'")
def test_text_in_a_query_stays_as_it_is(duck: duckdb.DuckDBPyConnection, text: str) -> None:
    """Whatever quotes and comments are in a literal, only true literals of bytes are rewritten."""
    if "\x00" in text:
        return
    literal = "'" + text.replace("'", "''") + "'"
    name = '"' + text.replace('"', '""') + '"'
    sql = f"SELECT {literal} AS {name}, X'00ff' AS b -- {text.splitlines()[:1]}"
    if not text:
        sql = sql.replace(f" AS {name}", "")
    assert duck.execute(_with_bytes(sql)).fetchall() == [(text, b"\x00\xff")]


def test_prepared_statements_are_forgotten() -> None:
    now = 0.0
    plan = StatementPlan(b"", b"", feed=False)
    statements = PreparedStatements(clock=lambda: now)
    kept = statements.add("one", "SELECT 1", plan)
    now = KEPT - 1
    assert statements.get(kept).sql == "SELECT 1"
    now += KEPT - 1
    assert statements.get(kept).sql == "SELECT 1"
    now += KEPT + 1
    with pytest.raises(RequestError, match="prepare it again"):
        statements.get(kept)


def test_a_client_has_only_so_many_prepared_statements() -> None:
    plan = StatementPlan(b"", b"", feed=False)
    statements = PreparedStatements()
    other = statements.add("other", "SELECT 0", plan)
    handles = [statements.add("one", f"SELECT {i}", plan) for i in range(PER_CLIENT + 1)]
    with pytest.raises(RequestError):
        statements.get(handles[0])  # the oldest
    assert [statements.get(handle).sql for handle in (other, handles[1], handles[-1])] == [
        "SELECT 0",
        "SELECT 1",
        f"SELECT {PER_CLIENT}",
    ]
    for i in range(IN_ALL):
        statements.add(str(i), "SELECT 1", plan)
    assert len(statements) == IN_ALL
