"""What ceramic-one has under /ceramic/experimental: the events of an interest, and the interests.

An interest's bytes are those of ceramic-one (rust-ceramic, `core/src/interest.rs`), a sequence of
CBOR items: the last 8 bytes of the sort key's sha256, the peer id, 1 (for "a range"), the range's
lower and upper bound, and when it ends (0: never).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import trio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from recon_node.api.errors import bad_request
from recon_node.api.query import int_param
from recon_node.api.routes.interests import describe_interest, make_interest
from recon_node.api.services import Services
from recon_node.api.threads import in_thread
from recon_node.ceramic import EventId, Network
from recon_node.ipld import IpldError, dag_cbor, multibase
from recon_node.recon import KeyRange, KeyStore
from recon_node.store import Interest, Store
from recon_node.store.interests import key_ranges

DEFAULT_LIMIT = 10_000

_KEYS_A_TURN = 4096
"""Keys walked over before other tasks get their turn."""
_CARS_A_READ = 64
_NO_PEER_ID = bytes(2)
"""Of a node without a network side: the identity multihash of nothing."""


async def get_interest_events(request: Request) -> Response:
    """The events of an interest that are held here, waiting ones too, in the order of their keys.

    `offset` counts keys, so that pages are apart only while no event comes in between.
    """
    services: Services = request.app.state.services
    interest = make_interest(
        request.path_params["sep"],
        request.path_params["sep_value"],
        request.query_params.get("controller"),
        request.query_params.get("streamId"),
    )
    offset = int_param(request, "offset", 0)
    limit = min(int_param(request, "limit", DEFAULT_LIMIT), services.limits.feed_events)
    store = services.store
    [key_range] = key_ranges(store.network, [interest])
    keys = await _page(store.keys, key_range, offset, limit + 1)
    cars, seen = await _read_cars(store, keys[:limit], services.limits.feed_bytes)

    def render() -> Response:
        return JSONResponse(
            {
                "events": [
                    {"id": str(event_id.event_cid), "data": multibase.encode(car)}
                    for event_id, car in cars
                ],
                "resumeOffset": offset + seen,
                "isComplete": seen == len(keys),
            }
        )

    return await in_thread(render)


async def get_interests(request: Request) -> Response:
    """The interests of this node; none means that it wants everything of its network.

    Those of peers are not kept: `peerId` of another peer gives none.
    """
    services: Services = request.app.state.services
    own = _NO_PEER_ID if services.peers is None else _peer_id(services.peers.peer_id)
    wanted = request.query_params.get("peerId")
    interests: Sequence[Interest] = services.store.interests
    if wanted is not None and _peer_id(wanted) != own:
        interests = ()
    network, configured = services.store.network, services.store.wanted.configured
    return JSONResponse(
        {
            "interests": [
                {"data": multibase.encode(encode_interest(network, own, each), "base58btc")}
                | describe_interest(each, configured)
                for each in interests
            ]
        }
    )


def encode_interest(network: Network, peer_id: bytes, interest: Interest) -> bytes:
    """An interest as ceramic-one keeps it; see the module's text."""
    [key_range] = key_ranges(network, [interest])
    sort_key = hashlib.sha256(interest.sort_key.encode()).digest()[-8:]
    return encode_range(sort_key, peer_id, key_range, not_after=0)


def encode_range(sort_key: bytes, peer_id: bytes, key_range: KeyRange, not_after: int) -> bytes:
    """The CBOR items of an interest, one after another."""
    lower, upper = bytes(key_range.lower), bytes(key_range.upper)
    items = (sort_key, peer_id, 1, lower, upper, not_after)
    return b"".join(map(dag_cbor.encode, items))


def _peer_id(text: str) -> bytes:
    try:
        return multibase.decode("z" + text)
    except IpldError as error:
        raise bad_request(f"peerId {text[:100]!r} is not a peer id: {error}") from None


async def _page(keys: KeyStore, key_range: KeyRange, offset: int, limit: int) -> list[EventId]:
    found: list[EventId] = []
    for number, key in enumerate(keys.keys(key_range)):
        if number >= offset + limit:
            break
        if number >= offset:
            found.append(EventId(key))
        if number % _KEYS_A_TURN == 0:
            await trio.lowlevel.checkpoint()
    return found


async def _read_cars(
    store: Store, keys: Sequence[EventId], max_bytes: int
) -> tuple[list[tuple[EventId, bytes]], int]:
    """The CARs of the first keys, until they have so many bytes; and how many keys that were."""
    found: list[tuple[EventId, bytes]] = []
    size = 0
    for start in range(0, len(keys), _CARS_A_READ):
        batch = keys[start : start + _CARS_A_READ]
        cars = await store.get_cars(batch)
        for number, (key, car) in enumerate(zip(batch, cars, strict=True), start + 1):
            if car is None:  # it turned out wrong since its key was read
                continue
            found.append((key, car))
            size += len(car)
            if size >= max_bytes:
                return found, number
    return found, len(keys)
