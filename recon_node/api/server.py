"""Serving the API: its port, who gets a connection, and the end.

On shutdown the listener closes first. Idle connections end at once, requests in progress have
`GRACE` seconds to finish, and then the rest is cut off. What happens in a connection is in
`http_connection`.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from typing import Any, Final

import structlog
import trio
from starlette.types import ASGIApp

from recon_node.api.http_connection import HttpConnection
from recon_node.api.middleware.guard import Hosts
from recon_node.base.program import bind_advice
from recon_node.fairness.slots import AllowList, Slots

logger = structlog.get_logger(__name__)

GRACE = 1.0
MAX_CONNECTIONS = 1536
BACKLOG = 1024
_ACCEPTED_AT_ONCE: Final = 64
"""Connections that are accepted before others get a turn."""
_RETRY: Final = 0.1
"""Seconds until connections are accepted again, when this process can have no more."""
_NO_ROOM: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_NO_SUCH_ADDRESS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


class ListenError(Exception):
    """The API cannot listen at the given address. The message is user-facing."""


@dataclass(frozen=True, slots=True, eq=False)
class Listener:
    """Bound and listening TCP sockets of one host and port, not accepting yet."""

    sockets: tuple[trio.socket.SocketType, ...]
    url: str
    hosts: tuple[str, ...]
    """The name or address that was asked for, and the addresses that it stands for."""
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
        infos = await trio.socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, kind, protocol, _, address in dict.fromkeys(infos):
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
    hosts = [address[0].partition("%")[0] for address in addresses]
    is_loopback = all(ip_address(host).is_loopback for host in hosts)
    return Listener(tuple(sockets), _url(addresses[0]), (host, *hosts), is_loopback)


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
                if slot is not None:
                    await answer(HttpConnection(app, stream, own_hosts, slot, sent_ahead))

    async def answer(connection: HttpConnection) -> None:
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
            await closing.wait()
            accepting.cancel_scope.cancel()
        for connection in list(connections):
            connection.finish()
        nursery.cancel_scope.deadline = trio.current_time() + GRACE


async def _accept(
    listening: trio.socket.SocketType, start: Callable[[trio.SocketStream], object]
) -> None:
    """Start something with each connection, until cancelled.

    Of a crowd that connects again and again, all are accepted: `trio.serve_listeners` accepts one
    in a turn of the event loop, so that newcomers would wait in the kernel's queue behind them.
    """
    with socket.socket(fileno=listening.detach()) as sock:
        sock.setblocking(False)
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
                logger.warning("Cannot accept API connections", reason=error.strerror)
                await trio.sleep(_RETRY)


def _url(address: tuple[str, int]) -> str:
    host, port = address[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
