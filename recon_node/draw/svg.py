"""Drawings as SVG: one self-contained file, light or dark as its reader prefers.

Every edge is one `path`, every node one `g` of the class `node` with the whole id as its tooltip.
"""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Final
from xml.sax.saxutils import escape

from recon_node.draw.layout import Edge, Layout, NodeShape, Picture, Placed, Tone, plain

# Pixels.
ROW: Final = 30
LANE: Final = 22
MARGIN: Final = 28
HEAD: Final = 84
CHAR: Final = 7.3
"""The width of a character; the fonts are monospace, of 12 px."""
TITLE_CHAR: Final = 10.4
MARK_CHAR: Final = 6.7
MARK_PADDING: Final = 7
MARK_GAP: Final = 6
NARROWEST: Final = 640
LINE: Final = 19
GAP_COLUMNS: Final = 2
"""Characters between columns."""

LONGEST_TITLE: Final = 120
"""Characters."""

_COLOURS: Final = {  # in the light and in the dark
    "paper": ("#ffffff", "#12161c"),
    "ink": ("#1c2430", "#e6ebf1"),
    "soft": ("#66717f", "#93a0ae"),
    "rule": ("#e4e8ed", "#262d37"),
    "stripe": ("#f5f7fa", "#181d25"),
    "tip": ("#0b7a4b", "#3ecf8e"),
    "kept": ("#2563c9", "#6aa5ff"),
    "waiting": ("#b0760a", "#e2ab3f"),
    "pruned": ("#a3adb8", "#5d6875"),
    "wrong": ("#cf3b3b", "#ff7070"),
}
LIGHT: Final = {name: light for name, (light, _) in _COLOURS.items()}
DARK: Final = {name: dark for name, (_, dark) in _COLOURS.items()}

_FORMS: Final = """
text { font: 12px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
.title { font: 600 15px ui-sans-serif, system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
.summary, .note { font: 12.5px ui-sans-serif, system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
.edge { fill: none; stroke-width: 2; stroke-linecap: round; }
.edge.cut { stroke-dasharray: 2 5; } .edge.waiting { stroke-dasharray: 5 4; }
.solid { stroke-width: 2; } .ring { stroke-width: 2.5; }
.ring.missing { stroke-dasharray: 3 2.4; }
.halo { opacity: .22; } .mark rect { opacity: .15; } .mark text { font-size: 11px; }
.node.tip .name, .node.tip .first text { font-weight: 700; } .node.tip .first rect { opacity: 1; }
"""


def _colours(palette: Mapping[str, str]) -> str:
    """Rules without variables, which not every SVG viewer supports."""
    rules = [
        "text {{ fill: {ink}; }} .summary, .detail, .node.pruned text {{ fill: {soft}; }}",
        ".paper {{ fill: {paper}; }} .stripe {{ fill: {stripe}; }} .rule {{ stroke: {rule}; }}",
        ".solid {{ stroke: {paper}; }} .ring {{ fill: {paper}; }}",
    ]
    for tone in ("tip", "kept", "waiting", "pruned", "wrong"):
        line = "kept" if tone == "tip" else tone
        words = "soft" if tone in ("kept", "pruned") else tone
        rules += [
            f".edge.{tone} {{{{ stroke: {{{line}}}; }}}}",
            f".{tone} .solid, .{tone} .halo, .{tone} .dots, .{tone} .mark rect "
            f"{{{{ fill: {{{tone}}}; }}}}",
            f".{tone} .ring {{{{ stroke: {{{tone}}}; }}}}",
            f".node.{tone} .mark text {{{{ fill: {{{words}}}; }}}}",
        ]
    rules.append(".node.tip .first text {{ fill: {paper}; }}")
    return "\n".join(rules).format(**palette)


_STYLE: Final = (
    f"{_FORMS}{_colours(LIGHT)}\n@media (prefers-color-scheme: dark) {{\n{_colours(DARK)}\n}}\n"
)


def draw_svg(picture: Picture, layout: Layout) -> str:
    """Draw a picture with the layout of its nodes, folded or not."""
    columns = _columns(layout)
    start = MARGIN + max(layout.width, 1) * LANE + 6
    around, marks_at = 2 * MARK_PADDING + MARK_GAP, _marks_at(columns, start)
    marks = ((len(mark) * MARK_CHAR + around for mark in at.node.marks) for at in layout.placed)
    widest = max((marks_at + sum(sizes) for sizes in marks), default=0)
    heading = textwrap.shorten(plain(picture.title), LONGEST_TITLE, placeholder="…")
    width = int(max(NARROWEST, MARGIN + widest, 2 * MARGIN + len(heading) * TITLE_CHAR))
    notes = list(_note_lines(picture, layout, int((width - 2 * MARGIN) / CHAR)))
    bottom = HEAD + len(layout.placed) * ROW
    height = bottom + (notes[-1][1] if notes else 0) + 18
    title, summary = _text(heading), _text(picture.summary)
    # Edges of a better tone are painted over the others.
    edges = sorted(layout.edges, key=lambda edge: -layout.placed[edge.upper].node.tone)
    stripe = f'<rect class="stripe" x="12" y="{{}}" width="{width - 24}" height="{ROW}" rx="5"/>'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" aria-labelledby="title desc">',
        f'<title id="title">{title}</title>',
        f'<desc id="desc">{summary}. Newest first. {_text(" ".join(picture.notes))}</desc>',
        f"<style>{_STYLE}</style>",
        f'<rect class="paper" width="{width}" height="{height}" rx="10"/>',
        f'<text class="title" x="{MARGIN}" y="34">{title}</text>',
        f'<text class="summary" x="{MARGIN}" y="56">{summary}</text>',
        *(stripe.format(HEAD + row * ROW) for row in range(0, len(layout.placed), 2)),
        *(_edge(layout, edge) for edge in edges),
        *(_node(placed, columns, start) for placed in layout.placed),
        *_notes(notes, bottom, width),
        "</svg>\n",
    ]
    return "\n".join(parts)


