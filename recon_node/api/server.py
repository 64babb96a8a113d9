"""Serving the API over HTTP/1.1: hypercorn's connections, in a nursery of our own.

hypercorn's own `serve` has five weaknesses that a daemon cannot afford, so its 60 lines that accept
connections are replaced here, around its connection class:

- It writes inside a shield, so a client that stops reading would hold up a shutdown forever. Here
  a write can be cancelled, and one that makes no progress for `STALLED_WRITE` seconds ends the
  connection.
- An exception in one connection ends the server. Here it is logged and ends that connection.
- It accepts any number of connections. Here there are at most `MAX_CONNECTIONS` at once.
- A connection that its client has closed stays until `KEEP_ALIVE` is over, or forever if one
  request waits behind another. Here its place is free at once. Otherwise clients that open a
  connection for each request would use up all places.
- Any client may switch to HTTP/2, where an answer to a client that is gone waits forever, and
  broken requests raise. Here there is only HTTP/1.1, and upgrades are ignored.

On shutdown the listener closes first. Idle connections end at once, requests in progress have
`GRACE` seconds to finish, and then the rest is cut off.
"""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from typing import Any

import h11
import structlog
import trio
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState, LifespanState
from hypercorn.utils import wrap_app
from starlette.types import ASGIApp

from recon_node.api.middleware.stack import PIECE
from recon_node.bind_errors import bind_advice

log = structlog.get_logger(__name__)

GRACE = 1.0
STALLED_WRITE = 60.0
KEEP_ALIVE = 75.0
MAX_CONNECTIONS = 512
BACKLOG = 256
_NO_SUCH_ADDRESS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


class ListenError(Exception):
    """The API cannot listen at the given address. The message is user-facing."""


@dataclass(frozen=True, slots=True, eq=False)
class Listener:
    """Bound and listening TCP sockets of one host and port, not accepting yet."""

    sockets: tuple[trio.socket.SocketType, ...]
    url: str
    is_loopback: bool
    """Whether only programs on this machine can reach it."""

    def close(self) -> None:
        """Release the port without serving."""
        for sock in self.sockets:
            sock.close()


async def open_listener(host: str, port: int) -> Listener:
    """Listen on `port` (0: any free port) of every address of `host`.

    A name such as `localhost` may have several. Those that this machine lacks, such as IPv6
    addresses on a machine without IPv6, do not matter as long as one works.

    Raises:
        ListenError: the port is taken, or the host is not an address of this machine.
    """
    sockets: list[trio.socket.SocketType] = []
    failure: OSError | None = None
    try:
        found = await trio.socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, kind, protocol, _, address in dict.fromkeys(found):
            if sockets and port == 0:
                address = (address[0], sockets[0].getsockname()[1], *address[2:])
            try:
                sockets.append(await _listen(family, kind, protocol, address))
            except OSError as error:
                failure = error
                if error.errno not in _NO_SUCH_ADDRESS:
                    raise
        if failure is not None and not sockets:
            raise failure
    except OSError as error:
        for sock in sockets:
            sock.close()
        reason = error.strerror or str(error)
        raise ListenError(
            f"the API cannot listen on {host}:{port}: {reason}. "
            f"{bind_advice(error, port, '--api HOST:PORT')}"
        ) from error
    addresses = [sock.getsockname() for sock in sockets]
    is_loopback = all(ip_address(address[0].partition("%")[0]).is_loopback for address in addresses)
    return Listener(tuple(sockets), _url(addresses[0]), is_loopback)


async def _listen(family: int, kind: int, protocol: int, address: Any) -> trio.socket.SocketType:
    sock = trio.socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await sock.bind(address)
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


async def serve(app: ASGIApp, listener: Listener, closing: trio.Event) -> None:
    """Serve `app` until `closing` is set; return when the last connection is gone."""
    config = _config()
    context = WorkerContext(max_requests=None)
    wrapped = wrap_app(app, config.wsgi_max_body_size, mode="asgi")  # type: ignore[arg-type]
    open_connections = 0

    async def handle(stream: trio.SocketStream) -> None:
        nonlocal open_connections
        if open_connections >= MAX_CONNECTIONS:
            await trio.aclose_forcefully(stream)
            return
        open_connections += 1
        try:
            state = ConnectionState(LifespanState({}))
            connection = Connection(wrapped, config, context, state, stream)
            await connection.run()
        except Exception:
            log.exception("An API connection failed")
        finally:
            open_connections -= 1
            await trio.aclose_forcefully(stream)

    listeners = [trio.SocketListener(sock) for sock in listener.sockets]
    async with trio.open_nursery() as connections:
        accept = partial(trio.serve_listeners, handle, listeners, handler_nursery=connections)
        async with trio.open_nursery() as accepting:
            accepting.start_soon(accept)
            await closing.wait()
            accepting.cancel_scope.cancel()
        await context.terminated.set()
        connections.cancel_scope.deadline = trio.current_time() + GRACE


class OnlyHttp11(H11Protocol):
    """HTTP/1.1 that does not switch to HTTP/2."""

    async def _check_protocol(self, event: h11.Request) -> None:
        """Ignore requests to upgrade."""


class Connection(TCPServer):
    """One connection, whose writes can be cancelled and never wait forever."""

    _client_is_done = False

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._reading = trio.CancelScope()

    async def _read_data(self) -> None:
        """Read until the client is done, then don't wait for another request."""
        self.protocol = OnlyHttp11(  # type: ignore[assignment]
            self.app,
            self.config,
            self.context,
            self._task_group,
            self.protocol.state,
            self.protocol.ssl,
            self.protocol.client,
            self.protocol.server,
            self.protocol_send,
        )
        with self._reading:
            await super()._read_data()
        self._client_is_done = True
        await self.idle_task.stop()

    async def protocol_send(self, event: Event) -> None:
        """Write an event of the HTTP protocol to the client."""
        if isinstance(event, Updated) and self._client_is_done:
            return  # it would start the wait for the next request
        if isinstance(event, Closed):
            await super().protocol_send(event)
            self._reading.cancel()
        elif isinstance(event, RawData):
            await self._write(event.data)
        else:
            await super().protocol_send(event)

    async def _write(self, data: bytes) -> None:
        view = memoryview(data)
        async with self.send_lock:
            try:
                for start in range(0, len(data), PIECE):
                    with trio.fail_after(STALLED_WRITE):
                        await self.stream.send_all(view[start : start + PIECE])
            except (
                trio.BrokenResourceError,
                trio.ClosedResourceError,
                trio.BusyResourceError,  # the other task that writes is the one that closes
                trio.TooSlowError,
            ):
                await trio.aclose_forcefully(self.stream)
                await self.protocol.handle(Closed())
                # It may wait for the end of this answer to look at the request behind it.
                self._reading.cancel()


def _config() -> Config:
    config = Config()
    config.accesslog = None
    config.errorlog = None
    config.include_server_header = False
    config.keep_alive_timeout = KEEP_ALIVE
    return config


def _url(address: tuple[str, int]) -> str:
    host, port = address[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
