"""Sending many events to a node: several at once, yet never one before what it builds on.

Events are taken from the file in windows. Within a window a topological sorter says which events
are ready: those whose parents are acknowledged, or are not in the window. Each of a few workers
sends a ready event, waits for the node's acknowledgement and thereby makes others ready.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from itertools import islice

import httpx
import trio

from recon_node.cli.client import TIMEOUT, NodeApi, NodeUnreachableError, error_message
from recon_node.cli.sources import Item

WINDOW = 10_000
"""Events looked at together: a parent that comes later in the file than that comes too late."""
BUSY_RETRIES = 8
_BUSY = (httpx.codes.SERVICE_UNAVAILABLE, httpx.codes.TOO_MANY_REQUESTS)


@dataclass(slots=True)
class Outcome:
    """What became of a file's events."""

    accepted: int = 0
    refused: list[tuple[Item, str]] = field(default_factory=list)


async def send_items(
    node: NodeApi,
    items: Iterable[Item],
    *,
    workers: int,
    on_done: Callable[[Item, str | None], None],
) -> Outcome:
    """Send events to a node.

    Args:
        node: its API.
        items: the events, in any order within a window.
        workers: requests under way at once.
        on_done: called after each event, with the reason if it was refused.

    Raises:
        NodeUnreachableError: the node does not answer; inside of an exception group.
    """
    outcome = Outcome()

    def note(item: Item, reason: str | None) -> None:
        if reason is None:
            outcome.accepted += 1
        else:
            outcome.refused.append((item, reason))
        on_done(item, reason)

    limits = httpx.Limits(max_connections=workers)
    async with httpx.AsyncClient(
        base_url=node.url, timeout=TIMEOUT, limits=limits, headers=node.headers
    ) as client:
        for window in _windows(items):
            await _send_window(client, window, workers, note)
    return outcome


async def _send_window(
    client: httpx.AsyncClient,
    window: list[Item],
    workers: int,
    note: Callable[[Item, str | None], None],
) -> None:
    sorter = _sorter(window)
    give, take = trio.open_memory_channel[int](len(window))

    def release() -> None:
        for index in sorter.get_ready():
            give.send_nowait(index)
        if not sorter.is_active():
            give.close()

    async def work() -> None:
        async for index in take:
            item = window[index]
            note(item, item.problem or await post_event(client, item.data))
            sorter.done(index)
            release()

    release()
    async with trio.open_nursery() as nursery:
        for _ in range(workers):
            nursery.start_soon(work)


def _sorter(window: list[Item]) -> TopologicalSorter[int]:
    index_of = {item.cid: index for index, item in enumerate(window) if item.cid}
    sorter: TopologicalSorter[int] = TopologicalSorter()
    for index, item in enumerate(window):
        sorter.add(index, *(index_of[cid] for cid in item.parents if cid in index_of))
    sorter.prepare()
    return sorter


async def post_event(client: httpx.AsyncClient, data: str) -> str | None:
    """Send one event, a CAR as multibase text; returns why it was refused, or None.

    Waits while the node is busy.

    Raises:
        NodeUnreachableError: no answer.
    """
    for attempt in range(BUSY_RETRIES):
        try:
            response = await client.post("/ceramic/events", json={"data": data})
        except httpx.HTTPError as error:
            raise NodeUnreachableError(str(client.base_url), error) from None
        if response.is_success:
            return None
        if response.status_code not in _BUSY:
            break
        await trio.sleep(max(0.1 * 2**attempt, _seconds(response.headers.get("retry-after"))))
    return error_message(response)


def _seconds(retry_after: str | None) -> float:
    return float(retry_after) if retry_after and retry_after.isdecimal() else 0.0


def _windows(items: Iterable[Item]) -> Iterator[list[Item]]:
    iterator = iter(items)
    while window := list(islice(iterator, WINDOW)):
        yield window
