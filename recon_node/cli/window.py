"""Which events of an input may be sent now: each only after everything it depends on.

The window holds events from the time they are read until the node acknowledges them. An event that
depends on others in the window is blocked until those are acknowledged, or follows them in the same
batch, which the node admits in order. A parent may also come later in the input, so nothing is
taken from a window that is not full, unless the input has ended.

Pure: no clock, no I/O. Memory is bounded by the window, however long the input.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from recon_node.cli.sources import Item
from recon_node.ipld import CID

LOOKAHEAD = 10_000
"""Maximum events in a window: a parent that follows its child at a greater distance is too late."""
LOOKAHEAD_BYTES = 64 * 1024 * 1024
"""The same bound, in bytes of the input."""
BATCH_EVENTS = 500
BATCH_BYTES = 512 * 1024
"""Larger batches are not faster, and every node accepts a batch of this size."""


@dataclass(slots=True, eq=False)
class WindowEntry:
    """An event of the window."""

    item: Item
    number: int
    """Its place in the input."""
    blockers: int = 0
    """Parents in the window, which are not acknowledged yet."""


class Window:
    """The events that are read but not acknowledged."""

    def __init__(self) -> None:
        self._count = 0
        self._waiting: dict[int, WindowEntry] = {}
        self._waiting_bytes = 0
        self._by_cid: dict[CID, WindowEntry] = {}
        self._children: dict[CID, dict[int, WindowEntry]] = {}
        self._ready: list[int] = []
        """A heap. Events that were taken or blocked since are skipped."""
        self.ended = False
        """Whether the input has ended: set by the reader."""

    @property
    def is_full(self) -> bool:
        """Whether it is time to send rather than to read on."""
        return len(self._waiting) >= LOOKAHEAD or self._waiting_bytes >= LOOKAHEAD_BYTES

    @property
    def is_done(self) -> bool:
        """Whether the input has ended and each of its events was taken."""
        return self.ended and not self._waiting

    def add(self, item: Item) -> None:
        """Add the next event of the input."""
        entry = WindowEntry(item, self._count)
        self._count += 1
        self._waiting[entry.number] = entry
        self._waiting_bytes += item.size
        for parent in item.parents:
            self._children.setdefault(parent, {})[entry.number] = entry
            entry.blockers += parent in self._by_cid
        if item.cid is not None and item.cid not in self._by_cid:
            self._by_cid[item.cid] = entry
            for child in self._children.get(item.cid, {}).values():
                child.blockers += 1
        if not entry.blockers:
            heapq.heappush(self._ready, entry.number)

    def take(self) -> list[WindowEntry]:
        """Take the next batch, in the order in which to admit it; it may be empty for now."""
        batch: list[WindowEntry] = []
        if not (self.is_full or self.ended):
            return batch
        size = 0
        free: list[int] = []  # blocked only by parents in this very batch
        left: dict[int, int] = {}
        while len(batch) < BATCH_EVENTS and size < BATCH_BYTES:
            number = self._next(free)
            if number is None:
                break
            entry = self._waiting.pop(number)
            batch.append(entry)
            size += entry.item.size
            for at, child in self._children_of(entry).items():
                left[at] = left.get(at, child.blockers) - 1
                if not left[at] and at in self._waiting:
                    heapq.heappush(free, at)
        self._waiting_bytes -= size
        return batch

    def acknowledge(self, batch: list[WindowEntry]) -> None:
        """Note that the node has answered for a batch, whatever the answer."""
        for entry in batch:
            for at, child in self._children_of(entry).items():
                child.blockers -= 1
                if not child.blockers and at in self._waiting:
                    heapq.heappush(self._ready, at)
        for entry in batch:
            self._forget(entry)

    def _next(self, free: list[int]) -> int | None:
        """Return the first event in the input that is ready or that the batch has freed."""
        ready = self._ready
        while ready and (ready[0] not in self._waiting or self._waiting[ready[0]].blockers):
            heapq.heappop(ready)
        heaps = [heap for heap in (ready, free) if heap]
        return heapq.heappop(min(heaps)) if heaps else None

    def _children_of(self, entry: WindowEntry) -> dict[int, WindowEntry]:
        """Return what waits for an event: for its first copy, if the input repeats it."""
        cid = entry.item.cid
        if cid is None or self._by_cid.get(cid) is not entry:
            return {}
        return self._children.get(cid, {})

    def _forget(self, entry: WindowEntry) -> None:
        cid = entry.item.cid
        if cid is not None and self._by_cid.get(cid) is entry:
            del self._by_cid[cid]
        for parent in entry.item.parents:
            siblings = self._children[parent]
            del siblings[entry.number]
            if not siblings:
                del self._children[parent]
