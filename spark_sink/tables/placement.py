"""Where the rows of a node's log go in `raw_events`.

As long as the table has been filled from one log, a row has the same position in both. Once another
log was read, the positions differ, and rows whose events the table has already are left out. A
placement says it for a stretch of a log that the table has up to some position: the runs of
positions whose rows are to be appended, one behind the other, to the table.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Positions = npt.NDArray[np.int64]

_LAST: Final = 2**63 - 1


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
