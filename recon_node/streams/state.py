"""The state of a stream: its data after each of its events, and at its tip.

Theory of operation. The data of a stream is its *content* (JSON) and its *metadata* (`shouldIndex`
and `modelVersion`). The init event has the first content, if any; a data event changes the content
of its prev by a JSON Patch, and the metadata by its header; a time event changes nothing. An event
that merges branches builds on the first of its prevs: the choice is up to the aggregation layer
(CIP-145, "Abstract"), and its writer knows which content it patched.

A stream's controller can write events that are signed correctly and still make no sense: an
inapplicable patch, or content that breaks a rule of the stream's model. Such an event is
*rejected*: it has `validation_errors` and changes nothing, and the events after it build on the
data before it. Only the content of a rejected init event stays, for later events to repair, because
there is nothing before it. A time event is rejected along with the event that it anchors. None of
this raises an exception.

A data event with a wrong signature, which is delivered once a valid one covers it, is rejected as
well. No signature is checked here: the caller says which events have such a *fault*.

The tip of a stream's state is that of CIP-145 over the events that were accepted
(`accepted_tip`): a rejected event never moves it, so that clients always build on accepted data.

An event's data depends on the event, its history and its model alone, so that it is the same
everywhere: not on the order of arrival, on the tip, or on other branches. Of the model it depends
on one version, as in ceramic-one: the event of the model's stream that the document's header names
as `modelVersion`, else its init event. A later change of a model leaves its documents as they are.

Patches and checks are paid for by the events that cause them (`recon_node.streams.json_values`): an
event that takes more than its allowance is rejected, and a stream that takes more than its own
raises `BudgetError`. So does one whose content after each signed event is too much to write down.

A state is dropped when no remaining event builds on it: every patch copies the containers that it
changes, so all states of a long stream of a large document may take a thousand times the memory of
its events. The arguments of `StreamStates` say which of them to keep.

The names are those of ceramic-one: `event_states` of its pipeline, `StreamState` of its API.
"""

from __future__ import annotations

import json
from collections import ChainMap, Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, NamedTuple

import orjson

from recon_node.ceramic import Event, InitHeader, StreamId, StreamType
from recon_node.ipld import CID, dag_json
from recon_node.streams.graph import (
    EventShape,
    ForgottenError,
    StreamShapeError,
    heights,
    heights_above,
)
from recon_node.streams.json_patch import apply_patch, set_leaves
from recon_node.streams.json_values import (
    EVENT_STEPS,
    Budget,
    BudgetError,
    JsonPatchError,
    check_weight,
    measure,
    weigh_json,
)
from recon_node.streams.model_rules import (
    ContentChange,
    ContentRules,
    Definitions,
    event_metadata,
    once,
    version_of,
)
from recon_node.streams.tip import Tip, select_tip

MAX_DEFINITION: Final = 200_000
"""Weight of a model's definition that can be used, about bytes of JSON."""
_COMPILED: Final = 1_500
"""Steps for each byte of a model's definition that is compiled. Classes of Unicode characters are
what takes longest: about 6 µs for each byte of their patterns."""
_MAX_ERRORS: Final = 8
"""Validation errors kept for an event."""
_MAX_ERROR_LENGTH: Final = 300
"""Characters of a validation error."""
_MAX_KEPT: Final = 32 * 1024 * 1024
"""Weight of the states that are kept because they may be asked for."""


@dataclass(slots=True)  # frozen, it would take three times as long to make
class StreamData:
    """Content and metadata of a stream at one of its events. Other events share parts of them, so
    they must not be changed."""

    content: Any
    """JSON, nearly always an object; None if there is none."""
    metadata: Mapping[str, Any]
    weight: int = field(default=0, compare=False, repr=False)
    """Of the content, at most; see `recon_node.streams.json_patch`."""
    conforms: bool = field(default=True, compare=False, repr=False)
    """Whether the content was accepted; only that of a rejected init event was not."""
    _json: bytes | None = field(default=None, init=False, compare=False, repr=False)

    def to_json(self) -> bytes:
        """Return `data_json` of it, which is cached."""
        if self._json is None:
            self._json = data_json(dict(self.metadata), self.content)
        return self._json


