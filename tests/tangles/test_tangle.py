"""Tangles: an independent library's answers, a set-based oracle, what no order may change."""

from collections import Counter
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import vectors

from recon_node.tangles.tangle import (
    Backlinks,
    Tangle,
    TangleError,
    TangleMessage,
    TangleRule,
    tangle_of,
    weave,
)

# 13 hand-made and 200 random graphs, with what the npm package @tangle/graph answers for them.
ORACLE = vectors.load("tangle")
GRAPHS = [*ORACLE["hand"].items(), *((f"random-{i}", g) for i, g in enumerate(ORACLE["random"]))]
WRONG = {name: graph for name, graph in GRAPHS if "error" in graph["expect"]}


def _weave(graph: dict) -> Tangle[str]:
    nodes = graph["nodes"]
    return weave({n["key"]: None if n["previous"] is None else (*n["previous"],) for n in nodes})


def _history(woven: Tangle[str], message: str) -> set[str]:
    """All members before a message by its links."""
    left, history = [message], set[str]()
    while left:
        left += (new := set(woven.previous[left.pop()]) - history)
        history |= new
    return history


def test_an_independent_library_answers_the_same() -> None:
    for name, graph in GRAPHS:
        if name in WRONG:
            continue
        woven = _weave(graph)
        named = Counter(chain.from_iterable(woven.previous.values()))
        assert {
            "roots": sorted(message for message, below in woven.previous.items() if not below),
            "tips": list(woven.tips),
            "connected": sorted(woven.order),
            "branch": sorted(message for message, count in named.items() if count > 1),
            "merge": sorted(message for message, below in woven.previous.items() if len(below) > 1),
            "history": {message: sorted(_history(woven, message)) for message in woven.order},
        } == graph["expect"], name
        assert set(woven.excluded) == {node["key"] for node in graph["nodes"]} - set(woven.order)


def test_what_that_library_refuses_is_refused_here() -> None:
    assert sorted(WRONG) == ["dup-key", "no-root", "selfloop"]
    with pytest.raises(TangleError, match="S names itself as previous"):
        _weave(WRONG["selfloop"])
    with pytest.raises(TangleError, match="no message is a root"):
        _weave(WRONG["no-root"])
    twice = [TangleMessage("A", 0, {"x": ROOT})] * 2
    with pytest.raises(TangleError, match="A was given twice"):
        tangle_of(twice, "x", "A")


ROOT = Backlinks(None, None)


def _message(
    name: str, previous: str | None, time: float = 0, root: str = "A"
) -> TangleMessage[str]:
    links = ROOT if previous is None else Backlinks(root, tuple(previous))
    return TangleMessage(name, time, {"post": links})


def test_the_example_of_the_proposal_and_its_next_message() -> None:
    messages = [
        _message("E", "CD", 1),
        _message("D", "B", 3),
        _message("C", "B", 4),
        _message("B", "A", 9),
        _message("A", None, 5),
    ]
    woven = tangle_of(messages, "post", "A")
    assert woven.order == tuple("ABDCE")  # D before C: it says that it is older
    assert woven.tips == ("E",)


def test_a_message_can_be_in_several_tangles() -> None:
    both = {"post": Backlinks("A", ("A",)), "gathering": Backlinks("G", ("G",))}
    messages = [
        TangleMessage("M", 0, both),
        TangleMessage("A", 0, {"post": ROOT, "gathering": Backlinks("G", ("M",))}),
        TangleMessage("G", 0, {"gathering": ROOT}),
        TangleMessage("Z", 0, {}),
    ]
    assert tangle_of(messages, "post", "A").order == ("A", "M")
    assert tangle_of(messages, "gathering", "G").order == ("G", "M", "A")


def test_what_breaks_a_rule_is_left_out_and_says_which() -> None:
    messages = [
        _message("A", None),
        _message("B", "A"),
        _message("c", "B?"),
        _message("d", "Bc"),
        _message("e", ""),
        _message("f", "g"),
        _message("g", "f"),
        _message("h", "g"),
        _message("other", "A", root="Z"),
    ]
    woven = tangle_of(messages, "post", "A")
    assert woven.order == ("A", "B")
    broken = {message: (why.rule, why.previous) for message, why in woven.excluded.items()}
    assert broken == {
        "c": (TangleRule.MISSING_PREVIOUS, ("?",)),
        "d": (TangleRule.PREVIOUS_OUTSIDE, ("c",)),
        "e": (TangleRule.EMPTY_PREVIOUS, ()),
        "f": (TangleRule.CYCLE, ("g",)),
        "g": (TangleRule.CYCLE, ("f",)),
        "h": (TangleRule.CYCLE, ("g",)),
    }
    assert str(woven.excluded["c"]) == "all previous messages must be here: ?"
    assert str(woven.excluded["e"]).endswith("at least one previous message")


@pytest.mark.parametrize(
    ("root", "complaint"),
    [
        ("Q", "the root Q of the tangle 'post' is missing"),
        ("B", "B is not a root: in 'post' it names the root A"),
        ("R", "R is not a root: in 'post' it names previous messages"),
    ],
)
def test_other_messages_are_refused_as_root(root: str, complaint: str) -> None:
    impostor = TangleMessage("R", 0, {"post": Backlinks(None, ("A",))})
    with pytest.raises(TangleError, match=complaint):
        tangle_of([_message("A", None), _message("B", "A"), impostor], "post", root)


@st.composite
def _links(draw: st.DrawFn) -> dict[int, tuple[int, ...] | None]:
    """Any links at all among a few messages, of which the first is a root."""
    names = range(draw(st.integers(1, 12)))
    previous = st.none() | st.lists(st.integers(-1, len(names)), max_size=3)
    drawn = {name: draw(previous) for name in names}
    return {
        name: None if name == 0 or links is None else tuple(link for link in links if link != name)
        for name, links in drawn.items()
    }


@given(_links())
def test_membership_is_the_least_fix_point(links: dict[int, tuple[int, ...] | None]) -> None:
    members: set[int] = set()
    grown = True
    while grown:
        joining = {
            message
            for message, previous in links.items()
            if previous is None or (previous and members.issuperset(previous))
        }
        grown = joining != members
        members = joining
    assert set(weave(links).order) == members


@given(_links(), st.randoms(), st.lists(st.integers(0, 5), min_size=12, max_size=12))
def test_the_order_is_causal_by_time_and_the_same_everywhere(links, rng, times):
    timestamps = dict(enumerate(map(float, times)))
    woven = weave(links, timestamps)
    shuffled = list(links.items())
    rng.shuffle(shuffled)
    again = weave(dict(shuffled), timestamps)
    assert (again.order, again.excluded) == (woven.order, woven.excluded)
    placed: set[int] = set()
    for position, message in enumerate(woven.order):
        could_come = [
            other for other in woven.order[position:] if placed.issuperset(woven.previous[other])
        ]
        assert message == min(could_come, key=lambda other: (timestamps[other], other))
        placed.add(message)
