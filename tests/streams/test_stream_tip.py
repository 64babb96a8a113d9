"""A stream whose events come one by one: the tip is at each moment that of the events so far."""

import random
from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_tip import oracle, streams, without_reasons

from recon_node.streams import StreamEvent, StreamShapeError, StreamTip, select_tip

Events = list[StreamEvent[str]]


def _fed(events: Events) -> StreamTip[str]:
    stream: StreamTip[str] = StreamTip()
    for event in events:
        assert stream.add(event)
    return stream


@settings(max_examples=100)
@given(streams(), st.randoms(use_true_random=False))
def test_after_each_event_the_tip_is_that_of_all_so_far(events: Events, rng: random.Random) -> None:
    stream: StreamTip[str] = StreamTip()
    for count, event in enumerate(events, 1):
        assert stream.add(event)
        assert not stream.add(event)
        if rng.random() < 0.7:
            expected = oracle(events[:count])
            assert stream.event() == expected.event
            if rng.random() < 0.5:
                assert without_reasons(stream.tip()) == expected
    assert stream.tip() == select_tip(events)
    assert len(stream) == len(events)


def _causal_orders(events: Events) -> list[Events]:
    return [
        [*order]
        for order in permutations(events)
        if all(prev in {e.id for e in order[:at]} for at, e in enumerate(order) for prev in e.prev)
    ]


@settings(max_examples=30)
@given(streams(max_size=6))
def test_all_causal_orders_lead_to_the_same_tip(events: Events) -> None:
    expected = select_tip(events)
    assert all(_fed(order).tip() == expected for order in _causal_orders(events))


def _shuffled_causally(events: Events, rng: random.Random) -> Events:
    waiting = {event.id: set(event.prev) for event in events}
    by_id = {event.id: event for event in events}
    order: Events = []
    while waiting:
        chosen = rng.choice([id_ for id_, prevs in waiting.items() if not prevs])
        order.append(by_id[chosen])
        del waiting[chosen]
        for prevs in waiting.values():
            prevs.discard(chosen)
    return order


def _long_stream(rng: random.Random, size: int, forks: float, merges: float) -> Events:
    """Mostly chains; sometimes a fork from anywhere, or a merge of a few events."""
    events = [StreamEvent("0", "init")]
    heads = ["0"]
    for number in range(1, size):
        name = f"{rng.randrange(10**6)}-{number}"
        base = rng.choice(events[-40:]).id if rng.random() < forks else rng.choice(heads[-4:])
        prevs = [base]
        if rng.random() < merges:
            prevs = list({base, *rng.choices(heads, k=2), rng.choice(events).id})
        kind = "data" if len(prevs) > 1 or rng.random() < 0.6 else "time"
        time = rng.choice([None, number, rng.randrange(size)]) if kind == "time" else None
        events.append(StreamEvent(name, kind, tuple(prevs), time, rng.random() < 0.95))
        heads = [head for head in heads if head not in prevs] + [name]
    return events


@settings(max_examples=25)
@given(
    st.integers(2, 150),
    st.sampled_from([0, 0.02, 0.2, 0.8]),
    st.sampled_from([0, 0.05, 0.4]),
    st.randoms(use_true_random=False),
)
def test_long_streams_in_any_causal_order(
    size: int, forks: float, merges: float, rng: random.Random
) -> None:
    events = _long_stream(rng, size, forks, merges)
    expected = oracle(events)
    stream: StreamTip[str] = StreamTip()
    for event in _shuffled_causally(events, rng):
        stream.add(event)
        if rng.random() < 0.2:
            stream.event()
    assert without_reasons(stream.tip()) == expected


def _judged(events: Events, now: int | None) -> Events:
    """The same events, with what has expired marked invalid, by the definition."""
    by_id = {event.id: event for event in events}

    def covers(a: str, b: str) -> bool:
        return a == b or any(covers(prev, b) for prev in by_id[a].prev)

    judged = []
    for event in events:
        times = [
            t.time
            for t in events
            if t.kind == "time" and t.valid and t.time is not None and covers(t.id, event.id)
        ]
        time = min(times, default=now)
        good = event.expires is None or time is None or time <= event.expires
        judged.append(replace(event, valid=event.valid and good, expires=None))
    return judged


@st.composite
def _expiring(draw: st.DrawFn) -> Events:
    expires = st.none() | st.integers(1, 6)
    return [
        replace(event, expires=draw(expires)) if event.kind == "data" else event
        for event in draw(streams(max_size=10))
    ]


