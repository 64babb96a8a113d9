"""Drawings: what holds for every layout, and the figures of CIP-145 as they look."""

import random
from collections import Counter
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import vectors

from recon_node.draw.layout import (
    SHORTEST_FOLD,
    Layout,
    NodeShape,
    Picture,
    PictureNode,
    Tone,
    fold_runs,
    lay_out,
    newest_first,
    plain,
)
from recon_node.draw.svg import draw_svg
from recon_node.draw.text import ASCII, UNICODE, draw_lines
from recon_node.streams import EventShape
from recon_node.streams.picture import HeldEvent, stream_picture

FIGURES = vectors.load("cip145")["cases"]
SVG = "{http://www.w3.org/2000/svg}"


@st.composite
def graphs(draw: st.DrawFn) -> list[PictureNode]:
    """Any graph: several roots, merges of any number of branches, every tone; in any order."""
    nodes: list[PictureNode] = []
    for number in range(draw(st.integers(0, 24))):
        latest = st.integers(max(0, number - draw(st.sampled_from([1, 3, 24]))), number - 1)
        prev = draw(st.lists(latest, max_size=4)) if number else []
        nodes.append(
            PictureNode(
                id=number,
                prev=tuple(prev),
                shape=draw(st.sampled_from([NodeShape.DATA, NodeShape.TIME])),
                tone=draw(st.sampled_from(Tone)),
                name=str(number),
                keep=draw(st.booleans()),
            )
        )
    return draw(st.permutations(nodes))


def links(nodes: list[PictureNode]) -> set[tuple[object, object]]:
    return {(node.id, prev) for node in nodes for prev in node.prev}


def drawn_links(layout: Layout) -> set[tuple[object, object]]:
    return {
        (layout.placed[edge.upper].node.id, layout.placed[edge.lower].node.id)
        for edge in layout.edges
        if edge.lower is not None
    }


@given(graphs())
def test_every_node_is_there_once_and_above_what_it_builds_on(nodes: list[PictureNode]) -> None:
    layout = lay_out(nodes)
    assert Counter(placed.node.id for placed in layout.placed) == Counter(n.id for n in nodes)
    assert [placed.row for placed in layout.placed] == list(range(len(nodes)))
    row_of = {placed.node.id: placed.row for placed in layout.placed}
    assert all(row_of[upper] < row_of[lower] for upper, lower in links(nodes))
    assert layout.hidden == 0


@given(graphs())
def test_every_edge_connects_its_ends_by_a_lane_of_its_own(nodes: list[PictureNode]) -> None:
    layout = lay_out(nodes)
    assert drawn_links(layout) == links(nodes)
    assert len(layout.edges) == len(links(nodes))
    for edge in layout.edges:
        assert edge.lower is not None
        assert layout.placed[edge.lower].lane == edge.lane
        between = layout.placed[edge.upper + 1 : edge.lower]
        assert all(placed.lane != edge.lane for placed in between)  # it meets no other node
        for other in layout.edges:
            if other.lane == edge.lane and other.lower != edge.lower:
                assert other.lower is not None
                assert other.lower <= edge.upper or edge.lower <= other.upper


@given(graphs())
def test_lanes_exceed_the_nodes_waited_for_by_at_most_one(nodes: list[PictureNode]) -> None:
    layout = lay_out(nodes)
    most = 0
    for row in range(len(nodes)):
        waited = {e.lower for e in layout.edges if e.lower and e.upper <= row < e.lower}
        most = max(most, len(waited))
    assert layout.width <= most + 1
    assert all(placed.lane < layout.width for placed in layout.placed)


@given(graphs(), st.integers(0, 25))
def test_the_upper_rows_are_the_same_when_there_are_fewer(nodes, rows):
    whole, part = lay_out(nodes), lay_out(nodes, rows)
    assert part.placed == whole.placed[:rows]
    assert part.hidden == max(0, len(nodes) - rows)
    assert [(e.upper, e.lane) for e in part.edges] == [
        (e.upper, e.lane) for e in whole.edges if e.upper < rows
    ]
    below = [edge.lower for edge in part.edges if edge.lower is not None]
    assert all(lower < rows for lower in below)
    assert len(drawn_links(part)) == len(below)


