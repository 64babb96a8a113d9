"""Merging a diverged stream (CIP-145): the content that its branches lead to together.

Theory of operation. The event that merges a stream has all candidates for its tip as prevs, the tip
first: by CIP-145 what the others' order means is up to this layer, and here an event's patch
applies to the content at its first prev. The other branches are taken in one by one, each by a
three-way merge: what changed on one side only, compared to the last event that both sides have in
common, is taken over. What changed on both sides, to different values, is a *conflict*. The tip's
value stays, and a person decides.

The unit of a change is a member of an object, at any depth, and an item of an array, while all
three arrays have the same length. An array that got longer or shorter is one value.

Two writers may have merged the same branches, each in its own way, before their events met.
Then the two sides have several last events in common. Their contents are merged first, and where
these differ there is no common value: every change there is one of both sides.

A branch whose data were signed under a capability that had *expired* when they were anchored cannot
become the tip, but is covered by a merge as well, which repairs the stream (CIP-145, figures 5 and
6). Nobody was entitled to its changes, so they are left out, unless a person asks for them.

Events that were rejected (see `state`) count as well, so that the merge leaves no branch open,
whether one looks at signatures only or at contents, too. They have no content of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Final, NamedTuple

from recon_node.ceramic import Event
from recon_node.ceramic.event import MAX_PREVS
from recon_node.ipld import CID
from recon_node.streams.graph import EventShape
from recon_node.streams.json_patch import parse_pointer
from recon_node.streams.json_values import (
    STEPS_PER_WRITTEN_BYTE,
    Budget,
    equal_within,
    json_diff,
    json_equal,
    measure,
    pointer,
)
from recon_node.streams.state import StreamStates
from recon_node.streams.tip import Tip


class _Missing:
    """Stands for a member that an object does not have, or for an unknown common value."""


_ABSENT: Final = _Missing()
_UNKNOWN: Final = _Missing()
_COVERED: Final = 25
"""Steps of an event that a branch covers."""
_COMPARISON: Final = 100
"""Steps of one comparison of the branches."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """A part of a stream that its branches changed in different ways."""

    path: str
    """A JSON Pointer (RFC 6901) into `{"content": ..., "metadata": ...}`: "/content/title"."""
    values: Mapping[CID, Any]
    """The value at each of the prevs; without those at which there is none."""


@dataclass(frozen=True, slots=True)
class Expired:
    """A data event whose capability had expired when it was anchored."""

    event: CID
    expires: int
    """Unix seconds, as `time`."""
    time: int

    def __str__(self) -> str:
        return (
            f"{self.event} was anchored at {datetime.fromtimestamp(self.time, UTC)}, but its "
            f"capability expired at {datetime.fromtimestamp(self.expires, UTC)}"
        )


@dataclass(frozen=True)
class MergeProposal:
    """An event that would merge a diverged stream, not signed yet."""

    init: CID
    prevs: tuple[CID, ...]
    """The tip, then the other candidates in ascending order; at most 256."""
    before: Any
    """The content at the tip: what the event's patch applies to; an empty object for none."""
    content: Any
    """The merged content; where there are conflicts, it has the tip's values."""
    header: Mapping[str, Any]
    """`shouldIndex` and `modelVersion`, if they differ from those at the tip."""
    conflicts: tuple[Conflict, ...]
    left: int
    """Candidates beyond the 256 that one event can merge. Merge again."""
    expired: Mapping[CID, Expired]
    """Those of the prevs whose changes are left out, and why."""

    @cached_property
    def patch(self) -> list[dict[str, Any]]:
        """JSON Patch from the content at the tip to the merged one.

        Raises:
            BudgetError: it takes too much work.
        """
        return json_diff(self.before, self.content, Budget.of_merge())

    def payload(self) -> dict[str, Any]:
        """Return the payload of the event: what its signature signs, as DAG-CBOR."""
        payload: dict[str, Any] = {"id": self.init, "prev": list(self.prevs), "data": self.patch}
        if self.header:
            payload["header"] = dict(self.header)
        return payload

    def leading_to(self, content: Any) -> MergeProposal:
        """Return the proposal without conflicts: it leads to this content."""
        return replace(self, content=content, conflicts=())

    def preferring(self, tip: CID) -> MergeProposal:
        """Return the proposal without conflicts: the values at one of the prevs win.

        Raises:
            ValueError: `tip` is not one of the prevs.
            BudgetError: it takes too much work.
        """
        if tip not in self.prevs:
            raise ValueError(f"{tip} is not one of the tips: {', '.join(map(str, self.prevs))}")
        budget, header = Budget.of_merge(), dict(self.header)
        choices: dict[str, Any] = {}
        for conflict in self.conflicts:
            budget.spend(_COMPARISON + STEPS_PER_WRITTEN_BYTE * len(conflict.path))
            part, *path = parse_pointer(conflict.path)
            if part == "content":
                _note(choices, (part, *path), conflict.values.get(tip, _ABSENT))
            elif tip in conflict.values:
                header |= _header({path[0]: conflict.values[tip]})
        content = _with({"content": self.content}, choices, budget).get("content", {})
        return replace(self, content=content, header=header, conflicts=())


