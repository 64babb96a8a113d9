"""The columns of a feed, as they are asked for and as they arrive."""

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_sink.schema import FEED

CID: Final = "event_cid"
_POSITION: Final = "position"
CIDS: Final = pa.schema([FEED.field(_POSITION), FEED.field(CID)])
# Nodes that do not note when they delivered an event, or deliver valid events only, serve their
# feed without these.
_NEW_COLUMNS: Final = frozenset({"delivered_at", "fault"})


def last_position(batch: pa.RecordBatch) -> int:
    """Return the position of a batch's last row."""
    return int(batch.column(_POSITION)[-1].as_py())


def columns_parameter(schema: pa.Schema) -> dict[str, str]:
    """Return the parameter that asks for some columns; the position comes with any."""
    names = [name for name in schema.names if name != _POSITION]
    return {} if schema == FEED else {"columns": ",".join(names)}


def column_of(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    """Return a column of the feed; nulls for one that older nodes do not know."""
    if field.name in _NEW_COLUMNS and field.name not in batch.schema.names:
        return pa.nulls(batch.num_rows, field.type)
    return batch.column(field.name).cast(field.type)


def ascends(positions: pa.Array) -> bool:
    """Return whether each position is greater than the previous one and none is null."""
    steps = pc.less(positions[:-1], positions[1:])
    return positions.null_count == 0 and bool(pc.all(steps, min_count=0).as_py())
