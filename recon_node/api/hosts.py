"""Which hosts a request may name.

A web page can have the name of its own server point at this node (DNS rebinding). The browser then
takes the node for that server, and lets the page read everything. It still sends the page's name in
`Host`. So a request must name this node by what only the node itself goes by: an address, a name of
the loopback, a name of this machine, or one of the setting `api_hosts`.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from ipaddress import ip_address
from typing import Final

_HOST: Final = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^:/?#@\[\]\s]+))(?::\d*)?", re.IGNORECASE)


def host_in(authority: str) -> str | None:
    """Return the host in `HOST`, `HOST:PORT` or `[IPV6]:PORT`, in lower case; None if it is none of
    these."""
    match = _HOST.fullmatch(authority)
    return None if match is None else (match[1] or match[2]).lower().rstrip(".")


class Hosts:
    """The hosts that this node goes by.

    Args:
        listening: the addresses and names on which it listens.
        names: further names; one that begins with a dot stands for all below it, "*" for all.
    """

    def __init__(self, listening: Iterable[str], names: Iterable[str] = ()) -> None:
        self._names = {"localhost"}
        self._suffixes: tuple[str, ...] = (".localhost",)
        self._any_address = False
        for name in map(str.lower, (*listening, *names)):
            if name.startswith("."):
                self._suffixes += (name,)
            else:
                self._names.add(name)
        for name in listening:
            if _is_unspecified(name):
                self._any_address = True
                self._names |= {socket.gethostname().lower(), socket.getfqdn().lower()}

    def refusal(self, authority: str | None) -> str | None:
        """Return why a request that names this host is refused; None if it is not.

        Args:
            authority: what `Host` says, or the target; None if neither says anything, which no web
                browser does.
        """
        if authority is None or "*" in self._names:
            return None
        host = host_in(authority)
        if host is not None and (
            host in self._names or host.endswith(self._suffixes) or self._is_ours(host)
        ):
            return None
        return (
            f"this node does not go by the name {authority[:100]!r}: use its address, or add the "
            "name to api_hosts (RECON_NODE_API_HOSTS)"
        )

    def _is_ours(self, host: str) -> bool:
        try:
            address = ip_address(host)
        except ValueError:
            return False
        return address.is_loopback or self._any_address


def _is_unspecified(name: str) -> bool:
    try:
        return ip_address(name).is_unspecified
    except ValueError:
        return False
