"""The write policy: lists of models and controllers.

A policy decides about streams, by what the init event of a stream says: all events of a stream,
data events and time events alike, share its verdict. An EventId has the hashes of the sort value
and of the controller, so the lists decide on most EventIds before the event is fetched, and on the
others by the init event.

`PolicyGate` asks it before anything reaches the log. A stream is judged once, by its init event,
and the verdict is remembered. Events of a stream whose init event is not here wait for it, as they
do without a policy, and share its verdict then. `PolicyGate.refusal` decides by an EventId alone,
before an event is fetched from a peer: by the hashes of the listed models and controllers, and by
the streams that were refused before. What comes before the height in an EventId names the stream.
Of a refused stream, it is remembered as its init event has it, never as a peer made it up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Final

from pydantic.dataclasses import dataclass as settings_dataclass

from recon_node.base.latest import Latest
from recon_node.base.setting_types import SETTINGS, Flag, TextList, checked_by
from recon_node.ceramic import (
    METAMODEL,
    EventId,
    EventIdError,
    Network,
    StreamId,
    StreamIdError,
    StreamType,
    parse_event,
)
from recon_node.ceramic.auth.did import canonical_did, did_spellings, is_did
from recon_node.ceramic.event_id import DEFAULT_SORT_KEY, short_hash
from recon_node.ceramic.heightless_event_id import HeightlessEventId, model_hash
from recon_node.ipld import CID
from recon_node.store.admission.records import StreamRecord
from recon_node.store.admission.rules import Judgement, PolicyRefusal
from recon_node.store.reading.log_reader import LogReader
from recon_node.store.values import Submission
from recon_node.verification import Facts

STREAM_PART_SIZE: Final = 4
"""Bytes of the init event's CID in an EventId."""


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """What a write policy decides by: what the init event of a stream says in its header."""

    record: StreamRecord
    model: StreamId | None
    """None: a tile document."""
    stream_type: StreamType

    @property
    def stream_id(self) -> StreamId:
        """The stream's StreamID."""
        return StreamId(self.stream_type, self.record.init)


def _parse_models(texts: Iterable[str]) -> frozenset[StreamId]:
    models = set()
    for text in texts:
        try:
            model = StreamId.parse(text)
        except StreamIdError as error:
            raise ValueError(str(error)) from None
        if model.type != StreamType.MODEL and model != METAMODEL:
            raise ValueError(f"{text} is not the StreamID of a model (stream type 2)")
        models.add(model)
    return frozenset(models)


def _check_controllers(texts: tuple[str, ...]) -> None:
    for text in texts:
        if not is_did(text):
            raise ValueError(f"{text[:100]!r} is not a DID such as did:key:z6Mk...")


Models = Annotated[TextList, checked_by(_parse_models)]
Controllers = Annotated[TextList, checked_by(_check_controllers)]


@settings_dataclass(frozen=True, slots=True, config=SETTINGS)
class PolicySettings:
    """Write policy: whose events the node accepts, from peers and from its own clients."""

    allow_models: Annotated[Models, Flag(metavar="STREAM_ID", flag="allow_model")] = ()
    """Models whose documents are accepted, by their StreamIDs; all others are refused.

    The models themselves are accepted, too, whoever controls them. A stream with another sort key
    than `model` is refused. Events that the node has stay, whatever the policy becomes. Use
    `interests` as well, so that peers do not even offer the others.
      allow_models = ["kjzl6hvfrbw6c...", "kjzl6hvfrbw6d..."]
    """
    deny_models: Annotated[Models, Flag(metavar="STREAM_ID", flag="deny_model")] = ()
    """Models that are refused, and all their documents. A denial overrides any permission."""
    allow_controllers: Annotated[Controllers, Flag(metavar="DID", flag="allow_controller")] = ()
    """DIDs whose streams are accepted; those of others are refused.

    The controller is that of the stream, even if the event is signed under a capability.
    """
    deny_controllers: Annotated[Controllers, Flag(metavar="DID", flag="deny_controller")] = ()
    """DIDs whose streams are refused."""

    def in_use(self) -> dict[str, list[str]]:
        """Return the settings that are set, by their names."""
        return {name: list(values) for name, values in asdict(self).items() if values}


