"""Sending many events to a node: batches, several under way, never one before what it builds on.

One task reads the input into a window (`recon_node.cli.window`), in a thread, for reading may wait.
A few others each take a batch from it, send it as NDJSON in one request over a connection that
stays open, and acknowledge it, which frees what builds on it. A node that takes one event a request
(ceramic-one) gets the batch one event at a time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

import httpx
import trio

from recon_node.cli.client import TIMEOUT, NodeApi, NodeUnreachableError, error_message
from recon_node.cli.errors import CommandError
from recon_node.cli.sources import Item
from recon_node.cli.window import Entry, Window
from recon_node.ipld import CID

WORKERS = 4
"""Batches under way at once: one that is read, one checked, one written, one answered."""
READ_AHEAD = 200
"""Items that are read in one go."""
BUSY_RETRIES = 8
MAX_REFUSALS = 100
"""Refused events that are told one by one."""
_BUSY = (httpx.codes.SERVICE_UNAVAILABLE, httpx.codes.TOO_MANY_REQUESTS)
_HOPELESS = (
    httpx.codes.UNAUTHORIZED,
    httpx.codes.FORBIDDEN,
    httpx.codes.NOT_FOUND,
    httpx.codes.INTERNAL_SERVER_ERROR,
    httpx.codes.SERVICE_UNAVAILABLE,
    httpx.codes.TOO_MANY_REQUESTS,
    httpx.codes.INSUFFICIENT_STORAGE,
)
"""Answers that are not about the event: the next one would get the same."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """An event that the node did not take."""

    line: int
    cid: CID | None
    reason: str


@dataclass(slots=True)
class Outcome:
    """What became of the events of an input."""

    new: int = 0
    """Of a node that takes one event a request: also those that it had."""
    known: int = 0
    refused: int = 0
    _refusals: list[Refusal] = field(default_factory=list)

    @property
    def total(self) -> int:
        """Events that the node has answered for, and lines that hold none."""
        return self.new + self.known + self.refused

    @property
    def refusals(self) -> list[Refusal]:
        """The first refused events, in the order of the input; at most `MAX_REFUSALS`."""
        return sorted(self._refusals, key=lambda refusal: refusal.line)[:MAX_REFUSALS]

    def note(self, item: Item, status: str, reason: str | None) -> None:
        """Count one event; events come in any order."""
        if status == "new":
            self.new += 1
        elif status == "known":
            self.known += 1
        else:
            self.refused += 1
            reason = reason or "the node gave no reason"
            self._refusals.append(Refusal(item.line, item.cid, reason))
            if len(self._refusals) > 2 * MAX_REFUSALS:
                self._refusals = self.refusals


async def send_items(
    node: NodeApi,
    items: Iterable[Item],
    outcome: Outcome,
    *,
    workers: int = WORKERS,
    on_done: Callable[[Item, str | None], None],
) -> None:
    """Send events to a node.

    Args:
        node: its API.
        items: the events; one may come before what it builds on, within the window's lookahead.
        outcome: counts them as the node answers, so that it also tells how far a failure let us.
        workers: requests under way at once.
        on_done: called after each event, with the reason if it was refused.

    Raises:
        CommandError: the node does not answer, or takes nothing; inside of an exception group.
    """
    limits = httpx.Limits(max_connections=workers, max_keepalive_connections=workers)
    async with httpx.AsyncClient(
        base_url=node.url, timeout=TIMEOUT, limits=limits, headers=node.headers
    ) as client:
        await _Sending(client, outcome, on_done).run(iter(items), workers)


class _Sending:
    """One input on its way."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        outcome: Outcome,
        on_done: Callable[[Item, str | None], None],
    ) -> None:
        self._client = client
        self._outcome = outcome
        self._on_done = on_done
        self._window = Window()
        self._changed = trio.Condition()
        self._takes_batches = True

    async def run(self, items: Iterator[Item], workers: int) -> None:
        """Send everything."""
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

    async def _next_batch(self) -> list[Entry]:
        """The next batch; empty when there is none any more."""
        async with self._changed:
            while not (batch := self._window.take()) and not self._window.is_done:
                await self._changed.wait()
            self._changed.notify_all()
            return batch

    async def _send(self, batch: list[Item]) -> None:
        """Send a batch, whole or, if the node does not take it like that, in smaller parts."""
        if not self._takes_batches:
            for item in batch:
                reason = await post_event(self._client, item.data)
                self._note(item, "new" if reason is None else "refused", reason)
            return
        body = "".join(json.dumps({"data": item.data}) + "\n" for item in batch)
        response = await _post(self._client, body, "application/x-ndjson")
        if response.status_code == httpx.codes.OK:
            for item, (status, reason) in zip(batch, _verdicts(response, len(batch)), strict=True):
                self._note(item, status, reason)
        elif response.status_code != httpx.codes.REQUEST_ENTITY_TOO_LARGE:
            self._takes_batches = False
            await self._send(batch)
        elif len(batch) > 1:
            await self._send(batch[: len(batch) // 2])
            await self._send(batch[len(batch) // 2 :])
        else:
            self._note(batch[0], "refused", error_message(response))

    def _note(self, item: Item, status: str, reason: str | None) -> None:
        self._outcome.note(item, status, reason)
        self._on_done(item, reason)


async def _read_chunk(items: Iterator[Item]) -> list[Item]:
    """The next few items, read in a thread; Ctrl-C does not wait for a pipe's next line."""

    def read() -> list[Item]:
        return list(islice(items, READ_AHEAD))

    return await trio.to_thread.run_sync(
        read,
        abandon_on_cancel=True,  # type: ignore[call-arg]  # trio-typing's stubs are of trio 0.22
    )


def _verdicts(response: httpx.Response, count: int) -> list[tuple[str, str | None]]:
    """A status and perhaps a reason for each event; raises CommandError when it is no such list."""
    try:
        found = [(str(each["status"]), each.get("reason")) for each in response.json()]
    except (ValueError, KeyError, TypeError, AttributeError):
        found = []
    if len(found) != count:
        raise CommandError(f"what answers at {response.url} is not a node: check --url")
    return found


async def post_event(client: httpx.AsyncClient, data: str) -> str | None:
    """Send one event, a CAR as multibase text; returns why it was refused, or None.

    Waits while the node is busy.

    Raises:
        NodeUnreachableError: no answer.
        CommandError: the node takes no event now, or none from us.
    """
    response = await _post(client, json.dumps({"data": data}), "application/json")
    return None if response.is_success else error_message(response)


async def _post(client: httpx.AsyncClient, body: str, content_type: str) -> httpx.Response:
    """POST /ceramic/events, again while the node is busy; raises as `post_event` does."""
    headers = {"content-type": content_type}
    for attempt in range(BUSY_RETRIES):
        try:
            response = await client.post("/ceramic/events", content=body, headers=headers)
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeEncodeError) as error:
            raise NodeUnreachableError(str(client.base_url), error) from None
        if response.status_code not in _BUSY:
            break
        await trio.sleep(max(0.1 * 2**attempt, _seconds(response.headers.get("retry-after"))))
    if response.status_code in _HOPELESS:
        raise CommandError(error_message(response))
    return response


def _seconds(retry_after: str | None) -> float:
    return float(retry_after) if retry_after and retry_after.isdecimal() else 0.0
