"""Asks the write policy, before anything reaches the log.

A stream is judged once, by its init event, and the verdict is remembered. Events of a stream whose
init event is not here wait for it, as they do without a policy, and share its verdict then.

`PolicyGate.refusal` decides by an EventId alone, before an event is fetched from a peer: by the
hashes of the listed models and controllers, and by the streams that were refused before. What comes
before the height in an EventId names the stream. Of a refused stream, it is remembered as its init
event has it, never as a peer made it up.

Functions of other packages run in one thread beside the node's. One that raises does not take the
others with it, and one that hangs holds up admission once, for the time that it is given: until its
thread returns, streams that are not judged are refused without asking. What is refused for want of
an answer is asked again after `ASK_AGAIN` seconds.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import structlog
import trio

from recon_node.ceramic import EventId, EventIdError, Network, StreamId, StreamType, parse_event
from recon_node.ceramic.heightless_event_id import HeightlessEventId
from recon_node.ipld import CID
from recon_node.latest import Latest
from recon_node.store.admission.records import UNJUDGED, Judgement, PolicyRefusal, StreamRecord
from recon_node.store.db.rows import MAX_REASON
from recon_node.store.policy import (
    Policy,
    StreamFacts,
    hashes_of_event_ids,
    hashes_of_ring_keys,
)
from recon_node.store.reading.log_reader import LogReader
from recon_node.store.values import Submission
from recon_node.verification import Facts

logger = structlog.get_logger(__name__)

REMEMBERED: Final = 16_384
"""Streams whose verdict is remembered, the latest ones."""
REMEMBERED_REFUSED: Final = 65_536
"""Refused streams that are recognized by an EventId, the latest ones."""
ASK_AGAIN: Final = 60.0
"""Seconds after which a stream is judged again for which there was no verdict."""
LOG_EVERY: Final = 60.0
"""Seconds between two messages in the log about the same function."""


class PolicyGate:
    """Applies a write policy. Used from trio's thread.

    Args:
        policy: what to apply.
        network: of the node.
        log: the questions about the log, for streams that are here.
    """

    def __init__(self, policy: Policy, network: Network, log: LogReader) -> None:
        self.policy = policy
        self.is_open = not policy
        """Whether it accepts all streams."""
        self._network = network
        self._log = log
        self._event_ids = hashes_of_event_ids(policy.lists)
        self._ring_keys = hashes_of_ring_keys(policy.lists)
        self._verdicts = Latest[CID, tuple[float, PolicyRefusal | None]](REMEMBERED)
        self._refused = Latest[bytes, tuple[float, PolicyRefusal]](REMEMBERED_REFUSED)
        self._thread = trio.CapacityLimiter(1)
        self._logged: dict[str, float] = {}
        self.failures_total = 0
        """Streams for which a function raised, hung, or returned something else than a verdict."""

    def refusal(self, key: EventId | HeightlessEventId) -> PolicyRefusal | None:
        """Return why events with this EventId are refused; None if it does not tell."""
        if self.is_open:
            return None
        if isinstance(key, HeightlessEventId):
            reason = self._ring_keys.refuse(key)
            return None if reason is None else PolicyRefusal(reason)
        reason = self._event_ids.refuse(key)
        if reason is not None:
            return PolicyRefusal(reason)
        until, refusal = self._refused.get(key.prefix, (0.0, None))
        return refusal if until > trio.current_time() else None

    async def judge(self, batch: Sequence[Submission]) -> Judgement:
        """Judge the streams of a batch.

        Raises:
            StoreError: the disk failed.
        """
        keys: dict[bytes, PolicyRefusal] = {}
        found: dict[CID, Facts] = {}
        for each in batch:
            key = each.event_id or each.ring_key
            refusal = None if key is None else self.refusal(key)
            if key is not None and refusal is not None:
                keys[key] = refusal
                continue
            event = each.finding
            if not isinstance(event, Facts) or (event.fault and not event.is_invalid):
                continue
            if event.init not in found or event.header is not None:
                found[event.init] = event
        streams = self._recall(found)
        streams |= await self._decide(await self._facts_of(found.keys() - streams.keys(), found))
        return Judgement(keys, streams)

    def _recall(self, inits: Iterable[CID]) -> dict[CID, PolicyRefusal | None]:
        """Return the remembered verdicts on some streams."""
        now = trio.current_time()
        recalled = {}
        for init in inits:
            until, refusal = self._verdicts.use(init) or (0.0, None)
            if until > now:
                recalled[init] = refusal
        return recalled

    async def _facts_of(
        self, inits: Iterable[CID], found: Mapping[CID, Facts]
    ) -> dict[CID, StreamFacts]:
        """Return what the init events of streams say, as far as they are in `found` or here."""
        facts: dict[CID, StreamFacts] = {}
        missing = []
        for init in inits:
            header = found[init].header
            if header is None:
                missing.append(init)
            else:
                record = StreamRecord.of(found[init])
                facts[init] = self._describe(record, header.model, header.stream_type)
        if missing:
            records = await self._log.stream_headers(missing)
            models = await self._read_models(records)
            for record in records:
                model, stream_type = models[record.init]
                facts[record.init] = self._describe(record, model, stream_type)
        return facts

    async def _read_models(
        self, records: Sequence[StreamRecord]
    ) -> dict[CID, tuple[StreamId | None, StreamType]]:
        """Return the models and the types of streams that are here, from their init events."""
        inits = [record.init for record in records]
        cars = await self._log.cars_by_cid(inits)
        models: dict[CID, tuple[StreamId | None, StreamType]] = {}
        for record, car in zip(records, cars, strict=True):
            header = None if car is None else parse_event(car).header  # None: damaged
            models[record.init] = (
                (record.model, StreamType.MODEL_INSTANCE)
                if header is None
                else (header.model, header.stream_type)
            )
        return models

    def _describe(
        self, record: StreamRecord, model: StreamId | None, stream_type: StreamType
    ) -> StreamFacts:
        return StreamFacts(
            self._network.name,
            StreamId(stream_type, record.init),
            record.controller,
            model,
            record.sep_key,
            record.sep_value,
        )

    async def _decide(self, streams: Mapping[CID, StreamFacts]) -> dict[CID, PolicyRefusal | None]:
        """Judge streams, and remember the verdicts."""
        verdicts: dict[CID, PolicyRefusal | None] = {}
        for init, stream in streams.items():
            reason = self.policy.lists.refuse(stream)
            verdicts[init] = None if reason is None else PolicyRefusal(reason)
        open_ones = [stream for init, stream in streams.items() if verdicts[init] is None]
        if open_ones and self.policy.functions:
            for stream, refusal in zip(open_ones, await self._ask(open_ones), strict=True):
                verdicts[stream.stream_id.cid] = refusal
        for init, refusal in verdicts.items():
            self._remember(streams[init], refusal)
        return verdicts

    def _remember(self, stream: StreamFacts, refusal: PolicyRefusal | None) -> None:
        init = stream.stream_id.cid
        is_final = refusal is None or refusal.is_final
        until = math.inf if is_final else trio.current_time() + ASK_AGAIN
        self._verdicts[init] = until, refusal
        try:
            prefix = EventId.build(
                self._network, stream.sort_value, stream.controller, init, 0, init
            ).prefix
        except EventIdError:  # no peer has an EventId for it, either
            return
        if refusal is None:
            self._refused.pop(prefix, None)
        else:
            self._refused[prefix] = until, refusal

    async def _ask(self, streams: Sequence[StreamFacts]) -> list[PolicyRefusal | None]:
        """Ask the functions about streams, in their thread and within their time."""
        answers: list[PolicyRefusal | None] = []
        if not self._thread.borrowed_tokens:  # else a function hangs
            given_up = threading.Event()
            with trio.move_on_after(self.policy.timeout) as scope:
                await trio.to_thread.run_sync(
                    self._ask_in_thread,
                    streams,
                    answers,
                    given_up,
                    abandon_on_cancel=True,  # type: ignore[call-arg]  # stubs of trio 0.22
                    limiter=self._thread,
                )
            given_up.set()
            if scope.cancelled_caught:
                logger.error(
                    "The write policies take too long: streams are refused until they return",
                    policies=[name for name, _ in self.policy.functions],
                    seconds=self.policy.timeout,
                )
        answered = answers[: len(streams)]
        unanswered = len(streams) - len(answered)
        self.failures_total += unanswered + sum(each is UNJUDGED for each in answered)
        return answered + [UNJUDGED] * unanswered

    def _ask_in_thread(
        self,
        streams: Sequence[StreamFacts],
        answers: list[PolicyRefusal | None],
        given_up: threading.Event,
    ) -> None:
        for stream in streams:
            if given_up.is_set():
                return
            answers.append(self._ask_about(stream))

    def _ask_about(self, stream: StreamFacts) -> PolicyRefusal | None:
        """Ask all functions about a stream until one refuses it."""
        for name, function in self.policy.functions:
            try:
                reason = function(stream)
                if reason is not None and not (isinstance(reason, str) and reason):
                    raise TypeError(f"it returned {reason!r:.100}, neither a reason nor None")
            except BaseException as error:  # SystemExit, too: it is not ours
                self._log_failure(name, stream, error)
                return UNJUDGED
            if reason is not None:
                return PolicyRefusal(f"{reason[:MAX_REASON]} (write policy {name})")
        return None

    def _log_failure(self, name: str, stream: StreamFacts, error: BaseException) -> None:
        now = time.monotonic()
        if now >= self._logged.get(name, -math.inf) + LOG_EVERY:
            self._logged[name] = now
            logger.error(
                "A write policy failed: streams that it cannot judge are refused for now",
                policy=name,
                stream=str(stream.stream_id),
                reason=repr(error),
                exc_info=error,
            )