def ways(character: str) -> str:
    """Where a joint leads."""
    return next((to for to, joint in UNICODE.joints.items() if joint == character), "")


def read_links(rows: list[str], ids: dict[int, object], row: int, lane: int) -> set[object]:
    """What the node in that row builds on, as a reader of the drawing's characters sees it."""
    below = rows[row + 1] if row + 1 < len(rows) else ""
    at = 2 * lane
    if row + 1 in ids or "u" not in ways(below[at : at + 1]):
        ends = {lane}
    else:
        ends = {lane} if "d" in ways(below[at]) else set()
        for way, step in (("l", -1), ("r", 1)):
            column = at
            while way in ways(below[column]) or (column != at and below[column] == "│"):
                column += step
                if "d" in ways(below[column]) and below[column] != "│":
                    ends.add(column // 2)
    links = set()
    for end in ends:
        for number in range(row + 1, len(rows)):
            character = rows[number][2 * end]
            if number in ids and character in UNICODE.nodes.values():
                links.add(ids[number])
            if "d" not in ways(character):
                break
    return links


@given(graphs())
def test_who_reads_the_characters_finds_every_link(nodes: list[PictureNode]) -> None:
    lines = list(draw_lines(lay_out(nodes)))
    rows = [line.text for line in lines]
    placed = {number: line.placed for number, line in enumerate(lines) if line.placed}
    ids = {number: row.node.id for number, row in placed.items()}
    for number, row in placed.items():
        assert read_links(rows, ids, number, row.lane) == set(row.node.prev)


@given(graphs())
def test_ascii_differs_in_its_characters_alone(nodes: list[PictureNode]) -> None:
    layout = lay_out(nodes)
    for fine, coarse in zip(draw_lines(layout), draw_lines(layout, ASCII), strict=True):
        assert coarse.text.isascii()
        assert [c == " " for c in fine.text] == [c == " " for c in coarse.text]
        assert fine.placed == coarse.placed


@given(graphs())
def test_folding_hides_runs_and_nothing_else(nodes: list[PictureNode]) -> None:
    folded = fold_runs(nodes)
    by_id = {node.id: node for node in nodes}
    nexts = Counter(prev for node in nodes for prev in set(node.prev))
    left = {node.id for node in folded if node.shape is not NodeShape.FOLD}
    hidden = [node for node in nodes if node.id not in left]
    assert all(not n.keep and len(set(n.prev)) == 1 and nexts[n.id] == 1 for n in hidden)
    counts = [int(node.name.split()[0]) for node in folded if node.shape is NodeShape.FOLD]
    assert sum(counts) == len(hidden)
    assert all(count >= SHORTEST_FOLD for count in counts)
    lay_out(folded)  # still a graph
    for node in folded:
        if node.shape is NodeShape.FOLD:
            run = [by_id[node.id[1]]]  # type: ignore[index]
            while run[-1].prev[0] not in left and by_id[run[-1].prev[0]].tone == node.tone:
                run.append(by_id[run[-1].prev[0]])
            assert node.tone == run[0].tone
            assert sum(node.shape is NodeShape.TIME for node in run) == (
                int(node.name.split(", ")[1].split()[0]) if "time" in node.name else 0
            )


def test_a_long_chain_is_one_row() -> None:
    chain = [PictureNode(n, (n - 1,) if n else ()) for n in range(20_000)]
    random.Random(1).shuffle(chain)
    assert lay_out(fold_runs(chain)).placed[1].node.name == "19998 events"
    assert lay_out(chain).width == 1


def test_many_branches_of_one_node_take_two_lanes() -> None:
    star = [PictureNode(0), *(PictureNode(n, (0,)) for n in range(1, 5_000))]
    layout = lay_out(star)
    assert layout.width == 2
    assert len(layout.edges) == 4_999


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ([PictureNode(1), PictureNode(1)], "given twice"),
        ([PictureNode(1, (2,))], "2, which is missing"),
        ([PictureNode(1, (2,)), PictureNode(2, (1,))], "part of a cycle"),
        ([PictureNode(0), PictureNode(1, (0, 2)), PictureNode(2, (1,))], "part of a cycle"),
        ([PictureNode(0), PictureNode(1, (1, 0))], "part of a cycle"),
    ],
)
def test_invalid_graphs_are_refused(nodes: list[PictureNode], words: str) -> None:
    for place in (lay_out, newest_first):
        with pytest.raises(ValueError, match=words):
            place(nodes)


