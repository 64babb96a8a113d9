"""The HTTP client of the commands: a node's answers, or an error that says what to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Final

import httpx

from recon_node import node_options as shared
from recon_node.cli.output import CommandError

TIMEOUT = 30.0
"""Seconds that the node may take for one step of a request."""
NEEDS_TOKEN: Final = "the node requires a token, or a different one: give it with --token-file"


@dataclass(frozen=True, slots=True)
class NodeApi:
    """Where a node's API is, and the token for it."""

    url: str
    token: str | None = field(default=None, repr=False)

    @property
    def headers(self) -> dict[str, str]:
        """The headers of every request."""
        return {} if self.token is None else {"authorization": f"Bearer {self.token}"}


def node_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say which node; the command gets a `NodeApi` as its parameter `node`."""

    @shared.node_options()
    @wraps(command)
    def with_node(*args: Any, url: str, token: str | None, **options: Any) -> None:
        with_scheme = url if "://" in url else f"http://{url}"
        command(*args, node=NodeApi(with_scheme, token), **options)

    return with_node


class NodeUnreachableError(CommandError):
    """No node answers."""

    def __init__(self, url: str, reason: Exception) -> None:
        detail = str(reason) or type(reason).__name__
        super().__init__(
            f"no node answers at {url} ({detail}); "
            "start one with `recon-node run`, or name another one with --url"
        )


def ask(node: NodeApi, method: str, path: str, **request: Any) -> Any:
    """Send a request to the node and return its answer, as JSON; None if it is empty.

    Args:
        node: which node.
        method: of HTTP.
        path: of the URL.
        request: is passed on to httpx.

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
    try:
        return response.json() if response.content else None
    except ValueError:
        raise CommandError(f"the server at {node.url} is not a node: check --url") from None


def error_message(response: httpx.Response) -> str:
    """Return what a node said was wrong."""
    if response.status_code == httpx.codes.UNAUTHORIZED:
        return NEEDS_TOKEN
    try:
        return str(response.json()["message"])
    except (ValueError, KeyError, TypeError):
        return f"the node answered {response.status_code} {response.reason_phrase}"
