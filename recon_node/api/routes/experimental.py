"""What ceramic-one has under /ceramic/experimental: the events of an interest, and the interests.

An interest's bytes are those of ceramic-one (rust-ceramic, `core/src/interest.rs`), a sequence of
CBOR items: the last 8 bytes of the sort key's sha256, the peer id, 1 (for "a range"), the range's
lower and upper bound, and when it ends (0: never). The bounds are EventIds without height, cut off
(`recon_node.ceramic.heightless_event_id`); where those have none, they are EventIds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import chain
from typing import Annotated

import trio
from msgspec import UNSET, UnsetType, field
from msgspec.structs import asdict
from starlette.responses import Response

from recon_node.api.endpoint import Call, endpoint
from recon_node.api.models import Body, Parameters, Whole, WholeParameter, reply
from recon_node.api.routes.events import EventBody
from recon_node.api.routes.interests import InterestQuery, describe_interest, make_interest
from recon_node.api.routes.node_info import peer_id_bytes
from recon_node.ceramic import EventId, Network
from recon_node.ceramic.header import DEFAULT_SORT_KEY
from recon_node.ipld import dag_cbor, multibase
from recon_node.recon import KeyRange, KeyView
from recon_node.store import Interest, Store
from recon_node.store.kept_interests import key_range_of, key_ranges, ring_range_of

_KEYS_A_TURN = 4096
"""Keys to walk over before other tasks get a turn."""
_CARS_A_READ = 64
_MODEL = hashlib.sha256(DEFAULT_SORT_KEY.encode()).digest()[-8:]
"""What peers sort by: ceramic-one nodes by nothing else, and others tell no sort key."""
_NO_PEER_ID = bytes(2)
"""For a node without a network side: the identity multihash of no bytes."""


class InterestEventsParameters(InterestQuery, frozen=True, kw_only=True):
    """The interest, and the page of its events."""

    sep: str
    """A field of the events' headers, such as `model`."""
    sep_value: str
    """Its value: multibase text for `model`, `unique`, `context` and `dag`."""
    offset: WholeParameter = 0
    """How many events to skip: the `resumeOffset` of a page."""
    limit: WholeParameter = 10_000
    """Maximum number of events to return: 10,000 by default, and at most."""


class EventsGetBody(Body, frozen=True, rename="camel"):
    """Events of an interest."""

    events: list[EventBody]
    """In the order of their keys."""
    resume_offset: Whole
    """Where to continue, for the same parameters."""
    is_complete: bool
    """Whether these are the last ones."""


@endpoint("GET", "/ceramic/experimental/events/{sep}/{sep_value}")
async def get_interest_events(
    call: Call[InterestEventsParameters],
) -> Annotated[Response, EventsGetBody]:
    """Read the events of an interest that the node has.

    Waiting ones are among them, but for those that are badly signed. `offset` counts keys, so a
    page follows the one before only if no event arrives in between.
    """
    services, query = call.services, call.parameters
    interest = make_interest(
        query.sep, query.sep_value, query.controller, query.stream_id, query.controllers
    )
    limit = min(query.limit, services.limits.feed_events)
    store = services.store
    ranges = key_ranges(store.network, [interest])
    keys = await _page(store.keys, ranges, query.offset, limit + 1)
    cars, seen = await _read_cars(store, keys[:limit], services.limits.feed_bytes)

    def render() -> Response:
        events = [EventBody(str(key.event_cid), multibase.encode(car)) for key, car in cars]
        is_complete = seen == len(keys)
        return reply(EventsGetBody(events, query.offset + seen, is_complete))

    return await services.in_thread(render)


class PeerQuery(Parameters, frozen=True):
    """Whose interests."""

    peer_id: str | None = field(default=None, name="peerId")
    """A peer; this node without it."""


