"""Streams, read back from rows of `raw_events` in any order, and the rows that are made of them."""

import random
from typing import Any

import pyarrow as pa
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st
from spark_helpers import asked, feed_rows, filled
from spark_oracle import assert_tables
from spark_samples import DEFINITION, FAULT, KEY
from support.forging import other_form
from support.time_events import time_event

from recon_node.ceramic import Event
from recon_node.ceramic.auth.did import controller_of
from recon_node.ceramic.builder import (
    data_event,
    deterministic_init_event,
    init_event,
    model_event,
    signed_event,
)
from recon_node.ipld import CID
from recon_node.verification.verifiers import NATIVE_VERSION
from spark_sink.derive import feed_streams
from spark_sink.derive.feed_streams import read_streams
from spark_sink.derive.transforms import own_columns, rows_of
from spark_sink.errors import TablesError
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
        for name, columns in rows_of(stream, DERIVED)
        for row in (dict(zip(own_columns(name), values, strict=True)) for values in columns)
    ]


@given(streams(), st.randoms(use_true_random=False))
def test_copies_change_no_row(stream, rng):
    events, times = stream
    copied = list(events)
    for event in events[1:]:
        if event.envelope is not None and rng.random() < 0.7:
            at = rng.randint(copied.index(event) + 1, len(copied))
            copied.insert(at, other_form(event))
    assert rows(copied, times) == rows(events, times)


PATCHES: list[Any] = [
    [{"op": "add", "path": "/t", "value": "text"}],
    [{"op": "replace", "path": "/n", "value": 2}],
    [{"op": "add", "path": "/n", "value": 2**64 - 1}, {"op": "add", "path": "/é", "value": None}],
    [{"op": "replace", "path": "/t", "value": "too long for the schema"}],
    [{"op": "remove", "path": "/n"}],
    [{"op": "add", "path": "/list", "value": [1, 2.5, b"bytes", MODEL.cid]}],
    [{"op": "add", "path": "/list/0", "value": -0.0}],
    [],
    {"not": "a patch"},
]


@given(
    st.sampled_from([{"n": 1}, {"n": 1, "t": "a", "list": []}, {"t": 5}, None]),
    st.lists(st.sampled_from(PATCHES), max_size=8),
    st.sampled_from([DEFINITION, {**DEFINITION, "immutableFields": []}, {}, None]),
    st.booleans(),
    st.integers(0, 9),
)
def test_chains_have_the_rows_that_all_streams_have(content, patches, definition, hidden, after):
    """Chains are computed apart, simple ones and others; no other stream is taken for one."""
    unique = b"u" if after % 4 else None  # without, the model refuses it
    init = init_event(
        KEY, MODEL.stream_id(), content, unique=unique, should_index=not hidden or None
    )
    events = [init]
    for patch in patches:
        events.append(data_event(KEY, init, [events[-1].cid], patch))
    other = data_event(KEY, init, [events[-1].cid], [], should_index=False)
    badly = feed_rows([*events, data_event(KEY, init, [events[-1].cid], [{}])])
    faults = pa.array([None] * len(events) + [FAULT], pa.string())
    at = badly.schema.get_field_index("fault")
    definitions = None if definition is None else {MODEL.cid: definition}
    for rows, may_be_chain in (
        (feed_rows(events), True),
        (feed_rows([*events, other]), False),
        (feed_rows([*events, time_event(init, events[-1].cid)]), False),
        (badly.set_column(at, badly.schema.field(at), faults), False),
    ):
        found = []
        for is_native in (True, False):
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(feed_streams, "_NATIVE", is_native)
                [stream] = read_streams(with_partition(rows))
            assert stream.chain is None or (is_native and may_be_chain)
            stream.define(definitions)
            found.append([(name, [*made]) for name, made in rows_of(stream, DERIVED, after)])
            found[-1].append(("", [stream.versions, stream.last_position, stream.columns]))
        assert found[0] == found[1]


@pytest.mark.skipif(not (NATIVE_VERSION and feed_streams._NATIVE), reason="no native core")
def test_what_is_computed_as_a_chain() -> None:
    init = init_event(KEY, MODEL.stream_id(), {"n": 1}, unique=b"u")
    events = [init]
    for number, patch in enumerate((*PATCHES[:3], [{"op": "remove", "path": "/n"}])):
        events.append(data_event(KEY, init, [events[-1].cid], patch))
        [stream] = read_streams(with_partition(feed_rows(events)))
        stream.define({MODEL.cid: {**DEFINITION, "immutableFields": []}})
        assert stream.chain is not None
        assert (stream.contents is not None) is (number < 3)
    [model] = read_streams(with_partition(feed_rows([MODEL])))
    assert model.chain is None


def test_the_order_of_rows_does_not_matter(sample: list[Event], rng: random.Random) -> None:
    raw = with_partition(feed_rows(sample[:300]))
    shuffled = raw.take(rng.sample(range(300), 300))
    assert found_in(shuffled) == found_in(raw)
    assert found_in(raw.slice(0, 0)) == {}


def found_in(raw: pa.Table) -> dict[bytes, list[tuple[str, list[tuple[Any, ...]]]]]:
    """The rows of the tables that have one for each stream."""
    names = ("stream_tips", "stream_states")
    return {
        stream.cid: [(name, [*columns]) for name, columns in rows_of(stream, names)]
        for stream in read_streams(raw)
    }


def test_streams_without_a_model_and_events_without_a_signature(sample, tmp_path):
    """Tile documents, other sort keys and deterministic streams, among others, in every table."""
    events: list[Event] = []
    headers: list[dict[str, Any]] = [{}, {"sep": "family", "family": "blog"}, {"tags": ["a"]}]
    for fields in headers:
        header = {"controllers": [controller_of(KEY)], **fields}
        init = signed_event(KEY, {"header": header, "data": {"a": 1}})
        patch = [{"op": "replace", "path": "/a", "value": 2}]
        events += (init, data_event(KEY, init, [init.cid], patch))
    events += (MODEL, deterministic_init_event("did:key:z6Mkfoo", MODEL.stream_id()))
    rows = feed_rows([*sample[:20], *events])
    filled(tmp_path, rows, 21, len(rows))
    assert_tables(tmp_path, rows.to_pylist())
    where = f"stream_cid = from_cid('{events[0].cid}')"
    tip = f"SELECT stream_type, event_height FROM stream_tips WHERE {where}"
    assert asked(tmp_path, tip) == [(0, 1)]


def test_damaged_rows_are_reported(sample: list[Event]) -> None:
    raw = feed_rows(sample)
    cars = [b"junk", *raw["car"].to_pylist()[1:]]
    other = raw["stream_cid"].to_pylist()[0]
    for damaged, words in (
        (
            raw.filter([event.header is None for event in sample]),
            r"not hold the whole stream 0185.*starts with an event that",
        ),
        (
            raw.set_column(raw.schema.get_field_index("car"), raw.schema.field("car"), [cars]),
            "raw_events holds no event at position 1: ",
        ),
        (
            raw.slice(1, 1).set_column(3, raw.schema.field("stream_cid"), [[other]]),
            "events of another stream under 0185",
        ),
    ):
        with pytest.raises(TablesError, match=words):
            found_in(damaged)
