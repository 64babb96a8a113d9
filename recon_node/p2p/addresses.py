"""Multiaddrs: read, checked, and spelled out."""

from __future__ import annotations

import socket
from collections.abc import Iterable

import trio
from multiaddr import Multiaddr  # type: ignore[import-untyped]
from multiaddr.utils import get_thin_waist_addresses  # type: ignore[import-untyped]

from recon_node.p2p.errors import P2PError, PeerError

_DNS_FAMILIES = {
    "dns": socket.AF_UNSPEC,
    "dns4": socket.AF_INET,
    "dns6": socket.AF_INET6,
}


def peer_id_in(address: str) -> str:
    """Return the peer id at the end of a multiaddr.

    Raises PeerError when there is none.
    """
    parsed = parse_address(address)
    try:
        peer_id = parsed.value_for_protocol("p2p")
    except Exception:
        peer_id = None
    if not peer_id:
        raise PeerError(f"the address {address} names no peer: it must end with /p2p/<peer id>")
    return str(peer_id)


def parse_address(address: str) -> Multiaddr:
    """Return a multiaddr. Raises PeerError when the text is none."""
    try:
        return Multiaddr(address)
    except Exception as error:  # multiaddr raises several kinds, and its codecs more
        raise PeerError(
            f"{address!r} is no multiaddr such as /ip4/127.0.0.1/tcp/4101: {error}"
        ) from None


async def resolve(address: Multiaddr) -> Multiaddr:
    """Replace a DNS name in front of a multiaddr by its first IP address; leave others alone.

    Raises PeerError when the name does not resolve.
    """
    first = next(iter(address.protocols()), None)
    if first is None or first.name not in _DNS_FAMILIES:
        return address
    name = address.value_for_protocol(first.name)
    try:
        found = await trio.socket.getaddrinfo(
            name, None, family=_DNS_FAMILIES[first.name], type=socket.SOCK_STREAM
        )
    except OSError as error:
        raise PeerError(f"cannot find the host {name} of {address}: {error.strerror}") from None
    family, ip = found[0][0], found[0][4][0]
    version = "ip6" if family == socket.AF_INET6 else "ip4"
    return Multiaddr(str(address).replace(f"/{first.name}/{name}", f"/{version}/{ip}", 1))


def check_port(address: Multiaddr) -> None:
    """Raise P2PError when an address cannot be listened on, or its port is taken.

    The library shares ports (SO_REUSEPORT) and would say nothing.
    """
    names = [each.name for each in address.protocols()]
    if len(names) != 2 or names[0] not in ("ip4", "ip6") or names[1] != "tcp":
        raise P2PError(
            f"cannot listen on {address}: it must be /ip4/.../tcp/<port> or /ip6/.../tcp/<port>"
        )
    ip, port = address.value_for_protocol(names[0]), int(address.value_for_protocol("tcp") or 0)
    family = socket.AF_INET6 if names[0] == "ip6" else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((ip, port))
    except OSError as error:
        raise P2PError(
            f"cannot listen on {address}: {error.strerror}. Is another node running there? "
            "Choose another port in the p2p setting `listen`"
        ) from error


def reachable(candidates: Iterable[Multiaddr]) -> list[Multiaddr]:
    """Spell out "all addresses of this machine": nobody can dial 0.0.0.0."""
    return [
        each
        for candidate in candidates
        for each in get_thin_waist_addresses(candidate) or [candidate]
    ]
