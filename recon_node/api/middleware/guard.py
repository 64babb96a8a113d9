"""Who may send which requests: hosts, web pages, the token, and the rate.

`Hosts` refuses a request for another host. A web page can have the name of its own server point at
this node (DNS rebinding). The browser then takes the node for that server, and lets the page read
everything. It still sends the page's name in `Host`. So a request must name this node by what only
the node itself goes by: an address, a name of the loopback, a name of this machine, or one of the
setting `api_hosts`.

`Guard` refuses a request before anything is done for it:

- A POST from a web page of another origin (403). Browsers send simple ones to any address they can
  reach, this machine's loopback included, without asking anyone. Pages of `cors_allow_origins` may
  send them; programs do not send an `Origin`.
- A request without the token, where the node has one and the endpoint needs it (401).
- A client that sends too many requests (429). A wrong token counts like any request, so guessing is
  slow. Programs on this machine are not limited.

The rate is kept by token buckets, one for each client address. A bucket holds at most
`BURST_SECONDS` worth of requests, refills steadily, and is full to begin with. So only those that
are not full need to be remembered; the table of them is bounded, and the bucket that was used least
recently goes first.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import re
import socket
from collections.abc import Iterable, Mapping
from functools import lru_cache
from http import HTTPStatus
from ipaddress import ip_address
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

import trio
from pydantic import Field
from pydantic.dataclasses import dataclass
from starlette.datastructures import Headers
from starlette.routing import compile_path
from starlette.types import ASGIApp, Receive, Scope, Send

from recon_node.api.errors import refuse
from recon_node.base.setting_types import SETTINGS, Flag, Setting, TextList
from recon_node.fairness.pacing import TokenBuckets
from recon_node.fairness.slots import address_block_of

BURST_SECONDS: Final = 2.0
MAX_BUCKETS: Final = 10_000
_HOST: Final = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^:/?#@\[\]\s]+))(?::\d*)?", re.IGNORECASE)

Need = Literal["open", "read", "write"]
"""What a request does: it reveals nothing about the node but that it is there, it reads, or it
changes the node."""


def usual_need(method: str) -> Need:
    """What a request does as far as its method tells."""
    return "read" if method in ("GET", "HEAD") else "write"


@dataclass(frozen=True, slots=True, config=SETTINGS)
class Access:
    """Who may use the API."""

    token: str | None = Field(default=None, repr=False)
    """What clients must send; None: everyone may do everything."""
    token_for: Annotated[Literal["writes", "all"], Flag()] = "writes"
    """Which requests need the token: those that change the node (events, interests, peers), or all
    but the liveness check and the pages."""
    rate_limit: Annotated[float, Setting(), Field(ge=0)] = 200.0
    """Maximum requests per second from one client address, on average; 0 sets no limit.

    Short bursts may have twice as many. More are answered 429. Programs on this machine, including
    a proxy, are not limited.
    """
    hosts: Annotated[TextList, Setting(name="api_hosts")] = ()
    """Names that requests may use for this node, beside its addresses, localhost and, if it listens
    on all addresses, this machine's names.

    A request for another host is refused (403): a web page could have its own name lead here and
    read everything. Name here what a proxy or a container network calls the node. A name that
    begins with a dot stands for all below it, "*" for all.
    """
    cors_allow_origins: Annotated[TextList, Setting()] = ()
    """Origins whose web pages may call the API from a browser; ["*"] allows all."""

    def asks_token(self, need: Need) -> bool:
        """Whether a request needs the token."""
        if self.token is None or need == "open":
            return False
        return need == "write" or self.token_for == "all"

    def is_token(self, authorization: str | None) -> bool:
        """Whether an Authorization header has the token; takes the same time either way."""
        scheme, _, token = (authorization or "").partition(" ")
        if self.token is None or scheme.lower() != "bearer":
            return False
        return hmac.compare_digest(_digest(token.strip()), _digest(self.token))

    def is_foreign(self, headers: Headers) -> bool:
        """Whether these are the headers of a request by a web page whose origin is not allowed."""
        origin = headers.get("origin")
        if origin is None or "*" in self.cors_allow_origins or origin in self.cors_allow_origins:
            return False
        return not _is_own_page(origin, headers.get("host"))


def _is_own_page(origin: str, host: str | None) -> bool:
    """Whether an origin is this node's, by an IP address or localhost.

    Another name proves nothing: a hostile page's DNS server can point its name at this node (DNS
    rebinding).
    """
    try:
        page = urlsplit(origin)
        name = page.hostname or ""
        return page.netloc == host and (name == "localhost" or bool(ip_address(name)))
    except ValueError:
        return False


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


def host_in(authority: str) -> str | None:
    """Return the host in `HOST`, `HOST:PORT` or `[IPV6]:PORT`, in lower case; None if it is none of
    these."""
    match = _HOST.fullmatch(authority)
    return None if match is None else (match[1] or match[2]).lower().rstrip(".")


class Hosts:
    """The hosts that this node goes by.

    Beside `listening`, it goes by `names`: one that begins with a dot stands for all below it, "*"
    for all.
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

        `authority` is what `Host` says, or the target; None if neither says anything, which no web
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


