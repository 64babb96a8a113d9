"""Reads the feed into the tables: one streaming query, or several, each from another node.

With one node, there is one query. It waits while the node is down, and its errors end the run.

With several nodes, a query ends when the log that it reads has been silent for a while, or is gone.
Then another node is chosen (`RunNodes`), and a `Follower` makes the tables ready to go on from its
log. A query's checkpoint is of no use to the next one, and the tables say where to go on: so it is
deleted before each query, and whenever the tables have ever changed logs.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_sink.derive.workers import SparkWorkers
from spark_sink.errors import FeedChangedError, FeedRefusedError, FeedUnreachableError, SinkError
from spark_sink.run.cluster import calling_after
from spark_sink.run.follower import Follower
from spark_sink.run.pipeline import QuerySettings, Sink, start_query
from spark_sink.run.spark_session import is_without_process, translate
from spark_sink.source.feed_client import Feed, Head
from spark_sink.tables.delta_log import Reading
from spark_sink.tables.tables import Tables

SINK_CLOSE_TIMEOUT: Final = 30.0
"""Seconds to wait for the current batch at the end."""
_STARTS: Final = 3
"""How often a query is started in all, if Spark waits for its Python process in vain."""
_POLL: Final = 0.2
"""Seconds between two looks at the query."""
_ASK_NODE_EVERY: Final = 5.0
"""Seconds between two looks at the node and the disk."""
_ASK_NODES_EVERY: Final = 0.5
"""Seconds between two rounds of questions for a node to read."""
SILENCE: Final = 1.0
"""Seconds without an answer after which `waiting` is reported."""
_FAILOVER_PAUSE: Final = 1.0
"""Seconds before another node is chosen when the last one was of no use."""
_ASKS_BEFORE_FAILOVER: Final = 3
"""Questions without an answer before a node counts as silent, at least."""
_CHECKPOINT: Final = ("commits", "offsets", "sources", "state", "metadata")
"""What Spark writes to a checkpoint. The last one, a file, distinguishes a checkpoint from a
directory that was named by mistake."""


class FeedReader:
    """Reads the feed of one node, or of one after another, into the tables.

    Args:
        spark: runs the queries.
        tables: to fill.
        nodes: to read from.
        query: the settings of each query; the node's are filled in.
        sink: makes the sink of a query.
        patience: seconds to wait for a node, if the run ends at the head.
        stop: ends the run.
        on_event: called with the events of going from one node to another.
        on_look: called every few seconds with the node's head; None: it does not answer.
    """

    def __init__(
        self,
        spark: SparkSession,
        tables: Tables,
        nodes: RunNodes,
        query: QuerySettings,
        *,
        sink: Callable[[Follower], Sink],
        patience: float,
        stop: threading.Event,
        on_event: Callable[[str, dict[str, Any]], None],
        on_look: Callable[[int | None], None],
    ) -> None:
        self._spark = spark
        self._tables = tables
        self._nodes = nodes
        self._query = query
        self._sink = sink
        self._patience = patience if query.trigger_ms is None else None
        self._stop = stop
        self._on_event = on_event
        self._on_look = on_look
        self._current: Sink | None = None

    @property
    def doing(self) -> str | None:
        """What it does at the moment; None: it waits."""
        return None if self._current is None else self._current.doing

    def head(self) -> int | None:
        """Return the position of `raw_events` when everything in the feed is read.

        None if the node does not answer, refuses to, or has another log.
        """
        try:
            head = self._nodes.current.head(patience=0)
        except SinkError:  # unless the node is just down, the query fails with it, too
            return None
        return (
            self._tables.position_when_read_to(head.head)
            if head.epoch == self._tables.reading.epoch
            else None
        )

    def run(self, head: Head) -> None:
        """Read until the run is stopped, or up to the head of a node.

        Raises:
            SinkError: what ended it. The tables are consistent.
        """
        next_head: Head | None = head
        while next_head is not None and not self._stop.is_set():
            begun = self._tables.reading
            try:
                self._read(next_head)
                return
            except (FeedUnreachableError, FeedChangedError, FeedRefusedError) as error:
                if not self._nodes.several or self._stop.is_set():
                    raise
                facts = {"url": self._nodes.current.url, "reason": str(error)}
                self._on_event("lost", facts)
            # Its log may be there and unreadable: that there was no progress says so.
            avoid = next_head.epoch if self._tables.reading == begun else None
            if avoid is not None:
                self._stop.wait(_FAILOVER_PAUSE)
            next_head = self._next_node(avoid)

    def _next_node(self, avoid: str | None) -> Head | None:
        self._on_look(None)
        since = time.monotonic() - self._nodes.failover_after
        urls = self._nodes.urls
        facts = {"url": urls, "reason": f"no node of {urls} can be read"}
        with calling_after(SILENCE, partial(self._on_event, "waiting", facts)):
            head = self._nodes.choose(
                self._tables.reading,
                self._stop,
                silent_since=since,
                patience=self._patience,
                avoid=avoid,
            )
        if head is not None and head.epoch == self._tables.reading.epoch:
            self._on_event("resumed", {"url": self._nodes.current.url})
        return head

    def _read(self, head: Head) -> None:
        """Read the log of the current node."""
        follower = Follower(self._tables, self._nodes.current)
        self._current = sink = self._sink(follower)
        with sink.as_sink_errors():
            if head.epoch == self._tables.reading.epoch:
                follower.begin(head)
                self._append_missing(follower)
            else:
                self._take_over(follower, head)
        sink.catch_up()
        self._on_look(self._tables.position_when_read_to(head.head))
        self._run_query(sink)

    def _take_over(self, follower: Follower, head: Head) -> None:
        started = time.monotonic()
        facts = {"url": self._nodes.current.url, "epoch": head.epoch, "head": head.head}
        self._on_event("taking_over", {**facts, "from": self._tables.reading.epoch})
        follower.take_over(head)
        rows = self._append_missing(follower)
        outcome = {
            **facts,
            "rows": rows,
            "missing": follower.missing,
            "position": self._tables.raw_position,
            "seconds": round(time.monotonic() - started, 3),
        }
        self._on_event("took_over", outcome)

    def _append_missing(self, follower: Follower) -> int:
        workers = SparkWorkers(self._spark)
        tasks = self._query.partitions or self._spark.sparkContext.defaultParallelism
        return follower.append_missing(workers, tasks, self._may_continue)

    def _may_continue(self) -> bool:
        self._on_look(self.head())
        return not self._stop.is_set()

    def _run_query(self, sink: Sink, starts: int = _STARTS) -> None:
        """Run a query until it ends, the run is stopped, or the node is silent for too long."""
        checkpoint = self._query.checkpoint
        if self._nodes.several or self._tables.raw.has_changed_logs:
            delete_checkpoint(checkpoint)
        url = self._nodes.current.url
        patience = self._nodes.failover_after if self._nodes.several else None
        query = start_query(self._spark, sink, replace(self._query, url=url, patience=patience))
        try:
            self._watch(query, sink)
        except FeedUnreachableError:
            while not sink.close(SINK_CLOSE_TIMEOUT) and not self._stop.is_set():
                pass
            with suppress(Exception):  # its workers may just have noticed, too
                query.stop()
            raise
        except Exception:  # whoever catches it lets go of the tables, or ends the process
            sink.close(SINK_CLOSE_TIMEOUT)
            raise
        if self._stop.is_set():
            sink.close(SINK_CLOSE_TIMEOUT)
            query.stop()
        elif (failure := query.exception()) is None:
            sink.finish()
        elif starts > 1 and sink.error is None and is_without_process(failure):
            self._run_query(sink, starts - 1)  # this one has read nothing
        else:
            sink.close(SINK_CLOSE_TIMEOUT)
            raise sink.error or translate(failure) from failure

    def _watch(self, query: StreamingQuery, sink: Sink) -> None:
        """Wait until the query ends or the run is stopped; report if the node comes or goes.

        Raises:
            FeedUnreachableError: with several nodes, this one has been silent for too long.
        """
        answers = True
        answered = asked = time.monotonic()
        every = _ASK_NODE_EVERY
        if self._nodes.several:
            every = min(every, self._nodes.failover_after / _ASKS_BEFORE_FAILOVER)
        while query.isActive and not self._stop.wait(_POLL):
            if time.monotonic() - asked < every:
                continue
            asked = time.monotonic()
            head = self.head()
            self._on_look(head)
            sink.fill_new_views()
            if head is not None:
                answered = time.monotonic()
            if (head is not None) != answers:
                answers = not answers
                url = self._nodes.current.url
                reason = {"reason": f"the node at {url} does not answer any more"}
                event = "resumed" if answers else "waiting"
                self._on_event(event, {"url": url} | ({} if answers else reason))
            if self._nodes.several and asked - answered >= self._nodes.failover_after:
                raise FeedUnreachableError(
                    f"the node at {self._nodes.current.url} does not answer any more"
                )


def delete_checkpoint(directory: Path) -> None:
    """Delete Spark's checkpoint from a directory, and nothing else; an interrupted call, too."""
    *folders, sign = (directory / name for name in _CHECKPOINT)
    if sign.is_file():
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        sign.unlink()


