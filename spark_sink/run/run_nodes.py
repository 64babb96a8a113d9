"""Chooses the node that a run reads: the one whose log was read so far, or else another one."""

import threading
import time
from collections.abc import Sequence
from typing import Final

from spark_sink.errors import (
    FeedChangedError,
    FeedRefusedError,
    FeedUnreachableError,
    SinkError,
)
from spark_sink.source.feed_client import Feed, Head
from spark_sink.tables.delta_log import Reading

# Seconds between two rounds of questions.
_POLL: Final = 0.5


class RunNodes:
    """The nodes that a run may read.

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
            if stop.wait(_POLL):
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
