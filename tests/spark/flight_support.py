"""What the tests of `spark-sink serve` share: tables, servers over them, and clients."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from adbc_driver_flightsql import DatabaseOptions
from adbc_driver_flightsql import dbapi as flight_sql
from deltalake import DeltaTable
from pyarrow import flight
from spark_helpers import EPOCH as EPOCH
from spark_helpers import feed_rows, read_on
from spark_samples import TRAP
from support import sdk_sample

from spark_sink.run.pipeline import Sink
from spark_sink.schema import DERIVED, RAW, TABLES
from spark_sink.serve import flight_server
from spark_sink.serve.database import Database
from spark_sink.serve.flight_server import FlightMetrics, FlightServer
from spark_sink.serve.query_turns import QueryLimits, QueryWorkers
from spark_sink.tables.delta_log import query
from spark_sink.tables.location import Location
from spark_sink.tables.tables import Tables


def rows_of_scenario(more: int = 0) -> pa.Table:
    """The feed of all traps, and of so many events of the sample."""
    return feed_rows([*TRAP.events, *sdk_sample.events()[:more]], TRAP.times)


def fill(directory: Location, rows: pa.Table, names: Iterable[str] = DERIVED) -> None:
    """Bring these tables, and raw_events, to the end of these rows of the feed."""
    sink = Sink(Tables(directory, EPOCH, [name for name in names if name != RAW]))
    read_on(sink, rows.slice(sink.tables.raw_position))


def in_table(directory: Location, name: str) -> list[dict[str, Any]]:
    """The rows of a table by another engine, in their order."""
    table = query(DeltaTable(str(directory / name)), "SELECT * FROM t")
    rows: list[dict[str, Any]] = table.sort_by(TABLES[name].order).to_pylist()
    return rows


class ServersWorkers(QueryWorkers):
    """Forked from one process for all servers: a process of its own takes each a second to start.

    Requests to the process name everything but the variables of the environment.
    """

    def _start_parent(self) -> None:
        if self._control is not None:
            self._control.close()
        shared = _shared_parent()._control
        self._control = shared.dup()


@cache
def _shared_parent() -> QueryWorkers:
    return QueryWorkers(Path(), QueryLimits())


@contextmanager
def served(
    directory: Location,
    limits: QueryLimits | None = None,
    metrics: FlightMetrics | None = None,
    *,
    workers: type[QueryWorkers] = ServersWorkers,
    **settings: Any,
) -> Iterator[str]:
    """Serve tables during the block; yields the URL."""
    limits = limits or QueryLimits()
    address = settings.pop("address", "127.0.0.1:0")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flight_server, "QueryWorkers", workers)
        measured = metrics or FlightMetrics(limits)
        server = FlightServer(directory, address, limits, measured, **settings)
    try:
        yield server.url
    finally:
        server.stop()


@contextmanager
def connected(url: str, token: str | None = None, **options: str) -> Iterator[Any]:
    """Connect to a server by ADBC, another implementation of Flight SQL, during the block."""
    if token is not None:
        options[DatabaseOptions.AUTHORIZATION_HEADER.value] = f"Bearer {token}"
    with flight_sql.connect(url, db_kwargs=options, autocommit=True) as connection:
        yield connection


def asked(connection: Any, sql: str, parameters: Any = None) -> pa.Table:
    """The answer to a query."""
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        table: pa.Table = cursor.fetch_arrow_table()
        return table


def answered(database: Database, sql: str) -> pa.Table:
    """The answer of a worker to a query, without a process, a server and a client."""
    statement = database.understand(sql)
    schema = database.schema(statement, {})
    database.open_tables(statement)
    return pa.Table.from_batches(database.answer(statement, {}, schema), schema)


@contextmanager
def following(connection: Any, sql: str, parameters: Any = None) -> Iterator[Iterator[Any]]:
    """Follow a feed during the block; yields its rows."""
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        yield (row for batch in cursor.fetch_record_batch() for row in batch.to_pylist())
        cursor.adbc_cancel()


@contextmanager
def raw_client(url: str) -> Iterator[flight.FlightClient]:
    """Connect to a server by Flight alone, during the block."""
    with flight.FlightClient(url) as client:
        yield client
