"""A process for each query, so that no query can harm the server or another query.

The server starts one process, the *parent of the workers*, which has imported everything. For each
query it forks: the child answers the query on a socket that it was given, and ends. It may use so
much memory, it may take so much time, and it cannot write files: the operating system sees to that.
It also ends as soon as the server closes the socket, because the client is gone.

The answer is a sequence of frames: a kind, the lengths of two parts, and the parts.

| kind | parts |
|---|---|
| data | header and body of an Arrow message; the first one has the schema |
| plan | a pickled `StatementPlan` |
| error | a code, and a text for the client |
| end | empty |
"""

import os
import pickle
import resource
import signal
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal

import pyarrow as pa

from recon_node.base.program import limit
from spark_sink import ipc
from spark_sink.errors import RequestError, SinkError, invalid_request, one_line
from spark_sink.serve.database import Database, Wanted
from spark_sink.serve.served_feed import ServedFeed
from spark_sink.serve.statement import FEED, SqlStatement
from spark_sink.tables.location import Location

DATA: Final = 1
PLAN: Final = 2
ERROR: Final = 3
END: Final = 4
FRAME: Final = struct.Struct(">BIQ")
"""The head of a frame: its kind, and the lengths of both parts."""
LENGTH: Final = struct.Struct(">I")
"""The length of a request."""

_OVERHEAD_MB: Final = 640
"""Memory of a worker besides the query's own; Python and its libraries take half of it."""


@dataclass(frozen=True, slots=True)
class QueryRequest:
    """What a worker has to do.

    Attributes:
        kind: describe the tables, describe a statement's answer, or give it.
        tables: where they are.
        seconds: how long it may take; None: as long as the client reads, for a feed.
        wanted: what the tables should include.
    """

    kind: Literal["tables", "plan", "rows"]
    tables: Location
    sql: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    seconds: int | None = 60
    memory_mb: int = 512
    threads: int = 1
    wanted: Wanted | None = None


@dataclass(frozen=True, slots=True)
class StatementPlan:
    """What is known about a statement before it is executed.

    Attributes:
        schema: of its answer, as Arrow writes it.
        parameters: name and type of each parameter, as the schema of a batch, likewise.
        feed: whether it follows a feed.
    """

    schema: bytes
    parameters: bytes
    feed: bool


_Send = Callable[..., None]


def _send(connection: socket.socket, kind: int, first: bytes = b"", second: bytes = b"") -> None:
    connection.sendall(FRAME.pack(kind, len(first), len(second)) + first)
    if second:
        connection.sendall(second)


def answer(request: QueryRequest, connection: socket.socket) -> None:
    """Answer a request on a socket."""
    send = partial(_send, connection)
    try:
        database = Database(request.tables, memory_mb=request.memory_mb, threads=request.threads)
        if request.kind == "tables":
            schemas = database.table_schemas()
            send(PLAN, pickle.dumps({of: ipc.schema_bytes(table) for of, table in schemas.items()}))
        else:
            statement = database.understand(request.sql)
            if request.kind == "plan":
                send(PLAN, pickle.dumps(_plan(database, statement)))
            else:
                _send_rows(database, statement, request, send)
        send(END)
    except RequestError as error:
        send(ERROR, error.code.encode(), error.text.encode())
    except SinkError as error:
        send(ERROR, b"UNAVAILABLE", str(error).encode())
    except MemoryError:
        send(ERROR, b"RESOURCE_EXHAUSTED", b"the query needs too much memory")
    except Exception as error:  # report it, as nobody else will see it
        send(ERROR, b"INTERNAL", f"{type(error).__name__}: {one_line(error)}".encode())


def _plan(database: Database, statement: SqlStatement) -> StatementPlan:
    nothing = dict.fromkeys(statement.parameters)
    schema = database.schema(statement, nothing)
    # The names are as DataFusion, and so ceramic-one, has them.
    parameters = pa.schema(
        [(f"${name}", _bindable(kind)) for name, kind in statement.parameters.items()]
    )
    return StatementPlan(
        ipc.schema_bytes(schema), ipc.schema_bytes(parameters), feed=statement.feed is not None
    )


def _bindable(kind: pa.DataType) -> pa.DataType:
    """Return the type in which clients should bind a value of a type.

    Times are in milliseconds, since the JDBC driver writes those into a field of any unit. Other
    clients may bind microseconds all the same.
    """
    if pa.types.is_timestamp(kind):
        return pa.timestamp("ms", kind.tz)
    return pa.time32("ms") if pa.types.is_time(kind) else kind


def _send_rows(
    database: Database, statement: SqlStatement, request: QueryRequest, send: _Send
) -> None:
    schema = database.schema(statement, request.values)
    send(DATA, *ipc.parts_of(schema))  # before it waits, since clients wait for this
    database.open_tables(statement, request.wanted)
    if statement.feed is None:
        for batch in database.answer(statement, request.values, schema):
            send(DATA, *ipc.parts_of(batch))
        return
    left = _rows_at_most(statement, request.values)
    if left == 0:
        return
    name = statement.feed[1].removesuffix(FEED)
    if name not in database.specs:
        raise invalid_request(f"there is no feed {statement.feed[1]}")
    feed = ServedFeed(database, name)
    for _ in feed.steps():
        is_first = True
        try:
            for batch in database.answer(statement, request.values, schema, left):
                send(DATA, *ipc.parts_of(batch))
                left = None if left is None else left - batch.num_rows
                is_first = False
        except RequestError as error:
            if error.code != "RESOURCE_EXHAUSTED" or not is_first or not feed.shrink():
                raise
        if left == 0:
            return


def _rows_at_most(statement: SqlStatement, values: dict[str, Any]) -> int | None:
    limit = statement.limit
    if isinstance(limit, str):
        limit = values.get(limit)
    if limit is None:
        return None
    if not isinstance(limit, int) or limit < 0:
        raise invalid_request(f"LIMIT takes a number of rows, not {limit!r}")
    return limit


def serve(control: socket.socket) -> None:
    """Fork a worker for each socket that arrives, until `control` is closed."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system forgets children that end
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the server, which ends us
    while True:
        data, sockets, _, _ = socket.recv_fds(control, 1, 1)
        if not data:
            return
        for number in sockets:
            with socket.socket(fileno=number) as connection:
                if os.fork() == 0:
                    control.close()
                    _run(connection)


def _run(connection: socket.socket) -> None:
    try:
        with connection.makefile("rb") as stream:
            length = LENGTH.unpack(stream.read(LENGTH.size))[0]
            request: QueryRequest = pickle.loads(stream.read(length))
        _confine(request)
        threading.Thread(target=_end_with, args=[connection], daemon=True).start()
        answer(request, connection)
    finally:
        os._exit(0)  # the server knows by the last frame whether the answer is complete


def _confine(request: QueryRequest) -> None:
    """Limit this process, as the request says."""
    if request.seconds is not None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process, whatever it does
        signal.alarm(request.seconds)
    memory = (request.memory_mb + _OVERHEAD_MB) * 1024 * 1024
    limit(resource.RLIMIT_DATA, memory)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)


def _end_with(connection: socket.socket) -> None:
    """End this process when the server closes the connection."""
    connection.recv(1)
    os._exit(0)
