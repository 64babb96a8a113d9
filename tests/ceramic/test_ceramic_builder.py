"""The builders make what the parser reads, the same bytes each time."""

from typing import Any

import pytest
from ceramic_samples import CONTROLLER, INIT, KEY, MODEL
from hypothesis import given
from hypothesis import strategies as st
from support.time_events import time_event

from recon_node.ceramic import (
    MAINNET,
    EventId,
    EventKind,
    InvalidEventError,
    parse_event,
    verify_signature,
)
from recon_node.ceramic.builder import data_event, init_event
from recon_node.ipld import CID, DAG_CBOR, DagCborError

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(max_size=9) | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=10,
)
prevs = st.lists(
    st.builds(CID.of, st.just(DAG_CBOR), st.binary(max_size=9)), min_size=1, max_size=5, unique=True
)


@given(values, st.none() | st.binary(max_size=9), st.none() | st.booleans())
def test_init_events(data: Any, unique: bytes | None, should_index: bool | None) -> None:
    event = init_event(KEY, MODEL, data, unique=unique, should_index=should_index)
    assert event == parse_event(event.car)
    assert event == init_event(KEY, MODEL, data, unique=unique, should_index=should_index)
    assert event.data == data
    assert (event.header.unique, event.header.should_index) == (unique, should_index)
    assert event.header.controller == CONTROLLER
    verify_signature(event, CONTROLLER)


@given(prevs, values)
def test_data_events(prevs: list[CID], data: Any) -> None:
    event = data_event(KEY, INIT, prevs, data, should_index=True)
    assert event == data_event(KEY, INIT.cid, prevs, data, should_index=True)
    assert (event.kind, event.init, event.prevs) == (EventKind.DATA, INIT.cid, tuple(prevs))
    assert event.data == data
    assert event.payload["prev"] == (prevs[0] if len(prevs) == 1 else prevs)
    verify_signature(event, CONTROLLER)


def test_an_events_key() -> None:
    change = data_event(KEY, INIT, [INIT.cid], [])
    anchor = time_event(INIT, change.cid)
    keys = [
        event.event_id(MAINNET, INIT.header, height)
        for height, event in enumerate([INIT, change, anchor])
    ]
    assert keys == sorted(keys)
    assert len({key.prefix for key in keys}) == 1
    assert keys[1] == EventId.build(MAINNET, str(MODEL), CONTROLLER, INIT.cid, 1, change.cid)


def test_what_cannot_be_built() -> None:
    with pytest.raises(DagCborError):
        init_event(KEY, MODEL, {"x": float("nan")})
    with pytest.raises(InvalidEventError, match="lists 0 events"):
        data_event(KEY, INIT, [], [])
    with pytest.raises(InvalidEventError, match="twice"):
        data_event(KEY, INIT, [INIT.cid, INIT.cid], [])
    with pytest.raises(InvalidEventError, match="the limit is"):
        init_event(KEY, MODEL, bytes(2_000_000))
