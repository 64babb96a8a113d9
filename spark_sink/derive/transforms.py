"""A stream's rows in each table: pure functions of the stream and its content.

A row is yielded without the columns that all rows of the stream share (`FeedStream.columns`).

The content also depends on the stream's model. Rows change

- in `conclusion_events`: never;
- in `event_states`: when the model arrives, or a version of it that was lacking;
- in `stream_tips`: when the stream gets an event;
- in `stream_states`: when the stream gets an event, or as in `event_states`.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from recon_node.ceramic import Event
from recon_node.ipld import CID
from recon_node.streams import Decision, StreamData, Tip, data_json, event_metadata
from recon_node.streams.budget import TIME_ROW
from spark_sink.derive.feed_streams import Entry, FeedStream, Row
from spark_sink.schema import UNPROCESSED


def conclusion_events(stream: FeedStream, after: int = 0) -> Iterator[Row]:
    """Yield the rows of `conclusion_events`, one per event after a position."""
    for entry, shape in zip(stream.entries, stream.stream.shapes, strict=True):
        if entry.position <= after:
            continue
        row = _event_columns(entry)
        row["data"] = _payload(entry.event)
        row["previous"] = shape.prevs
        row["expires"] = shape.expires
        row["fault"] = entry.fault
        yield row


def event_states(stream: FeedStream, after: int = 0) -> Iterator[Row]:
    """Yield the rows of `event_states`, one per event after a position."""
    entries = {entry.event.cid: entry for entry in stream.entries if entry.position > after}
    for state in stream.stream.states.all():
        if (entry := entries.get(state.event_cid)) is None:
            continue
        row = _event_columns(entry)
        row["event_height"] = state.height
        row["data"] = _content_after(entry.event, state.data)
        row["validation_errors"] = state.validation_errors
        yield row


def stream_tips(stream: FeedStream, after: int = 0) -> Iterator[Row]:
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
        "events": stream.stream.count,
        "pending_time_events": stream.stream.pending,
        "position": stream.entries[-1].position,
    }


def stream_states(stream: FeedStream, after: int = 0) -> Iterator[Row]:
    """Yield the row of `stream_states`."""
    tip = stream.accepted_tip
    yield {
        "stream_id": stream.id_text,
        **_tip_columns(stream, tip),
        "data": None if tip is None else stream.stream.at(tip.event).data.to_json(),
        "position": stream.entries[-1].position,
    }


_ROWS: Final[dict[str, Callable[[FeedStream, int], Iterator[Row]]]] = {
    "conclusion_events": conclusion_events,
    "event_states": event_states,
    "stream_tips": stream_tips,
    "stream_states": stream_states,
}
#: The tables that depend on models.
NEED_MODELS: Final = frozenset({"event_states", "stream_states"})


def rows_of(
    stream: FeedStream, names: Iterable[str], after: int = 0
) -> Iterator[tuple[str, Iterator[Row]]]:
    """Yield the names of some derived tables, each with the rows of a stream in it.

    Args:
        stream: all of it, or its later events; with the definitions of its model, if a table
            depends on them.
        names: of the tables.
        after: rows that are events are yielded for later positions only.
    """
    for name in names:
        if name != UNPROCESSED:  # see `derive.feed_streams`
            yield name, _ROWS[name](stream, after)


def _event_columns(entry: Entry) -> Row:
    event = entry.event
    return {
        "conclusion_event_order": entry.position,
        "event_cid": event.cid,
        "event_type": event.kind._value_,  # `.value` takes ten times as long
        "before": entry.time,
        "chain_id": entry.chain_id,
    }


def _tip_columns(stream: FeedStream, tip: Tip[CID] | None) -> Row:
    if tip is None:
        return {"event_cid": None, "event_type": None, "event_height": None}
    kind = stream.stream.kind_of(tip.event)
    return {"event_cid": tip.event, "event_type": kind, "event_height": tip.height}


def _reason(decision: Decision[CID]) -> Row:
    return {
        "rule": decision.rule.value,
        "winner": decision.winner,
        "rivals": decision.rivals,
    }


def _content_after(event: Event, data: StreamData) -> bytes:
    """Return the content after an event; null after a time event if it is large.

    Anybody can add any number of time events to a stream, so they must not multiply its content.
    """
    if event.proof is not None and data.weight > TIME_ROW:
        return data_json(dict(data.metadata), None)
    return data.to_json()


def _payload(event: Event) -> bytes | None:
    """Return an event's data in ceramic-one's format; None for a time event.

    That is the content of an init event, or the JSON Patch of a data event.
    """
    if event.proof is not None:
        return None
    return data_json(event_metadata(event), event.data)