# --- SVG ---

HOSTILE = st.text(st.characters() | st.sampled_from("<>&\"'\x00\x1b\u202e\ud800\n"), max_size=20)


@given(graphs(), HOSTILE, st.integers(0, 25))
def test_svg_has_one_element_for_each_node_and_edge(nodes, text, rows):
    layout = lay_out(
        [PictureNode(n.id, n.prev, n.shape, n.tone, text, (text,), (text,)) for n in nodes]
    )
    layout = lay_out([placed.node for placed in layout.placed], rows or None)
    svg = draw_svg(Picture(text, text, (), (text,)), layout)
    root = ElementTree.fromstring(svg.encode())
    groups = [
        element for element in root.iter(f"{SVG}g") if element.get("class", "").startswith("node")
    ]
    edges = [element for element in root.iter(f"{SVG}path") if "edge" in element.get("class", "")]
    assert (len(groups), len(edges)) == (len(layout.placed), len(layout.edges))
    shown = plain(text.replace("\n", " "))
    for group in groups:
        assert [element.text or "" for element in group.iter(f"{SVG}text")] == (
            [shown] * 3 if text else [""]
        )
    assert {element.tag.removeprefix(SVG) for element in root.iter()} <= {
        *("svg", "title", "desc", "style", "rect", "text", "path", "circle", "g", "line")
    }


def test_what_does_not_print_is_shown_as_such() -> None:
    assert plain("a\x1b[31mb\u202ec\nd é…") == "a\ufffd[31mb\ufffdc\ufffdd é…"


# --- the figures of CIP-145 ---


def held(figure: dict) -> list[HeldEvent]:
    """A figure's events; their heights are not what these tests are about."""
    return [
        HeldEvent(
            EventShape(
                row["id"], row["kind"], tuple(row["prev"]), row.get("time"), row.get("valid", True)
            ),
            0,
        )
        for row in figure["events"]
    ]


def drawn(figure: dict) -> list[str]:
    picture = stream_picture(figure["case"], held(figure)).picture
    lines = []
    for line in draw_lines(lay_out(picture.nodes)):
        node = line.placed.node if line.placed else None
        words = [] if node is None else [node.name, *(f"[{mark}]" for mark in node.marks)]
        lines.append(" ".join([line.text, *words]).rstrip())
    return lines


GOLDEN = vectors.load("cip145_drawings")


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure["case"])
def test_the_figures_as_they_look(figure: dict) -> None:
    assert drawn(figure) == GOLDEN[figure["case"]]


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure["case"])
def test_the_marks_say_what_the_cip_says(figure: dict) -> None:
    picture = stream_picture("", held(figure))
    expect = figure["expect"]
    marked = {
        mark: sorted(n.id for n in picture.picture.nodes if mark in n.marks)
        for mark in ("TIP", "data tip", "anchored", "pruned", "candidate")
    }
    assert marked == {
        "TIP": [expect["tip"]],
        "data tip": expect["data_tip"],
        "anchored": expect["anchored_at"],
        "pruned": expect["pruned"],
        "candidate": sorted({*expect["candidates"]} - {expect["tip"]}),
    }
    assert ("diverged" in picture.picture.summary) == expect["diverged"]
    assert bool(picture.merge) == expect["diverged"]
