"""A stream's rows in each table: pure functions of the stream and its content.

A row is a tuple of the values in the table's own columns (`own_columns`), in the order of the
schema, which the decorator `_columns` checks. The other columns have one value for all rows of a
stream (`FeedStream.columns`). Rows are not objects of a class, because there is one for each event
in each table. The row of an event begins with its position and its CID.

The content also depends on the stream's model. Rows change

- in `conclusion_events`: never;
- in `event_states`: when the model arrives, or a version of it that was lacking;
- in `stream_tips`: when the stream gets an event;
- in `stream_states`: when the stream gets an event, or as in `event_states`.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from recon_node import __version__
from recon_node.ceramic import Event, EventKind
from recon_node.ceramic.checked_events import Chain
from recon_node.ipld import CID
from recon_node.streams import Decision, StreamData, Tip, data_json, event_metadata
from recon_node.streams.json_values import MAX_TIME_ROW
from spark_sink.derive.feed_streams import FeedStream, Row
from spark_sink.schema import STREAM_COLUMNS, TABLES, UNPROCESSED

INIT: Final = EventKind.INIT.value
DATA: Final = EventKind.DATA.value


def own_columns(name: str) -> tuple[str, ...]:
    """Return the names of the columns in a table's rows."""
    return tuple(column for column in TABLES[name].schema.names if column not in STREAM_COLUMNS)


MakeRows = Callable[[FeedStream, int], Iterator[Row]]
"""Makes the rows of a stream in one table."""


def _columns(*names: str) -> Callable[[MakeRows], MakeRows]:
    """Check that the rows of a function have these columns: those of the table of its name."""

    def checked(make: MakeRows) -> MakeRows:
        table = make.__name__
        assert names == own_columns(table), f"rows of {table} have {own_columns(table)}"
        return make

    return checked


@_columns(
    *("conclusion_event_order", "event_cid", "event_type", "data", "previous", "before"),
    *("chain_id", "expires", "fault"),
)
def conclusion_events(stream: FeedStream, after: int = 0) -> Iterator[Row]:
    """Yield the rows of `conclusion_events`, one per event after a position."""
    if stream.chain is not None:
        yield from _conclusions_of_chain(stream, stream.chain, after)
        return
    for entry, shape in zip(stream.entries, stream.as_stream.shapes, strict=True):
        position, event, time, chain_id, fault = entry
        if position <= after:
            continue
        kind = event.kind._value_  # `.value` takes ten times as long
        data = _payload(event)
        yield position, event.cid, kind, data, shape.prevs, time, chain_id, shape.expires, fault


@_columns(
    *("conclusion_event_order", "event_cid", "event_type", "event_height", "data"),
    *("validation_errors", "before", "chain_id"),
)
def event_states(stream: FeedStream, after: int = 0) -> Iterator[Row]:
    """Yield the rows of `event_states`, one per event after a position."""
    if stream.chain is not None and (contents := stream.contents) is not None:
        kind = INIT
        rows = zip(stream.positions, stream.chain.cids, contents, strict=True)
        for height, (position, cid, content) in enumerate(rows):
            if position > after:
                yield position, cid, kind, height, content, (), None, None
            kind = DATA
        return
    entries = {entry.event.cid: entry for entry in stream.entries if entry.position > after}
    for cid, height, data, errors in stream.as_stream.states.all():
        if (entry := entries.get(cid)) is None:
            continue
        position, event, time, chain_id, _ = entry
        content, kind = _content_after(event, data), event.kind._value_
        yield position, cid, kind, height, content, errors, time, chain_id


