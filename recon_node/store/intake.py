"""Group commit: many callers, one transaction; and a pipeline of two stages: verify, commit.

Between the two, the write policy judges the streams of the batch, if there is one.

Callers put their events into a bounded queue and wait. A task takes what has gathered there, up to
a batch, has it verified, and has it judged and written; another task does the same with the next
batch. Each stage takes one batch at a time, in the same order. So while the disk takes one batch,
the next one is verified and a third one gathers. A small event that comes while nothing else does
passes both stages in its caller's task, and wakes no other one.

Requests from different address blocks go into batches in turn (`fairness.turns`), and batches are
small while several blocks have any. So a block that sends many events, or events that take long to
verify, delays the others by the batches that are under way, and by one request.

A caller may leave: one that is cancelled does not get its verdicts, but its events are admitted all
the same. A batch that the disk does not take fails for its callers, and the next one is tried. A
batch that fails for any other reason (a bug that one of its events hits, or a damaged row of the
log that one needs) is tried again an event at a time, so that no event suffers from its neighbours.

A `Writer` changes the log in a thread. What is committed is published on trio's thread, in the
order of the commits, and only then does the caller get its answer. Its task waits for the thread at
a socket, as for a client: the first turn of the event loop after a commit has the answer.
"""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from queue import SimpleQueue
from threading import Thread
from typing import Any, Final, Generic, TypeVar

import structlog
import trio

from recon_node.base.chunks import in_chunks
from recon_node.base.timing import Durations, span
from recon_node.fairness.pacing import Backoff
from recon_node.fairness.turns import InTurn, Turns, acquire
from recon_node.ipld import CID
from recon_node.recon import KeyRange
from recon_node.store.damage import DamageWatch
from recon_node.store.db.log import Committed, EventLog, commit_batch
from recon_node.store.db.settling import commit_releases
from recon_node.store.errors import DamagedLogError, StoreError
from recon_node.store.policy import PolicyGate
from recon_node.store.values import BatchOutcome, StoreSettings, Submission, Verdict
from recon_node.verification.verifiers import MAX_BYTES_NOW, NATIVE_VERSION, Verifiers

T = TypeVar("T")

logger = structlog.get_logger(__name__)

_SHARED: Final = 8
"""While several address blocks wait, a batch ends at one part in this many of its limits, but not
before it has a request of each block."""
_MOST_DAMAGED: Final = 8
"""Events of a batch that may need what is damaged in the log; with more, the batch fails."""
_PAUSES: Final = Backoff(1.0, 60.0)
"""Until releases are tried again after one has failed."""


@dataclass(eq=False, slots=True)
class _Request:
    """Events of one caller, and their verdicts."""

    events: list[Submission]
    verdicts: list[Verdict] = field(default_factory=list)
    error: StoreError | None = None
    done: trio.Event = field(default_factory=trio.Event)
    size: int = field(init=False)
    """Bytes of its CARs."""

    def __post_init__(self) -> None:
        self.size = _size_of(self.events)