def _edge(layout: Layout, edge: Edge) -> str:
    upper = layout.placed[edge.upper]
    x, y = _coordinates(upper.lane, upper.row)
    to, below = _coordinates(edge.lane, upper.row + 1)
    is_cut = edge.lower is None
    end = HEAD + len(layout.placed) * ROW if edge.lower is None else _coordinates(0, edge.lower)[1]
    tones = upper.node.tone.name.lower() + (" cut" if is_cut else "")
    path = f"M{x} {y}"
    if x != to:
        path += f"C{x} {y + 0.62 * ROW:g} {to} {y + 0.38 * ROW:g} {to} {min(below, end)}"
    if x == to or end > below:
        path += f"V{end}"
    return f'<path class="edge {tones}" d="{path}"/>'


def _node(placed: Placed, columns: Sequence[int], start: float) -> str:
    node = placed.node
    x, y = _coordinates(placed.lane, placed.row)
    title = str(node.id) if isinstance(node.id, str | bytes) else node.name
    parts = [f"<title>{_text(title)}</title>"]
    if node.tone is Tone.TIP:
        parts.append(f'<circle class="halo" cx="{x}" cy="{y}" r="11"/>')
    parts.append(_glyph(placed, x, y))
    left = start
    for number, (text, size) in enumerate(zip(_cells(placed), columns, strict=False)):
        kind = "detail" if number or node.shape is NodeShape.FOLD else "name"
        if text:
            parts.append(f'<text class="{kind}" x="{left:g}" y="{y + 4}">{_text(text)}</text>')
        left += (size + GAP_COLUMNS) * CHAR
    left = _marks_at(columns, start)
    for number, mark in enumerate(node.marks):
        long = len(mark) * MARK_CHAR + 2 * MARK_PADDING
        first = " first" if number == 0 else ""
        parts.append(
            f'<g class="mark{first}"><rect x="{left:g}" y="{y - 9}" width="{long:g}" height="18" '
            f'rx="9"/><text x="{left + MARK_PADDING:g}" y="{y + 4}">{_text(mark)}</text></g>'
        )
        left += long + MARK_GAP
    return f'<g class="node {node.tone.name.lower()}">{"".join(parts)}</g>'


def _glyph(placed: Placed, x: int, y: int) -> str:
    shape = placed.node.shape
    if shape is NodeShape.ROOT:
        return f'<path class="solid" d="M{x} {y - 9}l9 9l-9 9l-9 -9z"/>'
    if shape is NodeShape.DATA:
        return f'<circle class="solid" cx="{x}" cy="{y}" r="7"/>'
    if shape is NodeShape.FOLD:
        dots = "".join(f'<circle cx="{x}" cy="{y + dy}" r="2"/>' for dy in (-7, 0, 7))
        ground = "paper" if placed.row % 2 else "stripe"
        gap = f'<rect class="{ground}" x="{x - 3}" y="{y - 11}" width="6" height="22"/>'
        return f'{gap}<g class="dots">{dots}</g>'
    missing = " missing" if shape is NodeShape.MISSING else ""
    return f'<circle class="ring{missing}" cx="{x}" cy="{y}" r="5.5"/>'


def _notes(lines: Sequence[tuple[str, int]], bottom: int, width: int) -> Iterator[str]:
    """The notes: lines, and their distances below the last node in pixels."""
    if lines:
        y = bottom + 12
        yield f'<line class="rule" x1="{MARGIN}" x2="{width - MARGIN}" y1="{y}" y2="{y}"/>'
    for line, down in lines:
        yield f'<text class="note" x="{MARGIN}" y="{bottom + down}">{_text(line)}</text>'


def _note_lines(picture: Picture, layout: Layout, width: int) -> Iterator[tuple[str, int]]:
    more = (f"{layout.hidden} more below are not drawn.",) if layout.hidden else ()
    down = 34
    for note in (*more, *picture.notes):
        for line in note.split("\n"):
            for wrapped in textwrap.wrap(plain(line), width):
                yield wrapped, down
                down += LINE
        down += LINE // 2


def _cells(placed: Placed) -> tuple[str, ...]:
    return (placed.node.name, *placed.node.details)


def _columns(layout: Layout) -> list[int]:
    """The width of each column of text, in characters."""
    widths: list[int] = []
    for placed in layout.placed:
        cells = () if placed.node.shape is NodeShape.FOLD else _cells(placed)
        for number, text in enumerate(cells):
            if number == len(widths):
                widths.append(0)
            widths[number] = max(widths[number], len(text))
    return widths


def _marks_at(columns: Sequence[int], start: float) -> float:
    return start + sum((size + GAP_COLUMNS) * CHAR for size in columns)


def _coordinates(lane: int, row: int) -> tuple[int, int]:
    return MARGIN + lane * LANE + 2, HEAD + row * ROW + ROW // 2


def _text(text: str) -> str:
    return escape(plain(text.replace("\n", " ")), {'"': "&quot;"})
