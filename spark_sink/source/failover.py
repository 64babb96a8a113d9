"""Which node is read, and which batch comes next.

With one node there is one log, and each event arrives exactly once. An offset is {epoch, position}.
A stream waits while the node is down, and fails if the node has another log. The checkpoint of a
query that had several nodes is understood, too; its last batch is repeated, as explained below.

Nodes that reconcile hold the same events, but each delivers them in its own order: a position in
one log says nothing about another. So when the node that was read is gone, the stream reads
another node's log from its beginning: **each event arrives at least once**, identified by its
`event_cid`. To have each event once, drop duplicates or merge by that column.

With several nodes an offset is {epoch, position, after}: its batch was (after, position] of the log
`epoch`. Spark plans a batch and writes it to the checkpoint before reading it, and the node may
disappear in between:

- A worker waits `failoverAfter` seconds for the log, then fails, and Spark restarts the task or the
  query. The driver is asked for the ranges of the batch again, cannot reach the log either, and
  leaves the batch empty. It then goes over to another log or, if this one is back by then, reads
  the range again with the next batch.
- If the driver dies in between, the next driver does not know whether the last batch was left
  empty. So the first batch of a restarted query begins where its last one began.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from spark_sink.errors import FeedChangedError, FeedUnreachableError
from spark_sink.source.feed import Feed, Head
from spark_sink.source.feed_columns import last_position
from spark_sink.source.mirrors import read_mirrored
from spark_sink.source.options import RangePartition, SourceOptions
from spark_sink.source.transfer import Retry

Offset = dict[str, Any]


class Nodes:
    """The feeds of one or several nodes; the one that answered last is asked first.

    Args:
        feeds: of the nodes whose logs count.
        mirrors: further nodes from which events are read by CID.
    """

    def __init__(self, feeds: Sequence[Feed], mirrors: Sequence[Feed] = ()) -> None:
        self._feeds = list(feeds)
        self._mirrors = list(mirrors)
        self.several = len(self._feeds) > 1

    @property
    def first(self) -> Feed:
        """The feed that answered last."""
        return self._feeds[0]

    def find(self, epoch: str | None = None) -> Head | None:
        """Return the head of the first node that answers; None if no node does.

        With several nodes and an `epoch`, only a node with that log counts. A single node is not
        held to it, because there is no other node: its caller has to check the log.

        Raises:
            FeedRefusedError: something answers, but not as a feed does.
        """
        for feed in self._feeds:
            try:
                head = feed.head(patience=0)
            except FeedUnreachableError:
                continue
            if not self.several or epoch in (None, head.epoch):
                self._feeds.remove(feed)
                self._feeds.insert(0, feed)
                return head
        return None

    def await_any(self, patience: float, epoch: str | None = None) -> Head:
        """Wait for what `find` returns.

        Raises:
            FeedUnreachableError: nothing within `patience` seconds.
            FeedRefusedError: something answers, but not as a feed does.
        """
        if not self.several:
            return self.first.head(patience)
        retry = Retry(patience)
        while (head := self.find(epoch)) is None:
            retry.wait(self.unreachable(epoch))
        return head

    def heads(self) -> dict[str, Head]:
        """Return the heads of all logs that can be reached now, by epoch."""
        heads: dict[str, Head] = {}
        for feed in self._feeds:
            with suppress(FeedUnreachableError):
                head = feed.head(patience=0)
                heads.setdefault(head.epoch, head)
        return heads

    def read(self, partition: RangePartition, patience: float) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range, from whichever node has its log; then close the connections.

        Raises:
            FeedUnreachableError: no row arrived for `patience` seconds.
            FeedChangedError: the only node has another log.
            FeedRefusedError: something answers, but not as a feed does.
        """
        try:
            if self.several:
                yield from self._read_any(partition, patience)
            else:
                yield from self._read_first(partition, partition.after, patience)
        finally:
            self.close()

    def unreachable(self, epoch: str | None) -> FeedUnreachableError:
        """The error when no node answers, or none with that log."""
        urls = ", ".join(sorted(feed.url for feed in self._feeds))
        what = "answers" if epoch is None else f"serves log {epoch} now"
        return FeedUnreachableError(
            f"none of the nodes at {urls} {what}: are they running? A restarted query continues "
            "from another node"
        )

    def close(self) -> None:
        """Close all connections."""
        for feed in (*self._feeds, *self._mirrors):
            feed.close()

    def _read_first(
        self, partition: RangePartition, after: int, patience: float
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows that are left of a range of the first node's log."""
        first, upto, epoch = self.first, partition.upto, partition.epoch
        mirror = first if partition.mirror is None else self._mirrors[partition.mirror]
        if mirror.url == first.url:
            return first.read(after, upto, epoch, patience)
        return read_mirrored(first, mirror, after, upto, epoch, patience)

    def _read_any(self, partition: RangePartition, patience: float) -> Iterator[pa.RecordBatch]:
        after, upto, epoch = partition.after, partition.upto, partition.epoch
        retry = Retry(patience)
        while after < upto:
            try:
                if self.find(epoch) is None:
                    raise self.unreachable(epoch)
                for batch in self._read_first(partition, after, patience=0):
                    yield batch
                    after = last_position(batch)
                    retry = Retry(patience)
                return
            except (FeedUnreachableError, FeedChangedError) as error:
                retry.wait(FeedUnreachableError(str(error)))


class BatchPlan:
    """Decides on the driver which batch is next.

    Args:
        nodes: where the logs are.
        patience: seconds to wait for a log.
        clock: tells the time in seconds.
    """

    def __init__(
        self, nodes: Nodes, patience: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._nodes = nodes
        self._patience = patience
        self._clock = clock
        self._silent_since: float | None = None
        self._read: Offset | None = None  # the end of the last batch that was not left empty
        self._ends: dict[str, Head] | None = None  # where to stop in each log, by epoch

    def offset(self, epoch: str, position: int, after: int) -> Offset:
        """Return the offset at the end of the batch (after, position]."""
        offset: Offset = {"epoch": epoch, "position": position}
        return {**offset, "after": after} if self._nodes.several else offset

    def end_at_head(self) -> None:
        """Stop in every log where it ends now.

        Raises:
            FeedUnreachableError: no node answers.
        """
        head = self._nodes.await_any(self._patience)
        self._ends = self._nodes.heads() if self._nodes.several else {head.epoch: head}

    def head(self) -> Head | None:
        """Return the head that the stream is heading for; None if no node answers.

        Raises:
            FeedRefusedError: something answers, but not as a feed does.
        """
        if self._ends and not self._nodes.several:
            return next(iter(self._ends.values()))
        return self._nodes.find()

    def next(self, start: Offset, limit: int | None) -> Offset:
        """Return the end of the batch after `start`, or `start` if there is nothing to read now.

        Raises:
            FeedChangedError: the log of `start` was cut, or the only node has another log.
            FeedUnreachableError: the logs end where they did at the start, and none is left.
        """
        epoch, position = str(start["epoch"]), int(start["position"])
        head = self._head_of(epoch)
        if head is None:
            return self._next_log(start, limit) if self._nodes.several else start
        self._nodes.first.check(position, epoch, head)
        # A query that was started with one url has no `after` in its checkpoint.
        after = start.get("after", position)
        begin = position if start == self._read else after
        end = head.head if limit is None else min(head.head, position + limit)
        if begin == end:
            return start
        offset = self.offset(epoch, end, begin)
        if begin != position:
            offset["after"] = begin
        if end == position:  # only a repetition: Spark must see that it is another batch
            offset["again"] = start.get("again", 0) + 1
        return offset

    def ranges(self, start: Offset, end: Offset, options: SourceOptions) -> list[RangePartition]:
        """Return the ranges of a batch; with several nodes, none if its log is gone."""
        epoch = str(end["epoch"])
        if self._nodes.several:
            try:
                self._nodes.await_any(self._patience, epoch)
            except FeedUnreachableError:
                self._silent_since = self._clock() - self._patience
                if self._ends is not None:
                    self._ends.pop(epoch, None)
                return []
        self._read = end
        after = int(end["after"] if "after" in end else start["position"])
        return options.ranges(after, int(end["position"]), epoch)

    def _head_of(self, epoch: str) -> Head | None:
        """Return where a log ends; None while no node has it. With fixed ends, wait for a node."""
        if self._ends is None:
            head = self._nodes.find(epoch)
        else:
            head = self._ends.get(epoch)
            if head is None:
                try:
                    head = self._ends[epoch] = self._nodes.await_any(self._patience, epoch)
                except FeedUnreachableError:
                    return None
        if head is not None:
            self._silent_since = None
        return head

    def _next_log(self, start: Offset, limit: int | None) -> Offset:
        """Return the first batch of another log, once this one has been away for long enough."""
        if self._ends is None:
            now = self._clock()
            self._silent_since = now if self._silent_since is None else self._silent_since
            if now - self._silent_since < self._patience:
                return start
        heads = self._nodes.heads() if self._ends is None else self._ends
        for epoch, head in heads.items():
            if epoch != start["epoch"]:
                self._silent_since = None
                end = head.head if limit is None else min(head.head, head.low + limit)
                return self.offset(epoch, end, head.low)
        if self._ends is not None:
            raise self._nodes.unreachable(start["epoch"])
        return start
