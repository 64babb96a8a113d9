"""Serving the API: who gets a connection, HTTP/1.1 in it for an ASGI application, and the end.

h11 reads requests, from anybody, and is strict. A request with a plain head that comes in one piece
is read at once: `_PLAIN_HEAD` accepts less than h11 does, and what it accepts means the same to
both. Answers are this node's own, and an `AnswerWriter` makes their bytes. h11's part took a
quarter of a small request for each of the two.

A connection is idle until the head of a request is complete, and again when it has been answered;
its slot then goes to a newcomer if there is no other (`fairness.slots`). A client that is gone
has the application cancelled at the next write; `receive` reports it earlier. Requests that wait
behind another one are read ahead up to `MAX_AHEAD` bytes. Of all requests that were sent ahead or
have others behind them, on whatever connections, one begins in a turn of the event loop: a client
can send thousands at once, and newcomers, liveness and peers must get their turns between them.

A request that can be understood in two ways ends the connection (RFC 9112, section 6.1), and so
does one for another host (`middleware.Hosts`). There is no TLS, no HTTP/2, and no upgrade.

On shutdown the listener closes first. Idle connections end at once, requests in progress have
`GRACE` seconds to finish, and then the rest is cut off.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from email.utils import formatdate
from functools import lru_cache, partial
from http import HTTPStatus
from math import inf
from typing import Final, NamedTuple
from urllib.parse import unquote

import h11
import structlog
import trio
from pydantic_core import to_json
from starlette.types import ASGIApp, Message, Scope

from recon_node.api.listener import Listener
from recon_node.api.middleware import PIECE, Hosts, declared_length
from recon_node.fairness.slots import AllowList, Slot, Slots

logger = structlog.get_logger(__name__)

GRACE = 1.0
MAX_CONNECTIONS = 1536
_ACCEPTED_AT_ONCE: Final = 64
"""Connections that are accepted before others get a turn."""
_RETRY: Final = 0.1
"""Seconds until connections are accepted again, when this process can have no more."""
_TOLD_EVERY: Final = 60.0
"""Seconds between two log lines that say so."""
_NO_ROOM: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

_WATCH: Final = 1.0
"""Seconds between two looks at how long connections have sent nothing."""
KEEP_ALIVE: Final = 75.0
"""Seconds that a connection may be idle."""
HEAD_LIMIT: Final = 20.0
"""Seconds in which a request's head must be complete, from its first byte."""
STALLED_WRITE: Final = 60.0
"""Seconds in which a client must take some of an answer; how much, `middleware.Bound` says."""
MAX_HEAD: Final = 16 * 1024
"""Maximum bytes of a request's head."""
MAX_AHEAD: Final = 64 * 1024
"""Maximum bytes that are read of the requests behind the one that is being answered."""
_LINGER: Final = 5.0
"""Seconds for which a client that is refused may go on sending, so that it sees the answer."""
_CHUNKS_AT_ONCE: Final = 256
"""Chunks of a body that are read before others get a turn: each takes some 40 µs."""
_SMALL_CHUNKS: Final = 1_000
_MEAN_CHUNK: Final = 64
"""A body of more chunks than the former has at least this many bytes in each, on average. Clients
send whole buffers; a byte in each chunk is work that only the server has."""
_EMPTY_READS: Final = 8
"""Reads that may bring nothing but empty lines before a request."""
_NOTHING: Final = (b"", b"\r")
_EMPTY_LINES: Final = re.compile(rb"\A(?:\r?\n)+")
"""Before a request, which some clients send behind a body (RFC 9112, section 2.2)."""
_GONE: Final = (trio.BrokenResourceError, trio.ClosedResourceError)
"""The errors of a stream whose client is gone."""
_VERSIONS: Final = (b"1.0", b"1.1")
_PLAIN_HEAD: Final = re.compile(
    rb"(GET|HEAD|POST|DELETE|OPTIONS) (/[!-~]*) HTTP/1\.1\r\n"
    rb"((?:[-0-9A-Za-z]+: ?[!-~](?:[ -~]*[!-~])?\r\n)+)\r\n"
)
_PLAIN_FIELD: Final = re.compile(rb"([-0-9A-Za-z]+): ?([^\r]+)\r\n")
_LENGTH: Final = re.compile(rb"[0-9]{1,15}")
_LEFT_TO_H11: Final = frozenset({b"transfer-encoding", b"expect"})
"""Fields about how the body comes."""
_REASONS: Final = {int(status): status.phrase.encode() for status in HTTPStatus}
_WITHOUT_BODY: Final = (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)


