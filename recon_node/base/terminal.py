"""What both commands share on the terminal: how they print and fail, and which node they ask.

Text of strangers is shown, never obeyed. Names, contents, file names, agents and errors come from
anybody. A terminal obeys escape sequences (they set its title, clear the screen, fill the
clipboard), C1 controls, and marks that turn the writing direction; a line break fakes a line. All
commands print through `echo`, or through tables and consoles that use `shown`.

The options that say which node's API to talk to, and with which token, have the same variables in
both: RECON_NODE_URL, RECON_NODE_TOKEN and RECON_NODE_TOKEN_FILE. What connects to the node is
imported by commands that do: it takes longer than `--help`.
"""

from __future__ import annotations

import errno
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from recon_node import DEFAULT_URL
from recon_node.base.errors import without_passwords
from recon_node.base.files import is_exposed, read_secret
from recon_node.base.program import INTERRUPTED, open_standard_streams

if TYPE_CHECKING:
    from recon_node.base.connection import ClientError

_IS_CLOSED: Final = (errno.EPIPE, errno.EINVAL)
"""The reader of the output has seen enough, for example `head` (EINVAL: on Windows)."""
_IS_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_UNITS: Final = "BKMGTPE"
_MAX_SIZE: Final = 2**63 - 1
"""Bytes: what limits of a process can be."""
FILE: Final = click.Path(path_type=Path, dir_okay=False)
FILE_OR_DASH: Final = click.Path(path_type=Path, dir_okay=False, allow_dash=True)

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
"""With it, a command prints one JSON value on standard output, and nothing else there: progress,
hints and errors are on standard error, and the exit code is the same as without it. Fields that the
node's API has, too, have its names."""


def shown(text: str, *, lines: bool = False) -> str:
    """Return text in which everything that does not print is escaped, as in Python: `\x1b`.

    If `lines`, line breaks and tabs stay; elsewhere, text is one line.
    """
    if text.isprintable():  # nearly always
        return text
    kept = "\n\t" if lines else ""
    return "".join(c if c.isprintable() or c in kept else repr(c)[1:-1] for c in text)


def shown_json(text: str) -> str:
    """Return JSON whose strings hold no character that a terminal obeys; it has the same value."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else _json_escape(c) for c in text)


def echo(message: Any = "", *, err: bool = False, lines: bool = False) -> None:
    """Print a line, or several ones; on standard error if `err` is set."""
    click.echo(shown(str(message), lines=lines), err=err)


@contextmanager
def output_written() -> Iterator[None]:
    """Make sure that everything that the block printed is written; else exit with 1, and say why,
    unless the reader of the output has seen enough."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OSError as error:
        if error.errno not in (*_IS_CLOSED, *_IS_FULL) or error.filename is not None:
            raise
        discard_output()
        if error.errno in _IS_FULL:
            echo(f"Error: standard output cannot be written: {error.strerror}", err=True)
        sys.exit(1)


class ProgramGroup(click.Group):
    """The commands of a program. It exits with 1 if standard output is full or closed, and with
    130 on Ctrl-C, where click alone has 1."""

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run a command, and make sure that everything it printed is written."""
        open_standard_streams()
        with output_written():
            return super().main(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            echo("Aborted!", err=True)
            ctx.exit(INTERRUPTED)


def discard_output() -> None:
    """Discard what is printed from here on, and what would still be written at the exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    click.echo(json.dumps(value, indent=2))


def print_result(facts: Mapping[str, Any], text: str, *, as_json: bool) -> None:
    """Print what a command did: its facts as JSON, or the text."""
    if as_json:
        print_json(facts)
    else:
        echo(text, lines=True)


def keep_stdout_for_json(as_json: bool, *files: Path | None) -> None:
    """Raise `UsageError` if JSON and a file would both go to standard output."""
    if as_json and Path("-") in files:
        raise click.UsageError("with --json, standard output has the JSON: name a file, not -")


class CommandError(click.ClickException):
    """A command that failed: one line on standard error, exit code 1."""

    def format_message(self) -> str:
        """Return the message; it may quote a stranger's text, and URLs."""
        return shown(without_passwords(super().format_message()), lines=True)


