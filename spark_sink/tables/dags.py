"""Leaves the events of DAGs out of tables: shards, replicas and publishes, see docs/dag.md.

Their rows stay in `raw_events`, so that its positions have no gaps, but `car` is empty. A stream
whose init event has no bytes has no rows in the other tables. Which streams these are depends only
on their init events, so that a batch that is repeated gives the same rows.
"""

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from recon_node.ceramic import CeramicError, parse_event
from recon_node.ceramic.header import DAG_SORT_KEY

# {"sep": "dag"} in the DAG-CBOR of an init event's header: nothing else needs a closer look.
_SIGN: Final = f"csepc{DAG_SORT_KEY}"


def without_dags(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows of the feed in which the events of DAGs have no bytes."""
    column = rows.schema.get_field_index("car")
    cars = rows.column(column)
    suspects = pc.indices_nonzero(pc.match_substring(cars, _SIGN)).to_pylist()
    dags = [at for at in suspects if _is_dag(cars[at].as_py())]
    if not dags:
        return rows
    is_dag = pc.is_in(pa.array(range(len(cars))), pa.array(dags))
    emptied = pc.if_else(is_dag, pa.scalar(b"", cars.type), cars)
    return rows.set_column(column, rows.schema.field(column), emptied)


def _is_dag(car: bytes) -> bool:
    """Return whether a CAR is an init event with the sort key of DAGs."""
    try:
        header = parse_event(car).header
    except CeramicError:  # reported by whoever needs the event
        return False
    return header is not None and header.sep_key == DAG_SORT_KEY
