"""DuckDB over the tables, for one query of a client whom nobody trusts.

The query may read the tables and nothing else: DuckDB may open only files in their directory (none
if they are in an object store, which Arrow reads), its settings are locked, and the statement is
one SELECT (`statement`). Memory and threads are bounded, and it has no temporary files.

The tables that clients see are ceramic-one's, and the pipeline's own:

| schema | its tables |
|---|---|
| `v0`, the default | those of ceramic-one's Flight SQL server, with its columns and types |
| `tables` | those of docs/tables.md |
| `views` | the typed views of models |

Each table has a feed beside it, `NAME_feed`. All are views of the rows in schema `rows`, which has
the pipeline's tables as they are on disk.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Final

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable
from duckdb import DuckDBPyConnection

from recon_node.ceramic import StreamId
from spark_sink import ipc
from spark_sink.functions import FUNCTIONS, register_duckdb_functions
from spark_sink.query.dataset import dataset_of, files_in_sql
from spark_sink.schema import PARTITION_COLUMN, RAW, TABLES
from spark_sink.serve.allowed import Allowed
from spark_sink.serve.statement import FEED, SqlStatement, query_error, understand
from spark_sink.tables.catalog import VIEWS, open_view, path_of, view_names
from spark_sink.tables.delta_log import names_of, position_of, reading_of
from spark_sink.tables.location import Location, find_delta_table, has_literal_path
from spark_sink.tables.retention import held

CATALOG: Final = "ceramic"
"""The only catalog, as ceramic-one names it."""
V0: Final = "v0"
"""The schema of ceramic-one's tables."""
OWN: Final = "tables"
"""The schema of the pipeline's tables."""
TYPED: Final = VIEWS
"""The schema of the typed views of models."""
_ROWS: Final = "rows"
"""The schema that the views read."""

_STREAM: Final = "stream_cid, CAST(stream_type AS UTINYINT) AS stream_type, controller, dimensions"
# ceramic-one distinguishes only time events (1) from all others (0).
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

NAMES: Final = {
    V0: tuple(f"{name}{end}" for name in _SELECTED for end in ("", FEED)),
    OWN: tuple(f"{name}{end}" for name in TABLES for end in ("", FEED)),
}
"""The tables by schema, without those of models."""
_CREATE_SCHEMAS: Final = (
    f"ATTACH ':memory:' AS {CATALOG}",
    *(f"CREATE SCHEMA {CATALOG}.{schema}" for schema in (V0, OWN, TYPED, _ROWS)),
    f"USE {CATALOG}.{V0}",
)
"""Statements that make the schemas; the tables in `_ROWS` must exist before `_create_views`."""
_PARTITION_LAST: Final = f"* EXCLUDE ({PARTITION_COLUMN}), {PARTITION_COLUMN}"
_MACROS: Final = (
    "CREATE MACRO text_of(v BLOB) AS decode(v), (v) AS CAST(v AS VARCHAR)",
    "CREATE MACRO empty(v) AS len(v) = 0",
    "CREATE MACRO arrow_cast(v, t) AS v",
    "CREATE MACRO dimension_extract(v, k) AS v[k]",
    "CREATE MACRO array_cid_string(v) AS list_transform(v, lambda c: cid_string(c))",
    "CREATE MACRO array_stream_id_string(v) AS list_transform(v, lambda c: stream_id_string(c))",
)
"""Functions of ceramic-one's SQL that DuckDB lacks."""
_OWN_FUNCTIONS: Final = {
    "is_dag",
    "sha256a",
    "stream_id_to_cid",
    *(function.name for function in FUNCTIONS),
    *(macro.split()[2].partition("(")[0] for macro in _MACROS),
}
_NAMES: Final = frozenset(
    (schema, name) for schema, names in (*NAMES.items(), ("", NAMES[V0])) for name in names
)

_BATCH_ROWS: Final = 10_000
_MAX_LAG: Final = 1_000
"""Events by which the tables may be behind to be waited for."""
_POLL: Final = 0.1
"""Seconds between two looks at the tables."""

Values = dict[str, Any]
"""The values of a statement's parameters by name."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the tables should include: the feed of a node, as it was when the query came.

    Attributes:
        epoch: of the node's log.
        position: the end of its feed.
        seconds: for which the query waits at most.
    """

    epoch: str
    position: int
    seconds: float


