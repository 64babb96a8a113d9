"""The second key index: the events that ceramic-one nodes reconcile, under their own EventIDs.

The deployed network's keys have no height and another separator (`HeightlessEventId`). Everything
else of them is in our EventIds, so an index is a key store beside the first one, made from it, and
no table of the log: one replaces eight bytes of each key and leaves out the height.

An event is in it once its whole history is here and checked, delivered or pending: ceramic-one
nodes hold aside what has to wait, and count only what they can serve. Streams whose sort key is not
`model` are not in it, because ceramic-one takes every stream's separator from its model.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from recon_node.ceramic import EventId, Network, StreamId
from recon_node.ceramic.event_id import SHORT_HASH_SIZE, rendezvous, short_hash
from recon_node.ceramic.heightless_event_id import model_hash, without_height
from recon_node.recon import KeyStore


class RingKeys:
    """The keys of the model ring. Used from trio's thread only, once it is filled.

    Args:
        network: of the node.
        models: those of the streams in the log.
        keys: filled already, as saved by an earlier run; else see `fill`.

    Attributes:
        keys: the EventIDs without height.
    """

    def __init__(
        self, network: Network, models: Iterable[StreamId], keys: KeyStore | None = None
    ) -> None:
        self._network = network
        self.keys = KeyStore() if keys is None else keys
        self._models: set[StreamId] = set()
        self._separators: dict[bytes, bytes] = {}
        """The separator of each model: here, by that in our EventIds."""
        for model in models:
            self._learn(model)

    def fill(self, event_ids: Iterable[bytes], left_out: Collection[bytes]) -> None:
        """Add the keys of many events of known models, except some; takes EventIds as bytes."""
        start = len(rendezvous(self._network))
        separators = slice(start, start + SHORT_HASH_SIZE)
        known = self._separators
        self.keys.load(
            without_height(each, known[each[separators]])
            for each in event_ids
            if each[separators] in known and each not in left_out
        )

    def add(self, event_id: EventId, model: StreamId) -> None:
        """Add the key of an event whose stream has that model for its sort value."""
        self._learn(model)
        self.put_back(event_id)

    def put_back(self, event_id: EventId) -> None:
        """Add the key of an event that was in the index before."""
        separator = self._separators.get(event_id.separator)
        if separator is not None:
            self.keys.add(without_height(event_id, separator))

    def discard(self, event_id: EventId) -> bool:
        """Take the key of an event out; return False if it is not in the index."""
        separator = self._separators.get(event_id.separator)
        return separator is not None and self.keys.discard(without_height(event_id, separator))

    def _learn(self, model: StreamId) -> None:
        if model not in self._models:  # few models have very many events
            self._models.add(model)
            self._separators[short_hash(str(model))] = model_hash(model)