@_columns(
    *("stream_id", "event_cid", "event_type", "event_height", "data_tip", "anchored_at", "tips"),
    *("pruned", "diverged", "reasons", "events", "pending_time_events", "position"),
)
def stream_tips(stream: FeedStream, after: int = 0) -> Iterator[Row]:
    """Yield the row of `stream_tips`."""
    if stream.chain is not None:
        last = (stream.chain.cids[-1],)
        count = len(stream.chain.cids)
        of_tip = _tip_of_chain(stream.chain)
        branches = last, (), last, ()  # its data, no anchor, the only candidate
        yield stream.id_text, *of_tip, *branches, False, [], count, 0, stream.last_position
        return
    tip = stream.tip
    yield (
        stream.id_text,
        *_tip_columns(stream, tip),
        tip.data_tip if tip else (),
        tip.anchored_at if tip else (),
        tip.candidates if tip else (),
        tip.pruned if tip else sorted(entry.event.cid for entry in stream.entries),
        tip is not None and tip.diverged,
        [_reason(decision) for decision in tip.reasons] if tip else (),
        stream.as_stream.count,
        stream.as_stream.pending,
        stream.entries[-1].position,
    )


@_columns("stream_id", "event_cid", "event_type", "event_height", "data", "position")
def stream_states(stream: FeedStream, after: int = 0) -> Iterator[Row]:
    """Yield the row of `stream_states`."""
    if stream.chain is not None and stream.contents is not None:
        of_tip, content = _tip_of_chain(stream.chain), stream.contents[-1]
        yield stream.id_text, *of_tip, content, stream.last_position
        return
    tip = stream.accepted_tip
    data = None if tip is None else stream.as_stream.at(tip.event).data.to_json()
    yield stream.id_text, *_tip_columns(stream, tip), data, stream.entries[-1].position


MAKE_ROWS: Final[Mapping[str, MakeRows]] = {
    "conclusion_events": conclusion_events,
    "event_states": event_states,
    "stream_tips": stream_tips,
    "stream_states": stream_states,
}
"""What makes the rows of each table that is about events: all but `unprocessed_streams`."""
NEED_MODELS: Final = frozenset({"event_states", "stream_states"})
"""The tables that depend on models."""


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
        if name in MAKE_ROWS:
            yield name, MAKE_ROWS[name](stream, after)


def unprocessed(stream_id: str, position: int, reason: str | None) -> Row:
    """Return the row of a stream that is set aside; without a reason, of one taken up again."""
    return stream_id, reason, int(time.time()), __version__, position


assert own_columns(UNPROCESSED) == ("stream_id", "reason", "since", "version", "position")


def _conclusions_of_chain(stream: FeedStream, chain: Chain, after: int) -> Iterator[Row]:
    kind, metadata = INIT, event_metadata(chain.init)
    prevs: tuple[bytes, ...] = ()
    for position, cid, data in zip(stream.positions, chain.cids, chain.data, strict=True):
        if position > after:
            content = data_json(metadata, data)
            yield position, cid, kind, content, prevs, None, None, None, None
        kind, metadata, prevs = DATA, {}, (cid,)


def _tip_of_chain(chain: Chain) -> Row:
    """Return the tip of a chain, which is its last event, its type and its height."""
    height = len(chain.cids) - 1
    return chain.cids[-1], DATA if height else INIT, height


def _tip_columns(stream: FeedStream, tip: Tip[CID] | None) -> Row:
    """Return the tip's event, its type and its height."""
    if tip is None:
        return None, None, None
    return tip.event, stream.as_stream.kind_of(tip.event), tip.height


def _reason(decision: Decision[CID]) -> dict[str, Any]:
    return {"rule": decision.rule.value, "winner": decision.winner, "rivals": decision.rivals}


def _content_after(event: Event, data: StreamData) -> bytes:
    """Return the content after an event; null after a time event if it is large.

    Anybody can add any number of time events to a stream, so they must not multiply its content.
    """
    if event.proof is not None and data.weight > MAX_TIME_ROW:
        return data_json(dict(data.metadata), None)
    return data.to_json()


def _payload(event: Event) -> bytes | None:
    """Return an event's data in ceramic-one's format; None for a time event.

    That is the content of an init event, or the JSON Patch of a data event.
    """
    if event.proof is not None:
        return None
    return data_json(event_metadata(event), event.data)
