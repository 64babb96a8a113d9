"""Options that say which node's API to talk to, and with which token.

`recon-node` and `spark-sink` share them, and the variables RECON_NODE_URL, RECON_NODE_TOKEN and
RECON_NODE_TOKEN_FILE.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

from recon_node import DEFAULT_URL
from recon_node.files import is_exposed, read_secret
from recon_node.terminal_text import echo

Command = Callable[..., Any]


class _SharedOption(click.Option):
    """An option whose variable both programs read. A variable of the program's own overrides it:
    SPARK_SINK_RUN_URL, for example."""

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """Return the text of the variable, or None."""
        shared, self.envvar = self.envvar, None
        try:
            own = super().resolve_envvar_value(ctx)
        finally:
            self.envvar = shared
        return own or super().resolve_envvar_value(ctx)


def node_options(
    *,
    url: str | None = DEFAULT_URL,
    url_help: str = "URL of the node's HTTP API.",
    url_type: click.ParamType[Any] = click.STRING,
    several: bool = False,
) -> Callable[[Command], Command]:
    """Return a decorator that adds the options; the command gets `url` and `token`.

    Args:
        url: the default.
        url_help: the help of --url.
        url_type: what checks the value of --url.
        several: whether --url can be repeated; the command gets all values.
    """

    def decorate(command: Command) -> Command:
        @click.option(
            "--url",
            cls=_SharedOption,
            envvar="RECON_NODE_URL",
            show_envvar=True,
            type=url_type,
            multiple=several,
            default=[url] if several and url is not None else url,
            show_default=True,
            metavar="URL",
            help=url_help,
        )
        @click.option(
            "--token",
            cls=_SharedOption,
            envvar="RECON_NODE_TOKEN",
            show_envvar=True,
            metavar="TOKEN",
            help="The API's token. Other users of this machine can see it on the command line: "
            "prefer the variable or --token-file.",
        )
        @click.option(
            "--token-file",
            cls=_SharedOption,
            envvar="RECON_NODE_TOKEN_FILE",
            show_envvar=True,
            type=click.Path(path_type=Path, dir_okay=False),
            metavar="FILE",
            help="File with the API's token.",
        )
        @wraps(command)
        def with_node(
            *args: Any, token: str | None, token_file: Path | None, **options: Any
        ) -> None:
            command(*args, token=token or token_in(token_file), **options)

        return with_node

    return decorate


def token_in(path: Path | None) -> str | None:
    """Return the token in a file; None without a file. Warns if others can read it."""
    if path is None:
        return None
    try:
        token = read_secret(path, "ascii")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not ASCII"
        raise click.ClickException(f"the token file {path} cannot be read: {reason}") from None
    if is_exposed(path):
        echo(f"Warning: other users can read the token file {path}: chmod 600 it", err=True)
    return token
