"""A stream's rows in each table: pure functions of the stream and its content.

A row is yielded without the columns that all rows of the stream share (`Stream.columns`).

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
    StreamStates,
    Tip,
    data_json,
    event_metadata,
)
from spark_sink.derive.streams import Entry, Row, Stream
from spark_sink.schema import UNPROCESSED


def conclusion_events(stream: Stream, after: int = 0) -> Iterator[Row]:
    """Yield the rows of `conclusion_events`, one per event after a position."""
    for entry in stream.entries:
        if entry.position <= after:
            continue
        yield {
            **_event_columns(entry),
            "data": _payload(entry.event),
            "previous": entry.event.prevs,
            "expires": entry.expires,
            "fault": entry.fault,
        }


def event_states(stream: Stream, states: StreamStates, after: int = 0) -> Iterator[Row]:
    """Yield the rows of `event_states`, one per event after a position."""
    entries = {entry.event.cid: entry for entry in stream.entries if entry.position > after}
    for state in states.all():
        if (entry := entries.get(state.event_cid)) is None:
            continue
        yield {
            **_event_columns(entry),
            "event_height": state.height,
            "data": state.data.to_json(),
            "validation_errors": state.validation_errors,
        }


def stream_tips(stream: Stream, after: int = 0) -> Iterator[Row]:
    """Yield the row of `stream_tips`."""
    tip = stream.tip
    yield {
        "stream_id": stream.id_text,
        **_tip_columns(stream, tip),
        "data_tip": tip.data_tip if tip else (),
        "anchored_at": tip.anchored_at if tip else (),
        "tips": tip.candidates if tip else (),
        "pruned": tip.pruned if tip else sorted(entry.event.cid for entry in stream.entries),
        "diverged": tip is not None and tip.diverged,
        "reasons": [_reason(decision) for decision in tip.reasons] if tip else (),
        "events": stream.events,
        "pending_time_events": stream.pending,
        "position": stream.entries[-1].position,
    }


def stream_states(stream: Stream, states: StreamStates, after: int = 0) -> Iterator[Row]:
    """Yield the row of `stream_states`."""
    tip = stream.state_tip(states)
    yield {
        "stream_id": stream.id_text,
        **_tip_columns(stream, tip),
        "data": None if tip is None else states.at(tip.event).data.to_json(),
        "position": stream.entries[-1].position,
    }


_OF_STREAMS: Final[dict[str, Callable[[Stream, int], Iterator[Row]]]] = {
    "conclusion_events": conclusion_events,
    "stream_tips": stream_tips,
}
_OF_STATES: Final[dict[str, Callable[[Stream, StreamStates, int], Iterator[Row]]]] = {
    "event_states": event_states,
    "stream_states": stream_states,
}
#: The tables that depend on models.
NEED_MODELS: Final = frozenset(_OF_STATES)


def rows_of(
    stream: Stream, names: Iterable[str], states: StreamStates | None, after: int = 0
) -> Iterator[tuple[str, Row]]:
    """Yield the rows of a stream in some derived tables, each with the name of its table.

    Args:
        stream: all of it, or its later events.
        names: of the tables.
        states: the stream's content; None if no table depends on models.
        after: rows that are events are yielded for later positions only.
    """
    for name in names:
        if name == UNPROCESSED:  # see `derive.aside`
            continue
        if name in _OF_STREAMS:
            rows = _OF_STREAMS[name](stream, after)
        else:
            assert states is not None
            rows = _OF_STATES[name](stream, states, after)
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
    kind = stream.kind_of(tip.event)
    return {"event_cid": tip.event, "event_type": kind, "event_height": tip.height}


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
    return data_json(event_metadata(event), event.data)
