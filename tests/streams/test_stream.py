"""One stream: what is computed of it is computed once, whatever is asked and in which order."""

from typing import Any

import pytest
from stream_samples import KEY, MODEL, REJECTED, Writer, put

from recon_node.ceramic import Event
from recon_node.ceramic.builder import data_event, signed_event
from recon_node.streams import Stream, StreamShapeError, state, statements_of


def diverged() -> list[Event]:
    """A stream with two branches of 20 events, one of which ends in a rejected event."""
    stream = Writer({"n": 0})
    for branch in "ab":
        below = stream.init
        for number in range(20):
            below = stream.data(put(branch, number), below)
    stream.data(REJECTED, below)
    return stream.events


@pytest.fixture
def patches(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The patches that are applied."""
    applied: list[Any] = []
    real = state.apply_patch

    def apply_patch(content: Any, patch: Any, *others: Any) -> Any:
        applied.append(patch)
        return real(content, patch, *others)

    monkeypatch.setattr(state, "apply_patch", apply_patch)
    return applied


def test_a_merge_applies_each_patch_once(patches: list[Any]) -> None:
    events = diverged()
    stream = Stream.of(events)
    proposal = stream.propose_merge()
    assert (proposal.content, proposal.conflicts) == ({"n": 0, "a": 19, "b": 19}, ())
    assert set(proposal.prevs) >= {events[20].cid, events[41].cid}
    merge = signed_event(KEY, proposal.payload())
    merged = stream.with_event(merge)
    assert merged.at(merge.cid).data.content == {"n": 0, "a": 19, "b": 19}
    assert merged.accepted_tip.event == merged.tip.event == merge.cid
    assert merged.open_tips == ()
    assert [*merged.rejected] == [events[41].cid]
    assert len(patches) == 42  # 41 events but the init, and the merge


def test_an_update_applies_each_patch_once(patches: list[Any]) -> None:
    events = diverged()[:21]
    stream = Stream.of(events)
    assert stream.state().data.content == {"n": 0, "a": 19}
    assert stream.state().event_cid == stream.accepted_tip.event == events[-1].cid
    update = data_event(KEY, events[0], [events[-1].cid], put("a", 20))
    after = stream.with_event(update)
    assert after.state().data.content == {"n": 0, "a": 20}
    assert after.rejected == {}
    again = data_event(KEY, events[0], [update.cid], put("b", 1))
    assert after.with_event(again).state().data.content == {"n": 0, "a": 20, "b": 1}
    assert len(patches) == 22


def test_an_event_after_a_summary_takes_what_it_takes_without_one() -> None:
    """The model was once paid for again by each, until a long stream took too much work."""
    relation = {"type": "list"}
    schema = {"type": "object", "additionalProperties": False, "properties": {"n": {}}}
    model = {"version": "1.0", "name": "A", "accountRelation": relation, "schema": schema}
    definitions = {MODEL.cid: model}
    written = Writer({"n": 0})
    stream = Stream.of(written.events, definitions=definitions)
    for number in range(3):
        event = written.data(put("n", number), written.events[-1])
        summary = stream.summary()
        assert summary is not None
        stream = Stream(statements_of([event]), definitions=definitions, summary=summary)
    whole = Stream.of(written.events, definitions=definitions).summary()
    later = stream.summary()
    assert later.states.spent == whole.states.spent > 0


def test_an_event_that_is_there_changes_nothing() -> None:
    events = diverged()
    stream = Stream.of(events)
    assert stream.with_event(events[7]) is stream
    with pytest.raises(StreamShapeError, match="there is no event"):
        Stream.of(events[:3]).at(events[7].cid)


def test_an_exception_before_an_event_ends_what_is_computed() -> None:
    left = 5

    def check() -> None:
        nonlocal left
        left -= 1
        if not left:
            raise TimeoutError

    with pytest.raises(TimeoutError):
        Stream(statements_of(diverged()), on_event=check).state()
