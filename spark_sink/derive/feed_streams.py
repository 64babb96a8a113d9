"""Converts rows of `raw_events` to streams, whose events are read once for all tables.

Summaries of long streams are kept in memory from one short step to the next (`SummaryCache`). A
stream of 50,000 events takes seconds to read back, and nearly always its next event builds on its
tip. `recon_node.streams.StreamSummary` is what such an event needs of the others. Nothing depends
on a summary being here: without one, after a start for example, the stream is read whole once.

One bad stream never stops a table: it is set aside (`SetAsideStreams`). A stream of which rows
cannot be computed (it takes more work than its events pay for, or meets a fault of this software)
is left out of the derived tables from then on, and gets a row in the table `unprocessed_streams`
that says why. Another version of the software takes it up again: its rows are computed from all of
its events.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, groupby
from operator import attrgetter
from typing import Any, Final, NamedTuple

import pyarrow as pa

from recon_node import __version__
from recon_node.ceramic import (
    CeramicError,
    Event,
    InitHeader,
    StreamId,
    StreamType,
    parse_event,
)
from recon_node.ceramic.header import METAMODEL
from recon_node.ipld import CID
from recon_node.latest import Remembered
from recon_node.streams import (
    Definitions,
    ForgottenError,
    Stream,
    StreamShapeError,
    StreamSummary,
    Tip,
    statements_of,
)
from spark_sink.derive.watchdog import killed_if_slow
from spark_sink.errors import SinkError, TablesError
from spark_sink.schema import PARTITION_COLUMN, partition_of
from spark_sink.tables.delta import FeedTable
from spark_sink.tables.raw_files import ordered_slices

Row = dict[str, Any]

# Bytes of a stream's events whose payloads are kept decoded.
_MAX_DECODED: Final = 1024 * 1024
# Bytes of a dimension that is in each row of an event.
_REPEATED: Final = 1024
_ROWS_AT_ONCE: Final = 4096
# The init event of a model names the metamodel as its own model.
_MODEL_HEADER: Final = METAMODEL.to_bytes()


class Entry(NamedTuple):
    """An event with its columns in the feed.

    Attributes:
        time: block time of a time event's anchor in Unix seconds; None if unknown.
        fault: why the event's signature is wrong; None for nearly all.
    """

    position: int
    event: Event
    time: int | None
    chain_id: str | None
    fault: str | None


@dataclass(frozen=True)
class FeedStream:
    """A stream, complete up to some feed position, with its entries in feed order.

    There is one entry for each statement (`recon_node.streams.graph`), that of the copy which
    was delivered first: so further copies change no row.

    The entries may be the later ones only, after the `StreamSummary` of those before. If that is
    not enough to answer a question, `ForgottenError` is raised.
    """

    cid: bytes
    entries: tuple[Entry, ...]
    stream: Stream

    @property
    def header(self) -> InitHeader:
        """That of the init event."""
        return self.stream.header

    @property
    def stream_id(self) -> StreamId:
        """The StreamID."""
        return self.stream.id

    @cached_property
    def id_text(self) -> str:
        """The StreamID as text."""
        return str(self.stream_id)

    @cached_property
    def is_model(self) -> bool:
        """Whether the stream is a model."""
        return self.header.stream_type is StreamType.MODEL

    @cached_property
    def model(self) -> bytes | None:
        """The stream CID of the stream's model; None if it has none."""
        return None if self.header.model is None else bytes(self.header.model.cid)

    @cached_property
    def size(self) -> int:
        """Bytes of the entries' events."""
        return sum(len(entry.event.car) for entry in self.entries)

    def define(self, definitions: Definitions | None) -> None:
        """Set the definitions of its model, before its content is computed."""
        self.stream.definitions = definitions

    @cached_property
    def tip(self) -> Tip[CID] | None:
        """The tip by CIP-145; None if the stream has no valid event.

        An event signed with an expired capability is invalid once an anchor proves that. Without an
        anchor it counts as valid, so that no clock is needed.
        """
        try:
            return self.stream.tip
        except StreamShapeError as error:
            if all(shape.expires is None for shape in self.stream.shapes):
                raise TablesError(
                    f"raw_events does not hold the whole stream {self.cid.hex()}: {error}"
                ) from error
            return None

    @property
    def accepted_tip(self) -> Tip[CID] | None:
        """The tip of the accepted events; None if there are none."""
        try:
            return None if self.tip is None else self.stream.accepted_tip
        except StreamShapeError:
            return None

    @cached_property
    def columns(self) -> Row:
        """The columns of every row about the stream."""
        return stream_columns(self.cid, self.header)

    @cached_property
    def repeated_columns(self) -> Row:
        """The same for the rows of its events but the init event: without large dimensions, which
        small events would multiply. Without any, it is the same object."""
        if all(len(value) <= _REPEATED for _, value in self.columns["dimensions"]):
            return self.columns
        dimensions = [
            (name, value if len(value) <= _REPEATED else None)
            for name, value in self.columns["dimensions"]
        ]
        return {**self.columns, "dimensions": dimensions}


