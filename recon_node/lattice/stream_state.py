"""What a stream says: its data after each of its events, and at its tip.

Theory of operation. The data of a stream is its *content* (JSON) and its *metadata* (`shouldIndex`
and `modelVersion`). The init event has the first content, or none; a data event changes that of the
event that it builds on by a JSON Patch, and its header the metadata; a time event changes nothing.
An event that merges branches builds on the first of its prevs: which one is up to the aggregation
layer (CIP-145, "Abstract"), and its writer knows which content it patched.

Whoever controls a stream can write valid events that make no sense: a patch that is none, that does
not fit, that breaks a rule of the stream's model. Such an event has `validation_errors` and changes
nothing; what follows builds on the data that was there before it. There are no exceptions for it.

An event's data depends on the event, its history and its model alone, so that it is the same
everywhere: not on the order of arrival, on the tip, or on other branches.

What is computed is let go as soon as no event is left that builds on it: every patch makes new the
containers that it changes, so that to hold the data after each event of a long stream of a large
document may take a thousand times the memory of its events. Whoever needs some of it again says of
which events (`StreamStates`).

The names are those of ceramic-one: `event_states` of its pipeline, `StreamState` of its API.
"""

from __future__ import annotations

import base64
import json
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from recon_node.ceramic import Event, EventKind, InitHeader, StreamId, validity_of
from recon_node.ipld import CID
from recon_node.lattice.dag import StreamEvent, StreamShapeError, heights_by_prevs
from recon_node.lattice.json_patch import JsonPatchError, apply_patch, weigh
from recon_node.lattice.model_rules import ContentRules

_METADATA: Final = ("shouldIndex", "modelVersion")
_ERRORS: Final = 8
"""Validation errors of an event that are kept."""
_MAX_ERROR: Final = 300
"""Characters of one."""


@dataclass(frozen=True, slots=True)
class StreamData:
    """Content and metadata of a stream at one of its events. Never change what is in them: the
    data of other events shares it."""

    content: Any
    """A JSON object, None where there is none yet."""
    metadata: Mapping[str, Any]
    weight: int = field(default=0, compare=False, repr=False)
    """What the content weighs at most; see `recon_node.lattice.json_patch`."""
    _json: bytes | None = field(default=None, init=False, compare=False, repr=False)

    def to_json(self) -> bytes:
        """`{"metadata": ..., "content": ...}` as ceramic-one has it; bytes and links in the content
        are written as in DAG-JSON. Written once, for all events that share the data."""
        if self._json is None:
            value = {"metadata": dict(self.metadata), "content": self.content}
            object.__setattr__(self, "_json", _ENCODER.encode(value).encode())
        assert self._json is not None
        return self._json


@dataclass(frozen=True, slots=True)
class EventState:
    """A stream's data after one of its events."""

    event_cid: CID
    height: int
    data: StreamData
    validation_errors: tuple[str, ...]
    """Why the event changed nothing, for people; empty when all is well."""


@dataclass(frozen=True, slots=True)
class StreamState:
    """A stream's data at its tip, and whose it is."""

    id: StreamId
    event_cid: CID
    """The tip: what the next event should name as its prev."""
    controller: str
    dimensions: Mapping[str, bytes]
    data: StreamData
    validation_errors: Mapping[CID, tuple[str, ...]]
    """Of the events that led to the data, those that changed nothing."""


