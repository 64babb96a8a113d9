"""POST and DELETE of /ceramic/interests and /ceramic/interests/{sortKey}/{sortValue}; and what
ceramic-one has under /ceramic/experimental: the interests, and the events of one.

As for a ceramic-one node, `sepValue` and `streamId` are multibase text of any base and the bytes
behind them count: the sort value of a StreamID is its base36 form, however it was written. For a
sort key whose values are not bytes (all but `model`, `unique`, `context` and `dag`), `sepValue` is
the sort value itself.

An interest's bytes are those of ceramic-one (rust-ceramic, `core/src/interest.rs`), a sequence of
CBOR items: the last 8 bytes of the sort key's sha256, the peer id, 1 (for "a range"), the range's
lower and upper bound, and when it ends (0: never). The bounds are EventIds without height, cut off
(`recon_node.ceramic.heightless_event_id`); where those have none, they are EventIds.
"""

import hashlib
from collections.abc import Collection, Sequence
from http import HTTPStatus
from itertools import chain
from typing import Annotated, Final

import trio
from msgspec import UNSET, UnsetType, field
from msgspec.structs import asdict
from starlette.responses import Response

from recon_node.api.endpoint import Answer, Call, Services, endpoint
from recon_node.api.errors import ApiError, bad_request
from recon_node.api.models import (
    Body,
    Parameters,
    Whole,
    WholeParameter,
    peer_id_bytes,
    read_small,
    reply,
)
from recon_node.api.routes.events import WARNING, EventBody
from recon_node.ceramic import EventId, Network, Shard, StreamId, StreamIdError
from recon_node.ceramic.event_id import DEFAULT_SORT_KEY, sort_value_of
from recon_node.ipld import IpldError, dag_cbor, multibase
from recon_node.recon import KeyRange, KeyView
from recon_node.store import Interest, InvalidInterestError, Store, format_interest
from recon_node.store.kept_interests import key_range_of, key_ranges, ring_range_of


class InterestQuery(Parameters, frozen=True):
    """The optional parts of an interest."""

    controller: str | None = None
    """A DID: its streams only."""
    stream_id: str | None = field(default=None, name="streamId")
    """A stream, as multibase text: its events only. Needs `controller`."""
    controllers: str | None = None
    """(+) A shard: `1/4`, or the controllers' hashes from one beginning to another, `00..3f`."""


class InterestPath(InterestQuery, frozen=True, kw_only=True):
    """An interest in the path and the query."""

    sort_key: str
    """A field of the events' headers, such as `model`."""
    sort_value: str
    """Its value: multibase text for `model`, `unique`, `context` and `dag`."""


class InterestBody(Parameters, frozen=True, rename="camel"):
    """An interest, in a body or in the query."""

    sep: str | UnsetType = UNSET
    """The sort key: a field of the events' headers, such as `model`."""
    sep_value: str | UnsetType = UNSET
    """Its value: multibase text for `model`, `unique`, `context` and `dag`, else text as it is."""
    controller: str | UnsetType | None = UNSET
    """A DID: its streams only."""
    stream_id: str | UnsetType | None = UNSET
    """A stream, as multibase text: its events only. Needs the other fields; or (+) stands alone, if
    the node has the stream."""
    controllers: str | UnsetType | None = UNSET
    """(+) A shard: `1/4`, or the controllers' hashes from one beginning to another, `00..3f`."""


class NodeInterestBody(Body, frozen=True, kw_only=True, rename="camel"):
    """An interest of this node."""

    sep: str
    """The sort key."""
    sep_value: str
    """The sort value; a StreamID as its base36 form."""
    controller: str | UnsetType = UNSET
    """A DID."""
    stream_id: str | UnsetType = UNSET
    """A StreamID."""
    controllers: str | UnsetType = UNSET
    """(+) A shard, as `00..3f`."""
    configured: bool
    """(+) Whether it comes from the node's settings, and cannot be removed."""


_KEPT: Final = Answer(
    "The interest is kept. The header `recon-warning` (+) says so if it is the first one, so that "
    "the node no longer syncs everything.",
    status=204,
)
_NARROWED: Final = (
    "this node had no interests and synced everything on its network until now; from now on it "
    "syncs nothing else. It keeps the events that it has; removing the interest undoes this"
)
_GONE: Final = Answer("The interest is removed. The node keeps the events that it has.", status=204)


@endpoint("POST", "/ceramic/interests", _KEPT, body=InterestBody, errors=(507,))
async def post_interest(call: Call[Parameters]) -> Response:
    """Register an interest."""
    body = read_small(call.body, InterestBody)
    return await _add(call.services, _stream_alone(body) or _from_fields(body))


@endpoint("POST", "/ceramic/interests/{sort_key}/{sort_value}", _KEPT, errors=(507,))
async def post_sort_value_interest(call: Call[InterestPath]) -> Response:
    """Register an interest."""
    return await _add(call.services, _from_path(call.parameters))


@endpoint("DELETE", "/ceramic/interests", _GONE, errors=(404, 507), own=True)
async def delete_interest(call: Call[InterestBody]) -> Response:
    """Remove an interest, or (`streamId` alone) all in one stream.

    400 for one from the settings.
    """
    stream = _stream_alone(call.parameters)
    if stream is not None:
        meant = [known for known in call.services.store.wanted.all if known.stream_id == stream]
        return await _remove(call.services, meant, call.parameters.stream_id or "")
    return await _remove_one(call.services, _from_fields(call.parameters))


