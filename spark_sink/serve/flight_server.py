"""The gRPC server of Flight SQL: where it listens, who may call, how much at once, until when.

gRPC's own server rather than `pyarrow.flight`'s, because that one takes messages of any size and
any number of calls, and has no status code for a client that asks too much. Both packages are here
anyway: libp2p needs gRPC.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from time import monotonic
from typing import Any, Final

import duckdb
import grpc
from prometheus_client import Counter, Gauge, Histogram

from recon_node.base.files import read_small
from recon_node.base.program import bind_advice
from recon_node.fairness.slots import Slot, Slots
from spark_sink.errors import RequestError, SinkError, one_line
from spark_sink.exposition import new_registry
from spark_sink.serve.database import Wanted
from spark_sink.serve.flight_messages import MalformedError, Message, parsed
from spark_sink.serve.flight_sql import FlightCall, FlightSql
from spark_sink.serve.query_turns import QueryLimits, QueryWorkers, address_of
from spark_sink.source.feed_client import Feed
from spark_sink.tables.location import Location

_SERVICE: Final = "arrow.flight.protocol.FlightService"
_AUTHORIZATION: Final = "authorization"
_CANCELLED: Final = "CANCELLED"
# Seconds. A client that is gone without a word is noticed after the sum of the first two.
_PING_AFTER: Final = 30
_PONG_WITHIN: Final = 10
_MIN_PING_INTERVAL: Final = 10
_IDLE: Final = 60
"""Seconds after which a connection without a call ends; clients make another one."""
_CONNECTIONS: Final = 768
"""Connections at once, so that there are descriptors left for those that are there."""
FILES: Final = 4096
"""Descriptors that are enough; 1,024, which many systems allow, are as well."""
_STOP_WAIT: Final = 4.0
_UPLOAD_SECONDS: Final = 30.0
_FIRST_MESSAGE: Final = 5.0
"""Seconds in which the first message of an upload must come."""
_MAX_PEM: Final = 1024 * 1024
"""Bytes of a certificate chain, or of a key."""
_LISTENING: Final = 16
"""Calls at once that wait for messages of their clients."""
_UNREAD: Final = 10.0
"""Seconds for which a client may leave an answer unread while another call needs a slot."""
_SPARE: Final = 32
"""Threads for calls that have no slot yet, or do not get one."""
_MAX_MESSAGE: Final = 1024 * 1024
_MORE_CALLS: Final = 64
"""Calls that neither run a query nor follow a feed, and those that wait for their turn."""
_OPTIONS: Final = (
    ("grpc.so_reuseport", 0),  # otherwise two servers could share a port
    ("grpc.max_receive_message_length", _MAX_MESSAGE),
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", _PING_AFTER * 1000),
    ("grpc.keepalive_timeout_ms", _PONG_WITHIN * 1000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_connection_idle_ms", _IDLE * 1000),
    ("grpc.max_allowed_incoming_connections", _CONNECTIONS),
    ("grpc.http2.min_ping_interval_without_data_ms", _MIN_PING_INTERVAL * 1000),
)


class FlightServer:
    """A server that runs until `stop`.

    Args:
        tables: where the tables are.
        address: where to listen, HOST:PORT; port 0: any.
        limits: of what clients may use.
        metrics: of this server.
        token: what clients must send; None: nothing.
        certificate: PEM files of the certificate chain and its key, for TLS.
        anonymous: other machines may connect without a token.
        node: a query waits until the tables have what this node's feed has.
        max_wait: seconds that it waits at most.

    Attributes:
        url: where it listens, as clients take it.

    Raises:
        SinkError: it cannot listen there, or should not.
    """

    def __init__(
        self,
        tables: Location,
        address: str,
        limits: QueryLimits,
        metrics: FlightMetrics,
        *,
        token: str | None = None,
        certificate: tuple[Path, Path] | None = None,
        anonymous: bool = False,
        node: Feed | None = None,
        max_wait: float = 5.0,
    ) -> None:
        _check_access(address, token, anonymous=anonymous)
        self._metrics = metrics
        calls = limits.queries + limits.feeds + _MORE_CALLS
        self._token = token
        self._calls = _Calls(calls)
        threads = calls + _SPARE
        self._server = grpc.server(
            ThreadPoolExecutor(threads, "flight"), options=_OPTIONS, maximum_concurrent_rpcs=threads
        )
        tls = _credentials(*certificate) if certificate else None
        _check_address(address)
        try:
            if tls is None:
                port = self._server.add_insecure_port(address)
            else:
                port = self._server.add_secure_port(address, tls)
        except RuntimeError as error:
            raise SinkError(f"cannot listen on {address}: {one_line(error)}") from error
        self.url = f"grpc{'+tls' if tls else ''}://{address.rpartition(':')[0]}:{port}"
        self._workers = QueryWorkers(tables, limits)
        self._metrics.watch(self._workers.running, self._workers.open_feeds)
        self._flight = FlightSql(self._workers, partial(_wanted, node, max_wait))
        self._server.add_generic_rpc_handlers((self._handlers(),))
        self._server.start()

    def stop(self) -> None:
        """End all feeds, give queries a few seconds, and stop."""
        stopped = self._server.stop(_STOP_WAIT)
        self._workers.stop_feeds()
        stopped.wait(_STOP_WAIT + 1)
        self._workers.close()

    def wait(self, seconds: float | None = None) -> None:
        """Wait until the server has stopped."""
        self._server.wait_for_termination(seconds)

    def _handlers(self) -> Any:
        flight = self._flight
        # gRPC would wait for a single message without limit, before anybody has looked at the call.
        one, many = grpc.stream_unary_rpc_method_handler, grpc.stream_stream_rpc_method_handler
        methods: dict[str, tuple[Any, Callable[..., Any], str]] = {
            "GetFlightInfo": (one, self._one(flight.get_flight_info), "FlightDescriptor"),
            "GetSchema": (one, self._one(flight.get_schema), "FlightDescriptor"),
            "DoGet": (many, self._many(flight.do_get), "Ticket"),
            "DoAction": (many, self._many(flight.do_action), "Action"),
            "ListActions": (many, self._many(flight.list_actions), "Empty"),
            "ListFlights": (many, self._many(flight.list_flights), "Criteria"),
            "DoPut": (many, self._upload(flight.do_put), "FlightData"),
            "Handshake": (many, self._upload(flight.handshake, greets=True), "HandshakeRequest"),
        }
        handlers = {
            name: kind(
                partial(method, name),
                request_deserializer=_reader(request),
                response_serializer=self._write,
            )
            for name, (kind, method, request) in methods.items()
        }
        return grpc.method_handlers_generic_handler(_SERVICE, handlers)

    def _one(self, method: Callable[..., Message]) -> Callable[..., Message]:
        def answer(name: str, requests: Any, context: grpc.ServicerContext) -> Message:
            with self._measured(name, context), self._slot(context):
                return method(self._calls.message(requests, context), _call(context))

        return answer

    def _many(self, method: Callable[..., Iterator[Message]]) -> Callable[..., Iterator[Message]]:
        def answer(name: str, requests: Any, context: grpc.ServicerContext) -> Iterator[Message]:
            with self._measured(name, context), self._slot(context) as slot:
                request = self._calls.message(requests, context)
                yield from _taken(method(request, _call(context)), slot)

        return answer

    def _upload(
        self, method: Callable[..., Iterator[Message]], *, greets: bool = False
    ) -> Callable[..., Iterator[Message]]:
        """Return what answers many messages.

        It `greets` a client that logs in with a password, with what it has to send from now on.
        """

        def answer(name: str, requests: Any, context: grpc.ServicerContext) -> Iterator[Message]:
            with self._measured(name, context), self._slot(context) as slot:
                if greets:
                    token = self._token or "anonymous"
                    context.send_initial_metadata(((_AUTHORIZATION, f"Bearer {token}"),))
                with self._calls.messages(requests, context) as limited:
                    yield from _taken(method(map(_whole, limited), _call(context)), slot)

        return answer

    @contextmanager
    def _slot(self, context: grpc.ServicerContext) -> Iterator[Slot]:
        self._check_token(context)
        with self._calls.taken_by(context) as slot:
            yield slot

    @contextmanager
    def _measured(self, method: str, context: grpc.ServicerContext) -> Iterator[None]:
        """Measure a call, and end it with the status of an error."""
        started, status = monotonic(), "OK"
        try:
            yield
        except RequestError as error:
            # A worker ends when its client is gone, which says nothing about the query.
            status = error.code if context.is_active() else _CANCELLED
            context.abort(getattr(grpc.StatusCode, error.code), error.text)
        except GeneratorExit:  # the client does not read on
            status = _CANCELLED
            raise
        except BaseException:
            status = "UNKNOWN" if context.is_active() else _CANCELLED
            raise
        finally:
            self._metrics.calls.labels(method, status).observe(monotonic() - started)

    def _write(self, message: Message) -> bytes:
        data: bytes = message.SerializeToString()
        self._metrics.bytes_sent.inc(len(data))
        return data

    def _check_token(self, context: grpc.ServicerContext) -> None:
        """Raise an error if a call needs a token and does not have it."""
        if self._token is None:
            return
        headers = dict(context.invocation_metadata() or ())
        token = _token_in(str(headers.get(_AUTHORIZATION, "")))
        if token is None:
            raise RequestError(
                "UNAUTHENTICATED",
                "this server needs a token: send the header authorization: Bearer TOKEN, or log in "
                "with any user name and the token as password",
            )
        if not hmac.compare_digest(_digest(token), _digest(self._token)):
            raise RequestError("UNAUTHENTICATED", "the token is wrong")


def _wanted(node: Feed | None, seconds: float) -> Wanted | None:
    """Return what the tables should include now; None if nobody knows."""
    if node is None:
        return None
    try:
        head = node.head(patience=0)
    except SinkError:  # then the tables do not grow either
        return None
    return Wanted(head.epoch, head.head, seconds)


def _reader(name: str) -> Callable[[bytes], Any]:
    """Return what reads a message; a malformed one is reported later, with the right status."""

    def read(data: bytes) -> Any:
        try:
            return parsed(name, data)
        except MalformedError as error:
            return error

    return read


def _whole(message: Any) -> Message:
    if isinstance(message, MalformedError):
        raise RequestError("INVALID_ARGUMENT", str(message))
    return message


def _call(context: grpc.ServicerContext) -> FlightCall:
    def on_gone(act: Callable[[], None]) -> None:
        if not context.add_callback(act):
            act()  # it is gone already

    return FlightCall(str(context.peer()), on_gone)


class _Calls:
    """The slots of calls, by the policy of `recon_node.fairness.slots`.

    A call whose client says nothing, or does not read, holds a thread; so it is idle meanwhile, and
    gives way to others.
    """

    def __init__(self, limit: int) -> None:
        self._lock = threading.Lock()
        self._all = Slots(limit, monotonic, grace=_UNREAD)
        self._listening = Slots(_LISTENING, monotonic)

    def taken_by(self, context: grpc.ServicerContext) -> AbstractContextManager[Slot]:
        """Take a slot for a call; raise `RequestError` if there is none."""
        return self._taken(self._all, context, busy=True)

    def message(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Message:
        """Return the one message of a call."""
        with self._taken(self._listening, context, busy=False):
            for message in requests:
                return _whole(message)
        raise RequestError("INVALID_ARGUMENT", "the call has no message")

    @contextmanager
    def messages(
        self, requests: Iterator[Any], context: grpc.ServicerContext
    ) -> Iterator[Iterator[Any]]:
        """Yield the messages of an upload; end the call if the client takes too long to send
        them."""
        waits = (_FIRST_MESSAGE, _UPLOAD_SECONDS)
        timers = [threading.Timer(seconds, context.cancel) for seconds in waits]
        for timer in timers:
            timer.daemon = True
            timer.start()
        try:
            with self._taken(self._listening, context, busy=False):
                yield _after_first(requests, timers[0].cancel)
        finally:
            for timer in timers:
                timer.cancel()

    @contextmanager
    def _taken(self, slots: Slots, context: grpc.ServicerContext, *, busy: bool) -> Iterator[Slot]:
        with self._lock:
            slot = slots.take(address_of(str(context.peer())), context.cancel, busy=busy)
        if slot is None:
            raise RequestError("RESOURCE_EXHAUSTED", "too many calls are under way: try again")
        try:
            yield slot
        finally:
            with self._lock:
                slot.leave()


def _taken(answer: Iterator[Message], slot: Slot) -> Iterator[Message]:
    """The messages of an answer; the call is idle while the client does not take one."""
    for message in answer:
        slot.use(busy=False)
        yield message
        slot.use(busy=True)


def _after_first(messages: Iterator[Any], act: Callable[[], None]) -> Iterator[Any]:
    """The messages; `act` is called when the first one is there."""
    for message in messages:
        act()
        yield message


def _token_in(authorization: str) -> str | None:
    """Return the token in a header; as the password, if it is that of a login."""
    scheme, _, credentials = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return credentials.strip()
    if scheme.lower() != "basic":
        return None
    try:
        return base64.b64decode(credentials, validate=False).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return None


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


def _check_access(address: str, token: str | None, *, anonymous: bool) -> None:
    """Raise an error if other machines could read everything without a token."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        is_loopback = host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        is_loopback = False
    if token is None and not is_loopback and not anonymous:
        raise SinkError(
            f"everyone who can reach {address} could read all tables: set a token "
            "(--auth-token-file), listen on 127.0.0.1, or allow it (--anonymous)"
        )


