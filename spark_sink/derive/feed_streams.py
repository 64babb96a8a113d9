"""Converts rows of `raw_events` to streams, whose events are read once for all tables.

Summaries of long streams are kept in memory from one short step to the next (`SummaryCache`). A
stream of 50,000 events takes seconds to read back, and nearly always its next event builds on its
tip. `recon_node.streams.StreamSummary` is what such an event needs of the others. Nothing depends
on a summary being here: without one, after a start for example, the stream is read whole once. A
summary has the content at the tip, so there are none in a step that computes no content: if neither
`event_states` nor `stream_states` is kept (`run --table`), streams are always read whole.

One bad stream never stops a table: it is set aside. A stream of which rows
cannot be computed (it takes more work than its events pay for, or meets a fault of this software)
is left out of the derived tables from then on, and gets a row in the table `unprocessed_streams`
that says why. Another version of the software takes it up again: its rows are computed from all of
its events.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, groupby
from operator import itemgetter
from typing import Any, Final, NamedTuple

import pyarrow as pa

from recon_node.base.latest import Remembered
from recon_node.ceramic import CeramicError, Event, InitHeader, StreamId, StreamType, parse_event
from recon_node.ceramic.checked_events import Chain, read_chain, read_checked
from recon_node.ceramic.init_header import METAMODEL
from recon_node.ipld import CID
from recon_node.streams import (
    Definitions,
    ForgottenError,
    NoTipError,
    Stream,
    StreamShapeError,
    StreamStates,
    StreamSummary,
    Tip,
    named_versions,
    statements_of,
)
from spark_sink.derive.child_process import killed_if_slow
from spark_sink.errors import SinkError, TablesError
from spark_sink.schema import DERIVATION_COLUMNS, PARTITION_COLUMN, partition_of
from spark_sink.tables.raw_files import ordered_slices

Columns = dict[str, Any]
"""The columns that all rows of a stream share, by name."""
Row = tuple[Any, ...]
"""The other columns of a row; see `derive.transforms`."""

_NATIVE: Final = os.environ.get("RECON_NODE_NATIVE") != "off"
"""Whether the native core reads events, where it is installed: the node's setting is its switch."""
_MAX_DECODED: Final = 1024 * 1024
"""Bytes of a stream's events up to which their payloads are kept decoded."""
_MAX_CONTENTS: Final = 4 * 1024 * 1024
"""About how many bytes the contents after all events of a chain may take: they are in memory at
once."""
_REPEATED: Final = 1024
"""Bytes of a dimension up to which it is in the row of each event."""
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