class Guard:
    """Refuses requests that `Access` does not allow. See the module's docstring.

    Args:
        needs: of the paths, or templates of paths, whose requests do not need what is usual for
            their method.
    """

    def __init__(self, app: ASGIApp, access: Access, needs: Mapping[str, Need]) -> None:
        self._app = app
        self._access = access
        self._needs = [(compile_path(path)[0], need) for path, need in needs.items()]
        rate = access.rate_limit
        self._buckets = TokenBuckets[str](max(1.0, rate * BURST_SECONDS), rate, MAX_BUCKETS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run one request, or refuse it."""
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            await refuse((scope, receive, send), *refusal)

    def _refusal(self, scope: Scope) -> tuple[int, str, dict[str, str]] | None:
        method, path, headers = scope["method"], scope["path"], Headers(scope=scope)
        if self._access.rate_limit and (wait := self._wait_of(scope)):
            return (
                HTTPStatus.TOO_MANY_REQUESTS,
                f"more than {self._access.rate_limit:g} requests a second: wait a moment",
                {"retry-after": str(math.ceil(wait))},
            )
        if method not in ("GET", "HEAD", "OPTIONS") and self._access.is_foreign(headers):
            return (
                HTTPStatus.FORBIDDEN,
                f"web pages of {headers['origin'][:200]} may not change this node; its operator "
                "can allow them (cors_allow_origins)",
                {},
            )
        if self._access.token is None:
            return None
        special = (need for pattern, need in self._needs if pattern.match(path))
        need = next(special, usual_need(method))
        asks_token = method != "OPTIONS" and self._access.asks_token(need)
        if asks_token and not self._access.is_token(headers.get("authorization")):
            has_token = "authorization" in headers
            error = ', error="invalid_token"' if has_token else ""
            return (
                HTTPStatus.UNAUTHORIZED,
                "the token is wrong"
                if has_token
                else "this needs the node's token: send the header Authorization: Bearer TOKEN",
                {"www-authenticate": f'Bearer realm="recon-node"{error}'},
            )
        return None

    def _wait_of(self, scope: Scope) -> float:
        """Take a request from the client's bucket, or return the seconds until one is there."""
        client = client_of(scope["client"][0] if scope.get("client") else None)
        if client is None:
            return 0.0
        now = trio.current_time()
        bucket = self._buckets.of(client, now)
        wait = bucket.seconds_until(1, now)
        if not wait:
            bucket.spend(1, now)
        return wait


@lru_cache(maxsize=1024)
def client_of(host: str | None) -> str | None:
    """Who a client is, by its address; None for this machine itself, which is not limited."""
    if host is None:
        return None
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    address = getattr(address, "ipv4_mapped", None) or address
    return None if address.is_loopback else address_block_of(host)
