"""The node that a command talks to, its answers, and its errors as those of the command.

A command looks into an answer only as `understood`: as a TypedDict of the fields that it reads. So
what another server or version answers is found where it is read, and a mistake of a command is not
taken for one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Annotated, Any, Final, NotRequired, TypeAlias, TypedDict, TypeVar, cast

import msgspec
from msgspec import Meta

from recon_node import __version__
from recon_node.base import terminal
from recon_node.base.connection import (
    ClientError,
    Connection,
    NotANodeError,
    UnauthorizedError,
    UnreachableError,
)
from recon_node.base.exception_groups import unwrapped
from recon_node.cli.output import CommandError

T = TypeVar("T")

Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=253_402_300_799)]
"""A Unix time, until the end of the year 9999."""
Wei: TypeAlias = Annotated[str, Meta(pattern="^[0-9]{1,80}$")]
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
    """Raise the errors of a connection to the node at a URL as those of a command."""
    try:
        with unwrapped(ClientError):
            yield
    except ClientError as error:
        raise command_error(url, error) from None


def understood(node: Connection, answer: Any, shape: type[T]) -> T:
    """Return an answer, or a part of one, as what a command takes it for.

    Args:
        node: that answered.
        answer: JSON; it may have more fields than `shape`.
        shape: a TypedDict, or a list of them, as msgspec understands it.

    Raises:
        CommandError: it is something else.
    """
    try:
        msgspec.convert(answer, shape)
    except msgspec.ValidationError as error:
        raise CommandError(
            f"cannot make sense of what {node.url} answered: is it a node of version "
            f"{__version__}? ({error})"
        ) from None
    return cast(T, answer)


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


class ListedInterest(TypedDict):
    """An interest of a node, as it lists it."""

    sep: str
    sepValue: str
    controller: NotRequired[str]
    controllers: NotRequired[str]
    streamId: NotRequired[str]
    configured: NotRequired[bool]


def interest_text(interest: ListedInterest) -> str:
    """Return an interest as `recon-node interests add` takes it."""
    fields = (
        (interest["sep"], interest["sepValue"]),
        ("controller", interest.get("controller")),
        ("controllers", interest.get("controllers")),
        ("stream", interest.get("streamId")),
    )
    return " ".join(f"{name}={value}" for name, value in fields if value is not None)
