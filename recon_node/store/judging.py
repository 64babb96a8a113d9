"""Asks the write policy, before anything reaches the log.

A stream is judged once, by its init event, and the verdict is remembered. Events of a stream whose
init event is not here wait for it, as they do without a policy, and share its verdict then.

`PolicyGate.refusal` decides by an EventId alone, before an event is fetched from a peer: by the
hashes of the listed models and controllers, and by the streams that were refused before. What comes
before the height in an EventId names the stream. Of a refused stream, it is remembered as its init
event has it, never as a peer made it up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from recon_node.ceramic import EventId, EventIdError, Network, StreamId, StreamType, parse_event
from recon_node.ceramic.heightless_event_id import HeightlessEventId
from recon_node.ipld import CID
from recon_node.latest import Latest
from recon_node.store.admission.records import Judgement, PolicyRefusal, StreamRecord
from recon_node.store.policy import (
    Policy,
    StreamFacts,
    hashes_of_event_ids,
    hashes_of_ring_keys,
)
from recon_node.store.reading.log_reader import LogReader
from recon_node.store.values import Submission
from recon_node.verification import Facts

REMEMBERED: Final = 16_384
"""Streams whose verdict is remembered, the latest ones."""
REMEMBERED_REFUSED: Final = 65_536
"""Refused streams that are recognized by an EventId, the latest ones."""


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
        self._event_ids = hashes_of_event_ids(policy)
        self._ring_keys = hashes_of_ring_keys(policy)
        self._verdicts = Latest[CID, PolicyRefusal | None](REMEMBERED)
        self._refused = Latest[bytes, PolicyRefusal](REMEMBERED_REFUSED)

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
        return self._refused.get(key.prefix)

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
        streams = {init: self._verdicts.use(init) for init in found if init in self._verdicts}
        streams |= self._decide(await self._facts_of(found.keys() - streams.keys(), found))
        return Judgement(keys, streams)

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
            StreamId(stream_type, record.init),
            record.controller,
            model,
            record.sep_key,
            record.sep_value,
        )

    def _decide(self, streams: Mapping[CID, StreamFacts]) -> dict[CID, PolicyRefusal | None]:
        """Judge streams, and remember the verdicts."""
        verdicts: dict[CID, PolicyRefusal | None] = {}
        for init, stream in streams.items():
            reason = self.policy.refuse(stream)
            verdicts[init] = None if reason is None else PolicyRefusal(reason)
            self._remember(stream, verdicts[init])
        return verdicts

    def _remember(self, stream: StreamFacts, refusal: PolicyRefusal | None) -> None:
        init = stream.stream_id.cid
        self._verdicts[init] = refusal
        try:
            prefix = EventId.build(
                self._network, stream.sort_value, stream.controller, init, 0, init
            ).prefix
        except EventIdError:  # no peer has an EventId for it, either
            return
        if refusal is None:
            self._refused.pop(prefix, None)
        else:
            self._refused[prefix] = refusal
