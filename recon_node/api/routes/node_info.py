"""What a node is, holds and knows: version, liveness, network, peers, Recon's state, metrics. Also
what the node did lately: its numbers and syncs of the last hour.
"""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Annotated, Any, Literal

import trio
from msgspec import UNSET, UnsetType
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.responses import Response

from recon_node import __version__
from recon_node.api.endpoint import Answer, Call, Services, endpoint
from recon_node.api.errors import ApiError, bad_request
from recon_node.api.models import Body, Parameters, Parsed, Whole, WholeParameter, peer_id_bytes
from recon_node.api.routes.interests import NodeInterestBody, describe_interest
from recon_node.ipld import multibase
from recon_node.p2p import P2P, PeerError, PeerInfo, RendezvousReport, SyncReport

_ED25519_PEER_ID = bytes.fromhex("002408011220")
"""Identity multihash of 36 bytes, holding the protobuf of a 32-byte Ed25519 public key."""
_ED25519_PUBLIC = bytes.fromhex("ed01")
"""The multicodec ed25519-pub, as a varint."""
_TRANSFERS = 50
"""Syncs that moved events in the answer about Recon; GET /ceramic/recon/syncs has more."""


@endpoint("GET", "/ceramic/liveness", Answer("It is."), need="open")
async def get_liveness(call: Call[Parameters]) -> Response:
    """Check that the node is alive.

    It is as long as it can answer at all: 200 with an empty body.
    """
    return Response(status_code=HTTPStatus.OK)


class VersionBody(Body, frozen=True):
    """A version."""

    version: str
    """Such as 1.2.3."""


async def version(call: Call[Parameters]) -> VersionBody:
    """Get the node's version."""
    return VersionBody(version=__version__)


get_version = endpoint("GET", "/ceramic/version")(version)
post_version = endpoint("POST", "/ceramic/version", need="read")(version)


class NetworkInfoBody(Body, frozen=True):
    """A network."""

    name: str
    """Such as testnet-clay."""


@endpoint("GET", "/ceramic/config/network")
async def get_network(call: Call[Parameters]) -> NetworkInfoBody:
    """Get the node's network."""
    return NetworkInfoBody(name=call.services.store.network.name)


class PeerBody(Body, frozen=True):
    """A connected peer."""

    id: str
    """The did:key of its peer id; the peer id itself if that hides its key."""
    addresses: list[str]
    """The multiaddrs where it was reached, with the peer id."""
    speaks: tuple[str, ...]
    """The versions of recon that it says it speaks, such as recon/1.2.0."""
    shares: tuple[str, ...] | None
    """(+) Interests of this node of which it shares at least a part, 20 at most, such as
    model=kjzl6hvfrbw6c...; null if its interests are not known."""
    covers: float | None
    """(+) The share of this node's events that it is interested in, from 0 to 1; or null."""


class PeersBody(Body, frozen=True):
    """Connected peers."""

    peers: list[PeerBody]
    """The peers."""


@endpoint("GET", "/ceramic/peers")
async def get_peers(call: Call[Parameters]) -> PeersBody:
    """List the connected peers."""
    known = call.services.peers.peers() if call.services.peers else ()
    connected = (peer for peer in known if peer.connected)
    return PeersBody(peers=list(map(_describe_peer, connected)))


def _describe_peer(peer: PeerInfo) -> PeerBody:
    addresses = with_peer_id(peer.addresses, peer.id)
    return PeerBody(did_of_peer(peer.id), addresses, peer.speaks, peer.shares, peer.covers)


class AddressesQuery(Parameters, frozen=True):
    """Where to find a peer."""

    addresses: list[str]
    """Multiaddrs of one peer, each with /p2p/ and its peer id."""


@endpoint(
    "POST", "/ceramic/peers", Answer("Connected at the first address that answered.", status=204)
)
async def post_peers(call: Call[AddressesQuery]) -> Response:
    """Connect to a peer.

    The peer must be of the same network and prove its peer id; otherwise it is not kept, and the
    answer is 400 with the reason.
    """
    services, addresses = call.services, call.parameters.addresses
    if not addresses or not all(addresses):
        raise bad_request("give the peer's multiaddrs: ?addresses=/ip4/.../tcp/.../p2p/...")
    await connect_to_one(network_side(services), addresses, services.limits.connect)
    return Response(status_code=HTTPStatus.NO_CONTENT)


def _checked_peer_id(text: str) -> str:
    peer_id_bytes(text)
    return text