@endpoint(
    "DELETE", "/ceramic/interests/{sort_key}/{sort_value}", _GONE, errors=(404, 507), own=True
)
async def delete_sort_value_interest(call: Call[InterestPath]) -> Response:
    """Remove an interest."""
    return await _remove_one(call.services, _from_path(call.parameters))


def make_interest(
    sep: str,
    sep_value: str,
    controller: str | None,
    stream_id: str | None,
    controllers: str | None = None,
) -> Interest:
    """Make an interest of what a client sent; raises `ApiError` 400 if it is not one."""
    if not sep:
        raise bad_request("'sep' cannot be empty")
    if controller == "":
        raise bad_request("'controller' cannot be empty if it's included")
    if stream_id is not None and controller is None:
        raise bad_request("controller is required if stream_id is specified")
    try:
        sort_value = _sort_value(sep, sep_value)
        stream = None if stream_id is None else _stream_id(stream_id)
        shard = None if controllers is None else Shard.parse(controllers)
        return Interest(sep, sort_value, controller, stream, shard)
    except ValueError as error:
        raise bad_request(str(error)) from None


def describe_interest(interest: Interest, configured: Collection[Interest]) -> NodeInterestBody:
    """Describe an interest, and whether it comes from the settings."""
    stream_id = interest.stream_id
    return NodeInterestBody(
        sep=interest.sort_key,
        sep_value=interest.sort_value,
        configured=interest in configured,
        controller=UNSET if interest.controller is None else interest.controller,
        stream_id=UNSET if stream_id is None else str(stream_id),
        controllers=UNSET if interest.controllers is None else str(interest.controllers),
    )


def _from_path(path: InterestPath) -> Interest:
    return make_interest(
        path.sort_key, path.sort_value, path.controller, path.stream_id, path.controllers
    )


def _from_fields(body: InterestBody) -> Interest:
    if body.sep is UNSET:
        raise bad_request("'sep' is missing")
    if body.sep_value is UNSET:
        raise bad_request("'sepValue' is missing")
    fields = (body.controller, body.stream_id, body.controllers)
    named = (None if field is UNSET else field for field in fields)
    return make_interest(body.sep, body.sep_value, *named)


def _stream_alone(body: InterestBody) -> StreamId | None:
    """The stream, if nothing else is given: its init event names the rest."""
    others = (body.sep, body.sep_value, body.controller)
    if not isinstance(body.stream_id, str) or any(other is not UNSET for other in others):
        return None
    return _stream_id(body.stream_id)


def _stream_id(text: str) -> StreamId:
    try:
        data = multibase.decode(text)
        if not data:
            raise bad_request("'streamId' cannot be empty. Expected multibase encoded value.")
        return StreamId.from_bytes(data)
    except IpldError as error:
        raise bad_request(f"'streamId': multibase error: {error}") from None
    except StreamIdError as error:
        raise bad_request(f"'streamId': {error}") from None


def _sort_value(sep: str, text: str) -> str:
    try:
        sort_value = sort_value_of(sep, text)
    except IpldError as error:
        raise bad_request(f"'sepValue': multibase error: {error}") from None
    if sort_value in ("", "k"):
        raise bad_request("'sepValue' cannot be empty. Expected multibase encoded value.")
    return sort_value


async def _add(services: Services, wanted: Interest | StreamId) -> Response:
    try:
        interest = await services.store.wanted.complete(wanted)
    except InvalidInterestError as error:
        raise bad_request(str(error)) from None
    is_new = await services.store.wanted.add(interest)
    is_first = is_new and services.store.wanted.all == (interest,)
    headers = {WARNING: _NARROWED} if is_first else {}
    return Response(status_code=HTTPStatus.NO_CONTENT, headers=headers)


async def _remove_one(services: Services, interest: Interest) -> Response:
    meant = [interest] if interest in services.store.wanted.all else []
    return await _remove(services, meant, format_interest(interest))


async def _remove(services: Services, meant: Sequence[Interest], description: str) -> Response:
    if not meant:
        raise ApiError(
            HTTPStatus.NOT_FOUND,
            f"this node has no interest {description!r}: `recon-node interests list` (GET "
            "/ceramic/experimental/interests) shows those that it has",
        )
    try:
        for interest in meant:
            await services.store.wanted.remove(interest)
    except InvalidInterestError as error:
        raise bad_request(str(error)) from None
    return Response(status_code=HTTPStatus.NO_CONTENT)


_KEYS_PER_TURN = 4096
"""Keys to walk over before other tasks get a turn."""
_CARS_PER_READ = 64
_MODEL = hashlib.sha256(DEFAULT_SORT_KEY.encode()).digest()[-8:]
"""What peers sort by: ceramic-one nodes by nothing else, and others announce no sort key."""
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
        if number % _KEYS_PER_TURN == 0:
            await trio.lowlevel.checkpoint()
    return event_ids


async def _read_cars(
    store: Store, keys: Sequence[EventId], max_bytes: int
) -> tuple[list[tuple[EventId, bytes]], int]:
    """Return the CARs of the first keys, up to `max_bytes`, and how many keys that were."""
    pairs: list[tuple[EventId, bytes]] = []
    size = 0
    for start in range(0, len(keys), _CARS_PER_READ):
        batch = keys[start : start + _CARS_PER_READ]
        cars = await store.reader.cars(batch)
        for number, (key, car) in enumerate(zip(batch, cars, strict=True), start + 1):
            if car is None:  # it turned out wrong since its key was read
                continue
            pairs.append((key, car))
            size += len(car)
            if size >= max_bytes:
                return pairs, number
    return pairs, len(keys)
