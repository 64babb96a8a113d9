"""DuckDB over the tables, for one query of a client whom nobody trusts.

The query may read the tables and nothing else: DuckDB may open only files in their directory, its
settings are locked, and the statement is one SELECT (`statement`). Memory and threads are bounded,
and it has no temporary files.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Final

import duckdb
import pyarrow as pa
from deltalake import DeltaTable
from duckdb import DuckDBPyConnection

from recon_node.ceramic import StreamId
from spark_sink.query.question import add_functions
from spark_sink.schema import PARTITION_COLUMN, TABLES
from spark_sink.serve import ipc
from spark_sink.serve.statement import FEED, Statement, query_error, understand
from spark_sink.serve.views import CATALOG, CREATE_SCHEMAS, CREATE_VIEWS, MACROS, NAMES, ROWS
from spark_sink.tables.delta import epoch_of, position_of
from spark_sink.tables.delta_files import files_of
from spark_sink.tables.location import is_delta
from spark_sink.tables.versions import open_at

_BATCH_ROWS: Final = 10_000

# Further behind, the tables are not waited for. Seconds between two looks.
_MAX_LAG: Final = 1_000
_POLL: Final = 0.1

#: The values of a statement's parameters by name.
Values = dict[str, Any]


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
    """The tables in a directory, as views that a client's statement can read.

    Raises:
        TablesError: a table cannot be read.
    """

    def __init__(self, directory: Path, *, memory_mb: int, threads: int) -> None:
        self._directory = directory
        self.connection: DuckDBPyConnection = duckdb.connect(
            config={
                # By default, DuckDB looks up unknown table names among this program's variables.
                "python_enable_replacements": False,
                "memory_limit": f"{memory_mb}MB",
                "threads": threads,
                "temp_directory": "",
            }
        )
        for command in CREATE_SCHEMAS:
            self.connection.execute(command)
        add_functions(self.connection)
        self.connection.create_function("stream_id_to_cid", _stream_cid, ["BLOB"], "BLOB")
        for command in MACROS:
            self.connection.execute(command)
        for name in TABLES:
            self.show_rows(name, TABLES[name].schema.empty_table())
            self.show_rows(name + FEED, TABLES[name].schema.empty_table())
        tables = str(directory.resolve()).replace("'", "''")
        for command in (
            *CREATE_VIEWS,
            f"SET allowed_directories = ['{tables}/']",
            "SET enable_external_access = false",
            "SET lock_configuration = true",
        ):
            self.connection.execute(command)

    def understand(self, sql: str) -> Statement:
        """Parse a client's statement.

        Raises:
            RequestError: see `statement.understand`.
        """
        return understand(self.connection, sql)

    def open_tables(self, statement: Statement, wanted: Wanted | None = None) -> None:
        """Open the tables that a statement reads.

        Waits for a moment until they include what is wanted, if they can soon.

        Raises:
            TablesError: a table cannot be read.
        """
        deadline = monotonic() + (wanted.seconds if wanted else 0)
        for name in TABLES:
            if name not in statement.tables:
                continue
            table = self.open(name)
            while wanted and monotonic() < deadline and _is_just_behind(table, wanted):
                time.sleep(_POLL)
                table = self.open(name)
            if table is not None:
                self.show_files(name, files_of(table))

    def open(self, name: str) -> DeltaTable | None:
        """Open the latest version of a table; None if it does not exist yet.

        Raises:
            TablesError: it cannot be read.
        """
        path = self._directory / name
        return open_at(path, None) if is_delta(path) else None

    def schema(self, statement: Statement, values: Values) -> pa.Schema:
        """Return the columns of a statement's answer.

        Raises:
            RequestError: the statement is wrong.
        """
        try:
            described = self._execute(f"DESCRIBE {statement.text}", values).fetchall()
            found = self._execute(f"SELECT * FROM (\n{statement.text}\n) LIMIT 0", values)
            schema = ipc.plain_schema(found.to_arrow_reader().schema)
        except (duckdb.Error, pa.ArrowException) as error:
            raise query_error(error) from error
        return pa.schema(
            [field.with_name(row[0]) for field, row in zip(schema, described, strict=True)]
        )

    def answer(
        self, statement: Statement, values: Values, schema: pa.Schema, limit: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Execute a statement; yield the batches of its answer, with the columns of `schema`.

        Raises:
            RequestError: it fails.
        """
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
            for schema, names in NAMES.items()
            for name in names
        }

    def show_files(self, name: str, files: Sequence[str], where: str = "") -> None:
        """Make Parquet files the rows of a table or a feed; `where` is SQL after its name."""
        if not files:
            self.show_rows(name, TABLES[name.removesuffix(FEED)].schema.empty_table())
            return
        names = ", ".join("'" + file.replace("'", "''") + "'" for file in files)
        self.connection.execute(
            f"CREATE OR REPLACE VIEW {CATALOG}.{ROWS}.{name} AS SELECT * FROM read_parquet("
            f"[{names}], union_by_name=true, hive_partitioning=true, "
            f"hive_types={{'{PARTITION_COLUMN}': INTEGER}}) {where}"
        )

    def show_rows(self, name: str, rows: pa.Table) -> None:
        """Make a table in memory the rows of a table or a feed."""
        self.connection.register(f"arrow_{name}", rows)
        self.connection.execute(
            f"CREATE OR REPLACE VIEW {CATALOG}.{ROWS}.{name} AS SELECT * FROM arrow_{name}"
        )

    def _execute(self, text: str, values: Values) -> DuckDBPyConnection:
        return self.connection.execute(text, values or None)


def _is_just_behind(table: DeltaTable | None, wanted: Wanted) -> bool:
    if table is None:
        return 0 < wanted.position <= _MAX_LAG
    if epoch_of(table) != wanted.epoch:
        return False
    return 0 < wanted.position - position_of(table, wanted.epoch) <= _MAX_LAG


def _stream_cid(stream_id: bytes) -> bytes:
    return bytes(StreamId.from_bytes(stream_id).cid)