class FeedStream:
    """A stream, complete up to some feed position, with its entries in feed order.

    There is one entry for each statement (`recon_node.streams.graph`), that of the copy which
    was delivered first: so further copies change no row.

    The entries may be the later ones only, after the `StreamSummary` of those before. If that is
    not enough to answer a question, `ForgottenError` is raised.

    Attributes:
        cid: of the stream.
        rows: of `raw_events`.
        chain: the events, if they are a chain of a document that is not long; else None. Then
            `entries` and `as_stream` are only made if the tables need more than the chain has.
    """

    def __init__(
        self, cid: bytes, rows: Sequence[Row], summary: StreamSummary | None = None
    ) -> None:
        self.cid = cid
        self.rows = rows
        self.chain: Chain | None = None
        self._summary = summary
        self._definitions: Definitions | None = None

    @cached_property
    def _whole(self) -> tuple[tuple[Entry, ...], Stream]:
        entries, stream = _entries_of(self.cid, self.rows, self._summary)
        stream.definitions = self._definitions
        return entries, stream

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The events, one for each statement."""
        return self._whole[0]

    @property
    def as_stream(self) -> Stream:
        """The stream that the events make: its tip, its states, and what else is asked of it."""
        return self._whole[1]

    @cached_property
    def header(self) -> InitHeader:
        """The header of the init event."""
        if self.chain is not None:
            assert self.chain.init.header is not None
            return self.chain.init.header
        return self.as_stream.header

    @cached_property
    def stream_id(self) -> StreamId:
        """The StreamID."""
        return StreamId(self.header.stream_type, CID(self.cid))

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
    def versions(self) -> frozenset[CID]:
        """The versions of its model that it names."""
        if self.chain is not None:
            return frozenset(named_versions([self.chain.init]))
        return self.as_stream.versions

    @property
    def last_position(self) -> int:
        """The position of its last entry."""
        position: int = self.rows[-1][_POSITION] if self.chain else self.entries[-1].position
        return position

    @property
    def positions(self) -> list[int]:
        """The positions of its rows."""
        return [row[_POSITION] for row in self.rows]

    @cached_property
    def size(self) -> int:
        """Bytes of its events."""
        return sum([len(row[_CAR]) for row in self.rows])

    @cached_property
    def contents(self) -> list[bytes] | None:
        """The data after each event of a chain, as JSON, if all are simple; else None."""
        if self.chain is None:
            return None
        init, _, (_, *patches) = self.chain
        return StreamStates.of_chain(init, patches, self.size, self._definitions)

    def close(self) -> None:
        """Forget the contents, which many streams would take too much memory for."""
        self.__dict__.pop("contents", None)

    def define(self, definitions: Definitions | None) -> None:
        """Set the definitions of its model, before its content is computed."""
        self._definitions = definitions
        if "_whole" in self.__dict__:
            self.as_stream.definitions = definitions

    @cached_property
    def tip(self) -> Tip[CID] | None:
        """The tip by CIP-145; None if the stream has no valid event.

        An event signed with an expired capability is invalid once an anchor proves that. Without an
        anchor it counts as valid, so that no clock is needed.
        """
        try:
            return self.as_stream.tip
        except StreamShapeError as error:
            may_have_expired = any(shape.expires is not None for shape in self.as_stream.shapes)
            if may_have_expired and isinstance(error, NoTipError):
                return None
            raise TablesError(
                f"raw_events does not hold the whole stream {self.cid.hex()}: {error}"
            ) from error

    @property
    def accepted_tip(self) -> Tip[CID] | None:
        """The tip of the accepted events; None if there are none."""
        try:
            return None if self.tip is None else self.as_stream.accepted_tip
        except NoTipError:
            return None

    @cached_property
    def columns(self) -> Columns:
        """The columns of every row about the stream."""
        return stream_columns(self.cid, self.header)

    @cached_property
    def repeated_columns(self) -> Columns:
        """These columns for the rows of all events but the init event: without large dimensions,
        which small events would multiply. It is `columns` itself if there are none."""
        if all(len(value) <= _REPEATED for _, value in self.columns["dimensions"]):
            return self.columns
        dimensions = [
            (name, value if len(value) <= _REPEATED else None)
            for name, value in self.columns["dimensions"]
        ]
        return {**self.columns, "dimensions": dimensions}


def stream_columns(cid: bytes, header: InitHeader) -> Columns:
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
        raw_events: at least the columns `DERIVATION_COLUMNS`, in any order of rows.
        models_only: skip all streams but models, which costs next to nothing.

    Raises:
        TablesError: a row holds no event of its stream, or a stream is incomplete.
    """
    for cid, rows in _by_stream(raw_events):
        first = next(rows)
        car: bytes = first[_CAR]
        if not car:  # see `spark_sink.tables.placement`
            continue
        if models_only and _MODEL_HEADER not in car:
            continue
        stream = _read_stream(cid, [first, *rows])
        if not models_only or stream.is_model:
            yield stream


