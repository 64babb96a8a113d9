"""What Flight SQL clients ask about the server itself: catalogs, schemas, tables, types.

The columns of the answers are those that `FlightSql.proto` documents for each command.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import pyarrow as pa

from spark_sink.schema import TABLES
from spark_sink.serve.flight_messages import Message, name_of
from spark_sink.serve.shown_tables import CATALOG, OWN, TYPED, V0
from spark_sink.serve.sql_info import sql_info
from spark_sink.serve.statement import FEED

#: The columns of all tables, by schema and name, as Arrow writes them.
TableSchemas = Mapping[tuple[str, str], bytes]

_KEY_OF_VIEWS: Final = "stream_cid"
_TABLE: Final = "TABLE"
_VIEW: Final = "VIEW"


def _field(name: str, kind: pa.DataType | None = None, nullable: bool = False) -> pa.Field:
    return pa.field(name, pa.string() if kind is None else kind, nullable=nullable)


_CATALOGS: Final = pa.schema([_field("catalog_name")])
_SCHEMAS: Final = pa.schema([_field("catalog_name", nullable=True), _field("db_schema_name")])
_TABLES: Final = pa.schema(
    [
        _field("catalog_name", nullable=True),
        _field("db_schema_name", nullable=True),
        _field("table_name"),
        _field("table_type"),
    ]
)
_TABLES_AND_COLUMNS: Final = _TABLES.append(_field("table_schema", pa.binary()))
_TABLE_TYPES: Final = pa.schema([_field("table_type")])
_PRIMARY_KEYS: Final = pa.schema(
    [
        _field("catalog_name", nullable=True),
        _field("db_schema_name", nullable=True),
        _field("table_name"),
        _field("column_name"),
        _field("key_name", nullable=True),
        _field("key_sequence", pa.int32()),
    ]
)
_KEY_REFERENCES: Final = pa.schema(
    [
        *(
            _field(f"{side}_{name}", nullable=name.startswith(("catalog", "db_schema")))
            for side in ("pk", "fk")
            for name in ("catalog_name", "db_schema_name", "table_name", "column_name")
        ),
        _field("key_sequence", pa.int32()),
        _field("fk_key_name", nullable=True),
        _field("pk_key_name", nullable=True),
        _field("update_rule", pa.uint8()),
        _field("delete_rule", pa.uint8()),
    ]
)
_XDBC_TYPES: Final = pa.schema(
    [
        _field("type_name"),
        _field("data_type", pa.int32()),
        _field("column_size", pa.int32(), True),
        _field("literal_prefix", nullable=True),
        _field("literal_suffix", nullable=True),
        _field("create_params", pa.list_(_field("item")), True),
        _field("nullable", pa.int32()),
        _field("case_sensitive", pa.bool_()),
        _field("searchable", pa.int32()),
        _field("unsigned_attribute", pa.bool_(), True),
        _field("fixed_prec_scale", pa.bool_()),
        _field("auto_increment", pa.bool_(), True),
        _field("local_type_name", nullable=True),
        _field("minimum_scale", pa.int32(), True),
        _field("maximum_scale", pa.int32(), True),
        _field("sql_data_type", pa.int32()),
        _field("datetime_subcode", pa.int32(), True),
        _field("num_prec_radix", pa.int32(), True),
        _field("interval_precision", pa.int32(), True),
    ]
)
# Type, its number in XDBC, and its size in digits or bits.
_XDBC: Final = (
    ("BOOLEAN", -7, 1),
    ("UTINYINT", -6, 3),
    ("UINTEGER", 4, 10),
    ("UBIGINT", -5, 20),
    ("INTEGER", 4, 10),
    ("BIGINT", -5, 19),
    ("DOUBLE", 8, 53),
    ("VARCHAR", 12, None),
    ("BLOB", -3, None),
)


def answer(command: Message, schemas: Callable[[], TableSchemas]) -> pa.Table | None:
    """Answer a command about the server; None if it is not one.

    Args:
        command: any command of Flight SQL.
        schemas: returns the columns of the tables; called only if the answer is about tables.
    """
    name = name_of(command)
    if name == "CommandGetCatalogs":
        return _table(_CATALOGS, [{"catalog_name": CATALOG}])
    if name == "CommandGetDbSchemas":
        return _table(_SCHEMAS, _schemas(command))
    if name == "CommandGetTables":
        columns = _TABLES_AND_COLUMNS if command.include_schema else _TABLES
        return _table(columns, _tables(command, schemas()))
    if name == "CommandGetTableTypes":
        return _table(_TABLE_TYPES, [{"table_type": kind} for kind in (_TABLE, _VIEW)])
    if name == "CommandGetSqlInfo":
        return sql_info(list(command.info))
    if name == "CommandGetXdbcTypeInfo":
        return _xdbc_types(command.data_type if command.HasField("data_type") else None)
    if name == "CommandGetPrimaryKeys":
        return _table(_PRIMARY_KEYS, _primary_keys(command, schemas()))
    if name in ("CommandGetExportedKeys", "CommandGetImportedKeys", "CommandGetCrossReference"):
        return _KEY_REFERENCES.empty_table()
    return None


def _table(schema: pa.Schema, rows: Iterable[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=schema)


def _schemas(command: Message) -> list[dict[str, Any]]:
    """Return the schemas that a command asks for, as rows."""
    if command.HasField("catalog") and command.catalog != CATALOG:
        return []
    pattern = _pattern(command, "db_schema_filter_pattern")
    names = (V0, OWN, TYPED)
    return [{"catalog_name": CATALOG, "db_schema_name": n} for n in names if pattern.fullmatch(n)]


def _tables(command: Message, schemas: TableSchemas) -> list[dict[str, Any]]:
    """Return the tables that a command asks for, as rows."""
    pattern = _pattern(command, "table_name_filter_pattern")
    rows = []
    for schema in _schemas(command):
        for of, name in schemas:
            if of != schema["db_schema_name"]:
                continue
            kind = _VIEW if name.endswith(FEED) else _TABLE
            if not pattern.fullmatch(name) or (
                command.table_types and kind not in command.table_types
            ):
                continue
            row = {**schema, "table_name": name, "table_type": kind}
            if command.include_schema:
                row["table_schema"] = schemas[schema["db_schema_name"], name]
            rows.append(row)
    return rows


def _pattern(command: Message, field: str) -> re.Pattern[str]:
    """Return a filter of SQL, with % and _, as a regular expression; everything if it is unset."""
    text = getattr(command, field) if command.HasField(field) else "%"
    parts = re.findall(r"\\.|.", text, re.DOTALL)
    wild = {"%": ".*", "_": "."}
    return re.compile("".join(wild.get(part) or re.escape(part[-1]) for part in parts), re.DOTALL)


def _primary_keys(command: Message, schemas: TableSchemas) -> list[dict[str, Any]]:
    """Return the primary key of a table, as rows."""
    found = [
        (schema, name)
        for schema, name in schemas
        if name == command.table
        and command.catalog in ("", CATALOG)
        and command.db_schema in ("", schema)
        and not name.endswith(FEED)
    ]
    return [
        {
            "catalog_name": CATALOG,
            "db_schema_name": schema,
            "table_name": name,
            "column_name": TABLES[name].key if name in TABLES else _KEY_OF_VIEWS,
            "key_sequence": 1,
        }
        for schema, name in found
    ]


def _xdbc_types(wanted: int | None) -> pa.Table:
    rows = [
        {
            "type_name": name,
            "data_type": number,
            "column_size": size,
            "literal_prefix": "'" if size is None else None,
            "literal_suffix": "'" if size is None else None,
            "nullable": 1,
            "case_sensitive": name == "VARCHAR",
            "searchable": 3,
            "unsigned_attribute": name.startswith("U"),
            "fixed_prec_scale": False,
            "sql_data_type": number,
        }
        for name, number, size in _XDBC
        if wanted in (None, number)
    ]
    return _table(_XDBC_TYPES, rows)
