"""Copies of a stream's events change no row but those of the raw tables."""

from __future__ import annotations

import random
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st
from spark_helpers import feed_rows
from spark_samples import DEFINITION, KEY
from support.forging import other_form

from recon_node.ceramic import Event
from recon_node.ceramic.builder import data_event, init_event, model_event, time_event
from recon_node.ipld import CID
from spark_sink.derive.feed_streams import read_streams
from spark_sink.derive.transforms import rows_of
from spark_sink.schema import DERIVED, with_partition

OWNER = ec.derive_private_key(9, ec.SECP256R1())
MODEL = model_event(KEY, DEFINITION)


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[Event], dict[CID, int]]:
    """A stream that forks and merges, and the times of its time events."""
    init = init_event(OWNER, MODEL.stream_id(), {"n": 0}, unique=b"u")
    events, times = [init], dict[CID, int]()
    for number in range(draw(st.integers(1, 6))):
        known = st.sampled_from([event.cid for event in events])
        prevs = sorted(draw(st.sets(known, min_size=1, max_size=2)))
        if draw(st.integers(0, 3)):
            patch = [{"op": "add", "path": "/t", "value": str(number)}]
            events.append(data_event(OWNER, init, prevs, patch))
        else:
            events.append(time_event(init, prevs[0], tx_hash=number.to_bytes(32)))
            times[events[-1].cid] = draw(st.integers(1, 3))
    return events, times


def rows(events: list[Event], times: dict[CID, int]) -> list[tuple[str, dict[str, Any]]]:
    """All rows of derived tables, without the positions, which copies shift."""
    [stream] = read_streams(with_partition(feed_rows(events, times)))
    return [
        (name, {k: v for k, v in row.items() if k not in ("position", "conclusion_event_order")})
        for name, found in rows_of(stream, DERIVED)
        for row in found
    ]


@given(streams(), st.randoms(use_true_random=False))
def test_copies_change_no_row(
    stream: tuple[list[Event], dict[CID, int]], rng: random.Random
) -> None:
    events, times = stream
    copied = list(events)
    for event in events[1:]:
        if event.envelope is not None and rng.random() < 0.7:
            at = rng.randint(copied.index(event) + 1, len(copied))
            copied.insert(at, other_form(event))
    assert rows(copied, times) == rows(events, times)
