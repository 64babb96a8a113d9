"""What ceramic-one has of kubo's API (`/api/v0`) about the node and its peers.

js-ceramic and ComposeDB use it: they take a node for ceramic-one if its agent version says so. All
of it is POST, as kubo's is (https://docs.ipfs.tech/reference/kubo/rpc/).
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

from msgspec import field

from recon_node import __version__
from recon_node.api.endpoint import Call, endpoint
from recon_node.api.errors import ApiError, bad_request
from recon_node.api.models import Body, Parameters
from recon_node.api.routes.node_info import (
    connect_to_one,
    network_side,
    peer_id_bytes,
    with_peer_id,
)
from recon_node.p2p import PeerError

AGENT: Final = f"recon-node/{__version__} (speaks as ceramic-one)"
"""js-ceramic looks for "ceramic-one" in it."""
PROTOCOL_VERSION: Final = "ipfs/0.1.0"
_PEER_ID: Final = "/p2p/"


class PeerIdQuery(Parameters, frozen=True):
    """Which node."""

    arg: str | None = None
    """A connected peer's id; this node without it."""


class KuboIdBody(Body, frozen=True, rename="pascal"):
    """A node of the network."""

    peer_id: str = field(name="ID")
    """Its peer id."""
    addresses: Sequence[str]
    """The multiaddrs where it can be reached, with its peer id."""
    agent_version: str
    """Its software."""
    protocol_version: str
    """That of libp2p's identify protocol."""
    protocols: Sequence[str]
    """What it speaks."""


@endpoint("POST", "/api/v0/id", need="read", errors=(400,))
async def post_id(call: Call[PeerIdQuery]) -> KuboIdBody:
    """Ask who a node is."""
    peers, wanted = network_side(call.services), call.parameters.arg
    if wanted is None or wanted == peers.peer_id:
        return KuboIdBody(
            peer_id=peers.peer_id,
            addresses=with_peer_id(peers.addresses, peers.peer_id),
            agent_version=AGENT,
            protocol_version=PROTOCOL_VERSION,
            protocols=sorted(peers.protocols),
        )
    peer_id_bytes(wanted)
    try:
        found = await peers.identify(wanted)
    except PeerError as error:
        raise kubo_error(str(error)) from None
    if found is None:
        raise kubo_error(f"this node is not connected to peer {wanted}")
    return KuboIdBody(
        peer_id=found.id,
        addresses=with_peer_id(found.addresses, found.id),
        agent_version=found.agent_version,
        protocol_version=found.protocol_version,
        protocols=sorted(found.protocols),
    )


class KuboVersionBody(Body, frozen=True, rename="pascal"):
    """The software of this node."""

    commit: str
    """Empty."""
    system: str
    """The machine and its system, such as x86_64/linux."""
    version: str
    """Such as 1.2.3."""


@endpoint("POST", "/api/v0/version", need="read")
async def post_kubo_version(call: Call[Parameters]) -> KuboVersionBody:
    """Ask for the node's version."""
    system = f"{platform.machine()}/{platform.system().lower()}"
    return KuboVersionBody(commit="", system=system, version=__version__)


class KuboPeerBody(Body, frozen=True, rename="pascal"):
    """A connected peer."""

    addr: str
    """A multiaddr where it was reached; empty if none is known."""
    peer: str
    """Its peer id."""


class KuboPeersBody(Body, frozen=True, rename="pascal"):
    """Connected peers."""

    peers: list[KuboPeerBody]
    """In the order of their ids."""


@endpoint("POST", "/api/v0/swarm/peers", need="read")
async def post_swarm_peers(call: Call[Parameters]) -> KuboPeersBody:
    """List the connected peers."""
    known = call.services.peers.peers() if call.services.peers else ()
    peers = [
        KuboPeerBody(addr=next(iter(with_peer_id(peer.addresses, peer.id)), ""), peer=peer.id)
        for peer in sorted(known, key=lambda peer: peer.id)
        if peer.connected
    ]
    return KuboPeersBody(peers=peers)


class SwarmConnectQuery(Parameters, frozen=True):
    """Where to find a peer."""

    arg: list[str]
    """Multiaddrs of one peer, at least one of them with /p2p/ and its peer id."""


class KuboStringsBody(Body, frozen=True, rename="pascal"):
    """What was done."""

    strings: list[str]
    """A line for people."""


@endpoint("POST", "/api/v0/swarm/connect")
async def post_swarm_connect(call: Call[SwarmConnectQuery]) -> KuboStringsBody:
    """Connect to a peer."""
    peers, addresses = network_side(call.services), call.parameters.arg
    named = {peer_id for each in addresses if (peer_id := each.partition(_PEER_ID)[2])}
    if not named:
        raise bad_request("the multiaddrs have no peer id: they must end with /p2p/<peer id>")
    if len(named) > 1:
        raise bad_request("the multiaddrs belong to several peers: connect to one at a time")
    [peer_id] = named
    peer_id_bytes(peer_id)
    try:
        await connect_to_one(peers, with_peer_id(addresses, peer_id), call.services.limits.connect)
    except ApiError as error:
        raise kubo_error(error.message) from None
    return KuboStringsBody(strings=[f"connect {peer_id} success"])


def kubo_error(message: str) -> ApiError:
    """An error of a handler: kubo answers 500 for what is not here, and 404 only for its paths."""
    return ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, message)
