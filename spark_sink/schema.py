"""The tables' schemas: public, the same in Arrow, Delta and Spark. docs/tables.md explains them.

Names and meanings are those of ceramic-one's pipeline where it has the same column (`stream_cid`,
`event_cid`, `car`, `stream_type`, `controller`, `dimensions`, `event_height`, `tips`,
`stream_cid_partition`). Delta knows no unsigned integers: what is u8, u32 or u64 there is signed
here.
"""

from typing import Final

import pyarrow as pa

PARTITION_COLUMN: Final = "stream_cid_partition"
# Few enough that a small batch makes few files, enough that reading one stream skips most of the
# table.
PARTITIONS: Final = 16


def _required(name: str, data_type: pa.DataType) -> pa.Field:
    return pa.field(name, data_type, nullable=False)


def _cids(name: str) -> pa.Field:
    return _required(name, pa.list_(pa.field("element", pa.binary(), nullable=False)))


#: What a node's feed serves, and the Spark source "recon" hands out: one row per event.
FEED: Final = pa.schema(
    [
        _required("position", pa.int64()),
        _required("event_id", pa.binary()),
        _required("event_cid", pa.binary()),
        _required("stream_cid", pa.binary()),
        _required("event_type", pa.string()),
        _required("car", pa.binary()),
    ]
)

#: The table `raw_events`: the feed's rows, each once, without a gap.
RAW_EVENTS: Final = pa.schema([*FEED, _required(PARTITION_COLUMN, pa.int32())])

#: The table `stream_tips`: one row per stream, its tip by CIP-145.
STREAM_TIPS: Final = pa.schema(
    [
        _required("stream_cid", pa.binary()),
        _required("stream_id", pa.string()),
        _required("stream_type", pa.int8()),
        _required("controller", pa.string()),
        _required("dimensions", pa.map_(pa.string(), pa.field("value", pa.binary(), True))),
        _required("event_cid", pa.binary()),
        _required("event_type", pa.string()),
        _required("event_height", pa.int32()),
        _cids("data_tip"),
        _cids("anchored_at"),
        _cids("tips"),
        _cids("pruned"),
        _required("diverged", pa.bool_()),
        _required("events", pa.int64()),
        _required("pending_time_events", pa.int64()),
        _required("position", pa.int64()),
        _required(PARTITION_COLUMN, pa.int32()),
    ]
)


def partition_of(stream_cid: bytes) -> int:
    """The partition of a stream's rows: the last byte of its CID, modulo `PARTITIONS`."""
    return stream_cid[-1] % PARTITIONS


def with_partition(rows: pa.Table) -> pa.Table:
    """The feed's rows as rows of `raw_events`."""
    partitions = [partition_of(cid) for cid in rows["stream_cid"].to_pylist()]
    columns = [*rows.select(FEED.names).columns, pa.array(partitions, pa.int32())]
    return pa.Table.from_arrays(columns, schema=RAW_EVENTS)