def data_json(metadata: dict[str, Any], content: Any) -> bytes:
    """Return `{"metadata": ..., "content": ...}` as ceramic-one has it.

    Bytes and links are written as in DAG-JSON.
    """
    value = {"metadata": metadata, "content": content}
    try:
        return orjson.dumps(value, default=dag_json.default)
    except orjson.JSONEncodeError:  # an integer beyond 64 bits
        return _ENCODER.encode(value).encode()


_ENCODER: Final = json.JSONEncoder(
    ensure_ascii=False, check_circular=False, separators=(",", ":"), default=dag_json.default
)


class EventState(NamedTuple):
    """A stream's data after one of its events."""

    event_cid: CID
    height: int
    data: StreamData
    validation_errors: tuple[str, ...]
    """Why the event was rejected, in plain English; empty when it was accepted."""


@dataclass(frozen=True, slots=True)
class StreamState:
    """A stream's data at its tip, and its controller and dimensions."""

    id: StreamId
    event_cid: CID
    """The tip of the accepted events, which the next event should name as its prev."""
    controller: str
    dimensions: Mapping[str, bytes]
    data: StreamData
    validation_errors: Mapping[CID, tuple[str, ...]]
    """Of the events that were rejected, in causal order."""


@dataclass(frozen=True, slots=True)
class StateSummary:
    """What is known about the content after the earlier events of a stream.

    Attributes:
        header: of the stream.
        heights: of the events on which later ones may build.
        state: returns the state after one of them, or raises `ForgottenError`.
        rejected: as in `StreamStates`.
        size: bytes of the events.
        spent: steps of work that their content took.
        written: bytes of the content after each of them, but for time events.
        compiled: the versions of the model whose definitions they have paid for.
    """

    header: InitHeader
    heights: Mapping[CID, int]
    state: Callable[[CID], EventState]
    rejected: Mapping[CID, tuple[str, ...]]
    size: int
    spent: int
    written: int
    compiled: frozenset[CID | None]


