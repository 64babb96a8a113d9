"""`spark-sink serve` and those who mean it no good: queries, messages, and who may connect."""

import math
import os
import random
import signal
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from itertools import islice
from pathlib import Path
from typing import Any, cast

import duckdb
import grpc
import pyarrow as pa
import pytest
from adbc_driver_flightsql import DatabaseOptions
from adbc_driver_manager import Error
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from flight_support import (
    answered,
    asked,
    connected,
    fill,
    following,
    raw_client,
    rows_of_scenario,
    served,
)
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import flight
from spark_helpers import processes_under
from support.waiting import wait_until

from spark_sink import ipc
from spark_sink.errors import RequestError, SinkError
from spark_sink.serve import flight_server
from spark_sink.serve.allowed import FUNCTIONS, OPERATORS
from spark_sink.serve.database import Database
from spark_sink.serve.flight_messages import new, packed, unpacked
from spark_sink.serve.flight_server import FlightMetrics
from spark_sink.serve.flight_sql import FlightCall, FlightSql
from spark_sink.serve.query_turns import QueryLimits, QueryWorkers

TOKEN = "0123456789abcdef0123456789abcdef"
FORBIDDEN = Path(__file__).parents[1] / "data" / "spark" / "forbidden_queries.sql"
CLIENT = "ipv4:127.0.0.1:5000"
LIMITS = QueryLimits(queries=2, feeds=2, seconds=100, memory_mb=100)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory_made = tmp_path_factory.mktemp("hostile")
    fill(directory_made / "tables", rows_of_scenario())
    (directory_made / "secret.csv").write_text("a,b\n1,2\n")
    (directory_made / "tables" / "token").write_text("0123456789abcdef")
    (directory_made / "tables" / "t.csv").write_text("a,b\n1,2\n")
    return directory_made


@pytest.fixture(scope="module")
def url(directory: Path) -> Iterator[str]:
    with served(directory / "tables", LIMITS) as address:
        yield address


@pytest.fixture
def client(url: str) -> Iterator[Any]:
    """A client; the server must be as well after the test as before."""
    with connected(url) as connection:
        yield connection
        assert asked(connection, "SELECT count(*) AS n FROM stream_tips")["n"][0].as_py() > 0


def test_a_query_cannot_leave_the_tables(client: Any, directory: Path) -> None:
    tables = directory / "tables"
    texts = FORBIDDEN.read_text().format(secret=directory / "secret.csv", tables=tables)
    database = Database(tables, memory_mb=100, threads=1)
    for sql in texts.splitlines():
        with pytest.raises(RequestError) as refused:
            answered(database, sql)
        assert refused.value.code == "INVALID_ARGUMENT"
    assert answered(database, "SELECT count(*) AS n FROM stream_tips")["n"][0].as_py() > 0
    for sql in texts.splitlines()[:3]:
        with pytest.raises(Error, match="INVALID_ARGUMENT"):
            asked(client, sql)


def test_what_is_allowed_exists_and_has_no_effects() -> None:
    """By DuckDB's own list: functions of the same values for the same arguments, or of the time."""
    with duckdb.connect() as connection:
        rows = connection.execute(
            "SELECT function_name, bool_or(has_side_effects) FROM duckdb_functions() "
            "WHERE function_type IN ('scalar', 'aggregate', 'macro') GROUP BY 1"
        ).fetchall()
    effects = dict(rows)
    assert {*FUNCTIONS, *OPERATORS} - effects.keys() == {"unnest"}
    changing = {name for name in FUNCTIONS if effects.get(name)}
    assert changing <= {"error", "random", "uuid", "gen_random_uuid", "uuidv4", "uuidv7"}


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT repeat('x', 4_000_000_000)",
        "SELECT count(*) FROM (SELECT range, repeat('x', 1000) FROM range(10_000_000) ORDER BY 2)",
    ],
)
def test_a_query_that_needs_too_much_memory_fails_alone(client: Any, sql: str) -> None:
    with pytest.raises(Error, match=r"(?i)memory"):
        asked(client, sql)