@dataclass(frozen=True, slots=True)
class Policy:
    """The lists of the settings; an empty list of what is allowed allows all.

    Letters of Ethereum addresses are lower-case in the lists of controllers.
    """

    allow_models: frozenset[StreamId] = frozenset()
    deny_models: frozenset[StreamId] = frozenset()
    allow_controllers: frozenset[str] = frozenset()
    deny_controllers: frozenset[str] = frozenset()

    @classmethod
    def of(cls, settings: PolicySettings) -> Policy:
        """Read the lists of some settings, which were checked when they were made."""
        return cls(
            _parse_models(settings.allow_models),
            _parse_models(settings.deny_models),
            frozenset(map(canonical_did, settings.allow_controllers)),
            frozenset(map(canonical_did, settings.deny_controllers)),
        )

    def __bool__(self) -> bool:
        """May anything be refused?"""
        return bool(
            self.allow_models or self.deny_models or self.allow_controllers or self.deny_controllers
        )

    @property
    def decides_by_name(self) -> bool:
        """Whether it matters in whose name a stream is: then an event must show that it is."""
        return bool(self.allow_models or self.allow_controllers)

    def refuse(self, stream: StreamFacts) -> str | None:
        """Return why a stream is refused; None if it is not."""
        record, model = stream.record, stream.model
        controller = canonical_did(record.controller)
        if model in self.deny_models or record.sort_value in map(str, self.deny_models):
            return f"its model {model or record.sort_value} is in deny_models"
        if _is_one_of(stream, self.deny_models):
            return f"the model {stream.stream_id} is in deny_models"
        if controller in self.deny_controllers:
            return f"its controller {record.controller} is in deny_controllers"
        if _is_one_of(stream, self.allow_models):
            return None
        if self.allow_models and model not in self.allow_models:
            return f"its model {model} is not in allow_models"
        if self.allow_models and record.sort_key != DEFAULT_SORT_KEY:
            return f"allow_models is set, and its sort key is {record.sort_key!r}, not `model`"
        if self.allow_controllers and controller not in self.allow_controllers:
            return f"its controller {record.controller} is not in allow_controllers"
        return None


class ListedHashes:
    """The policy as far as the hashes in EventIds of one kind can show.

    What this refuses is refused by the policy; not the other way round. `separator` returns the
    hash of a model in EventIds of this kind.
    """

    def __init__(self, policy: Policy, separator: Callable[[StreamId], bytes]) -> None:
        self._metamodel = separator(METAMODEL)
        self._allow_models = frozenset(map(separator, policy.allow_models))
        self._deny_models = frozenset(map(separator, policy.deny_models))
        self._allow_controllers = _hashes_of_controllers(policy.allow_controllers)
        self._deny_controllers = _hashes_of_controllers(policy.deny_controllers)
        self._allowed_models_streams = frozenset(
            model.cid[-STREAM_PART_SIZE:] for model in policy.allow_models
        )

    def refuse(self, key: EventId | HeightlessEventId) -> str | None:
        """Return why an event is refused; None if its EventId does not show it."""
        separator, controller = key.separator, key.controller
        if separator in self._deny_models:
            return "its EventId is of a model in deny_models"
        if controller in self._deny_controllers:
            return "its EventId is of a controller in deny_controllers"
        if separator == self._metamodel and key.stream in self._allowed_models_streams:
            return None
        if self._allow_models and separator not in self._allow_models:
            return "its EventId is of no model in allow_models"
        if self._allow_controllers and controller not in self._allow_controllers:
            return "its EventId is of no controller in allow_controllers"
        return None