class Database:
    """The tables at a location, as views that a client's statement can read.

    Its methods raise `TablesError` if a table cannot be read, and `RequestError` if a statement is
    wrong or fails.

    Attributes:
        specs: what the tables are like, by name.
        location: where they are.
    """

    def __init__(self, location: Location, *, memory_mb: int, threads: int) -> None:
        self.location = location
        self._holds = ExitStack()  # until the process ends, which answers one request
        self.connection: DuckDBPyConnection = duckdb.connect(
            config={
                # By default, DuckDB looks up unknown table names among this program's variables.
                "python_enable_replacements": False,
                "memory_limit": f"{memory_mb}MB",
                "threads": threads,
                "temp_directory": "",
            }
        )
        for command in _CREATE_SCHEMAS:
            self.connection.execute(command)
        register_duckdb_functions(self.connection)
        self.connection.create_function("stream_id_to_cid", _stream_cid, ["BLOB"], "BLOB")
        for command in _MACROS:
            self.connection.execute(command)
        typed = view_names(location)
        self.specs = TABLES | {name: open_view(location, name)[0] for name in typed}
        for name, spec in self.specs.items():
            self.show_rows(name, spec.schema.empty_table())
            self.show_rows(name + FEED, spec.schema.empty_table())
        self._names = {TYPED: tuple(name + end for name in typed for end in ("", FEED))}
        own = {(TYPED, name) for name in self._names[TYPED]}
        self._allowed = Allowed(CATALOG, _NAMES | own, _OWN_FUNCTIONS)
        for command in (
            *_create_views(typed),
            f"SET allowed_directories = [{_quoted(location)}]",
            "SET enable_external_access = false",
            "SET lock_configuration = true",
        ):
            self.connection.execute(command)

    @property
    def is_local(self) -> bool:
        """Whether the tables are in a directory rather than in an object store."""
        return isinstance(self.location, Path)

    def understand(self, sql: str) -> SqlStatement:
        """Parse a client's statement."""
        return understand(self.connection, sql, self._allowed)

    def open_tables(self, statement: SqlStatement, wanted: Wanted | None = None) -> None:
        """Open the tables that a statement reads.

        Waits for a moment until they include what is wanted, if they can soon.
        """
        deadline = monotonic() + (wanted.seconds if wanted else 0)
        goal = self._goal(wanted) if wanted else None
        for name in self.specs:
            if name not in statement.tables:
                continue
            table = self.open(name)
            while goal and monotonic() < deadline and _is_just_behind(table, goal):
                time.sleep(_POLL)
                table = self.open(name)
            if table is not None:
                self._holds.enter_context(self.held(table))
                self.show_files(name, table, names_of(table))

    def held(self, table: DeltaTable) -> AbstractContextManager[Callable[[int], None]]:
        """Keep a version of a table readable; see `retention.held`."""
        name = str(table.metadata().name)
        return held(path_of(self.location, name), table.version())

    def _goal(self, wanted: Wanted) -> int | None:
        """Return the position of tables with what is wanted; None if they follow another log."""
        raw = self.open(RAW)
        if raw is None:
            return wanted.position
        reading = reading_of(raw)
        if reading.epoch != wanted.epoch:
            return None
        return position_of(raw) + wanted.position - reading.position

    def open(self, name: str) -> DeltaTable | None:
        """Open the latest version of a table; None if it does not exist yet."""
        return find_delta_table(path_of(self.location, name))

    def schema(self, statement: SqlStatement, values: Values) -> pa.Schema:
        """Return the columns of a statement's answer."""
        try:
            described = self._execute(f"DESCRIBE {statement.text}", values).fetchall()
            relation = self._execute(f"SELECT * FROM (\n{statement.text}\n) LIMIT 0", values)
            schema = ipc.plain_schema(relation.to_arrow_reader().schema)
        except (duckdb.Error, pa.ArrowException) as error:
            raise query_error(error) from error
        return pa.schema(
            [field.with_name(row[0]) for field, row in zip(schema, described, strict=True)]
        )

    def answer(
        self, statement: SqlStatement, values: Values, schema: pa.Schema, limit: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Execute a statement; yield the batches of its answer, with the columns of `schema`."""
        text = statement.text
        if limit is not None:
            text = f"SELECT * FROM (\n{text}\n) LIMIT {limit}"
        try:
            for batch in self._execute(text, values).to_arrow_reader(_BATCH_ROWS):
                yield from ipc.pieces(ipc.plain(batch, schema))
        except (duckdb.Error, pa.ArrowException) as error:
            raise query_error(error) from error

    def table_schemas(self) -> dict[tuple[str, str], pa.Schema]:
        """Return the columns of all tables, by schema and name."""
        return {
            (schema, name): self.connection.execute(f"SELECT * FROM {CATALOG}.{schema}.{name}")
            .to_arrow_reader()
            .schema
            for schema, names in (NAMES | self._names).items()
            for name in names
        }

    def show_files(
        self, name: str, table: DeltaTable, files: Sequence[str], where: str = ""
    ) -> None:
        """Make files of a table its rows, or those of its feed; `where` is SQL after its name."""
        path = path_of(self.location, name.removesuffix(FEED))
        if not files:
            self.show_rows(name, self.specs[path.name].schema.empty_table())
        elif rows := files_in_sql(path, files):
            self._show(name, f"{rows} {where}")
        else:
            self.show_rows(name, dataset_of(path, table, files), where)

    def show_rows(self, name: str, rows: pa.Table | ds.Dataset, where: str = "") -> None:
        """Make a table or a dataset of Arrow's the rows of a table or a feed."""
        self.connection.register(f"arrow_{name}", rows)
        self._show(name, f"arrow_{name} {where}")

    def _show(self, name: str, source: str) -> None:
        self.connection.execute(
            f"CREATE OR REPLACE VIEW {CATALOG}.{_ROWS}.{name} AS SELECT * FROM {source}"
        )

    def _execute(self, text: str, values: Values) -> DuckDBPyConnection:
        return self.connection.execute(text, values or None)


def _create_views(typed: Iterable[str]) -> Iterator[str]:
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
                    f"FROM {CATALOG}.{_ROWS}.{name}{end}"
                )


def _quoted(location: Location) -> str:
    """Return the directory that DuckDB may read, for SQL; empty for an object store."""
    if not isinstance(location, Path) or not has_literal_path(location):
        return ""
    return "'" + str(location.resolve()).replace("'", "''") + "/'"


def _is_just_behind(table: DeltaTable | None, goal: int) -> bool:
    position = 0 if table is None else position_of(table)
    return 0 < goal - position <= _MAX_LAG


def _stream_cid(stream_id: bytes) -> bytes:
    return bytes(StreamId.from_bytes(stream_id).cid)