async def serve(
    app: ASGIApp,
    listener: Listener,
    closing: trio.Event,
    hosts: Sequence[str] = (),
    always_admit: Sequence[str] = (),
) -> None:
    """Serve `app` until `closing` is set; return when the last connection is gone.

    Requests may call this node by one of `hosts`, beside its addresses.
    """
    slots = Slots(MAX_CONNECTIONS, trio.current_time, AllowList(always_admit))
    own_hosts = Hosts(listener.hosts, hosts)
    sent_ahead = trio.Lock()
    connections: set[HttpConnection] = set()

    async def handle(stream: trio.SocketStream) -> None:
        with (
            stream.socket,
            trio.CancelScope() as scope,
            suppress(OSError),  # the client is gone already
        ):
            address = str(stream.socket.getpeername()[0])
            with slots.taken_by(address, scope.cancel, busy=False) as slot:
                if slot is None:
                    return
                connection = HttpConnection(app, stream, own_hosts, slot, sent_ahead)
                connections.add(connection)
                try:
                    await connection.run()
                except Exception:
                    logger.exception("An API connection failed")
                finally:
                    connections.remove(connection)

    async with trio.open_nursery() as nursery:
        async with trio.open_nursery() as accepting:
            for sock in listener.sockets:
                accepting.start_soon(_accept, sock, partial(nursery.start_soon, handle))
            accepting.start_soon(_watch, connections)
            await closing.wait()
            accepting.cancel_scope.cancel()
        for connection in list(connections):
            connection.finish()
        nursery.cancel_scope.deadline = trio.current_time() + GRACE


async def _watch(connections: Collection[HttpConnection]) -> None:
    """End connections that send nothing for too long, forever.

    A look at all of them in each second costs less than a deadline for each request.
    """
    while True:
        await trio.sleep(_WATCH)
        now = trio.current_time()
        for connection in list(connections):
            connection.end_if_due(now)


async def _accept(
    listening: trio.socket.SocketType, start: Callable[[trio.SocketStream], object]
) -> None:
    """Start something with each connection, until cancelled.

    Of a crowd that connects again and again, all are accepted: `trio.serve_listeners` accepts one
    in a turn of the event loop, so that newcomers would wait in the kernel's queue behind them.
    """
    with socket.socket(fileno=listening.detach()) as sock:
        sock.setblocking(False)
        told_at = -inf
        while True:
            await trio.lowlevel.wait_readable(sock.fileno())
            try:
                for _ in range(_ACCEPTED_AT_ONCE):
                    accepted, _ = sock.accept()
                    start(trio.SocketStream(trio.socket.from_stdlib_socket(accepted)))
            except (BlockingIOError, ConnectionAbortedError):
                pass
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    raise
                if trio.current_time() >= told_at + _TOLD_EVERY:
                    told_at = trio.current_time()
                    logger.warning("Cannot accept API connections", reason=error.strerror)
                await trio.sleep(_RETRY)


