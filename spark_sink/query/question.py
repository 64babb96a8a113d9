"""SQL queries over the tables by DuckDB, which needs no Java and no server, and reads JSON.

DuckDB reads the Parquet files of a version of a Delta table, which is enough because spark-sink
writes no deletion vectors. Identifiers are bytes in the tables; `spark_sink.functions` are there.

Values are converted exactly, or to the text that DuckDB writes. Dates can be infinite or before
year 1, times have nanoseconds, and intervals have months, which Python cannot represent. So these
types are cast to text before fetching, also inside nested types.

Python handles signals only in its main thread, and only when DuckDB returns to Python, which can
take half a minute. So DuckDB runs in another thread, while the main thread waits and can interrupt
it: DuckDB checks for that every few thousand rows.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import duckdb
from duckdb import (
    DuckDBPyConnection,
    DuckDBPyRelation,
    ExpectedResultType,
    Statement,
    StatementType,
)

from spark_sink.errors import NOT_ALLOWED, TablesError, cannot_open, store_fault
from spark_sink.functions import register_duckdb_functions
from spark_sink.query.dataset import dataset_of, files_in_sql
from spark_sink.query.show import load_json, show
from spark_sink.query.tangles_view import SOURCE, register_tangles
from spark_sink.schema import TABLES, TANGLES
from spark_sink.tables.catalog import At, no_tables, open_at, path_of, spec_of, view_names
from spark_sink.tables.delta_log import names_of
from spark_sink.tables.location import FAULTS, Location, is_delta
from spark_sink.tables.retention import held

_FETCH_ROWS: Final = 10_000
# To DuckDB the tables are views, and it has many messages for an attempt to write one.
_WRITING: Final = re.compile(
    "[Cc]an only (delete from|update|merge into|create an index|vacuum or analyze|modify view)|"
    "is not an? table|is of type View"
)
_OF_JSON: Final = re.compile(
    r"argument types 'json_extract\w*\(|Cannot extract field '.+' from expression \"data\""
)
_QUIET: Final = (StatementType.PRAGMA, StatementType.CALL)
"""Statements that formally return rows, but nothing worth showing."""
_FILE: Final = re.compile(r'(?:No files found that match the pattern|Cannot open file) "(.+)"')

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class QueryAnswer:
    """The result of a query.

    Attributes:
        columns: their names.
        numbers: which of them are numeric.
        rows: with values as `spark_sink.query.show.show` returns them.
        written: how many rows COPY has written, if the query has one.
    """

    columns: tuple[str, ...]
    numbers: tuple[bool, ...]
    rows: Iterator[Row]
    written: int | None = None


@contextmanager
def run_query(directory: Location, sql: str, at: At = None) -> Iterator[QueryAnswer]:
    """Query the tables in `directory`; the result can be read within the block.

    Args:
        directory: of the tables.
        sql: in DuckDB's dialect; of several statements, only the last may return rows.
        at: which version of the tables to query; a time selects one for each table.

    Raises:
        TablesError: there are no tables, no such versions, or the query is wrong; also raised while
            the rows are read.
    """
    here = [name for name in TABLES if _is_table(directory / name)]
    if not here:
        raise no_tables(directory)
    here += view_names(directory)
    with ExitStack() as holds, closing(Duck()) as duck, _as_sink_errors(here):
        register_duckdb_functions(duck.connection)
        *before, last = _statements(duck.connection, sql)
        weaves = TANGLES in sql.lower() and SOURCE in here
        for name in dict.fromkeys([*_asked(duck.connection, sql, here), *([SOURCE] * weaves)]):
            version = _register(duck.connection, path_of(directory, name), at)
            holds.enter_context(held(path_of(directory, name), version))
        if weaves:
            duck.do(partial(register_tangles, duck.connection))
        written = _written(
            [duck.do(partial(_run, duck.connection, statement)) for statement in before]
        )
        yield _answer(duck, last, here, written)


def _statements(connection: DuckDBPyConnection, sql: str) -> list[Statement]:
    """Split `sql` into its statements, at least one."""
    statements = connection.extract_statements(sql)
    if not statements:
        raise TablesError("the SQL contains no statement")
    if any(
        statement.expected_result_type == [ExpectedResultType.QUERY_RESULT]
        and statement.type not in _QUIET
        for statement in statements[:-1]
    ):
        raise TablesError("only the last of several statements may return rows")
    return statements


def _run(connection: DuckDBPyConnection, statement: Statement) -> int | None:
    """Run a statement that returns no rows; return how many rows COPY has written."""
    connection.execute(statement)
    if statement.type != StatementType.COPY:
        return None
    count = connection.fetchone()
    return None if count is None else int(count[0])


def _written(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _asked(connection: DuckDBPyConnection, sql: str, here: Sequence[str]) -> list[str]:
    """Return the tables that a query uses.

    All of them if it names none, as SHOW TABLES does, or if DuckDB cannot say, as with several
    statements or an ANTI JOIN.
    """
    try:
        names = {name.lower() for name in connection.get_table_names(sql)}
    except duckdb.Error:  # reported later, if the query is wrong
        return list(here)
    return [name for name in here if name in names] or ([] if names else list(here))


def _answer(
    duck: Duck, statement: Statement, here: Sequence[str], written: int | None
) -> QueryAnswer:
    if statement.type == StatementType.COPY:
        count = duck.do(partial(_run, duck.connection, statement))
        return QueryAnswer((), (), iter(()), _written([written, count]))
    relation = duck.do(partial(duck.connection.sql, statement))
    if relation is None:  # of SET, for example
        return QueryAnswer((), (), iter(()), written)
    names, types = tuple(relation.columns), list(relation.types)
    wanted = [fetched_as(kind) for kind in types]
    if wanted != [str(kind) for kind in types]:
        casts = [f"CAST(#{i} AS {kind})" for i, kind in enumerate(wanted, 1)]
        relation = relation.project(", ".join(casts))
    readers = [reader_of(kind) for kind in types]
    rows = _rows(duck, relation, readers, here)
    return QueryAnswer(names, tuple(map(is_number, types)), rows, written)


def _rows(
    duck: Duck, relation: DuckDBPyRelation, readers: list[Callable[[Any], Any]], here: Sequence[str]
) -> Iterator[Row]:
    with _as_sink_errors(here):
        while rows := duck.do(partial(relation.fetchmany, _FETCH_ROWS)):
            for row in rows:
                yield tuple(read(value) for read, value in zip(readers, row, strict=True))


@contextmanager
def _as_sink_errors(here: Sequence[str]) -> Iterator[None]:
    """Raise DuckDB's errors as one-line errors."""
    try:
        yield
    except duckdb.Error as error:
        text = str(error)
        if ours := re.search(r"executing the UDF: \w+: (.*?)\s*\n\s*At:", text, re.DOTALL):
            text = ours[1]
        elif isinstance(error, duckdb.CatalogException) and "Table with name" in text:
            text = f"{text.partition('!')[0]}: the tables here are {', '.join(here)}"
        elif _OF_JSON.search(text):
            text = (
                f"{text.partition('. You might')[0]}: write a field of JSON as "
                "(decode(data)->'$.name'), in parentheses where = or < follows"
            )
        elif _WRITING.search(text):
            text = f"the tables are read-only here: {text}"
        elif (file := _FILE.search(text)) and not _may_read(Path(file[1])):
            text = f"this user may not read {file[1]}"
        text = re.split(r"\n\s*LINE \d+:", text)[0]
        raise TablesError(" ".join(text.split())) from error


