"""Sending the events of a file to a node, each after everything it depends on.

One task reads the file (`event_file`) into a window (`Window`), in a thread, since reading may
block. A few others each take a batch from the window, send it as NDJSON in one request over a
connection that stays open, and acknowledge it, which releases the events that depend on it. A node
that takes one event per request (ceramic-one) gets a batch one event at a time.

The window holds events from the time they are read until the node acknowledges them. An event that
depends on others in the window is blocked until those are acknowledged, or follows them in the same
batch, which the node admits in order. A parent may also come later in the input. So an event of
which a parent was not read yet, as far as the window remembers, is taken only when the window is
full, or the input has ended; whole batches of other events are taken before. Memory is bounded by
the window, however long the input.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from itertools import islice
from typing import NamedTuple, NotRequired, TypedDict

import msgspec
import trio

from recon_node.base.connection import Answer, AsyncConnection, NotANodeError, Request
from recon_node.base.latest import Latest
from recon_node.cli.streams.event_file import Item
from recon_node.fairness.pacing import Backoff
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
    """Its index in the input."""
    blockers: int = 0
    """Parents in the window, which are not acknowledged yet."""
    unread: set[CID] = field(default_factory=set)
    """Parents that may come later in the input."""


class Window:
    """The events that are read but not acknowledged."""

    def __init__(self) -> None:
        self._count = 0
        self._waiting: dict[int, WindowEntry] = {}
        self._waiting_bytes = 0
        self._by_cid: dict[CID, WindowEntry] = {}
        self._children: dict[CID, dict[int, WindowEntry]] = {}
        self._acknowledged = Latest[CID, None](LOOKAHEAD)
        self._ready: list[int] = []
        """A heap. Events that were taken or blocked since are skipped."""
        self._unsure: list[int] = []
        """The same, of events that have unread parents."""
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
            if parent in self._by_cid:
                entry.blockers += 1
            elif parent not in self._acknowledged:
                entry.unread.add(parent)
        if item.cid is not None and item.cid not in self._by_cid:
            self._by_cid[item.cid] = entry
            for child in self._children.get(item.cid, {}).values():
                child.blockers += 1
                child.unread.discard(item.cid)
        if not entry.blockers:
            self._push(entry)

    def take(self) -> list[WindowEntry]:
        """Take the next batch, in the order in which to admit it; it may be empty for now."""
        may_be_unsure = self.is_full or self.ended
        batch: list[WindowEntry] = []
        size = 0
        free: list[int] = []  # blocked only by parents in this very batch
        left: dict[int, int] = {}
        while len(batch) < BATCH_EVENTS and size < BATCH_BYTES:
            number = self._next([self._ready, free, *([self._unsure] if may_be_unsure else [])])
            if number is None:
                break
            entry = self._waiting.pop(number)
            batch.append(entry)
            size += entry.item.size
            for at, child in self._children_of(entry).items():
                left[at] = left.get(at, child.blockers) - 1
                if not left[at] and at in self._waiting and (may_be_unsure or not child.unread):
                    heapq.heappush(free, at)
        if not may_be_unsure and len(batch) < BATCH_EVENTS and size < BATCH_BYTES:
            self._put_back(batch)  # a few events cost as much as many: wait for more
            return []
        self._waiting_bytes -= size
        return batch

    def acknowledge(self, batch: list[WindowEntry]) -> None:
        """Note that the node has answered for a batch, whatever the answer."""
        for entry in batch:
            for at, child in self._children_of(entry).items():
                child.blockers -= 1
                if not child.blockers and at in self._waiting:
                    self._push(child)
        for entry in batch:
            self._forget(entry)

    def _push(self, entry: WindowEntry) -> None:
        heapq.heappush(self._unsure if entry.unread else self._ready, entry.number)

    def _put_back(self, batch: list[WindowEntry]) -> None:
        for entry in batch:
            self._waiting[entry.number] = entry
            if not entry.blockers:
                self._push(entry)

    def _next(self, heaps: list[list[int]]) -> int | None:
        """Return the first event in the input that is in one of some heaps."""
        for heap in (self._ready, self._unsure):
            while heap and (heap[0] not in self._waiting or self._waiting[heap[0]].blockers):
                heapq.heappop(heap)
        filled = [heap for heap in heaps if heap]
        return heapq.heappop(min(filled)) if filled else None

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
            self._acknowledged[cid] = None
        for parent in entry.item.parents:
            siblings = self._children[parent]
            del siblings[entry.number]
            if not siblings:
                del self._children[parent]


WORKERS = 4
"""Batches under way at once: one being read, one checked, one written, one answered."""
READ_AHEAD = 200
"""Items to read at once."""
BUSY_RETRIES = 8
BUSY_DELAYS = Backoff(first=0.1, longest=12.8)
MAX_REFUSALS = 100
"""Refused events that are listed one by one."""
MAX_WARNINGS = 10
"""Warnings that are listed; one for each model outside of the node's interests."""
_BUSY = (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS)
_HOPELESS = (
    HTTPStatus.UNAUTHORIZED,
    HTTPStatus.FORBIDDEN,
    HTTPStatus.NOT_FOUND,
    HTTPStatus.INTERNAL_SERVER_ERROR,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.INSUFFICIENT_STORAGE,
)
"""Answers that are not about the event: the next event would get the same answer."""


