"""Which events of a log a table has already: what it takes to go on from another node.

Theory of operation. Nodes that reconcile hold the same events, each in an order of its own. So a
table that was filled from one node's log can go on from another's if the events that it has are
left out. They are told by their CIDs.

The state that is kept is a log and a position in it, *read*, of which only this is said: the table
has every event of the log up to there. It stays true whatever happens, because neither a table nor
a log loses or reorders events; a commit that appends the missing events up to a later position may
set it there. All else is computed from the log and the table themselves, whenever a node is taken
over or a run begins. So it does not matter where a run was interrupted.

- *Lacking* are the positions of the log whose events the table does not have. They are appended in
  the log's order. A log is causal, and what it has before an event and is not appended is in the
  table: so the table is causal, too.
- The table may have events that the log does not have yet. While there are any, each new event of
  the log has to be looked up. If the table has as many events as the log up to *read*, there are
  none: both have the same set, and reading goes on as if there were one node.

CIDs end with a SHA-256 digest. Half of it tells events apart: to make two with the same half takes
2^64 attempts. So an overlap needs 17 bytes of memory per event of the table.
"""

from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_sink.tables.placement import Placement, Positions

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
        found = self._held[at] == ids
        self._lacking.append(positions[~found])
        self._delivered[at[found]] = True
        self.missing -= int(np.count_nonzero(found))  # a log has each event once

    def shrink(self) -> None:
        """Free the memory of events that the log has delivered: it will not do so again."""
        self._held = self._held[~self._delivered]
        self._delivered = np.zeros(len(self._held), bool)

    def lacking(self, read: int) -> Positions:
        """Return the known positions after one whose events the table lacks; forget the others."""
        all_ = np.concatenate([*self._lacking, np.array([], np.int64)])
        self._lacking = [all_[all_ > read]]
        return self._lacking[0]

    def placement(self, read: int, base: int, most: int | None = None) -> Placement:
        """Return where the next rows go.

        Args:
            read: the position in the log up to which the table has everything.
            base: the table's position.
            most: the number of rows; None: all that are known.
        """
        lacking = self.lacking(read)
        if most is None or len(lacking) <= most:
            return Placement.of(lacking, self.known, base)
        return Placement.of(lacking[:most], int(lacking[most]) - 1, base)

    def scattered(self, read: int) -> int:
        """Return how many lacking events come before one that the table has.

        Those behind all events in common are not scattered: reading can just go on there.
        """
        lacking = self.lacking(read)
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
