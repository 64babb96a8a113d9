"""The HTTP client of the commands: a node's answers, or an error that says what to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

import click
import httpx

from recon_node.cli.errors import CommandError

DEFAULT_URL = "http://127.0.0.1:5101"
TIMEOUT = 30.0


@dataclass(frozen=True, slots=True)
class NodeApi:
    """Where a node's API is, and what it may ask for."""

    url: str
    token: str | None = field(default=None, repr=False)

    @property
    def headers(self) -> dict[str, str]:
        """The headers of every request."""
        return {} if self.token is None else {"authorization": f"Bearer {self.token}"}


def node_options(command: Callable[..., None]) -> Callable[..., None]:
    """Options that say which node; the command gets them as its parameter `node`, a `NodeApi`."""

    @click.option(
        "--url",
        envvar="RECON_NODE_URL",
        default=DEFAULT_URL,
        show_default=True,
        metavar="URL",
        help="The node's API; also RECON_NODE_URL.",
    )
    @click.option(
        "--token",
        envvar="RECON_NODE_TOKEN",
        metavar="TOKEN",
        help="What the API asks for, if it does; better in RECON_NODE_TOKEN, out of others' sight.",
    )
    @click.option(
        "--token-file",
        envvar="RECON_NODE_TOKEN_FILE",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="A file with the token; also RECON_NODE_TOKEN_FILE.",
    )
    @wraps(command)
    def with_node(
        *args: Any, url: str, token: str | None, token_file: Path | None, **options: Any
    ) -> None:
        command(*args, node=NodeApi(_with_scheme(url), token or _token_in(token_file)), **options)

    return with_node


def _with_scheme(url: str) -> str:
    """HOST:PORT alone means http."""
    return url if "://" in url else f"http://{url}"


def _token_in(path: Path | None) -> str | None:
    try:
        return None if path is None else path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not ASCII"
        raise CommandError(f"the token's file {path} cannot be read: {reason}") from None


class NodeUnreachableError(CommandError):
    """No node answers."""

    def __init__(self, url: str, reason: Exception) -> None:
        detail = str(reason) or type(reason).__name__
        super().__init__(
            f"no node answers at {url} ({detail}); "
            "start one with `recon-node run`, or name another with --url"
        )


def ask(node: NodeApi, method: str, path: str, **request: Any) -> httpx.Response:
    """Send a request to the node; `request` is passed on to httpx.

    Raises:
        NodeUnreachableError: no answer.
        CommandError: the node answered with an error; the message is the node's.
    """
    try:
        with httpx.Client(base_url=node.url, timeout=TIMEOUT, headers=node.headers) as client:
            response = client.request(method, path, **request)
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeEncodeError) as error:
        raise NodeUnreachableError(node.url, error) from None
    if response.is_error:
        raise CommandError(error_message(response))
    return response


def error_message(response: httpx.Response) -> str:
    """What a node said was wrong."""
    if response.status_code == httpx.codes.UNAUTHORIZED:
        return "the node asks for its token, or for another one: give it with --token-file"
    try:
        return str(response.json()["message"])
    except (ValueError, KeyError, TypeError):
        return f"the node answered {response.status_code} {response.reason_phrase}"
