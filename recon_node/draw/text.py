"""Drawings as text: the cells to the left of each node, line by line.

A node's line has its glyph and the lanes that pass it. If its edges go to other lanes, a line of
links follows: `├─╮` opens a lane, `├─╯` joins one, and a lane that is only crossed stays intact:
`├─│─╯`. Below a root there is a gap, since what follows in its lane is unrelated.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from recon_node.draw.layout import Edge, Layout, NodeShape, Placed, Tone


@dataclass(frozen=True, slots=True)
class Glyphs:
    """The characters of a drawing; `joints` by what they connect: up, down, left, right."""

    nodes: Mapping[NodeShape, str]
    joints: Mapping[str, str]


_JOINTS: Final = ("ud", "lr", "ul", "ur", "dl", "dr", "udl", "udr", "dlr", "ulr", "udlr")


def _glyphs(nodes: str, joints: str) -> Glyphs:
    return Glyphs(dict(zip(NodeShape, nodes, strict=True)), dict(zip(_JOINTS, joints, strict=True)))


UNICODE: Final = _glyphs("◆●○?┊", "│─╯╰╮╭┤├┬┴┼")
ASCII: Final = _glyphs("#*o?:", "|-'`..+++++")


Cells = tuple[tuple[str, Tone | None], ...]


@dataclass(frozen=True, slots=True)
class Line:
    """A line: its cells with their tones (None: empty), and its node, if any."""

    cells: Cells
    placed: Placed | None

    @property
    def text(self) -> str:
        """The cells without their tones."""
        return "".join(cell for cell, _ in self.cells)


def draw_lines(layout: Layout, glyphs: Glyphs = UNICODE) -> Iterator[Line]:
    """Yield the lines of a drawing from the top; two cells per lane, the second between lanes."""
    edges: defaultdict[int, list[Edge]] = defaultdict(list)
    for edge in layout.edges:
        edges[edge.upper].append(edge)
    lanes: dict[int, Tone] = {}
    for placed in layout.placed:
        lanes.pop(placed.lane, None)
        yield _node_line(layout, placed, lanes, glyphs)
        above = dict(lanes)
        for edge in edges[placed.row]:
            lanes[edge.lane] = min(placed.node.tone, lanes.get(edge.lane, placed.node.tone))
        targets = {edge.lane for edge in edges[placed.row]}
        if targets - {placed.lane}:
            yield _link_line(layout, placed, targets, (above, lanes), glyphs)
        elif not targets and placed is not layout.placed[-1]:
            yield Line(_lanes(layout, lanes, glyphs.joints["ud"]), None)
    if lanes:
        yield Line(_lanes(layout, lanes, glyphs.nodes[NodeShape.FOLD]), None)


def _node_line(layout: Layout, placed: Placed, lanes: Mapping[int, Tone], glyphs: Glyphs) -> Line:
    marks = {lane: (glyphs.joints["ud"], tone) for lane, tone in lanes.items()}
    marks[placed.lane] = (glyphs.nodes[placed.node.shape], placed.node.tone)
    return Line(_cells(layout, marks), placed)


def _lanes(layout: Layout, lanes: Mapping[int, Tone], glyph: str) -> Cells:
    """Lanes that continue, and nothing else."""
    return _cells(layout, {lane: (glyph, tone) for lane, tone in lanes.items()})


def _link_line(
    layout: Layout,
    placed: Placed,
    targets: set[int],
    lanes: tuple[Mapping[int, Tone], Mapping[int, Tone]],
    glyphs: Glyphs,
) -> Line:
    """From a node to the lanes of its prevs; `lanes` are those above the line and below it."""
    above, below = lanes
    ends = targets | {placed.lane}
    left, right = min(ends), max(ends)
    tone = placed.node.tone
    marks: dict[int, tuple[str, Tone]] = {}
    for lane in {*below, *range(left, right + 1)}:
        if lane in ends:
            sides = {
                "u": lane in above or lane == placed.lane,
                "d": lane in below,
                "l": lane > left,
                "r": lane < right,
            }
            glyph = glyphs.joints["".join(side for side, there in sides.items() if there)]
            marks[lane] = (glyph, below.get(lane, tone) if lane in above else tone)
        elif lane in below:
            marks[lane] = (glyphs.joints["ud"], below[lane])
        else:
            marks[lane] = (glyphs.joints["lr"], tone)
    between = dict.fromkeys(range(left, right), (glyphs.joints["lr"], tone))
    return Line(_cells(layout, marks, between), None)


def _cells(
    layout: Layout,
    lanes: Mapping[int, tuple[str, Tone]],
    between: Mapping[int, tuple[str, Tone]] | None = None,
) -> Cells:
    empty = (" ", None)
    cells: list[tuple[str, Tone | None]] = []
    for lane in range(layout.width):
        cells += [lanes.get(lane, empty), (between or {}).get(lane, empty)]
    return tuple(cells)
