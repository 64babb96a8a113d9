"""The data of streams: patches applied, rules of models held, and nothing that poison can break."""

import json
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonpatch
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stream_samples import KEY, MODEL, add
from support import sdk_sample, vectors
from support.time_events import time_event

from recon_node.ceramic import METAMODEL, Event, StreamId, StreamType
from recon_node.ceramic.auth.did import controller_of
from recon_node.ceramic.builder import (
    data_event,
    deterministic_init_event,
    init_event,
    model_event,
    signed_event,
)
from recon_node.ipld import CID, DAG_CBOR
from recon_node.streams import (
    EventState,
    Stream,
    StreamShapeError,
    StreamState,
    StreamStates,
    definitions_of,
    named_versions,
    unique_of,
)
from recon_node.streams.json_values import MAX_DEPTH, Budget
from recon_node.streams.model_rules import MAX_VERSIONS, ContentChange, ContentRules

SCHEMA = {
    "type": "object",
    "properties": {"t": {"type": "string", "maxLength": 10}, "n": {"type": "integer"}},
    "additionalProperties": False,
}
LIST = {
    "version": "2.0",
    "name": "Post",
    "interface": False,
    "implements": [],
    "schema": {"properties": {}},
    "accountRelation": {"type": "list"},
}


def definition(**changes: Any) -> dict[str, Any]:
    return {**LIST, **changes}


def document(content: Any, unique: bytes | None = b"u", **more: Any) -> Event:
    return init_event(KEY, MODEL, content, unique=unique, **more)


def change(init: Event, prev: Event | Sequence[Event], *patch: Any, **more: Any) -> Event:
    prevs = [prev] if isinstance(prev, Event) else prev
    return data_event(KEY, init, [p.cid for p in prevs], list(patch), **more)


def definitions(model: Any) -> dict[CID, Any] | None:
    return None if model is None else {MODEL.cid: model}


def states(*events: Event, model: Any = None) -> list[EventState]:
    by_cid = {state.event_cid: state for state in StreamStates(events, definitions(model)).all()}
    return [by_cid[event.cid] for event in events]


def at_tip(events: Sequence[Event], model: Any = None) -> StreamState:
    return Stream.of(events, definitions=definitions(model)).state()


def outcome(state: EventState) -> tuple[Any, tuple[str, ...]]:
    return state.data.content, state.validation_errors


def test_the_events_of_the_sdk_say_what_the_patches_say() -> None:
    """930 events of the Ceramic SDK, the content by jsonpatch, event after event."""
    streams: dict[CID, list[Event]] = {}
    for event in sdk_sample.events():
        streams.setdefault(event.init, []).append(event)
    changes = 0
    for events in streams.values():
        contents: dict[CID, Any] = {}
        for event in events:
            content = event.data
            if event.prevs:
                content = contents[event.prevs[0]]
                if event.kind.value == "data":
                    changes += 1
                    content = jsonpatch.apply_patch(content or {}, event.data)
            contents[event.cid] = content
        outcomes = {state.event_cid: outcome(state) for state in StreamStates(events).all()}
        assert outcomes == {cid: (content, ()) for cid, content in contents.items()}
    assert changes > 100


def test_the_state_of_a_stream_as_ceramic_one_has_it() -> None:
    context = StreamId(StreamType.MODEL_INSTANCE, MODEL.cid).to_bytes()
    init = document({"n": 1, "l": MODEL.cid, "b": b"\0"}, context=context, should_index=True)
    event = change(init, init, add("/n", 2), should_index=False)
    state = at_tip([init, event])
    assert state.id == StreamId(StreamType.MODEL_INSTANCE, init.cid)
    assert (state.event_cid, state.controller) == (event.cid, controller_of(KEY))
    assert state.dimensions == {
        "model": MODEL.to_bytes(),
        "controller": controller_of(KEY).encode(),
        "context": context,
        "unique": b"u",
    }
    assert state.data.to_json() == (
        b'{"metadata":{"shouldIndex":false},"content":{"b":{"/":{"bytes":"AA"}},'
        b'"l":{"/":"%s"},"n":2}}' % str(MODEL.cid).encode()
    )


