"""Lets the tables follow the log of one node, whichever log they were filled from before.

Theory of operation. Nodes that reconcile hold the same events, each in an order of its own. So a
table that was filled from one node's log can go on from another's if the events that it has are
left out. They are recognised by their CIDs.

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

CIDs end with a SHA-256 digest. Half of it identifies an event: to make two with the same half takes
2^64 attempts. So an overlap needs 17 bytes of memory per event of the table.

A `Follower` is made anew whenever another node is read, or a run begins. If the table has the same
events as the part of the log that was read, there is nothing to do. Otherwise the follower compares
the events of both:

1. Events that the table lacks in the midst of those that it has are fetched one range at a time, so
   that the others are not fetched again, and appended.
2. From there on, the streaming query reads the log. Before each batch is appended, the CIDs of what
   is new in the log say which of its rows the table has already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_sink.derive.workers import Workers, stage_ranges
from spark_sink.errors import SinkError, must_rebuild
from spark_sink.source.feed_client import Feed, Head
from spark_sink.source.source_options import RangePartition
from spark_sink.tables.placement import Placement, Positions
from spark_sink.tables.tables import Tables

_ROWS_PER_COMMIT: Final = 50_000
"""Rows that are fetched for one commit."""
_MOST_GAP: Final = 100
"""Positions between two wanted rows up to which they share a request."""
_MIN_PIECE: Final = 500
"""Positions up to which a range is not worth a task of its own."""
_ID_BYTES: Final = 16
"""Bytes at the end of a CID that distinguish events."""

Ids = npt.NDArray[np.bytes_]


class Follower:
    """Says where the rows of a node's log go in `raw_events`; first, call `begin`.

    Its methods raise `SinkError` if the node does not answer, or its log and the table cannot be
    compared. Nothing is lost.
    """

    def __init__(self, tables: Tables, feed: Feed) -> None:
        self._tables = tables
        self._feed = feed
        self._overlap: LogOverlap | None = None

    def begin(self, head: Head) -> None:
        """Read the log that ends at `head` from now on."""
        epoch, read_position = self._tables.reading.epoch, self._tables.reading.position
        self._feed.check(read_position, epoch, head)
        if self._tables.mirrors_log:
            return
        self._overlap = self._compared(head)
        lacking = self._overlap.lacking(0)
        if len(lacking) and lacking[0] <= read_position:
            # The node was restored from a backup, and went on otherwise: this is another log.
            self._tables.raw.read_from(epoch)

    def take_over(self, head: Head) -> None:
        """Change to another log, which ends at `head` and has events of the table, and begin."""
        overlap = self._compared(head)
        if overlap.missing and overlap.missing == self._tables.raw_position:
            raise SinkError(
                f"the node at {self._feed.url} has {head.head} events, but none of the "
                f"{overlap.missing} in {self._tables.directory}: name only nodes of one network, "
                "with the same interests"
            )
        self._overlap = overlap
        self._tables.raw.read_from(head.epoch)

    def placement(self) -> Placement:
        """Return where those rows of the log go that the node has by now."""
        if self._overlap is None or self._tables.mirrors_log:
            self._overlap = None
            return self._tables.following()
        reading = self._tables.reading
        head = self._feed.head()
        self._feed.check(reading.position, reading.epoch, head)
        self._extend(self._overlap, head)
        return self._overlap.placement(reading.position, self._tables.raw_position)

    def append_missing(self, workers: Workers, tasks: int, may_continue: Callable[[], bool]) -> int:
        """Append the events that the table lacks in the midst of those that it has.

        Args:
            workers: fetch and write the rows.
            tasks: how many of them at a time.
            may_continue: asked before each commit.

        Returns:
            How many were appended.
        """
        count = 0
        tables, overlap = self._tables, self._overlap
        while overlap is not None and may_continue():
            read_position = tables.reading.position
            most = min(overlap.scattered(read_position), _ROWS_PER_COMMIT)
            placement = overlap.placement(read_position, tables.raw_position, most)
            if not most and placement.upto <= read_position:
                break
            pieces = _pieces(placement.ranges(_MOST_GAP), tables.reading.epoch, tasks)
            stager, leave_out = tables.raw.stager(), tables.leave_out
            stage = partial(stage_ranges, self._feed, stager, placement, leave_out)
            parts = workers.map(stage, pieces) if pieces else ()
            count += tables.append_staged(chain.from_iterable(parts), placement)
            tables.clear_staging()
        return count

    @property
    def missing(self) -> int:
        """How many of the table's events the log does not have, as far as it is known."""
        return 0 if self._overlap is None else self._overlap.missing

    def _compared(self, head: Head) -> LogOverlap:
        count = self._tables.raw_position
        try:
            held = all_ids(self._tables.raw.files_upto(count).event_cids(), count)
        except ValueError as error:
            raise must_rebuild(self._tables.raw.path, f"is damaged: {error}") from None
        overlap = LogOverlap(held)
        self._extend(overlap, head)
        overlap.shrink()
        return overlap

    def _extend(self, overlap: LogOverlap, head: Head) -> None:
        for cids in self._feed.event_cids(overlap.known, head.head, head.epoch):
            overlap.extend(ids_of(cids))


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


def _pieces(
    ranges: Iterable[tuple[int, int]], epoch: str, tasks: int
) -> list[list[RangePartition]]:
    """Divide ranges (after, upto] of a log among some tasks, fewer if there is little to do."""
    all_ = list(ranges)
    total = sum(upto - after for after, upto in all_)
    size = max(_MIN_PIECE, -(-total // tasks))
    pieces: list[list[RangePartition]] = [[]]
    room = size
    for after, upto in all_:
        while after < upto:
            if not room:
                pieces.append([])
                room = size
            end = min(upto, after + room)
            pieces[-1].append(RangePartition(after, end, epoch))
            room -= end - after
            after = end
    return [piece for piece in pieces if piece]