class _RefusedError(Exception):
    """The request is refused, and the connection ends."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class HttpConnection:
    """One connection of a client."""

    def __init__(
        self,
        app: ASGIApp,
        stream: trio.SocketStream,
        hosts: Hosts,
        slot: Slot,
        sent_ahead: trio.Lock,
    ) -> None:
        self._app = app
        self._stream = stream
        self._hosts = hosts
        self._sent_ahead = sent_ahead
        self._slot = slot
        self._http: h11.Connection | None = None
        """What reads the request; None: its head is plain, or not here yet."""
        self._answer = AnswerWriter()
        self._client = _address(stream.socket.getpeername())
        self._server = _address(stream.socket.getsockname())
        self._running = trio.CancelScope()
        """Around all requests: entering a scope takes 10 µs. Its end is the connection's."""
        self._until = inf
        """When the connection ends if nothing comes; never while a request is answered."""
        self._is_idle = self._is_closing = self._is_gone = False
        self._has_begun = False
        """Whether a part of the next request's head is here."""
        self._is_read = True
        """Whether the whole request is."""
        self._body: bytes | None = None
        """The body if it was here with the head, which was not received yet."""
        self._behind: bytes | None = b""
        """What came behind such a body; None: h11 reads the body."""
        self._ahead = self._chunks = self._received = 0
        """Bytes read of the requests behind this one; chunks and bytes of its body."""
        self._fault: h11.RemoteProtocolError | None = None
        """What was wrong with the body."""
        self._has_ended = False
        """Whether the client sends no more."""
        self._start: Message | None = None

    def finish(self) -> None:
        """End the connection: now if it is idle, else after the answer."""
        self._is_closing = True
        if self._is_idle:
            self._running.cancel()

    def end_if_due(self, now: float) -> None:
        """End the connection if it has waited long enough."""
        if now >= self._until:
            self._running.cancel()

    async def run(self) -> None:
        """Answer requests until either side ends the connection."""
        try:
            with self._running:
                await self._answer_requests()
            if self._is_gone:
                return
            if self._running.cancelled_caught and self._has_begun and not self._is_closing:
                reason = "the head of the request is too slow"
                raise _RefusedError(HTTPStatus.REQUEST_TIMEOUT, reason)
        except _RefusedError as error:
            await self._refuse(error.status, str(error))
        except h11.RemoteProtocolError as error:
            await self._refuse(error.error_status_hint, f"not a request of HTTP/1.1: {error}")
        except _GONE:
            return  # the client is gone
        await self._linger()

    async def _answer_requests(self) -> None:
        while not self._is_closing and (scope := await self._next_request()) is not None:
            self._slot.use(busy=True)
            await self._app(scope, self._receive_part, self._send_part)
            self._slot.use(busy=False)
            if self._fault is not None:
                raise self._fault
            if not (self._is_read and self._answer.is_complete and self._answer.keeps_alive):
                break

    async def _next_request(self) -> Scope | None:
        """Return the next request once its head is here; None if none comes."""
        beginning = self._h11.trailing_data[0] if self._behind is None else self._behind
        self._answer = AnswerWriter()
        self._is_idle, self._has_begun = True, False
        self._until = trio.current_time() + KEEP_ALIVE
        beginning = _EMPTY_LINES.sub(b"", beginning)
        was_sent_ahead = beginning not in _NOTHING
        for _ in range(_EMPTY_READS):
            if beginning not in _NOTHING:
                break
            received = await self._read(MAX_HEAD)
            if not received:  # the client has ended the connection
                return None
            beginning = _EMPTY_LINES.sub(b"", beginning + received)
        self._http = None
        head = plain_head(beginning) or await self._head_by_h11(beginning)
        if head is None:
            return None
        self._is_read = False
        scope = self._scope_of(head)
        self._answer = _answer_to(head)
        self._take_body(declared_length(scope), head.behind)
        if (was_sent_ahead and not self._has_begun) or self._behind:
            async with self._sent_ahead:
                await trio.lowlevel.checkpoint()
        self._is_idle, self._until = False, inf
        return scope

    async def _head_by_h11(self, beginning: bytes) -> Head | None:
        """Return the head of a request that begins so; None if the client ends the connection."""
        http = self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)
        if beginning:  # nothing would be the end
            http.receive_data(beginning)
        size = len(beginning)
        while not isinstance(event := http.next_event(), h11.Request):
            if event is not h11.NEED_DATA:
                return None
            if not self._has_begun:
                self._has_begun = True
                self._until = trio.current_time() + HEAD_LIMIT
            http.receive_data(received := await self._read(MAX_HEAD))
            size += len(received)
        headers = [(name.lower(), value) for name, value in event.headers.raw_items()]
        behind = http.trailing_data[0]
        if size - len(behind) > MAX_HEAD:  # h11 looks at what is not complete yet
            raise h11.RemoteProtocolError("Head too long", error_status_hint=431)
        return Head(event.method, event.target, event.http_version, headers, behind)

    def _take_body(self, length: int | None, here: bytes) -> None:
        """Take the body of a request if it is here with the head; else h11 reads it."""
        self._is_read = length is not None and len(here) >= length
        self._body = here[:length] if self._is_read else None
        self._behind = here[length:] if self._is_read else None
        self._ahead = self._chunks = self._received = 0

    @property
    def _h11(self) -> h11.Connection:
        assert self._http is not None, "a plain request is here with its whole body"
        return self._http

    def _scope_of(self, request: Head) -> Scope:
        """Return what the application gets to know of a request.

        Raises:
            _RefusedError: it is not for this node, or can be understood in two ways.
        """
        headers = request.headers
        fields = dict(headers)
        if request.version not in _VERSIONS:
            raise _RefusedError(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "use HTTP/1.1")
        if b"transfer-encoding" in fields and (
            b"content-length" in fields or request.version == b"1.0"
        ):
            raise _RefusedError(
                HTTPStatus.BAD_REQUEST,
                "a request with Transfer-Encoding has no Content-Length, and is not of HTTP/1.0",
            )
        target, host = request.target, fields.get(b"host")
        if target[:7].lower() == b"http://":
            host, slash, rest = target[7:].partition(b"/")
            target = slash + rest or b"/"
            headers = [(b"host", host), *(header for header in headers if header[0] != b"host")]
        refusal = self._hosts.refusal(None if host is None else host.decode("latin-1"))
        if refusal is not None:
            raise _RefusedError(HTTPStatus.FORBIDDEN, refusal)
        path, _, query = target.partition(b"?")
        if not path.startswith(b"/") and path != b"*":
            raise _RefusedError(HTTPStatus.BAD_REQUEST, "the target should begin with a slash")
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": request.version.decode(),
            "method": request.method.decode("ascii").upper(),
            "scheme": "http",
            "path": unquote(path.decode("latin-1")),
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": headers,
            "client": self._client,
            "server": self._server,
        }

    async def _read(self, size: int) -> bytes:
        """Return some bytes, none at the end, in two thirds of the time of `SocketStream`, which
        first looks whether they are here already.

        Raises:
            trio.BrokenResourceError: the connection is lost.
        """
        descriptor = self._stream.socket.fileno()
        while True:
            await trio.lowlevel.wait_readable(descriptor)
            try:
                return os.read(descriptor, size)
            except BlockingIOError:  # the system was mistaken
                continue
            except OSError as error:
                raise trio.BrokenResourceError from error

    async def _write(self, data: bytes, *, is_last: bool = False) -> None:
        """Write bytes, the last ones of an answer at once if the system takes them.

        Raises:
            trio.BrokenResourceError: the client does not take them.
        """
        view = memoryview(data)[self._write_now(data) if is_last else 0 :]
        while view:
            with trio.move_on_after(STALLED_WRITE) as stalled:
                try:
                    view = view[await self._stream.socket.send(view) :]
                except OSError as error:
                    raise trio.BrokenResourceError from error
            if stalled.cancelled_caught:
                raise trio.BrokenResourceError("the client does not read")

    def _write_now(self, data: bytes) -> int:
        """Write without a turn of the event loop and a time limit; return how many bytes."""
        try:
            return os.write(self._stream.socket.fileno(), data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise trio.BrokenResourceError from error

    async def _refuse(self, status: int, reason: str) -> None:
        """Answer a request that never reaches the application."""
        if self._answer.has_begun:
            return
        body = to_json({"message": reason})
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        head = self._answer.head(status, headers)
        with suppress(*_GONE):
            await self._write(head + self._answer.body(body, is_last=True))

    async def _linger(self) -> None:
        """End our side, and read what the client still sends: else it may not see the answer."""
        with suppress(*_GONE), trio.move_on_after(_LINGER):
            await self._stream.send_eof()
            is_wrong = self._http is not None and self._http.their_state is h11.ERROR
            if is_wrong or not self._is_read:
                while await self._read(PIECE):
                    pass

    async def _receive_part(self) -> Message:
        """Return a part of the body; after its end, wait until the client is gone. This is the
        application's `receive`."""
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        while not (self._has_ended or self._is_read):
            if self._received:  # what is here already may be thousands of chunks
                await trio.lowlevel.checkpoint()
            try:
                body = self._next_data()
            except h11.RemoteProtocolError as error:
                self._fault, self._has_ended = error, True
                break
            if body or self._is_read:
                return {"type": "http.request", "body": body, "more_body": not self._is_read}
            if self._h11.they_are_waiting_for_100_continue:
                go_on = h11.InformationalResponse(status_code=100, headers=[])
                await self._write_or_abandon(self._h11.send(go_on))
            await self._read_more()
        while not self._has_ended:
            if self._ahead > MAX_AHEAD:
                await trio.sleep_forever()  # nobody watches a client that has so much unread
            self._ahead += await self._read_more()
        return {"type": "http.disconnect"}

    def _next_data(self) -> bytes:
        """Return what is here of the body, at most `PIECE` bytes or `_CHUNKS_AT_ONCE` chunks.

        Raises:
            h11.RemoteProtocolError: the body is not one, or its chunks are too small.
        """
        parts: list[bytes] = []
        size = 0
        while size < PIECE and len(parts) < _CHUNKS_AT_ONCE:
            event = self._h11.next_event()
            if not isinstance(event, h11.Data):
                self._is_read = isinstance(event, h11.EndOfMessage)
                break
            parts.append(bytes(event.data))
            size += len(event.data)
            self._chunks += event.chunk_start
        self._received += size
        if self._chunks > _SMALL_CHUNKS and self._received < (self._chunks - 1) * _MEAN_CHUNK:
            raise h11.RemoteProtocolError(
                f"chunks of fewer than {_MEAN_CHUNK} bytes on average: send larger ones"
            )
        return b"".join(parts)

    async def _read_more(self) -> int:
        try:
            data = await self._read(PIECE)
        except trio.BrokenResourceError:
            data = b""
        self._has_ended = not data
        if self._behind is not None:
            self._behind += data
        elif data:
            self._h11.receive_data(data)
        return len(data)

    async def _send_part(self, message: Message) -> None:
        """Send a part of the answer: the application's `send`. Cancels it if the client is gone."""
        if message["type"] == "http.response.start":
            self._start = message
            return
        is_last = not message.get("more_body", False)
        head, start = b"", self._start
        if start is not None:
            head, self._start = self._answer.head(start["status"], start["headers"]), None
        body = self._answer.body(message.get("body", b""), is_last=is_last)
        await self._write_or_abandon(head + body, is_last=is_last)

    async def _write_or_abandon(self, data: bytes, *, is_last: bool = False) -> None:
        """Write bytes; end the connection, and what is done for it, if the client is gone."""
        try:
            await self._write(data, is_last=is_last)
        except _GONE:
            self._has_ended = self._is_gone = True
            self._running.cancel()
            await trio.lowlevel.checkpoint()


class Head(NamedTuple):
    """The head of a request."""

    method: bytes
    target: bytes
    version: bytes
    headers: list[tuple[bytes, bytes]]
    """Names are in lower case."""
    behind: bytes
    """What is here behind the head."""


def plain_head(data: bytes) -> Head | None:
    """Return the head of a request that is here with its whole body, if it is plain; else None."""
    found = _PLAIN_HEAD.match(data)
    if found is None or found.end() > MAX_HEAD:
        return None
    headers = [(name.lower(), value) for name, value in _PLAIN_FIELD.findall(found[3])]
    names = [name for name, _ in headers]
    if names.count(b"host") != 1 or not _LEFT_TO_H11.isdisjoint(names):
        return None
    lengths = [value for name, value in headers if name == b"content-length"]
    if len(lengths) > 1 or not all(map(_LENGTH.fullmatch, lengths)):
        return None
    behind = data[found.end() :]
    if len(behind) < sum(map(int, lengths)):
        return None
    return Head(found[1], found[2], b"1.1", headers, behind)


def _answer_to(request: Head) -> AnswerWriter:
    wishes = [value for name, value in request.headers if name == b"connection"]
    closes = any(wish.strip() == b"close" for wish in b",".join(wishes).lower().split(b","))
    return AnswerWriter(
        is_head=request.method == b"HEAD", is_old=request.version < b"1.1", keeps_alive=not closes
    )


def _address(address: tuple[object, ...]) -> tuple[str, int]:
    host, port = address[:2]
    return str(host).partition("%")[0], int(str(port))


class AnswerWriter:
    """Writes the answer to one request (RFC 9112): head, framing of the body, and what follows for
    the connection.

    Args:
        is_head: whether the request was HEAD: the answer has the head of that to GET, and no body.
        is_old: whether it was of HTTP/1.0, which does not know chunks.
        keeps_alive: whether another request may follow.
    """

    def __init__(
        self, *, is_head: bool = False, is_old: bool = False, keeps_alive: bool = False
    ) -> None:
        self._is_head = is_head
        self._is_old = is_old
        self._has_body = True
        self._left: int | None = None
        """Bytes of the body that are missing; None: it has no declared length."""
        self.keeps_alive = keeps_alive and not is_old
        self.has_begun = False
        self.is_complete = False

    def head(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        """Return the head of the answer. Names of headers are in lower case.

        Raises:
            ValueError: a header would end early, and its rest be taken for another one.
        """
        status_line = b"HTTP/1.1 %d %s" % (status, _REASONS.get(status, b""))
        lines = [status_line, b"date: " + _date(int(time.time()))]
        for name, value in headers:
            if name == b"content-length":
                self._left = int(value)
            elif name == b"connection":
                self.keeps_alive = self.keeps_alive and value != b"close"
                continue
            lines.append(name + b": " + value)
        self._has_body = not self._is_head and status not in _WITHOUT_BODY
        if self._left is None and status not in _WITHOUT_BODY:
            if self._is_old:
                self.keeps_alive = False
            else:
                lines.append(b"transfer-encoding: chunked")
        if not self.keeps_alive:
            lines.append(b"connection: close")
        ends = len(lines) + 1
        head = b"\r\n".join([*lines, b"", b""])
        if head.count(b"\n") != ends or head.count(b"\r") != ends or b"\0" in head:
            raise ValueError("a header of an answer has a line break or a zero byte")
        self.has_begun = True
        return head

    def body(self, data: bytes, *, is_last: bool) -> bytes:
        """Return a part of the body as it is sent.

        Raises:
            ValueError: the body does not have the declared length.
        """
        if self._has_body and self._left is not None:
            self._left -= len(data)
            if self._left < 0 or (is_last and self._left):
                raise ValueError("the body of an answer does not have the length in its head")
        self.is_complete = is_last
        if not self._has_body:
            return b""
        if self._left is not None or self._is_old:
            return data
        chunk = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
        return chunk + b"0\r\n\r\n" if is_last else chunk


@lru_cache(maxsize=1)
def _date(second: int) -> bytes:
    return formatdate(second, usegmt=True).encode()
