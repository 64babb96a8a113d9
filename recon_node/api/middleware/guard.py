"""Who may send which requests: web pages, the token, and the rate.

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

import math
from collections.abc import Mapping
from http import HTTPStatus
from ipaddress import ip_address
from typing import Final

import trio
from starlette.datastructures import Headers
from starlette.routing import compile_path
from starlette.types import ASGIApp, Receive, Scope, Send

from recon_node.api.middleware.access import Access, Need, usual_need
from recon_node.api.middleware.stack import refuse
from recon_node.latest import Latest
from recon_node.places import network_of

BURST_SECONDS: Final = 2.0
MAX_BUCKETS: Final = 10_000


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
        self._limiter = RateLimiter(access.rate_limit) if access.rate_limit else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run one request, or refuse it."""
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            await refuse((scope, receive, send), *refusal)

    def _refusal(self, scope: Scope) -> tuple[int, str, dict[str, str]] | None:
        method, path, headers = scope["method"], scope["path"], Headers(scope=scope)
        if self._limiter is not None:
            client = client_of(scope["client"][0] if scope.get("client") else None)
            wait = self._limiter.take(client, trio.current_time()) if client else 0
            if wait:
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
        special = (need for pattern, need in self._needs if pattern.match(path))
        need = next(special, usual_need(method))
        asks_token = method != "OPTIONS" and self._access.asks_token(need)
        if asks_token and not self._access.is_token(headers.get("authorization")):
            given = "authorization" in headers
            error = ', error="invalid_token"' if given else ""
            return (
                HTTPStatus.UNAUTHORIZED,
                "the token is wrong"
                if given
                else "this needs the node's token: send the header Authorization: Bearer TOKEN",
                {"www-authenticate": f'Bearer realm="recon-node"{error}'},
            )
        return None


class RateLimiter:
    """Decides who may make a request now. Pure: the clock is the caller's.

    Args:
        rate: requests a second of one client, on average.
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._capacity = max(1.0, rate * BURST_SECONDS)
        self._buckets = Latest[str, tuple[float, float]](MAX_BUCKETS)

    def take(self, client: str, now: float) -> float:
        """Take a request from a client's bucket: 0 if it may continue, else the seconds to wait."""
        filled, when = self._buckets.get(client, (self._capacity, now))
        filled = min(self._capacity, filled + (now - when) * self._rate)
        allowed = filled >= 1
        self._buckets[client] = (filled - allowed, now)
        return 0.0 if allowed else (1 - filled) / self._rate


def client_of(host: str | None) -> str | None:
    """Who a client is, by its address; None for this machine itself, which is not limited."""
    if host is None:
        return None
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    address = getattr(address, "ipv4_mapped", None) or address
    return None if address.is_loopback else network_of(host)
