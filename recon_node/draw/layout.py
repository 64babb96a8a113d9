"""The layout of graphs in lanes, newest first, like `git log --graph`.

Theory of operation. A *row* has one node, and every node is above everything it builds on. The
order is the post-order of a walk upwards from the roots: what is above a node is drawn before it,
and branches stay together, nested as they fork.

*Lanes* run between the rows. A lane waits for one node: it begins below the first node that names
this one as prev, all others that name it join, and it ends at the node itself. So an edge goes from
its upper node sideways into the lane of its lower one, and straight down: it crosses no third node,
and lanes never move. There is at most one lane more than nodes being waited for at once.

`fold_runs` replaces long runs without a fork by one node each. `draw.text` and `draw.svg` draw.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, IntEnum
from typing import Final

_SHORT_NAME: Final = 12
"""Characters shown of an id."""
SHORTEST_FOLD: Final = 3
"""Nodes of the shortest run that is folded."""


class NodeShape(Enum):
    """The kind of a node."""

    ROOT = "root"
    DATA = "data"
    TIME = "time"
    MISSING = "missing"
    FOLD = "fold"


class Tone(IntEnum):
    """The role of a node in the graph, the best first."""

    TIP = 0
    KEPT = 1
    WAITING = 2
    PRUNED = 3
    WRONG = 4


@dataclass(frozen=True, slots=True)
class PictureNode:
    """A node to draw; `prev` are the nodes that it builds on.

    `name` is a short id, `details` are texts for columns, `marks` are labels. A node with `keep` is
    never folded.
    """

    id: Hashable
    prev: tuple[Hashable, ...] = ()
    shape: NodeShape = NodeShape.DATA
    tone: Tone = Tone.KEPT
    name: str = ""
    details: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    keep: bool = False


@dataclass(frozen=True, slots=True)
class Picture:
    """A graph to draw, with `title` and `summary` above it and `notes` below."""

    title: str
    summary: str
    nodes: tuple[PictureNode, ...]
    notes: tuple[str, ...] = ()
    unit: str = "events"


@dataclass(frozen=True, slots=True)
class Placed:
    """A node and its coordinates: rows count from 0 at the top, lanes from 0 at the left."""

    node: PictureNode
    row: int
    lane: int


@dataclass(frozen=True, slots=True)
class Edge:
    """An edge from the node in the row `upper` to its prev in the row `lower`, through a lane.

    `lower` is None if the prev is below the last row drawn.
    """

    upper: int
    lower: int | None
    lane: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Where everything goes. `edges` are in the order of their upper rows, `width` is in lanes, and
    `hidden` counts the nodes below the last row."""

    placed: tuple[Placed, ...]
    edges: tuple[Edge, ...]
    width: int
    hidden: int


def lay_out(nodes: Iterable[PictureNode], rows: int | None = None) -> Layout:
    """Place nodes and edges.

    Args:
        nodes: a whole graph, in any order; among branches or roots, those of a better tone come
            first, then those given first.
        rows: the maximum number of rows, from the top.

    Raises:
        ValueError: a node is given twice, a prev is missing, or there is a cycle.
    """
    by_id = _by_id(nodes)
    order = newest_first(by_id.values())
    shown = order if rows is None else order[:rows]
    row_of = {node.id: row for row, node in enumerate(shown)}
    lanes = _Lanes()
    placed: list[Placed] = []
    edges: list[Edge] = []
    for row, node in enumerate(shown):
        lane = lanes.take(node.id)
        placed.append(Placed(node, row, lane))
        for prev in dict.fromkeys(node.prev):
            edges.append(Edge(row, row_of.get(prev), lanes.wait_for(prev, lane)))
    return Layout(tuple(placed), tuple(edges), lanes.width, len(order) - len(shown))


def newest_first(nodes: Iterable[PictureNode]) -> list[PictureNode]:
    """Return the nodes, each before everything it builds on, with branches together.

    Raises:
        ValueError: as `lay_out`.
    """
    by_id = _by_id(nodes)
    nexts = _nexts_of(by_id)
    numbers = {id_: number for number, id_ in enumerate(by_id)}
    main = _main_line(by_id)
    for above in nexts.values():
        above.sort(key=lambda id_: (by_id[id_].tone, id_ not in main, numbers[id_]))
    order: list[PictureNode] = []
    seen: set[Hashable] = set()
    for root in [node.id for node in by_id.values() if not node.prev]:
        seen.add(root)
        path = [(root, iter(nexts[root]))]
        while path:
            id_, following = path[-1]
            new = next((id_ for id_ in following if id_ not in seen), None)
            if new is None:
                order.append(by_id[id_])
                path.pop()
            else:
                seen.add(new)
                path.append((new, iter(nexts[new])))
    row_of = {node.id: row for row, node in enumerate(order)}
    stuck = [id_ for id_ in by_id if id_ not in row_of] or [
        node.id for node in order if any(row_of[prev] <= row_of[node.id] for prev in node.prev)
    ]
    if stuck:
        raise ValueError(f"{stuck[0]!r} is part of a cycle, or builds only on one")
    return order