@settings(max_examples=75)
@given(_expiring(), st.lists(st.none() | st.integers(0, 7), max_size=11))
def test_capabilities_expire_unless_a_time_event_proves_what_they_signed(
    events: Events, clock: list[int | None]
) -> None:
    stream: StreamTip[str] = StreamTip()
    now: int | None = None
    for count, event in enumerate(events, 1):
        stream.add(event)
        told = clock[count - 1] if count <= len(clock) else None
        now = now if told is None else max(told, now or 0)
        expected = oracle(_judged(events[:count], now))
        assert stream.event(told) == expected.event
    assert without_reasons(stream.tip()) == oracle(_judged(events, now))


def test_an_expired_event_comes_back_when_its_anchor_does() -> None:
    stream = _fed([StreamEvent("i", "init"), StreamEvent("d", "data", ("i",), expires=99)])
    assert (stream.event(99), stream.event(100)) == ("d", "i")
    stream.add(StreamEvent("late", "time", ("d",), 100))
    assert stream.tip().data_tip == ("i",)
    stream.add(StreamEvent("early", "time", ("d",), 50))
    assert stream.tip().data_tip == ("d",)


@given(streams())
def test_a_proposed_merge_converges_the_stream(events: Events) -> None:
    stream = _fed(events)
    before = stream.tip()
    prevs = stream.merge()
    assert bool(prevs) is before.diverged
    if prevs:
        assert prevs[0] == before.event
        assert set(prevs) == set(before.candidates)
        stream.add(StreamEvent("merge", "data", prevs))
        after = stream.tip()
        assert (after.event, after.diverged) == ("merge", False)
        assert stream.merge() == ()


def test_many_tips_on_one_event_and_a_comb_of_forks_are_fast() -> None:
    """Both would take gigabytes with a set of tips for each event."""
    width = 20_000
    flood = _fed([StreamEvent(0, "init"), *(StreamEvent(n, "data", (0,)) for n in range(1, width))])
    assert flood.event() == 1
    comb = _fed([StreamEvent(0, "init")])
    for n in range(1, width):
        comb.add(StreamEvent(2 * n, "data", (max(0, 2 * n - 2),)))
        comb.add(StreamEvent(2 * n + 1, "time", (2 * n,), n))
    tip = comb.tip()
    assert (tip.event, len(tip.candidates)) == (2 * width - 1, 1)


def test_merges_upon_merges_of_what_has_expired_take_no_time() -> None:
    """There are as many ways through them as through a maze: 2 to the power of their number."""
    stream = _fed([StreamEvent(0, "init"), StreamEvent(1, "data", (0,), expires=5)])
    stream.event(10)
    for n in range(2, 300):
        stream.add(StreamEvent(n, "data", (n - 1, n - 2), expires=5))
    stream.add(StreamEvent(300, "data", (299, 298)))
    assert stream.event() == 300


@pytest.mark.parametrize(
    ("event", "complaint"),
    [
        (StreamEvent("x", "data", ("nowhere",)), "x names prev nowhere, which is missing"),
        (StreamEvent("x", "init"), "x is a second one"),
        (StreamEvent("x", "init", ("i",)), "init event x must have no prev"),
        (StreamEvent("x", "time"), "time event x must have at least one prev"),
    ],
)
def test_events_that_do_not_fit_are_refused_and_change_nothing(
    event: StreamEvent[str], complaint: str
) -> None:
    stream = _fed([StreamEvent("i", "init")])
    with pytest.raises(StreamShapeError, match=complaint):
        stream.add(event)
    assert (stream.event(), len(stream), "x" in stream) == ("i", 1, False)


def test_without_valid_data_there_is_no_tip() -> None:
    stream = _fed([StreamEvent("i", "init", valid=False)])
    with pytest.raises(StreamShapeError, match="it has no tip"):
        stream.event()


def test_a_stream_of_merges_upon_merges_takes_no_time_by_its_ways() -> None:
    """A ladder: two events merge the two below, again and again, so that ways double each time."""
    stream: StreamTip[int] = StreamTip()
    stream.add(StreamEvent(0, "init"))
    below = (0,)
    for step in range(200):
        pair = (2 * step + 1, 2 * step + 2)
        for each in pair:
            stream.add(StreamEvent(each, "data", below))
        below = pair
    assert stream.event() == 399
    assert stream.merge() == (399, 400)