def stream_columns(cid: bytes, header: InitHeader) -> Row:
    """Return the columns of every row about a stream."""
    return {
        "stream_cid": cid,
        "stream_type": int(header.stream_type),
        "controller": header.controller,
        "dimensions": [*header.dimensions.items()],
        PARTITION_COLUMN: partition_of(cid),
    }


def read_streams(raw_events: pa.Table, *, models_only: bool = False) -> Iterator[FeedStream]:
    """Yield the streams in rows of `raw_events`, one at a time, without those that are left out.

    All rows of each stream up to some position must be present.

    Args:
        raw_events: at least the columns of `_RawEvent`, in any order of rows.
        models_only: skip all streams but models, which costs next to nothing.

    Raises:
        TablesError: a row holds no event of its stream, or a stream is incomplete.
    """
    for cid, group in _by_stream(raw_events):
        first = next(group)
        if not first.car:  # see `spark_sink.tables.dags`
            continue
        if models_only and _MODEL_HEADER not in first.car:
            continue
        stream = _read_stream(cid, chain([first], group))
        if not models_only or stream.is_model:
            yield stream


def read_later(
    raw_events: pa.Table, summaries: Mapping[bytes, StreamSummary]
) -> Iterator[FeedStream]:
    """Yield the streams in rows of `raw_events` that go on from their summaries, each event on the
    one before.

    Args:
        raw_events: as in `read_streams`; all rows of each stream after its summary must be present.
        summaries: by stream CID.

    Raises:
        TablesError: a row holds no event of its stream.
    """
    for cid, group in _by_stream(raw_events):
        try:
            yield _read_stream(cid, group, summaries[cid])
        except ForgottenError:
            continue


class _RawEvent(NamedTuple):
    """A row of `raw_events`: the columns that the other tables are computed from."""

    position: int
    stream_cid: bytes
    car: bytes
    time: int | None
    chain_id: str | None
    fault: str | None


def _by_stream(raw_events: pa.Table) -> Iterator[tuple[bytes, Iterator[_RawEvent]]]:
    slices = ordered_slices(
        raw_events.select(_RawEvent._fields), ("stream_cid", "position"), _ROWS_AT_ONCE
    )
    columns = ([column.to_pylist() for column in part.columns] for part in slices)
    rows = (row for batch in columns for row in map(_RawEvent, *batch))
    return groupby(rows, attrgetter("stream_cid"))


def _read_stream(
    cid: bytes, rows: Iterable[_RawEvent], summary: StreamSummary | None = None
) -> FeedStream:
    """Read the events of a stream in feed order, one for each statement.

    Raises:
        ForgottenError: they do not simply follow the summary.
        TablesError: they are not the events of the stream.
    """
    rows = tuple(rows)
    size = sum([len(row.car) for row in rows])
    with killed_if_slow(cid, size):
        entries = [_read_entry(row, lazily=size > _MAX_DECODED) for row in rows]
        return _stream_of(cid, {entry.event.cid: entry for entry in entries}, summary)