class RunNodes:
    """The nodes that a run may read: the one whose log was read so far, or else another one.

    Args:
        feeds: of the nodes, at least one.
        failover_after: seconds without the log that is read, after which another one is.

    Attributes:
        current: the feed of the node that is read.
        trouble: why a node did not answer, the last time that one did not.
    """

    def __init__(self, feeds: Sequence[Feed], failover_after: float) -> None:
        self._feeds = list(feeds)
        self.failover_after = failover_after
        self.current = self._feeds[0]
        self.trouble = ""
        self._refusal: FeedRefusedError | None = None
        self._heads: dict[Feed, Head | None] = {}

    @property
    def several(self) -> bool:
        """Whether there is more than one."""
        return len(self._feeds) > 1

    @property
    def urls(self) -> str:
        """The addresses of all nodes, for people."""
        return ", ".join(feed.url for feed in self._feeds)

    def find(self, reading: Reading | None, patience: float) -> Head:
        """Return the head of the node to read first.

        Args:
            reading: how far the log was read; with one node, its log is not checked.
            patience: seconds to wait for a node; with one, it is the feed's own.

        Raises:
            SinkError: as `choose`.
        """
        if not self.several:
            return self.current.head(on_failure=self._note)
        now = time.monotonic()
        head = self.choose(reading, threading.Event(), silent_since=now, patience=patience)
        assert head is not None
        return head

    def choose(
        self,
        reading: Reading | None,
        stop: threading.Event,
        *,
        silent_since: float,
        patience: float | None,
        avoid: str | None = None,
    ) -> Head | None:
        """Return the head of the node to read, which becomes the current one; None when stopped.

        Args:
            reading: how far the log was read; None: nothing was, and any node will do.
            stop: ends the wait.
            silent_since: when the log was last there, by the monotonic clock.
            patience: seconds to wait for any node beyond `failover_after`; None: for ever.
            avoid: take this log only if there is no other.

        Raises:
            FeedUnreachableError: no node answers.
            FeedRefusedError: what answers does not do so as a feed does.
            FeedChangedError: the nodes that answer are of no use.
        """
        begun = time.monotonic()
        while True:
            self._refusal = None
            self._heads.clear()
            now = time.monotonic()
            may_change = now - silent_since >= self.failover_after
            chosen = None if reading and avoid == reading.epoch else self._with_log(reading)
            if chosen is None and reading is not None and may_change:
                chosen = (
                    self._other(reading, avoid)
                    or self._with_log(reading)
                    or self._other(reading, None)
                )
            if chosen is not None:
                self.current, head = chosen
                return head
            if patience is not None and now - begun >= patience + self.failover_after:
                raise self._refusal or self._useless(reading)
            if stop.wait(_ASK_NODES_EVERY):
                return None

    def _with_log(self, reading: Reading | None) -> tuple[Feed, Head] | None:
        """Return the node with the log, as far as it was read; the current one is asked first."""
        for feed in sorted(self._feeds, key=lambda feed: feed is not self.current):
            head = self._ask(feed)
            if head is not None and (reading is None or _has_log(reading, head)):
                return feed, head
        return None

    def _other(self, reading: Reading, avoid: str | None) -> tuple[Feed, Head] | None:
        """Return the node with the most events among those with other logs, at least one."""
        heads = [(feed, head) for feed in self._feeds if (head := self._ask(feed)) is not None]
        others = [head for head in heads if head[1].epoch not in (reading.epoch, avoid)]
        most = max(others, key=lambda pair: pair[1].head, default=None)
        return most if most is not None and most[1].head else None

    def _ask(self, feed: Feed) -> Head | None:
        """Return the head of a node; None if it does not answer or refuses to.

        It is asked once in a round: one that hangs takes half a minute not to answer.
        """
        if feed not in self._heads:
            self._heads[feed] = None
            try:
                self._heads[feed] = feed.head(patience=0, on_failure=self._note)
            except FeedRefusedError as error:
                self._refusal = error
                self._note(error)
            except FeedUnreachableError:
                pass
        return self._heads[feed]

    def _note(self, error: SinkError) -> None:
        self.trouble = str(error)

    def _useless(self, reading: Reading | None) -> SinkError:
        if reading is not None and any(self._heads.values()):
            return FeedChangedError(
                f"none of the nodes at {self.urls} has log {reading.epoch} up to position "
                f"{reading.position}, and none has events in another log to go on from: name one "
                "that has"
            )
        return FeedUnreachableError(f"none of the nodes at {self.urls} answers: are they running?")


def _has_log(reading: Reading, head: Head) -> bool:
    return head.epoch == reading.epoch and head.low <= reading.position <= head.head
