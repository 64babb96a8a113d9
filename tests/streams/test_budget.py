"""What events cost is paid by them: the sizes that strangers choose are not multiplied."""

from itertools import accumulate
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from stream_samples import KEY, MODEL, STRANGER, VALUES, add
from support.time_events import time_event

from recon_node.ceramic import Event
from recon_node.ceramic.builder import data_event, init_event
from recon_node.ipld import CID, DAG_CBOR
from recon_node.streams import EventState, StreamStates, json_values
from recon_node.streams.json_patch import apply_patch
from recon_node.streams.json_values import Budget, BudgetError, weigh_json
from recon_node.streams.model_rules import ContentChange, ContentRules
from recon_node.streams.state import StreamData

LONG = "1." * 450_000


def definition(schema: Any, **more: Any) -> dict[str, Any]:
    schema = {"type": "object", "additionalProperties": False, **schema}
    relation = {"type": "list"}
    start = {"version": "2.0", "name": "A", "interface": False, "implements": []}
    return {**start, "schema": schema, "accountRelation": relation, **more}


def stream(content: Any, patches: list[Any]) -> list[Event]:
    init = init_event(KEY, MODEL, content, unique=b"u")
    changes = accumulate(
        patches, lambda prev, patch: data_event(KEY, init, [prev.cid], patch), initial=init
    )
    return list(changes)


def states(events: list[Event], model: Any) -> list[EventState]:
    return list(StreamStates(events, {MODEL.cid: model}).all())


def spent(events: list[Event], model: Any) -> list[int]:
    """The steps of each event."""
    rules = ContentRules(events[0].header, model)
    steps = []
    before = None
    for event, state in zip(events, states(events, model), strict=True):
        work = Budget("a test", 10**12)
        content = state.data.content
        touched = None if before is None else frozenset(_names(event.data))
        rules.check(
            ContentChange(before, content, state.data.weight, touched, before is None), work
        )
        before = content
        steps.append(work.spent)
    return steps


def _names(patch: list[dict[str, Any]]) -> set[str]:
    return {operation["path"].split("/")[1] for operation in patch}


def test_small_events_do_not_pay_for_a_large_document_again() -> None:
    """Each of 540 bytes once caused the whole check: 500 of them took hours."""
    slow = {"anyOf": [*[{"pattern": f"^(a|b)*c{n}$"} for n in range(30)], {}]}
    model = definition({"properties": {"a": slow, "b": {"type": "integer"}}})
    events = stream({"a": LONG[:50_000], "b": 0}, [[add("/b", n)] for n in range(1, 6)])
    first, *later = spent(events, model)
    assert first > 10_000_000
    assert max(later) < 50_000
    assert states(events, model)[-1].data.content["b"] == 5


def test_an_untouched_member_is_checked_if_it_never_conformed() -> None:
    """A rejected init event leaves content that no later event mends by changing the rest."""
    text = {"type": "string", "anyOf": [{"pattern": f"^{n}(a|b)*c$"} for n in range(50)]}
    model = definition({"properties": {"a": text, "b": {"type": "integer"}}})
    events = stream({"a": LONG[:20_000], "b": 0}, [[add("/b", 1)], [add("/a", "1bc")]])
    rejected = [bool(state.validation_errors) for state in states(events, model)]
    assert rejected == [True, True, False]


def test_what_a_small_event_may_cause_is_little() -> None:
    """The content was built by large events; a small one makes all of it be checked at once."""
    model = definition(
        {
            "properties": {"l": {"items": {"type": "number", "multipleOf": 0.5}}},
            "patternProperties": {"^x": {}},
        }
    )
    events = stream({"l": [3] * 1_000}, [[add("/x", n)] for n in range(3)])
    assert not any(state.validation_errors for state in states(events, model))
    events = stream({"l": [3] * 20_000}, [[add("/x", n)] for n in range(3)])
    assert all("takes more than" in state.validation_errors[0] for state in states(events, model))


def test_an_init_event_may_not_exceed_the_size_of_a_document() -> None:
    """An empty byte string is one byte of CBOR, and twenty of JSON."""
    first, *later = states(
        stream({"a": [b""] * 900_000}, [[add("/b", 1)], [add("", {"b": 1})]]),
        definition({"properties": {"a": {}, "b": {}}}),
    )
    assert first.validation_errors == ("the document would be larger than 16000000 bytes",)
    assert [bool(state.validation_errors) for state in later] == [True, False]


def test_copies_are_paid_for() -> None:
    doubling = [
        {"op": "copy", "from": "/l", "path": "/l/-"},
        {"op": "copy", "from": "/l", "path": "/m"},
    ]
    events = stream({"l": [[0] * 100]}, [doubling * 12] * 3)
    [reason] = states(events, definition({"properties": {}}))[1].validation_errors
    assert "more work" in reason


