"""What a write policy is: lists of models and controllers, and functions of other packages.

A policy decides about streams, by what the init event of a stream says: all events of a stream,
data events and time events alike, share its verdict. A stream is refused if one of these says so:

- the lists of the settings. An EventId has the hashes of the sort value and of the controller, so
  lists decide on most EventIds before the event is fetched, and on the others by the init event.
- the functions that the setting `write_policy` names. A package offers one as an entry point::

      [project.entry-points."recon_node.write_policy"]
      members-only = "my_package:members_only"

      def members_only(stream: StreamFacts) -> str | None:
          return None if stream.controller in MEMBERS else "its controller is not a member"

How and when they are asked is in `recon_node.store.judging`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Final, Protocol

import structlog
from pydantic.dataclasses import dataclass as settings_dataclass

from recon_node.ceramic import METAMODEL, EventId, StreamId, StreamIdError, StreamType
from recon_node.ceramic.auth.did import canonical_did, did_spellings, is_did
from recon_node.ceramic.event_id import short_hash
from recon_node.ceramic.header import DEFAULT_SORT_KEY
from recon_node.ceramic.heightless_event_id import HeightlessEventId, model_hash
from recon_node.setting_types import SETTINGS, Flag, Seconds, Setting, TextList, checked_by

logger = structlog.get_logger(__name__)

ENTRY_POINTS: Final = "recon_node.write_policy"
"""The group of entry points of packages that offer write policies."""
STREAM_PART_SIZE: Final = 4
"""Bytes of the init event's CID in an EventId."""


class PolicyError(ValueError):
    """A write policy that cannot be used. The message says why and what to do."""


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """What a write policy decides by: what the init event of a stream says in its header."""

    network: str
    """The name of the network."""
    stream_id: StreamId
    """Its `cid` is that of the init event."""
    controller: str
    """The DID that may write to the stream, itself or by capabilities that it issues."""
    model: StreamId | None
    """None: a tile document."""
    sort_key: str
    """The field of the header whose value is the sort value, usually "model"."""
    sort_value: str
    """As text; the base36 form of a StreamID."""


class WritePolicy(Protocol):
    """A function, or a class without arguments whose instances can be called as one.

    It is called once for each stream that comes up, in a thread of the node, and again for streams
    that the node has not met for long. It should answer from memory. If it raises, returns anything
    else, or takes longer than `write_policy_timeout`, the stream is refused for a minute.
    """

    def __call__(self, stream: StreamFacts) -> str | None:
        """Return why the stream is refused, for the log and for those who write; None if not."""


def _parse_models(texts: Iterable[str]) -> frozenset[StreamId]:
    found = set()
    for text in texts:
        try:
            model = StreamId.parse(text)
        except StreamIdError as error:
            raise ValueError(str(error)) from None
        if model.type != StreamType.MODEL and model != METAMODEL:
            raise ValueError(f"{text} is not the StreamID of a model (stream type 2)")
        found.add(model)
    return frozenset(found)


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
    names: Annotated[TextList, Flag(name="write_policy", metavar="NAME")] = ()
    """Write policies in Python to ask as well: entry points of the group recon_node.write_policy,
    by their names (docs/admission.md)."""
    timeout: Annotated[Seconds, Setting(name="write_policy_timeout")] = 5.0
    """Longest time for the Python policies to judge the streams of a batch. Beyond it, those that
    are not judged are refused for a minute."""

    def in_use(self) -> dict[str, list[str]]:
        """Return the settings that are set, by their names."""
        named = {
            "allow_models": self.allow_models,
            "deny_models": self.deny_models,
            "allow_controllers": self.allow_controllers,
            "deny_controllers": self.deny_controllers,
            "write_policy": self.names,
        }
        return {name: list(values) for name, values in named.items() if values}

    @property
    def decides_by_name(self) -> bool:
        """What `Policy.decides_by_name` is going to be."""
        return bool(self.allow_models or self.allow_controllers or self.names)

    def load(self) -> Policy:
        """Return the policy, with the functions of the packages. Blocks while those are imported.

        Raises:
            PolicyError: one of them is not installed, or cannot be imported.
        """
        offered = {each.name: each for each in entry_points(group=ENTRY_POINTS)}
        for name in offered.keys() - set(self.names):
            logger.info("A write policy is installed, but not named in `write_policy`", name=name)
        functions = [(name, _load(name, offered)) for name in dict.fromkeys(self.names)]
        return Policy(Lists.of(self), functions, self.timeout)