def propose_merge(
    events: Sequence[Event],
    tips: Sequence[CID],
    states: StreamStates,
    including: CID | None = None,
    expired: Mapping[CID, Expired] | None = None,
) -> MergeProposal | None:
    """Propose an event that merges a stream; None if there is nothing to merge.

    Args:
        events: all events of the stream, in causal order.
        tips: those that the merge has to cover, as `open_tips` gives them.
        states: of the same events.
        including: a tip that is among the prevs, even if there are more than 256.
        expired: those of `tips` whose changes are left out, as `expired_branches` gives them.

    Raises:
        BudgetError: the stream, or the proposal, takes too much work.
    """
    if not tips:
        return None
    budget = Budget.of_merge()
    prevs = tuple(tips[:MAX_PREVS])
    if including is not None and including in tips[MAX_PREVS:]:
        prevs = (*prevs[:-1], including)
    merge = _Merge(events, states, budget)
    left_out = {cid: why for cid, why in (expired or {}).items() if cid in prevs}
    taken = [cid for cid in prevs if cid not in left_out]
    tip, merged = merge.value_at(prevs[0]), merge.merged(taken)
    at_tip = {cid: merge.value_at(cid) for cid in taken}
    before = tip["metadata"]
    changed = {
        name: value
        for name, value in merged["metadata"].items()
        if not json_equal(value, before.get(name, _ABSENT))
    }
    conflicts = tuple(_conflict(path, at_tip, budget) for path in dict.fromkeys(merge.conflicts))
    return MergeProposal(
        init=events[0].init,
        prevs=(prevs[0], *sorted(prevs[1:])),
        before={} if tip["content"] is None else tip["content"],
        content=merged["content"],
        header=_header(changed),
        conflicts=conflicts,
        left=len(tips) - len(prevs),
        expired=left_out,
    )


def _conflict(path: str, at_tip: Mapping[CID, Any], budget: Budget) -> Conflict:
    values = {}
    for cid, value in at_tip.items():
        budget.spend(STEPS_PER_WRITTEN_BYTE * len(path))
        for member in _at(value, path):
            budget.spend(STEPS_PER_WRITTEN_BYTE * measure(member, budget.left).weight)
            values[cid] = member
    return Conflict(path, values)