@contextmanager
def one_line(*errors: type[Exception]) -> Iterator[None]:
    """Print errors of these types as one line: raise them as `CommandError`."""
    try:
        yield
    except BrokenPipeError:  # the reader of the output has seen enough, as `output_written` knows
        raise
    except errors as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise CommandError(f"{error.filename}: {error.strerror}") from None
        raise CommandError(str(error)) from None


class ByteSize(click.ParamType[int]):
    """A size such as 64MB or 2GiB; plain numbers are bytes."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The size in bytes."""
        match = re.fullmatch(r"(\d{1,18})\s*([KMGTPE]?)(i?)B?", str(value).strip(), re.IGNORECASE)
        size = 0
        if match is not None:
            unit = _UNITS.index(match[2].upper() or "B")
            size = int(match[1]) * (1024 if match[3] else 1000) ** unit
        if match is None or size > _MAX_SIZE:
            self.fail(f"{value!r} is not a size such as 64MB or 2GB", param, ctx)
        return size


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: "1 shard", "2,000 shards"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def human_size(number: int) -> str:
    """Return a readable number of bytes: "5 B", "1.2 MiB"."""
    size, unit = float(number), "B"
    for unit in _UNITS:
        if size < 1024 or unit == _UNITS[-1]:
            break
        size /= 1024
    return f"{size:,.0f} B" if unit == "B" else f"{size:,.1f} {unit}iB"


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))


Command = Callable[..., Any]


class _SharedOption(click.Option):
    """An option whose variable both programs read. A variable of the program's own overrides it:
    SPARK_SINK_RUN_URL, for example."""

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        shared, self.envvar = self.envvar, None
        try:
            own = super().resolve_envvar_value(ctx)
        finally:
            self.envvar = shared
        return own or super().resolve_envvar_value(ctx)


_shared_option = partial(click.option, cls=_SharedOption, show_envvar=True)


def url_options(
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
        @_shared_option(
            "--url",
            envvar="RECON_NODE_URL",
            type=url_type,
            multiple=several,
            default=[url] if several and url is not None else url,
            show_default=True,
            metavar="URL",
            help=url_help,
        )
        @_shared_option(
            "--token",
            envvar="RECON_NODE_TOKEN",
            metavar="TOKEN",
            help="The API's token. Other users of this machine can see it on the command line: "
            "prefer the variable or --token-file.",
        )
        @_shared_option(
            "--token-file",
            envvar="RECON_NODE_TOKEN_FILE",
            type=FILE,
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
        raise CommandError(f"the token file {path} cannot be read: {reason}") from None
    if is_exposed(path):
        echo(f"Warning: other users can read the token file {path}: chmod 600 it", err=True)
    return token


def node_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say which node; the command gets a `Connection` as `node`."""

    @url_options()
    @wraps(command)
    def with_node(*args: Any, url: str, token: str | None, **options: Any) -> None:
        from recon_node.base.connection import Connection

        with command_errors(url), Connection(url, token=token) as node:
            command(*args, node=node, **options)

    return with_node


@contextmanager
def command_errors(url: str) -> Iterator[None]:
    """Raise the errors of a connection to the node at a URL as those of a command."""
    from recon_node.base.connection import ClientError

    try:
        yield
    except ClientError as error:
        raise command_error(url, error) from None


def command_error(url: str, error: ClientError) -> CommandError:
    """Say in a command's words what went wrong with the node at a URL."""
    from recon_node.base.connection import NotANodeError, UnauthorizedError, UnreachableError

    match error:
        case UnreachableError():
            return CommandError(
                f"no node answers at {error.url} ({error.reason}); "
                "start one with `recon-node run`, or name another one with --url"
            )
        case UnauthorizedError():
            return CommandError(
                "the node requires a token, or a different one: give it with --token-file"
            )
        case NotANodeError():
            return CommandError(f"the server at {url} is not a node: check --url")
        case _:
            return CommandError(str(error))