def test_time_events_change_nothing_and_metadata_stays_until_it_is_changed() -> None:
    init = document({"n": 1}, should_index=False)
    anchor = time_event(init, init.cid)
    version = CID.of(DAG_CBOR, b"version")
    payload = {"id": init.cid, "prev": anchor.cid, "data": [], "header": {"modelVersion": version}}
    event = signed_event(KEY, payload)
    first, anchored, last = states(init, anchor, event)
    assert (anchored.height, anchored.data) == (1, first.data)
    assert last.data.metadata == {"shouldIndex": False, "modelVersion": str(version)}
    assert first.data.metadata == {"shouldIndex": False}


def test_a_deterministic_document_starts_without_content() -> None:
    init = deterministic_init_event(controller_of(KEY), MODEL)
    event = change(init, init, add("/n", 1))
    assert [state.data.content for state in states(init, event)] == [None, {"n": 1}]
    assert at_tip([init]).data.to_json() == (b'{"metadata":{"shouldIndex":true},"content":null}')


def test_branches_do_not_know_of_each_other_and_a_merge_builds_on_its_first_prev() -> None:
    init = document({"n": 0})
    left, right = change(init, init, add("/left", 1)), change(init, init, add("/right", 1))
    merge = change(init, [right, left], add("/merged", 1))
    both = states(init, left, right, merge)
    assert [state.data.content for state in both] == [
        {"n": 0},
        {"n": 0, "left": 1},
        {"n": 0, "right": 1},
        {"n": 0, "right": 1, "merged": 1},
    ]
    assert [state.height for state in both] == [0, 1, 1, 2]
    assert at_tip([init, left, right, merge]).data == both[-1].data
    with pytest.raises(StreamShapeError, match="there is no event"):
        StreamStates([init, left]).at(right.cid)


POISON = [
    {"op": "add"},
    [{"op": "remove", "path": ""}],
    [add("", [1]), add("/n", 1)],
    [add("/n", 9), {"op": "test", "path": "/n", "value": 8}],
    [{"op": "copy", "from": "", "path": f"/{n}"} for n in range(100)],
]


@pytest.mark.parametrize("data", POISON)
@pytest.mark.parametrize("model", [None, LIST])
def test_a_valid_event_without_sense_changes_nothing_and_says_why(data: Any, model: Any) -> None:
    init = document({"n": 1})
    payload = {"id": init.cid, "prev": init.cid, "data": data, "header": {"shouldIndex": False}}
    poison = signed_event(KEY, payload)
    after = change(init, poison, add("/m", 2))
    _, poisoned, last = states(init, poison, after, model=model)
    assert poisoned.data.content == {"n": 1}
    assert poisoned.data.metadata == {"shouldIndex": True}
    assert poisoned.validation_errors
    assert outcome(last) == ({"n": 1, "m": 2}, ())
    assert at_tip([init, poison], model).event_cid == init.cid
    state = at_tip([init, poison, after], model)
    assert state.event_cid == after.cid
    assert state.validation_errors == {poison.cid: poisoned.validation_errors}
    assert state.data == last.data


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.text("abl/", max_size=4)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                ["op", "path", "from", "value", "version", "type", "fields", "accountRelation"]
            ),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=8,
)


@given(content=VALUES, patches=st.lists(VALUES, max_size=3), model=VALUES)
def test_nothing_that_a_controller_or_a_model_s_author_writes_raises(content, patches, model):
    for start in (document(content), model_event(KEY, content)):
        events = [start]
        for patch in patches:
            payload = {"id": start.cid, "prev": events[-1].cid, "data": patch}
            events.append(signed_event(KEY, payload))
        both = (
            states(*events, model=definition) for definition in (model, {**LIST, "schema": model})
        )
        for state in (state for both_states in both for state in both_states):
            json.loads(state.data.to_json())


@pytest.mark.parametrize(
    ("model", "init", "error"),
    [
        (definition(interface=True), document({}), "an interface cannot have documents"),
        (LIST, document({}, unique=None), "needs 'unique'"),
        (definition(accountRelation={"type": "single"}), document({"n": 1}), "without content"),
        (definition(accountRelation={"type": "single"}), document(None), "has no 'unique'"),
        (
            definition(accountRelation={"type": "set", "fields": ["n"]}),
            document(None, unique=None),
            "needs 'unique'",
        ),
    ],
)
def test_documents_that_cannot_start_so(model: Any, init: Event, error: str) -> None:
    [state] = states(init, model=model)
    assert error in state.validation_errors[0]