class RefusedItem(NamedTuple):
    """An event that the node refused."""

    line: int
    cid: CID | None
    reason: str


@dataclass(slots=True)
class SendingOutcome:
    """What became of the events of an input."""

    counts: Counter[str] = field(default_factory=Counter)
    """By verdict: "new" (with a node that takes one event per request, also events that it already
    had), "known", and "refused", which includes lines without an event."""
    warnings: dict[str, None] = field(default_factory=dict)
    """What the node warned of, each once, the first `MAX_WARNINGS`."""
    _refusals: list[RefusedItem] = field(default_factory=list)

    @property
    def refusals(self) -> list[RefusedItem]:
        """The first refused events in the order of the input, at most `MAX_REFUSALS`."""
        return sorted(self._refusals, key=lambda refusal: refusal.line)[:MAX_REFUSALS]

    def warn(self, warning: str | None) -> None:
        """Keep a warning of the node."""
        if warning and len(self.warnings) < MAX_WARNINGS:
            self.warnings[warning] = None

    def note(self, item: Item, status: str, reason: str | None) -> None:
        """Count one event; events may arrive in any order."""
        self.counts[status if status in ("new", "known") else "refused"] += 1
        if status not in ("new", "known"):
            reason = reason or "the node gave no reason"
            self._refusals.append(RefusedItem(item.line, item.cid, reason))
            if len(self._refusals) > 2 * MAX_REFUSALS:
                self._refusals = self.refusals


async def send_items(
    node: AsyncConnection,
    items: Iterable[Item],
    outcome: SendingOutcome,
    *,
    workers: int = WORKERS,
    on_done: Callable[[Item, str | None], None],
) -> None:
    """Send events to a node.

    Args:
        node: its API.
        items: the events; within the window's lookahead, they may be in any order.
        outcome: counts the answers as they come, so that it is right after a failure, too.
        workers: requests at once.
        on_done: called after each event, with the reason if it was refused.

    Raises:
        ClientError: the node does not answer, or accepts nothing; in an exception group.
    """
    await _Sending(node, outcome, on_done).run(iter(items), workers)