def test_a_query_that_takes_too_long_ends(directory: Path) -> None:
    pairs = "range(10_000_000) a, range(10_000_000) b"
    with (
        served(directory / "tables", QueryLimits(queries=1, seconds=1)) as url,
        connected(url) as connection,
        pytest.raises(Error, match="more than 1 s"),
    ):
        asked(connection, f"SELECT count(*) FROM {pairs} WHERE hash(a.range * b.range) % 7 = 3")


def test_a_statement_may_only_be_so_long(client: Any) -> None:
    with pytest.raises(Error, match="100001 characters"):
        asked(client, "SELECT 1".ljust(100_001))
    with pytest.raises(Error, match=r"(?i)larger than max|RESOURCE_?EXHAUSTED"):
        asked(client, f"SELECT '{'x' * 3_000_000}'")


def test_deep_nesting_is_refused(client: Any) -> None:
    with pytest.raises(Error, match=r"INVALID_ARGUMENT|RESOURCE_EXHAUSTED"):
        asked(client, f"SELECT {'(' * 20_000}1{')' * 20_000}")


def test_a_dead_worker_is_an_error_and_a_dead_parent_is_replaced(directory, tmp_path, monkeypatch):
    """Its modules are not those of the working directory."""
    (tmp_path / "pyarrow.py").write_text("raise SystemExit")
    monkeypatch.chdir(tmp_path)
    workers = QueryWorkers(directory / "tables", LIMITS)
    try:
        [parent] = processes_under(os.getpid()) & {workers._parent.pid if workers._parent else 0}
        feed = workers.rows(
            "SELECT 1 FROM stream_tips_feed", {}, feed=True, client=CLIENT, on_gone=lambda _: None
        )
        next(feed)
        [worker] = processes_under(parent)
        os.kill(worker, signal.SIGKILL)
        with pytest.raises(Exception, match="ended its process"):
            list(feed)
        os.kill(parent, signal.SIGKILL)
        wait_until(lambda: workers._parent is not None and workers._parent.poll() is not None, "x")
        assert workers.plan("SELECT 1", CLIENT).schema
    finally:
        workers.close()


@given(st.binary(max_size=60), st.sampled_from(["info", "schema", "get", "action", "put"]))
def test_any_message_gets_an_answer(url: str, data: bytes, how: str) -> None:
    with raw_client(url) as raw, pytest.raises((flight.FlightError, pa.ArrowException)):
        _called(raw, data, how)


def _called(raw: flight.FlightClient, data: bytes, how: str) -> None:
    descriptor = flight.FlightDescriptor.for_command(data)
    if how == "info":
        raw.get_flight_info(descriptor)
    elif how == "schema":
        raw.get_schema(descriptor)
    elif how == "get":
        raw.do_get(flight.Ticket(data)).read_all()
    elif how == "action":
        list(raw.do_action(flight.Action("CreatePreparedStatement", data)))
    else:
        writer, reader = raw.do_put(descriptor, pa.schema([("a", pa.int64())]))
        writer.done_writing()
        reader.read()
        writer.close()


@pytest.mark.parametrize("name", ["CommandStatementQuery", "CommandGetTables"])
def test_text_that_is_not_utf_8_is_refused(url: str, name: str) -> None:
    of = f"type.googleapis.com/arrow.flight.protocol.sql.{name}"
    command = new("Any", type_url=of, value=b"\x0a\x01\xff").SerializeToString()
    with raw_client(url) as raw, pytest.raises(pa.ArrowInvalid, match=f"not a {name}"):
        raw.get_flight_info(flight.FlightDescriptor.for_command(command))


def test_made_up_tickets_are_refused(url: str) -> None:
    made_up = b'{"sql": "SELECT 1", "feed": false, "values": "AAAA"}'
    for handle in (b"", b"{}", b"[]", made_up, b"\xff"):
        ticket = flight.Ticket(packed(new("TicketStatementQuery", statement_handle=handle)))
        with (
            raw_client(url) as raw,
            pytest.raises(pa.ArrowInvalid, match="not issued by this server"),
        ):
            raw.do_get(ticket).read_all()


