"""The tables that clients see: ceramic-one's, and the pipeline's own.

| schema | its tables |
|---|---|
| `v0`, the default | those of ceramic-one's Flight SQL server, with its columns and types |
| `tables` | those of docs/tables.md |
| `views` | the typed views of models |

Each table has a feed beside it, `NAME_feed`. All are views of the rows in schema `rows`, which has
the pipeline's tables as they are on disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from spark_sink.schema import PARTITION_COLUMN, TABLES
from spark_sink.serve.statement import FEED
from spark_sink.tables.catalog import VIEWS

#: The only catalog, as ceramic-one names it.
CATALOG: Final = "ceramic"
#: The schema of ceramic-one's tables.
V0: Final = "v0"
#: The schema of the pipeline's tables.
OWN: Final = "tables"
#: The schema of the typed views of models.
TYPED: Final = VIEWS
#: The schema that the views read.
ROWS: Final = "rows"

_STREAM: Final = "stream_cid, CAST(stream_type AS UTINYINT) AS stream_type, controller, dimensions"
# ceramic-one tells only time events (1) from all others (0).
_EVENT: Final = "event_cid, CAST(event_type = 'time' AS UTINYINT) AS event_type"
_TIME: Final = "CAST(before AS UBIGINT) AS before, chain_id"


def _order(name: str, column: str = "conclusion_event_order") -> str:
    return f"CAST({column} AS UBIGINT) AS {name}"


_HEIGHT: Final = "CAST(event_height AS UINTEGER) AS event_height"
# ceramic-one numbers the rows of each table. Here a table advances in atomic steps, and a row's
# number is the position of the event that it is computed up to.
_SELECTED: Final = {
    "conclusion_events": (
        f"{_order('conclusion_event_order')}, {_STREAM}, {_EVENT}, data, previous, {_TIME}"
    ),
    "event_states": (
        f"{_order('conclusion_event_order')}, {_order('event_state_order')}, {_STREAM}, {_EVENT}, "
        f"{_HEIGHT}, data, validation_errors, {_TIME}"
    ),
    "stream_tips": (
        f"{_order('event_state_order', 'position')}, {_order('stream_tip_order', 'position')}, "
        f"{_STREAM}, tips"
    ),
    "stream_states": (
        f"{_order('stream_tip_order', 'position')}, {_order('stream_state_order', 'position')}, "
        f"{_STREAM}, {_EVENT}, {_HEIGHT}, data"
    ),
}

#: The tables by schema, without those of models.
NAMES: Final = {
    V0: tuple(f"{name}{end}" for name in _SELECTED for end in ("", FEED)),
    OWN: tuple(f"{name}{end}" for name in TABLES for end in ("", FEED)),
}

#: Makes the schemas; the tables in `ROWS` must exist before `create_views`.
CREATE_SCHEMAS: Final = (
    f"ATTACH ':memory:' AS {CATALOG}",
    *(f"CREATE SCHEMA {CATALOG}.{schema}" for schema in (V0, OWN, TYPED, ROWS)),
    f"USE {CATALOG}.{V0}",
)
_PARTITION_LAST: Final = f"* EXCLUDE ({PARTITION_COLUMN}), {PARTITION_COLUMN}"


def create_views(typed: Iterable[str]) -> Iterator[str]:
    """Return the statements that make the tables, with the views of models of these names."""
    for schema, selected in (
        (V0, _SELECTED),
        (OWN, dict.fromkeys(TABLES, _PARTITION_LAST)),
        (TYPED, dict.fromkeys(typed, _PARTITION_LAST)),
    ):
        for name, columns in selected.items():
            for end in ("", FEED):
                yield (
                    f"CREATE VIEW {CATALOG}.{schema}.{name}{end} AS SELECT {columns} "
                    f"FROM {CATALOG}.{ROWS}.{name}{end}"
                )


#: Functions of ceramic-one's SQL that DuckDB lacks.
MACROS: Final = (
    "CREATE MACRO text_of(v BLOB) AS decode(v), (v) AS CAST(v AS VARCHAR)",
    "CREATE MACRO empty(v) AS len(v) = 0",
    "CREATE MACRO arrow_cast(v, t) AS v",
    "CREATE MACRO dimension_extract(v, k) AS v[k]",
    "CREATE MACRO array_cid_string(v) AS list_transform(v, lambda c: cid_string(c))",
    "CREATE MACRO array_stream_id_string(v) AS list_transform(v, lambda c: stream_id_string(c))",
)
MACRO_NAMES: Final = tuple(macro.split()[2].partition("(")[0] for macro in MACROS)