class _Sending:
    """One input on its way."""

    def __init__(
        self,
        node: AsyncConnection,
        outcome: SendingOutcome,
        on_done: Callable[[Item, str | None], None],
    ) -> None:
        self._node = node
        self._outcome = outcome
        self._on_done = on_done
        self._window = Window()
        self._changed = trio.Condition()
        self._takes_batches = True

    async def run(self, items: Iterator[Item], workers: int) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read, items)
            for _ in range(workers):
                nursery.start_soon(self._work)

    async def _read(self, items: Iterator[Item]) -> None:
        while chunk := await _read_chunk(items):
            async with self._changed:
                while self._window.is_full:
                    await self._changed.wait()
                for item in chunk:
                    if item.problem is None:
                        self._window.add(item)
                    else:
                        self._note(item, "refused", item.problem)
                self._changed.notify_all()
        async with self._changed:
            self._window.ended = True
            self._changed.notify_all()

    async def _work(self) -> None:
        while batch := await self._next_batch():
            await self._send([entry.item for entry in batch])
            async with self._changed:
                self._window.acknowledge(batch)
                self._changed.notify_all()

    async def _next_batch(self) -> list[WindowEntry]:
        """Return the next batch; it is empty when everything was taken."""
        async with self._changed:
            while not (batch := self._window.take()) and not self._window.is_done:
                await self._changed.wait()
            self._changed.notify_all()
            return batch

    async def _send(self, batch: list[Item]) -> None:
        """Send a batch; in smaller parts if the node does not accept it as a whole."""
        if not self._takes_batches:
            for item in batch:
                reason = await send_event(self._node, item.data)
                self._note(item, "new" if reason is None else "refused", reason)
            return
        body = b"\n".join([msgspec.json.encode({"data": item.data}) for item in batch])
        answer = await _post(self._node, body, "application/x-ndjson")
        if answer.status == HTTPStatus.OK:
            for item, verdict in zip(batch, _verdicts(answer, len(batch)), strict=True):
                self._note(item, verdict["status"], verdict.get("reason"))
                self._outcome.warn(verdict.get("warning"))
        elif answer.status != HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            self._takes_batches = False
            await self._send(batch)
        elif len(batch) > 1:
            await self._send(batch[: len(batch) // 2])
            await self._send(batch[len(batch) // 2 :])
        else:
            self._note(batch[0], "refused", answer.message)

    def _note(self, item: Item, status: str, reason: str | None) -> None:
        self._outcome.note(item, status, reason)
        self._on_done(item, reason)


async def _read_chunk(items: Iterator[Item]) -> list[Item]:
    """Read the next few items in a thread; Ctrl-C does not wait for the next line of a pipe."""

    def read() -> list[Item]:
        return list(islice(items, READ_AHEAD))

    return await trio.to_thread.run_sync(
        read,
        abandon_on_cancel=True,  # type: ignore[call-arg]  # trio-typing's stubs are of trio 0.22
    )


class _Verdict(TypedDict):
    status: str
    reason: NotRequired[str | None]
    warning: NotRequired[str | None]


def _verdicts(answer: Answer, count: int) -> list[_Verdict]:
    """Return each event's verdict; raise NotANodeError if they are missing."""
    try:
        verdicts = msgspec.convert(answer.json, list[_Verdict])
    except msgspec.ValidationError:
        raise NotANodeError from None
    if len(verdicts) != count:
        raise NotANodeError
    return verdicts


async def send_event(node: AsyncConnection, data: str) -> str | None:
    """Send one event, a CAR as multibase text; return why it was refused, or None.

    Retries while the node is busy.

    Raises:
        UnreachableError: no answer.
        NodeError: the node accepts no events now, or none from us.
    """
    answer = await _post(node, msgspec.json.encode({"data": data}), "application/json")
    return None if answer.is_success else answer.message


async def _post(node: AsyncConnection, body: bytes, content_type: str) -> Answer:
    """POST /ceramic/events, and retry while the node is busy; raises as `send_event` does."""
    request = Request("POST", "/ceramic/events", content=body, content_type=content_type)
    attempt = 1
    while (answer := await node.exchange(request)).status in _BUSY and attempt < BUSY_RETRIES:
        await trio.sleep(max(BUSY_DELAYS.wait(attempt), answer.retry_after))
        attempt += 1
    return answer.check() if answer.status in _HOPELESS else answer
