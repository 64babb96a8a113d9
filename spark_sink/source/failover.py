"""Reading several nodes of one set, one at a time: when its node is gone, another one's log.

Nodes that reconcile hold the same events, but each delivers them in an order of its own: a position
in one log says nothing about another. So a stream that goes over to another node reads that node's
log from its beginning. What it had read already comes again, and nothing is left out: **each event
arrives at least once**, and its key is `event_cid`. Whoever wants it once drops duplicates by that,
or merges by it. With one url there is no other log, and each event arrives exactly once.

An offset here is {epoch, position, after}: its batch was (after, position] of the log `epoch`. A
batch is planned, and written down by Spark, before it is read; the node may go in between. What
then?

- A reader waits `failoverAfter` seconds for its log, then fails, and Spark's task or the query is
  started again. The driver is asked for the ranges of the batch anew, cannot reach the log either,
  and leaves the batch empty. It goes over to another log, or, when this one is back by then, reads
  the range again with the next batch.
- Should the driver die in between, the next one does not know whether the last batch was left
  empty. So the first batch of a query that was started again begins where its last one began.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from spark_sink.errors import FeedChangedError, FeedUnreachableError
from spark_sink.source.feed import Feed, Head, Retry, last_position
from spark_sink.source.options import RangePartition, SourceOptions

Offset = dict[str, Any]


class Nodes:
    """The feeds of several nodes; the one that answered last is asked first."""

    def __init__(self, feeds: Sequence[Feed]) -> None:
        self._feeds = list(feeds)

    @property
    def first(self) -> Feed:
        """The feed that answered last."""
        return self._feeds[0]

    def find(self, epoch: str | None = None) -> tuple[Feed, Head] | None:
        """The first feed that answers, with the log `epoch` if one is given, and its head.

        Raises:
            FeedRefusedError: an answer is no feed's.
        """
        for feed in self._feeds:
            try:
                head = feed.head(patience=0)
            except FeedUnreachableError:
                continue
            if epoch in (None, head.epoch):
                self._feeds.remove(feed)
                self._feeds.insert(0, feed)
                return feed, head
        return None

    def await_any(self, patience: float, epoch: str | None = None) -> Head:
        """The head of a node, or of the log `epoch`; waits for it.

        Raises:
            FeedUnreachableError: it is not there within `patience` seconds.
            FeedRefusedError: an answer is no feed's.
        """
        retry = Retry(patience)
        while (found := self.find(epoch)) is None:
            retry.wait(self.nobody(epoch))
        return found[1]

    def heads(self) -> dict[str, Head]:
        """The heads of all logs that can be reached now, by their epochs."""
        heads: dict[str, Head] = {}
        for feed in self._feeds:
            with suppress(FeedUnreachableError):
                head = feed.head(patience=0)
                heads.setdefault(head.epoch, head)
        return heads

    def read(self, partition: RangePartition, patience: float) -> Iterator[pa.RecordBatch]:
        """The rows of a range, from whichever node has its log.

        Raises:
            FeedUnreachableError: no row arrived for `patience` seconds.
            FeedRefusedError: an answer is no feed's.
        """
        after, upto, epoch = partition.after, partition.upto, partition.epoch
        retry = Retry(patience)
        while after < upto:
            found = self.find(epoch)
            try:
                if found is None:
                    raise self.nobody(epoch)
                for batch in found[0].read(after, upto, epoch, patience=0):
                    yield batch
                    after = last_position(batch)
                    retry = Retry(patience)
                return
            except (FeedUnreachableError, FeedChangedError) as error:
                retry.wait(FeedUnreachableError(str(error)))

    def nobody(self, epoch: str | None) -> FeedUnreachableError:
        """What is wrong when no node answers, or none with that log."""
        urls = ", ".join(sorted(feed.url for feed in self._feeds))
        what = "answers" if epoch is None else f"serves the log {epoch} now"
        return FeedUnreachableError(
            f"none of the nodes at {urls} {what}: are they running? A query that is started again "
            "reads on from another one"
        )

    def close(self) -> None:
        """Give back all connections."""
        for feed in self._feeds:
            feed.close()


class FailOver:
    """Which batch is next, on the driver: pure but for what the nodes answer and for the clock."""

    def __init__(
        self, nodes: Nodes, after: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.nodes = nodes
        self._after = after
        self._clock = clock
        self._silent_since: float | None = None
        self._read: Offset | None = None  # the end of the last batch that was not left empty
        self._ends: dict[str, Head] | None = None  # of the logs, where they shall end

    def only_up_to_now(self) -> None:
        """Let all logs end where they end now.

        Raises:
            FeedUnreachableError: there is no node to ask.
        """
        self.nodes.await_any(self._after)
        self._ends = self.nodes.heads()

    def next(self, start: Offset, limit: int | None) -> Offset:
        """The end of the batch after `start`; `start` itself when there is nothing to read now.

        Raises:
            FeedChangedError: the log of `start` was cut.
            FeedUnreachableError: with fixed ends, no log is left.
        """
        epoch, position = start["epoch"], start["position"]
        head = self._head(epoch)
        if head is None:
            return self._another(start, limit)
        self.nodes.first.check(position, epoch, head)
        whole = start["after"] == position or start == self._read
        begin = position if whole else start["after"]
        end = head.head if limit is None else min(head.head, position + limit)
        if begin == end:
            return start
        offset = {"epoch": epoch, "position": end, "after": begin}
        if end == position:  # nothing but a repetition: Spark must see that it is another batch
            offset["again"] = start.get("again", 0) + 1
        return offset

    def ranges(self, end: Offset, options: SourceOptions) -> list[RangePartition]:
        """The ranges of a batch; none when its log is gone."""
        epoch = end["epoch"]
        try:
            self.nodes.await_any(self._after, epoch)
        except FeedUnreachableError:
            self._silent_since = self._clock() - self._after
            if self._ends is not None:
                self._ends.pop(epoch, None)
            return []
        self._read = end
        return options.ranges(end["after"], end["position"], epoch)

    def _head(self, epoch: str) -> Head | None:
        """Where a log ends; None while no node has it. With fixed ends, waits for a node."""
        if self._ends is None:
            found = self.nodes.find(epoch)
            head = None if found is None else found[1]
        else:
            head = self._ends.get(epoch)
            if head is None:
                try:
                    head = self._ends[epoch] = self.nodes.await_any(self._after, epoch)
                except FeedUnreachableError:
                    return None
        if head is not None:
            self._silent_since = None
        return head

    def _another(self, start: Offset, limit: int | None) -> Offset:
        """The first batch of another log, once this one was away for long enough."""
        if self._ends is None:
            now = self._clock()
            self._silent_since = now if self._silent_since is None else self._silent_since
            if now - self._silent_since < self._after:
                return start
        heads = self.nodes.heads() if self._ends is None else self._ends
        for epoch, head in heads.items():
            if epoch != start["epoch"]:
                self._silent_since = None
                end = head.head if limit is None else min(head.head, head.low + limit)
                return {"epoch": epoch, "position": end, "after": head.low}
        if self._ends is not None:
            raise self.nodes.nobody(start["epoch"])
        return start