def _header(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata as in the header of a data event."""
    return {
        name: CID.parse(value) if name == "modelVersion" else value
        for name, value in metadata.items()
    }


def open_tips(
    shapes: Sequence[EventShape[CID]],
    signed: Tip[CID],
    accepted: Tip[CID],
    expired: Collection[CID] = (),
) -> tuple[CID, ...]:
    """Return the events that a merge has to cover: the tip, then the others, by their order in
    ties, so that it does not depend on which copies are here, and those of expired branches last;
    none if there is nothing to merge.
    """
    if not (accepted.diverged or signed.diverged or expired):
        return ()
    tips = {*accepted.candidates, *signed.candidates}
    prevs_of = {shape.id: shape.prevs for shape in shapes}
    left = [prev for tip in tips for prev in prevs_of[tip]]
    covered = set(left)
    while left:
        new = [prev for prev in prevs_of[left.pop()] if prev not in covered]
        covered.update(new)
        left += new
    order = {shape.id: shape.id if shape.rank is None else shape.rank for shape in shapes}
    open_ = sorted(tips - covered - {accepted.event}, key=order.__getitem__)
    others = sorted(set(expired) - covered - tips, key=order.__getitem__)
    return (accepted.event, *open_, *others)


def expired_branches(
    shapes: Sequence[EventShape[CID]], tip: Tip[CID], times: Mapping[CID, int]
) -> dict[CID, Expired]:
    """Return the uncovered events, other than candidates, of branches with expired data.

    Shapes are in causal order. `times` has the earliest proven time of each event that has one.
    """
    pruned = set(tip.pruned)
    covered = {prev for shape in shapes for prev in shape.prevs}
    below: dict[CID, Expired] = {}
    for shape in shapes:
        if shape.id in pruned:
            time, expires = times.get(shape.id), shape.expires
            if expires is not None and shape.valid and time is not None and time > expires:
                below[shape.id] = Expired(shape.id, expires, time)
            elif (last := next(filter(below.__contains__, shape.prevs), None)) is not None:
                below[shape.id] = below[last]
    done = covered.union(tip.candidates)
    return {cid: expired for cid, expired in below.items() if cid not in done}


class _Merge:
    """One merge: of the contents at some events of a stream."""

    def __init__(self, events: Sequence[Event], states: StreamStates, budget: Budget) -> None:
        self._events = events
        self._budget = budget
        self._states = states
        self._values: dict[CID, dict[str, Any]] = {}
        self.conflicts: list[str] = []

    def value_at(self, cid: CID) -> dict[str, Any]:
        """Content and metadata at an event, as one value."""
        if cid not in self._values:
            data = self._states.at(cid).data
            self._values[cid] = {"content": data.content, "metadata": dict(data.metadata)}
        return self._values[cid]

    def merged(self, tips: Sequence[CID]) -> dict[str, Any]:
        """Merge the values at events, the first of which prevails; notes the conflicts."""
        value = self.value_at(tips[0])
        bases = self._bases(tips)
        for tip in tips[1:]:
            base = self._base(bases[tip])
            value = self._three_way("", base, value, self.value_at(tip))
        return value

    def _bases(self, tips: Sequence[CID]) -> dict[CID, list[CID]]:
        """The last events that each tip has in common with those before it.

        One walk down, with a bit for each tip that covers an event. An event is common to a tip and
        one before it if the tip's bit is set, and a lower one is.
        """
        covering = dict.fromkeys([event.cid for event in self._events], 0)
        common_above = dict(covering)
        covering |= {tip: 1 << number for number, tip in enumerate(tips)}
        bases: dict[CID, list[CID]] = {tip: [] for tip in tips}
        for event in reversed(self._events):
            self._budget.spend(_COVERED * (1 + len(event.prevs)))
            covers = covering[event.cid]
            common = covers & (covers - 1)
            last = common & ~common_above[event.cid]
            while last:
                bit = last & -last
                bases[tips[bit.bit_length() - 1]].append(event.cid)
                last ^= bit
            for prev in event.prevs:
                covering[prev] |= covers
                common_above[prev] |= common
        return bases

    def _base(self, lasts: Sequence[CID]) -> Any:
        """The value to compare both sides to: at the last events that they have in common."""
        first, *others = sorted(lasts)
        value: Any = self.value_at(first)
        for last in others:
            value = self._agreed(value, self.value_at(last))
        return value

    def _three_way(self, path: str, base: Any, ours: Any, theirs: Any) -> Any:
        """Merge two values that were changed from `base`; ours where they conflict."""
        self._budget.spend(_COMPARISON + len(path))
        if equal_within(self._budget, ours, theirs) or equal_within(self._budget, base, theirs):
            return ours
        if equal_within(self._budget, base, ours):
            return theirs
        if isinstance(ours, dict) and isinstance(theirs, dict):
            bases = base if isinstance(base, dict) else {}
            names = dict.fromkeys((*ours, *theirs))
            of = {name: bases.get(name, _ABSENT) for name in names}
            if base is _UNKNOWN:
                of = dict.fromkeys(names, _UNKNOWN)
            merged = {
                name: self._three_way(
                    pointer(path, name),
                    of[name],
                    ours.get(name, _ABSENT),
                    theirs.get(name, _ABSENT),
                )
                for name in names
            }
            return {name: value for name, value in merged.items() if value is not _ABSENT}
        sides = (base, ours, theirs)
        if all(isinstance(side, list) for side in sides) and len(set(map(len, sides))) == 1:
            return [
                self._three_way(f"{path}/{index}", *items)
                for index, items in enumerate(zip(base, ours, theirs, strict=True))
            ]
        self._budget.spend(STEPS_PER_WRITTEN_BYTE * len(path))
        self.conflicts.append(path)
        return ours

    def _agreed(self, one: Any, other: Any) -> Any:
        """What two values have in common; `_UNKNOWN` where they differ."""
        if equal_within(self._budget, one, other):
            return one
        if isinstance(one, dict) and isinstance(other, dict):
            names = dict.fromkeys((*one, *other))
            return {
                name: self._agreed(one.get(name, _UNKNOWN), other.get(name, _UNKNOWN))
                for name in names
            }
        return _UNKNOWN


class _Chosen(NamedTuple):
    """A value that replaces what is at its choice; `_ABSENT` removes it."""

    value: Any


def _note(choices: dict[str, Any], path: Sequence[str], value: Any) -> None:
    """Note the value for a path in a tree of them, unless one above it has been noted."""
    *above, last = path
    for name in above:
        choices = choices.setdefault(name, {})
        if isinstance(choices, _Chosen):
            return
    choices[last] = _Chosen(value)


def _with(value: Any, choices: Mapping[str, Any], budget: Budget) -> Any:
    """A copy of a value with others at those choices whose containers exist."""
    if not isinstance(value, dict | list):
        return value
    budget.spend(_COMPARISON + len(value))
    copy: Any = value.copy()
    for name, choice in choices.items():
        key = _key(value, name)
        if not isinstance(choice, _Chosen):
            if key is not None:
                copy[key] = _with(value[key], choice, budget)
        elif isinstance(value, dict):
            copy[name] = choice.value
            if choice.value is _ABSENT:
                del copy[name]
        elif key is not None and choice.value is not _ABSENT:
            copy[key] = choice.value
    return copy


def _at(value: Any, path: str) -> tuple[Any, ...]:
    """The value that a JSON Pointer points to, alone in a tuple; nothing if there is none."""
    for token in parse_pointer(path):
        key = _key(value, token)
        if key is None:
            return ()
        value = value[key]
    return (value,)


def _key(value: Any, token: str) -> Any:
    """The key of a member that a value has, by a token of a JSON Pointer; None if it has none."""
    if isinstance(value, dict):
        return token if token in value else None
    if isinstance(value, list) and len(token) < 10 and token.isascii() and token.isdecimal():
        return int(token) if int(token) < len(value) else None
    return None