def _may_read(file: Path) -> bool:
    try:
        os.close(os.open(file, os.O_RDONLY | os.O_NONBLOCK))  # a pipe may have no writer
    except PermissionError:
        return False
    except OSError:
        pass
    return True


def _is_table(path: Location) -> bool:
    """Whether there is a table, or something unreadable, which is reported if it is queried."""
    try:
        return is_delta(path)
    except FAULTS as error:
        if store_fault(error):
            raise cannot_open(path, error) from error
        return True


@contextmanager
def _opening(path: Location) -> Iterator[None]:
    try:
        yield
    except (*FAULTS, TablesError) as error:
        if NOT_ALLOWED in str(error):
            raise TablesError(f"this user may not read the table {path}") from error
        if isinstance(error, TablesError):
            raise
        raise cannot_open(path, error) from error


def _register(connection: DuckDBPyConnection, path: Location, at: At) -> int:
    """Make a table available by its name; return its version."""
    with _opening(path):
        table = open_at(path, at)
        files = names_of(table)
    if not files:
        connection.register(path.name, spec_of(path.name, table).schema.empty_table())
    elif rows := files_in_sql(path, files):
        connection.execute(f"CREATE VIEW {_quoted(path.name)} AS SELECT * FROM {rows}")
    else:
        connection.register(path.name, dataset_of(path, table, files))
    return table.version()


if TYPE_CHECKING:
    from duckdb.sqltypes import DuckDBPyType

