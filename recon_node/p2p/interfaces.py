"""What the network side needs of the host below it and of the store beside it.

In a node these are the libp2p host (``transport/host``) and the event log (``recon_node.store``). A
simulation passes in others, and runs everything between them as it is: ``benchmarks.simulate``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from recon_node.ceramic import EventId, Network
from recon_node.p2p.peers.descriptions import RendezvousReport
from recon_node.p2p.transport.budget import MemoryBudget
from recon_node.p2p.transport.streams import PeerStream
from recon_node.recon import KeyRange, KeyView
from recon_node.store import Interest, Verdict
from recon_node.store.contents import Arrivals

StreamHandler = Callable[[PeerStream], Awaitable[None]]


class PeerHost(Protocol):
    """Connections with peers, by peer id, and streams on them. Failures are ``PeerError``."""

    @property
    def peer_id(self) -> str:
        """This node's peer id."""
        ...

    @property
    def budget(self) -> MemoryBudget:
        """What this node holds in memory for its peers."""
        ...

    @property
    def addresses(self) -> list[str]:
        """The multiaddrs at which peers can reach this node, each with its peer id."""
        ...

    @property
    def own_protocols(self) -> frozenset[str]:
        """The protocols whose streams this node serves."""
        ...

    def connected_peers(self) -> list[str]:
        """Return the peers that there is a live connection with."""
        ...

    def is_connected(self, peer_id: str) -> bool:
        """Return whether there is a live connection with a peer."""
        ...

    def is_on_this_machine(self, peer_id: str) -> bool:
        """Return whether a connected peer runs on this machine."""
        ...

    def network(self, peer_id: str) -> str:
        """Return the network of the address of a connected peer; empty if there is none."""
        ...

    def has_dialled(self, peer_id: str) -> bool:
        """Return whether this node has dialled a connection with a peer."""
        ...

    def has_streams(self, peer_id: str) -> bool:
        """Return whether any stream is open with a peer."""
        ...

    def note_delivery(self, peer_id: str) -> None:
        """Note that a peer has delivered events, so that its connection is kept before others."""
        ...

    def latency(self, peer_id: str) -> float | None:
        """Return the round-trip time to a connected peer in seconds; None if not measured yet."""
        ...

    def known_protocols(self, peer_id: str) -> frozenset[str]:
        """Return the protocols of a peer; none before it has identified itself."""
        ...

    def known_agent(self, peer_id: str) -> tuple[str, str]:
        """Return the software of a peer and the version of its identify protocol, or empty text."""
        ...

    async def protocols_of(self, peer_id: str) -> frozenset[str]:
        """Return the protocols of a connected peer, once it has identified itself."""
        ...

    def on_identified(self, callback: Callable[[str, list[str]], None]) -> None:
        """Call back with each peer, and the addresses it gives, once it has identified itself."""
        ...

    def handle(self, protocol: str, handler: StreamHandler) -> None:
        """Serve the inbound streams of a protocol."""
        ...

    async def connect(self, address: str, *, anew: bool = False) -> str:
        """Connect to a peer; return its peer id."""
        ...

    async def disconnect(self, peer_id: str) -> None:
        """Close all connections with a peer."""
        ...

    async def open_stream(self, peer_id: str, *protocols: str) -> PeerStream:
        """Open a stream of the first of these protocols that a connected peer speaks."""
        ...


class Finder(Protocol):
    """Finds peers, and lets them find this node: ``Discovery``."""

    async def run(self) -> None:
        """Do so until cancelled."""
        ...

    async def join(self, peer_id: str) -> None:
        """Take a connected peer into account that has identified itself."""
        ...

    def look_now(self) -> None:
        """Announce this node, and look for peers, now."""
        ...

    @property
    def records_kept(self) -> int:
        """The number of provider records that this node keeps for others."""
        ...

    def reports(self) -> list[RendezvousReport]:
        """Return where this node announces itself, and what came of it."""
        ...


class Wanted(Protocol):
    """A node's interests."""

    @property
    def all(self) -> tuple[Interest, ...]:
        """The interests; none means everything of the network."""
        ...

    @property
    def ranges(self) -> list[KeyRange]:
        """The keys that they cover, ascending and apart."""
        ...

    async def wait_for_change(self, known: Sequence[Interest]) -> None:
        """Return when the interests are no longer the ``known`` ones."""
        ...


class DamageCount(Protocol):
    """Counts the events that were found damaged, and have to be fetched again."""

    async def wait(self, after: int) -> int:
        """Wait until more than ``after`` were found, and return how many."""
        ...


class EventReader(Protocol):
    """Answers questions about the events of a store."""

    async def cars_for_peers(self, event_ids: Sequence[EventId]) -> list[bytes | None]:
        """Return the CARs of some EventIds, in their order; None for those that are not here."""
        ...


class EventStore(Protocol):
    """Events by their keys, which peers are offered and which come from peers.

    Failures of the disk are ``StoreError``.
    """

    @property
    def network(self) -> Network:
        """The network of all its events."""
        ...

    @property
    def keys(self) -> KeyView:
        """The EventIDs held."""
        ...

    @property
    def log(self) -> EventReader:
        """The questions about its events."""
        ...

    @property
    def wanted(self) -> Wanted:
        """The node's interests."""
        ...

    @property
    def arrivals(self) -> Arrivals:
        """Which keys came in lately."""
        ...

    @property
    def wants_keys_first(self) -> bool:
        """Whether this node has to see EventIds before events, because it may refuse some."""
        ...

    @property
    def damage(self) -> DamageCount:
        """The damaged events."""
        ...

    def is_refused(self, event_id: EventId) -> bool:
        """Return whether the event of that EventId was seen and is known to be wrong."""
        ...

    def is_unwanted(self, event_id: EventId, *, for_good: bool = False) -> bool:
        """Return whether this node's write policy refuses an event; only for now, unless
        ``for_good``."""
        ...

    def is_excused(self, event_id: EventId, *, for_good: bool = False) -> bool:
        """Return whether it is this node's choice that it does not count an event that a peer has:
        it is unwanted, withheld, or found no room; the latter only for now."""
        ...

    def find_refused(self, name: bytes) -> EventId | None:
        """Return the EventId with an id (of recon/1.2.0) whose event is known to be wrong."""
        ...

    def is_settled(self, event_id: EventId) -> bool:
        """Return whether an event is held or refused."""
        ...

    async def admit_remote(self, events: Sequence[tuple[EventId, bytes]]) -> list[Verdict]:
        """Admit events of peers, each under the EventId that the peer has for it."""
        ...
