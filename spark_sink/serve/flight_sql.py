"""Flight SQL: what each call of a client means, and its answer.

A query takes two calls: `GetFlightInfo` returns the columns of the answer and a ticket, and `DoGet`
with the ticket returns the rows. The ticket has the statement and the values of its parameters, so
the server need not remember it. A prepared statement takes three more: the action that creates it,
a `DoPut` with the values, the action that closes it. A client may forget to close its statements,
as the Ceramic SDK's does. So each client has a limited number: a new one takes the place of the one
that was used the longest ago. All are forgotten when they are not used for a while. Other commands
ask about the tables.

Calls come from threads of gRPC; a `FlightCall` is what is known about one.
"""

import base64
import hashlib
import hmac
import json
import math
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from time import monotonic
from typing import Any, Final

import pyarrow as pa

from recon_node.base.latest import Remembered
from spark_sink import ipc
from spark_sink.errors import RequestError, invalid_request
from spark_sink.serve import metadata
from spark_sink.serve.database import Wanted
from spark_sink.serve.flight_messages import MalformedError, Message, name_of, new, packed, unpacked
from spark_sink.serve.metadata import MAX_SQL
from spark_sink.serve.query_turns import QueryWorkers
from spark_sink.serve.query_worker import StatementPlan

_CREATE: Final = "CreatePreparedStatement"
_CLOSE: Final = "ClosePreparedStatement"
_ACTIONS: Final = {
    _CREATE: "Remembers a statement with parameters. "
    "Request: ActionCreatePreparedStatementRequest; result: ActionCreatePreparedStatementResult.",
    _CLOSE: "Forgets it. Request: ActionClosePreparedStatementRequest.",
}
_MAX_PUT: Final = 8
"""Messages of a DoPut: a descriptor with the schema, and a row."""
_COMMAND: Final = 2  # the type of a descriptor with a command
_UNKNOWN: Final = -1
_SCHEMAS_FOR: Final = 5.0
"""Seconds for which the columns of the tables are remembered: views come and go."""
_NOT_OURS: Final = "the ticket was not issued by this server, or before it was last started"
_SEAL: Final = hashlib.sha256().digest_size
_NO_VALUES: Final = ipc.value_bytes(pa.table({}))


@dataclass(frozen=True, slots=True)
class FlightCall:
    """What is known about a call.

    Attributes:
        client: names the client's connection.
        on_gone: registers what to call when the client is gone.
    """

    client: str
    on_gone: Callable[[Callable[[], None]], Any]