class Intake:
    """Takes in events and answers with verdicts.

    Args:
        settings: bounds of the queue and of a batch.
        writer: commits the batches; closed when everything that was submitted is written.
        ranges: returns the ranges of the node's interests; called before each batch.
        policy: judges the streams of each batch, before it is committed.
        damage: which events are damaged in the log.
    """

    def __init__(
        self,
        settings: StoreSettings,
        writer: Writer,
        ranges: Callable[[], Sequence[KeyRange]],
        policy: PolicyGate,
        damage: DamageWatch,
    ) -> None:
        self._settings = settings
        self._writer = writer
        self._ranges = ranges
        self._policy = policy
        self._damage = damage
        self.native_core = NATIVE_VERSION if settings.native == "auto" else None
        """The version of the native core, if it is used."""
        self.verifiers = Verifiers(settings.verifier_processes, native=self.native_core is not None)
        self._room = Turns(max(1, settings.queue_size))
        self._queue = InTurn[_Request]()
        self._idle = trio.lowlevel.ParkingLot()
        self._verifying = trio.Semaphore(1, max_value=1)
        self._committing = trio.Semaphore(1, max_value=1)
        self._failed_releases = 0
        """How many failed one after the other."""
        self._release_at = -math.inf
        """When releases go on, by trio's clock."""
        self._release_fault = ""
        self._is_closed = False
        self._finished = trio.Event()
        self._give_up = False
        self.durations: dict[BatchOutcome, Durations] = {"ok": Durations(), "failed": Durations()}
        """Time from a batch's verification to the end of its transaction."""

    async def submit(self, events: Sequence[Submission]) -> list[Verdict]:
        """Submit events and wait for their verdicts, in order.

        More events than a batch takes go in several, each in its own transaction.

        Raises:
            StoreError: the disk did not take all of them, or the store is closed. Some may be in
                the log: submitted again, those are "known".
        """
        if len(events) == 1 and self._is_idle(events[0]):
            return await self._pass_through(events)
        most, most_bytes = self._settings.max_batch_events, self._settings.max_batch_bytes
        parts = in_chunks(events, lambda event: len(event.car), most_bytes, most)
        requests = [_Request(part) for part in parts]
        for request in requests:
            if not self._room.take_at_once():
                await self._room.take()
            if self._is_closed:
                self._room.leave()
                raise StoreError("the store is closed")
            self._put(request)
        for request in requests:
            await request.done.wait()
        for request in requests:
            if request.error is not None:
                kind = type(request.error)
                raise kind(str(request.error)) from request.error  # each caller its own
        return [verdict for request in requests for verdict in request.verdicts]

    async def run(self) -> None:
        """Write batch after batch until `close`. Cannot be cancelled."""
        try:
            with trio.CancelScope(shield=True):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._run_batches)
                    nursery.start_soon(self._run_batches)
                await self.verifiers.close()
                await self._writer.close()
        finally:
            self._finished.set()

    def wake(self) -> None:
        """Have the releases continued that a commit has left."""
        self._idle.unpark()

    async def close(self) -> None:
        """Accept no more events, write those that were submitted, and end; see `drain_seconds`."""
        self._is_closed = True
        self._idle.unpark_all()
        with trio.CancelScope(shield=True):
            with trio.move_on_after(self._settings.drain_seconds):
                await self._finished.wait()
            self._give_up = True
            await self._finished.wait()

    def _is_idle(self, event: Submission) -> bool:
        """Return whether nothing keeps an event from passing both stages at once."""
        return (
            self._verifying.value == self._committing.value == 1
            and self._writer.is_idle
            and len(event.car) <= MAX_BYTES_NOW
            and self._policy.is_open
            and not (self._queue or self._is_closed or self._writer.log.marks.has_releases)
        )

    async def _pass_through(self, events: Sequence[Submission]) -> list[Verdict]:
        """Take a single event through both stages; whatever comes meanwhile gathers."""
        [event] = events
        self._committing.acquire_nowait()
        try:
            event.finding = self.verifiers.verify_now(event.car)
        except Exception:
            logger.exception("Events could not be verified ahead", events=1)
        try:
            return list(await self._write(events, 1))
        finally:
            self._committing.release()

    def _put(self, request: _Request) -> None:
        """Put a request into the queue, whose room was taken."""
        if not self._queue:
            self._idle.unpark()
        self._queue.put(request)

    def _gather(self) -> list[_Request]:
        """Take up to a batch out of the queue; what is left is for the other task."""
        batch: list[_Request] = []
        count = size = 0
        askers = self._queue.askers
        part = _SHARED if askers > 1 else 1
        most, most_bytes = self._settings.max_batch_events, self._settings.max_batch_bytes
        while self._queue and count < most and size < most_bytes:
            if len(batch) >= askers and (count * part >= most or size * part >= most_bytes):
                break
            request = self._queue.pop()
            self._room.leave()
            batch.append(request)
            count += len(request.events)
            size += request.size
        if self._queue:
            self._idle.unpark()
        return batch

    async def _run_batches(self) -> None:
        """Take batch after batch through both stages, until `close`."""
        while self._queue or not self._is_closed:
            await acquire(self._verifying)
            batch = self._gather()  # none if the other task has taken all
            if batch and not self._give_up:
                await self._verify(batch)
            await acquire(self._committing)  # before the next batch can
            self._verifying.release()
            if batch:
                await self._answer(batch)
            await self._continue_releases()
            self._committing.release()
            if not self._queue and not self._is_closed:
                with trio.move_on_at(self._release_at if self._has_releases else math.inf):
                    await self._idle.park()

    @property
    def _has_releases(self) -> bool:
        return self._writer.log.marks.has_releases

    async def _continue_releases(self) -> None:
        """Take one step of the releases, if there are any, and more while no batch waits."""
        while self._has_releases and not self._is_closed:
            if trio.current_time() < self._release_at:
                return
            await self._commit_releases()
            if self._committing.statistics().tasks_waiting:
                return

    async def _commit_releases(self) -> None:
        """Take a step of the releases. If the disk does not take it, or this node fails over one,
        they go on later, from the next one; batches do not wait for that."""
        change = partial(commit_releases, self._writer.log, alone=bool(self._release_fault))
        try:
            await self._writer.commit(change)
            self._failed_releases = 0
            if not self._has_releases:
                self._release_fault = ""  # it is over
        except Exception as error:
            self._failed_releases += 1
            self._release_at = trio.current_time() + _PAUSES.wait(self._failed_releases)
            fault, self._release_fault = self._release_fault, repr(error)
            if self._release_fault == fault or str(error) == self._writer.failure:
                return
            is_bug = not isinstance(error, StoreError)
            logger.error(
                "Cannot deliver waiting events; trying again later",
                reason=str(error),
                exc_info=error if is_bug else None,
            )

    async def _verify(self, batch: Sequence[_Request]) -> None:
        """Verify the events of a batch, except those that are too large."""
        limit = self._settings.max_event_bytes
        new = [event for request in batch for event in request.events if len(event.car) <= limit]
        try:
            findings = await self.verifiers.verify([submission.car for submission in new])
        except Exception:  # no thread can be had, say; the rules verify what was not verified here
            logger.exception("Events could not be verified ahead", events=len(new))
            return
        for submission, finding in zip(new, findings, strict=True):
            submission.finding = finding

    async def _answer(self, batch: Sequence[_Request]) -> None:
        """Judge and write a batch, and give its callers their verdicts."""
        verdicts: Iterator[Verdict] = iter(())
        error: StoreError | None = None
        try:
            events = [event for request in batch for event in request.events]
            verdicts = iter(await self._write(events, len(batch)))
        except StoreError as failure:
            error = failure
        for request in batch:
            request.error = error
            request.verdicts = list(islice(verdicts, len(request.events)))
            request.done.set()

    async def _write(self, events: Sequence[Submission], requests: int) -> Sequence[Verdict]:
        """Judge and write events of some requests, in one transaction.

        Raises:
            StoreError: the disk did not take them.
        """
        started, error = time.perf_counter(), None
        try:
            if self._give_up:
                raise StoreError("the store was closed before it could take the events")
            verdicts = await self._commit_or_divide(events)
        except StoreError as failure:
            error = str(failure)
            if error != self._writer.failure:  # which is logged once
                logger.error("A batch was not written", requests=requests, reason=error)
            raise
        finally:
            seconds = time.perf_counter() - started
            self.durations["failed" if error else "ok"].observe(seconds)
            span(
                "batch of events",
                seconds,
                lambda: {
                    "recon.requests": requests,
                    "recon.events": len(events),
                    "recon.bytes": _size_of(events),
                },
                error=error,
            )
        return verdicts

    async def _commit_or_divide(self, events: Sequence[Submission]) -> Sequence[Verdict]:
        """Commit events together; each alone if this node fails over them."""
        try:
            judgement = None
            if not self._policy.is_open:
                judgement = await self._policy.judge(events)  # by the log as it is now
            damaged = self._damage.cids() if self._damage.found_total else frozenset[CID]()
            log, ranges = self._writer.log, self._ranges()
            return await self._writer.commit(
                partial(commit_batch, log, events, ranges, damaged, judgement)
            )
        except Exception as error:
            is_bug = not isinstance(error, StoreError)
            if len(events) == 1 and is_bug:
                return [_broken(events[0], error)]
            if len(events) == 1 or not (is_bug or isinstance(error, DamagedLogError)):
                raise
            logger.exception("A batch failed; its events are tried one by one")
        verdicts: list[Verdict] = []
        damages = 0
        for event in events:
            try:
                verdicts += await self._commit_or_divide([event])
            except DamagedLogError as error:
                damages += 1
                if damages > _MOST_DAMAGED:
                    raise
                verdicts.append(_broken(event, error))
        return verdicts


