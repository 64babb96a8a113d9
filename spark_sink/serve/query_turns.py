"""The server's side of its worker processes: whose turn it is, and what they answer.

Statements wait for a slot in the order in which they come, by address block: a client with many
that wait does not stand before the others. The slots follow the policy of `fairness.slots`: a
client in another block gets its share at once, at the cost of the one that has the most. Within a
block, the first half of the slots is for statements of any length. The rest is a *quick lane*: a
statement there gives way after `QUICK` seconds if another one waits. So a client that fills all
slots with long statements, on purpose or not, does not keep short ones out, not even its own.
"""

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
from urllib.parse import unquote

from recon_node.fairness.slots import Slot, Slots, address_block_of
from spark_sink.errors import Code, RequestError
from spark_sink.ipc import Parts
from spark_sink.serve.database import Wanted
from spark_sink.serve.query_worker import (
    DATA,
    END,
    ERROR,
    FRAME,
    LENGTH,
    PLAN,
    QueryRequest,
    StatementPlan,
)
from spark_sink.tables.location import Location, absolute

_SLOT_WAIT: Final = 20.0
"""Seconds that a query waits for a slot."""
_PLAN_SECONDS: Final = 20
"""Seconds that the plan of a statement may take."""
_EXIT_WAIT: Final = 5.0
"""Seconds to wait for the end of a process."""
# Not with -m: the classes in answers would have a module that does not exist here. And with -P, so
# that no modules are taken from the working directory.
_PARENT: Final = (
    "import socket; from spark_sink.serve.query_worker import serve; "
    "serve(socket.socket(fileno={}))"
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
class QueryLimits:
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


OnGone = Callable[[Callable[[], None]], Any]
"""Registers what to call when the client is gone."""


class QueryWorkers:
    """Runs queries over the tables at a location, each in a process of its own.

    Its methods raise `RequestError` if a query is wrong or fails, or no worker can run it now.
    """

    def __init__(self, tables: Location, limits: QueryLimits) -> None:
        self._tables = absolute(tables)
        self._limits = limits
        self._queries = StatementTurns(limits.queries, quick_lane=True)
        self._feeds = StatementTurns(limits.feeds)
        self._lock = threading.Lock()
        self._parent: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._open: set[socket.socket] = set()
        self._open_feeds: set[socket.socket] = set()
        self._closed = False
        with self._lock:
            self._start_parent()

    def table_schemas(self, client: str) -> dict[tuple[str, str], bytes]:
        """Return the columns of all tables, by schema and name, for a client."""
        request = QueryRequest("tables", self._tables, seconds=_PLAN_SECONDS)
        return cast("dict[tuple[str, str], bytes]", self._asked(request, client))

    def plan(self, sql: str, client: str) -> StatementPlan:
        """Return what is known about a statement of a client."""
        seconds = min(_PLAN_SECONDS, self._limits.seconds)
        request = QueryRequest("plan", self._tables, sql, seconds=seconds)
        return cast("StatementPlan", self._asked(request, client))

    def rows(
        self,
        sql: str,
        values: dict[str, Any],
        *,
        feed: bool,
        client: str,
        on_gone: OnGone,
        wanted: Wanted | None = None,
    ) -> Iterator[Parts]:
        """Yield the messages of a statement's answer; the first one has the schema.

        The query waits for what is `wanted` of the tables. The worker ends when the client is gone.
        """
        limits = self._limits
        request = QueryRequest(
            "rows",
            self._tables,
            sql,
            values,
            seconds=None if feed else limits.seconds,
            memory_mb=limits.memory_mb,
            threads=1 if feed else limits.threads,
            wanted=wanted,
        )
        with self._turn(client, feed=feed) as ending:
            for kind, first, second in self._frames(request, ending, on_gone):
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

    def _asked(self, request: QueryRequest, client: str) -> Any:
        """Return the result of a worker that answers with one frame."""
        with self._turn(client, feed=False) as ending:
            frames = list(self._frames(request, ending))
        return next(pickle.loads(first) for kind, first, _ in frames if kind == PLAN)

    @contextmanager
    def _turn(self, client: str, *, feed: bool) -> Iterator[_Ending]:
        """Wait for a client's turn; provide what ends its worker if it has to give way."""
        ending, turns = _Ending(), self._feeds if feed else self._queries
        wait = 0.0 if feed else _SLOT_WAIT
        with turns.taken_by(client, ending.end, wait) as has_turn:
            if not has_turn:
                limits = self._limits
                raise RequestError(
                    "RESOURCE_EXHAUSTED",
                    f"{limits.feeds} feeds are open already: close one"
                    if feed
                    else f"{limits.queries} queries are running already: try again later",
                )
            yield ending

    def _frames(
        self, request: QueryRequest, ending: _Ending, on_gone: OnGone | None = None
    ) -> Iterator[tuple[int, bytes, bytes]]:
        """Start a worker, and yield the frames of its answer."""
        started = monotonic()
        with self._worker(feed=request.seconds is None) as connection:
            ending.watch(connection)
            if on_gone is not None:
                on_gone(lambda: _shut(connection))
            with suppress(OSError), connection.makefile("rb") as stream:
                _send(connection, request)
                while len(header := stream.read(FRAME.size)) == FRAME.size:
                    kind, *lengths = FRAME.unpack(header)
                    first, second = (stream.read(length) for length in lengths)
                    if len(second) < lengths[1]:
                        break
                    if kind == END:
                        return
                    if kind == ERROR:
                        raise RequestError(cast("Code", first.decode()), second.decode())
                    yield kind, first, second
            raise self._died(request, ending, monotonic() - started)

    @contextmanager
    def _worker(self, *, feed: bool) -> Iterator[socket.socket]:
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
                [sys.executable, "-P", "-c", _PARENT.format(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**os.environ, **_SETTINGS},
            )
        self._control = ours

    def _died(self, request: QueryRequest, ending: _Ending, seconds: float) -> RequestError:
        """Return the error for a worker that ended before its answer did."""
        if self._closed:
            return _stopping()
        if ending.is_due:
            return RequestError(
                "RESOURCE_EXHAUSTED",
                "the statement took long and gave way to one that waited: try again later",
            )
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


class _Ending:
    """The end of a worker that has to give way; it may come before the worker does."""

    def __init__(self) -> None:
        self.is_due = False
        self._connection: socket.socket | None = None

    def end(self) -> None:
        """End the worker."""
        self.is_due = True
        if self._connection is not None:
            _shut(self._connection)

    def watch(self, connection: socket.socket) -> None:
        """Name the connection with the worker."""
        self._connection = connection
        if self.is_due:
            _shut(connection)


def _stopping() -> RequestError:
    return RequestError("UNAVAILABLE", "the server is stopping")


def _send(connection: socket.socket, request: QueryRequest) -> None:
    data = pickle.dumps(request)
    connection.sendall(LENGTH.pack(len(data)) + data)


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):  # it is closed already
        connection.shutdown(socket.SHUT_RDWR)