class FlightSql:
    """Answers the calls of Flight SQL clients, over the tables that `workers` read.

    Its methods raise `RequestError` if a request is wrong or not supported, or its query fails.

    Args:
        workers: run the queries.
        wanted: says what the tables should include for a query that comes now.
    """

    def __init__(
        self, workers: QueryWorkers, wanted: Callable[[], Wanted | None] = lambda: None
    ) -> None:
        self._workers = workers
        self._wanted = wanted
        self._prepared = PreparedStatements()
        self._key = secrets.token_bytes(32)
        self._schemas: dict[tuple[str, str], bytes] = {}
        self._schemas_at = -math.inf

    def get_flight_info(self, descriptor: Message, call: FlightCall) -> Message:
        """Return the columns of an answer, and the ticket for its rows."""
        schema, ticket = self._planned(descriptor, call)
        endpoint = new("FlightEndpoint", ticket=new("Ticket", ticket=ticket))
        return new(
            "FlightInfo",
            schema=schema,
            flight_descriptor=descriptor,
            endpoint=[endpoint],
            total_records=_UNKNOWN,
            total_bytes=_UNKNOWN,
            ordered=True,
        )

    def get_schema(self, descriptor: Message, call: FlightCall) -> Message:
        """Return the columns of an answer."""
        schema, _ = self._planned(descriptor, call)
        return new("SchemaResult", schema=schema)

    def do_get(self, ticket: Message, call: FlightCall) -> Iterator[Message]:
        """Yield the rows that belong to a ticket."""
        command = _unpacked(ticket.ticket)
        if name_of(command) == "TicketStatementQuery":
            for header, body in self._rows(command.statement_handle, call):
                yield new("FlightData", data_header=header, data_body=body)
            return
        table = self._about_tables(command, call)
        for item in (table.schema, *table.to_batches()):
            header, body = ipc.parts_of(item)
            yield new("FlightData", data_header=header, data_body=body)

    def do_put(self, messages: Iterator[Message], call: FlightCall) -> Iterator[Message]:
        """Bind values to a prepared statement."""
        received = list(islice(messages, _MAX_PUT))
        if not received:
            raise invalid_request("the call has no messages")
        command = _command(received[0].flight_descriptor)
        if name_of(command) != "CommandPreparedStatementQuery":
            raise _unsupported(command)
        handle = command.prepared_statement_handle
        prepared = self._prepared.get(handle)
        sent = [(part.data_header, part.data_body) for part in received if part.data_header]
        try:
            rows = ipc.read_batches(sent)
            bound = _bound(ipc.read_schema(prepared.plan.parameters).names, rows)
            ipc.read_values(bound)
        except (pa.ArrowException, OSError) as error:
            raise invalid_request(f"the values are not Arrow data: {error}") from None
        except (ArithmeticError, LookupError) as error:
            raise invalid_request(f"a time or its zone does not exist: {error}") from None
        prepared.values = bound
        result = new("DoPutPreparedStatementResult", prepared_statement_handle=handle)
        yield new("PutResult", app_metadata=result.SerializeToString())

    def do_action(self, action: Message, call: FlightCall) -> Iterator[Message]:
        """Create or close a prepared statement."""
        if action.type == _CREATE:
            request = _unpacked(action.body, "ActionCreatePreparedStatementRequest")
            plan = self._workers.plan(_sql(request), call.client)
            result = new(
                "ActionCreatePreparedStatementResult",
                prepared_statement_handle=self._prepared.add(call.client, request.query, plan),
                dataset_schema=plan.schema,
                parameter_schema=plan.parameters,
            )
            yield new("Result", body=packed(result))
        elif action.type == _CLOSE:
            request = _unpacked(action.body, "ActionClosePreparedStatementRequest")
            self._prepared.remove(request.prepared_statement_handle)
        else:
            raise RequestError("UNIMPLEMENTED", f"the action {action.type!r} is not supported")

    def handshake(self, requests: Iterable[Message], call: FlightCall) -> Iterator[Message]:
        """Answer each request for a handshake; the token is in the headers."""
        for request in requests:
            yield new("HandshakeResponse", protocol_version=request.protocol_version)

    def list_actions(self, request: Message, call: FlightCall) -> Iterator[Message]:
        """Yield the actions that are supported."""
        for name, description in _ACTIONS.items():
            yield new("ActionType", type=name, description=description)

    def list_flights(self, request: Message, call: FlightCall) -> Iterator[Message]:
        """Yield nothing: everything here is the answer to a command."""
        return iter(())

    def _planned(self, descriptor: Message, call: FlightCall) -> tuple[bytes, bytes]:
        """Return the columns of the answer to a command, and its ticket."""
        command = _command(descriptor)
        name = name_of(command)
        if name == "CommandStatementQuery":
            sql = _sql(command)
            plan = self._workers.plan(sql, call.client)
            return plan.schema, self._ticket(sql, plan, _NO_VALUES)
        if name == "CommandPreparedStatementQuery":
            prepared = self._prepared.get(command.prepared_statement_handle)
            ticket = self._ticket(prepared.sql, prepared.plan, prepared.values)
            return prepared.plan.schema, ticket
        return ipc.schema_bytes(self._about_tables(command, call).schema), descriptor.cmd

    def _about_tables(self, command: Message, call: FlightCall) -> pa.Table:
        table = metadata.answer(command, partial(self._table_schemas, call.client))
        if table is None:
            raise _unsupported(command)
        return table

    def _rows(self, handle: bytes, call: FlightCall) -> Iterator[ipc.Parts]:
        try:
            asked = json.loads(self._unsealed(handle))
            values = ipc.read_values(base64.b64decode(asked["values"]))
            sql, feed = str(asked["sql"]), bool(asked["feed"])
        except (ValueError, KeyError, TypeError, OSError):
            raise invalid_request(_NOT_OURS) from None
        wanted = None if feed else self._wanted()
        return self._workers.rows(
            sql, values, feed=feed, client=call.client, on_gone=call.on_gone, wanted=wanted
        )

    def _ticket(self, sql: str, plan: StatementPlan, values: bytes) -> bytes:
        """Return a ticket, sealed: the values in it are read here, and must not be a client's."""
        if values is _NO_VALUES and (names := ipc.read_schema(plan.parameters).names):
            raise invalid_request(f"no value is bound to {', '.join(names)}")
        data = base64.b64encode(values).decode()
        handle = json.dumps({"sql": sql, "feed": plan.feed, "values": data}).encode()
        return packed(new("TicketStatementQuery", statement_handle=self._seal(handle) + handle))

    def _unsealed(self, handle: bytes) -> bytes:
        seal, content = handle[:_SEAL], handle[_SEAL:]
        if not hmac.compare_digest(seal, self._seal(content)):
            raise invalid_request(_NOT_OURS)
        return content

    def _seal(self, content: bytes) -> bytes:
        return hmac.digest(self._key, content, "sha256")

    def _table_schemas(self, client: str) -> dict[tuple[str, str], bytes]:
        if monotonic() - self._schemas_at > _SCHEMAS_FOR:
            if self._schemas:  # the others get these until it has been this client's turn
                self._schemas_at = monotonic()
            self._schemas = self._workers.table_schemas(client)
            self._schemas_at = monotonic()
        return self._schemas