def test_immutable_fields_keep_what_the_first_content_says() -> None:
    model = definition(immutableFields=["name"])
    init = document({"name": "a", "n": 1})
    fine = change(init, init, add("/n", 2), add("/name", "a"))
    tries = [
        change(init, fine, *patch)
        for patch in (
            [add("/name", "b")],
            [{"op": "remove", "path": "/name"}],
            [{"op": "move", "from": "/name", "path": "/n"}],
            [add("", {"n": 3})],
        )
    ]
    result = states(init, fine, *tries, model=model)
    assert outcome(result[1]) == ({"name": "a", "n": 2}, ())
    expected = ({"name": "a", "n": 2}, ("the field 'name' is immutable",))
    assert [outcome(state) for state in result[2:]] == [expected] * len(tries)
    assert at_tip([init, fine]).data.content == {"name": "a", "n": 2}  # the model is not here


@pytest.mark.parametrize(
    ("value", "other"), [([1], [True]), ({"a": {"b": 0}}, {"a": {"b": False}}), (1, True)]
)
def test_a_number_in_an_immutable_field_does_not_become_a_boolean(value: Any, other: Any) -> None:
    """In Python, they are equal."""
    init = document({"name": value})
    _, state = states(
        init, change(init, init, add("/name", other)), model=definition(immutableFields=["name"])
    )
    assert outcome(state)[1] == ("the field 'name' is immutable",)
    assert type(state.data.content["name"]) is type(value)


def test_a_document_of_a_set_says_what_unique_does_and_keeps_it() -> None:
    model = definition(accountRelation={"type": "set", "fields": ["who", "n", "ok", "none"]})
    init = deterministic_init_event(controller_of(KEY), MODEL, unique=b"me|1|true|")
    wrong = change(init, init, add("/who", "you"), add("/n", 1), add("/ok", True))
    anchor = time_event(init, init.cid)
    right = change(init, anchor, add("/who", "me"), add("/n", 1), add("/ok", True))
    later = change(init, right, add("/n", 2))
    other = change(init, right, add("/text", "free"))
    result = states(init, wrong, anchor, right, later, other, model=model)
    content = {"who": "me", "n": 1, "ok": True}
    assert outcome(result[1])[1] == ("the fields who, n, ok, none do not match 'unique'",)
    assert outcome(result[3]) == (content, ())
    assert "the field 'n' is immutable" in outcome(result[4])[1]
    assert outcome(result[5]) == ({**content, "text": "free"}, ())


@pytest.mark.parametrize(
    ("value", "text"),
    [
        # `String(value)` of Node.js 20; for the values in DAG-CBOR that JavaScript has no number
        # for, `String` of its BigInt. null, arrays and objects: as in ceramic-one.
        (1e-7, "1e-7"),
        (12345678901234567890.0, "12345678901234567000"),
        (2**53 + 1, "9007199254740993"),
        (-(2**63), "-9223372036854775808"),
        (100.0, "100"),
        (-0.0, "0"),
        (False, "false"),
        ("text", "text"),
        (None, ""),
        ([1], ""),
        ({"a": 1}, ""),
    ],
)
def test_unique_has_values_as_javascript_writes_them(value: Any, text: str) -> None:
    model = definition(
        schema={"type": "object", "properties": {"n": {}}, "additionalProperties": False},
        accountRelation={"type": "set", "fields": ["who", "n"]},
    )
    assert unique_of(model, {"who": "me", "n": value}) == f"me|{text}".encode()
    model["schema"]["properties"]["who"] = {}
    init = deterministic_init_event(controller_of(KEY), MODEL, unique=f"me|{text}".encode())
    result = states(init, change(init, init, add("/who", "me"), add("/n", value)), model=model)
    assert outcome(result[1])[1] == ()


