"""Converts rows of `raw_events` to streams, whose events are read once for all tables."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import pyarrow as pa

from recon_node.ceramic import (
    CeramicError,
    Event,
    EventKind,
    InitHeader,
    StreamId,
    StreamType,
    parse_event,
    validity_of,
)
from recon_node.ceramic.stream_id import METAMODEL
from recon_node.ipld import CID
from recon_node.streams import (
    Definitions,
    ForgottenError,
    LongStream,
    StreamEvent,
    StreamShapeError,
    StreamStates,
    StreamSummary,
    Tip,
    accepted_tip,
    named_versions,
    select_tip,
    statements_of,
)
from spark_sink.errors import TablesError
from spark_sink.schema import HISTORY_COLUMNS, PARTITION_COLUMN, partition_of
from spark_sink.tables.raw_files import ordered_slices

Row = dict[str, Any]

#: Events of a stream that is summarized.
LONG: Final = 512
# Later events after which there is a new summary.
_LATER: Final = 32
_ROWS_AT_ONCE: Final = 4096
# The init event of a model names the metamodel as its own model.
_MODEL_HEADER: Final = METAMODEL.to_bytes()


@dataclass(frozen=True, slots=True)
class Entry:
    """An event with its columns in the feed.

    Attributes:
        time: block time of a time event's anchor in Unix seconds; None if unknown.
        expires: last second at which the capability that signed the event is valid.
        fault: why the event's signature is wrong; None for nearly all.
        rank: its order in ties.
    """

    position: int
    event: Event
    time: int | None
    chain_id: str | None
    expires: int | None
    fault: str | None
    rank: bytes | None = None

    def shape(self) -> StreamEvent[CID]:
        """Return the input for tip selection. The node has verified the event's signature."""
        event = self.event
        is_valid = self.fault is None
        return StreamEvent(
            event.cid, event.kind.value, event.prevs, self.time, is_valid, self.expires, self.rank
        )


@dataclass(frozen=True)
class Stream:
    """A stream, complete up to some feed position, with its entries in feed order.

    There is one entry for each statement (`recon_node.streams.statements`), that of the copy which
    was delivered first: so further copies change no row.

    Of a long stream, these may be the later ones only, after those in a summary. If that is not
    enough to answer a question, `ForgottenError` is raised.
    """

    cid: bytes
    header: InitHeader
    entries: tuple[Entry, ...]
    earlier: StreamSummary | None = None

    @property
    def stream_id(self) -> StreamId:
        """The StreamID."""
        return StreamId(self.header.stream_type, CID(self.cid))

    @cached_property
    def id_text(self) -> str:
        """The StreamID as text."""
        return str(self.stream_id)

    @property
    def is_model(self) -> bool:
        """Whether the stream is a model."""
        return self.header.stream_type is StreamType.MODEL

    @property
    def model(self) -> bytes | None:
        """The stream CID of the stream's model; None if it has none."""
        return None if self.header.model is None else bytes(self.header.model.cid)

    @cached_property
    def tip(self) -> Tip[CID] | None:
        """The tip by CIP-145; None if the stream has no valid event.

        An event signed with an expired capability is invalid once an anchor proves that. Without an
        anchor it counts as valid, so that no clock is needed.
        """
        try:
            if self._long is not None:
                return self._long.tip
            return select_tip(entry.shape() for entry in self.entries)
        except StreamShapeError as error:
            if self.earlier is not None:
                raise ForgottenError("the stream has no tip any more") from error
            if all(entry.expires is None for entry in self.entries):
                raise TablesError(
                    f"raw_events does not hold the whole stream {self.cid.hex()}: {error}"
                ) from error
            return None

    @cached_property
    def versions(self) -> Collection[CID]:
        """The versions of its model that a document names."""
        if self._long is not None:
            return self._long.versions
        return () if self.is_model else named_versions(entry.event for entry in self.entries)

    @property
    def events(self) -> int:
        """The number of its events."""
        return len(self.entries) + (0 if self.earlier is None else self.earlier.count)

    @property
    def pending(self) -> int:
        """The number of its time events whose block time is unknown."""
        pending = sum(e.event.kind is EventKind.TIME and e.time is None for e in self.entries)
        return pending + (0 if self.earlier is None else self.earlier.pending)

    def kind_of(self, tip: CID) -> str:
        """Return the kind of an event that was found to be the tip."""
        if self._long is not None:
            return self._long.kind_of(tip)
        return next(e.event.kind for e in reversed(self.entries) if e.event.cid == tip).value

    def states(self, definitions: Definitions | None = None) -> StreamStates:
        """Return its content after each event, by the definitions of its model.

        The content at the tip is kept after the iteration has passed it.
        """
        if self._long is not None and self.tip is not None:
            return self._long.states(definitions)
        tip = () if self.tip is None else (self.tip.event,)
        events = (entry.event for entry in self.entries)
        return StreamStates(events, definitions, keep=tip, faults=self._faults)

    def state_tip(self, states: StreamStates) -> Tip[CID] | None:
        """Return the tip of the accepted events; None if there are none. `states` are its own."""
        if self.tip is None:
            return None
        try:
            if self._long is not None:
                return self._long.state_tip(states)
            if not states.rejected:
                return self.tip
            return accepted_tip((entry.shape() for entry in self.entries), states.rejected)
        except StreamShapeError:
            return None

    def summary(self, states: StreamStates | None, position: int) -> StreamSummary | None:
        """Return a summary of a long stream; None if it is short, or the one it has is new enough.

        Args:
            states: its own; None: without its content.
            position: up to which it is complete.
        """
        if self._long is None or self.tip is None:
            return None
        if self.earlier is not None and len(self.entries) < _LATER:
            return None
        try:
            return self._long.summarize(states, position)
        except ForgottenError:
            return None

    @cached_property
    def _long(self) -> LongStream | None:
        """The stream, if it is long. Models are read whole for their documents anyway."""
        if self.earlier is None and (len(self.entries) < LONG or self.is_model):
            return None
        events = [entry.event for entry in self.entries]
        shapes = [entry.shape() for entry in self.entries]
        return LongStream(events, shapes, self.earlier, self._faults)

    @property
    def _faults(self) -> dict[CID, str]:
        return {entry.event.cid: entry.fault for entry in self.entries if entry.fault is not None}

    @cached_property
    def columns(self) -> Row:
        """The columns of every row about the stream."""
        header = self.header
        return {
            "stream_cid": self.cid,
            "stream_type": int(header.stream_type),
            "controller": header.controller,
            # ceramic-one keeps these four fields of a header; empty if not set.
            "dimensions": [
                ("model", b"" if header.model is None else header.model.to_bytes()),
                ("controller", header.controller.encode()),
                ("context", header.context or b""),
                ("unique", header.unique or b""),
            ],
            PARTITION_COLUMN: partition_of(self.cid),
        }