class StreamStates:
    """The data of a stream: after each of its events, or after some of them.

    Args:
        events: all events of one stream, in any order; or the later ones, in causal order.
        definitions: of the stream's model; None if it is unknown. Ignored for models.
        keep: events (the tip, for example) whose states `all` keeps for `at`.
        summary: what is known about the earlier events, if only the later ones are given.
        faults: the events whose signature is wrong, and why it is; nearly always none.
        on_event: called before the state after an event is computed; may raise an exception.

    Raises:
        StreamShapeError: the events are not one whole stream.
        ForgottenError: an event builds on one that `summary` does not know. So do the methods.
        BudgetError: (the methods) the stream takes too much work.
    """

    def __init__(
        self,
        events: Iterable[Event],
        definitions: Definitions | None = None,
        *,
        keep: Collection[CID] = (),
        summary: StateSummary | None = None,
        faults: Mapping[CID, str] | None = None,
        on_event: Callable[[], None] | None = None,
    ) -> None:
        self._events = {event.cid: event for event in events}
        self._summary = summary
        prevs = {event.cid: event.prevs for event in self._events.values()}
        if summary is None:
            self._heights = heights(prevs)
            header = self._events[next(iter(self._heights))].header
            assert header is not None, "the first event in a causal order is the init event"
        else:
            self._heights = heights_above(summary.heights, prevs)
            header = summary.header
        self._header = header
        self._definitions = None if header.stream_type is StreamType.MODEL else definitions
        self._model = None if header.model is None else header.model.cid
        self._rules: dict[CID | None, ContentRules] = {}
        self._keep = frozenset(keep)
        self._faults = faults or {}
        self._on_event = on_event
        self._kept: dict[CID, EventState] = {}
        self._kept_weight = 0
        self._rejected: dict[CID, tuple[str, ...]] | None = None
        # Of time events, any number can be made by anybody.
        signed = [len(event.car) for event in self._events.values() if event.proof is None]
        self._size = sum(signed)
        self._size += 0 if summary is None else summary.size
        self._compiled = set() if summary is None else set(summary.compiled)
        self._paying = _Paying.of(self._size)
        self._unpaid = 0
        self._spent = 0
        self._written = 0

    @property
    def rejected(self) -> Mapping[CID, tuple[str, ...]]:
        """The rejected events, in causal order, and why; runs `all` unless it has run."""
        if self._rejected is None:
            deque(self.all(), maxlen=0)
        assert self._rejected is not None
        return self._rejected

    def all(self) -> Iterator[EventState]:
        """Yield the states after all events, in causal order: in the given one, if it is causal.

        Kept for `at` are the states that were asked for, and, as far as memory allows, those at
        which a merge or the tip of the accepted events may be: at fork points, and below rejected
        events.
        """
        paying = _Paying.of(self._size)
        rejected: dict[CID, tuple[str, ...]] = {}
        if self._summary is not None:
            paying.work.spend(self._summary.spent)
            paying.rows.spend(self._summary.written)
            rejected.update(self._summary.rejected)
        uses = Counter(chain.from_iterable([event.prevs for event in self._events.values()]))
        asked_for = self._keep.union([cid for cid, count in uses.items() if count > 1])
        states: dict[CID, EventState] = {}
        for cid, height in self._heights.items():
            event = self._events[cid]
            prevs, before = event.prevs, None
            if prevs:
                before = states.get(prevs[0]) or self._state_before(prevs[0])
            state = self._apply(event, height, before, paying)
            if cid in uses:
                states[cid] = state
            if cid in asked_for:
                self._keep_state(state, cid in self._keep)
            if errors := state.validation_errors:
                rejected[cid] = errors
            for prev in prevs:
                if errors and prev in states:
                    self._keep_state(states[prev], False)
                uses[prev] = left = uses[prev] - 1
                if not left:  # nothing builds on it any more
                    states.pop(prev, None)
            yield state
        self._rejected = rejected
        self._spent, self._written = paying.work.spent, paying.rows.spent

    def _keep_state(self, state: EventState, must: bool) -> None:
        """Keep a state for `at`, if it must be or if there is room."""
        if must or self._kept_weight + state.data.weight <= _MAX_KEPT:
            self._kept_weight += state.data.weight
            self._kept[state.event_cid] = state

    def at(self, cid: CID) -> EventState:
        """Return the state after the event `cid`: kept, or computed along its branch.

        All branches that are computed pay from one allowance, like all events in `all`.

        Raises:
            StreamShapeError: there is no such event.
        """
        if self._summary is not None:
            _ = self.rejected  # computes the few later events once
        branch: list[CID] = []
        start: CID | None = cid
        while start in self._events and start not in self._kept:
            branch.append(start)
            start = next(iter(self._events[start].prevs), None)
        state = self._kept.get(start) or self._state_before(start) if start else None
        for above in reversed(branch):
            event, height = self._events[above], self._heights[above]
            state = self._apply(event, height, state, self._paying)
        assert state is not None
        self._kept[cid] = state
        return state

    def with_event(self, event: Event, definitions: Definitions | None) -> StreamStates:
        """Return the states of the stream with one more event, by these definitions.

        The states before it are not computed again.
        """
        known: Mapping[CID, int] = self._heights
        if self._summary is not None:
            known = ChainMap(self._heights, {**self._summary.heights})
        summary = self._summarized(known, self.at, self.rejected)
        return StreamStates(
            [event], definitions, keep=[event.cid], summary=summary, on_event=self._on_event
        )

    def summary(self, cid: CID) -> StateSummary:
        """Return what the events after one event need, if none builds on any other."""
        state = self.at(cid)
        return self._summarized({cid: state.height}, _only(state), {})

    def _summarized(
        self,
        known: Mapping[CID, int],
        state: Callable[[CID], EventState],
        rejected: Mapping[CID, tuple[str, ...]],
    ) -> StateSummary:
        paid = self._size, self._spent, self._written, frozenset(self._compiled)
        return StateSummary(self._header, known, state, rejected, *paid)

    def _state_before(self, cid: CID) -> EventState:
        """The state after an event that is only known by the summary."""
        if self._summary is None:
            raise StreamShapeError(f"there is no event {cid}")
        return self._summary.state(cid)

    def _apply(
        self, event: Event, height: int, before: EventState | None, paying: _Paying
    ) -> EventState:
        """The state after `event`, which builds on `before` (None: it is the init event)."""
        if self._on_event is not None:
            self._on_event()
        if before is not None and event.proof is None:
            simple = self._apply_simple(event, height, before, paying)
            if simple is not None:
                return simple
        errors: list[str] = []
        if before is not None and event.cid in self._faults:
            data = before.data
            errors.append(self._faults[event.cid])
            paying.rows.spend(data.weight)
        elif before is not None and event.proof is not None:
            data = before.data
            if before.validation_errors:
                errors.append("the event that it anchors was rejected")
        else:
            work = Budget.of_event(len(event.car))
            if before is None:
                data = self._start(event, errors, work)
            else:
                data = self._change(event, before.data, errors, work)
            paying.work.spend(work.spent + data.weight + self._unpaid)
            paying.rows.spend(data.weight)
            self._unpaid = 0
        return EventState(event.cid, height, data, _in_brief(errors) if errors else ())

    def _apply_simple(
        self, event: Event, height: int, before: EventState, paying: _Paying
    ) -> EventState | None:
        """The state after a data event without a header whose patch is simple; else None.

        Nearly all data events are such, and this takes half of the time.
        """
        payload = event.payload
        if "header" in payload or event.cid in self._faults:
            return None
        data = self._simply_changed(before.data, payload["data"], paying)
        return None if data is None else EventState(event.cid, height, data, ())

    def _simply_changed(
        self, data: StreamData, patch: object, paying: _Paying
    ) -> StreamData | None:
        """Return the data after a simple patch; None if it is not simple.

        It sets members of the content's root, and the model asks for no more than that the content
        conforms to its schema; which it does.
        """
        rules = self._rules.get(self._version_at(data.metadata))
        schema = None if rules is None else rules.schema_alone
        if schema is None:
            return None
        after = set_leaves(data.content, patch, data.weight, EVENT_STEPS)
        if after is None:
            return None
        content, weight, steps = after
        price = schema.price_if_conforming(content, weight, EVENT_STEPS - steps)
        if price is None:
            return None
        paying.work.spend(steps + price + weight)
        paying.rows.spend(weight)
        return StreamData(content, data.metadata, weight)

    @classmethod
    def of_chain(
        cls, init: Event, patches: Iterable[object], size: int, definitions: Definitions | None
    ) -> list[bytes] | None:
        """Return the data as JSON after an init event, and after each of some data events.

        Args:
            init: which must have been signed rightly.
            patches: of the data events, each of which builds on the one before and has no header.
            size: bytes of all events.
            definitions: of the stream's model.

        Returns:
            None if an event is rejected or is not simple, or the stream takes too much work:
            `StreamStates` knows what to do then.
        """
        states = cls([init], definitions)
        paying = _Paying.of(size)
        try:
            state = states._apply(init, 0, None, paying)
            if state.validation_errors:
                return None
            data = state.data
            written = [data.to_json()]
            for patch in patches:
                changed = states._simply_changed(data, patch, paying)
                if changed is None:
                    return None
                data = changed
                written.append(data.to_json())
        except BudgetError:
            return None
        return written

    def _start(self, event: Event, errors: list[str], budget: Budget) -> StreamData:
        content, metadata, weight = event.data, event_metadata(event), 0
        try:
            weight = weigh_json(content)
            check_weight(weight)
            change = ContentChange(None, content, weight, is_init=True)
            errors += self._check(metadata, change, budget)
        except (JsonPatchError, BudgetError) as error:
            errors.append(str(error))
        content = content if weight else None  # nested too deep
        return StreamData(content, metadata, weight, conforms=not errors)

    def _change(
        self, event: Event, before: StreamData, errors: list[str], budget: Budget
    ) -> StreamData:
        start = {} if before.content is None else before.content
        try:
            content, weight, touched = apply_patch(start, event.data, before.weight, budget)
            changed = event_metadata(event)
            metadata = {**before.metadata, **changed} if changed else before.metadata
            if "modelVersion" in changed or before.content is None or not before.conforms:
                touched = None  # what it does not touch may never have been checked so
            change = ContentChange(before.content, content, weight, touched)
            errors += self._check(metadata, change, budget)
        except (JsonPatchError, BudgetError) as error:
            errors.append(str(error))
        return before if errors else StreamData(content, metadata, weight)

    def _check(
        self, metadata: Mapping[str, Any], change: ContentChange, budget: Budget
    ) -> list[str]:
        version = self._version_at(metadata)
        if (rules := self._rules.get(version)) is None:
            definition = None
            if self._definitions is not None and self._model is not None:
                if version not in self._definitions:
                    return [no_version(metadata.get("modelVersion"))]
                definition = self._definitions[version] if version else None
            if version not in self._compiled:
                self._unpaid += _COMPILED * _weigh_definition(definition)
                self._compiled.add(version)
            self._rules[version] = rules = ContentRules(self._header, definition)
        return rules.check(change, budget)

    def _version_at(self, metadata: Mapping[str, Any]) -> CID | None:
        """The version of the model that applies to content with this metadata, if models matter."""
        if self._definitions is None or self._model is None:
            return None
        return version_of(metadata, self._model)


