"""What commands share: answers of a node, tables, numbers, progress bars, files.

A command looks into an answer only as `understood`: as a TypedDict of the fields that it reads. So
what another server or version answers is found where it is read, and a mistake of a command is not
taken for one.
"""

import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import (
    Annotated,
    Any,
    BinaryIO,
    Final,
    Literal,
    NotRequired,
    TypeAlias,
    TypedDict,
    TypeVar,
    cast,
)

import click
import msgspec
from msgspec import Meta
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from recon_node import __version__
from recon_node.base.connection import Connection, NotANodeError
from recon_node.base.errors import reason_of
from recon_node.base.files import draft_of, move_into_place
from recon_node.base.program import cleaned_up_when_stopped
from recon_node.base.terminal import Command, CommandError, counted, echo, shown

WIDTH_OF_FILES: Final = 200
"""Columns, where the output is not a terminal with a width: ids and addresses fit unbroken."""
SHOWN: Final = 20
"""Lines of each kind that a report prints; the rest is only counted."""


class _Finite(click.FloatRange):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):  # not a number is not out of any range
            self.fail(f"{value!r} is not a number", param, ctx)
        return number


def number_option(
    names: str, default: float, metavar: str, text: str, *, least: float, most: float | None = None
) -> Callable[[Command], Command]:
    """Return an option, by its names, that is a number: an integer if its default is one."""
    kind: Any = click.IntRange if isinstance(default, int) else _Finite
    return click.option(
        *names.split(),
        type=kind(least, most),
        default=f"{default:g}" if isinstance(default, float) else default,
        show_default=True,
        metavar=metavar,
        help=text,
    )


T = TypeVar("T")

Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=253_402_300_799)]
"""A Unix time, until the end of the year 9999."""
Wei: TypeAlias = Annotated[str, Meta(pattern="^[0-9]{1,80}$")]
_LISTED: Final = 1000
"""Entries of a page of a list."""


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