def _command(descriptor: Message) -> Message:
    if descriptor.type != _COMMAND:
        raise invalid_request("the server answers commands of Flight SQL only, not paths")
    return _unpacked(descriptor.cmd)


def _unpacked(data: bytes, name: str | None = None) -> Message:
    try:
        command = unpacked(data)
    except MalformedError as error:
        raise invalid_request(str(error)) from None
    if name is not None and name_of(command) != name:
        raise invalid_request(f"the request should be a {name}, not a {name_of(command)}")
    return command


def _sql(command: Message) -> str:
    if command.transaction_id:
        raise RequestError("UNIMPLEMENTED", "transactions are not supported")
    sql: str = command.query
    if len(sql) > MAX_SQL:
        raise invalid_request(
            f"the statement has {len(sql)} characters; at most {MAX_SQL} are allowed"
        )
    return sql


def _unsupported(command: Message) -> RequestError:
    name = name_of(command)
    if "Update" in name:
        return invalid_request("the tables are read-only here")
    return RequestError("UNIMPLEMENTED", f"{name} is not supported here")


PER_CLIENT: Final = 64
IN_ALL: Final = 1024
KEPT: Final = 15 * 60.0
"""Seconds that a statement is kept without being used."""


@dataclass(slots=True)
class Prepared:
    """A prepared statement of a client, and the values that were bound to it."""

    client: str
    sql: str
    plan: StatementPlan
    values: bytes = _NO_VALUES


class PreparedStatements:
    """The prepared statements of all clients, by their handles."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._lock = threading.Lock()
        self._statements = Remembered[bytes, Prepared](IN_ALL, lifetime=KEPT, clock=clock)

    def add(self, client: str, sql: str, plan: StatementPlan) -> bytes:
        """Remember a statement; return its handle."""
        handle = secrets.token_bytes(16)
        with self._lock:
            own = [h for h, statement in self._statements.items() if statement.client == client]
            for old in own[: max(0, len(own) - PER_CLIENT + 1)]:
                self._statements.pop(old)
            self._statements.put(handle, Prepared(client, sql, plan))
        return handle

    def get(self, handle: bytes) -> Prepared:
        """Return a statement.

        Raises:
            RequestError: it is not known, or not any more.
        """
        with self._lock:
            if (prepared := self._statements.get(handle, None)) is None:
                raise RequestError(
                    "NOT_FOUND",
                    "there is no such prepared statement: it was closed, not used for "
                    f"{KEPT / 60:.0f} minutes, or the server was restarted; prepare it again",
                )
            self._statements.put(handle, prepared)  # as the one that was used last
            return prepared

    def remove(self, handle: bytes) -> None:
        """Forget a statement, if it is known."""
        with self._lock:
            self._statements.pop(handle)

    def __len__(self) -> int:
        return len(self._statements)


def _bound(parameters: Sequence[str], rows: pa.Table) -> bytes:
    """Return the values that a client binds to parameters, for `read_values`.

    They are found by name, with or without the `$`, or else by order.
    """
    names = [_bare(name) for name in parameters]
    if rows.num_rows != 1:
        raise invalid_request(f"bind one row of values, not {rows.num_rows}")
    if rows.num_columns != len(names):
        raise invalid_request(
            f"the statement has {len(names)} parameters ({', '.join(parameters)}), and "
            f"{rows.num_columns} values are bound"
        )
    bound = [_bare(name) for name in rows.column_names]
    return ipc.value_bytes(rows.rename_columns(bound if set(bound) == set(names) else names))


def _bare(name: str) -> str:
    return name.removeprefix("$")
