"""`StreamStates` against the plain way: each event's data computed from the init, by jsonpatch."""

import base64
import json
from collections.abc import Callable, Collection
from typing import Any

import jsonpatch
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_samples import KEY, MODEL, VALUES
from support.time_events import time_event

from recon_node.ceramic import Event, EventKind
from recon_node.ceramic.builder import data_event, init_event, signed_event
from recon_node.ipld import CID
from recon_node.streams import (
    EventState,
    StreamData,
    StreamShapeError,
    StreamStates,
    json_values,
    state,
)
from recon_node.streams.json_values import EVENT_STEPS

START = {"version": "2.0", "name": "A", "interface": False, "implements": []}
DEFINITIONS = {
    MODEL.cid: {
        **START,
        "schema": {},
        "accountRelation": {"type": "list"},
        "immutableFields": ["fixed"],
    }
}

FIELDS = st.sampled_from(["a", "b", "fixed"])
PATCHES = st.one_of(
    st.builds(lambda f, v: [{"op": "add", "path": f"/{f}", "value": v}], FIELDS, VALUES),
    st.builds(lambda f: [{"op": "remove", "path": f"/{f}"}], FIELDS),
)


@st.composite
def streams(draw: st.DrawFn) -> list[Event]:
    """Streams with forks, merges, time events and events that change nothing, in causal order."""
    init = init_event(KEY, MODEL, {"fixed": 0}, unique=b"u")
    events = {init.cid: init}
    for _ in range(draw(st.integers(0, 7))):
        prevs = draw(st.lists(st.sampled_from([*events]), min_size=1, max_size=2, unique=True))
        patch = draw(st.none() | PATCHES)
        if patch is None:
            event = time_event(init, prevs[0])
        elif draw(st.booleans()):
            event = data_event(KEY, init, prevs, patch, should_index=draw(st.booleans()))
        else:
            event = data_event(KEY, init, prevs, patch)
        events[event.cid] = event
    return list(events.values())


def oracle(
    events: list[Event], faults: Collection[CID]
) -> Callable[[CID], tuple[int, Any, Any, bool]]:
    """Height, content, metadata and whether it changed nothing, of an event: from the init, each
    time again."""
    by_id = {event.cid: event for event in events}

    def height(cid: CID) -> int:
        return max((1 + height(prev) for prev in by_id[cid].prevs), default=0)

    def after(cid: CID) -> tuple[Any, Any, bool]:
        event = by_id[cid]
        if event.kind is EventKind.INIT:
            return event.data, {"shouldIndex": True}, False
        content, metadata, is_rejected = after(event.prevs[0])
        if event.kind is EventKind.TIME:
            return content, metadata, is_rejected
        if cid in faults:
            return content, metadata, True
        try:
            changed = jsonpatch.apply_patch(content, event.data)
        except jsonpatch.JsonPatchConflict:
            return content, metadata, True
        if changed.get("fixed") != 0 or changed["fixed"] is False:
            return content, metadata, True
        return changed, {**metadata, **event.payload.get("header", {})}, False

    return lambda cid: (height(cid), *after(cid))


def outcome(state: EventState) -> tuple[int, Any, Any, bool]:
    data = state.data
    return state.height, data.content, data.metadata, bool(state.validation_errors)


@settings(max_examples=40)
@given(streams(), st.randoms(use_true_random=False))
def test_each_way_to_ask_says_what_the_plain_way_does(events, rng):
    data = [event.cid for event in events if event.kind is EventKind.DATA]
    faults = {cid: "badly signed" for cid in data if rng.random() < 0.2}
    expected = oracle(events, faults)
    shuffled = rng.sample(events, k=len(events))
    kept = {event.cid for event in events if rng.random() < 0.5}
    states = StreamStates(shuffled, DEFINITIONS, keep=kept, faults=faults)
    all_states = {state.event_cid: state for state in states.all()}
    assert len(all_states) == len(events)
    for event in events:
        state = all_states[event.cid]
        assert outcome(state) == expected(event.cid)
        assert states.at(event.cid) == state
        assert event.cid not in kept or states.at(event.cid) is state
        assert StreamStates(events, DEFINITIONS, faults=faults).at(event.cid) == state
    assert all(states.rejected[cid] == (reason,) for cid, reason in faults.items())


SCHEMAS = (
    {"properties": {"a": {"type": ["null", "string", "number"]}, "b": {"minimum": 0.5}}},
    {"required": ["a"], "maxProperties": 3},
    {},
)
SIMPLE = st.builds(
    lambda op, field, value: {"op": op, "path": f"/{field}", "value": value},
    st.sampled_from(["add", "replace"]),
    st.sampled_from(["a", "b"]),
    st.sampled_from([None, True, 1, 2**62, 0.25, "text", "long" * 20, [], MODEL.cid]),
)


