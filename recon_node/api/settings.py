"""Settings of the HTTP API: its address, who may use it, and the bounds of requests."""

import hashlib
import hmac
import re
from contextlib import suppress
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field, SecretStr
from pydantic.dataclasses import dataclass

from recon_node.base.errors import reason_of
from recon_node.base.files import read_secret
from recon_node.base.setting_types import (
    SETTINGS,
    Bytes,
    Count,
    Flag,
    OptionalPath,
    Setting,
    TextList,
    checked_by,
)

MIN_TOKEN: Final = 16
"""Characters that the API's token must have at least."""

Need = Literal["open", "read", "write"]
"""What a request does: it reveals nothing about the node but that it is there, it reads, or it
changes the node."""


def usual_need(method: str) -> Need:
    """What a request does as far as its method shows."""
    return "read" if method in ("GET", "HEAD") else "write"


_HOST_NAME: Final = re.compile(r"\*|\.?[\w-]+(\.[\w-]+)*", re.ASCII)
_ORIGIN: Final = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^/\sA-Z]+")


def _check_hosts(names: tuple[str, ...]) -> None:
    """Refuse what no request can have for a host, such as a URL; raises ValueError."""
    for name in names:
        with suppress(ValueError):
            ip_address(name)
            continue
        if _HOST_NAME.fullmatch(name) is None:
            raise ValueError(
                f"{name!r} is not the name of a host, such as node.example.org or .example.org: "
                "write it without http:// and port, and an IPv6 address without brackets"
            )


def _check_origins(origins: tuple[str, ...]) -> None:
    """Refuse what no browser sends as an origin; raises ValueError."""
    for origin in origins:
        if _ORIGIN.fullmatch(origin) is None:
            raise ValueError(
                f"{origin!r} is not an origin, such as https://app.example.org or "
                "http://localhost:8080, in lower case and without a path"
            )


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
    hosts: Annotated[TextList, checked_by(_check_hosts), Setting(name="api_hosts")] = ()
    """Names that requests may use for this node, beside its addresses, localhost and, if it listens
    on all addresses, this machine's names.

    A request for another host is refused (403): a web page could have its own name lead here and
    read everything. Name here what a proxy or a container network calls the node. A name that
    begins with a dot stands for all below it, "*" for all.
    """
    cors_allow_origins: Annotated[TextList, checked_by(_check_origins), Setting()] = ()
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


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


@dataclass(frozen=True, slots=True, config=SETTINGS)
class Limits:
    """Bounds of a request. Sizes are bytes, times are seconds."""

    body: Annotated[Bytes, Setting(name="max_body_bytes")] = 4 * 1024 * 1024
    """Largest request body, in bytes; a larger one is answered 413."""
    requests: Annotated[Count, Setting(name="max_requests")] = 128
    """Maximum requests at once; one more is answered 503."""
    writes: Count = 1024
    """Maximum requests at once that add events."""
    bodies: Bytes = 64 * 1024 * 1024
    """Bytes of all request bodies at once; further ones are not read until there is room."""
    answers: Bytes = 48 * 1024 * 1024
    """Bytes of the parts of large answers that wait to be sent, at once; others wait for room."""
    stall: float = 60.0
    """A request that makes no progress for this long is given up."""
    wait: float = 30.0
    """Longest `wait` of a long poll."""
    connect: float = 15.0
    """Time to dial a peer for POST /ceramic/peers."""
    feed_events: int = 10_000
    """Maximum events in one answer of the feed."""
    feed_bytes: int = 4 * 1024 * 1024
    """An answer of the feed ends after the event that takes its CARs past this."""
    stream_events: int = 50_000
    """Maximum events of a stream whose state is requested."""
    stream_listed: int = 10_000
    """Maximum events of a stream that is listed or drawn."""
    stream_bytes: int = 64 * 1024 * 1024
    """Maximum bytes of their CARs."""
    stream_seconds: float = 10.0
    """Time to compute the state of a stream."""
    arrow_rows: int = 5_000
    """Maximum rows in one Arrow record batch."""
    arrow_bytes: int = 4 * 1024 * 1024
    """A record batch ends with the event that takes its CARs past this."""


def split_host_port(text: str) -> tuple[str, int]:
    """`HOST:PORT` or `[IPV6]:PORT` as host and port; raises ValueError."""
    host, separator, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    if not separator or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{text!r} should be HOST:PORT, like 127.0.0.1:5101 or [::1]:5101")
    try:
        host.encode("idna")
    except UnicodeError:  # which resolvers raise, too
        raise ValueError(f"{host!r} cannot be the name of a host") from None
    return host, int(port)


def check_token(token: str) -> str:
    """Return the token itself if it is usable; raises ValueError."""
    if len(token) < MIN_TOKEN:
        raise ValueError(
            f"the token has {len(token)} characters, which is easy to guess: use {MIN_TOKEN} or "
            "more, for example from `openssl rand -hex 32`"
        )
    if not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError("the token should be printable ASCII without spaces")
    return token


def read_token(path: Path) -> str:
    """Return the token in a file, without blanks around it; raises ValueError."""
    try:
        text = read_secret(path.expanduser())
    except (OSError, UnicodeDecodeError) as error:
        reason = reason_of(error)
        raise ValueError(f"the token file {path} cannot be read: {reason}") from None
    return check_token(text)


@dataclass(frozen=True, slots=True, config=SETTINGS)
class ApiSettings:
    """HTTP API: where it listens, and who may use it."""

    address: Annotated[str, checked_by(split_host_port), Flag(name="api", metavar="HOST:PORT")] = (
        "127.0.0.1:5101"
    )
    """Where the HTTP API listens.

    Without a token, anyone who reaches it can write events: set one before you open the API to
    others, and put a proxy with TLS in front of it.
    """
    token: Annotated[
        SecretStr | None,
        BeforeValidator(lambda value: None if value == "" else value),
        checked_by(lambda secret: check_token(secret.get_secret_value())),
        Setting(secret=True),
    ] = None
    """What clients must send (Authorization: Bearer TOKEN), 16 characters or more.

    Empty: everyone who reaches the API may use all of it. A file is safer (`token_file`).
    """
    token_file: Annotated[OptionalPath, checked_by(read_token), Flag(metavar="FILE")] = None
    """File with the token that clients of the API must send; instead of `token`.

    To make one: openssl rand -hex 32 > token
    """
    access: Access = Field(default_factory=Access)
    limits: Limits = Field(default_factory=Limits)

    def access_with_token(self) -> Access:
        """Who may use the API. Reads the token file, which was usable when the settings were read.

        Raises:
            ValueError: it is not usable any more, or there are two tokens.
        """
        token = None if self.token is None else self.token.get_secret_value()
        if self.token_file is not None:
            if token is not None:
                raise ValueError("token and token_file are both set: keep one of them")
            token = read_token(self.token_file)
        return replace(self.access, token=token)
