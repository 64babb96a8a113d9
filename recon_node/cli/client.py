"""The node that a command talks to, and its errors as those of the command."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, Final

from recon_node import __version__
from recon_node.base import terminal
from recon_node.base.connection import (
    ClientError,
    Connection,
    NotANodeError,
    UnauthorizedError,
    UnreachableError,
)
from recon_node.base.exception_groups import unwrap
from recon_node.cli.output import CommandError

_MISREAD: Final = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)
"""What a command runs into where an answer is not what nodes of this version answer."""
NEEDS_TOKEN: Final = "the node requires a token, or a different one: give it with --token-file"


def node_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say which node; the command gets a `Connection` as `node`."""

    @terminal.node_options()
    @wraps(command)
    def with_node(*args: Any, url: str, token: str | None, **options: Any) -> None:
        with command_errors(url), Connection(url, token=token) as node:
            command(*args, node=node, **options)

    return with_node


@contextmanager
def command_errors(url: str) -> Iterator[None]:
    """Raise the errors of a connection to the node at a URL as those of a command.

    So is an answer of another shape than a node's: answers are not checked field by field.
    """
    try:
        yield
    except (ClientError, *_MISREAD, ExceptionGroup) as caught:
        error = unwrap(caught, ClientError, *_MISREAD)
        if isinstance(error, ClientError):
            raise command_error(url, error) from None
        if not isinstance(error, _MISREAD):
            raise
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise CommandError(
            f"cannot make sense of what {url} answered: is it a node of version {__version__}? "
            f"({type(error).__name__}: {error}, {Path(place.filename).name}, line {place.lineno})"
        ) from error


def command_error(url: str, error: ClientError) -> CommandError:
    """Say in a command's words what went wrong with the node at a URL."""
    match error:
        case UnreachableError():
            return CommandError(
                f"no node answers at {error.url} ({error.reason}); "
                "start one with `recon-node run`, or name another one with --url"
            )
        case UnauthorizedError():
            return CommandError(NEEDS_TOKEN)
        case NotANodeError():
            return CommandError(f"the server at {url} is not a node: check --url")
        case _:
            return CommandError(str(error))