def test_a_relation_holds_the_id_of_a_document() -> None:
    model = definition(relations={"to": {"type": "document", "model": str(MODEL)}})
    target = StreamId(StreamType.MODEL_INSTANCE, MODEL.cid)
    init = document({"to": str(target)})
    tries = [change(init, init, add("/to", value)) for value in (str(MODEL), "k", 7, {"a": 1})]
    result = states(init, *tries, change(init, init, add("/to", None)), model=model)
    assert [bool(state.validation_errors) for state in result] == [0, 1, 1, 1, 1, 0]


@pytest.mark.parametrize(
    ("start", "patch", "error"),
    [
        (LIST, add("/description", "new"), None),
        (LIST, add("/schema/properties/x", {"type": "string"}), None),
        (LIST, add("/accountRelation/type", "single"), "'accountRelation' cannot be changed"),
        (LIST, add("/immutableFields", ["a"]), "'immutableFields' cannot be changed"),
        (LIST, add("/version", "1.0"), "version 1.0 cannot be changed"),
        (LIST, add("/version", "3.0"), "neither '1.0' nor '2.0'"),
        (LIST, {"op": "remove", "path": "/schema"}, "no schema"),
        (definition(version="1.0"), add("/description", "new"), "1.0 cannot be changed"),
        (
            definition(version="1.0", schema={"n": 1}),
            add("/schema/n", True),
            "1.0 cannot be changed",
        ),
        (
            {**LIST, "relations": {"r": {"type": "account", "n": [0]}}},
            add("/relations/r/n/0", False),
            "'relations' cannot be changed",
        ),
        (
            definition(interface=True, views={"v": {"type": "documentAccount"}}),
            add("/description", "new"),
            "interface cannot be",
        ),
    ],
)
def test_models_change_only_where_their_documents_stay_valid(start, patch, error):
    init = model_event(KEY, start)
    assert init.header.model == METAMODEL
    first, second = states(init, change(init, init, patch))
    assert first.validation_errors == ()
    assert (second.data == first.data) == (error is not None)
    assert [error in message for message in second.validation_errors if error] == (
        [True] if error else []
    )


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (None, "needs a definition"),
        (definition(accountRelation={"type": "set", "fields": ["n", "n"]}), "must differ"),
        (
            definition(schema=SCHEMA, views={"t": {"type": "documentVersion"}}),
            "view 't' has the name of a property",
        ),
        (definition(schema={}, interface=True, views={"v": {"type": "documentAccount"}}), ""),
    ],
)
def test_definitions_that_the_verdicts_do_not_have(content: Any, error: str) -> None:
    [state] = states(model_event(KEY, content))
    assert error in " ".join(state.validation_errors)
    assert bool(error) == bool(state.validation_errors)


def test_models_are_those_of_ceramic_one() -> None:
    data = json.loads((Path(__file__).parents[1] / "data" / "model_verdicts.json").read_text())
    different = []
    for row in data["definitions"]:
        model = {**data["bases"][row["base"]], **row["changes"]}
        for name in row["without"]:
            del model[name]
        [state] = states(model_event(KEY, model))
        reason = " ".join(state.validation_errors)
        if bool(reason) == row["accepted"] or row.get("says", "") not in reason:
            different.append((row, state.validation_errors))
    assert different == []


def test_documents_are_those_of_ceramic_one() -> None:
    data = vectors.load("document_verdicts")
    different = []
    for row in vectors.values(data["documents"]):
        model = {**data["model"], **row.get("model", {})}
        for name in row.get("without", ()):
            del model[name]
        header = {"controllers": [controller_of(KEY)], "model": MODEL.to_bytes()}
        header |= {} if row["unique"] is None else {"unique": row["unique"]}
        init = signed_event(KEY, {"header": header, "data": row["content"]})
        events, accepted = [init], [not states(init, model=model)[0].validation_errors]
        for patch in row.get("patches", ()):
            event = change(init, events[-1], *patch)
            accepted.append(not states(*events, event, model=model)[-1].validation_errors)
            events += [event] * accepted[-1]
        if accepted != row["accepted"]:
            different.append((row["name"], accepted, row["accepted"]))
    assert different == []


