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

The names are those of ceramic-one: `event_states` of its pipeline, `StreamState` of its API.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from recon_node.ceramic import Event, EventKind, InitHeader, StreamId, validity_of
from recon_node.ipld import CID
from recon_node.lattice.dag import StreamEvent, StreamShapeError, heights_by_prevs
from recon_node.lattice.json_patch import JsonPatchError, apply_patch, weigh
from recon_node.lattice.model_rules import check_content

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

    def to_json(self) -> bytes:
        """`{"metadata": ..., "content": ...}` as ceramic-one has it; bytes and links in the content
        are written as in DAG-JSON."""
        value = {"metadata": dict(self.metadata), "content": self.content}
        return json.dumps(
            value, ensure_ascii=False, separators=(",", ":"), default=_dag_json
        ).encode()


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


def event_states(events: Iterable[Event], model: Any = None) -> Iterator[EventState]:
    """The data of a stream after each of its events, in causal order.

    Args:
        events: all events of one stream, in any order.
        model: the content of the stream of the stream's model, by which its documents are judged;
            None when it is not known.

    Raises:
        StreamShapeError: the events are not one whole stream.
    """
    stream = _Stream(events, model)
    uses = Counter(event.prevs[0] for event in stream.events.values() if event.prevs)
    data: dict[CID, StreamData] = {}
    for cid, height in stream.heights.items():
        event = stream.events[cid]
        state = stream.apply(event, height, data[event.prevs[0]] if event.prevs else None)
        if event.prevs:
            uses[event.prevs[0]] -= 1
            if not uses[event.prevs[0]]:  # no one builds on it any more
                del data[event.prevs[0]]
        if uses[cid]:
            data[cid] = state.data
        yield state


def branch_states(events: Iterable[Event], tip: CID, model: Any = None) -> Iterator[EventState]:
    """The data of a stream after each of the events that lead to that of `tip`, the init first.

    The arguments are those of `event_states`; `tip` is one of the events, as `select_tip` says.

    Raises:
        StreamShapeError: the events are not one whole stream, or `tip` is none of them.
    """
    stream = _Stream(events, model)
    if tip not in stream.events:
        raise StreamShapeError(f"event {tip} is not there")
    branch = [stream.events[tip]]
    while branch[-1].prevs:
        branch.append(stream.events[branch[-1].prevs[0]])
    data = None
    for event in reversed(branch):
        state = stream.apply(event, stream.heights[event.cid], data)
        yield state
        data = state.data


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


class _Stream:
    """The events of one stream, and what each does to the data that it builds on."""

    def __init__(self, events: Iterable[Event], model: Any) -> None:
        self.events = {event.cid: event for event in events}
        self.heights = heights_by_prevs({cid: event.prevs for cid, event in self.events.items()})
        header = self.events[next(iter(self.heights))].header
        assert header is not None, "the first event in a causal order is the init event"
        self._header = header
        self._model = model

    def apply(self, event: Event, height: int, before: StreamData | None) -> EventState:
        """The state after `event`, which builds on `before` (None: it is the init event)."""
        if before is None:
            data, errors = self._start(event)
        elif event.kind is EventKind.TIME:
            data, errors = before, []
        else:
            data, errors = self._change(event, before)
        return EventState(event.cid, height, data, _in_brief(errors))

    def _start(self, event: Event) -> tuple[StreamData, list[str]]:
        content = event.data
        errors = check_content(self._header, self._model, None, content, is_init=True)
        if not isinstance(content, dict):
            content = None
        return StreamData(
            content, _metadata(event.payload.get("header")), weigh(content)[0]
        ), errors

    def _change(self, event: Event, before: StreamData) -> tuple[StreamData, list[str]]:
        start = {} if before.content is None else before.content
        try:
            content, weight = apply_patch(start, event.data, before.weight)
        except JsonPatchError as error:
            return before, [str(error)]
        errors = check_content(self._header, self._model, before.content, content, is_init=False)
        if errors:
            return before, errors
        metadata = {**before.metadata, **_metadata(event.payload.get("header"))}
        return StreamData(content, metadata, weight), []


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
