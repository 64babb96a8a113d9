"""Converts rows of `raw_events` to streams, whose events are read once for all tables."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import pyarrow as pa

from recon_node.ceramic import (
    CeramicError,
    Event,
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
    StreamEvent,
    StreamShapeError,
    StreamStates,
    Tip,
    accepted_tip,
    named_versions,
    select_tip,
    shape_of,
)
from spark_sink.errors import TablesError
from spark_sink.schema import HISTORY_COLUMNS, PARTITION_COLUMN, partition_of
from spark_sink.tables.raw_files import ordered_slices

Row = dict[str, Any]

_ROWS_AT_ONCE: Final = 4096
# The init event of a model names the metamodel as its own model.
_MODEL_HEADER: Final = METAMODEL.to_bytes()


@dataclass(frozen=True, slots=True)
class Entry:
    """An event with its columns in the feed.

    Attributes:
        time: block time of a time event's anchor in Unix seconds; None if unknown.
        expires: last second at which the capability that signed the event is valid.
    """

    position: int
    event: Event
    time: int | None
    chain_id: str | None
    expires: int | None

    def shape(self) -> StreamEvent[CID]:
        """Return the input for tip selection. The node has verified the event's signature."""
        return shape_of(self.event, time=self.time)


@dataclass(frozen=True)
class Stream:
    """A stream, complete up to some feed position, with its entries in feed order."""

    cid: bytes
    header: InitHeader
    entries: tuple[Entry, ...]

    @property
    def stream_id(self) -> StreamId:
        """The StreamID."""
        return StreamId(self.header.stream_type, CID(self.cid))

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
            return select_tip(entry.shape() for entry in self.entries)
        except StreamShapeError as error:
            if all(entry.expires is None for entry in self.entries):
                raise TablesError(
                    f"raw_events does not hold the whole stream {self.cid.hex()}: {error}"
                ) from error
            return None

    @cached_property
    def versions(self) -> Collection[CID]:
        """The versions of its model that a document names."""
        return () if self.is_model else named_versions(entry.event for entry in self.entries)

    def states(self, definitions: Definitions | None = None) -> StreamStates:
        """Return its content after each event, by the definitions of its model.

        The content at the tip is kept after the iteration has passed it.
        """
        tip = () if self.tip is None else (self.tip.event,)
        return StreamStates((entry.event for entry in self.entries), definitions, keep=tip)

    def state_tip(self, states: StreamStates) -> Tip[CID] | None:
        """Return the tip of the accepted events; None if there are none. `states` are its own."""
        if not states.rejected or self.tip is None:
            return self.tip
        try:
            return accepted_tip((entry.shape() for entry in self.entries), states.rejected)
        except StreamShapeError:
            return None

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
    """Yield the streams in rows of `raw_events`, one at a time.

    All rows of each stream up to some position must be present.

    Args:
        raw_events: at least the columns `HISTORY_COLUMNS`, in any order of rows.
        models_only: skip all streams but models, which costs next to nothing.

    Raises:
        TablesError: a row holds no event of its stream, or a stream is incomplete.
    """
    slices = ordered_slices(
        raw_events.select(HISTORY_COLUMNS), ("stream_cid", "position"), _ROWS_AT_ONCE
    )
    rows = (row for part in slices for row in part.to_pylist())
    for cid, group in groupby(rows, itemgetter("stream_cid")):
        first = next(group)
        if models_only and _MODEL_HEADER not in first["car"]:
            continue
        stream = _read_stream(cid, [_read_entry(row) for row in (first, *group)])
        if not models_only or stream.is_model:
            yield stream


def _read_stream(cid: bytes, entries: list[Entry]) -> Stream:
    if any(entry.event.init != cid for entry in entries):
        raise TablesError(f"raw_events holds events of another stream under {cid.hex()}")
    header = entries[0].event.header
    if header is None:
        raise TablesError(
            f"raw_events does not hold the whole stream {cid.hex()}: it starts with an event that "
            "is not an init"
        )
    return Stream(cid, header, tuple(entries))


def _read_entry(row: Row) -> Entry:
    position = row["position"]
    try:
        event = parse_event(row["car"])
        expires = validity_of(event).expires
    except CeramicError as error:
        raise TablesError(f"raw_events holds no event at position {position}: {error}") from error
    return Entry(position, event, row["time"], row["chain_id"], expires)
