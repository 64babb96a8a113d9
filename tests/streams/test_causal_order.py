"""The causal order of a stream's events, and their heights, against the definitions."""

import random

from hypothesis import given
from hypothesis import strategies as st
from test_tip import streams

from recon_node.streams import EventShape, causal_order
from recon_node.streams.graph import heights

Events = list[EventShape[str]]


def _heights(events: Events) -> dict[str, int]:
    return heights({event.id: event.prevs for event in events})


@given(streams())
def test_an_order_that_is_causal_is_kept(events: Events) -> None:
    assert causal_order(events) == events
    assert causal_order([*events, *events]) == events
    assert list(_heights(events)) == [event.id for event in events]


@given(streams(), st.randoms(use_true_random=False))
def test_any_other_is_made_causal(events: Events, rng: random.Random) -> None:
    shuffled = rng.sample(events, k=len(events))
    order = causal_order(shuffled)
    assert sorted(event.id for event in order) == sorted(event.id for event in events)
    placed: set[str] = set()
    for event in order:
        assert placed.issuperset(event.prevs)
        placed.add(event.id)


@given(streams(), st.randoms(use_true_random=False))
def test_a_height_is_the_length_of_the_longest_way_to_the_init(events, rng):
    by_id = {event.id: event for event in events}

    def longest(id_: str) -> int:
        return max((1 + longest(prev) for prev in by_id[id_].prevs), default=0)

    expected = {event.id: longest(event.id) for event in events}
    assert _heights(events) == expected
    assert _heights(rng.sample(events, k=len(events))) == expected