def test_the_ticket_of_a_feed_is_not_a_ticket_of_a_query(url: str) -> None:
    """Otherwise a feed could take the place of a query, or a query that of a feed, for ever."""
    with raw_client(url) as raw:
        for sql, said, forgery in (
            ("SELECT 1", b'"feed": false', b'"feed":  true'),
            ("SELECT 1 FROM stream_tips_feed", b'"feed": true, ', b'"feed": false,'),
        ):
            command = packed(new("CommandStatementQuery", query=sql))
            info = raw.get_flight_info(flight.FlightDescriptor.for_command(command))
            ticket = info.endpoints[0].ticket.ticket
            assert said in ticket
            forged = ticket.replace(said, forgery)
            with pytest.raises(pa.ArrowInvalid, match="not issued by this server"):
                raw.do_get(flight.Ticket(forged)).read_all()


def written(column: pa.Array, **options: Any) -> list[ipc.Parts]:
    """The messages of a row."""
    row, stream = pa.record_batch([column], ["1"]), pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, row.schema, options=pa.ipc.IpcWriteOptions(**options)) as to:
        to.write_batch(row)
    return parts_in(stream)


def parts_in(stream: pa.BufferOutputStream) -> list[ipc.Parts]:
    messages = pa.ipc.MessageReader.open_stream(stream.getvalue())
    return [(bytes(message.metadata), bytes(message.body or b"")) for message in messages]


def lying(first: int) -> list[ipc.Parts]:
    """A value that begins before its bytes."""
    schema, (header, body) = written(pa.array([b"AAAA"]))
    return [schema, (header, body.replace(struct.pack("<ii", 0, 4), struct.pack("<ii", first, 0)))]


def compressed_as_by_arrow_0_17() -> list[ipc.Parts]:
    """The rows say how they are compressed in the metadata of their message."""
    row, stream = pa.record_batch([pa.array([bytes(1 << 24)])], ["1"]), pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V4, compression="zstd")
    with pa.ipc.new_stream(stream, row.schema, options=options) as to:
        to.write_batch(row, custom_metadata={"ARROW:experimental_compression": "zstd"})
    schema, batch = parts_in(stream)
    header = bytearray(batch[0])
    (root,) = struct.unpack_from("<I", header)
    at = ipc._field(header, root, 2)
    table = at + struct.unpack_from("<I", header, at)[0]
    (back,) = struct.unpack_from("<i", header, table)
    struct.pack_into("<H", header, table - back + 2 * 3 + 4, 0)  # not in the header of the rows
    return [schema, (bytes(header), batch[1])]


HOSTILE = {
    "heap": (lying(-4096), "Arrow data"),
    "crash": (lying(-(1 << 30)), "Arrow data"),
    "nulls": (written(pa.FixedSizeListArray.from_arrays(pa.nulls(1 << 27), 1 << 27)), "plain"),
    "extension": (
        written(
            pa.ExtensionArray.from_storage(
                pa.opaque(pa.list_(pa.null(), 1 << 27), "t", "v"),
                pa.FixedSizeListArray.from_arrays(pa.nulls(1 << 27), 1 << 27),
            )
        ),
        "plain",
    ),
    "text": (written(pa.array([b"\xff"]).view(pa.string())), "Arrow data"),
    "zeros": (written(pa.array([bytes(1 << 24)]), compression="zstd"), "compressed"),
    "zeros of old": (compressed_as_by_arrow_0_17(), "compressed"),
    "never": (written(pa.array([2**31 - 1], pa.date32())), "does not exist"),
    "nowhere": (written(pa.array([0], pa.timestamp("us", "Foo/Bar"))), "does not exist"),
    "dictionary": (written(pa.array(["a"]).dictionary_encode()), "Arrow data"),
}


