"""Lets the tables follow the log of one node, whichever log they were filled from before.

`spark_sink.tables.placement` has the theory. A `Follower` is made anew whenever another node is
read, or a run begins. If the table has the same events as the part of the log that was read, there
is nothing to do. Otherwise the follower compares the events of both, by their CIDs:

1. Events that the table lacks in the midst of those that it has are fetched one range at a time, so
   that the others are not fetched again, and appended.
2. From there on, the streaming query reads the log. Before each batch is appended, the CIDs of what
   is new in the log say which of its rows the table has already.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from typing import Final

import pyarrow as pa

from spark_sink.derive.workers import Workers
from spark_sink.errors import SinkError, damaged
from spark_sink.source.feed_client import Feed, Head
from spark_sink.tables.dags import LeaveOut
from spark_sink.tables.directory import Tables
from spark_sink.tables.placement import LogOverlap, Placement, all_ids, ids_of
from spark_sink.tables.staging import StagedFeed, Stager, stage_feed

# Rows that are fetched for one commit.
_ROWS_PER_COMMIT: Final = 50_000
# Positions between two rows that are wanted, for which another request would cost more.
_MOST_GAP: Final = 100
# Positions that are not worth a task of their own.
_MIN_PIECE: Final = 500

Range = tuple[int, int]


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
            pieces = _pieces(placement.ranges(_MOST_GAP), tasks)
            stage = partial(
                _stage,
                self._feed,
                tables.reading.epoch,
                placement,
                tables.raw.stager(),
                leave_out=tables.leave_out,
            )
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
            raise damaged(self._tables.raw.path, str(error)) from None
        overlap = LogOverlap(held)
        self._extend(overlap, head)
        overlap.shrink()
        return overlap

    def _extend(self, overlap: LogOverlap, head: Head) -> None:
        for cids in self._feed.event_cids(overlap.known, head.head, head.epoch):
            overlap.extend(ids_of(cids))


def _pieces(ranges: Iterable[Range], tasks: int) -> list[list[Range]]:
    """Divide ranges (after, upto] among some tasks, fewer if there is little to do."""
    all_ = list(ranges)
    total = sum(upto - after for after, upto in all_)
    size = max(_MIN_PIECE, -(-total // tasks))
    pieces: list[list[Range]] = [[]]
    room = size
    for after, upto in all_:
        while after < upto:
            if not room:
                pieces.append([])
                room = size
            end = min(upto, after + room)
            pieces[-1].append((after, end))
            room -= end - after
            after = end
    return [piece for piece in pieces if piece]


def _stage(
    feed: Feed,
    epoch: str,
    placement: Placement,
    stager: Stager,
    ranges: Sequence[Range],
    *,
    leave_out: LeaveOut,
) -> list[StagedFeed]:
    """Fetch the rows of some ranges of a log, and write those that have a place to files."""

    def rows() -> Iterable[pa.RecordBatch]:
        for after, upto in ranges:
            yield from feed.read(after, upto, epoch)

    try:
        return list(stage_feed(map(leave_out, rows()), stager, placement))
    finally:
        feed.close()
