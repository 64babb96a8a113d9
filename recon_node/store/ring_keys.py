"""The second key index: the events that ceramic-one nodes reconcile, under their own EventIds.

The deployed network's keys have no height and another separator (`HeightlessEventId`). Everything
else of them is in our EventIds, so an index is a key store beside the first one, made from it, and
no table of the log: one replaces eight bytes of each key and leaves out the height. It is loaded
when a ceramic-one node first speaks with this one: other nodes do not need it.

An event is in it once its whole history is here and checked, delivered or pending: ceramic-one
nodes hold aside what has to wait, and count only what they can serve. Left out are pending events
whose anchor is probably made up (`recon_node.store.db.doubts`), and streams whose sort key is not
`model`, because ceramic-one takes every stream's separator from its model.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from recon_node.ceramic import EventId, Network, StreamId
from recon_node.ceramic.event_id import FIELDS_SIZE, SHORT_HASH_SIZE, rendezvous, short_hash
from recon_node.ceramic.heightless_event_id import HeightlessEventId, model_hash
from recon_node.ipld import CID
from recon_node.recon import KeyStore

_SORTED_AT_ONCE: Final = 20_000
"""Keys. To sort a million would hold the interpreter, and the event loop, for a second."""


class RingKeys:
    """The keys of the model ring. Used from one thread at a time.

    Args:
        network: of the node.
        models: those of the streams in the log.
        keys: filled already, as saved by an earlier run; else see `fill`.

    Attributes:
        keys: the EventIds without height.
    """

    def __init__(
        self, network: Network, models: Iterable[StreamId], keys: KeyStore | None = None
    ) -> None:
        self.keys = KeyStore() if keys is None else keys
        self._fields = len(rendezvous(network))
        self._separator = slice(self._fields, self._fields + SHORT_HASH_SIZE)
        """Where EventIds of the network have their separator."""
        self._separators: dict[bytes, bytes] = {}
        """The separator of each model: here, by that in our EventIds."""
        self._doubted: set[bytes] = set()
        """Keys that are left out, because their anchor or that of their history is doubted."""
        for model in models:
            self._learn(model)

    def fill(self, event_ids: Iterable[bytes], left_out: Collection[bytes]) -> None:
        """Add the keys of many events of known models, except some; takes EventIds as bytes."""
        keys = (self._key(event_id) for event_id in event_ids if event_id not in left_out)
        self.keys.load(_sorted([key for key in keys if key is not None]))

    def add(self, completed: Iterable[tuple[EventId, StreamId, Collection[CID], bool]]) -> None:
        """Add the keys of events whose history is complete.

        Args:
            completed: the EventId of each; the model of its stream; events of that stream, of which
                none may be doubted; and whether the event itself is doubted. It is left out then.
        """
        new = []
        for event_id, model, builds_on, doubted in completed:
            if event_id[self._separator] not in self._separators:  # few models, very many events
                self._learn(model)
            if doubted or (self._doubted and self._is_any_doubted(event_id, builds_on)):
                self.doubt([event_id])
            elif (key := self._key(event_id)) is not None:
                new.append(key)
        self.keys.load(new)

    def put_back(self, event_id: EventId) -> None:
        """Add the key of an event that was in the index before."""
        key = self._key(event_id)
        if key is not None:
            self.keys.add(key)

    def discard(self, event_id: EventId) -> bool:
        """Take the key of an event out; return False if it is not in the index."""
        key = self._key(event_id)
        if key is None:
            return False
        self._doubted.discard(key)
        return self.keys.discard(key)

    def doubt(self, event_ids: Iterable[EventId]) -> None:
        """Leave out the keys of some events, and of those that will build on them."""
        for event_id in event_ids:
            key = self._key(event_id)
            if key is not None:
                self.keys.discard(key)
                self._doubted.add(key)

    def trust(self, event_ids: Iterable[EventId]) -> None:
        """Add the keys of those of some events that were left out."""
        for event_id in event_ids:
            key = self._key(event_id)
            if key in self._doubted:
                self._doubted.remove(key)
                self.keys.add(key)

    def _is_any_doubted(self, event_id: EventId, cids: Iterable[CID]) -> bool:
        """Return whether one of some other events of the same stream is left out."""
        key = self._key(event_id)
        if key is None:
            return False
        stream = key[: -len(event_id.event_cid)]
        return any(stream + cid in self._doubted for cid in cids)

    def _key(self, event_id: bytes) -> HeightlessEventId | None:
        """Return the key of an event; None if its stream has no known model.

        `event_id` is the bytes of an `EventId`, which are not checked again.
        """
        separator = self._separators.get(event_id[self._separator])
        if separator is None:
            return None
        height = self._fields + FIELDS_SIZE
        first = event_id[height]
        cid = height + 1 + (1 << (first - 0x18) if first >= 0x18 else 0)  # a CBOR unsigned integer
        rest = event_id[self._separator.stop : height] + event_id[cid:]
        return bytes.__new__(HeightlessEventId, event_id[: self._fields] + separator + rest)

    def _learn(self, model: StreamId) -> None:
        self._separators[short_hash(str(model))] = model_hash(model)


def _sorted(keys: list[HeightlessEventId]) -> Iterator[HeightlessEventId]:
    """Sort very many keys, a few at a time, so that other threads are not held up."""
    bounds = sorted(keys[::_SORTED_AT_ONCE])
    parts: list[list[HeightlessEventId]] = [[] for _ in range(len(bounds) + 1)]
    for key in keys:
        parts[bisect_right(bounds, key)].append(key)
    for part in parts:
        part.sort()
        yield from part
