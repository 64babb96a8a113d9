"""Pictures of graphs, on the terminal and in files, and the options of the commands that draw."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from recon_node.base.terminal import (
    FILE_OR_DASH,
    counted,
    echo,
    json_option,
    keep_stdout_for_json,
    print_json,
    shown,
)
from recon_node.cli.command import make_console, number_option, write_file
from recon_node.draw.layout import Layout, NodeShape, Picture, Tone, fold_runs, lay_out
from recon_node.draw.svg import draw_svg
from recon_node.draw.text import ASCII, UNICODE, Line, draw_lines

DEFAULT_LIMIT = 200


@dataclass(frozen=True, slots=True)
class Drawing:
    """How to draw a picture."""

    svg: Path | None
    everything: bool
    limit: int
    ascii_only: bool
    why: bool
    as_json: bool


def drawing_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say how to draw; the command gets them as its parameter `drawing`."""

    @click.option(
        "--svg",
        type=FILE_OR_DASH,
        metavar="FILE",
        help="Write the picture to FILE as SVG (- for standard output).",
    )
    @click.option("--all", "everything", is_flag=True, help="Show long runs without forks in full.")
    @number_option("--limit", DEFAULT_LIMIT, "N", "Show the newest N rows; 0 shows all.", least=0)
    @click.option("--ascii", "ascii_only", is_flag=True, help="Draw with ASCII characters.")
    @click.option(
        "--why/--no-why",
        default=True,
        show_default=True,
        help="Print an explanation below the picture.",
    )
    @json_option
    @wraps(command)
    def with_drawing(*args: Any, **options: Any) -> None:
        drawing = Drawing(**{field.name: options.pop(field.name) for field in fields(Drawing)})
        command(*args, drawing=drawing, **options)

    return with_drawing


def show_picture(picture: Picture, drawing: Drawing, facts: Mapping[str, Any]) -> None:
    """Draw a picture on standard output or to a file, or print its facts as JSON.

    Raises:
        CommandError: the file cannot be written.
    """
    keep_stdout_for_json(drawing.as_json, drawing.svg)
    nodes = picture.nodes if drawing.everything else fold_runs(picture.nodes, picture.unit)
    layout = lay_out(nodes, drawing.limit or None)
    if drawing.svg is not None:
        write_file(drawing.svg, draw_svg(picture, layout).encode())
        if drawing.svg != Path("-"):
            rows = counted(len(layout.placed), "row")
            echo(f"wrote {drawing.svg}: {rows}", err=drawing.as_json)
    if drawing.as_json:
        print_json(facts)
    if drawing.svg is not None or drawing.as_json:
        return
    console = make_console()
    for line in _lines(picture, layout, drawing, is_ascii(console) or drawing.ascii_only):
        console.print(line, no_wrap=True, overflow="ignore", crop=False)


def is_ascii(console: Console) -> bool:
    """Whether the output can only show ASCII."""
    try:
        "├●╯…".encode(console.encoding)
    except (UnicodeError, LookupError):
        return True
    return False


def _lines(picture: Picture, layout: Layout, drawing: Drawing, as_ascii: bool) -> Iterator[Text]:
    def text(words: str, style: str = "") -> Text:
        safe = shown(words)
        if as_ascii:
            safe = safe.replace("…", "..").encode("ascii", "replace").decode()
        return Text(safe, style)

    yield text(picture.title, "bold")
    yield text(picture.summary, "dim")
    yield Text()
    lines = list(draw_lines(layout, ASCII if as_ascii else UNICODE))
    columns = _columns(lines)
    for line in lines:
        yield _line(line, columns, text)
    if layout.hidden:
        yield text(f"{layout.hidden} more below: --limit 0 shows all", "dim")
    for note in picture.notes if drawing.why else ():
        yield Text()
        yield from map(text, note.split("\n"))


def _columns(lines: Sequence[Line]) -> list[int]:
    """Return the width of each column of text; the text of a folded run is not in a column."""
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
        whole.append(text(node.name, "dim" if node.shape is NodeShape.FOLD else soft))
    for number, (cell, width) in enumerate(zip(_texts(line), columns, strict=False)):
        style = "bold" if node.tone is Tone.TIP and not number else soft
        whole.append(text(cell.ljust(width) + "  ", style))
    for number, mark in enumerate(node.marks):
        style = "bold reverse green" if mark == "TIP" else styles[node.tone]
        whole.append("" if node.details and not number else " ")
        whole.append(text(f"[{mark}]", style))
    whole.rstrip()
    return whole