class PeerPath(Parameters, frozen=True):
    """Which peer."""

    peer_id: Annotated[str, Parsed(_checked_peer_id)]
    """Its peer id, such as 12D3KooW..."""


@endpoint(
    "DELETE",
    "/ceramic/peers/{peer_id}",
    Answer("It is removed, whether or not it was known.", status=204),
    errors=(503,),
    own=True,
)
async def delete_peer(call: Call[PeerPath]) -> Response:
    """Remove a peer: disconnect it, and neither dial nor admit it any more.

    It stays removed when the node is restarted, until a client connects the node to it.
    """
    peers, peer_id = network_side(call.services), call.parameters.peer_id
    if peer_id == peers.peer_id:
        raise bad_request(f"{peer_id} is this node itself, which has no connection to remove")
    await peers.remove(peer_id)
    return Response(status_code=HTTPStatus.NO_CONTENT)


def network_side(services: Services) -> P2P:
    """The network side; raises `ApiError` 503 where there is none."""
    if services.peers is None:
        raise ApiError(HTTPStatus.SERVICE_UNAVAILABLE, "this node runs without a network side")
    return services.peers


async def connect_to_one(peers: P2P, addresses: Sequence[str], limit: float) -> None:
    """Connect to a peer at the first of its addresses that answers, within `limit` seconds.

    Raises:
        ApiError: 400, none of them answers.
    """
    reasons = []
    with trio.move_on_after(limit):
        for address in addresses:
            try:
                await peers.connect(address)
            except PeerError as error:
                reasons.append(str(error))
            else:
                return
    raise bad_request("; ".join(reasons) or f"cannot connect: no answer within {limit:g} seconds")


class WritePolicyBody(Body, frozen=True):
    """Which streams a node accepts, and how often it has refused since it was started."""

    allow_models: list[str]
    """StreamIDs; none allows all."""
    deny_models: list[str]
    """StreamIDs."""
    allow_controllers: list[str]
    """DIDs; none allows all."""
    deny_controllers: list[str]
    """DIDs."""
    refused: Whole
    """Events that were offered and refused."""
    not_fetched: Whole
    """Keys that peers listed, whose events were not even fetched; counted in each session."""


class DiskBody(Body, frozen=True):
    """The disk of the data directory."""

    free: Whole
    """Bytes that are free, less those of the write-ahead log, which are written once more."""
    keep_free: Whole
    """Bytes that are kept free of what comes from peers."""
    is_short: bool
    """Whether nothing is taken from peers, for want of room."""
    failure: str
    """Why the log could not be written when last tried, and what to do; empty: it could."""


class MemoryBody(Body, frozen=True):
    """What peers make the node hold in memory."""

    held: Whole
    """Bytes that count against the budget at the moment."""
    budget: Whole
    """The setting max_peer_memory: beyond it, the peers that hold the most are cut off."""


class ReconStateBody(Body, frozen=True, kw_only=True):
    """What a node holds."""

    network: str
    """The network's name."""
    events: Whole
    """Events held."""
    waiting: Whole
    """Those of them whose history is not complete here."""
    pending: Whole
    """Those of them that wait for the lookup of an anchor."""
    pending_proofs: Whole
    """The lookups that they wait for."""
    damaged: Whole
    """Events found damaged in the log and not repaired yet."""
    disk: DiskBody
    """Whether there is room for more."""
    native_core: str
    """The version of the native core that checks signatures; empty: Python does."""
    anchoring_alarm: str
    """What somebody should do something about for this node to anchor; empty: nothing."""
    head: Whole
    """The feed's last position."""
    epoch: str
    """The log's UUID."""
    sha256a: str
    """The sum of the hashes of all keys: the same for the same events."""
    interests: list[NodeInterestBody]
    """None: the node wants everything on its network."""
    write_policy: WritePolicyBody
    """Which streams it accepts."""
    peer_id: str | UnsetType = UNSET
    """The node's peer id. This and the next five are not there without a network side."""
    peer_memory: MemoryBody | UnsetType = UNSET
    """What peers make it hold in memory."""
    addresses: Sequence[str] | UnsetType = UNSET
    """The multiaddrs where peers can reach it."""
    peers: Sequence[PeerInfo] | UnsetType = UNSET
    """Every peer that it knows."""
    removed_peers: Sequence[str] | UnsetType = UNSET
    """The peer ids that were removed."""
    rendezvous: Sequence[RendezvousReport] | UnsetType = UNSET
    """Where it announces itself in the DHT and looks for others: at the rendezvous of the network,
    then at that of the sort value of each interest. Empty without discovery."""
    syncs: Sequence[SyncReport]
    """The latest syncs, the oldest first."""
    transfers: Sequence[SyncReport]
    """The latest 50 syncs that moved events, the oldest first: most syncs find nothing to do, and
    soon push these out of `syncs`."""


