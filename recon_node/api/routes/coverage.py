"""GET /ceramic/recon/coverage: who is interested in which parts of the key space.

Keys sort by the hash of the sort value, then by that of the controller (CIP-124). So the key space
is a ring of sort values, and each sort value an arc of controllers, from 0 to 1; an interest in one
controller is a point in it. The ranges of this node and of its connected peers are cut at the sort
values that it has streams of, or is interested in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Final

import trio
from starlette.responses import Response

from recon_node.api.endpoint import Call, endpoint
from recon_node.api.models import Body, Parameters, Whole, reply
from recon_node.api.services import Services
from recon_node.ceramic import Network, StreamId, StreamIdError, sort_value_range
from recon_node.ceramic.event_id import SHORT_HASH_SIZE, short_hash
from recon_node.ceramic.header import DEFAULT_SORT_KEY
from recon_node.recon import KeyRange, merge_ranges
from recon_node.store import Interest
from recon_node.store.interests import ring_ranges

MAX_SORT_VALUES: Final = 100
"""Those with the most events are described."""
_COUNTED_A_TURN: Final = 50
"""Ranges whose keys are counted before other tasks get a turn."""
_WHOLE: Final = 1 << (8 * SHORT_HASH_SIZE)


class ArcBody(Body, frozen=True):
    """A part of a sort value's keys, by their controllers."""

    start: float
    """From 0 to 1."""
    end: float
    """From 0 to 1; equal to `start` for a single controller."""


class PeerCoverageBody(Body, frozen=True):
    """What a peer wants of a sort value."""

    id: str
    """The peer id."""
    arcs: list[ArcBody]
    """The parts."""


class SortValueCoverageBody(Body, frozen=True):
    """A sort value, and who wants what of it."""

    sort_key: str
    """Such as `model`; empty for streams without one."""
    sort_value: str
    """Text; a StreamID in base36."""
    name: str | None
    """What the model calls itself, if it is one and is here."""
    place: float
    """On the ring of all sort values, from 0 to 1."""
    events: Whole
    """Events of it that the node holds."""
    own: list[ArcBody]
    """What this node wants of it."""
    peers: list[PeerCoverageBody]
    """What its connected peers want of it, those that want nothing left out."""


class CoverageBody(Body, frozen=True):
    """Who is interested in which parts of the key space."""

    sort_values: list[SortValueCoverageBody]
    """In the order of the ring; of more than 100, those with the most events."""
    left_out: Whole
    """Sort values beyond those."""
    unknown: list[str]
    """Connected peers that have not told what they are interested in."""


@dataclass(frozen=True, slots=True)
class _Value:
    sort_key: str
    sort_value: str
    events: int


@endpoint("GET", "/ceramic/recon/coverage", own=True)
async def get_coverage(call: Call[Parameters]) -> Annotated[Response, CoverageBody]:
    """Ask who is interested in what: this node, and its connected peers."""
    services = call.services
    store = services.store
    known = await store.log.sort_values()
    known |= {(each.sort_key, each.sort_value) for each in store.wanted.all}
    counted = await _count(services, known)
    shown = counted[:MAX_SORT_VALUES]
    models = {each: model for each in shown if (model := _model(each)) is not None}
    names = await store.log.names_of(models.values())
    peers = () if services.peers is None else services.peers.peers()
    connected = [each.id for each in peers if each.connected]
    wanted = (
        {each: list(services.peers.interests_of(each)) for each in connected}
        if services.peers
        else {}
    )
    titles = {each: names.get(model) for each, model in models.items()}
    own = [*store.wanted.ranges, *store.wanted.ring_ranges]
    render = partial(_render, store.network, shown, len(counted), titles, own, wanted)
    return await services.in_thread(render)


async def _count(services: Services, values: Iterable[tuple[str, str]]) -> list[_Value]:
    """Sort values, those with the most events first."""
    store, counted = services.store, []
    for number, (sort_key, sort_value) in enumerate(values):
        if number % _COUNTED_A_TURN == 0:
            await trio.lowlevel.checkpoint()
        keys = KeyRange(*sort_value_range(store.network, sort_value))
        counted.append(_Value(sort_key, sort_value, store.keys.count(keys)))
    return sorted(counted, key=lambda each: (-each.events, each.sort_value))


def _model(value: _Value) -> StreamId | None:
    if value.sort_key != DEFAULT_SORT_KEY:
        return None
    try:
        return StreamId.parse(value.sort_value)
    except StreamIdError:
        return None


def _render(
    network: Network,
    values: Sequence[_Value],
    total: int,
    titles: dict[_Value, str | None],
    own: Sequence[KeyRange],
    peers: dict[str, list[KeyRange]],
) -> Response:
    described = []
    for value in values:
        spaces = _spaces(network, value)
        arcs = ((peer, _arcs(spaces, ranges)) for peer, ranges in peers.items())
        described.append(
            SortValueCoverageBody(
                sort_key=value.sort_key,
                sort_value=value.sort_value,
                name=titles.get(value),
                place=int.from_bytes(short_hash(value.sort_value), "big") / _WHOLE,
                events=value.events,
                own=_arcs(spaces, own),
                peers=[PeerCoverageBody(peer, found) for peer, found in arcs if found],
            )
        )
    described.sort(key=lambda each: each.place)
    unknown = [peer for peer, ranges in peers.items() if not ranges]
    return reply(CoverageBody(described, left_out=total - len(values), unknown=unknown))


def _spaces(network: Network, value: _Value) -> list[tuple[KeyRange, int]]:
    """The keys of a sort value, and where the controller's hash begins in them: with height, and as
    ceramic-one nodes have them."""
    keys = KeyRange(*sort_value_range(network, value.sort_value))
    spaces = [(keys, _controller_at(keys))]
    if _model(value) is not None:
        ring = ring_ranges(network, [Interest(value.sort_key, value.sort_value)])
        spaces += [(each, _controller_at(each)) for each in ring]
    return spaces


def _controller_at(keys: KeyRange) -> int:
    """Where the bounds of a sort value's keys begin to differ."""
    pairs = zip(keys.lower, keys.upper, strict=False)
    return next(at for at, (low, high) in enumerate(pairs) if low != high)


def _arcs(spaces: Sequence[tuple[KeyRange, int]], ranges: Sequence[KeyRange]) -> list[ArcBody]:
    found = [
        KeyRange(_hash(part.lower, at, b"\x00"), _hash(part.upper, at, b"\xff"))
        for keys, at in spaces
        for each in ranges
        if (part := keys.intersect(each)) is not None
    ]
    return [
        ArcBody(_share(each.lower, 0), _share(each.upper, 1))
        for each in merge_ranges(_at_least_a_point(found))
    ]


def _at_least_a_point(ranges: Iterable[KeyRange]) -> Iterable[KeyRange]:
    """A range within one controller has the same hash at both ends, and would count as empty."""
    for each in ranges:
        yield each if not each.is_empty else KeyRange(each.lower, each.lower + b"\x00")


def _hash(bound: bytes, at: int, fill: bytes) -> bytes:
    return bound[at : at + SHORT_HASH_SIZE].ljust(SHORT_HASH_SIZE, fill)


def _share(bound: bytes, more: int) -> float:
    number = int.from_bytes(bound[:SHORT_HASH_SIZE], "big")
    return (number + (more if bound[:SHORT_HASH_SIZE] == b"\xff" * SHORT_HASH_SIZE else 0)) / _WHOLE