class ListedInterestBody(Body, frozen=True, rename="camel"):
    """An interest, with its encoding. Of a peer's, only the encoding is known."""

    data: str
    """ceramic-one's bytes of it, as multibase text."""
    sep: str | UnsetType = UNSET
    """(+) The sort key."""
    sep_value: str | UnsetType = UNSET
    """(+) The sort value; a StreamID as its base36 form."""
    controller: str | UnsetType = UNSET
    """(+) A DID."""
    stream_id: str | UnsetType = UNSET
    """(+) A StreamID."""
    controllers: str | UnsetType = UNSET
    """(+) A shard, as `00..3f`."""
    configured: bool | UnsetType = UNSET
    """(+) Whether it comes from the node's settings, and cannot be removed."""


class InterestsGetBody(Body, frozen=True):
    """Interests."""

    interests: list[ListedInterestBody]
    """None: this node wants everything on its network; or a peer has not sent its interests."""


@endpoint("GET", "/ceramic/experimental/interests")
async def get_interests(call: Call[PeerQuery]) -> InterestsGetBody:
    """List the interests of this node, or of a peer.

    None means that this node wants everything on its network. Those of a peer are what it sent in
    the last few minutes.
    """
    store, peers = call.services.store, call.services.peers
    own = _NO_PEER_ID if peers is None else peer_id_bytes(peers.peer_id)
    wanted = call.parameters.peer_id
    theirs = own if wanted is None else peer_id_bytes(wanted)
    if theirs != own:
        ranges = () if peers is None or wanted is None else peers.interests_of(wanted)
        data = (encode_range(_MODEL, theirs, range_) for range_ in ranges)
        return InterestsGetBody([ListedInterestBody(_text(interest)) for interest in data])
    described = [
        ListedInterestBody(
            _text(encode_interest(store.network, own, interest)),
            **asdict(describe_interest(interest, store.wanted.configured)),
        )
        for interest in store.wanted.all
    ]
    return InterestsGetBody(described)


def _text(data: bytes) -> str:
    return multibase.encode(data, "base58btc")


def encode_interest(network: Network, peer_id: bytes, interest: Interest) -> bytes:
    """An interest as ceramic-one keeps it; see the module's text."""
    # None, where ceramic-one has no such interests.
    key_range = ring_range_of(network, interest) or key_range_of(network, interest)
    sort_key = hashlib.sha256(interest.sort_key.encode()).digest()[-8:]
    return encode_range(sort_key, peer_id, key_range)


def encode_range(sort_key: bytes, peer_id: bytes, key_range: KeyRange) -> bytes:
    """The CBOR items of an interest, one after another."""
    lower, upper = bytes(key_range.lower), bytes(key_range.upper)
    items = (sort_key, peer_id, 1, lower, upper, 0)  # the last: without an expiry
    return b"".join(map(dag_cbor.encode, items))


async def _page(keys: KeyView, ranges: list[KeyRange], offset: int, limit: int) -> list[EventId]:
    event_ids: list[EventId] = []
    for number, key in enumerate(chain.from_iterable(map(keys.keys, ranges))):
        if number >= offset + limit:
            break
        if number >= offset:
            event_ids.append(EventId(key))
        if number % _KEYS_A_TURN == 0:
            await trio.lowlevel.checkpoint()
    return event_ids


async def _read_cars(
    store: Store, keys: Sequence[EventId], max_bytes: int
) -> tuple[list[tuple[EventId, bytes]], int]:
    """Return the CARs of the first keys, up to `max_bytes`, and how many keys that were."""
    pairs: list[tuple[EventId, bytes]] = []
    size = 0
    for start in range(0, len(keys), _CARS_A_READ):
        batch = keys[start : start + _CARS_A_READ]
        cars = await store.reader.cars(batch)
        for number, (key, car) in enumerate(zip(batch, cars, strict=True), start + 1):
            if car is None:  # it turned out wrong since its key was read
                continue
            pairs.append((key, car))
            size += len(car)
            if size >= max_bytes:
                return pairs, number
    return pairs, len(keys)
