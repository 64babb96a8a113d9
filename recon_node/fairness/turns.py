"""Turns: what several askers want of one slot is done for one after the other.

A client that asks for a hundred things at once must not keep all others waiting: when a slot
becomes free, it goes to the address block that has waited the longest since it last got one,
whatever the number of its requests. `InTurn` is that order, and `Turns` are slots that are
taken in it.

Peers in one block, and its clients, have turns of their own within those of the block. That is
no defence, as peer ids cost nothing; but a peer that shares an address with a busy one need not
wait for all of its requests.
"""

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

import trio

from recon_node.fairness.slots import ASKER, PEER

T = TypeVar("T")


async def acquire(lock: trio.Semaphore) -> None:
    """Acquire a semaphore, at once if it is free: `acquire` lets other tasks have a turn first."""
    if lock.value:
        lock.acquire_nowait()
    else:
        await lock.acquire()


class InTurn(Generic[T]):
    """Items of several askers, one of each in turn, and of one asker one of each peer in turn;
    those of one peer in the order of their coming."""

    def __init__(self) -> None:
        self._items: dict[str, dict[str, deque[T]]] = {}

    def __len__(self) -> int:
        return sum(len(items) for peers in self._items.values() for items in peers.values())

    def __bool__(self) -> bool:
        return bool(self._items)

    @property
    def askers(self) -> int:
        """How many askers have an item, or how many peers of the same asker."""
        return sum(map(len, self._items.values()))

    @property
    def of_this_asker(self) -> int:
        """How many there are of the asker for whom this task works."""
        return sum(map(len, self._items.get(ASKER.get(), {}).values()))

    def put(self, item: T) -> None:
        """Add an item of the asker and the peer for whom this task works."""
        self._items.setdefault(ASKER.get(), {}).setdefault(PEER.get(), deque()).append(item)

    def pop(self) -> T:
        """Take out the next item.

        Raises:
            StopIteration: there is none.
        """
        asker = next(iter(self._items))
        peers = self._items.pop(asker)
        peer_id = next(iter(peers))
        items = peers.pop(peer_id)
        item = items.popleft()
        if items:
            peers[peer_id] = items  # behind the others
        if peers:
            self._items[asker] = peers
        return item

    def remove(self, item: T, asker: str, peer_id: str) -> None:
        """Take out an item of an asker and a peer, whose turns stay."""
        peers = self._items[asker]
        peers[peer_id].remove(item)
        if not peers[peer_id]:
            del peers[peer_id]
        if not peers:
            del self._items[asker]


class Turns:
    """A number of slots."""

    def __init__(self, slots: int) -> None:
        self._free = slots
        self._waiting = InTurn[trio.lowlevel.Task]()

    @property
    def waiting(self) -> int:
        """How many wait for a slot, for whomever."""
        return len(self._waiting)

    @property
    def waiting_as_this(self) -> int:
        """How many of them wait for the same asker as this task works for."""
        return self._waiting.of_this_asker

    @asynccontextmanager
    async def taken(self) -> AsyncIterator[None]:
        """Take a slot for the block, when it is this asker's turn."""
        await self.take()
        try:
            yield
        finally:
            self.leave()

    async def take(self) -> None:
        """Take a slot, when it is this asker's turn; to be left by `leave`."""
        await trio.lowlevel.checkpoint()
        if self.take_at_once():
            return
        task, asker, peer_id = trio.lowlevel.current_task(), ASKER.get(), PEER.get()

        def give_up(_: object) -> trio.lowlevel.Abort:
            self._waiting.remove(task, asker, peer_id)
            return trio.lowlevel.Abort.SUCCEEDED

        self._waiting.put(task)
        await trio.lowlevel.wait_task_rescheduled(give_up)

    def take_at_once(self) -> bool:
        """Take a slot if one is free; return whether it was."""
        is_free = self._free > 0
        self._free -= is_free
        return is_free

    def leave(self) -> None:
        """Leave a slot to the next in turn."""
        if self._waiting:
            trio.lowlevel.reschedule(self._waiting.pop())
        else:
            self._free += 1