@pytest.mark.parametrize("values", HOSTILE)
def test_values_that_lie_are_refused_before_they_are_touched(url: str, values: str) -> None:
    """They are read in the process that all clients share, and offsets once read its memory."""
    messages, reason = HOSTILE[values]
    with raw_client(url) as raw:
        request = new("ActionCreatePreparedStatementRequest", query="SELECT $1 AS v")
        [made] = raw.do_action(flight.Action("CreatePreparedStatement", packed(request)))
        handle = unpacked(made.body.to_pybytes()).prepared_statement_handle
    command = packed(new("CommandPreparedStatementQuery", prepared_statement_handle=handle))
    descriptor = new("FlightDescriptor", type=2, cmd=command)
    sent = [new("FlightData", flight_descriptor=descriptor)]
    sent += [new("FlightData", data_header=header, data_body=body) for header, body in messages]
    with grpc.insecure_channel(url.removeprefix("grpc://")) as channel:
        put = channel.stream_stream(
            "/arrow.flight.protocol.FlightService/DoPut",
            request_serializer=lambda message: message.SerializeToString(),
        )
        with pytest.raises(grpc.RpcError) as refused:
            list(put(iter(sent), timeout=60))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert reason in refused.value.details()


@given(st.binary(max_size=200), st.integers(0, 2**32))
def test_broken_headers_are_refused(noise: bytes, seed: int) -> None:
    """Also those with a few bytes changed."""
    row = pa.record_batch([pa.array([b"a"]), pa.array([1])], ["a", "b"])
    messages = [ipc.parts_of(row.schema), ipc.parts_of(row)]
    assert ipc.read_batches(messages).to_pylist() == row.to_pylist()
    rng = random.Random(seed)
    header = bytearray(messages[rng.randrange(2)][0])
    header[rng.randrange(len(header))] = rng.randrange(256)
    for broken in (noise, bytes(header)):
        for at in range(2):
            changed = [*messages]
            changed[at] = (broken, messages[at][1])
            with suppress(pa.ArrowException, OSError, ValueError):
                ipc.read_batches(changed)


def test_who_waits_to_list_the_tables_holds_nobody_up() -> None:
    """The columns of the tables are read in a turn of one client, and remembered for all."""
    turn, done = threading.Event(), threading.Event()

    class Workers:
        def table_schemas(self, client: str) -> dict[tuple[str, str], bytes]:
            if client == "slow":
                turn.wait(100)
            return {}

    def list_tables(client: str) -> None:
        descriptor = new("FlightDescriptor", type=2, cmd=packed(new("CommandGetTables")))
        flight_sql.get_schema(descriptor, FlightCall(client, lambda act: None))
        done.set()

    flight_sql = FlightSql(cast("QueryWorkers", Workers()))
    threads = [threading.Thread(target=list_tables, args=[name]) for name in ("slow", "quick")]
    for thread in threads:
        thread.start()
    try:
        assert done.wait(60)
    finally:
        turn.set()
        for thread in threads:
            thread.join()


def test_tables_are_not_listed_anew_for_each_client() -> None:
    """While they are for one, the others get what was known."""
    asked = []

    class Workers:
        def table_schemas(self, client: str) -> dict[tuple[str, str], bytes]:
            asked.append(client)
            if client == "first":
                return {("v0", "stream_tips"): b""}
            list_tables("another")
            raise RequestError("RESOURCE_EXHAUSTED", "")

    def list_tables(client: str) -> None:
        descriptor = new("FlightDescriptor", type=2, cmd=packed(new("CommandGetTables")))
        flight_sql.get_schema(descriptor, FlightCall(client, lambda act: None))

    flight_sql = FlightSql(cast("QueryWorkers", Workers()))
    list_tables("first")
    flight_sql._schemas_at = -math.inf
    with pytest.raises(RequestError):
        list_tables("second")
    list_tables("third")
    assert asked == ["first", "second"]