class _Console(Console):
    """A console on which strangers' text is shown, not obeyed."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(shown(text, lines=True), **options)


class TextTable(Table):
    """A table whose cells are text of one line, or lists of such lines."""

    def add_row(self, *cells: Any, **options: Any) -> None:
        """Add a row of text, lines, or what rich can render."""
        super().add_row(*map(_cell, cells), **options)


def _cell(cell: Any) -> Any:
    if isinstance(cell, str):
        return shown(cell)
    return "\n".join(map(shown, cell)) if isinstance(cell, list) else cell


def color_system() -> Literal["auto"] | None:
    """What rich may style text with: nothing, not even bold, if NO_COLOR is set."""
    return None if os.environ.get("NO_COLOR") else "auto"


def make_console(*, stderr: bool = False) -> Console:
    """Return a console on standard output, or standard error, which prints text as it is.

    By default rich would take the middle of `did:key:z6Mk...` for an emoji, and `[...]` for markup.
    """
    console = _Console(
        highlight=False, emoji=False, markup=False, stderr=stderr, color_system=color_system()
    )
    if not console.is_terminal:
        console.width = WIDTH_OF_FILES
    return console


def make_table(*columns: str, numbers: tuple[str, ...] = (), title: str | None = None) -> TextTable:
    """Return a plain table. Text that is too wide is folded, not cut: it may have to be copied.

    The columns in `numbers` are right-aligned.
    """
    table = TextTable(title=title, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        justify = "right" if column in numbers else "left"
        table.add_column(column, overflow="fold", justify=justify)  # type: ignore[arg-type]
    return table


def intake_text(counts: Mapping[str, int], seconds: float) -> str:
    """Return what became of events: how many were new, known and refused, and how fast."""
    new, known, refused = (counts[verdict] for verdict in ("new", "known", "refused"))
    total = new + known + refused
    return (
        f"{counted(total, 'event')}: {new:,} new, {known:,} known, {refused:,} refused, "
        f"in {seconds:.1f} s ({total / max(seconds, 1e-6):,.0f} per second)"
    )


def print_first(lines: Iterable[object], total: int, more: str = "", *, shown: int = SHOWN) -> None:
    """Print the first lines of a report to standard error, and how many more there are."""
    for line in islice(lines, shown):
        echo(line, err=True)
    if total > shown:
        echo(f"... and {total - shown:,} more{more}", err=True)


@contextmanager
def progress_bar(before: ProgressColumn, *after: ProgressColumn) -> Iterator[Progress]:
    """Show a progress bar between other columns, if standard error is a terminal."""
    console = make_console(stderr=True)
    columns = (before, BarColumn(), *after)
    is_hidden = not console.is_terminal
    with Progress(*columns, console=console, disable=is_hidden, transient=True) as progress:
        yield progress


@contextmanager
def step_bar() -> Iterator[Callable[[str, int, int | None], None]]:
    """Show a progress bar; yields what the steps report to: their name, how much is done, of how
    much (None: unknown)."""
    percent = TextColumn("{task.percentage:>3.0f}%")
    with progress_bar(TextColumn("{task.description}"), percent, TimeRemainingColumn()) as bar:
        task = bar.add_task("", total=None)

        def report(step: str, done: int, total: int | None) -> None:
            bar.update(task, description=step, completed=done, total=total)

        yield report


def write_file(path: Path, content: bytes) -> None:
    """Write a file, whole or not at all; `-` is standard output.

    Raises:
        CommandError: it cannot be written; what was there before stays.
    """
    if path == Path("-"):
        click.echo(content, nl=False)  # noqa: TID251 - a file
        return
    try:
        if path.exists() and not path.is_file():  # a pipe, or a device
            path.write_bytes(content)
        else:
            _replace(Path(os.path.realpath(path)), content)
    except BlockingIOError:
        raise CommandError(f"another command is writing {path}: wait for it to end") from None
    except OSError as error:
        raise CommandError(f"{path}: {reason_of(error)}") from None


def _replace(path: Path, content: bytes) -> None:
    with cleaned_up_when_stopped(), draft_of(path) as draft:
        draft.write_bytes(content)
        if path.exists():
            shutil.copymode(path, draft)
        move_into_place(draft, path)


@contextmanager
def complete_file(path: Path, *, force: bool) -> Iterator[BinaryIO]:
    """Open a file for writing that gets its name when the block ends; `-` is standard output.

    If the block fails, what was at `path` before stays as it was. `force` replaces a file that
    exists.

    Raises:
        CommandError: the file exists, and `force` is not set; or it cannot be written.
    """
    if str(path) == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    refuse_existing(path, force=force)
    with output_draft(path) as draft:
        with draft.open("wb") as file:
            yield file
        refuse_existing(path, force=force)  # it took a while: another command may have made one
        move_into_place(draft, path)


@contextmanager
def output_draft(path: Path) -> Iterator[Path]:
    """`draft_of`, with user-facing errors; the draft is deleted, too, if the command is stopped.

    Raises:
        CommandError: another command is writing the file, or it cannot be written.
    """
    try:
        with cleaned_up_when_stopped(), draft_of(path) as draft:
            yield draft
    except BlockingIOError:
        raise CommandError(f"another command is writing {path}: wait for it to end") from None
    except OSError as error:
        if error.filename not in (str(path.with_name(f".{path.name}.part")), None):
            raise
        raise CommandError(f"{path} cannot be written: {reason_of(error)}") from None


def refuse_existing(path: Path, *, force: bool) -> None:
    """Raise `CommandError` if there is a file at `path`, unless `force` is set."""
    if not force and os.path.lexists(path):
        raise CommandError(f"{path} already exists: choose another name, or use --force")


class _Page(TypedDict):
    next: int | None
    total: NotRequired[int]


def pages(
    node: Connection, path: str, name: str, query: dict[str, Any], limit: int
) -> tuple[list[Any], int]:
    """Read a list of the API page by page.

    `name` is that of the entries in the answer. A limit of 0 means no limit.

    Returns:
        the entries, and how many there are in all (0 if the list does not say).
    """
    entries: list[Any] = []
    query = {**query, "limit": min(limit or _LISTED, _LISTED)}
    while True:
        answer = node.request("GET", path, params=query)
        entries += understood(node, answer[name], list[Any])
        page = understood(node, answer, _Page)
        if page["next"] is None or (limit and len(entries) >= limit):
            return entries[: limit or None], page.get("total", 0)
        if page["next"] == query.get("after"):
            raise NotANodeError  # it would never end
        query["after"] = page["next"]


def _end_of(context: Any, param: Any, value: str | None) -> int | None:
    """Return the end of a time span that starts now, in Unix seconds; a callback of click."""
    from recon_node.base.setting_types import parse_seconds  # a tenth of a second

    if value is None:
        return None
    try:
        return int(time.time() + parse_seconds(value))
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a time span, such as 90d, 12h or 30m") from None


def expires_option(default: str) -> Callable[[Command], Command]:
    """Return the option `--expires`; `default` says what holds without it."""
    return click.option(
        "--expires",
        callback=_end_of,
        metavar="SPAN",
        help=f"How long nodes accept it, such as 90d or 12h; by default {default}.",
    )
