"""Events in memory: an `EventStore` without SQLite, verification and delivery.

An event is one small DAG-CBOR block, without a signature, of the size of a signed one. What is
checked is that it is the event that its key names, and that the node wants it. All nodes share the
bytes of the events; each has its own keys.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import trio

from recon_node.ceramic import EventId, Network, Shard, StreamId, StreamType
from recon_node.ipld import CID, DAG_CBOR, CarError, car, dag_cbor
from recon_node.recon import KeyRange, KeyStore, KeyView, covers
from recon_node.store import Interest, Verdict
from recon_node.store.kept_interests import key_ranges
from recon_node.store.store import Arrivals, Filling

NETWORK: Final = Network.local(7)
ADMISSION: Final = 0.01
"""Seconds that admitting a batch takes: about one commit of the event log."""
EVENT_BYTES: Final = 550
"""Of an event's block, about as in the other benchmarks."""
_CONTROLLERS: Final = 50
_STREAM_EVENTS: Final = 8
"""Highest height in a stream, plus 1."""
_HOPS_BYTES: Final = 1


class Library:
    """The events of a simulation.

    Args:
        models: how many models they belong to.
        rng: makes them up.
    """

    def __init__(self, models: int, rng: random.Random) -> None:
        self._random = rng
        self.models = [StreamId(StreamType.MODEL, self._cid(b"model")) for _ in range(models)]
        self.cars: dict[EventId, bytes] = {}

    def make(self, model: int | None = None) -> EventId:
        """Make up an event of a model, by default of any; return its key."""
        sort_value = str(self._random.choice(self.models) if model is None else self.models[model])
        block = dag_cbor.encode({"data": self._random.randbytes(EVENT_BYTES)})
        cid = CID.of(DAG_CBOR, block)
        controller = f"did:key:{self._random.randrange(_CONTROLLERS)}"
        height = self._random.randrange(_STREAM_EVENTS)
        key = EventId.build(NETWORK, sort_value, controller, self._cid(b"init"), height, cid)
        self.cars[key] = car.encode([cid], {cid: block})
        return key

    def make_up_key(self) -> EventId:
        """Return a key without an event."""
        cid, init = self._cid(b"lie"), self._cid(b"init")
        model = str(self._random.choice(self.models))
        return EventId.build(NETWORK, model, "did:key:0", init, 0, cid)

    def interest(self, model: int, shard: Shard | None = None) -> Interest:
        """Return the interest in a model, or in a shard of it."""
        return Interest("model", str(self.models[model]), controllers=shard)

    def _cid(self, what: bytes) -> CID:
        return CID.of(DAG_CBOR, dag_cbor.encode(what + self._random.randbytes(16)))


class FixedInterests:
    """The interests of a node, which do not change."""

    def __init__(self, interests: Sequence[Interest]) -> None:
        self.all = tuple(interests)
        self.sort_values = frozenset(interest.sort_value for interest in self.all)
        self.ranges: list[KeyRange] = key_ranges(NETWORK, interests)

    async def wait_for_change(self, known: Sequence[Interest]) -> None:
        await trio.sleep_forever()


class NoDamage:
    """Memory is never damaged."""

    async def wait(self, after: int) -> int:
        await trio.sleep_forever()
        raise AssertionError


class MemoryStore:
    """The events that one node holds.

    Every event comes with the number of pushes and syncs, from node to node, that it took; that is
    appended to its CAR, which nobody else looks at.

    Args:
        library: all events.
        interests: of the node; none for all.
        on_arrival: called with each key that comes from a peer, and its number of hops.
    """

    def __init__(
        self,
        library: Library,
        interests: Sequence[Interest],
        on_arrival: Callable[[EventId, int], None],
    ) -> None:
        self.network = NETWORK
        self.wanted = FixedInterests(interests)
        self.arrivals = Arrivals()
        self.damage = NoDamage()
        self.filling = Filling()
        self.reader = self
        self.refused = 0
        """How often an event was refused."""
        self._library = library
        self._keys = KeyStore()
        self.keys: KeyView = self._keys
        self._hops: dict[EventId, int] = {}
        self._on_arrival = on_arrival

    def load(self, keys: Sequence[EventId]) -> None:
        """Start with those of the keys that are wanted."""
        self._keys.load([key for key in keys if self.wants(key)])

    def wants(self, key: EventId) -> bool:
        """Return whether an interest covers a key."""
        return covers(self.wanted.ranges, key)

    def write(self, key: EventId) -> None:
        """Add an event of this node's own client."""
        self._add(key, 0)

    def add_unseen(self, key: EventId) -> None:
        """Add a key that is not pushed."""
        self._keys.add(key)

    @property
    def wants_keys_first(self) -> bool:
        """Return no: nothing is refused."""
        return False

    def find_refused(self, name: bytes) -> EventId | None:
        """Return None: nothing is refused."""
        return None

    def refused_among(self, ids: Iterable[bytes]) -> set[bytes]:
        """Return the empty set."""
        return set()

    def is_ruled_out(self, event_id: EventId) -> bool:
        return False

    def is_unwanted(self, event_id: EventId, *, for_good: bool = False) -> bool:
        """Return False: there is no write policy."""
        return False

    def is_declined(self, event_id: EventId, *, for_good: bool = False) -> bool:
        """Return False, too: there is room for everything."""
        return False

    def is_settled(self, event_id: EventId) -> bool:
        return event_id in self._keys

    async def admit_remote(self, events: Sequence[tuple[EventId, bytes]]) -> list[Verdict]:
        await trio.sleep(ADMISSION)
        return [self._admit(*event) for event in events]

    async def cars_for_peers(self, event_ids: Sequence[EventId]) -> list[bytes | None]:
        await trio.lowlevel.checkpoint()
        return [self._car(event_id) for event_id in event_ids]

    def _car(self, key: EventId) -> bytes | None:
        content = self._library.cars.get(key) if key in self._keys else None
        if content is None:
            return None
        return content + self._hops.get(key, 0).to_bytes(_HOPS_BYTES, "big")

    def _admit(self, key: EventId, content: bytes) -> Verdict:
        if key in self._keys:
            return Verdict("known", key, None)
        if not self.wants(key):
            return Verdict("refused", key, None, "no interest covers it", "bounds")
        if not _is_event(key, content[:-_HOPS_BYTES]):
            self.refused += 1
            return Verdict("refused", key, None, "another event", "car")
        hops = 1 + int.from_bytes(content[-_HOPS_BYTES:], "big")
        self._add(key, hops)
        self._on_arrival(key, hops)
        return Verdict("new", key, None)

    def _add(self, key: EventId, hops: int) -> None:
        self._keys.add(key)
        if hops:
            self._hops[key] = hops
        self.arrivals.add([key])


def _is_event(key: EventId, content: bytes) -> bool:
    try:
        return car.decode(content).roots == (key.event_cid,)
    except CarError:
        return False
