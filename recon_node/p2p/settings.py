"""Settings of the network side: one frozen object, checked where it is made."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Final

from recon_node.ceramic import MAX_CAR_SIZE
from recon_node.recon import SessionSettings

MIB: Final = 1 << 20
MIN_FRAME: Final = MAX_CAR_SIZE + 1
MAX_FRAME: Final = 32 * MIB
"""More than that one peer could make us hold for each of its streams."""
MIN_MESSAGE: Final = 16 * 1024
"""A recon message smaller than that would hardly tell a thing."""
MIN_PEER_MEMORY: Final = 32 * MIB
"""With less, a session with many differences to tell would not fit."""
MAX_REQUEST: Final = 1000
"""EventIds in one request on the event stream at most, for every node (docs/wire.md)."""
MESSAGE_OVERRUN: Final = 16 * 1024
"""By how much a recon message may be larger than it aims to be: the last split is written out."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What one connection may cost. Times are in seconds, sizes in bytes."""

    max_inbound_streams: int = 128
    """Streams that a peer may have open to us at once on one connection; more are reset."""
    max_window: int = 4 * MIB
    """A stream's receive window at most: what a peer may send ahead of our reading."""
    max_buffered: int = 32 * MIB
    """Unread bytes of all streams of a connection, after which it is cut."""
    write_timeout: float = 15.0
    """A frame that the network does not take for so long ends the connection."""
    ping_interval: float = 15.0
    ping_timeout: float = 20.0
    """A peer that leaves a ping unanswered for so long is dropped."""


@dataclass(frozen=True, slots=True)
class P2PSettings:
    """How the node takes part in the network. Times are in seconds, sizes in bytes."""

    listen: tuple[str, ...] = ("/ip4/0.0.0.0/tcp/4101",)
    """Multiaddrs to listen on: TCP only; port 0 takes any free port."""
    announce: tuple[str, ...] = ()
    """Addresses told to other peers instead of those listened on (behind NAT, say)."""
    bootstrap: tuple[str, ...] = ()
    """Multiaddrs, with /p2p/<peer id>, of peers to join the network by."""
    discovery: bool = True
    """Whether to find and be found through the network's DHT."""
    announce_interval: float = 600.0
    """How often the DHT is told of this node and asked for others, once the node has settled in."""
    max_connections: int = 200
    max_peer_memory: int = 256 * MIB
    """What all peers together may make this node hold, in bytes of its memory. When it is more, the
    peers that hold the most are cut off (``recon_node.p2p.transport.budget``)."""
    max_known_peers: int = 1000
    dial_timeout: float = 10.0
    connection: ConnectionLimits = field(default_factory=ConnectionLimits)

    sync_interval: float = 30.0
    """How often each round of syncs with known peers starts, when nothing new comes in."""
    push_delay: float = 0.25
    """How long new events are gathered before they are pushed to peers."""
    sync_peers: int = 3
    """Peers synced with in one round, and at once."""
    max_sessions: int = 64
    """Inbound recon sessions at once."""
    max_sessions_per_peer: int = 4
    """Inbound recon sessions at once from one peer."""
    max_event_streams: int = 128
    """Inbound event streams at once; each side of a session may open one."""
    max_event_streams_per_peer: int = 16
    turn_timeout: float = 120.0
    """How long a peer may take before it begins its turn, or takes more of ours: it fetches and
    stores events meanwhile."""
    idle_timeout: float = 30.0
    """How long a peer may take for anything else: to say its first word on a stream, to send the
    rest of a frame or of a turn, to take a single message."""
    session_timeout: float = 3600.0
    max_frame: int = MIB
    """A frame on a stream at most; a longer one is refused unread. An event must fit into it.

    Where recon sessions have many differences to tell to a peer that speaks 1.0.0 alone, and the
    peer takes longer frames, fewer rounds are taken with a larger one and ``recon.message_bytes``.
    """
    events_per_request: int = 500
    """EventIds that we ask for at a time on the event stream."""
    recon: SessionSettings = field(default_factory=SessionSettings)
    """How recon sessions split and list; their messages are kept below ``max_frame``."""

    def __post_init__(self) -> None:
        """Refuse values that cannot work."""
        if not self.listen:
            raise ValueError("the p2p setting `listen` needs at least one address")
        for each in fields(self):
            value = getattr(self, each.name)
            if type(value) in (int, float) and not value > 0:
                raise ValueError(f"the p2p setting `{each.name}` must be above 0, not {value}")
        if self.max_frame < MIN_FRAME:
            raise ValueError(
                f"the p2p setting `max_frame` must be at least {MIN_FRAME}, so that every event "
                f"fits; {self.max_frame} is less"
            )
        if self.max_frame > MAX_FRAME:
            raise ValueError(
                f"the p2p setting `max_frame` must be at most {MAX_FRAME}, so that a peer cannot "
                f"fill the memory; {self.max_frame} is more"
            )
        if self.max_peer_memory < MIN_PEER_MEMORY:
            raise ValueError(
                f"the p2p setting `max_peer_memory` must be at least {MIN_PEER_MEMORY}, so that a "
                f"sync has room; {self.max_peer_memory} is less"
            )
        if self.events_per_request > MAX_REQUEST:
            raise ValueError(
                f"the p2p setting `events_per_request` must be at most {MAX_REQUEST}, which is "
                f"what a peer accepts, not {self.events_per_request}"
            )

    @property
    def session_settings(self) -> SessionSettings:
        """The recon settings, with messages that fit a frame even where one overruns its size."""
        fitting = min(self.recon.message_bytes, self.max_frame - MESSAGE_OVERRUN)
        return replace(self.recon, message_bytes=fitting)
