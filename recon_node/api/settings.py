"""Settings of the HTTP API: its address, its token, and the bounds of requests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

from pydantic import BeforeValidator, Field, SecretStr
from pydantic.dataclasses import dataclass

from recon_node.api.middleware.guard import Access
from recon_node.api.services import Limits
from recon_node.base.files import read_secret
from recon_node.base.setting_types import SETTINGS, Flag, OptionalPath, Setting, checked_by

MIN_TOKEN: Final = 16
"""Characters that the API's token must have at least."""


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
        reason = getattr(error, "strerror", None) or error
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
