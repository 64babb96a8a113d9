"""Settings of the network side. Times are in seconds, sizes in bytes."""

from collections.abc import Callable
from dataclasses import dataclass as plain_dataclass
from dataclasses import replace
from typing import Annotated, Any, Final, Self

from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass

from recon_node.base.setting_types import (
    SETTINGS,
    Bytes,
    Count,
    Flag,
    OptionalPath,
    Seconds,
    Setting,
    TextList,
    checked_by,
)
from recon_node.ceramic import MAX_CAR_SIZE, Network
from recon_node.ceramic.network import BOOTSTRAP
from recon_node.fairness.slots import AllowList
from recon_node.p2p.errors import P2PError
from recon_node.p2p.transport.addresses import (
    check_dialable,
    check_listenable,
    is_loopback,
    parse_address,
)
from recon_node.recon import DEFAULT_SETTINGS, SessionSettings

MIB: Final = 1 << 20
MIN_FRAME: Final = MAX_CAR_SIZE + 1
MAX_FRAME: Final = 32 * MIB
"""A peer can make this node hold one frame for each of its streams."""
MIN_MESSAGE: Final = 16 * 1024
"""Smaller recon messages would carry too few keys to make progress."""
MIN_PEER_MEMORY: Final = 32 * MIB
"""With less, a session with many differences would not fit."""
MAX_REQUEST: Final = 1000
"""Maximum EventIds in one request on the event stream; part of the protocol (docs/wire.md)."""
MESSAGE_OVERRUN: Final = 16 * 1024
"""Bytes by which a recon message may exceed its target, because its last split is completed."""


