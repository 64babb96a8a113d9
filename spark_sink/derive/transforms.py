"""A stream's rows in each table: pure functions of the stream and its content.

The content (`StreamStates`) also depends on the stream's model. Rows change

- in `conclusion_events`: never;
- in `event_states`: when the model gets an event;
- in `stream_tips`: when the stream gets an event;
- in `stream_states`: when the stream or its model gets an event.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from recon_node.ceramic import Event, EventKind
from recon_node.ipld import CID
from recon_node.streams import (
    Decision,
    Definitions,
    StreamData,
    StreamStates,
    Tip,
    event_metadata,
)
from spark_sink.derive.streams import Entry, Row, Stream


def conclusion_events(stream: Stream) -> Iterator[Row]:
    """Yield the rows of `conclusion_events`, one per event."""
    columns = stream.columns
    for entry in stream.entries:
        yield {
            **columns,
            **_event_columns(entry),
            "data": _payload(entry.event),
            "previous": entry.event.prevs,
            "expires": entry.expires,
        }


def event_states(stream: Stream, states: StreamStates) -> Iterator[Row]:
    """Yield the rows of `event_states`, one per event."""
    columns = stream.columns
    entries = {entry.event.cid: entry for entry in stream.entries}
    for state in states.all():
        yield {
            **columns,
            **_event_columns(entries[state.event_cid]),
            "event_height": state.height,
            "data": state.data.to_json(),
            "validation_errors": state.validation_errors,
        }


def stream_tips(stream: Stream) -> Iterator[Row]:
    """Yield the row of `stream_tips`."""
    tip = stream.tip
    kinds = [entry.event.kind for entry in stream.entries]
    pending = [e for e in stream.entries if e.event.kind is EventKind.TIME and e.time is None]
    yield {
        **stream.columns,
        "stream_id": str(stream.stream_id),
        **_tip_columns(stream, tip),
        "data_tip": tip.data_tip if tip else (),
        "anchored_at": tip.anchored_at if tip else (),
        "tips": tip.candidates if tip else (),
        "pruned": tip.pruned if tip else sorted(entry.event.cid for entry in stream.entries),
        "diverged": tip is not None and tip.diverged,
        "reasons": [_reason(decision) for decision in tip.reasons] if tip else (),
        "events": len(kinds),
        "pending_time_events": len(pending),
        "position": stream.entries[-1].position,
    }


def stream_states(stream: Stream, states: StreamStates) -> Iterator[Row]:
    """Yield the row of `stream_states`."""
    tip = stream.state_tip(states)
    yield {
        **stream.columns,
        "stream_id": str(stream.stream_id),
        **_tip_columns(stream, tip),
        "data": None if tip is None else states.at(tip.event).data.to_json(),
        "position": stream.entries[-1].position,
    }


_OF_STREAMS: Final[dict[str, Callable[[Stream], Iterator[Row]]]] = {
    "conclusion_events": conclusion_events,
    "stream_tips": stream_tips,
}
_OF_STATES: Final[dict[str, Callable[[Stream, StreamStates], Iterator[Row]]]] = {
    "event_states": event_states,
    "stream_states": stream_states,
}
#: The tables that depend on models.
NEED_MODELS: Final = frozenset(_OF_STATES)


def rows_of(
    stream: Stream, names: Iterable[str], definitions: Definitions | None
) -> Iterator[tuple[str, Row]]:
    """Yield the rows of a stream in some derived tables, each with the name of its table.

    `definitions` are those of the stream's model; None if unknown or not needed.
    """
    states: StreamStates | None = None
    for name in names:
        if name in _OF_STREAMS:
            rows = _OF_STREAMS[name](stream)
        else:
            states = states or stream.states(definitions)
            rows = _OF_STATES[name](stream, states)
        for row in rows:
            yield name, row


def _event_columns(entry: Entry) -> Row:
    event = entry.event
    return {
        "conclusion_event_order": entry.position,
        "event_cid": event.cid,
        "event_type": event.kind.value,
        "before": entry.time,
        "chain_id": entry.chain_id,
    }


def _tip_columns(stream: Stream, tip: Tip[CID] | None) -> Row:
    if tip is None:
        return {"event_cid": None, "event_type": None, "event_height": None}
    kind = next(e.event.kind for e in reversed(stream.entries) if e.event.cid == tip.event)
    return {"event_cid": tip.event, "event_type": kind.value, "event_height": tip.height}


def _reason(decision: Decision[CID]) -> Row:
    return {
        "rule": decision.rule.value,
        "winner": decision.winner,
        "rivals": decision.rivals,
    }


def _payload(event: Event) -> bytes | None:
    """Return an event's data in ceramic-one's format; None for a time event.

    That is the content of an init event, or the JSON Patch of a data event.
    """
    if event.kind is EventKind.TIME:
        return None
    return StreamData(event.data, event_metadata(event)).to_json()