@endpoint("GET", "/ceramic/recon", own=True)
async def get_recon(call: Call[Parameters]) -> ReconStateBody:
    """Get the state of the node: its events, its peers and its latest syncs."""
    store, peers, anchoring = call.services.store, call.services.peers, call.services.anchoring
    summary, disk, wanted = store.keys.summarize(), store.disk, store.wanted
    of_network: dict[str, Any] = {"syncs": (), "transfers": ()}
    if peers is not None:
        memory = peers.counters.memory
        of_network = {
            "peer_id": peers.peer_id,
            "peer_memory": MemoryBody(held=memory.held, budget=memory.limit),
            "addresses": peers.addresses,
            "peers": peers.peers(),
            "removed_peers": peers.removed,
            "rendezvous": peers.rendezvous(),
            "syncs": list(peers.sync_reports),
            "transfers": list(peers.transfers)[-_TRANSFERS:],
        }
    return ReconStateBody(
        network=store.network.name,
        events=summary.count,
        waiting=store.waiting,
        pending=store.pending,
        pending_proofs=store.proofs_pending,
        damaged=store.damage.count,
        disk=DiskBody(disk.free, disk.keep, disk.is_short, store.write_failure),
        native_core=store.native_core or "",
        anchoring_alarm="" if anchoring is None else anchoring.alarm,
        head=store.head,
        epoch=store.epoch,
        sha256a=summary.hash.hex(),
        interests=[describe_interest(interest, wanted.configured) for interest in wanted.all],
        write_policy=_describe_policy(call.services),
        **of_network,
    )


def _describe_policy(services: Services) -> WritePolicyBody:
    lists, peers = services.store.policy.policy, services.peers
    return WritePolicyBody(
        allow_models=sorted(map(str, lists.allow_models)),
        deny_models=sorted(map(str, lists.deny_models)),
        allow_controllers=sorted(lists.allow_controllers),
        deny_controllers=sorted(lists.deny_controllers),
        refused=services.store.totals["policy refused"],
        not_fetched=0 if peers is None else peers.counters.keys_unwanted,
    )


@endpoint("GET", "/metrics", Answer("The metrics.", str, media_type="text/plain"), own=True)
async def get_metrics(call: Call[Parameters]) -> Response:
    """Read the metrics, in Prometheus' format."""
    return Response(call.metrics.render(), media_type=CONTENT_TYPE_LATEST)


def with_peer_id(addresses: Sequence[str], peer_id: str) -> list[str]:
    """Multiaddrs of a peer, each ending with its peer id."""
    end = f"/p2p/{peer_id}"
    return [address if address.endswith(end) else address + end for address in addresses]


def did_of_peer(peer_id: str) -> str:
    """The did:key of an Ed25519 peer id; other peer ids hide their key and stay as they are."""
    raw = multibase.decode("z" + peer_id)
    if len(raw) != 38 or not raw.startswith(_ED25519_PEER_ID):
        return peer_id
    key = _ED25519_PUBLIC + raw[len(_ED25519_PEER_ID) :]
    return "did:key:" + multibase.encode(key, "base58btc")


class SyncsQuery(Parameters, frozen=True):
    """Which syncs."""

    of: Literal["all", "transfers"] = "all"
    """transfers: only those that moved events, which are kept for longer."""
    limit: WholeParameter = 100
    """Maximum number of syncs: 100 by default."""


class SyncsBody(Body, frozen=True):
    """Syncs."""

    syncs: Sequence[SyncReport]
    """The latest first."""


@endpoint("GET", "/ceramic/recon/syncs", own=True)
async def get_syncs(call: Call[SyncsQuery]) -> SyncsBody:
    """List the latest syncs, or the latest that moved events."""
    peers, query = call.services.peers, call.parameters
    kept: Sequence[SyncReport] = ()
    if peers is not None:
        kept = peers.transfers if query.of == "transfers" else peers.sync_reports
    return SyncsBody(list(kept)[::-1][: query.limit])
