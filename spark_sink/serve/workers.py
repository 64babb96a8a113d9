"""The server's side of its worker processes: how many there are, and what they answer."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, cast

from spark_sink.serve.database import Wanted
from spark_sink.serve.errors import Code, RequestError
from spark_sink.serve.ipc import Parts
from spark_sink.serve.worker import DATA, END, ERROR, FRAME, LENGTH, PLAN, Plan, Request
from spark_sink.tables.location import Location, absolute

# Seconds.
_SLOT_WAIT: Final = 10.0
_PLAN_SECONDS: Final = 20
_EXIT_WAIT: Final = 5.0
# Not with -m: the classes in answers would have a module that does not exist here.
_PARENT: Final = (
    "import socket; from spark_sink.serve.worker import serve; serve(socket.socket(fileno={}))"
)
# Libraries would start threads when they are imported, which a fork must not have. And Arrow's own
# allocator would take a gigabyte at once, which counts against the limit of a worker's memory. The
# zone is that in which DuckDB casts times, and should not depend on where the server is.
_SETTINGS: Final = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "TZ": "UTC",
}


@dataclass(frozen=True, slots=True)
class Limits:
    """What clients may use.

    Attributes:
        queries: that run at the same time; others wait for a moment.
        feeds: that are open at the same time.
        seconds: for which a query may run, and its answer be read.
        memory_mb: of DuckDB, for each query and feed.
        threads: of DuckDB, for each query.
    """

    queries: int = 4
    feeds: int = 16
    seconds: int = 60
    memory_mb: int = 512
    threads: int = 2


#: Registers what to call when the client is gone.
OnGone = Callable[[Callable[[], None]], Any]


class Workers:
    """Runs queries over the tables at a location, each in a process of its own."""

    def __init__(self, tables: Location, limits: Limits) -> None:
        self._tables = absolute(tables)
        self._limits = limits
        self._queries = threading.BoundedSemaphore(limits.queries)
        self._feeds = threading.BoundedSemaphore(limits.feeds)
        self._lock = threading.Lock()
        self._parent: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._open: set[socket.socket] = set()
        self._open_feeds: set[socket.socket] = set()
        self._closed = False
        with self._lock:
            self._start_parent()

    def table_schemas(self) -> dict[tuple[str, str], bytes]:
        """Return the columns of all tables, by schema and name.

        Raises:
            RequestError: no worker can do it now.
        """
        request = Request("tables", self._tables, seconds=_PLAN_SECONDS)
        return cast("dict[tuple[str, str], bytes]", self._asked(request))

    def plan(self, sql: str) -> Plan:
        """Return what is known about a statement.

        Raises:
            RequestError: it is wrong, or no worker can tell now.
        """
        request = Request("plan", self._tables, sql, seconds=min(_PLAN_SECONDS, self._seconds))
        return cast("Plan", self._asked(request))

    def rows(
        self,
        sql: str,
        values: dict[str, Any],
        *,
        feed: bool,
        on_gone: OnGone,
        wanted: Wanted | None = None,
    ) -> Iterator[Parts]:
        """Yield the messages of a statement's answer; the first one has the schema.

        The query waits for what is `wanted` of the tables. The worker ends when the client is gone.

        Raises:
            RequestError: it fails, or too many are running.
        """
        limits = self._limits
        request = Request(
            "rows",
            self._tables,
            sql,
            values,
            seconds=None if feed else limits.seconds,
            memory_mb=limits.memory_mb,
            threads=1 if feed else limits.threads,
            wanted=wanted,
        )
        with self._feed_slot() if feed else self._query_slot():
            for kind, first, second in self._frames(request, on_gone):
                if kind == DATA:
                    yield first, second

    def running(self) -> int:
        """Return how many queries run."""
        return len(self._open)

    def open_feeds(self) -> int:
        """Return how many feeds are open."""
        return len(self._open_feeds)

    def stop_feeds(self) -> None:
        """End all feeds, and start nothing more."""
        with self._lock:
            self._closed = True
            for connection in self._open_feeds:
                _shut(connection)

    def close(self) -> None:
        """End all workers."""
        with self._lock:
            self._closed = True
            for connection in self._open | self._open_feeds:
                _shut(connection)
            if self._control is not None:
                self._control.close()
        if self._parent is not None:
            try:
                self._parent.wait(_EXIT_WAIT)
            except subprocess.TimeoutExpired:
                self._parent.kill()
                self._parent.wait()

    @property
    def _seconds(self) -> int:
        return self._limits.seconds

    def _asked(self, request: Request) -> Any:
        """Return the result of a worker that answers with one frame."""
        with self._query_slot():
            frames = list(self._frames(request))
        return next(pickle.loads(first) for kind, first, _ in frames if kind == PLAN)

    @contextmanager
    def _query_slot(self) -> Iterator[None]:
        if not self._queries.acquire(timeout=_SLOT_WAIT):
            raise RequestError(
                "RESOURCE_EXHAUSTED",
                f"{self._limits.queries} queries are running already: try again later",
            )
        try:
            yield
        finally:
            self._queries.release()

    @contextmanager
    def _feed_slot(self) -> Iterator[None]:
        if not self._feeds.acquire(blocking=False):
            raise RequestError(
                "RESOURCE_EXHAUSTED", f"{self._limits.feeds} feeds are open already: close one"
            )
        try:
            yield
        finally:
            self._feeds.release()

    def _frames(
        self, request: Request, on_gone: OnGone | None = None
    ) -> Iterator[tuple[int, bytes, bytes]]:
        """Start a worker, and yield the frames of its answer."""
        started = monotonic()
        with self._worker(feed=request.seconds is None) as connection:
            if on_gone is not None:
                on_gone(lambda: _shut(connection))
            with connection.makefile("rb") as stream:
                try:
                    _send(connection, request)
                    while True:
                        header = stream.read(FRAME.size)
                        if len(header) < FRAME.size:
                            raise self._died(request, monotonic() - started)
                        kind, *lengths = FRAME.unpack(header)
                        first, second = (stream.read(length) for length in lengths)
                        if len(second) < lengths[1]:
                            raise self._died(request, monotonic() - started)
                        if kind == END:
                            return
                        if kind == ERROR:
                            raise RequestError(cast("Code", first.decode()), second.decode())
                        yield kind, first, second
                except OSError:
                    raise self._died(request, monotonic() - started) from None

    @contextmanager
    def _worker(self, *, feed: bool) -> Iterator[socket.socket]:
        """Start a worker; provide the socket on which it takes its request."""
        ours, theirs = socket.socketpair()
        among = self._open_feeds if feed else self._open
        with ours, theirs:
            with self._lock:
                if self._closed:
                    raise _stopping()
                if self._parent is None or self._parent.poll() is not None:
                    self._start_parent()
                assert self._control is not None
                socket.send_fds(self._control, [b"w"], [theirs.fileno()])
                among.add(ours)
            theirs.close()
            try:
                yield ours
            finally:
                with self._lock:
                    among.discard(ours)

    def _start_parent(self) -> None:
        if self._control is not None:
            self._control.close()
        ours, theirs = socket.socketpair()
        with theirs:
            self._parent = subprocess.Popen(
                [sys.executable, "-c", _PARENT.format(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**os.environ, **_SETTINGS},
            )
        self._control = ours

    def _died(self, request: Request, seconds: float) -> RequestError:
        """Return the error for a worker that ended before its answer did."""
        if self._closed:
            return _stopping()
        if request.seconds is not None and seconds >= request.seconds:
            return RequestError(
                "DEADLINE_EXCEEDED",
                f"the query and the reading of its answer took more than {request.seconds} s",
            )
        return RequestError(
            "RESOURCE_EXHAUSTED",
            f"the query ended its process: it probably needs more than {request.memory_mb} MB of "
            "memory",
        )


def _stopping() -> RequestError:
    return RequestError("UNAVAILABLE", "the server is stopping")


def _send(connection: socket.socket, request: Request) -> None:
    data = pickle.dumps(request)
    connection.sendall(LENGTH.pack(len(data)) + data)


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):  # it is closed already
        connection.shutdown(socket.SHUT_RDWR)