@st.composite
def chains(draw: st.DrawFn) -> list[Event]:
    """Streams of events with simple patches, nearly all."""
    content = draw(st.sampled_from([{"a": "text"}, {"a": "text", "b": 0}, {"b": []}]))
    init = init_event(KEY, MODEL, content, unique=b"u")
    events = [init]
    for _ in range(draw(st.integers(1, 6))):
        prevs = [events[-1].cid]
        kind = draw(st.sampled_from(["simple", "simple", "simple", "header", "time", "other"]))
        patch = draw(PATCHES if kind == "other" else st.lists(SIMPLE, min_size=1, max_size=2))
        if kind == "time":
            events.append(time_event(init, prevs[0]))
        else:
            index = draw(st.booleans()) if kind == "header" else None
            events.append(data_event(KEY, init, prevs, patch, should_index=index))
    return events


@settings(max_examples=150)
@given(
    events=chains(),
    schema=st.sampled_from(SCHEMAS),
    more=st.sampled_from([{}, {}, {"immutableFields": ["a"]}, {"interface": True}]),
    is_bad=st.sampled_from([0, 0, 1]),
    most=st.sampled_from([EVENT_STEPS, EVENT_STEPS, 2_500, 5_000]),
)
def test_simple_events_are_computed_and_paid_for_as_all_others(events, schema, more, is_bad, most):
    definition = {**START, "schema": schema, "accountRelation": {"type": "list"}, **more}
    faults = {event.cid: "badly signed" for event in events[1 : 1 + is_bad] if not event.proof}

    def outcome() -> tuple[Any, ...]:
        states = StreamStates(events, {MODEL.cid: definition}, faults=faults)
        kept = [(state, state.data.to_json(), state.data.weight) for state in states.all()]
        paid = states.summary(events[-1].cid)
        return kept, states.rejected, paid.spent, paid.written

    with pytest.MonkeyPatch.context() as patching:
        for place in (json_values, state):
            patching.setattr(place, "EVENT_STEPS", most)
        quickly = outcome()
        patching.setattr(StreamStates, "_apply_simple", lambda *_: None)
        assert quickly == outcome()


def test_what_is_not_kept_is_computed_and_what_is_not_there_refused() -> None:
    init = init_event(KEY, MODEL, {"n": 0}, unique=b"u")
    anchor = time_event(init, init.cid)
    states = StreamStates([anchor, init], keep=[anchor.cid])
    assert states.at(anchor.cid).data.content == {"n": 0}  # before `all` came by
    gone = signed_event(KEY, {"id": init.cid, "prev": init.cid, "data": []})
    with pytest.raises(StreamShapeError, match="there is no event"):
        states.at(gone.cid)
    with pytest.raises(StreamShapeError, match="names prev"):
        StreamStates([init, time_event(init, gone.cid)])


def test_events_that_change_nothing_share_the_data_and_its_json() -> None:
    init = init_event(KEY, MODEL, {"n": 0}, unique=b"u")
    anchor = time_event(init, init.cid)
    poison = signed_event(KEY, {"id": init.cid, "prev": anchor.cid, "data": [None]})
    first, second, third = StreamStates([init, anchor, poison]).all()
    assert first.data is second.data is third.data
    assert first.data.to_json() is third.data.to_json()


def _as_dag_json(value: Any) -> Any:
    if isinstance(value, CID):
        return {"/": str(value)}
    if isinstance(value, bytes):
        return {"/": {"bytes": base64.b64encode(value).decode().rstrip("=")}}
    if isinstance(value, dict):
        return {key: _as_dag_json(member) for key, member in value.items()}
    return [_as_dag_json(item) for item in value] if isinstance(value, list) else value


@given(st.dictionaries(st.text(max_size=3), VALUES), st.booleans())
def test_the_json_is_that_of_the_values(content: dict[str, Any], should_index: bool) -> None:
    metadata = {"shouldIndex": should_index}
    value = {"metadata": metadata, "content": _as_dag_json(content)}
    expected = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    text = StreamData(content, metadata).to_json().decode()
    # A float may be written in another way: 1e-6, not 1e-06.
    assert json.dumps(json.loads(text), ensure_ascii=False, separators=(",", ":")) == expected


def test_json_that_a_quick_encoder_refuses() -> None:
    content = {"a": -(2**64), "link": MODEL.cid, "bytes": b"ab"}
    value = json.loads(StreamData(content, {}).to_json())
    assert value == {"metadata": {}, "content": _as_dag_json(content)}