def hashes_of_event_ids(policy: Policy) -> ListedHashes:
    """Return the policy as EventIds show it."""
    return ListedHashes(policy, lambda model: short_hash(str(model)))


def hashes_of_ring_keys(policy: Policy) -> ListedHashes:
    """Return the policy as the EventIds without height show it."""
    return ListedHashes(policy, model_hash)


def _is_one_of(stream: StreamFacts, models: frozenset[StreamId]) -> bool:
    """Return whether a stream is that of one of some models."""
    return stream.model == METAMODEL and stream.stream_id in models


def _hashes_of_controllers(controllers: frozenset[str]) -> frozenset[bytes]:
    return frozenset(
        short_hash(name) for controller in controllers for name in did_spellings(controller)
    )


REMEMBERED_VERDICTS: Final = 16_384
"""Streams whose verdict is remembered, the latest ones."""
REMEMBERED_REFUSED: Final = 65_536
"""Refused streams that are recognized by an EventId, the latest ones."""


class PolicyGate:
    """Applies a write policy. Used from trio's thread."""

    def __init__(self, policy: Policy, network: Network, reader: LogReader) -> None:
        self.policy = policy
        self.is_open = not policy
        """Whether it accepts all streams."""
        self._network = network
        self._reader = reader
        self._event_ids = hashes_of_event_ids(policy)
        self._ring_keys = hashes_of_ring_keys(policy)
        self._verdicts = Latest[CID, PolicyRefusal | None](REMEMBERED_VERDICTS)
        self._refused = Latest[bytes, PolicyRefusal](REMEMBERED_REFUSED)

    def refusal(self, key: EventId | HeightlessEventId) -> PolicyRefusal | None:
        """Return why events with this EventId are refused; None if it does not show it."""
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
        facts_of: dict[CID, Facts] = {}
        for submission in batch:
            key = submission.event_id or submission.ring_key
            refusal = None if key is None else self.refusal(key)
            if key is not None and refusal is not None:
                keys[key] = refusal
                continue
            event = submission.finding
            if not isinstance(event, Facts) or (event.refusal and not event.is_badly_signed):
                continue
            if event.init not in facts_of or event.header is not None:
                facts_of[event.init] = event
        streams = {init: self._verdicts.use(init) for init in facts_of if init in self._verdicts}
        for stream in await self._read([facts_of[init] for init in facts_of.keys() - streams]):
            streams[stream.record.init] = self._decide(stream)
        return Judgement(keys, streams)

    async def _read(self, events: Sequence[Facts]) -> list[StreamFacts]:
        """Return what the init events of the streams of some events say, of those that are here."""
        facts, missing = list[StreamFacts](), list[CID]()
        for event in events:
            if (header := event.header) is None:
                missing.append(event.init)
            else:
                record = StreamRecord.of(event)
                facts.append(StreamFacts(record, header.model, header.stream_type))
        if missing:
            records = await self._reader.stream_headers(missing)
            cars = await self._reader.cars_by_cid([record.init for record in records])
            for record, car in zip(records, cars, strict=True):
                if car is not None and (header := parse_event(car).header) is not None:
                    facts.append(StreamFacts(record, header.model, header.stream_type))
                else:  # it is damaged
                    facts.append(StreamFacts(record, record.model, StreamType.MODEL_INSTANCE))
        return facts

    def _decide(self, stream: StreamFacts) -> PolicyRefusal | None:
        """Judge a stream, and remember the verdict."""
        record, reason = stream.record, self.policy.refuse(stream)
        refusal = None if reason is None else PolicyRefusal(reason)
        self._verdicts[record.init] = refusal
        try:
            prefix = record.prefix(self._network)
        except EventIdError:  # no peer has an EventId for it, either
            return refusal
        if refusal is None:
            self._refused.pop(prefix, None)
        else:
            self._refused[prefix] = refusal
        return refusal