def read_streams(raw_events: pa.Table, *, models_only: bool = False) -> Iterator[Stream]:
    """Yield the streams in rows of `raw_events`, one at a time, without those that are left out.

    All rows of each stream up to some position must be present.

    Args:
        raw_events: at least the columns `HISTORY_COLUMNS`, in any order of rows.
        models_only: skip all streams but models, which costs next to nothing.

    Raises:
        TablesError: a row holds no event of its stream, or a stream is incomplete.
    """
    for cid, group in _by_stream(raw_events):
        first = next(group)
        if not first["car"]:  # see `spark_sink.tables.dags`
            continue
        if models_only and _MODEL_HEADER not in first["car"]:
            continue
        stream = _read_stream(cid, _read_entries((first, *group)))
        if not models_only or stream.is_model:
            yield stream


def read_later(raw_events: pa.Table, earlier: Mapping[bytes, StreamSummary]) -> Iterator[Stream]:
    """Yield the streams in rows of `raw_events` that have events after their summaries, without
    those of which the whole must be read, because an event may be a copy of an earlier one.

    Args:
        raw_events: as in `read_streams`; all rows of each stream after its summary must be present.
        earlier: the summaries, by stream CID.

    Raises:
        TablesError: a row holds no event of its stream.
    """
    for cid, group in _by_stream(raw_events):
        summary = earlier[cid]
        entries = _read_entries(row for row in group if row["position"] > summary.position)
        _check_init(cid, entries)
        if entries and not _may_have_copies(entries, summary):
            yield Stream(cid, summary.init_header, tuple(entries), summary)


def _by_stream(raw_events: pa.Table) -> Iterator[tuple[bytes, Iterator[Row]]]:
    slices = ordered_slices(
        raw_events.select(HISTORY_COLUMNS), ("stream_cid", "position"), _ROWS_AT_ONCE
    )
    rows = (row for part in slices for row in part.to_pylist())
    return groupby(rows, itemgetter("stream_cid"))


def _check_init(cid: bytes, entries: list[Entry]) -> None:
    if any(entry.event.init != cid for entry in entries):
        raise TablesError(f"raw_events holds events of another stream under {cid.hex()}")


def _read_stream(cid: bytes, entries: list[Entry]) -> Stream:
    _check_init(cid, entries)
    header = entries[0].event.header
    if header is None:
        raise TablesError(
            f"raw_events does not hold the whole stream {cid.hex()}: it starts with an event that "
            "is not an init"
        )
    return Stream(cid, header, tuple(entries))


def _read_entries(rows: Iterable[Row]) -> list[Entry]:
    """Read the events of a stream in feed order, one for each statement."""
    entries = {entry.event.cid: entry for entry in map(_read_entry, rows)}
    faulty = {cid for cid, entry in entries.items() if entry.fault is not None}
    statements = statements_of((e.event for e in entries.values()), faulty, keep_first=True)
    ranks = statements.ranks
    return [
        replace(entries[event.cid], event=event, rank=ranks[event.cid])
        for event in statements.events
    ]


def _may_have_copies(entries: Iterable[Entry], earlier: StreamSummary) -> bool:
    """Whether a later event may be a copy of an earlier statement.

    A copy builds on what the statement builds on. So an event on which nothing builds yet has no
    copies above it. Signatures by EdDSA have none: only who signs can make a second one.
    """
    kept = [each.event for each in earlier.tips.kept]
    uncovered = {event.id for event in kept} - {prev for event in kept for prev in event.prev}
    for event in (entry.event for entry in entries):
        is_eddsa = event.envelope is not None and event.envelope.header["alg"] == "EdDSA"
        if not is_eddsa and not uncovered.issuperset(event.prevs):
            return True
        uncovered.difference_update(event.prevs)
        uncovered.add(event.cid)
    return False


def _read_entry(row: Row) -> Entry:
    position, fault = row["position"], row["fault"]
    try:
        event = parse_event(row["car"])
        # The capability of a badly signed event may be anything.
        expires = validity_of(event).expires if fault is None else None
    except CeramicError as error:
        raise TablesError(f"raw_events holds no event at position {position}: {error}") from error
    return Entry(position, event, row["time"], row["chain_id"], expires, fault)
