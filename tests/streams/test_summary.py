"""A summary of a stream: whatever comes after it, the tip is that of the whole stream."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_tip import streams

from recon_node.streams import ForgottenError, StreamEvent, StreamShapeError, Tip, select_tip
from recon_node.streams import summary as summary_module
from recon_node.streams.summary import SummarizedTip, TipSummary

Events = list[StreamEvent[str]]


def whole(events: Events) -> Tip[str] | None:
    try:
        return select_tip(events)
    except StreamShapeError:
        return None


def go_through(events: Events, rng: random.Random, recent: int) -> tuple[int, int]:
    """Take the stream in pieces, each from the summary of what came before it.

    Each time, the tip is that of the whole stream, or the summary says that it is not enough.
    Returns how often it was, and was not.
    """
    summary: TipSummary[str] | None = None
    upto = answered = forgotten = 0
    while upto < len(events):
        done, upto = upto, upto + rng.choice([1, 1, 1, 2, 5])
        expected = whole(events[:upto])
        tip = SummarizedTip(summary)
        try:
            for event in events[done if summary else 0 : upto]:
                tip.add(event)
            assert len(tip) == len(events[:upto])
            if expected is None:
                summary = None
                continue
            assert tip.tip() == expected
            answered += summary is not None
            summary = tip.summarize(recent)
            assert SummarizedTip(summary).tip() == expected
        except ForgottenError:
            assert summary is not None
            summary = None
            forgotten += 1
    return answered, forgotten


def long_stream(
    rng: random.Random, size: int, *, forks: float, merges: float, reach: int, expiring: bool
) -> Events:
    """Chains, forks near the end, merges of open branches and with anything, late anchors."""
    events = [StreamEvent("0", "init")]
    heads = ["0"]
    for number in range(1, size):
        name = f"{rng.randrange(10**6)}-{number}"
        base = (rng.choice(events[-reach:]).id) if rng.random() < forks else rng.choice(heads[-3:])
        prevs = [base]
        if rng.random() < merges:
            prevs = list(dict.fromkeys([base, *rng.choices(heads, k=2)]))
            if rng.random() < 0.2:
                prevs = list(dict.fromkeys([*prevs, rng.choice(events).id]))
        kind = "data" if len(prevs) > 1 or rng.random() < 0.6 else "time"
        time = rng.choice([None, number, rng.randrange(size)]) if kind == "time" else None
        expires = None
        if expiring and kind == "data" and rng.random() < 0.4:
            expires = rng.choice([number + 3, rng.randrange(size), 2 * size])
        valid = rng.random() < 0.93
        events.append(StreamEvent(name, kind, tuple(prevs), time, valid, expires))
        heads = [head for head in heads if head not in prevs] + [name]
    return events


@settings(max_examples=200)
@given(streams(), st.integers(1, 4), st.randoms(use_true_random=False))
def test_small_streams(events: Events, recent: int, rng: random.Random) -> None:
    go_through(events, rng, recent)


@settings(max_examples=150)
@given(
    st.integers(2, 80),
    st.sampled_from([0, 0.05, 0.3, 0.8]),
    st.sampled_from([0, 0.05, 0.4]),
    st.sampled_from([2, 5, 40]),
    st.integers(1, 10),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_long_streams(
    size: int,
    forks: float,
    merges: float,
    reach: int,
    recent: int,
    expiring: bool,
    rng: random.Random,
) -> None:
    events = long_stream(rng, size, forks=forks, merges=merges, reach=reach, expiring=expiring)
    go_through(events, rng, recent)


def fed(events: Events, summary: TipSummary[str] | None = None) -> SummarizedTip[str]:
    tip = SummarizedTip(summary)
    for event in events:
        tip.add(event)
    return tip


def test_a_long_chain_is_a_short_summary() -> None:
    """With anchors that hang beside it, each a few events behind; all that comes is answered."""
    events = [StreamEvent("00000", "init")]
    for number in range(1, 3_000):
        kind = "time" if number % 7 == 0 else "data"
        back = 5 if kind == "time" else 2 if number % 7 == 1 else 1
        prev = (events[max(0, number - back)].id,)
        time = number if kind == "time" else None
        events.append(StreamEvent(f"{number:05}", kind, prev, time))
    summary = fed(events[:2_000]).summarize(20)
    assert len(summary.kept) < 40
    for number in range(2_000, 3_000):
        tip = fed(events[number : number + 1], summary)
        summary = tip.summarize(20)
    assert len(summary.kept) < 40
    assert tip.tip() == select_tip(events)


def diamonds(count: int) -> Events:
    """A branch that loses, and beside it forks that are merged at once."""
    events = [
        StreamEvent("0", "init"),
        StreamEvent("b", "data", ("0",)),
        StreamEvent("a", "data", ("0",)),
    ]
    for number in range(count):
        below = events[-1].id
        left, right, top = (f"{side}{number}" for side in "lrt")
        events += [StreamEvent(left, "data", (below,)), StreamEvent(right, "data", (below,))]
        events.append(StreamEvent(top, "data", (left, right)))
    return events


def test_diamonds_are_folded_also_beside_a_branch_that_lost() -> None:
    events = diamonds(100)
    summary = fed(events).summarize(3)
    assert len(summary.kept) < 10
    merge = StreamEvent("m", "data", (events[-1].id, "b"))
    assert fed([merge], summary).tip() == select_tip([*events, merge])


def test_a_late_anchor_beside_the_branch_of_the_tip() -> None:
    """It anchors data that was of no interest before: the last that both branches have."""
    events = [
        StreamEvent("0", "init"),
        StreamEvent("a", "data", ("0",)),
        StreamEvent("x", "data", ("a",)),
        StreamEvent("z", "time", ("x",)),
        StreamEvent("e", "data", ("z",)),
        StreamEvent("f", "data", ("e",)),
        StreamEvent("g", "data", ("f",)),
        StreamEvent("t", "time", ("z",)),
    ]
    anchor = StreamEvent("u", "time", ("t",), 5)
    tip = fed([anchor], fed(events).summarize(2)).tip()
    assert tip.anchored_at == ("x",)
    assert tip == select_tip([*events, anchor])


def test_what_is_not_in_the_summary_is_not_guessed() -> None:
    events = [StreamEvent("0", "init")]
    events += [StreamEvent(str(n), "data", (str(n - 1),)) for n in range(1, 100)]
    summary = fed(events).summarize(5)
    for prev in ("0", "50", "94", "unknown"):
        with pytest.raises(ForgottenError):
            fed([StreamEvent("new", "data", (prev,))], summary)
    assert fed([StreamEvent("new", "data", ("95",))], summary).event() == "99"
    with pytest.raises(ForgottenError):
        SummarizedTip(summary).tip(now=5)


def test_a_branch_that_loses_later_is_read_whole() -> None:
    """The ids of what was pruned then are not in the summary."""
    events = [StreamEvent("0", "init"), StreamEvent("b", "data", ("0",))]
    events += [StreamEvent(f"a{n}", "data", (f"a{n - 1}",) if n else ("0",)) for n in range(9)]
    summary = fed(events).summarize(2)
    anchored = StreamEvent("t", "time", ("b",), 1)
    with pytest.raises(ForgottenError):
        fed([anchored], summary).tip()
    assert fed([anchored], summary).event() == "t"


def test_a_tangled_stream_is_not_summarized(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever writes it does not make others work without bounds."""
    monkeypatch.setattr(summary_module, "MAX_LINKS", 90)
    fed(diamonds(50)).summarize(3)
    with pytest.raises(ForgottenError):
        fed(diamonds(100)).summarize(3)