def _load(name: str, offered: dict[str, EntryPoint]) -> WritePolicy:
    if name not in offered:
        known = ", ".join(sorted(offered)) or "none"
        raise PolicyError(
            f"no installed package offers a write policy {name!r} (entry points of the group "
            f"{ENTRY_POINTS}: {known})"
        )
    try:
        loaded = offered[name].load()
        policy: WritePolicy = loaded() if isinstance(loaded, type) else loaded
    except Exception as error:  # whatever the package's code raises
        raise PolicyError(f"the write policy {name!r} cannot be loaded: {error!r}") from error
    if not callable(policy):
        raise PolicyError(f"the write policy {name!r} is not a function: {offered[name].value}")
    return policy


@dataclass(frozen=True, slots=True)
class Lists:
    """The lists of the settings; an empty list of what is allowed allows all.

    Letters of Ethereum addresses are lower-case in the lists of controllers.
    """

    allow_models: frozenset[StreamId] = frozenset()
    deny_models: frozenset[StreamId] = frozenset()
    allow_controllers: frozenset[str] = frozenset()
    deny_controllers: frozenset[str] = frozenset()

    @classmethod
    def of(cls, settings: PolicySettings) -> Lists:
        """Read the lists of some settings, which were checked when they were made."""
        return cls(
            _parse_models(settings.allow_models),
            _parse_models(settings.deny_models),
            frozenset(map(canonical_did, settings.allow_controllers)),
            frozenset(map(canonical_did, settings.deny_controllers)),
        )

    def __bool__(self) -> bool:
        """Is anything listed?"""
        return bool(
            self.allow_models or self.deny_models or self.allow_controllers or self.deny_controllers
        )

    def refuse(self, stream: StreamFacts) -> str | None:
        """Return why a stream is refused; None if it is not."""
        controller = canonical_did(stream.controller)
        if stream.model in self.deny_models or stream.sort_value in map(str, self.deny_models):
            return f"its model {stream.model or stream.sort_value} is in deny_models"
        if _is_one_of(stream, self.deny_models):
            return f"the model {stream.stream_id} is in deny_models"
        if controller in self.deny_controllers:
            return f"its controller {stream.controller} is in deny_controllers"
        if _is_one_of(stream, self.allow_models):
            return None
        if self.allow_models and stream.model not in self.allow_models:
            return f"its model {stream.model} is not in allow_models"
        if self.allow_models and stream.sort_key != DEFAULT_SORT_KEY:
            return f"allow_models is set, and its sort key is {stream.sort_key!r}, not `model`"
        if self.allow_controllers and controller not in self.allow_controllers:
            return f"its controller {stream.controller} is not in allow_controllers"
        return None


class ListedHashes:
    """The lists as far as the hashes in EventIds of one kind can tell.

    What this refuses is refused by the lists; not the other way round.

    Args:
        lists: as they are.
        separator: returns the hash of a model in EventIds of this kind.
    """

    def __init__(self, lists: Lists, separator: Callable[[StreamId], bytes]) -> None:
        self._metamodel = separator(METAMODEL)
        self._allow_models = frozenset(map(separator, lists.allow_models))
        self._deny_models = frozenset(map(separator, lists.deny_models))
        self._allow_controllers = _hashes_of_controllers(lists.allow_controllers)
        self._deny_controllers = _hashes_of_controllers(lists.deny_controllers)
        self._allowed_models_streams = frozenset(
            model.cid[-STREAM_PART_SIZE:] for model in lists.allow_models
        )

    def refuse(self, key: EventId | HeightlessEventId) -> str | None:
        """Return why an event is refused; None if its EventId does not tell."""
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


@dataclass(frozen=True, slots=True)
class Policy:
    """A write policy as `recon_node.store.judging` applies it."""

    lists: Lists = Lists()
    functions: Sequence[tuple[str, WritePolicy]] = ()
    """Each with its name."""
    timeout: float = 5.0
    """Seconds for the functions to judge the streams of a batch."""

    def __bool__(self) -> bool:
        """May anything be refused?"""
        return bool(self.lists or self.functions)

    @property
    def decides_by_name(self) -> bool:
        """Whether it matters in whose name a stream is: then an event must show that it is."""
        lists = self.lists
        return bool(lists.allow_models or lists.allow_controllers or self.functions)


def hashes_of_event_ids(lists: Lists) -> ListedHashes:
    """Return the lists as EventIds show them."""
    return ListedHashes(lists, lambda model: short_hash(str(model)))


def hashes_of_ring_keys(lists: Lists) -> ListedHashes:
    """Return the lists as the EventIds without height show them."""
    return ListedHashes(lists, model_hash)


def _is_one_of(stream: StreamFacts, models: frozenset[StreamId]) -> bool:
    """Return whether a stream is that of one of some models."""
    return stream.model == METAMODEL and stream.stream_id in models


def _hashes_of_controllers(controllers: frozenset[str]) -> frozenset[bytes]:
    return frozenset(short_hash(name) for each in controllers for name in did_spellings(each))
