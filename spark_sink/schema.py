"""The public schemas of the tables, the same in Arrow, Delta and Spark; see docs/tables.md.

Names and meanings are those of ceramic-one's pipeline (rust-ceramic, `pipeline/src/schemas.rs`)
where it has the same column. Delta has no unsigned integers, so u8, u32 and u64 there are signed
here.
"""

from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

PARTITION_COLUMN: Final = "stream_cid_partition"
PARTITIONS: Final = 16
"""Few, so that a small batch writes few files; enough to skip most of a table when one stream is
read."""
RULES: Final = 2
"""The version of the rules that compute rows from events. Rows computed by other rules may differ
from the node's answers."""


def _list_of(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", kind, nullable=False))


_KINDS: Final = {
    "binary": pa.binary(),
    "binaries": _list_of(pa.binary()),
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint8": pa.uint8(),
    "string": pa.string(),
    "strings": _list_of(pa.string()),
    "timestamp": pa.timestamp("us", "UTC"),
    "dimensions": pa.map_(pa.string(), pa.field("value", pa.binary(), True)),
}


def schema_of(columns: str, **kinds: pa.DataType) -> pa.Schema:
    """Return the schema of columns that are written as NAME:TYPE, or NAME if they are text.

    Columns that may be null end with a question mark. `kinds` are further types, by name.
    """
    fields = []
    for column in columns.split():
        name, _, kind = column.rstrip("?").partition(":")
        data_type = (_KINDS | kinds)[kind or "string"]
        fields.append(pa.field(name, data_type, nullable=column.endswith("?")))
    return pa.schema(fields)


FEED: Final = schema_of(
    "position:int64 event_id:binary event_cid:binary stream_cid:binary event_type:string "
    "car:binary time:int64? chain_id:string? delivered_at:timestamp? fault:string?"
)
"""The rows of a node's feed and of the Spark source "recon": one per event."""

_STREAM: Final = "stream_cid:binary stream_type:int8 controller:string dimensions:dimensions"
"""Columns about an event's stream, in every table but raw_events."""
_PARTITION: Final = f"{PARTITION_COLUMN}:int32"
STREAM_COLUMNS: Final = frozenset(schema_of(f"{_STREAM} {_PARTITION}").names)
"""The columns that all rows of a stream share, but for large dimensions."""
_REASONS: Final = _list_of(pa.struct([*schema_of("rule:string winner:binary rivals:binaries")]))

RAW_EVENTS: Final = pa.schema([*FEED, *schema_of(_PARTITION)])
"""The table `raw_events`: the feed's rows, each once, without gaps."""

DERIVATION_COLUMNS: Final = ("position", "stream_cid", "car", "time", "chain_id", "fault")
"""The columns of `raw_events` that the other tables are computed from."""

CONCLUSION_EVENTS: Final = schema_of(
    f"conclusion_event_order:int64 {_STREAM} event_cid:binary event_type:string data:binary? "
    "previous:binaries before:int64? chain_id:string? expires:int64? fault:string? " + _PARTITION
)
"""The table `conclusion_events`: the events, decoded, with what is known about each."""

EVENT_STATES: Final = schema_of(
    f"conclusion_event_order:int64 {_STREAM} event_cid:binary event_type:string event_height:int32 "
    f"data:binary validation_errors:strings before:int64? chain_id:string? {_PARTITION}"
)
"""The table `event_states`: the content of the stream after each event."""

_TIP: Final = "event_cid:binary? event_type:string? event_height:int32?"
"""The tip of a stream: null if none of its events is valid, because their capability had expired
when they were anchored."""

STREAM_TIPS: Final = schema_of(
    f"stream_id:string {_STREAM} {_TIP} data_tip:binaries anchored_at:binaries tips:binaries "
    "pruned:binaries diverged:bool reasons:reasons events:int64 pending_time_events:int64 "
    f"position:int64 {_PARTITION}",
    reasons=_REASONS,
)
"""The table `stream_tips`: one row per stream, its tip by CIP-145."""

STREAM_STATES: Final = schema_of(
    f"stream_id:string {_STREAM} {_TIP} data:binary? position:int64 {_PARTITION}"
)
"""The table `stream_states`: one row per stream, its content at its tip."""

UNPROCESSED_STREAMS: Final = schema_of(
    f"stream_id:string {_STREAM} reason:string? since:int64 version:string position:int64 "
    + _PARTITION
)
"""The table `unprocessed_streams`: streams that were set aside, with the reason; null once a later
version has taken them up again. `since` is in Unix seconds."""

_OF_A_VIEW: Final = schema_of(
    "stream_id:string stream_cid:binary controller:string event_cid:binary? position:int64 "
    "should_index:bool?"
)
"""Columns of every view before those of the model's fields."""
_AT_THE_END: Final = schema_of(
    f"misfits:misfits {_PARTITION}",
    misfits=_list_of(pa.struct([*schema_of("field:string reason:string")])),
)
"""Columns of every view after those of the model's fields."""
TAKEN: Final = frozenset((*_OF_A_VIEW.names, *_AT_THE_END.names))
"""The names that no column of a field can have."""


def view_schema(fields: list[pa.Field]) -> pa.Schema:
    """Return the columns of a view with these fields of a model."""
    return pa.schema([*_OF_A_VIEW, *fields, *_AT_THE_END])


@dataclass(frozen=True, slots=True)
class TableSpec:
    """A table. The values of the column `key` are unique; `model` is that of a view."""

    name: str
    schema: pa.Schema
    key: str
    model: str | None = None

    @property
    def rows_are_events(self) -> bool:
        """Whether a row is an event, identified by its feed position; otherwise, it is a stream."""
        return self.key != "stream_cid"

    @property
    def rules(self) -> int | None:
        """The version of the rules for its rows; None if they never changed."""
        return RULES if self.name in _COMPUTED_BY_RULES else None

    @property
    def order(self) -> str:
        """The column with the feed position of a row."""
        return self.key if self.rows_are_events else "position"


_ORDER: Final = "conclusion_event_order"
_COMPUTED_BY_RULES: Final = ("conclusion_events", "event_states", "stream_states")

TABLES: Final = {
    spec.name: spec
    for spec in (
        TableSpec("raw_events", RAW_EVENTS, "position"),
        TableSpec("conclusion_events", CONCLUSION_EVENTS, _ORDER),
        TableSpec("event_states", EVENT_STATES, _ORDER),
        TableSpec("stream_tips", STREAM_TIPS, "stream_cid"),
        TableSpec("stream_states", STREAM_STATES, "stream_cid"),
        TableSpec("unprocessed_streams", UNPROCESSED_STREAMS, "stream_cid"),
    )
}
"""All tables by name, each after the tables it is computed from."""
STATES: Final = "stream_states"
UNPROCESSED: Final = "unprocessed_streams"
TANGLES: Final = "tangles"
"""The view of threads, which `query` weaves."""
FORMER: Final = "_stream_summaries"
"""An internal table of earlier versions, which is deleted."""
RAW: Final = "raw_events"
DERIVED: Final = tuple(name for name in TABLES if name != RAW)
"""The tables that are computed from `raw_events`."""


def partition_of(stream_cid: bytes) -> int:
    """Return the partition of a stream's rows: the last byte of its CID, modulo `PARTITIONS`."""
    return stream_cid[-1] % PARTITIONS


def with_partition(rows: pa.Table) -> pa.Table:
    """Convert rows of the feed to rows of `raw_events`."""
    last_bytes = pc.binary_slice(rows["stream_cid"].combine_chunks(), -1).dictionary_encode()
    partitions = pa.array(map(partition_of, last_bytes.dictionary.to_pylist()), pa.int32())
    columns = [*rows.select(FEED.names).cast(FEED).columns, partitions.take(last_bytes.indices)]
    return pa.Table.from_arrays(columns, schema=RAW_EVENTS)