class StreamStates:
    """The data of a stream: after each of its events, or after some of them.

    Args:
        events: all events of one stream, in any order.
        model: the content of the stream of the stream's model, by which its documents are judged;
            None when it is not known.
        keep: events whose states `all` remembers for `at`, when it comes by; the tip, say.

    Raises:
        StreamShapeError: the events are not one whole stream.
    """

    def __init__(
        self, events: Iterable[Event], model: Any = None, *, keep: Collection[CID] = ()
    ) -> None:
        self._events = {event.cid: event for event in events}
        self._heights = heights_by_prevs({e.cid: e.prevs for e in self._events.values()})
        header = self._events[next(iter(self._heights))].header
        assert header is not None, "the first event in a causal order is the init event"
        self._rules = ContentRules(header, model)
        self._keep = frozenset(keep)
        self._kept: dict[CID, EventState] = {}

    def all(self) -> Iterator[EventState]:
        """The states after all events, in causal order: the order given, where that is one."""
        uses = Counter(event.prevs[0] for event in self._events.values() if event.prevs)
        data: dict[CID, StreamData] = {}
        for cid, height in self._heights.items():
            event = self._events[cid]
            before = None
            if event.prevs:
                prev = event.prevs[0]
                before = data[prev]
                uses[prev] -= 1
                if not uses[prev]:  # no one builds on it any more
                    del data[prev]
            state = self._apply(event, height, before)
            if cid in uses:
                data[cid] = state.data
            if cid in self._keep:
                self._kept[cid] = state
            yield state

    def branch(self, cid: CID) -> Iterator[EventState]:
        """The states after the events that lead to the data of the event `cid`, the init first.

        Raises:
            StreamShapeError: there is no such event.
        """
        if cid not in self._events:
            raise StreamShapeError(f"event {cid} is not there")
        branch = [self._events[cid]]
        while branch[-1].prevs:
            branch.append(self._events[branch[-1].prevs[0]])
        data = None
        for event in reversed(branch):
            state = self._apply(event, self._heights[event.cid], data)
            yield state
            data = state.data

    def at(self, cid: CID) -> EventState:
        """The state after the event `cid`: remembered if `all` came by and it is one to keep, else
        computed along its branch.

        Raises:
            StreamShapeError: there is no such event.
        """
        if cid in self._kept:
            return self._kept[cid]
        return deque(self.branch(cid), maxlen=1).pop()

    def _apply(self, event: Event, height: int, before: StreamData | None) -> EventState:
        """The state after `event`, which builds on `before` (None: it is the init event)."""
        errors: list[str] = []
        if before is None:
            data = self._start(event, errors)
        elif event.kind is EventKind.TIME:
            data = before
        else:
            data = self._change(event, before, errors)
        return EventState(event.cid, height, data, _in_brief(errors) if errors else ())

    def _start(self, event: Event, errors: list[str]) -> StreamData:
        content = event.data
        errors += self._rules.check(None, content, is_init=True)
        if not isinstance(content, dict):
            content = None
        return StreamData(content, _metadata(event.payload.get("header")), weigh(content)[0])

    def _change(self, event: Event, before: StreamData, errors: list[str]) -> StreamData:
        start = {} if before.content is None else before.content
        try:
            content, weight = apply_patch(start, event.data, before.weight)
        except JsonPatchError as error:
            errors.append(str(error))
            return before
        errors += self._rules.check(before.content, content, is_init=False)
        if errors:
            return before
        header = event.payload.get("header")
        metadata = {**before.metadata, **_metadata(header)} if header else before.metadata
        return StreamData(content, metadata, weight)


def event_states(events: Iterable[Event], model: Any = None) -> Iterator[EventState]:
    """The data of a stream after each of its events, as `StreamStates.all` has it.

    Raises:
        StreamShapeError: the events are not one whole stream.
    """
    yield from StreamStates(events, model).all()


def branch_states(events: Iterable[Event], tip: CID, model: Any = None) -> Iterator[EventState]:
    """The data of a stream after each of the events that lead to that of `tip`, the init first, as
    `StreamStates.branch` has it; `tip` is one of the events, as `select_tip` says.

    Raises:
        StreamShapeError: the events are not one whole stream, or `tip` is none of them.
    """
    yield from StreamStates(events, model).branch(tip)


def stream_state(header: InitHeader, init: CID, branch: Iterable[EventState]) -> StreamState:
    """The state of a stream, from the states of the branch that leads to its tip.

    Args:
        header: of the stream's init event.
        init: the CID of the init event.
        branch: as `branch_states` gives them.

    Raises:
        ValueError: the branch is empty.
    """
    errors: dict[CID, tuple[str, ...]] = {}
    last: EventState | None = None
    for last in branch:
        if last.validation_errors:
            errors[last.event_cid] = last.validation_errors
    if last is None:
        raise ValueError("a branch has at least the init event")
    return StreamState(
        id=StreamId(header.stream_type, init),
        event_cid=last.event_cid,
        controller=header.controller,
        dimensions=dimensions(header),
        data=last.data,
        validation_errors=errors,
    )


def dimensions(header: InitHeader) -> dict[str, bytes]:
    """The dimensions of a stream, as ceramic-one has them: empty where the header has none."""
    return {
        "model": header.model.to_bytes(),
        "controller": header.controller.encode(),
        "context": header.context or b"",
        "unique": header.unique or b"",
    }


def shape_of(event: Event, *, time: int | None = None) -> StreamEvent[CID]:
    """An event as `select_tip` takes it: valid, since only valid events are delivered.

    `time` is the block time that a time event proves, if it was looked up.
    """
    expires = validity_of(event).expires
    return StreamEvent(event.cid, event.kind.value, event.prevs, time, True, expires)


def _in_brief(errors: list[str]) -> tuple[str, ...]:
    """The first errors, each at a length for people: what they name comes from the network."""
    return tuple(e if len(e) <= _MAX_ERROR else e[: _MAX_ERROR - 1] + "…" for e in errors[:_ERRORS])


def _metadata(header: Any) -> dict[str, Any]:
    """What of an event's header is metadata; links as text."""
    if not isinstance(header, dict):
        return {}
    found = {name: header[name] for name in _METADATA if name in header}
    return {name: str(value) if isinstance(value, CID) else value for name, value in found.items()}


def _dag_json(value: Any) -> Any:
    if isinstance(value, CID):
        return {"/": str(value)}
    if isinstance(value, bytes):
        return {"/": {"bytes": base64.b64encode(value).decode().rstrip("=")}}
    raise TypeError(f"{type(value).__name__} is no DAG-CBOR value")


_ENCODER: Final = json.JSONEncoder(
    ensure_ascii=False, check_circular=False, separators=(",", ":"), default=_dag_json
)
