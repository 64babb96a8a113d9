"""Computes states and the like of streams in processes of their own, which may be killed.

What is computed of a stream is paid for by its events (`streams/json_values.py`), so it ends.
But it may take seconds, and would hold the interpreter for as long. So it runs in processes that
the node starts as they are needed. Hard limits of memory and time protect the machine from what no
count foresaw: a stream that exceeds them, or ends two processes in any other way, is *set aside*,
by name. Requests for it are answered with the reason, and nothing is computed of it again for a
while, nor until it gets another event, or the node is restarted, maybe with a later version.

Few streams are computed at once, and most in milliseconds. What takes longer than `QUICK` is
*long*, and only one such is computed at a time, so that the other slots are always for short work:
when another one turns out to be long, its process is killed, and it waits for its turn. It is
remembered as long, and waits at once when it is asked for again. Streams with very many bytes are
long from the start, counted as they will be once decoded: an empty list is one byte of an event,
and 64 of memory. Slots are taken in turn by those who ask (`recon_node.fairness.turns`).
"""

import math
import pickle
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, Final, NamedTuple, TypeVar

import structlog
import trio

from recon_node.api.errors import ApiError
from recon_node.base.latest import Latest
from recon_node.fairness.turns import Turns
from recon_node.ipld import CID
from recon_node.processes.pool import CannotStartError, Processes
from recon_node.processes.process import ProcessDiedError, ProcessTooSlowError

T = TypeVar("T")

PROCESSES: Final = 2
"""Streams at once."""
EVALUATION_TIMEOUT: Final = 60.0
"""Seconds for an answer. A process that takes longer is killed."""
QUICK: Final = 2.0
"""Seconds for an answer beside another one that takes long."""
LARGE: Final = 8 * 1024 * 1024
"""Bytes of events: what has more takes long, and is in memory several times."""
_DECODED: Final = 64
"""Bytes that a list or a map takes once it is decoded, and that each byte which may be the head of
one in CBOR counts. In UTF-8, some letters have such bytes, too."""
_HEADS: Final = bytes(range(0x80, 0xBC))
LONG_PATIENCE: Final = 30.0
"""Seconds to wait for the turn of what takes long."""
MAX_WAITING: Final = 8
"""Requests from an address block that wait for it."""
REST: Final = 600.0
"""Seconds for which a stream that was set aside is not tried again, and for which is remembered
that one takes long."""
MAX_REMEMBERED_STREAMS: Final = 1_000
"""Streams that are remembered as set aside, or as long: the latest."""

_COMMAND: Final = (sys.executable, "-P", "-m", "recon_node.api.evaluation_worker")
"""Starts a process. -P: no modules are taken from the working directory."""

logger = structlog.get_logger(__name__)


class Subject(NamedTuple):
    """What is computed: a stream, or a tangle, which is of many streams and never sets its root's
    stream aside."""

    init: CID
    """The CID of the init event, of a tangle its root's."""
    tangle: str | None = None
    """The name of the tangle."""


@dataclass(frozen=True, slots=True)
class SetAsideStream:
    """A stream, or a tangle, that is set aside."""

    subject: Subject
    events: int
    """How many it had."""
    reason: str
    since: float
    """Unix seconds."""
    tried: float
    """When it was tried last, on trio's clock: that of the machine may be set back by years."""


class _TakesLongError(Exception):
    """It takes long, and so does another one."""


