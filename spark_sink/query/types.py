"""Converts DuckDB's values to Python's, exactly or as the text that DuckDB writes.

Dates can be infinite or before year 1, times have nanoseconds, and intervals have months, which
Python cannot represent. So these types are cast to text before fetching, also inside nested types.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast

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