QUICK: Final = 1.0
"""Seconds that a statement has in the quick lane, at least."""
MAX_WAITING: Final = 16
"""Maximum statements of an address block that wait."""
_POLL: Final = 0.25
"""Seconds between two looks for a slot that has had its time."""
_LANE_SHARE: Final = 2


class StatementTurns:
    """Turns for statements. Its methods may be called by any thread.

    Args:
        limit: the statements that run at once.
        quick_lane: whether to have one. A single slot is never one.
    """

    def __init__(self, limit: int, *, quick_lane: bool = False) -> None:
        self._slots = Slots(limit, monotonic, grace=QUICK)
        lane = max(1, limit // _LANE_SHARE) if quick_lane and limit > 1 else 0
        self._lasting = limit - lane
        """How many of them may take as long as they need."""
        self._running: list[Slot] = []
        self._waiting: list[_Waiter] = []
        self._changed = threading.Condition()

    @contextmanager
    def taken_by(self, client: str, give_way: Callable[[], None], wait: float) -> Iterator[bool]:
        """Take a turn for the block; yield False if there is none within `wait` seconds.

        Args:
            client: its address, as gRPC writes it.
            give_way: as in `Slots.take`; any thread may call it.
            wait: how long to wait.
        """
        slot = self._take(address_of(client), give_way, wait)
        try:
            yield slot is not None
        finally:
            if slot is not None:
                with self._changed:
                    slot.leave()
                    self._settle()

    def _take(self, address: str, give_way: Callable[[], None], wait: float) -> Slot | None:
        waiter, deadline = _Waiter(address_block_of(address)), monotonic() + wait
        with self._changed:
            if len(self._waiting_of(waiter)) >= MAX_WAITING:
                return None
            self._waiting.append(waiter)
            slot, left = None, wait
            try:
                while slot is None and left >= 0:
                    if self._waiting_of(waiter)[0] is waiter:
                        slot = self._slots.take(address, give_way)
                    if slot is None:
                        self._changed.wait(min(left, _POLL))
                        left = deadline - monotonic()
            finally:
                self._waiting.remove(waiter)
                if slot is not None:
                    self._running.append(slot)
                self._settle()
            return slot

    def _waiting_of(self, waiter: _Waiter) -> list[_Waiter]:
        return [other for other in self._waiting if other.address_block == waiter.address_block]

    def _settle(self) -> None:
        """Let those that came first take as long as they need, and those that wait look again."""
        self._running = [slot for slot in self._running if not slot.lost]
        for slot in self._running[: self._lasting]:
            slot.is_busy = True
        for slot in self._running[self._lasting :]:
            slot.is_busy = False
        self._changed.notify_all()


@dataclass(slots=True, eq=False)
class _Waiter:
    """A statement that waits for its turn."""

    address_block: str


def address_of(peer: str) -> str:
    """Return the IP address in what gRPC calls a client, such as `ipv6:%5B::1%5D:50000`."""
    kind, _, rest = unquote(peer).partition(":")
    if kind not in ("ipv4", "ipv6"):
        return peer
    return rest.rpartition(":")[0].strip("[]")
