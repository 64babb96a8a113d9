"""Drawings as text that other tools lay out: Mermaid (Markdown, GitHub) and DOT (Graphviz).

Both get the rows of a layout, so folding and limits are those of the other drawings. An edge points
from an event to one that it builds on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from recon_node.draw.layout import Layout, NodeShape, Picture, Placed, Tone, plain

_COLOURS: Final = {
    Tone.TIP: "#0b7a4b",
    Tone.KEPT: "#2563c9",
    Tone.WAITING: "#b0760a",
    Tone.PRUNED: "#a3adb8",
    Tone.WRONG: "#cf3b3b",
}
_MERMAID_SHAPES: Final = {
    NodeShape.ROOT: ("([", "])"),
    NodeShape.DATA: ("(", ")"),
    NodeShape.TIME: ("{{", "}}"),
    NodeShape.MISSING: (">", "]"),
    NodeShape.FOLD: ("[[", "]]"),
}
_DOT_SHAPES: Final = {
    NodeShape.ROOT: "oval",
    NodeShape.DATA: "box",
    NodeShape.TIME: "hexagon",
    NodeShape.MISSING: "plain",
    NodeShape.FOLD: "folder",
}
_BELOW: Final = "below"
"""The node that stands for all rows below the last one drawn."""


def draw_mermaid(picture: Picture, layout: Layout) -> str:
    """Return the drawing as a Mermaid flowchart (https://mermaid.js.org/syntax/flowchart.html)."""
    lines = ["---", f"title: {_mermaid_text(picture.title)}", "---", "flowchart TD"]
    for placed in layout.placed:
        opening, closing = _MERMAID_SHAPES[placed.node.shape]
        label = _mermaid_text("<br/>".join(_labels(placed, _mermaid_escaped)))
        role = placed.node.tone.name.lower()
        lines.append(f"  n{placed.row}{opening}{label}{closing}:::{role}")
    if layout.hidden:
        lines.append(f'  {_BELOW}>"{layout.hidden:,} more"]')
    lines += [f"  {upper} --> {lower}" for upper, lower in _edges(layout)]
    for tone, colour in _COLOURS.items():
        lines.append(f"  classDef {tone.name.lower()} stroke:{colour},stroke-width:2px")
    return "\n".join(lines) + "\n"


def draw_dot(picture: Picture, layout: Layout) -> str:
    """Return the drawing as a digraph in DOT (https://graphviz.org/doc/info/lang.html)."""
    lines = ["digraph {", f"  label={_dot_text(picture.title)}; labelloc=t; fontname=sans;"]
    lines.append("  node [fontname=monospace, fontsize=10, penwidth=2];")
    for placed in layout.placed:
        label = _dot_text("\n".join(_labels(placed, str)))
        shape, colour = _DOT_SHAPES[placed.node.shape], _COLOURS[placed.node.tone]
        lines.append(f'  n{placed.row} [label={label}, shape={shape}, color="{colour}"];')
    if layout.hidden:
        lines.append(f'  {_BELOW} [label="{layout.hidden:,} more", shape=plain];')
    lines += [f"  {upper} -> {lower};" for upper, lower in _edges(layout)]
    return "\n".join([*lines, "}"]) + "\n"


def _labels(placed: Placed, escaped: Callable[[str], str]) -> Iterator[str]:
    """Yield the lines of a node's label: its name, its columns, its marks."""
    node = placed.node
    for line in (node.name, "  ".join(node.details), ", ".join(node.marks)):
        if line:
            yield escaped(plain(line))


def _edges(layout: Layout) -> Iterator[tuple[str, str]]:
    """Yield the edges once each, from the upper node to the lower one."""
    pairs = {
        (f"n{edge.upper}", _BELOW if edge.lower is None else f"n{edge.lower}"): None
        for edge in layout.edges
        if edge.lower is not None or layout.hidden
    }
    yield from pairs


def _mermaid_escaped(text: str) -> str:
    """Replace what Mermaid or HTML would read as syntax by entity codes."""
    return "".join(f"#{ord(char)};" if char in '#"<>&;`|\\' else char for char in text)


def _mermaid_text(text: str) -> str:
    return f'"{text}"'


def _dot_text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