_NESTED: Final = {"list", "array", "struct", "map"}
_NUMBERS: Final = {
    *("tinyint", "smallint", "integer", "bigint", "hugeint"),
    *("utinyint", "usmallint", "uinteger", "ubigint", "uhugeint"),
    *("float", "double", "decimal", "bignum"),
}
_AS_THEY_ARE: Final = _NUMBERS | {"boolean", "varchar", "blob", "bit", "uuid"}


def is_number(kind: DuckDBPyType) -> bool:
    """Return whether a type is numeric."""
    return kind.id in _NUMBERS


def fetched_as(kind: DuckDBPyType) -> str:
    """Return the SQL type to cast values to before fetching them."""
    if kind.id not in _NESTED:
        return str(kind) if kind.id in _AS_THEY_ARE else "VARCHAR"
    if kind.id == "list":
        return f"{fetched_as(_child(kind, 'child'))}[]"
    if kind.id == "array":
        return f"{fetched_as(_child(kind, 'child'))}[{dict(kind.children)['size']}]"
    if kind.id == "map":
        return f"MAP({fetched_as(_child(kind, 'key'))}, {fetched_as(_child(kind, 'value'))})"
    fields = [f"{_quoted(name or str(i))} {fetched_as(t)}" for i, (name, t) in enumerate(_of(kind))]
    return f"STRUCT({', '.join(fields)})"


def reader_of(kind: DuckDBPyType) -> Callable[[Any], Any]:
    """Return the function that converts a fetched value for JSON (see `show`)."""
    read = _reader(kind)
    return lambda value: None if value is None else read(value)


def _reader(kind: DuckDBPyType) -> Callable[[Any], Any]:
    if str(kind) == "JSON":
        return load_json
    if kind.id == "bignum":
        return int
    if kind.id not in _NESTED:
        return show
    if kind.id in ("list", "array"):
        item = reader_of(_child(kind, "child"))
        return lambda values: [item(value) for value in values]
    if kind.id == "struct":
        fields = [(name, reader_of(child)) for name, child in _of(kind)]
        return lambda value: _struct(fields, value)
    key, item = reader_of(_child(kind, "key")), reader_of(_child(kind, "value"))
    if _child(kind, "key").id in _NESTED:  # not possible as keys of an object
        return lambda value: [
            {"key": key(k), "value": item(v)}
            for k, v in zip(value["key"], value["value"], strict=True)
        ]
    return lambda value: {_name(key(k)): item(v) for k, v in value.items()}


def _of(kind: DuckDBPyType) -> list[tuple[str, DuckDBPyType]]:
    return cast("list[tuple[str, DuckDBPyType]]", kind.children)


def _child(kind: DuckDBPyType, name: str) -> DuckDBPyType:
    """Return the element type of a list or array, or the key or value type of a map."""
    return cast("DuckDBPyType", dict(kind.children)[name])


def _struct(fields: list[tuple[str, Callable[[Any], Any]]], value: Any) -> Any:
    """Convert a struct to an object, or to a list if its fields have no names, as with row()."""
    values = list(value.values() if isinstance(value, dict) else value)
    items = [read(item) for (_, read), item in zip(fields, values, strict=True)]
    if not any(name for name, _ in fields):
        return items
    return dict(zip((name for name, _ in fields), items, strict=True))


def _name(key: Any) -> str:
    return key if isinstance(key, str) else str(show(key))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


_CLOSE_PATIENCE: Final = 1.0
"""Seconds to wait for an interrupted query. DuckDB cannot interrupt an operation on one value, such
as sorting a list."""

T = TypeVar("T")


class Duck:
    """An in-memory DuckDB and its thread."""

    def __init__(self) -> None:
        # By default, DuckDB looks up unknown table names among this program's variables.
        config: dict[str, str | bool | int | float | list[str]] = {
            "python_enable_replacements": False
        }
        self.connection: DuckDBPyConnection = duckdb.connect(config=config)
        self._pool = ThreadPoolExecutor(1, "duckdb")

    def do(self, work: Callable[[], T]) -> T:
        """Call a function in DuckDB's thread.

        Raises:
            KeyboardInterrupt: the main thread was interrupted, and DuckDB with it.
        """
        try:
            return self._pool.submit(work).result()
        except KeyboardInterrupt:
            self.connection.interrupt()
            raise

    def close(self) -> None:
        """Interrupt the query, and close. Waits a moment for DuckDB's threads.

        A process that has to end while DuckDB is still busy must use `os._exit`.
        """
        self.connection.interrupt()
        wait([self._pool.submit(self.connection.close)], _CLOSE_PATIENCE)
        self._pool.shutdown(wait=False)
