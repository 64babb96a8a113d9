"""Who may use the API: the token, and the web pages that may call it."""

from __future__ import annotations

import hashlib
import hmac
from ipaddress import ip_address
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field
from pydantic.dataclasses import dataclass
from starlette.datastructures import Headers

from recon_node.setting_types import SETTINGS, Flag, Setting, TextList

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
        scheme, _, given = (authorization or "").partition(" ")
        if self.token is None or scheme.lower() != "bearer":
            return False
        return hmac.compare_digest(_digest(given.strip()), _digest(self.token))

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