def _stream_of(cid: bytes, entries: dict[CID, Entry], summary: StreamSummary | None) -> FeedStream:
    if any(entry.event.init != cid for entry in entries.values()):
        raise TablesError(f"raw_events holds events of another stream under {cid.hex()}")
    faults = {cid: entry.fault for cid, entry in entries.items() if entry.fault is not None}
    events = (entry.event for entry in entries.values())
    statements = statements_of(events, faults, keep_first=True)
    times = {cid: entry.time for cid, entry in entries.items() if entry.time is not None}
    stream = Stream(statements, times, faults, summary=summary)
    try:
        _ = stream.shapes
    except CeramicError as error:
        raise TablesError(f"raw_events holds a damaged event of {cid.hex()}: {error}") from error
    if summary is None and statements.events[0].header is None:
        raise TablesError(
            f"raw_events does not hold the whole stream {cid.hex()}: it starts with an event that "
            "is not an init"
        )
    if summary is not None:
        _ = stream.tip, stream.versions  # raises `ForgottenError`
    shown: Iterable[Entry] = entries.values()
    if statements.copies:
        shown = (entries[event.cid]._replace(event=event) for event in statements.events)
    return FeedStream(cid, tuple(shown), stream)


def _read_entry(row: _RawEvent, *, lazily: bool) -> Entry:
    position, _, car, time, chain_id, fault = row
    try:
        event = parse_event(car)
    except CeramicError as error:
        raise TablesError(f"raw_events holds no event at position {position}: {error}") from error
    return Entry(position, event.lazily() if lazily else event, time, chain_id, fault)


#: Events of a stream of which a summary is kept.
LONG: Final = 512
# Bytes of summaries, about.
_MAX_BYTES: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class KeptSummary:
    """The summary of a stream, complete up to a position."""

    summary: StreamSummary
    position: int


class SummaryCache:
    """Summaries of streams; of too many, those that were used last."""

    def __init__(self) -> None:
        self._summaries = Remembered[bytes, KeptSummary](
            _MAX_BYTES, weigh=lambda kept: kept.summary.weight
        )

    def take(self, streams: Iterable[bytes], after: int) -> dict[bytes, KeptSummary]:
        """Remove the summaries of streams that get events; return those not ahead of a step."""
        taken = ((cid, self._summaries.pop(cid)) for cid in streams)
        return {cid: kept for cid, kept in taken if kept is not None and kept.position <= after}

    def keep(self, stream: FeedStream, position: int) -> None:
        """Keep the summary of a stream that is complete up to a position, if it is long."""
        # Models are read whole for their documents anyway.
        if stream.stream.count < LONG or stream.is_model:
            return
        summary = stream.stream.summary()
        if summary is None or summary.weight > _MAX_BYTES:
            return
        self._summaries.put(stream.cid, KeptSummary(summary, position))


# What is wrong with the tables or the machine, and not with a stream.
NOT_OF_A_STREAM: Final = (SinkError, OSError, ForgottenError, pa.ArrowException)
_MAX_REASON: Final = 500


@dataclass(frozen=True, slots=True)
class SetAsideStreams:
    """The streams that are set aside, by their CIDs.

    Attributes:
        by_this_version: by this version, which leaves them out.
        by_other_versions: by other versions: this one is to take them up again.
    """

    by_this_version: frozenset[bytes] = frozenset()
    by_other_versions: frozenset[bytes] = frozenset()

    @classmethod
    def read(cls, table: FeedTable | None) -> "SetAsideStreams":
        """Read the table `unprocessed_streams`; without one, no stream is set aside."""
        if table is None or not table.position:
            return cls()
        rows = table.select("stream_cid, version", "reason IS NOT NULL").to_pylist()
        mine = {row["stream_cid"] for row in rows if row["version"] == __version__}
        others = {row["stream_cid"] for row in rows} - mine
        return cls(frozenset(mine), frozenset(others))


class ModelSetAsideError(Exception):
    """The model of a document cannot be computed."""


def reason_of(error: Exception) -> str:
    """Say why a stream is set aside."""
    text = str(error) or "no further reason"
    return f"{type(error).__name__}: {text}"[:_MAX_REASON]


def unprocessed(stream_id: str, position: int, reason: str | None) -> Row:
    """Return the row of a stream that is set aside; without a reason, of one taken up again."""
    return {
        "stream_id": stream_id,
        "reason": reason,
        "since": int(time.time()),
        "version": __version__,
        "position": position,
    }