def fold_runs(nodes: Iterable[PictureNode], unit: str = "events") -> list[PictureNode]:
    """Return the nodes, with long runs of ordinary ones replaced by one node each.

    In such a run, each node has one prev and one next, and all have the same tone.
    """
    by_id = _by_id(nodes)
    nexts = _nexts_of(by_id)

    def is_plain(node: PictureNode) -> bool:
        return not node.keep and len(set(node.prev)) == 1 and len(nexts[node.id]) == 1

    folded: dict[Hashable, PictureNode] = {}
    instead: dict[Hashable, PictureNode] = {}
    for node in newest_first(by_id.values()):
        if not is_plain(node) or node.id in folded:
            continue
        run = [node]
        while is_plain(below := by_id[run[-1].prev[0]]) and below.tone == node.tone:
            run.append(below)
        folded.update((node.id, node) for node in run)
        if len(run) >= SHORTEST_FOLD:
            instead[node.id] = _fold_of(run, unit)
        else:
            instead.update((node.id, node) for node in run)
    shown = (id_ for id_ in by_id if id_ in instead or id_ not in folded)
    left = [instead.get(id_, by_id[id_]) for id_ in shown]
    names = {id_: fold_.id for id_, fold_ in instead.items()}
    return [replace(node, prev=tuple(names.get(p, p) for p in node.prev)) for node in left]


def plain(text: str) -> str:
    """Make a stranger's text safe for a document of one line: what does not print is `\ufffd`."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "\ufffd" for c in text)


def _nexts_of(by_id: Mapping[Hashable, PictureNode]) -> dict[Hashable, list[Hashable]]:
    """The nodes that build on each node."""
    nexts: dict[Hashable, list[Hashable]] = {id_: [] for id_ in by_id}
    for node in by_id.values():
        for prev in dict.fromkeys(node.prev):
            if prev not in nexts:
                raise ValueError(f"{node.id!r} builds on {prev!r}, which is missing")
            nexts[prev].append(node.id)
    return nexts


def _main_line(by_id: Mapping[Hashable, PictureNode]) -> set[Hashable]:
    """The node of the best tone and its first prevs, which should stay one straight line."""
    line: set[Hashable] = set()
    best = min(by_id.values(), key=lambda node: node.tone, default=None)
    while best is not None and best.id not in line:
        line.add(best.id)
        best = by_id[best.prev[0]] if best.prev else None
    return line


class _Lanes:
    """Which lane waits for which node."""

    def __init__(self) -> None:
        self._waits: list[Hashable | None] = []
        self._lane_of: dict[Hashable, int] = {}

    @property
    def width(self) -> int:
        """The largest number of lanes side by side."""
        return len(self._waits)

    def take(self, id_: Hashable) -> int:
        """Return the lane of a node, and free it."""
        lane = self._lane_of.pop(id_, None)
        if lane is None:
            lane = self._free_lane(0)
        self._waits[lane] = None
        return lane

    def wait_for(self, id_: Hashable, beside: int) -> int:
        """Return the lane that waits for a node: a new one, the closest free lane."""
        lane = self._lane_of.get(id_)
        if lane is None:
            lane = self._lane_of[id_] = self._free_lane(beside)
            self._waits[lane] = id_
        return lane

    def _free_lane(self, beside: int) -> int:
        free = [lane for lane, id_ in enumerate(self._waits) if id_ is None]
        if not free:
            self._waits.append(None)
            return len(self._waits) - 1
        return min(free, key=lambda lane: (abs(lane - beside), lane < beside))


def _fold_of(run: Sequence[PictureNode], unit: str) -> PictureNode:
    times = sum(node.shape is NodeShape.TIME for node in run)
    among = f", {times} time event{'s'[: times > 1]} among them" if times else ""
    id_, name = ("fold", run[0].id), f"{len(run)} {unit}{among}"
    return PictureNode(id_, run[-1].prev, NodeShape.FOLD, run[0].tone, name, keep=True)


def _by_id(nodes: Iterable[PictureNode]) -> dict[Hashable, PictureNode]:
    by_id: dict[Hashable, PictureNode] = {}
    for node in nodes:
        if node.id in by_id:
            raise ValueError(f"{node.id!r} was given twice")
        by_id[node.id] = node
    return by_id


def missing_node(id_: str) -> PictureNode:
    """Return the node of something that is referred to but not held."""
    shape, tone, marks = NodeShape.MISSING, Tone.WAITING, ("not here",)
    return PictureNode(id_, (), shape, tone, short_name(id_), marks=marks, keep=True)


def short_name(id_: str) -> str:
    """Shorten an id: a message's starts with what distinguishes it, a CID ends with it."""
    if len(id_) <= _SHORT_NAME + 1:
        return id_
    return f"{id_[:_SHORT_NAME]}…" if id_.startswith("%") else f"…{id_[-_SHORT_NAME:]}"


def count_of(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural where it needs one."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
