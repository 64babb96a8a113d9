"""DuckDB in its own thread, so that Ctrl-C ends it at once; and its values as Python's.

Values are converted exactly, or to the text that DuckDB writes. Dates can be infinite or before
year 1, times have nanoseconds, and intervals have months, which Python cannot represent. So these
types are cast to text before fetching, also inside nested types.

Python handles signals only in its main thread, and only when DuckDB returns to Python, which can
take half a minute. So DuckDB runs in another thread, while the main thread waits and can interrupt
it: DuckDB checks for that every few thousand rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import duckdb
from duckdb import DuckDBPyConnection

from spark_sink.query.show import load_json, show

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
    """Return the names and types of a struct's fields."""
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


# Seconds to wait for an interrupted query. DuckDB cannot interrupt an operation on one value,
# such as sorting a list.
_CLOSE_PATIENCE: Final = 1.0

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


@contextmanager
def opened() -> Iterator[Duck]:
    """Provide a DuckDB for the block."""
    duck = Duck()
    try:
        yield duck
    finally:
        duck.close()
