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
# Few, so that a small batch writes few files, but enough to skip most of the table when reading
# one stream.
PARTITIONS: Final = 16
#: The version of the rules that compute rows from events. Rows computed by other rules may differ
#: from the node's answers.
RULES: Final = 2


def _required(name: str, data_type: pa.DataType) -> pa.Field:
    return pa.field(name, data_type, nullable=False)


def _list(name: str, element: pa.DataType) -> pa.Field:
    return _required(name, pa.list_(_required("element", element)))


#: The rows of a node's feed and of the Spark source "recon": one per event.
FEED: Final = pa.schema(
    [
        _required("position", pa.int64()),
        _required("event_id", pa.binary()),
        _required("event_cid", pa.binary()),
        _required("stream_cid", pa.binary()),
        _required("event_type", pa.string()),
        _required("car", pa.binary()),
        pa.field("time", pa.int64()),
        pa.field("chain_id", pa.string()),
        pa.field("delivered_at", pa.timestamp("us", "UTC")),
        pa.field("fault", pa.string()),
    ]
)

# Columns about an event's stream, in every table but raw_events.
_STREAM: Final = [
    _required("stream_cid", pa.binary()),
    _required("stream_type", pa.int8()),
    _required("controller", pa.string()),
    _required("dimensions", pa.map_(pa.string(), pa.field("value", pa.binary(), True))),
]
_PARTITION: Final = _required(PARTITION_COLUMN, pa.int32())
#: The columns that all rows of a stream share, but for large dimensions.
STREAM_COLUMNS: Final = frozenset(field.name for field in (*_STREAM, _PARTITION))
_REASON: Final = pa.struct(
    [_required("rule", pa.string()), _required("winner", pa.binary()), _list("rivals", pa.binary())]
)

#: The table `raw_events`: the feed's rows, each once, without gaps.
RAW_EVENTS: Final = pa.schema([*FEED, _PARTITION])

#: The columns of `raw_events` that the other tables are computed from.
DERIVATION_COLUMNS: Final = ("position", "stream_cid", "car", "time", "chain_id", "fault")

#: The table `conclusion_events`: the events, decoded, with what is known about each.
CONCLUSION_EVENTS: Final = pa.schema(
    [
        _required("conclusion_event_order", pa.int64()),
        *_STREAM,
        _required("event_cid", pa.binary()),
        _required("event_type", pa.string()),
        pa.field("data", pa.binary()),
        _list("previous", pa.binary()),
        pa.field("before", pa.int64()),
        pa.field("chain_id", pa.string()),
        pa.field("expires", pa.int64()),
        pa.field("fault", pa.string()),
        _PARTITION,
    ]
)

#: The table `event_states`: the content of the stream after each event.
EVENT_STATES: Final = pa.schema(
    [
        _required("conclusion_event_order", pa.int64()),
        *_STREAM,
        _required("event_cid", pa.binary()),
        _required("event_type", pa.string()),
        _required("event_height", pa.int32()),
        _required("data", pa.binary()),
        _list("validation_errors", pa.string()),
        pa.field("before", pa.int64()),
        pa.field("chain_id", pa.string()),
        _PARTITION,
    ]
)

# The tip of a stream: null if none of its events is valid, because their capability had expired
# when they were anchored.
_TIP: Final = [
    pa.field("event_cid", pa.binary()),
    pa.field("event_type", pa.string()),
    pa.field("event_height", pa.int32()),
]

#: The table `stream_tips`: one row per stream, its tip by CIP-145.
STREAM_TIPS: Final = pa.schema(
    [
        _required("stream_id", pa.string()),
        *_STREAM,
        *_TIP,
        _list("data_tip", pa.binary()),
        _list("anchored_at", pa.binary()),
        _list("tips", pa.binary()),
        _list("pruned", pa.binary()),
        _required("diverged", pa.bool_()),
        _list("reasons", _REASON),
        _required("events", pa.int64()),
        _required("pending_time_events", pa.int64()),
        _required("position", pa.int64()),
        _PARTITION,
    ]
)

#: The table `stream_states`: one row per stream, its content at its tip.
STREAM_STATES: Final = pa.schema(
    [
        _required("stream_id", pa.string()),
        *_STREAM,
        *_TIP,
        pa.field("data", pa.binary()),
        _required("position", pa.int64()),
        _PARTITION,
    ]
)


#: The table `unprocessed_streams`: streams that were set aside, with the reason; null once a later
#: version has taken them up again. `since` is in Unix seconds.
UNPROCESSED_STREAMS: Final = pa.schema(
    [
        _required("stream_id", pa.string()),
        *_STREAM,
        pa.field("reason", pa.string()),
        _required("since", pa.int64()),
        _required("version", pa.string()),
        _required("position", pa.int64()),
        _PARTITION,
    ]
)


# Columns of every view, before and after those of the model's fields.
_OF_A_VIEW: Final = [
    _required("stream_id", pa.string()),
    _required("stream_cid", pa.binary()),
    _required("controller", pa.string()),
    pa.field("event_cid", pa.binary()),
    _required("position", pa.int64()),
    pa.field("should_index", pa.bool_()),
]
_MISFITS: Final = _list(
    "misfits", pa.struct([_required("field", pa.string()), _required("reason", pa.string())])
)
#: The names that no column of a field can have.
TAKEN: Final = frozenset(field.name for field in (*_OF_A_VIEW, _MISFITS, _PARTITION))


def view_schema(fields: list[pa.Field]) -> pa.Schema:
    """Return the columns of a view with these fields of a model."""
    return pa.schema([*_OF_A_VIEW, *fields, _MISFITS, _PARTITION])


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

#: All tables by name, each after the tables it is computed from.
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
STATES: Final = "stream_states"
UNPROCESSED: Final = "unprocessed_streams"
#: An internal table of earlier versions, which is deleted.
FORMER: Final = "_stream_summaries"
RAW: Final = "raw_events"
#: The tables that are computed from `raw_events`.
DERIVED: Final = tuple(name for name in TABLES if name != RAW)


def partition_of(stream_cid: bytes) -> int:
    """Return the partition of a stream's rows: the last byte of its CID, modulo `PARTITIONS`."""
    return stream_cid[-1] % PARTITIONS


def with_partition(rows: pa.Table) -> pa.Table:
    """Convert rows of the feed to rows of `raw_events`."""
    last_bytes = pc.binary_slice(rows["stream_cid"].combine_chunks(), -1).dictionary_encode()
    partitions = pa.array(map(partition_of, last_bytes.dictionary.to_pylist()), pa.int32())
    columns = [*rows.select(FEED.names).cast(FEED).columns, partitions.take(last_bytes.indices)]
    return pa.Table.from_arrays(columns, schema=RAW_EVENTS)
