"""What becomes of the rows of a node's log in `raw_events`: where they go, and which are emptied.

As long as the table has been filled from one log, a row has the same position in both. Once another
log was read, the positions differ, and rows whose events the table has already are left out
(`spark_sink.run.follower`). A placement says it for a stretch of a log that the table has up to
some position: the runs of positions whose rows are to be appended, one behind the other.

Events of DAGs (docs/dag.md), if the tables are without them, and of streams that are forgotten keep
their rows, so that the positions have no gaps, but `car` is empty. A stream whose init event has no
bytes has no rows in the other tables. Which streams are DAGs depends only on their init events, so
that a batch that is repeated gives the same rows. Those that are forgotten are on a list beside the
tables, so that whatever comes of them later has no bytes, either. `TablesError` is raised if the
list cannot be read or written.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recon_node.ceramic import CeramicError, parse_event
from recon_node.ceramic.event_id import DAG_SORT_KEY
from spark_sink.errors import TablesError, cannot_write, one_line, store_fault
from spark_sink.tables.location import FAULTS, Location, faults_as, file_system

Positions = npt.NDArray[np.int64]

_LAST: Final = 2**63 - 1
# {"sep": "dag"} in the DAG-CBOR of an init event's header: nothing else needs a closer look.
_SIGN: Final = f"csepc{DAG_SORT_KEY}"
_FORGOTTEN: Final = "_forgotten"
"""The list of streams that are forgotten: their CIDs in hexadecimal, one a line."""


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """The rows of a log to append to a table. Can be sent to a worker.

    Attributes:
        base: the table's position.
        firsts: the first position in the log of each run, ascending.
        lasts: the last one of each.
        upto: the position in the log up to which the table has all events once these are appended.
    """

    base: int
    firsts: Positions
    lasts: Positions
    upto: int

    @classmethod
    def following(cls, read_position: int, base: int) -> "Placement":
        """All rows after `read_position` of the log go behind the position `base`."""
        return cls(base, np.array([read_position + 1]), np.array([_LAST]), _LAST)

    @classmethod
    def of(cls, positions: Positions, upto: int, base: int) -> "Placement":
        """The rows at some positions, ascending, go behind the position `base`."""
        cuts = np.flatnonzero(np.diff(positions) != 1)
        starts = np.concatenate([[0], cuts + 1]) if len(positions) else cuts
        ends = np.append(cuts, len(positions) - 1) if len(positions) else cuts
        return cls(base, positions[starts], positions[ends], upto)

    def place(self, rows: Any) -> Any:
        """Keep the rows to append, of a table or a batch, with their positions in the table."""
        positions = rows["position"].to_numpy(zero_copy_only=False)
        run = np.searchsorted(self.lasts, positions)
        inside = run < len(self.firsts)
        inside[inside] = self.firsts[run[inside]] <= positions[inside]
        kept = rows if inside.all() else rows.filter(pa.array(inside))
        run, positions = run[inside], positions[inside]
        places = self._bases[run] + (positions - self.firsts[run])
        column = kept.schema.get_field_index("position")
        return kept.set_column(column, kept.schema.field(column), pa.array(places, pa.int64()))

    def read_position_at(self, position: int) -> int:
        """Return up to which position of the log the table has all events, once it is at one."""
        run = int(np.searchsorted(self._bases, position, "right")) - 1
        if run >= 0:
            read_position = int(self.firsts[run]) + position - int(self._bases[run])
            if read_position < self.lasts[run]:
                return read_position
        following = run + 1
        return int(self.firsts[following]) - 1 if following < len(self.firsts) else self.upto

    def ranges(self, most_gap: int) -> list[tuple[int, int]]:
        """Return ranges (after, upto] of the log that cover the runs.

        Runs with at most `most_gap` positions between them share a range.
        """
        ranges: list[tuple[int, int]] = []
        for first, last in zip(self.firsts.tolist(), self.lasts.tolist(), strict=True):
            if ranges and first - ranges[-1][1] <= most_gap:
                ranges[-1] = (ranges[-1][0], last)
            else:
                ranges.append((first - 1, last))
        return ranges

    @property
    def _bases(self) -> Positions:
        """The position in the table of the first row of each run."""
        lengths = self.lasts[:-1] - self.firsts[:-1] + 1
        places: Positions = self.base + 1 + np.concatenate([[0], np.cumsum(lengths)])
        return places[: len(self.firsts)]


@dataclass(frozen=True, slots=True)
class LeaveOut:
    """Empties the events that are left out; can be sent to a worker."""

    dags: bool = False
    streams: frozenset[bytes] = frozenset()

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows of the feed in which the events that are left out have no bytes."""
        if not (self.dags or self.streams):
            return rows
        column = rows.schema.get_field_index("car")
        cars = rows.column(column)
        left_out = pc.is_in(rows["stream_cid"], pa.array(self.streams, pa.binary()))
        if self.dags:
            suspects = pc.indices_nonzero(pc.match_substring(cars, _SIGN)).to_pylist()
            dags = pa.array([at for at in suspects if _is_dag(cars[at].as_py())], pa.int64())
            left_out = pc.or_(left_out, pc.is_in(pa.array(range(len(cars)), pa.int64()), dags))
        if not pc.any(left_out).as_py():
            return rows
        emptied = pc.if_else(left_out, pa.scalar(b"", cars.type), cars)
        return rows.set_column(column, rows.schema.field(column), emptied)


def forgotten_streams(directory: Location) -> frozenset[bytes]:
    """Return the streams that are left out of the tables in a directory for good."""
    try:
        with file_system(directory).open_input_stream(_FORGOTTEN) as stream:
            return frozenset(map(bytes.fromhex, stream.read().decode().split()))
    except FileNotFoundError:
        return frozenset()
    except ValueError:
        raise TablesError(
            f"the list of forgotten streams {directory / _FORGOTTEN} is damaged: restore it from a "
            "backup, or delete it and forget them again with spark-sink forget"
        ) from None
    except FAULTS as error:
        reason = store_fault(error) or one_line(error)
        raise TablesError(
            f"cannot read the list of forgotten streams {directory / _FORGOTTEN}: {reason}"
        ) from error


def leave_out_for_good(directory: Location, streams: frozenset[bytes]) -> None:
    """Put streams on the list of those that are left out."""
    files, draft = file_system(directory), f"{_FORGOTTEN}.draft"
    lines = (f"{cid.hex()}\n" for cid in sorted(streams | forgotten_streams(directory)))
    with faults_as(partial(cannot_write, directory)):
        with files.open_output_stream(draft) as stream:
            stream.write("".join(lines).encode())
        files.move(draft, _FORGOTTEN)


def _is_dag(car: bytes) -> bool:
    try:
        header = parse_event(car).header
    except CeramicError:  # reported where the event is needed
        return False
    return header is not None and header.sort_key == DAG_SORT_KEY
