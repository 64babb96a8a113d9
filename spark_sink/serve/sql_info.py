"""What the server says about itself and its SQL, by the numbers of `SqlInfo` in FlightSql.proto.

The JDBC driver asks for everything at once, and fails with a null pointer in those methods of its
`DatabaseMetaData` whose number has no value. So each that it reads has one here.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import duckdb
import pyarrow as pa

from recon_node import __version__

#: Characters of a statement.
MAX_SQL: Final = 100_000

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
# Sets of the numbers in an enumeration, each as a bit.
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


def sql_info(wanted: list[int]) -> pa.Table:
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
