"""Three-way merges of diverged streams: what is taken over, and what is a conflict."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stream_samples import KEY, REJECTED, Writer, put

from recon_node.ceramic.builder import signed_event
from recon_node.ipld import CID
from recon_node.streams import MergeProposal, Stream, json_equal, json_values
from recon_node.streams.json_patch import parse_pointer
from recon_node.streams.json_values import Budget, BudgetError

NAMES = ("a", "b", "c", "d")
VALUES = st.one_of(st.integers(0, 2), st.dictionaries(st.sampled_from("xyz"), st.integers(0, 2)))
FLAT = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 2), max_size=4)
CONTENTS = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4)


def test_what_changed_on_one_side_is_taken_over() -> None:
    stream = Writer({"a": 1, "b": {"x": 1, "y": 1}, "tags": ["r", "g"], "gone": 1})
    stream.write({"a": 2, "b": {"x": 1, "y": 1}, "tags": ["r", "G"], "gone": 1}, stream.init)
    stream.write({"a": 1, "b": {"x": 1, "y": 2}, "tags": ["R", "g"]}, stream.init)
    stream.write(
        {"a": 1, "b": {"x": 1, "y": 1}, "tags": ["r", "g"], "gone": 1, "c": 3}, stream.init
    )
    proposal = stream.propose_merge()
    assert (proposal.conflicts, len(proposal.prevs), proposal.left) == ((), 3, 0)
    assert stream.merged() == {"a": 2, "b": {"x": 1, "y": 2}, "tags": ["R", "G"], "c": 3}


def test_a_conflict_shows_the_value_on_each_branch() -> None:
    stream = Writer({"title": "x", "n/m": 1, "same": 0})
    one = stream.write({"title": "y", "n/m": 1, "same": 1}, stream.init)
    two = stream.write({"title": "z", "same": 1}, stream.init)
    three = stream.write({"title": "y", "n/m": 2, "same": 1}, stream.init)
    proposal = stream.propose_merge()
    assert {conflict.path: conflict.values for conflict in proposal.conflicts} == {
        "/content/title": {one.cid: "y", two.cid: "z", three.cid: "y"},
        "/content/n~1m": {one.cid: 1, three.cid: 2},
    }
    tip = {one.cid: one, two.cid: two, three.cid: three}[proposal.prevs[0]]
    assert proposal.before == stream.states().at(tip.cid).data.content
    assert proposal.content["title"] == proposal.before["title"]
    decided = proposal.preferring(two.cid)
    assert (decided.content, decided.conflicts) == ({"title": "z", "same": 1}, ())
    assert proposal.preferring(three.cid).content == {"title": "y", "n/m": 2, "same": 1}
    with pytest.raises(ValueError, match="is not one of the tips"):
        proposal.preferring(stream.init.cid)


def test_a_preferred_tip_has_the_last_word_within_values_and_around_them() -> None:
    stream = Writer({"v": {"a": 0}, "tags": ["a", "b"]})
    contents = {
        stream.write(content, stream.init).cid: content
        for content in (
            {"v": 5, "tags": ["x", "b"]},
            {"v": {"a": 1}, "tags": ["y", "b"]},
            {"v": {"a": 2}, "tags": ["a", "b"]},
        )
    }
    proposal = stream.propose_merge()
    paths = {conflict.path for conflict in proposal.conflicts}
    assert paths == {"/content/v", "/content/v/a", "/content/tags/0"}
    assert {tip: proposal.preferring(tip).content for tip in contents} == contents


def test_arrays_of_other_lengths_are_one_value() -> None:
    stream = Writer({"tags": ["a"]})
    stream.write({"tags": ["a", "b"]}, stream.init)
    stream.write({"tags": ["c", "a"]}, stream.init)
    [conflict] = stream.propose_merge().conflicts
    assert conflict.path == "/content/tags"


@pytest.mark.parametrize("content", [None, [1], "text", 0])
def test_content_that_is_not_an_object_is_one_value(content: Any) -> None:
    patch = [{"op": "replace", "path": "", "value": content}]
    stream = Writer({"a": 1})
    sides = {
        stream.data(patch, stream.init).cid: content,
        stream.data(put("b", 2), stream.init).cid: {"a": 1, "b": 2},
    }
    proposal = stream.propose_merge()
    assert [(one.path, one.values) for one in proposal.conflicts] == [("/content", sides)]
    for tip, side in sides.items():
        for decided in (proposal.preferring(tip), proposal.leading_to(side)):
            event = signed_event(KEY, decided.payload())
            assert stream.stream().with_event(event).at(event.cid).data.content == side
    agreeing = Writer({"a": 1})
    for same in (patch, patch * 2):
        agreeing.data(same, agreeing.init)
    assert agreeing.propose_merge().conflicts == ()
    assert agreeing.merged() == content


def test_metadata_is_merged_too() -> None:
    stream = Writer({"a": 1})
    hidden = stream.write({"a": 1, "b": 1}, stream.init, should_index=False)
    other = stream.write({"a": 2}, stream.init)
    proposal = stream.propose_merge()
    expected = {} if proposal.prevs[0] == hidden.cid else {"shouldIndex": False}
    assert dict(proposal.header) == expected
    stream.write({"a": 2}, other, should_index=True)  # as it was: no change of this branch
    stream.merged()
    [*_, state] = stream.states().all()
    assert state.data.metadata == {"shouldIndex": False}


def test_writers_who_merged_the_same_branches_differently() -> None:
    stream = Writer({"x": 0, "y": 0})
    a = stream.write({"x": 1, "y": 0}, stream.init)
    b = stream.write({"x": 2, "y": 5}, stream.init)
    stream.write({"x": 1, "y": 5}, a, b)  # one keeps a's x
    stream.write({"x": 2, "y": 5}, b, a)  # the other keeps b's
    proposal = stream.propose_merge()
    assert [conflict.path for conflict in proposal.conflicts] == ["/content/x"]
    assert proposal.content["y"] == 5


def test_anchored_branches_are_merged_at_their_anchors() -> None:
    stream = Writer({"a": 1})
    a = stream.write({"a": 2}, stream.init)
    b = stream.write({"a": 1, "b": 1}, stream.init)
    lower, higher = sorted((a, b), key=lambda e: e.cid)
    early, late = stream.anchor(higher, 1), stream.anchor(lower, 2)
    proposal = stream.propose_merge()
    assert proposal.prevs == (early.cid, late.cid)  # though the other has the lower CID
    assert stream.merged() == {"a": 2, "b": 1}


def test_a_rejected_event_is_covered_and_changes_nothing() -> None:
    stream = Writer({"a": 1})
    bad = stream.data(REJECTED, stream.init)
    good = stream.write({"a": 2}, stream.init)
    assert stream.propose_merge().prevs == (good.cid, bad.cid)
    assert stream.merged() == {"a": 2}


def test_more_branches_than_one_event_can_merge() -> None:
    stream = Writer({})
    for number in range(300):
        stream.write({str(number): number}, stream.init)
    first = stream.propose_merge()
    assert (len(first.prevs), first.left) == (256, 44)
    stream.add(signed_event(KEY, first.payload()))
    assert stream.merged() == {str(number): number for number in range(300)}


@given(FLAT, st.lists(FLAT, min_size=2, max_size=4))
def test_against_the_definition_member_by_member(base: Any, sides: list[Any]) -> None:
    """Taken over if one value is new; a conflict if several are."""
    stream = Writer(base)
    for number, side in enumerate(sides):
        stream.write({**side, f"writer {number}": True}, stream.init)
    proposal = stream.propose_merge()
    conflicts = set()
    for name in NAMES:
        was = base.get(name)
        new = {side.get(name) for side in sides if side.get(name) != was}
        if len(new) > 1:
            conflicts.add(f"/content/{name}")
        else:
            assert proposal.content.get(name) == (new.pop() if new else was)
    assert {conflict.path for conflict in proposal.conflicts} == conflicts
    assert {f"writer {number}" for number in range(len(sides))} <= proposal.content.keys()


@given(st.data())
def test_any_stream_converges_in_one_merge(data: st.DataObject) -> None:
    stream = Writer({"a": 0})
    for _ in range(data.draw(st.integers(1, 8))):
        numbers = st.integers(0, len(stream.events) - 1)
        drawn = data.draw(st.lists(numbers, min_size=1, max_size=3, unique=True))
        prevs = [stream.events[number] for number in drawn]
        content = data.draw(CONTENTS)
        if data.draw(st.booleans()):
            stream.data(REJECTED, *prevs)
        elif data.draw(st.booleans()):
            stream.anchor(prevs[0], None)
        else:
            stream.write(content, *prevs)
    whole = Stream.of(stream.events)
    is_open = whole.tip.diverged or whole.accepted_tip.diverged
    proposal = whole.propose_merge()
    assert (proposal is not None) is is_open
    if proposal is None:
        assert whole.open_tips == ()
        return
    event = stream.add(signed_event(KEY, proposal.payload()))
    for after in (whole.with_event(event), Stream.of(stream.events)):
        assert event.cid not in after.rejected
        for tip in (after.tip, after.accepted_tip):
            assert (tip.event, tip.diverged) == (event.cid, False)
        assert json_equal(after.at(event.cid).data.content, proposal.content)


def _conflicts_below(name: str, members: int) -> MergeProposal:
    """Two branches that both change all members of an object with this name."""
    writer = Writer({name: {f"{n:x}": 0 for n in range(members)}})
    for new in (1, 2):
        writer.data(put(name, {f"{n:x}": new for n in range(members)}), writer.init)
    return writer.propose_merge()


def test_paths_that_repeat_a_long_name_are_paid_for() -> None:
    """The path of each conflict repeats the name above it: 0.8 MB of events made 1.4 GB."""
    proposal = _conflicts_below("n" * 20_000, 200)
    assert len(proposal.conflicts) == 200
    with pytest.raises(BudgetError, match="a proposal to merge the stream takes more"):
        _conflicts_below("n" * 240_000, 6000)


def test_a_patch_that_repeats_a_long_name_is_paid_for() -> None:
    proposal = _conflicts_below("n" * 20_000, 200)
    before = {"n" * 240_000: {f"{n:x}": 0 for n in range(6000)}}
    after = {"n" * 240_000: {f"{n:x}": 1 for n in range(6000)}}
    with pytest.raises(BudgetError, match="a proposal to merge the stream takes more"):
        _ = replace(proposal, before=before).leading_to(after).patch


NESTED = st.recursive(
    st.integers(0, 2),
    lambda inner: (
        st.dictionaries(st.sampled_from("ab~"), inner, max_size=3)
        | st.lists(inner, min_size=1, max_size=2)
    ),
    max_leaves=6,
)


@given(NESTED, st.lists(NESTED, min_size=2, max_size=4), st.data())
def test_preferring_a_tip_is_each_conflict_after_the_other(base, sides, data):
    stream = Writer({"v": base})
    for number, side in enumerate(sides):
        stream.write({"v": side, f"writer {number}": True}, stream.init)
    proposal = stream.propose_merge()
    winner = data.draw(st.sampled_from(proposal.prevs))
    # The deepest first, so that a value above it has the last word.
    content: Any = proposal.content
    for conflict in sorted(proposal.conflicts, key=lambda conflict: -conflict.path.count("/")):
        content = _put(content, parse_pointer(conflict.path)[1:], conflict.values, winner)
    decided = proposal.preferring(winner)
    assert json_equal(decided.content, content)
    assert decided.conflicts == ()
    for conflict in proposal.conflicts:
        if conflict.path.count("/") == 2:  # a member of the document itself
            name = parse_pointer(conflict.path)[1]
            assert json_equal(decided.content.get(name), conflict.values.get(winner))


def _put(value: Any, path: Sequence[str], values: Mapping[CID, Any], winner: CID) -> Any:
    """A copy of the whole document with one value put at a path, if what is around it exists."""
    name, *rest = path
    members = dict(enumerate(value)) if isinstance(value, list) else value
    if not isinstance(members, dict):
        return value
    keys = {str(key): key for key in members}
    members = dict(members)
    if rest:
        if name in keys:
            members[keys[name]] = _put(members[keys[name]], rest, values, winner)
    elif winner in values and (name in keys or isinstance(value, dict)):
        members[keys.get(name, name)] = values[winner]
    elif winner not in values and isinstance(value, dict):
        members.pop(name, None)
    return list(members.values()) if isinstance(value, list) else members


def test_preferring_a_tip_copies_each_object_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not once for each conflict: 8,000 of them took seconds, and a large stream minutes."""
    spent = []
    for members in (1000, 2000):
        proposal = _conflicts_below("n", members)
        work = Budget("a test", 10**9)
        monkeypatch.setattr(Budget, "of_merge", lambda work=work: work)
        decided = proposal.preferring(proposal.prevs[1])
        monkeypatch.undo()
        other = [conflict.values[proposal.prevs[1]] for conflict in proposal.conflicts]
        assert list(decided.content["n"].values()) == other
        spent.append(work.spent)
    assert spent[1] < 2.1 * spent[0]


def test_preferring_a_tip_is_paid_for(monkeypatch: pytest.MonkeyPatch) -> None:
    proposal = _conflicts_below("n", 1000)
    monkeypatch.setattr(json_values, "MERGE_STEPS", 100_000)
    with pytest.raises(BudgetError, match="a proposal to merge the stream takes more"):
        proposal.preferring(proposal.prevs[1])
