"""What a node is and whom it knows: version, liveness, network, peers, and the state of Recon."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from http import HTTPStatus

import trio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from recon_node import __version__
from recon_node.api.errors import ApiError, bad_request
from recon_node.api.routes.interests import describe_interest
from recon_node.api.services import Services
from recon_node.ipld import multibase
from recon_node.p2p import PeerError

_ED25519_PEER_ID = bytes.fromhex("002408011220")
"""Identity multihash of 36 bytes, holding the protobuf of a 32-byte Ed25519 public key."""
_ED25519_PUBLIC = bytes.fromhex("ed01")
"""The multicodec ed25519-pub, as a varint."""


async def get_liveness(request: Request) -> Response:
    """200 with an empty body, as long as the node can answer at all."""
    return Response(status_code=HTTPStatus.OK)


async def version(request: Request) -> Response:
    """The node's version."""
    return JSONResponse({"version": __version__})


async def get_network(request: Request) -> Response:
    """The name of the Ceramic network that this node is part of."""
    services: Services = request.app.state.services
    return JSONResponse({"name": services.store.network.name})


async def get_peers(request: Request) -> Response:
    """The connected peers: each one's did:key and its addresses with the peer id."""
    services: Services = request.app.state.services
    known = services.peers.peers() if services.peers else ()
    peers = [
        {"id": did_of_peer(peer.id), "addresses": with_peer_id(peer.addresses, peer.id)}
        for peer in known
        if peer.connected
    ]
    return JSONResponse({"peers": peers})


async def post_peers(request: Request) -> Response:
    """Connect to a peer at the first of `addresses` (a repeated parameter) that answers: 204."""
    services: Services = request.app.state.services
    addresses = request.query_params.getlist("addresses")
    if not addresses or not all(addresses):
        raise bad_request("give the peer's multiaddrs: ?addresses=/ip4/.../tcp/.../p2p/...")
    if services.peers is None:
        raise ApiError(HTTPStatus.SERVICE_UNAVAILABLE, "this node runs without a network side")
    reasons = []
    with trio.move_on_after(services.limits.connect):
        for address in addresses:
            try:
                await services.peers.connect(address)
            except PeerError as error:
                reasons.append(str(error))
            else:
                return Response(status_code=HTTPStatus.NO_CONTENT)
    reasons = reasons or [f"cannot connect: no answer within {services.limits.connect:g} seconds"]
    raise bad_request("; ".join(reasons))


async def get_recon(request: Request) -> Response:
    """What this node holds (the Sha256a of all its keys, say), what it wants (no interests:
    everything of its network), and how its latest syncs went.

    Two nodes of a network without interests hold the same events if `sha256a` and `events` are
    the same. Times are seconds; `syncs` has the oldest first, and so have `transfers`, the latest
    ones that moved events: most syncs find nothing to do, and soon push those out of `syncs`.
    """
    services: Services = request.app.state.services
    store, peers = services.store, services.peers
    summary = store.keys.summarize()
    answer = {
        "network": store.network.name,
        "events": summary.count,
        "waiting": store.waiting,
        "pending": store.stats.pending,
        "pending_proofs": store.stats.pending_proofs,
        "damaged": store.damage.count,
        "head": store.head,
        "epoch": store.epoch,
        "sha256a": summary.hash.hex(),
        "interests": [
            describe_interest(each, store.wanted.configured) for each in store.wanted.all
        ],
        "syncs": [],
        "transfers": [],
    }
    if peers is not None:
        answer |= {
            "peer_id": peers.peer_id,
            "addresses": list(peers.addresses),
            "peers": [asdict(peer) for peer in peers.peers()],
            "syncs": [asdict(report) for report in peers.sync_reports],
            "transfers": [asdict(report) for report in peers.transfers],
        }
    return JSONResponse(answer)


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
