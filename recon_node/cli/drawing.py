"""Pictures of graphs on the terminal and in files; the options that the commands for it share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from recon_node.cli.errors import CommandError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from recon_node.draw.layout import Layout, Picture
    from recon_node.draw.text import Line

DEFAULT_LIMIT = 200


@dataclass(frozen=True, slots=True)
class Drawing:
    """How a picture shall be drawn."""

    svg: Path | None
    everything: bool
    limit: int
    ascii_only: bool
    why: bool


def drawing_options(command: Callable[..., None]) -> Callable[..., None]:
    """Options that say how to draw; the command gets them as its parameter `drawing`."""

    @click.option(
        "--svg",
        type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
        metavar="FILE",
        help="Write the picture to FILE, as SVG (- for standard output).",
    )
    @click.option("--all", "everything", is_flag=True, help="Show long runs without a fork, too.")
    @click.option(
        "--limit",
        type=click.IntRange(min=0),
        default=DEFAULT_LIMIT,
        show_default=True,
        help="Rows at most, the newest; 0: all.",
    )
    @click.option("--ascii", "ascii_only", is_flag=True, help="Draw with ASCII characters.")
    @click.option("--why/--no-why", default=True, help="Tell below what decided (default), or not.")
    @wraps(command)
    def with_drawing(
        *args: Any,
        svg: Path | None,
        everything: bool,
        limit: int,
        ascii_only: bool,
        why: bool,
        **options: Any,
    ) -> None:
        command(*args, drawing=Drawing(svg, everything, limit, ascii_only, why), **options)

    return with_drawing


def show_picture(picture: Picture, drawing: Drawing) -> None:
    """Draw a picture on standard output, or write it where the options say.

    Raises:
        CommandError: the file cannot be written.
    """
    from recon_node.cli.output import make_console
    from recon_node.draw.layout import fold, lay_out

    nodes = picture.nodes if drawing.everything else fold(picture.nodes, picture.unit)
    layout = lay_out(nodes, drawing.limit or None)
    if drawing.svg is not None:
        _write_svg(picture, layout, drawing.svg)
        return
    console = make_console()
    for line in _lines(picture, layout, drawing, is_ascii(console) or drawing.ascii_only):
        console.print(line, no_wrap=True, overflow="ignore", crop=False)


def is_ascii(console: Console) -> bool:
    """Whether the output takes ASCII only."""
    try:
        "├●╯…".encode(console.encoding)
    except (UnicodeError, LookupError):
        return True
    return False


def _write_svg(picture: Picture, layout: Layout, path: Path) -> None:
    from recon_node.draw.svg import draw_svg

    svg = draw_svg(picture, layout)
    if path == Path("-"):
        click.echo(svg.encode(), nl=False)
        return
    try:
        path.write_text(svg, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror or error}") from None
    click.echo(f"wrote {path}: {len(layout.placed)} rows")


def _lines(picture: Picture, layout: Layout, drawing: Drawing, as_ascii: bool) -> Iterator[Text]:
    from rich.text import Text

    from recon_node.draw.layout import plain
    from recon_node.draw.text import ASCII, UNICODE, draw_lines

    def text(words: str, style: str = "") -> Text:
        shown = plain(words)
        return Text(_to_ascii(shown) if as_ascii else shown, style)

    yield text(picture.title, "bold")
    yield text(picture.summary, "dim")
    yield Text()
    lines = list(draw_lines(layout, ASCII if as_ascii else UNICODE))
    columns = _columns(lines)
    for line in lines:
        yield _line(line, columns, text)
    if layout.hidden:
        yield text(f"{layout.hidden} more below: --limit 0 shows all", "dim")
    if drawing.why and picture.notes:
        for note in picture.notes:
            yield Text()
            for each in note.split("\n"):
                yield text(each)


def _columns(lines: Sequence[Line]) -> list[int]:
    """How wide each column of text is; where a run is folded, the text is of no column."""
    widths: list[int] = []
    for line in lines:
        cells = _texts(line)
        widths += [0] * (len(cells) - len(widths))
        for number, cell in enumerate(cells):
            widths[number] = max(widths[number], len(cell))
    return widths


def _texts(line: Line) -> tuple[str, ...]:
    if line.placed is None or not line.placed.node.details:
        return ()
    return (line.placed.node.name, *line.placed.node.details)


def _line(line: Line, columns: Sequence[int], text: Callable[..., Text]) -> Text:
    from rich.text import Text

    from recon_node.draw.layout import Shape, Tone

    styles = {
        Tone.TIP: "bold green",
        Tone.KEPT: "cyan",
        Tone.WAITING: "yellow",
        Tone.PRUNED: "bright_black",
        Tone.WRONG: "red",
    }
    whole = Text()
    for cell, tone in line.cells:
        whole.append(cell, "" if tone is None else styles[tone])
    if line.placed is None:
        whole.rstrip()
        return whole
    node = line.placed.node
    whole.append(" ")
    soft = "bright_black" if node.tone is Tone.PRUNED else ""
    if not node.details:
        whole.append(text(node.name, "dim" if node.shape is Shape.FOLD else soft))
    for number, (cell, width) in enumerate(zip(_texts(line), columns, strict=False)):
        style = "bold" if node.tone is Tone.TIP and not number else soft
        whole.append(text(cell.ljust(width) + "  ", style))
    for number, mark in enumerate(node.marks):
        style = "bold reverse green" if mark == "TIP" else styles[node.tone]
        whole.append("" if node.details and not number else " ")
        whole.append(text(f"[{mark}]", style))
    whole.rstrip()
    return whole


def _to_ascii(text: str) -> str:
    return text.replace("…", "..").encode("ascii", "replace").decode()
