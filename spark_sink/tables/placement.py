"""Where the rows of a node's log go in `raw_events`.

As long as the table has been filled from one log, a row has the same position in both. Once another
log was read, the positions differ, and rows whose events the table has already are left out. A
placement says it for a stretch of a log that the table has up to some position: the runs of
positions whose rows are to be appended, one behind the other, to the table.

Theory of operation. Nodes that reconcile hold the same events, each in an order of its own. So a
table that was filled from one node's log can go on from another's if the events that it has are
left out. They are told by their CIDs.

The state that is kept is a log and a position in it, the *read position*, of which only this is
said: the table has every event of the log up to there. It stays true whatever happens, because
neither a table nor a log loses or reorders events; a commit that appends the missing events up to a
later position may set it there. All else is computed from the log and the table themselves,
whenever a node is taken over or a run begins. So it does not matter where a run was interrupted.

- *Lacking* are the positions of the log whose events the table does not have. They are appended in
  the log's order. A log is causal, and what it has before an event and is not appended is in the
  table: so the table is causal, too.
- The table may have events that the log does not have yet. While there are any, each new event of
  the log has to be looked up. If the table has as many events as the log up to the read position,
  there are none: both have the same set, and reading goes on as if there were one node.

CIDs end with a SHA-256 digest. Half of it tells events apart: to make two with the same half takes
2^64 attempts. So an overlap needs 17 bytes of memory per event of the table.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

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


_ID_BYTES: Final = 16
Ids = npt.NDArray[np.bytes_]


def ids_of(cids: pa.Array) -> Ids:
    """Return the identities of events with these CIDs."""
    ends = pc.binary_slice(cids, -_ID_BYTES)
    if ends.null_count or (len(ends) and pc.min(pc.binary_length(ends)).as_py() < _ID_BYTES):
        raise ValueError("a CID of an event is too short")
    packed = ends.cast(pa.binary(_ID_BYTES))
    data = packed.buffers()[1]
    start = packed.offset * _ID_BYTES
    whole = memoryview(data)[start : start + len(packed) * _ID_BYTES]
    return np.frombuffer(whole, dtype=f"S{_ID_BYTES}")


class LogOverlap:
    """What a table and a log have in common, as far as the log is known.

    Args:
        held: the identities of the table's events, at most once each; sorted in place.

    Attributes:
        known: the position up to which the log is known.
        missing: how many of the table's events are not in the log up to there.
    """

    def __init__(self, held: Ids) -> None:
        held.sort()
        self._held = held  # that the log has not delivered, and some that it has
        self._delivered = np.zeros(len(held), bool)
        self._lacking: list[Positions] = []
        self.missing = len(held)
        self.known = 0

    def extend(self, ids: Ids) -> None:
        """Take note of the events that follow in the log."""
        positions = np.arange(self.known + 1, self.known + 1 + len(ids), dtype=np.int64)
        self.known += len(ids)
        if not self.missing:
            self._lacking.append(positions)
            return
        at = np.searchsorted(self._held, ids)
        at[at == len(self._held)] = 0
        is_held = self._held[at] == ids
        self._lacking.append(positions[~is_held])
        self._delivered[at[is_held]] = True
        self.missing -= int(np.count_nonzero(is_held))  # a log has each event once

    def shrink(self) -> None:
        """Free the memory of events that the log has delivered: it will not do so again."""
        self._held = self._held[~self._delivered]
        self._delivered = np.zeros(len(self._held), bool)

    def lacking(self, read_position: int) -> Positions:
        """Return the known positions after one whose events the table lacks; forget the others."""
        all_ = np.concatenate([*self._lacking, np.array([], np.int64)])
        self._lacking = [all_[all_ > read_position]]
        return self._lacking[0]

    def placement(self, read_position: int, base: int, most: int | None = None) -> Placement:
        """Return where the next rows go.

        Args:
            read_position: the position in the log up to which the table has everything.
            base: the table's position.
            most: the number of rows; None: all that are known.
        """
        lacking = self.lacking(read_position)
        if most is None or len(lacking) <= most:
            return Placement.of(lacking, self.known, base)
        return Placement.of(lacking[:most], int(lacking[most]) - 1, base)

    def scattered(self, read_position: int) -> int:
        """Return how many lacking events come before one that the table has.

        Those behind all events in common are not scattered: reading can just go on there.
        """
        lacking = self.lacking(read_position)
        if not len(lacking) or lacking[-1] != self.known:
            return len(lacking)
        # Each position less its index is the same throughout a run.
        runs = lacking - np.arange(len(lacking))
        return int(np.count_nonzero(runs != runs[-1]))


def all_ids(parts: Iterable[pa.Array], count: int) -> Ids:
    """Return the identities of `count` events whose CIDs come in parts.

    Raises:
        ValueError: it is another number of events.
    """
    ids = np.empty(count, f"S{_ID_BYTES}")
    end = 0
    for part in parts:
        start, end = end, end + len(part)
        if end > count:
            break
        ids[start:end] = ids_of(part)
    if end != count:
        raise ValueError(f"there are {end} events or more instead of {count}")
    return ids