@once
def _weigh_definition(definition: Any) -> int:
    return measure(definition, MAX_DEFINITION).weight


class _Paying(NamedTuple):
    """What a stream pays from while it is computed."""

    work: Budget
    rows: Budget

    @classmethod
    def of(cls, size: int) -> _Paying:
        return cls(Budget.of_stream(size), Budget.of_rows(size))


def no_version(version: object) -> str:
    """The error of an event whose version of the model is not here."""
    return f"its model has no version {version} here"


def _only(state: EventState) -> Callable[[CID], EventState]:
    """Return a lookup of states that knows this one."""

    def look_up(cid: CID) -> EventState:
        if cid != state.event_cid:
            raise ForgottenError(f"the content after the event {cid} was not kept")
        return state

    return look_up


def accepted_tip(shapes: Iterable[EventShape[CID]], rejected: Collection[CID]) -> Tip[CID]:
    """Select the tip of a stream's state: that of CIP-145 with rejected events as invalid.

    Raises:
        StreamShapeError: no event was accepted, or the events are not one whole stream.
    """
    return select_tip(s._replace(valid=False) if s.id in rejected else s for s in shapes)


def _in_brief(errors: list[str]) -> tuple[str, ...]:
    """The first errors, shortened: they quote what comes from the network."""
    return tuple(
        e if len(e) <= _MAX_ERROR_LENGTH else e[: _MAX_ERROR_LENGTH - 1] + "…"
        for e in errors[:_MAX_ERRORS]
    )


def definitions_of(
    states: Iterable[EventState], init: CID, versions: Collection[CID]
) -> dict[CID, Any]:
    """Return a model's definitions: after its init event, and after accepted `versions`.

    Returns:
        By event; an empty object for a definition that is missing or exceeds `MAX_DEFINITION`.
    """
    contents: dict[CID, Any] = {}
    for state in states:
        cid = state.event_cid
        if cid == init or (cid in versions and not state.validation_errors):
            content, is_usable = state.data.content, state.data.weight <= MAX_DEFINITION
            contents[cid] = content if is_usable and isinstance(content, dict) else {}
    return contents
