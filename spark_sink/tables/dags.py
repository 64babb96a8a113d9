"""Leaves events out of tables: those of DAGs, see docs/dag.md, and of streams that are forgotten.

Their rows stay in `raw_events`, so that its positions have no gaps, but `car` is empty. A stream
whose init event has no bytes has no rows in the other tables. Which streams are DAGs depends only
on their init events, so that a batch that is repeated gives the same rows. Those that are forgotten
are on a list beside the tables, so that whatever comes of them later has no bytes, either.
"""

from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from recon_node.ceramic import CeramicError, parse_event
from recon_node.ceramic.event_id import DAG_SORT_KEY
from spark_sink.errors import cannot_read, cannot_write
from spark_sink.tables.location import FAULTS, Location, file_system

# {"sep": "dag"} in the DAG-CBOR of an init event's header: nothing else needs a closer look.
_SIGN: Final = f"csepc{DAG_SORT_KEY}"


#: The list of streams that are forgotten: their CIDs in hexadecimal, one a line.
_FORGOTTEN: Final = "_forgotten"


@dataclass(frozen=True, slots=True)
class LeaveOut:
    """Empties the events that are left out; can be sent to a worker."""

    dags: bool = False
    streams: frozenset[bytes] = frozenset()

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows of the feed in which the events that are left out have no bytes."""
        if self.streams:
            theirs = pc.is_in(rows["stream_cid"], pa.array(self.streams, pa.binary()))
            rows = _emptied(rows, theirs)
        return without_dags(rows) if self.dags else rows


def forgotten_streams(directory: Location) -> frozenset[bytes]:
    """Return the streams that are left out of the tables in a directory for good.

    Raises:
        TablesError: the list cannot be read.
    """
    try:
        with file_system(directory).open_input_stream(_FORGOTTEN) as stream:
            return frozenset(map(bytes.fromhex, stream.read().decode().split()))
    except FileNotFoundError:
        return frozenset()
    except (*FAULTS, ValueError) as error:
        raise cannot_read(error) from error


def leave_out_for_good(directory: Location, streams: frozenset[bytes]) -> None:
    """Put streams on the list.

    Raises:
        TablesError: it cannot be written.
    """
    files, draft = file_system(directory), f"{_FORGOTTEN}.draft"
    lines = (f"{cid.hex()}\n" for cid in sorted(streams | forgotten_streams(directory)))
    try:
        with files.open_output_stream(draft) as stream:
            stream.write("".join(lines).encode())
        files.move(draft, _FORGOTTEN)
    except FAULTS as error:
        raise cannot_write(directory, error) from error


def without_dags(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows of the feed in which the events of DAGs have no bytes."""
    column = rows.schema.get_field_index("car")
    cars = rows.column(column)
    suspects = pc.indices_nonzero(pc.match_substring(cars, _SIGN)).to_pylist()
    dags = [at for at in suspects if _is_dag(cars[at].as_py())]
    if not dags:
        return rows
    return _emptied(rows, pc.is_in(pa.array(range(len(cars))), pa.array(dags)))


def _emptied(rows: pa.RecordBatch, which: pa.BooleanArray) -> pa.RecordBatch:
    column = rows.schema.get_field_index("car")
    cars = rows.column(column)
    emptied = pc.if_else(which, pa.scalar(b"", cars.type), cars)
    return rows.set_column(column, rows.schema.field(column), emptied)


def _is_dag(car: bytes) -> bool:
    """Return whether a CAR is an init event with the sort key of DAGs."""
    try:
        header = parse_event(car).header
    except CeramicError:  # reported where the event is needed
        return False
    return header is not None and header.sep_key == DAG_SORT_KEY