def test_what_is_not_offered_is_refused(url: str) -> None:
    with raw_client(url) as raw:
        update = packed(new("CommandStatementUpdate", query="DELETE FROM stream_tips"))
        with pytest.raises(pa.ArrowInvalid, match="read-only"):
            raw.get_flight_info(flight.FlightDescriptor.for_command(update))
        with pytest.raises(pa.ArrowInvalid, match="not paths"):
            raw.get_flight_info(flight.FlightDescriptor.for_path("a", "b"))
        with pytest.raises(pa.ArrowNotImplementedError, match="BeginTransaction"):
            list(raw.do_action(flight.Action("BeginTransaction", b"")))
        assert list(raw.list_flights()) == []
        assert [action.type for action in raw.list_actions()] == [
            "CreatePreparedStatement",
            "ClosePreparedStatement",
        ]
        unknown = packed(new("CommandPreparedStatementQuery", prepared_statement_handle=b"x"))
        with pytest.raises(pa.ArrowKeyError, match="prepare it again"):
            raw.get_flight_info(flight.FlightDescriptor.for_command(unknown))


def test_the_token_is_asked_for(directory: Path) -> None:
    with served(directory / "tables", token=TOKEN) as url:
        for wrong in (None, TOKEN[:-1], TOKEN + "0", ""):
            with pytest.raises(Error, match="token"), connected(url, wrong) as connection:
                asked(connection, "SELECT 1")
        with connected(url, TOKEN) as connection:
            assert asked(connection, "SELECT 1").num_rows == 1
        login = {
            DatabaseOptions.TLS_SKIP_VERIFY.value: "true",
            "username": "anyone",
            "password": TOKEN,
        }
        with connected(url, **login) as connection:
            assert asked(connection, "SELECT 1").num_rows == 1
        with pytest.raises(Error), connected(url, **{**login, "password": "wrong"}):
            pass


def test_others_may_not_connect_without_a_token(directory: Path) -> None:
    tables = directory / "tables"
    with pytest.raises(SinkError, match="set a token"), served(tables, address="0.0.0.0:0"):
        pass
    with served(tables, address="0.0.0.0:0", anonymous=True):
        pass
    with served(tables, address="0.0.0.0:0", token=TOKEN):
        pass


