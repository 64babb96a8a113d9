"""Group commit: many callers, one transaction; and a line of two: check, commit.

Callers put their events into a bounded channel and wait. One task takes what has gathered there,
up to a batch, and has it checked (see `admission.verifiers`); another one admits it in a
worker thread, one batch at a time and in the order of the channel. While the disk takes one batch,
the next one is checked and a third one gathers. After the commit the task tells the store what
changed, on trio's thread, and only then the callers.

Nothing depends on a caller being there still: one that is cancelled does not hear its verdicts, and
its events are admitted all the same. A batch that the disk does not take fails for its callers, and
the task goes on. A batch that fails for any other reason (a bug, met by one of its events) is tried
again an event at a time, so that no event suffers from its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import structlog
import trio

from recon_node.ceramic import EventId
from recon_node.ipld import CID
from recon_node.recon import KeyRange
from recon_node.store.admission.rules import Submission
from recon_node.store.admission.verifiers import Verifiers
from recon_node.store.db.log import BatchResult, EventLog
from recon_node.store.db.proofs import ProofVerdict
from recon_node.store.errors import DiskFullError, StoreError
from recon_node.store.values import Interest, StoreSettings, Verdict

T = TypeVar("T")

logger = structlog.get_logger(__name__)


@dataclass(eq=False, slots=True)
class _Request:
    """Events of one caller, and what became of them."""

    events: list[Submission]
    verdicts: list[Verdict] = field(default_factory=list)
    error: StoreError | None = None
    done: trio.Event = field(default_factory=trio.Event)

    def settle(self, error: StoreError | None = None) -> None:
        """Tell the caller."""
        self.error = error
        self.done.set()

    @property
    def size(self) -> int:
        """Bytes of its CARs."""
        return sum(len(event.car) for event in self.events)


class Writer:
    """The only one who writes to the log.

    Args:
        log: open; closed by the writer when it ends.
        settings: bounds of the queue and of a batch.
        ranges: what the node is interested in, asked before each batch.
        damaged: the events that are damaged in the log, asked before each batch.
        settled: tells whether the log knows the verdict on an EventId without a look at the CAR.
        committed: told of each committed batch, on trio's thread, before its callers are.
    """

    def __init__(
        self,
        log: EventLog,
        settings: StoreSettings,
        ranges: Callable[[], Sequence[KeyRange]],
        damaged: Callable[[], Collection[CID]],
        settled: Callable[[EventId], bool],
        committed: Callable[[BatchResult], None],
    ) -> None:
        self._log = log
        self._settings = settings
        self._ranges = ranges
        self._damaged = damaged
        self._settled = settled
        self._verifiers = Verifiers(settings.verifiers)
        self._committed = committed
        self._send, self._receive = trio.open_memory_channel[_Request](settings.queue_size)
        self._thread = trio.CapacityLimiter(1)
        self._finished = trio.Event()
        self._committing = trio.Lock()
        self._closing = False
        self._closed = False
        self._give_up = False
        self._disk_full = False
        self.failed_batches = 0

    async def admit(self, events: Sequence[Submission]) -> list[Verdict]:
        """Hand in events and wait for their verdicts, in order.

        More events than a batch takes go in several, each a transaction of its own.

        Raises:
            StoreError: the disk did not take all of them, or the store is closed. Some may be in
                the log: handed in again, those are "known".
        """
        requests = [_Request(list(part)) for part in self._split(events)]
        for request in requests:
            try:
                await self._send.send(request)
            except (trio.ClosedResourceError, trio.BrokenResourceError):
                raise StoreError("the store is closed") from None
        for request in requests:
            await request.done.wait()
        for request in requests:
            if request.error is not None:
                kind = type(request.error)
                raise kind(str(request.error)) from request.error  # each caller its own
        return [verdict for request in requests for verdict in request.verdicts]

    async def add_interest(self, interest: Interest) -> bool:
        """Keep an interest; False when it is there already.

        Raises:
            StoreError: the disk did not take it, or the store is closed.
        """
        if self._closing:
            raise StoreError("the store is closed")
        return await self._in_thread(partial(self._log.add_interest, interest))

    async def remove_interest(self, interest: Interest) -> bool:
        """Forget an interest; False when there was none.

        Raises:
            StoreError: the disk did not take it, or the store is closed.
        """
        if self._closing:
            raise StoreError("the store is closed")
        return await self._in_thread(partial(self._log.remove_interest, interest))

    async def settle_proofs(self, verdicts: Sequence[tuple[CID, ProofVerdict]]) -> None:
        """Keep what came of lookups; told as a batch is.

        Raises:
            StoreError: the disk did not take it, or the store is closed.
        """
        await self._apply(partial(self._log.settle_proofs, verdicts))

    async def postpone_proofs(self, proofs: Sequence[tuple[CID, float]]) -> None:
        """Put proofs that were looked up in vain further back in line.

        Raises:
            StoreError: the disk did not take it, or the store is closed.
        """
        if self._closing:
            raise StoreError("the store is closed")
        await self._in_thread(partial(self._log.postpone_proofs, proofs))

    async def run(self) -> None:
        """Write batch after batch until `close`; then close the log. Cannot be cancelled."""
        try:
            with trio.CancelScope(shield=True):
                async with trio.open_nursery() as nursery:
                    give, take = trio.open_memory_channel[list[_Request]](0)
                    nursery.start_soon(self._check_all, give)
                    async with take:
                        async for batch in take:
                            await self._write(batch)
                await self._verifiers.close()
                await self._close_log()
        finally:
            self._finished.set()

    async def _check_all(self, checked: trio.MemorySendChannel[list[_Request]]) -> None:
        """Check batch after batch and hand each on, until `close`."""
        async with self._receive, checked:
            async for request in self._receive:
                batch = self._gather(request)
                if not self._give_up:
                    await self._check(batch)
                await checked.send(batch)

    async def _check(self, batch: Sequence[_Request]) -> None:
        """Check the events of a batch, but for those on which a look at the CAR changes nothing."""
        limit = self._settings.max_event_bytes
        new = [
            (request, at)
            for request in batch
            for at, event in enumerate(request.events)
            if len(event.car) <= limit
            and (event.event_id is None or not self._settled(event.event_id))
        ]
        try:
            found = await self._verifiers.check([request.events[at].car for request, at in new])
        except Exception:  # no thread to be had, say; what is not checked ahead, admission checks
            logger.exception("events could not be checked ahead", events=len(new))
            return
        for (request, at), checked in zip(new, found, strict=True):
            request.events[at] = replace(request.events[at], checked=checked)

    async def close(self) -> None:
        """Take nothing more, write what was handed in, and end; see `drain_seconds`."""
        self._closing = True
        self._send.close()
        with trio.CancelScope(shield=True):
            with trio.move_on_after(self._settings.drain_seconds):
                await self._finished.wait()
            self._give_up = True
            await self._finished.wait()

    def _split(self, events: Sequence[Submission]) -> Iterator[Sequence[Submission]]:
        """Cut into parts that a batch takes."""
        start = size = 0
        for at, event in enumerate(events):
            if at > start and (
                at - start >= self._settings.max_batch_events
                or size + len(event.car) > self._settings.max_batch_bytes
            ):
                yield events[start:at]
                start, size = at, 0
            size += len(event.car)
        if start < len(events):
            yield events[start:]

    def _gather(self, first: _Request) -> list[_Request]:
        """Take what waits in the channel, up to a batch."""
        batch, count, size = [first], len(first.events), first.size
        while count < self._settings.max_batch_events and size < self._settings.max_batch_bytes:
            try:
                request = self._receive.receive_nowait()
            except (trio.WouldBlock, trio.EndOfChannel):
                break
            batch.append(request)
            count += len(request.events)
            size += request.size
        return batch

    async def _write(self, batch: Sequence[_Request]) -> None:
        """Admit a batch and tell its callers."""
        try:
            if self._give_up:
                raise StoreError("the store was closed before it could take the events")
            await self._admit(batch)
        except StoreError as error:
            self.failed_batches += 1
            if not isinstance(error, DiskFullError):  # which is told once, not a batch
                logger.error("a batch was not written", requests=len(batch), reason=str(error))
            for request in batch:
                request.settle(error)
        else:
            for request in batch:
                request.settle()

    async def _admit(self, batch: Sequence[_Request]) -> None:
        events = [event for request in batch for event in request.events]
        try:
            verdicts = await self._commit(events)
        except StoreError:
            raise
        except Exception:
            logger.exception("a batch failed; its events are tried one by one", events=len(events))
            verdicts = [await self._admit_alone(event) for event in events]
        for request in batch:
            request.verdicts = verdicts[: len(request.events)]
            del verdicts[: len(request.events)]

    async def _admit_alone(self, event: Submission) -> Verdict:
        try:
            [verdict] = await self._commit([event])
        except StoreError:
            raise
        except Exception as error:
            logger.exception("an event could not be admitted", event_id=str(event.event_id))
            reason = f"this node failed over the event ({error!r}); its log says where"
            return Verdict("refused", event.event_id, None, reason)
        return verdict

    async def _commit(self, events: Sequence[Submission]) -> list[Verdict]:
        result = await self._apply(
            partial(self._log.admit, events, self._ranges(), self._damaged())
        )
        return result.verdicts

    async def _apply(self, work: Callable[[], BatchResult]) -> BatchResult:
        """Commit, and tell the store, in the order of the commits."""
        with trio.CancelScope(shield=True):
            async with self._committing:
                if self._closed:
                    raise StoreError("the store is closed")
                result = await self._in_thread(work)
                self._committed(result)
        return result

    async def _close_log(self) -> None:
        async with self._committing:
            self._closed = True
        try:
            await self._in_thread(self._log.close)
        except StoreError as error:  # all that was committed is safe: the next start finds it
            logger.warning("the event log was not closed cleanly", reason=str(error))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Use the log in a thread, one at a time and in the order of the calls."""
        try:
            result = await trio.to_thread.run_sync(work, limiter=self._thread)
        except DiskFullError as error:
            if not self._disk_full:
                logger.error(
                    "The disk is full: nothing is written till it has room", reason=str(error)
                )
            self._disk_full = True
            raise
        if self._disk_full:
            logger.info("The disk has room again: events are written")
        self._disk_full = False
        return result
