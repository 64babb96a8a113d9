"""Computes what is asked of streams in processes of their own, which may be killed.

What is computed of a stream is paid for by its events (`recon_node.streams.budget`), so it ends.
But it may take seconds, and would hold the interpreter for as long. So it runs in processes that
the node starts as they are needed. Hard limits of memory and time protect the machine from what no
count foresaw: a stream that exceeds them, or ends a process in any other way, is *set aside*, by
name. Whoever asks for it is told so and why, and nothing is computed of it again until it gets
another event, or the node is restarted, maybe with a later version.
"""

from __future__ import annotations

import pickle
import sys
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Final, TypeVar

import structlog
import trio

from recon_node.api.errors import ApiError
from recon_node.ipld import CID
from recon_node.processes.pool import CannotStartError, ProcessDiedError, Processes

T = TypeVar("T")

PROCESSES: Final = 2
"""Streams at once."""
PATIENCE: Final = 60.0
"""Seconds for an answer. A process that takes longer is killed."""
MAX_ASIDE: Final = 1_000
"""Streams that are remembered as set aside, the latest."""

_COMMAND: Final = (sys.executable, "-P", "-m", "recon_node.api.evaluation_worker")
"""Starts a process. -P: no modules are taken from the working directory."""

logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Aside:
    """A stream that is set aside."""

    init: CID
    events: int
    """How many it had."""
    reason: str
    since: float
    """Unix seconds."""


class Evaluation:
    """Calls functions in processes.

    Args:
        count: how many at once, at most; 0: in threads of this process, one at a time.
        command: what starts a process.
    """

    def __init__(self, count: int, command: Sequence[str] = _COMMAND) -> None:
        self._count = count
        self._processes = Processes(command, max(1, count))
        self._one = trio.CapacityLimiter(1)
        self._aside: OrderedDict[CID, Aside] = OrderedDict()

    @property
    def aside(self) -> list[Aside]:
        """The streams that are set aside, the latest last."""
        return list(self._aside.values())

    async def of_stream(self, init: CID, events: int, function: Callable[[], T]) -> T:
        """Call a function that computes something of a stream with so many events.

        Raises:
            ApiError: 422, the stream is set aside.
        """
        known = self._aside.get(init)
        if known is not None and known.events == events:
            raise _set_aside(known)
        try:
            return await self._call(function)
        except ProcessDiedError as error:
            reason = f"a process that computed it took too much memory or time: {error}"
        aside = self._aside[init] = Aside(init, events, reason, time.time())
        while len(self._aside) > MAX_ASIDE:
            self._aside.popitem(last=False)
        logger.error("A stream is set aside", stream=str(init), events=events, reason=reason)
        raise _set_aside(aside)

    async def warm_up(self) -> None:
        """Start a process, which takes a second, before the first request needs it."""
        await self._processes.warm_up()

    async def close(self) -> None:
        """End the processes."""
        await self._processes.close()

    async def _call(self, function: Callable[[], T]) -> T:
        if self._count:
            request = await self._in_thread(partial(pickle.dumps, function))
            try:
                answer = await self._processes.ask(request, PATIENCE)
            except CannotStartError as error:
                logger.error("Streams are computed in the node's own process", reason=str(error))
                self._count = 0
            else:
                found, value = await self._in_thread(partial(pickle.loads, answer))
                if not found:
                    raise value
                result: T = value
                return result
        return await self._in_thread(function)

    async def _in_thread(self, function: Callable[[], T]) -> T:
        return await trio.to_thread.run_sync(function, limiter=self._one)


@asynccontextmanager
async def open_evaluation() -> AsyncIterator[Evaluation]:
    """Open processes for the block. They are started when they are needed."""
    evaluation = Evaluation(PROCESSES)
    try:
        yield evaluation
    finally:
        with trio.CancelScope(shield=True):
            await evaluation.close()


def _set_aside(stream: Aside) -> ApiError:
    return ApiError(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        f"this node has set the stream aside: {stream.reason}. Its events are in the feed",
    )