def read_later_events(
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
    for cid, rows in _by_stream(raw_events):
        try:
            yield _read_stream(cid, [*rows], summaries[cid])
        except ForgottenError:
            continue


_POSITION, _STREAM_CID, _CAR, _TIME, _CHAIN_ID, _FAULT = range(len(DERIVATION_COLUMNS))
"""Where a row of `raw_events` has the columns that the other tables are computed from."""


def _by_stream(raw_events: pa.Table) -> Iterator[tuple[bytes, Iterator[Row]]]:
    """Yield the rows of each stream, in feed order."""
    slices = ordered_slices(
        raw_events.select(DERIVATION_COLUMNS), ("stream_cid", "position"), _ROWS_AT_ONCE
    )
    columns = ([column.to_pylist() for column in part.columns] for part in slices)
    rows = chain.from_iterable(zip(*batch, strict=True) for batch in columns)
    return groupby(rows, itemgetter(_STREAM_CID))


def _read_stream(
    cid: bytes, rows: Sequence[Row], summary: StreamSummary | None = None
) -> FeedStream:
    """Read the events of a stream in feed order, one for each statement.

    Raises:
        ForgottenError: they do not simply follow the summary.
        TablesError: they are not the events of the stream.
    """
    stream = FeedStream(cid, rows, summary)
    with killed_if_slow(cid, stream.size):
        if summary is None and _NATIVE:
            stream.chain = _chain_of(stream)
        if stream.chain is None:
            _ = stream.entries
    return stream


def _chain_of(stream: FeedStream) -> Chain | None:
    """Return the events of a document that is a chain and not long; else None."""
    rows = stream.rows
    if len(rows) >= LONG or len(rows) * stream.size > _MAX_CONTENTS:
        return None
    if any(row[_FAULT] is not None for row in rows):
        return None
    chain = read_chain([row[_CAR] for row in rows])
    if chain is None or chain.init.cid != stream.cid or chain.init.header is None:
        return None
    return chain if chain.init.header.stream_type is StreamType.MODEL_INSTANCE else None


def _entries_of(
    cid: bytes, rows: Sequence[Row], summary: StreamSummary | None
) -> tuple[tuple[Entry, ...], Stream]:
    """Return all that is known of a stream; raises as `_read_stream`."""
    cars = [row[_CAR] for row in rows]
    try:
        events = read_checked(cars, native=_NATIVE, lazily=sum(map(len, cars)) > _MAX_DECODED)
    except CeramicError:
        for row in rows:
            _check_event(row)
        raise
    entries = {
        event.cid: Entry(position, event, time, chain_id, fault)
        for (position, _, _, time, chain_id, fault), event in zip(rows, events, strict=True)
    }
    return _stream_of(cid, entries, summary)


def _check_event(row: Row) -> None:
    """Say which row holds no event."""
    try:
        parse_event(row[_CAR])
    except CeramicError as error:
        at = row[_POSITION]
        raise TablesError(f"raw_events holds no event at position {at}: {error}") from error


def _stream_of(
    cid: bytes, entries: dict[CID, Entry], summary: StreamSummary | None
) -> tuple[tuple[Entry, ...], Stream]:
    events = [entry.event for entry in entries.values()]
    if {event.init for event in events} != {cid}:
        raise TablesError(f"raw_events holds events of another stream under {cid.hex()}")
    faults = {cid: entry.fault for cid, entry in entries.items() if entry.fault is not None}
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
    return tuple(shown), stream


LONG: Final = 512
"""Events of a stream from which on its summary is kept."""
_MAX_BYTES: Final = 64 * 1024 * 1024
"""About how many bytes all summaries may take."""


class KeptSummary(NamedTuple):
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
        if stream.chain is not None or stream.as_stream.count < LONG or stream.is_model:
            return
        summary = stream.as_stream.summary()
        if summary is None or summary.weight > _MAX_BYTES:
            return
        self._summaries.put(stream.cid, KeptSummary(summary, position))


NOT_OF_A_STREAM: Final = (SinkError, OSError, ForgottenError, pa.ArrowException)
"""Errors that are about the tables or the machine, and not about a stream."""
_MAX_REASON: Final = 500


class ModelSetAsideError(Exception):
    """The model of a document cannot be computed."""


def reason_of(error: Exception) -> str:
    """Say why a stream is set aside."""
    text = str(error) or "no further reason"
    return f"{type(error).__name__}: {text}"[:_MAX_REASON]
