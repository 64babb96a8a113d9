"""Tip selection: the figures of CIP-145, a set-based oracle, properties that always hold."""

import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recon_node.ipld import CID
from recon_node.streams import (
    Rule,
    StreamEvent,
    StreamShapeError,
    StreamTip,
    Tip,
    heights,
    select_tip,
)

# Every figure of CIP-145 as a graph, and five cases on what its text leaves open.
FIGURES = json.loads((Path(__file__).parent.parent / "data" / "cip145.json").read_text())["cases"]


def _event(row: dict) -> StreamEvent[str]:
    return StreamEvent(
        row["id"], row["kind"], tuple(row["prev"]), row.get("time"), row.get("valid", True)
    )


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure["case"])
def test_every_figure_of_the_cip(figure: dict) -> None:
    tip = select_tip(map(_event, figure["events"]))
    assert {
        "tip": tip.event,
        "data_tip": list(tip.data_tip),
        "anchored_at": list(tip.anchored_at),
        "candidates": list(tip.candidates),
        "pruned": list(tip.pruned),
        "diverged": tip.diverged,
    } == figure["expect"]


def _figure(name: str) -> Tip[str]:
    (figure,) = [f for f in FIGURES if f["case"].startswith(name)]
    return select_tip(map(_event, figure["events"]))


def test_reasons_tell_which_rule_decided_each_fork() -> None:
    rules = [(r.rule, r.winner, r.rivals) for r in _figure("the rules figure").reasons]
    assert rules == [
        (Rule.EARLIEST_TIME, "A", ("B",)),
        (Rule.EARLIEST_TIME, "E", ("F",)),
    ]
    lowest = _figure("equal times").reasons
    assert [(r.rule, r.winner) for r in lowest] == [(Rule.LOWEST_CID, "a")]
    anchors = _figure("two time events").reasons
    assert [(r.rule, r.winner) for r in anchors] == [(Rule.EARLIEST_ANCHOR, "T3")]
    assert _figure("figure 2").reasons == ()


# --- the oracle: the definitions, word for word, on sets ---


def oracle(events: list[StreamEvent[str]]) -> Tip[str]:
    by_id = {e.id: e for e in events}
    branch: dict[str, set[str]] = {}

    def branch_of(id_: str) -> set[str]:
        if id_ not in branch:
            branch[id_] = {id_}.union(*(branch_of(prev) for prev in by_id[id_].prev))
        return branch[id_]

    data = {e.id for e in events if e.kind != "time" and e.valid}

    def last(ids: set[str]) -> set[str]:
        return {a for a in ids if not any(a != b and a in branch_of(b) for b in ids)}

    def time(id_: str) -> float:
        proofs = [
            t.time
            for t in events
            if t.kind == "time" and t.valid and t.time is not None and id_ in branch_of(t.id)
        ]
        return min(proofs, default=float("inf"))

    def key(id_: str) -> tuple[float, str]:
        return time(id_), id_

    dominant = last(data)
    covered = set().union(*(branch_of(e.id) - {e.id} for e in events if e.valid))
    candidates = {
        e.id for e in events if e.valid and e.id not in covered and branch_of(e.id) & dominant
    }
    left = set(candidates)
    while True:
        held = [branch_of(c) & data for c in left]
        contested = set.union(*held) - set.intersection(*held)
        if not contested:
            break
        first = {a for a in contested if not (branch_of(a) - {a}) & contested}
        winner = min(first, key=key)
        left = {c for c in left if winner in branch_of(c)}
    event = min(left, key=key)
    mine = branch_of(event) & data
    height: dict[str, int] = {}
    for e in sorted(events, key=lambda e: len(branch_of(e.id))):
        height[e.id] = 1 + max((height[prev] for prev in e.prev), default=-1)
    return Tip(
        event=event,
        height=height[event],
        data_tip=tuple(sorted(last(mine))),
        anchored_at=tuple(sorted(last({d for d in mine if time(d) < float("inf")}))),
        candidates=tuple(sorted(candidates)),
        pruned=tuple(sorted(by_id.keys() - branch_of(event))),
        diverged=len(dominant) > 1,
        reasons=(),
    )


@st.composite
def streams(draw: st.DrawFn, max_size: int = 14) -> list[StreamEvent[str]]:
    """Streams with forks, merges, invalid events, unproven and equal times; ids in no order."""
    size = draw(st.integers(1, max_size))
    names = draw(st.permutations([chr(ord("a") + i) for i in range(size)]))
    events = [StreamEvent(names[0], "init")]
    for name in names[1:]:
        kind = draw(st.sampled_from(["data", "data", "time"]))
        known = st.sampled_from([e.id for e in events])
        prevs = draw(st.lists(known, min_size=1, max_size=3 if kind == "data" else 1, unique=True))
        time = draw(st.none() | st.integers(1, 4)) if kind == "time" else None
        valid = draw(st.sampled_from([True, True, True, False]))
        events.append(StreamEvent(name, kind, tuple(prevs), time, valid))
    return events


def without_reasons(tip: Tip[str]) -> Tip[str]:
    return Tip(
        tip.event,
        tip.height,
        tip.data_tip,
        tip.anchored_at,
        tip.candidates,
        tip.pruned,
        tip.diverged,
        (),
    )


@settings(max_examples=250)
@given(streams())
def test_agrees_with_the_definitions_word_for_word(events: list[StreamEvent[str]]) -> None:
    assert without_reasons(select_tip(events)) == oracle(events)


@given(streams(), st.randoms(use_true_random=False))
def test_the_order_of_events_and_repeats_do_not_matter(
    events: list[StreamEvent[str]], rng: random.Random
) -> None:
    shuffled = events + rng.choices(events, k=3)
    rng.shuffle(shuffled)
    assert select_tip(shuffled) == select_tip(events)