def test_links_and_bytes_have_levels_wherever_they_come_from() -> None:
    def content(value: Any) -> dict[str, Any]:
        for _ in range(MAX_DEPTH - 2):
            value = [value]
        return {"a": value}

    start, path = document(content(0)), "/a" + "/0" * (MAX_DEPTH - 2)
    for value, fits in ((MODEL.cid, True), (b"", False)):
        init = document(content(value))
        replaced = change(start, start, {"op": "replace", "path": path, "value": value})
        _, patched = states(start, replaced)
        assert patched.data.content == content(value if fits else 0)
        first, repaired = states(init, change(init, init, add("/z", 1)))
        assert first.data.content == (content(value) if fits else None)
        assert repaired.data.content == {**(content(value) if fits else {}), "z": 1}
        assert [bool(state.validation_errors) for state in (patched, first)] == [not fits] * 2


@pytest.mark.parametrize("content", [[1], "text", 0])
def test_no_field_is_immutable_in_content_that_has_none(content: Any) -> None:
    init = document(content)
    event = change(init, init, {"op": "replace", "path": "", "value": {"n": 1}})
    last = states(init, event, model=definition(immutableFields=["n"]))[-1]
    assert outcome(last) == ({"n": 1}, ())


def test_what_came_with_version_2_means_nothing_in_a_model_of_version_1() -> None:
    """As for ceramic-one and js-ceramic."""
    model = definition(version="1.0", interface=True, immutableFields=["n"])
    init = document({"n": 1})
    both = states(init, change(init, init, add("/n", 2)), model=model)
    assert [state.validation_errors for state in both] == [(), ()]


def test_errors_are_short_whatever_they_name() -> None:
    names = [f"{n}" * 1000 for n in range(20)]
    init = document(dict.fromkeys(names, 0))
    event = change(init, init, *(add("/" + name, 1) for name in names))
    _, state = states(init, event, model=definition(immutableFields=names))
    assert len(state.validation_errors) == 8
    assert all(len(error) <= 300 for error in state.validation_errors)


def test_an_event_takes_no_time_for_immutable_fields_that_it_does_not_have() -> None:
    """A model has room for 18,000, which took 3 ms at each of a document's small events."""
    init = document({"n": 0})
    events = [init]
    for n in range(300):
        events.append(change(init, events[-1], add("/n", n)))
    took = []
    for count in (1, 18_000):
        model = definition(immutableFields=[f"{n}" for n in range(count)])
        states(*events[:2], model=model)  # which compiles it
        started = time.process_time()
        done = states(*events, model=model)
        took.append(time.process_time() - started)
        assert not any(state.validation_errors for state in done)
    assert took[1] < 10 * took[0] + 0.1


def test_a_rejected_event_does_not_move_the_tip() -> None:
    """Nor does its anchor: else clients of two nodes would build on different events."""
    model = definition(schema=SCHEMA)
    init = document({"t": "a"})
    fine = change(init, init, add("/t", "b"))
    wrong = change(init, fine, add("/t", "x" * 50))
    anchor = time_event(init, wrong.cid)
    state = at_tip([init, fine, wrong, anchor], model)
    assert (state.event_cid, state.data.content) == (fine.cid, {"t": "b"})
    assert list(state.validation_errors) == [wrong.cid, anchor.cid]
    assert "longer than 10 characters at /t" in state.validation_errors[wrong.cid][0]
    assert "anchors was rejected" in state.validation_errors[anchor.cid][0]
    assert at_tip([init, fine, wrong, anchor]).event_cid == anchor.cid  # without the model


def test_of_two_branches_the_accepted_one_wins() -> None:
    """Whatever their CIDs are, and though the other one is anchored."""
    model = definition(schema=SCHEMA)
    init = document({"t": "a"})
    for text in map(str, range(8)):
        wrong = change(init, init, add("/t", "x" * 50))
        anchor = time_event(init, wrong.cid)
        fine = change(init, init, add("/t", text))
        assert at_tip([init, wrong, anchor, fine], model).event_cid == fine.cid


def test_an_event_on_a_rejected_one_is_accepted_on_its_own_merits() -> None:
    model = definition(schema=SCHEMA)
    init = document({"t": "a"})
    wrong = change(init, init, add("/t", "x" * 50))
    later = change(init, time_event(init, wrong.cid), add("/n", 1))
    events = [init, wrong, time_event(init, wrong.cid), later]
    state = at_tip(events, model)
    assert (state.event_cid, state.data.content) == (later.cid, {"t": "a", "n": 1})