class Evaluation:
    """Calls functions in processes.

    It has `count` of them; with 0, threads of this process, one at a time.

    Attributes:
        slots: held by requests that have all events of a stream in memory, which may be 300 MB.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._processes = Processes(_COMMAND, max(1, count))
        self._one = trio.CapacityLimiter(1)
        self._aside = Latest[Subject, SetAsideStream](MAX_REMEMBERED_STREAMS)
        self._long_since = Latest[Subject, float](MAX_REMEMBERED_STREAMS)
        self._long = Turns(1)
        self._having_long: set[trio.lowlevel.Task] = set()
        self.slots = Turns(PROCESSES)

    @property
    def aside(self) -> list[SetAsideStream]:
        """The streams that are set aside, the latest last."""
        return list(self._aside.values())

    async def in_turn(self, subject: Subject, attempt: Callable[[], Awaitable[T]]) -> T:
        """Call a function that reads a stream, and calls `of_stream`, when it is its turn.

        It is called again if it turns out to take long while another one does.

        Raises:
            ApiError: 503, too many take long.
        """
        task = trio.lowlevel.current_task()
        if not self._is_long(subject):
            try:
                async with self.slots.taken():
                    return await attempt()
            except _TakesLongError:
                pass
            finally:
                self._leave_long(task)
        if self._long.waiting_as_this >= MAX_WAITING:
            raise _busy()
        with trio.move_on_after(LONG_PATIENCE) as waiting:
            await self._long.take()
        if waiting.cancelled_caught:
            raise _busy()
        self._having_long.add(task)
        try:
            async with self.slots.taken():
                return await attempt()
        finally:
            self._leave_long(task)

    async def of_stream(
        self, subject: Subject, events: int, function: Callable[[], T], size: int = 0
    ) -> T:
        """Call a function that computes something of a stream, or of a tangle.

        Raises:
            ApiError: 422, the stream is set aside.
        """
        known = self._aside.get(subject)
        if known and (known.events == events or trio.current_time() < known.tried + REST):
            raise _set_aside(known)
        if size > LARGE:
            self._begin_long(subject, trio.lowlevel.current_task())
        try:
            try:
                return await self._call(subject, function)
            except ProcessTooSlowError:
                raise
            except ProcessDiedError:  # the kernel may have ended it for the memory of others
                return await self._call(subject, function)
        except ProcessDiedError as error:
            reason = f"a process that computed it took too much memory or time: {error}"
        times = (time.time(), trio.current_time())
        aside = self._aside[subject] = SetAsideStream(subject, events, reason, *times)
        stream, tangle = str(subject.init), subject.tangle
        logger.error(
            "A stream is set aside", stream=stream, tangle=tangle, events=events, reason=reason
        )
        raise _set_aside(aside)

    async def warm_up(self) -> None:
        """Start a process, which takes a second, before the first request needs it."""
        await self._processes.warm_up()

    async def close(self) -> None:
        """End the processes."""
        await self._processes.close()

    async def _call(self, subject: Subject, function: Callable[[], T]) -> T:
        request, size = await self._in_thread(partial(_pickled, function))
        if size > LARGE:
            self._begin_long(subject, trio.lowlevel.current_task())
        if self._count:
            try:
                answer = await self._ask(subject, request)
            except CannotStartError as error:
                logger.error("Streams are computed in the node's own process", reason=str(error))
                self._count = 0
            else:
                succeeded, value = await self._in_thread(partial(pickle.loads, answer))
                if not succeeded:
                    raise value
                result: T = value
                return result
        return await self._in_thread(partial(_call_pickled, request))

    async def _ask(self, subject: Subject, request: bytes) -> bytes:
        """Ask a process; raise `_TakesLongError` if it takes long while another one does."""
        task = trio.lowlevel.current_task()
        failure: Exception | None = None
        answer = b""
        ready = trio.Event()
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                if task not in self._having_long:
                    nursery.start_soon(self._watch, subject, ready, task, scope)
                try:
                    answer = await self._processes.ask(request, EVALUATION_TIMEOUT, ready.set)
                except (ProcessDiedError, CannotStartError) as error:
                    failure = error
                nursery.cancel_scope.cancel()
        if scope.cancelled_caught:
            raise _TakesLongError
        if failure is not None:
            raise failure
        return answer

    async def _watch(
        self, subject: Subject, ready: trio.Event, task: trio.lowlevel.Task, scope: trio.CancelScope
    ) -> None:
        """Take the turn of what takes long for a task that does, or cancel it."""
        await ready.wait()
        await trio.sleep(QUICK)
        try:
            self._begin_long(subject, task)
        except _TakesLongError:
            scope.cancel()

    def _begin_long(self, subject: Subject, task: trio.lowlevel.Task) -> None:
        """Take the turn of what takes long, unless the task has it; if another one has, raise
        `_TakesLongError`."""
        self._long_since[subject] = trio.current_time()
        if task not in self._having_long:
            if not self._long.take_at_once():
                raise _TakesLongError
            self._having_long.add(task)

    def _leave_long(self, task: trio.lowlevel.Task) -> None:
        if task in self._having_long:
            self._having_long.remove(task)
            self._long.leave()

    def _is_long(self, subject: Subject) -> bool:
        return trio.current_time() < self._long_since.get(subject, -math.inf) + REST

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


def _pickled(function: Callable[[], object]) -> tuple[bytes, int]:
    """Return a pickled function, and how many bytes it may take in memory once it is decoded."""
    packed = pickle.dumps(function)
    heads = len(packed) - len(packed.translate(None, _HEADS))
    return packed, len(packed) + _DECODED * heads


def _call_pickled(function: bytes) -> Any:
    """Call a pickled function: it gets copies of its arguments, as in another process."""
    return pickle.loads(function)()


def _busy() -> ApiError:
    return ApiError(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "the stream takes long to compute, and so do others: try again",
        {"Retry-After": str(int(LONG_PATIENCE))},
    )


def _set_aside(stream: SetAsideStream) -> ApiError:
    return ApiError(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        f"this node has set the {'stream' if stream.subject.tangle is None else 'tangle'} aside: "
        f"{stream.reason}. Its events are in the feed",
    )
