"""Who may use the API: the token, and the web pages that may call it."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Final, Literal
from urllib.parse import urlsplit

from starlette.datastructures import Headers

OPEN_PATHS: Final = frozenset({"/", "/docs", "/openapi.json", "/ceramic/liveness"})
"""Asked for without a token, always: they tell nothing about the node but that it is there."""
MIN_TOKEN: Final = 16
"""Characters of the API's token at least."""
READING_POSTS: Final = frozenset({"/ceramic/version"})


@dataclass(frozen=True, slots=True)
class Access:
    """Who may use the API."""

    token: str | None = field(default=None, repr=False)
    """What clients must show; None: everyone may do everything."""
    token_for: Literal["writes", "all"] = "writes"
    """writes: for whatever changes the node: events, interests, peers. all: for everything."""
    rate_limit: float = 0.0
    """Requests a second of one client address, on average; 0: any number."""
    cors_allow_origins: tuple[str, ...] = ()
    """Origins whose web pages may call the API; ("*",) allows all."""

    def asks_token(self, method: str, path: str) -> bool:
        """Whether a request needs the token."""
        if self.token is None or method == "OPTIONS" or path in OPEN_PATHS:
            return False
        writes = method not in ("GET", "HEAD") and path not in READING_POSTS
        return self.token_for == "all" or writes

    def is_token(self, authorization: str | None) -> bool:
        """Whether an Authorization header shows the token; takes the same time either way."""
        scheme, _, given = (authorization or "").partition(" ")
        if self.token is None or scheme.lower() != "bearer":
            return False
        return hmac.compare_digest(_digest(given.strip()), _digest(self.token))

    def is_foreign(self, headers: Headers) -> bool:
        """Whether a web page of an origin that is not allowed sends this."""
        origin = headers.get("origin")
        if origin is None or "*" in self.cors_allow_origins or origin in self.cors_allow_origins:
            return False
        return not _is_own_page(origin, headers.get("host"))


def _is_own_page(origin: str, host: str | None) -> bool:
    """Whether an origin is this node's, by an IP address or localhost.

    By another name it proves nothing: a hostile page's name may lead to this node as soon as the
    page's DNS server says so (DNS rebinding).
    """
    try:
        page = urlsplit(origin)
        name = page.hostname or ""
        return page.netloc == host and (name == "localhost" or bool(ip_address(name)))
    except ValueError:
        return False


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


def check_token(token: str) -> str:
    """The token itself, if it can be one; raises ValueError."""
    if len(token) < MIN_TOKEN:
        raise ValueError(
            f"the token has {len(token)} characters, and so few are soon guessed: take {MIN_TOKEN} "
            "or more, from `openssl rand -hex 32` for example"
        )
    if not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError("the token should be printable ASCII without blanks")
    return token


def read_token(path: Path) -> str:
    """The token in a file, without blanks around it; raises ValueError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"the token's file {path} cannot be read: {reason}") from None
    return check_token(text.strip())