def test_tls(directory: Path, tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    with served(directory / "tables", certificate=(certificate, key), token=TOKEN) as url:
        assert url.startswith("grpc+tls://")
        trusted = {DatabaseOptions.TLS_ROOT_CERTS.value: certificate.read_text()}
        with connected(url, TOKEN, **trusted) as connection:
            assert asked(connection, "SELECT 1").num_rows == 1
        with pytest.raises(Error), connected(url, TOKEN) as connection:
            asked(connection, "SELECT 1")


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for this machine, signed by itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = datetime.now(UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(address, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    paths = folder / "server.pem", folder / "server.key"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return paths


def test_calls_are_measured(directory: Path) -> None:
    metrics = FlightMetrics(LIMITS)

    def count(status: str) -> float:
        samples = (sample for family in metrics.registry.collect() for sample in family.samples)
        calls = (
            sample for sample in samples if sample.name.endswith("call_duration_seconds_count")
        )
        return sum(call.value for call in calls if call.labels["status"] == status)

    with served(directory / "tables", LIMITS, metrics=metrics, token=TOKEN) as url:
        with connected(url, TOKEN) as connection:
            size = asked(connection, "SELECT repeat('x', 100000) AS x").nbytes
            with pytest.raises(Error):
                asked(connection, "SELECT nothing")
            tips = asked(connection, "SELECT count(*) AS n FROM stream_tips")["n"][0].as_py()
            with following(connection, "SELECT 1 FROM stream_tips_feed") as rows:
                deque(islice(rows, tips), maxlen=0)  # then it waits for more
                labels = {"kind": "feed"}
                assert metrics.registry.get_sample_value("spark_sink_flight_running", labels) == 1
        with connected(url, "wrong") as connection, pytest.raises(Error):
            asked(connection, "SELECT 1")
    sent = metrics.registry.get_sample_value("spark_sink_flight_sent_bytes_total")
    assert sent is not None
    assert sent > size
    assert count("OK") >= 2  # what the columns are, and the rows
    assert count("INVALID_ARGUMENT") == 1
    assert count("UNAUTHENTICATED") >= 1
    wait_until(lambda: count("CANCELLED") == 1, "the end of the feed is noticed")


SERVICE = "/arrow.flight.protocol.FlightService/"


@contextmanager
def silence() -> Iterator[Callable[[], Iterator[bytes]]]:
    """Messages that do not come before the end of the block."""
    over = threading.Event()

    def silent() -> Iterator[bytes]:
        over.wait(120)
        yield b""

    yield silent
    over.set()


def test_silent_uploads_shut_nobody_out(directory: Path) -> None:
    """A hundred calls of one client that said nothing took all slots for half a minute."""
    with (
        served(directory) as url,
        grpc.insecure_channel(url.removeprefix("grpc://")) as channel,
        silence() as silent,
    ):
        calls = [
            channel.stream_stream(SERVICE + ("DoPut" if number % 2 else "Handshake"))(silent())
            for number in range(100)
        ]
        with connected(url) as client:
            assert asked(client, "SELECT 1 AS one").to_pylist() == [{"one": 1}]
            assert asked(client, "SELECT ? AS one", [1]).to_pylist() == [{"one": 1}]
        wait_until(lambda: all(not call.is_active() for call in calls), "all have ended")


def test_silent_and_unread_calls_shut_nobody_out(directory, monkeypatch):
    """Calls whose message does not come, without the token, or whose answer nobody takes."""
    monkeypatch.setattr(flight_server, "_UNREAD", 0.1)
    monkeypatch.setattr(flight_server, "_MORE_CALLS", 4)
    with (
        served(directory / "tables", LIMITS, token=TOKEN) as url,
        grpc.insecure_channel(url.removeprefix("grpc://")) as channel,
        silence() as silent,
        socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as unread,
    ):
        for token in ("wrong", TOKEN):
            for name in ("GetFlightInfo", "DoGet"):
                headers = (("authorization", f"Bearer {token}"),)
                for _ in range(20):
                    channel.stream_stream(SERVICE + name)(silent(), metadata=headers)
        _send_unread(unread, SERVICE + "DoGet", 20)
        with connected(url, TOKEN) as client:
            wait_until(lambda: _is_answered(client), "an honest client is answered")
            assert asked(client, "SELECT 1 AS one").to_pylist() == [{"one": 1}]


def _is_answered(client: Any) -> bool:
    with suppress(Error):
        return asked(client, "SELECT 1 AS one").num_rows == 1
    return False


def _send_unread(connection: socket.socket, method: str, calls: int) -> None:
    """Send calls over HTTP/2 whose window for answers is 0 (RFC 9113, HPACK without tables)."""

    def frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
        return struct.pack(">I", len(body))[1:] + bytes([kind, flags]) + _big(stream) + body

    def literal(name: bytes, value: bytes) -> bytes:
        assert len(value) < 127
        return bytes([0, len(name)]) + name + bytes([len(value)]) + value

    headers = {
        b":method": b"POST",
        b":scheme": b"http",
        b":path": method.encode(),
        b":authority": b"x",
        b"content-type": b"application/grpc",
        b"te": b"trailers",
        b"authorization": f"Bearer {TOKEN}".encode(),
    }
    head = b"".join(literal(*header) for header in headers.items())
    ticket = new("Ticket", ticket=packed(new("CommandGetSqlInfo"))).SerializeToString()
    message = b"\0" + _big(len(ticket)) + ticket
    settings = frame(4, 0, 0, struct.pack(">HI", 4, 0))
    connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings)
    for stream in range(1, 2 * calls, 2):
        connection.sendall(frame(1, 4, stream, head) + frame(0, 1, stream, message))


def _big(number: int) -> bytes:
    return struct.pack(">I", number)
