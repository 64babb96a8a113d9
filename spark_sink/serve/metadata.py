"""What Flight SQL clients ask about the server itself: catalogs, schemas, tables, types.

The columns of the answers are those that `FlightSql.proto` documents for each command, and the
numbers of what it says about its SQL those of `SqlInfo` there. The JDBC driver asks for all of
these at once, and fails with a null pointer in those methods of its `DatabaseMetaData` whose number
has no value. So each that it reads has one here.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, Final

import duckdb
import pyarrow as pa

from recon_node import __version__
from spark_sink.errors import invalid_request
from spark_sink.schema import TABLES, schema_of
from spark_sink.serve.database import CATALOG, OWN, TYPED, V0
from spark_sink.serve.flight_messages import Message, name_of
from spark_sink.serve.statement import FEED

TableSchemas = Mapping[tuple[str, str], bytes]
"""The columns of all tables, by schema and name, as Arrow writes them."""

_TABLE: Final = "TABLE"
_VIEW: Final = "VIEW"


_CATALOGS: Final = schema_of("catalog_name")
_SCHEMAS: Final = schema_of("catalog_name? db_schema_name")
_TABLES: Final = schema_of("catalog_name? db_schema_name? table_name table_type")
_TABLES_AND_COLUMNS: Final = pa.schema([*_TABLES, *schema_of("table_schema:binary")])
_TABLE_TYPES: Final = schema_of("table_type")
_PRIMARY_KEYS: Final = schema_of(
    "catalog_name? db_schema_name? table_name column_name key_name? key_sequence:int32"
)
_KEY_REFERENCES: Final = schema_of(
    "pk_catalog_name? pk_db_schema_name? pk_table_name pk_column_name "
    "fk_catalog_name? fk_db_schema_name? fk_table_name fk_column_name "
    "key_sequence:int32 fk_key_name? pk_key_name? update_rule:uint8 delete_rule:uint8"
)
_XDBC_TYPES: Final = schema_of(
    "type_name data_type:int32 column_size:int32? literal_prefix? literal_suffix? "
    "create_params:texts? nullable:int32 case_sensitive:bool searchable:int32 "
    "unsigned_attribute:bool? fixed_prec_scale:bool auto_increment:bool? local_type_name? "
    "minimum_scale:int32? maximum_scale:int32? sql_data_type:int32 datetime_subcode:int32? "
    "num_prec_radix:int32? interval_precision:int32?",
    texts=pa.list_(pa.field("item", pa.string(), nullable=False)),
)
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
"""Type, its number in XDBC, and its size in digits or bits."""


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
        return _sql_info(list(command.info))
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
    if command.HasField("catalog") and command.catalog != CATALOG:
        return []
    pattern = _pattern(command, "db_schema_filter_pattern")
    names = (V0, OWN, TYPED)
    return [{"catalog_name": CATALOG, "db_schema_name": n} for n in names if pattern.fullmatch(n)]


def _tables(command: Message, schemas: TableSchemas) -> list[dict[str, Any]]:
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
    """Return a filter of SQL, with % and _, as a regular expression; everything if it is unset.

    Each % that is followed by other text ends at the first place where that text matches, and never
    tries another one: a filter with many of them would keep this process busy for years.
    """
    text = getattr(command, field) if command.HasField(field) else "%"
    if len(text) > _MAX_FILTER:
        raise invalid_request(f"a filter has at most {_MAX_FILTER} characters, not {len(text)}")
    parts = [""]
    for part in re.findall(r"\\.|.", text, re.DOTALL):
        if part == "%":
            parts.append("")
        else:
            parts[-1] += "." if part == "_" else re.escape(part[-1])
    first, *middle = parts
    last = [f".*{middle.pop()}"] if middle else []
    return re.compile("".join([first, *(f"(?>.*?{part})" for part in middle), *last]), re.DOTALL)


def _primary_keys(command: Message, schemas: TableSchemas) -> list[dict[str, Any]]:
    tables = [
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
            "column_name": TABLES[name].key if name in TABLES else "stream_cid",
            "key_sequence": 1,
        }
        for schema, name in tables
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


MAX_SQL: Final = 100_000
"""Characters of a statement."""
_MAX_FILTER: Final = 1_000
"""Characters of a filter."""

_TEXTS: Final = {
    0: "spark-sink",
    1: __version__,
    2: pa.__version__,
    504: '"',  # quotes identifiers
    513: "\\",  # escapes % and _ in the patterns of metadata
    514: "",  # further characters of identifiers
    529: "schema",
    530: "procedure",
    531: "catalog",
}
_FLAGS: Final = {
    3: True,  # read-only
    4: True,  # answers SQL
    5: False,  # Substrait
    9: False,  # cancels by an action; a call that is cancelled ends its query
    500: False,  # no CREATE or DROP of catalogs,
    501: False,  # schemas
    502: False,  # or tables
    506: True,  # all tables can be read
    515: True,  # aliases of columns
    516: True,  # NULL || 'a' is NULL
    518: True,  # aliases of tables
    519: False,  # which must not differ from the tables' names
    520: True,  # expressions in ORDER BY
    521: True,  # ORDER BY what is not selected
    523: True,  # LIKE ... ESCAPE
    524: False,  # columns that are NOT NULL
    527: False,  # constraints
    532: True,  # the catalog is the first part of a table's name
    536: False,  # SELECT ... FOR UPDATE
    537: False,  # stored procedures
    539: True,  # correlated subqueries
    556: False,  # the maximum size of a row includes its BLOBs
    563: False,  # transactions
    565: False,  # CREATE and DROP end them
    566: False,  # or are ignored in them
    572: False,  # batches of updates
    573: False,  # savepoints
    574: False,  # named parameters of procedures
    575: False,  # updates of a BLOB are made to a copy
    576: False,  # functions are called as procedures
}
# Most are limits, of which 0 says that there is none, or that it is not known.
_NUMBERS: Final = {
    **dict.fromkeys([*range(541, 556), *range(558, 562)], 0),
    557: MAX_SQL,
    562: 0,  # isolation of transactions: none
}
_BITS: Final = {
    8: 0,  # transactions: none
    522: 0b11,  # GROUP BY of columns that are not selected, or more than those
    525: 0b11,  # ODBC's grammar: minimum and core
    526: 0b1,  # SQL-92: entry level
    528: 0b110,  # outer joins: limited, full; a number in the proto, a set for all that read it
    533: 0,  # schemas and
    534: 0,  # catalogs in calls of procedures and definitions
    535: 0,  # UPDATE and DELETE of the row at a cursor
    538: 0b1111,  # subqueries in comparisons, EXISTS, IN and quantified ones
    540: 0b11,  # UNION and UNION ALL
    564: 0b1,  # isolation of transactions: none
    567: 0b10,  # answers are read forwards only
}
"""Sets of the numbers in an enumeration, each as a bit."""
_KEYWORDS: Final = 508
_CONVERT: Final = 517

_TYPES: Final = (
    pa.field("string_value", pa.string()),
    pa.field("bool_value", pa.bool_()),
    pa.field("bigint_value", pa.int64()),
    pa.field("int32_bitmask", pa.int32()),
    pa.field("string_list", pa.list_(pa.string())),
    pa.field("int32_to_int32_list_map", pa.map_(pa.int32(), pa.list_(pa.int32()))),
)
_SCHEMA: Final = pa.schema(
    [
        pa.field("info_name", pa.uint32(), nullable=False),
        pa.field("value", pa.dense_union(_TYPES)),
    ]
)


@cache
def _values() -> tuple[Mapping[int, Any], ...]:
    """Return all values by number, for each type of them."""
    keywords = duckdb.execute(
        "SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category = 'reserved'"
    ).fetchall()
    lists = {_KEYWORDS: [name for (name,) in keywords]}
    # The function CONVERT of ODBC and JDBC does not exist; CAST does.
    return _TEXTS, _FLAGS, _NUMBERS, _BITS, lists, {_CONVERT: []}


def _sql_info(wanted: list[int]) -> pa.Table:
    """Return what clients ask about the server; everything if they ask for nothing special."""
    names: list[int] = []
    kinds: list[int] = []
    offsets: list[int] = []
    children: list[pa.Array] = []
    for kind, (field, known) in enumerate(zip(_TYPES, _values(), strict=True)):
        chosen = [number for number in known if not wanted or number in wanted]
        names += chosen
        kinds += [kind] * len(chosen)
        offsets += range(len(chosen))
        children.append(pa.array([known[number] for number in chosen], field.type))
    union = pa.UnionArray.from_dense(
        pa.array(kinds, pa.int8()),
        pa.array(offsets, pa.int32()),
        children,
        [field.name for field in _TYPES],
    )
    return pa.Table.from_arrays([pa.array(names, pa.uint32()), union], schema=_SCHEMA)