def _check_address(address: str) -> None:
    """Raise `SinkError` if the system does not let us listen there: gRPC would not say why."""
    host, _, port = address.rpartition(":")
    try:
        infos = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        family, kind, protocol, _, where = infos[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
    except OSError as error:
        raise SinkError(
            f"cannot listen on {address}: {error.strerror}. "
            f"{bind_advice(error, int(port), '--listen')}"
        ) from error


def _credentials(certificate: Path, key: Path) -> Any:
    """Return what gRPC needs for TLS; raise `SinkError` if the files are of no use."""
    try:
        pair = read_small(key, _MAX_PEM), read_small(certificate, _MAX_PEM)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # Without a password, OpenSSL would ask for one on the terminal.
        context.load_cert_chain(certificate, key, password="")
    except ssl.SSLError as error:
        raise SinkError(
            f"cannot use {certificate} and {key} for TLS: both must be PEM files, and the key must "
            "be the certificate's, without a password"
        ) from error
    except OSError as error:
        name = error.filename or f"{certificate} or {key}"
        raise SinkError(f"cannot read {name}: {error.strerror}") from error
    return grpc.ssl_server_credentials([pair])


_BUCKETS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Seconds."""


class FlightMetrics:
    """The metrics of one server, in a registry of their own."""

    def __init__(self, limits: QueryLimits) -> None:
        self.registry = new_registry(
            "spark_sink_flight_build_info", duckdb_version=duckdb.__version__
        )
        self.calls = Histogram(
            "spark_sink_flight_call_duration_seconds",
            "Time of a client's call, by method and gRPC status. A feed counts as one DoGet that "
            "lasts until it ends. Calls beyond the number that gRPC takes at once do not count.",
            ["method", "status"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        gauge = partial(Gauge, labelnames=["kind"], registry=self.registry)
        about = "Queries that run or are planned, and feeds that are open."
        self._running = gauge("spark_sink_flight_running", about)
        limit = gauge("spark_sink_flight_limit", "Most queries, and most feeds, at the same time.")
        limit.labels("query").set(limits.queries)
        limit.labels("feed").set(limits.feeds)
        self.bytes_sent = Counter(
            "spark_sink_flight_sent_bytes",
            "Bytes of answers, before compression and TLS.",
            registry=self.registry,
        )

    def watch(self, queries: Callable[[], int], feeds: Callable[[], int]) -> None:
        """Set the functions that return how many queries run, and how many feeds are open."""
        self._running.labels("query").set_function(queries)
        self._running.labels("feed").set_function(feeds)