def _size_of(events: Sequence[Submission]) -> int:
    return sum([len(event.car) for event in events])


def _broken(event: Submission, error: BaseException) -> Verdict:
    """Refuse an event over which this node failed."""
    logger.error("An event could not be admitted", event_id=str(event.event_id), exc_info=error)
    reason = f"this node failed to process the event ({error!r}); see its log"
    return Verdict("refused", event.event_id, None, reason)


@dataclass(eq=False, slots=True)
class _Job(Generic[T]):
    """A call for the writer's thread, and its result."""

    work: Callable[[], T]
    publish: Callable[[T], object] | None = None
    is_change: bool = True
    result: T | None = None
    error: BaseException | None = None


class Writer:
    """Changes the log in a thread of its own, one change at a time and in the order of the calls.

    Each call raises `StoreError` if the disk fails, or does not take it, or the store is closed.

    Args:
        log: open.
        publish: takes over what each commit changed, before anything else is committed.
        close_log: called by `close`, in the thread.
    """

    def __init__(
        self, log: EventLog, publish: Callable[[Committed], object], close_log: Callable[[], object]
    ) -> None:
        self.log = log
        self._publish = publish
        self._close_log = close_log
        self._turn = trio.Semaphore(1, max_value=1)
        """Taken from the start of a job until its result is published."""
        self._thread: Thread | None = None
        self._to_thread = SimpleQueue[_Job[Any] | None]()
        self._here, self._there = socket.socketpair()
        """Has a byte once the thread has done its job."""
        self._is_closed = False
        self.failure = ""
        """Why the latest change was not written, and what to do about it; empty: it was."""

    @property
    def is_idle(self) -> bool:
        """Whether a change would be started at once."""
        return self._turn.value == 1

    async def commit(self, change: Callable[[], Committed]) -> Sequence[Verdict]:
        """Make a change that others see, and publish it; once it has started, even if cancelled."""
        return (await self._do(_Job(change, self._publish))).verdicts

    async def run(self, change: Callable[[], T]) -> T:
        """Make a change that nobody else sees, and return what it returns. Cannot be cancelled."""
        with trio.CancelScope(shield=True):
            return await self._do(_Job(change))

    async def ask(self, question: Callable[[], T]) -> T:
        """Return the answer to a question about the log, asked while nothing is being changed."""
        return await self._do(_Job(question, is_change=False))

    async def close(self) -> None:
        """Close the log after all changes so far; later ones find the store closed."""
        closing = _Job(self._close_log, is_change=False)
        try:
            with trio.CancelScope(shield=True):
                await self._do(closing, is_last=True)
        except StoreError as error:  # all that was committed is safe: the next start finds it
            logger.warning("The event log was not closed cleanly", reason=str(error))
        finally:
            self._to_thread.put(None)
            self._here.close()
            self._there.close()

    @trio.lowlevel.enable_ki_protection  # so that Ctrl-C comes only where the thread is waited for
    async def _do(self, job: _Job[T], *, is_last: bool = False) -> T:
        """Have a job done when it is its turn; no other task has a turn first if it is now."""
        if self._is_closed:
            raise StoreError("the store is closed")
        self._is_closed = is_last
        await acquire(self._turn)
        self._start(job)
        try:
            await trio.lowlevel.wait_readable(self._here.fileno())
        except BaseException:  # it is cancelled, or interrupted
            trio.lowlevel.spawn_system_task(self._finish_alone, job)
            raise
        return self._finish(job)

    def _start(self, job: _Job[Any]) -> None:
        if self._thread is None:
            thread = Thread(target=self._run_jobs, name="event log", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the next change tries again
                self._turn.release()
                raise StoreError(f"the event log cannot be changed: {error}") from None
            self._thread = thread
        self._to_thread.put(job)

    def _run_jobs(self) -> None:
        """Do one job after the other, in the thread."""
        while (job := self._to_thread.get()) is not None:
            try:
                job.result = job.work()
            except BaseException as error:
                job.error = error
            del job
            self._there.send(b"\0")

    def _finish(self, job: _Job[T]) -> T:
        """Publish the result of a job and return it, or raise its error."""
        try:
            self._here.recv(1)
            if job.is_change:
                self._note_outcome(job.error)
            if job.error is not None:
                raise job.error
            result: T = job.result  # type: ignore[assignment]  # without an error, there is one
            if job.publish is not None:
                job.publish(result)
            return result
        finally:
            self._turn.release()

    async def _finish_alone(self, job: _Job[Any]) -> None:
        """Finish a job whose caller has left."""
        await trio.lowlevel.wait_readable(self._here.fileno())
        try:
            self._finish(job)
        except StoreError as error:
            logger.error("A change was not written", reason=str(error))
        except Exception:
            logger.exception("A change failed")

    def _note_outcome(self, error: BaseException | None) -> None:
        if isinstance(error, StoreError):
            if not self.failure:
                logger.error("The event log cannot be written", reason=str(error))
            self.failure = str(error)
        elif error is None:
            if self.failure:
                logger.info("The event log can be written again")
            self.failure = ""
