"""The HTTP client of the commands: a node's answers, or an error that says what to do."""

from __future__ import annotations

from typing import Any

import click
import httpx

from recon_node.cli.errors import CommandError

DEFAULT_URL = "http://127.0.0.1:5101"
TIMEOUT = 30.0

url_option = click.option(
    "--url",
    envvar="RECON_NODE_URL",
    default=DEFAULT_URL,
    show_default=True,
    metavar="URL",
    help="The node's API; also RECON_NODE_URL.",
)


class NodeUnreachableError(CommandError):
    """No node answers."""

    def __init__(self, url: str, reason: Exception) -> None:
        detail = str(reason) or type(reason).__name__
        super().__init__(
            f"no node answers at {url} ({detail}); "
            "start one with `recon-node run`, or name another with --url"
        )


def ask(url: str, method: str, path: str, **request: Any) -> httpx.Response:
    """Send a request to the node at `url`; `request` is passed on to httpx.

    Raises:
        NodeUnreachableError: no answer.
        CommandError: the node answered with an error; the message is the node's.
    """
    try:
        with httpx.Client(base_url=url, timeout=TIMEOUT) as client:
            response = client.request(method, path, **request)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise NodeUnreachableError(url, error) from None
    if response.is_error:
        raise CommandError(error_message(response))
    return response


def error_message(response: httpx.Response) -> str:
    """What a node said was wrong."""
    try:
        return str(response.json()["message"])
    except (ValueError, KeyError, TypeError):
        return f"the node answered {response.status_code} {response.reason_phrase}"