def test_a_stream_that_takes_too_much_is_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small events on a large document: each state is written out."""
    model = definition({"properties": {"a": {}, "b": {}}})
    events = stream({"a": LONG, "b": 0}, [[add("/b", n)] for n in range(20)])
    assert len(states(events, model)) == 21
    monkeypatch.setattr(json_values, "STREAM_STEPS", 1_000_000)
    monkeypatch.setattr(json_values, "STREAM_STEPS_PER_BYTE", 2)
    walk = StreamStates(events, {MODEL.cid: model})
    with pytest.raises(BudgetError, match="the stream takes more than"):
        list(walk.all())
    with pytest.raises(BudgetError, match="the stream takes more than"):
        walk.at(events[-1].cid)


def test_the_content_after_each_signed_event_is_paid_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time events are not signed: they take nothing from the stream, whose content they repeat."""
    events = stream({"a": "x" * 100_000}, [[add("/b", n)] for n in range(9)])
    anchors = [time_event(events[0], event.cid, tx_hash=b"t" * 32) for event in events]
    walk = StreamStates([*events, *anchors])
    assert not walk.rejected
    assert 1_000_000 < walk.summary(events[-1].cid).written < 1_001_000
    later = walk.with_event(data_event(KEY, events[0], [events[-1].cid], []), None)
    [state] = later.all()
    assert 1_100_000 < later.summary(state.event_cid).written < 1_102_000
    monkeypatch.setattr(
        json_values, "ROW_BYTES", 1_000_000 - json_values.STREAM_STEPS_PER_BYTE * walk._size
    )
    with pytest.raises(BudgetError, match="takes more than 1,000,000 bytes"):
        _ = StreamStates([*events, *anchors]).rejected
    monkeypatch.setattr(
        json_values, "ROW_BYTES", 1_001_000 - json_values.STREAM_STEPS_PER_BYTE * walk._size
    )
    assert not StreamStates([*events, *anchors]).rejected


def test_all_branches_pay_from_one_allowance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each once had one of its own: a merge of 256 branches took 256 times what a stream may."""
    left = stream({"a": "x" * 100_000}, [[add("/left", n)] for n in range(4)])
    right = [left[0]]
    for n in range(4):
        right.append(data_event(KEY, left[0], [right[-1].cid], [add("/right", n)]))
    walk = StreamStates([*left, *right[1:]])
    own = json_values.STREAM_STEPS_PER_BYTE * walk._size
    monkeypatch.setattr(json_values, "ROW_BYTES", 810_000 - own)
    walk = StreamStates([*left, *right[1:]])
    assert [walk.at(event.cid).height for event in left] == [0, 1, 2, 3, 4]
    assert walk.at(right[3].cid).height == 3
    with pytest.raises(BudgetError, match="takes more than 810,000 bytes"):
        walk.at(right[4].cid)


def test_schemas_that_a_document_names_are_paid_for() -> None:
    """Each version of a model is compiled for a document that names it."""
    large = definition({"properties": {"a": {"enum": ["x" * 50 + str(n) for n in range(1500)]}}})
    versions = {CID.of(DAG_CBOR, b"%d" % n): large for n in range(80)}
    init = init_event(KEY, MODEL, {}, unique=b"u")
    events = [init]
    for version in versions:
        events.append(data_event(KEY, init, [events[-1].cid], [], model_version=version))
    walk = StreamStates(events, {MODEL.cid: large, **versions})
    with pytest.raises(BudgetError, match="the stream takes more than"):
        list(walk.all())
    few = StreamStates(events[:5], {MODEL.cid: large, **versions})
    assert not few.rejected


def test_compiled_patterns_are_paid_for() -> None:
    """Classes of Unicode characters take 6 µs to compile for each byte that names them."""
    texts = {f"p{n}": {"type": "string", "pattern": rf"\p{{L}}{n}"} for n in range(350)}
    definitions = {MODEL.cid: definition({"properties": texts})}
    init = init_event(KEY, MODEL, {}, unique=b"u")

    def spent(definitions: Any) -> int:
        walk = StreamStates([init], definitions)
        assert not walk.rejected
        return walk.summary(init.cid).spent

    of_patterns = spent(definitions) - spent(None)
    assert of_patterns >= 6e-6 / 4e-9 * sum(len(text["pattern"]) for text in texts.values())


def test_badly_signed_events_pay_for_their_rows() -> None:
    """Each has a row with the whole content: 4,000 of them once made 369 GB of 3 MB."""
    init = init_event(KEY, MODEL, {"a": "x" * 500_000}, unique=b"u")
    forged = [data_event(STRANGER, init, [init.cid], [add("/b", n)]) for n in range(10)]
    cover = data_event(KEY, init, [init.cid], [])

    def steps(*bad: Event) -> int:
        walk = StreamStates([init, *bad, cover], faults={event.cid: "bad" for event in forged})
        assert list(walk.rejected) == [event.cid for event in bad]
        return walk.summary(cover.cid).written

    none, one, ten = steps(), steps(forged[0]), steps(*forged)
    assert 500_000 <= one - none < 510_000
    assert ten - none == 10 * (one - none)


@example({"a": -(2**64), "b": 1e-9})
@example({"a": [-(2**64), 1e-5, 6.103515625e-05]})
@given(st.dictionaries(st.text(max_size=3), VALUES | st.integers(-(2**64), -(2**63)), max_size=4))
def test_content_weighs_what_its_json_takes(content: dict[str, Any]) -> None:
    """A number weighed 2, whatever it was: ten numbers of 24 digits in the room of one."""
    written = len(StreamData(content, {}).to_json()) - len(b'{"metadata":{},"content":}')
    weight = weigh_json(content)
    # Beside integers of 65 bits, Python writes floats: 1e+16 for 1e16, and 1e-05 for 0.00001.
    longer, shorter = str(content).count("e+"), 2 * str(content).count("e-05")
    assert written - longer < weight <= written + 1 + _containers(content) + shorter
    emptied = weigh_json({})
    adding = [
        add("/" + name.replace("~", "~0").replace("/", "~1"), content[name]) for name in content
    ]
    assert apply_patch({}, adding, emptied, Budget("a test", 10**9)).weight == weight
    removing = [{"op": "remove", "path": operation["path"]} for operation in adding]
    assert apply_patch(content, removing, weight, Budget("a test", 10**9)).weight == emptied


def _containers(value: Any) -> int:
    if not isinstance(value, dict | list):
        return 0
    return 1 + sum(map(_containers, value.values() if isinstance(value, dict) else value))
