"""Where the API listens: sockets that are bound before anything else of the node starts."""

import errno
import socket
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final

import trio

from recon_node.base.errors import reason_of
from recon_node.base.program import bind_advice

_BACKLOG: Final = 1024
"""Connections that wait in the kernel to be accepted."""
_NO_SUCH_ADDRESS: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


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
        reason = reason_of(error)
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
        sock.listen(_BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def _url(address: tuple[str, int]) -> str:
    host, port = address[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