def test_a_rejected_init_event_has_no_state_until_it_is_repaired() -> None:
    model = definition(schema=SCHEMA)
    init = document({"t": "x" * 50})
    with pytest.raises(StreamShapeError):
        at_tip([init, time_event(init, init.cid)], model)
    worse = change(init, init, add("/n", "x"))
    mended = change(init, worse, add("/t", "short"))
    state = at_tip([init, worse, mended], model)
    assert (state.event_cid, state.data.content) == (mended.cid, {"t": "short"})


def test_documents_are_of_the_version_that_they_name() -> None:
    start = model_event(KEY, definition(schema=SCHEMA))
    retyped = change(start, start, add("/schema/properties/n", {"type": "string"}))
    wrong = change(start, retyped, add("/accountRelation", {"type": "single"}))
    anchor = time_event(start, retyped.cid)
    model = StreamStates([start, retyped, wrong, anchor])
    named = {retyped.cid, wrong.cid, anchor.cid}
    known = definitions_of(model.all(), start.cid, named)
    assert set(known) == {start.cid, retyped.cid, anchor.cid}

    def of(version: CID | None, content: Any, prev: Event | None = None) -> Event:
        header: dict[str, Any] = {} if version is None else {"modelVersion": version}
        if prev is not None:
            payload = {"id": prev.init, "prev": prev.cid, "data": [add("", content)]}
            return signed_event(KEY, {**payload, **({"header": header} if header else {})})
        header |= {"controllers": [controller_of(KEY)], "model": start.stream_id().to_bytes()}
        return signed_event(KEY, {"header": {**header, "unique": b"u"}, "data": content})

    def errors(*events: Event) -> list[bool]:
        assert named_versions(events) <= named
        return [bool(state.validation_errors) for state in StreamStates(events, known).all()]

    first = of(None, {"n": 1})
    assert errors(first, of(None, {"n": 2}, first), of(None, {"n": "2"}, first)) == [0, 0, 1]
    second = of(retyped.cid, {"n": "2"}, first)
    assert errors(first, second, of(None, {"n": 3}, second)) == [0, 0, 1]  # it is kept
    assert errors(of(anchor.cid, {"n": "1"})) == [0]
    assert errors(of(anchor.cid, {"n": 1})) == [1]
    assert errors(of(wrong.cid, {"n": 1})) == [1]


def test_named_versions_are_bounded() -> None:
    init = document({})
    events = [init]
    for n in range(MAX_VERSIONS + 5):
        version = CID.of(DAG_CBOR, b"%d" % n)
        events.append(data_event(KEY, init, [init.cid], [], model_version=version))
    assert len(named_versions(events)) == MAX_VERSIONS


@pytest.mark.parametrize("content", [definition(description="x" * 200_001), [1], "text"])
def test_definitions_that_are_too_large_or_no_objects_are_ignored(content: Any) -> None:
    start = init_event(KEY, METAMODEL, content)
    assert definitions_of(StreamStates([start]).all(), start.cid, ()) == {start.cid: {}}


def test_models_are_not_remembered_but_for_their_documents() -> None:
    """Anybody can write models of 64 MB in memory: a megabyte of empty objects."""

    class Content(dict[str, Any]):
        pass

    content = Content(LIST)
    held = weakref.ref(content)
    header = model_event(KEY, LIST).header
    assert header is not None
    change = ContentChange(None, content, 1, is_init=True)
    ContentRules(header, None).check(change, Budget("the event", 10_000))
    del content, change
    assert held() is None


@pytest.mark.parametrize("schema", [{"$ref": "#"}, {"pattern": "("}])
def test_no_document_conforms_to_a_schema_that_cannot_be_used(schema: Any) -> None:
    [state] = states(document({}), model=definition(schema=schema))
    assert "schema of the document's model cannot be used" in state.validation_errors[0]
    [empty] = states(
        deterministic_init_event(controller_of(KEY), MODEL),
        model=definition(schema=schema, accountRelation={"type": "single"}),
    )
    assert not empty.validation_errors
