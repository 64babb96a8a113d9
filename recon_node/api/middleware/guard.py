"""Who may ask for what: web pages, the token, and how often.

`Guard` refuses a request before anything is done for it:

- A POST that a web page of another origin sends (403). Browsers send simple ones to any address
  that they reach, this machine's loopback included, and ask nobody. Pages of `cors_allow_origins`
  may; programs do not send an `Origin`.
- A request without the token, where the node has one and the path asks for it (401).
- A client that asks too often (429). A wrong token counts like any request, so that guessing is
  slow. This machine's own programs are not limited.
"""

from __future__ import annotations

import math
from http import HTTPStatus

import trio
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from recon_node.api.middleware.access import Access
from recon_node.api.middleware.rate_limit import RateLimiter, client_of
from recon_node.api.middleware.stack import discard_body, refuse


class Guard:
    """Refuses requests as `Access` says. See the module's text."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access
        self._limiter = RateLimiter(access.rate_limit) if access.rate_limit else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run one request, or refuse it."""
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            await discard_body(receive)
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
        if self._access.asks_token(method, path) and not self._access.is_token(
            headers.get("authorization")
        ):
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