@given(streams(), st.data())
def test_an_invalid_event_on_top_never_moves_the_tip(
    events: list[StreamEvent[str]], data: st.DataObject
) -> None:
    prevs = data.draw(st.lists(st.sampled_from([e.id for e in events]), min_size=1, unique=True))
    forged = StreamEvent("!", "data", tuple(prevs), valid=False)
    before, after = select_tip(events), select_tip([*events, forged])
    assert after.pruned == ("!", *before.pruned)
    assert (after.event, after.candidates, after.reasons) == (
        before.event,
        before.candidates,
        before.reasons,
    )


@given(streams())
def test_a_merge_of_all_candidates_ends_the_divergence(events: list[StreamEvent[str]]) -> None:
    before = select_tip(events)
    merged = select_tip([*events, StreamEvent("z!", "data", before.candidates)])
    assert (merged.event, merged.diverged, merged.reasons) == ("z!", False, ())


@given(streams())
def test_reasons_replay_to_the_tip(events: list[StreamEvent[str]]) -> None:
    """Every candidate but the tip is dropped by exactly the decisions that are reported."""
    tip = select_tip(events)
    by_id = {e.id: e for e in events}

    def covers(a: str, b: str) -> bool:
        return a == b or any(covers(prev, b) for prev in by_id[a].prev)

    left = list(tip.candidates)
    for decision in tip.reasons:
        assert decision.winner not in decision.rivals
        kept = [c for c in left if covers(c, decision.winner)]
        assert kept, "a decision must keep somebody"
        assert len(kept) < len(left), "a decision must drop somebody"
        left = kept
    assert left == [tip.event]


@given(streams())
def test_works_on_binary_cids_in_their_binary_order(events: list[StreamEvent[str]]) -> None:
    cids = {e.id: CID.of(0x71, e.id.encode()) for e in events}
    binary = [
        StreamEvent(cids[e.id], e.kind, tuple(cids[p] for p in e.prev), e.time, e.valid)
        for e in events
    ]
    as_hex = [
        StreamEvent(e.id.hex(), e.kind, tuple(p.hex() for p in e.prev), e.time, e.valid)
        for e in binary
    ]
    assert select_tip(binary).event.hex() == select_tip(as_hex).event


def test_heights_are_one_more_than_the_largest_of_the_prevs() -> None:
    (figure,) = [f for f in FIGURES if f["case"] == "figure 6"]
    assert heights(map(_event, figure["events"])) == {
        "Init": 0, "T1": 1, "A": 1, "T2": 2, "B": 2, "T3": 3, "C": 3, "T4": 4,
    }  # fmt: skip


# --- refusals ------------------------------------------------------------

INIT = StreamEvent("i", "init")


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([], "exactly one init event; found: none"),
        ([INIT, StreamEvent("j", "init")], "found: i, j"),
        ([StreamEvent("i", "init", ("x",))], "init event i must have no prev"),
        ([INIT, StreamEvent("d", "data")], "data event d must have at least one prev"),
        ([INIT, StreamEvent("d", "data", ("gone",))], "event d names prev gone, which is missing"),
        (
            [INIT, StreamEvent("a", "data", ("b", "i")), StreamEvent("b", "data", ("a",))],
            "event a is part of a cycle",
        ),
        ([INIT, StreamEvent("i", "init", valid=False)], "given twice, with differences"),
        ([StreamEvent("i", "init", valid=False)], "no data event of the stream is valid"),
        ([StreamEvent(b"\x01", "init", valid=True), StreamEvent(b"\x02", "init")], "01, 02"),
    ],
)
def test_what_is_not_one_whole_stream_is_refused(events: list, message: str) -> None:
    with pytest.raises(StreamShapeError, match=message):
        select_tip(events)


# --- size ------------------------------------------------------------


@given(st.lists(st.sampled_from(["data", "time", "pending"])))
def test_a_chain_has_the_tip_that_its_events_have_one_by_one(kinds: list[str]) -> None:
    events = [StreamEvent("0", "init")]
    for number, kind in enumerate(kinds, 1):
        below = (str(number - 1),)
        if kind == "data":
            events.append(StreamEvent(str(number), "data", below))
        else:
            time = 1000 - number if kind == "time" else None
            events.append(StreamEvent(str(number), "time", below, time))
    stream: StreamTip[str] = StreamTip()
    for event in events:
        stream.add(event)
    assert select_tip(events) == stream.tip()


def test_a_comb_of_forks_is_decided_fork_by_fork() -> None:
    """Each fork's side branch is one event: every round drops one candidate."""
    forks = 2_000
    events = [StreamEvent(0, "init")]
    trunk = 0
    for i in range(1, forks + 1):
        side, following = 3 * i + 1, 3 * i  # the trunk has the lower id, so it wins each fork
        events += [StreamEvent(side, "data", (trunk,)), StreamEvent(following, "data", (trunk,))]
        trunk = following
    random.Random(1).shuffle(events)
    tip = select_tip(events)
    assert (tip.event, tip.height, len(tip.pruned)) == (3 * forks, forks, forks)
    assert [d.winner for d in tip.reasons] == [3 * i for i in range(1, forks + 1)]


def test_a_long_chain_needs_no_recursion() -> None:
    length = 50_000
    chain = [StreamEvent(0, "init")] + [StreamEvent(i, "data", (i - 1,)) for i in range(1, length)]
    tip = select_tip(reversed(chain))
    assert (tip.event, tip.height, tip.pruned, tip.diverged) == (length - 1, length - 1, (), False)