@plain_dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The limits of one connection. Times are in seconds, sizes in bytes."""

    max_inbound_streams: int = 128
    """Maximum inbound streams at the same time; further ones are reset."""
    max_window: int = 4 * MIB
    """The largest receive window of a stream: how far a peer may send ahead of our reading."""
    max_buffered: int = 32 * MIB
    """Maximum unread bytes of all streams of a connection; it is cut when there are more."""
    write_timeout: float = 15.0
    """The connection is cut when the network does not accept a frame for this long."""
    ping_interval: float = 15.0
    ping_timeout: float = 20.0
    """The connection is cut when the peer leaves a ping unanswered for this long."""


def _each(check: Callable[[Any], object]) -> AfterValidator:
    """Return a validator of multiaddrs."""

    def check_all(addresses: tuple[str, ...]) -> None:
        try:
            for text in addresses:
                check(parse_address(text))
        except P2PError as error:
            raise ValueError(str(error)) from None

    return checked_by(check_all)


def _check_peer_ids(addresses: tuple[str, ...]) -> None:
    for text in addresses:
        if "/p2p/" not in text:
            raise ValueError(f"{text!r} lacks the peer id: it should end with /p2p/<peer id>")


def _check_not_empty(addresses: tuple[str, ...]) -> None:
    if not addresses:
        raise ValueError("give at least one address to listen on")


_MULTIADDRS: Final = Flag(metavar="MULTIADDR")
Dialable = Annotated[TextList, _each(check_dialable), _MULTIADDRS]


@dataclass(frozen=True, slots=True, config=SETTINGS)
class P2PSettings:
    """Peers: where to listen, whom to join, how much they may cost."""

    listen: Annotated[
        TextList, _each(check_listenable), checked_by(_check_not_empty), _MULTIADDRS
    ] = ("/ip4/0.0.0.0/tcp/4101",)
    """Multiaddrs for peers to connect to: TCP over IPv4 or IPv6; port 0 takes any free port."""
    announce: Dialable = ()
    """Multiaddrs to announce instead of those in `listen`, for a node behind NAT or in a
    container."""
    bootstrap: Annotated[Dialable, checked_by(_check_peer_ids)] = ()
    """Peers through which to join the network, such as /ip4/192.0.2.7/tcp/4101/p2p/12D3KooW...

    The other node prints its peer id with `recon-node id`.
    """
    public_bootstrap: Annotated[bool, Flag()] = True
    """Join mainnet and testnet-clay by their public bootstrap nodes if `bootstrap` is empty.

    Those are ceramic-one nodes. They are not used if `ceramic_one` is off, or if `listen` has only
    loopback addresses.
    """
    discovery: Annotated[bool, Flag()] = True
    """Find peers, and be found, through the DHT."""
    offline: Annotated[bool, Flag()] = False
    """Run without peers: the node dials nobody, and does not listen for peers. Its API works.

    What its clients write reaches the peers once it runs without this.
    """
    swarm_key_file: Annotated[OptionalPath, Flag(metavar="FILE")] = None
    """File with the key of a private network, in kubo's format (swarm.key).

    Only nodes with the same key can connect to each other, beneath everything else. ceramic-one
    nodes have no such key, and the public bootstrap nodes are not used. Make a key with:
      printf '/key/swarm/psk/1.0.0/\\n/base16/\\n%s\\n' $(openssl rand -hex 32) > swarm.key
    """
    announce_interval: Seconds = 600.0
    """How often the node announces itself in the DHT and looks for peers, in the long run."""
    max_connections: Annotated[Count, Setting()] = 200
    """Maximum number of connections to peers.

    A quarter of them is reserved for connections that this node opens. When all others are taken, a
    newcomer replaces a peer that has lately delivered no event: one of the network that has the
    most, else the one that has been connected longest.
    """
    always_admit: Annotated[TextList, checked_by(AllowList), Setting()] = ()
    """Addresses, networks and peer ids that always get a slot, here and at the API, such as
    ["192.0.2.7", "2001:db8::/48", "12D3KooW..."]."""
    max_peer_memory: Annotated[Bytes, Setting(), Field(ge=MIN_PEER_MEMORY)] = 256 * MIB
    """Maximum memory that all peers together may use, in bytes; at least 33554432.

    It covers unread data, messages, and events in transit. Above it, the node cuts off the peers
    that use the most, and refuses them for a minute. The node's own keys and caches are not
    included (docs/operations.md).
    """
    max_known_peers: Count = 1000
    dial_timeout: Seconds = 10.0
    connection: ConnectionLimits = ConnectionLimits()

    sync_interval: Annotated[Seconds, Flag(metavar="SECONDS")] = 30.0
    """Seconds between syncs with known peers while there are no new events.

    New events are pushed at once.
    """
    push_delay: Seconds = 0.25
    """Seconds between two pushes, in which new keys gather; the first one is pushed at once."""
    sync_peers: Count = 3
    """The number of peers in a round, and the most syncs at the same time."""
    max_sessions: Count = 64
    """Maximum inbound recon sessions at the same time."""
    max_sessions_per_peer: Count = 4
    """Maximum inbound recon sessions of one peer at the same time."""
    max_event_streams: Count = 128
    """Maximum inbound event streams at the same time; each side of a session may open one."""
    max_event_streams_per_peer: Count = 16
    turn_timeout: Seconds = 120.0
    """How long a peer may take to begin its turn, or to accept more of ours. It fetches and stores
    events in that time."""
    idle_timeout: Seconds = 30.0
    """How long a peer may take for anything else: to send its first message on a stream or the rest
    of a frame or turn, or to accept a single message."""
    session_timeout: Seconds = 3600.0
    max_frame: Annotated[Bytes, Setting(), Field(ge=MIN_FRAME, le=MAX_FRAME)] = MIB
    """Largest frame to accept from a peer, in bytes; at most 33554432.

    An event must fit into a frame, and a longer frame is refused unread. A session holds a frame
    of this size in memory. With peers that only speak recon/1.0.0, 10,000 differences among a
    million keys take 20 round trips at 1 MiB and 5 at 8 MiB (8388608): raise this and
    `message_bytes` on both sides. recon/1.2.0 needs 2 anyway.
    """
    message_bytes: Annotated[Bytes, Setting(), Field(ge=MIN_MESSAGE)] = (
        DEFAULT_SETTINGS.message_bytes
    )
    """Largest recon message to send, in bytes. It is kept below `max_frame`."""
    events_per_request: Annotated[Count, Field(le=MAX_REQUEST)] = 500
    """The number of EventIds in one of our requests on the event stream."""
    long_message: Bytes = 32 * 1024
    """A recon message of more bytes is decoded in a worker thread: other streams need not wait."""
    recon: SessionSettings = DEFAULT_SETTINGS
    """How recon sessions split and list."""

    def joining(self, network: Network) -> Self:
        """Return these settings with the peers to join a network by: its public ones, if it has
        any, none are configured, and they are not switched off; a private network has none."""
        is_local = all(map(is_loopback, self.listen))
        if self.bootstrap or not self.public_bootstrap or is_local or self.swarm_key_file:
            return self
        return replace(self, bootstrap=BOOTSTRAP.get(network, ()))

    @property
    def session_settings(self) -> SessionSettings:
        """`recon`, with messages that fit into a frame even where one overruns its size."""
        fitting = min(self.message_bytes, self.max_frame - MESSAGE_OVERRUN)
        return replace(self.recon, message_bytes=fitting)
