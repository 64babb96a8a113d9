"""GET /ceramic/feed/sha256a: the hash of the feed's events, for whoever wants to compare a copy.

The hash of the node's keys (`sha256a` of /ceramic/recon) has events that are not delivered yet, and
changes with each that comes. This one is of the events up to a position, and of parts of them: so a
copy finds where it differs as Recon does, by asking for the parts of parts that differ.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Final

from msgspec import UNSET, Meta, UnsetType

from recon_node.api.endpoint import Call, endpoint
from recon_node.api.errors import bad_request
from recon_node.api.models import Body, Parameters, Parsed, UnfitError, Whole, WholeParameter
from recon_node.api.routes.feed import check_epoch
from recon_node.ceramic import FIELDS_SIZE, prefix_range, rendezvous
from recon_node.recon import Sha256a
from recon_node.recon.keys.sha256a import COUNT_SHIFT, lanes_of

MAX_PARTS: Final = 10_000
"""Parts of an answer."""
MAX_LISTED: Final = 1000
"""EventIDs of an answer."""
_PAGE: Final = 10_000
"""EventIDs that are read at once."""


def _prefix(text: str) -> bytes:
    try:
        prefix = bytes.fromhex(text)
    except ValueError:
        raise UnfitError("'{name}' should be hexadecimal") from None
    if len(prefix) > FIELDS_SIZE:
        raise UnfitError(f"'{{name}}' has at most {FIELDS_SIZE} bytes")
    return prefix


def _size(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text) <= FIELDS_SIZE:
        raise UnfitError(f"'{{name}}' should be a number from 1 to {FIELDS_SIZE}")
    return int(text)


class HashQuery(Parameters, frozen=True):
    """Which events, and how to divide them."""

    upto: WholeParameter | None = None
    """Those of positions up to and including this one; the feed's head by default."""
    epoch: str | None = None
    """The log that the position belongs to: 410 when it is another."""
    prefix: Annotated[bytes, Parsed(_prefix)] | None = None
    """Only those whose EventIDs have these bytes after the network id, in hexadecimal: 8 of the
    sort value, 8 of the controller, 4 of the stream."""
    size: Annotated[int, Parsed(_size, Annotated[int, Meta(ge=1, le=FIELDS_SIZE)])] = 8
    """Divide them by so many bytes after the prefix; by default 8, the sort value."""


class HashPartBody(Body, frozen=True):
    """Some of the events."""

    prefix: str
    """What their EventIDs have after the network id, in hexadecimal."""
    count: Whole
    """How many there are."""
    sha256a: str
    """Their Sha256a, in upper-case hex."""


class FeedHashBody(Body, frozen=True):
    """The hash of events of the feed, and of parts of them."""

    epoch: str
    """The log's UUID."""
    upto: Whole
    """The events are those of positions up to and including this one."""
    count: Whole
    """How many there are."""
    sha256a: str
    """Their Sha256a, in upper-case hex."""
    parts: list[HashPartBody]
    """By the next bytes of their EventIDs, ascending."""
    event_ids: list[str] | UnsetType = UNSET
    """The EventIDs, in hexadecimal, if there are at most 1000."""


@endpoint("GET", "/ceramic/feed/sha256a", errors=(410,), own=True)
async def get_feed_hash(call: Call[HashQuery]) -> FeedHashBody:
    """Ask for the Sha256a of the feed's events, and of parts of them, to compare a copy.

    Takes about 3 s for a million events; 400 if they have more than 10,000 parts.
    """
    store, given = call.services.store, call.parameters
    check_epoch(store, given.epoch)
    upto = store.head if given.upto is None else given.upto
    if upto > store.head:
        raise bad_request(f"upto is {upto}, but the feed ends at position {store.head}")
    start = len(rendezvous(store.network))
    prefix = given.prefix or b""
    end = start + min(len(prefix) + given.size, FIELDS_SIZE)
    lower, upper = map(bytes, prefix_range(store.network, prefix))
    lanes: dict[bytes, int] = {}
    listed: list[bytes] = []
    while page := await store.log.keys(lower, upper, upto, _PAGE):
        added = await call.services.in_thread(partial(_by_part, page, start, end))
        for part, more in added.items():
            lanes[part] = lanes.get(part, 0) + more
        if len(lanes) > MAX_PARTS:
            raise bad_request(f"more than {MAX_PARTS} parts: divide them by a smaller `size`")
        if len(listed) <= MAX_LISTED:
            listed += page
        lower = page[-1]
    whole = sum(lanes.values())
    return FeedHashBody(
        epoch=store.epoch,
        upto=upto,
        count=whole >> COUNT_SHIFT,
        sha256a=str(Sha256a.from_lanes(whole)),
        parts=[
            HashPartBody(part.hex(), each >> COUNT_SHIFT, str(Sha256a.from_lanes(each)))
            for part, each in lanes.items()
        ],
        event_ids=[each.hex() for each in listed] if len(listed) <= MAX_LISTED else UNSET,
    )


def _by_part(keys: list[bytes], start: int, end: int) -> dict[bytes, int]:
    """Sum up the hashes of keys by some of their bytes."""
    lanes: dict[bytes, int] = {}
    for key in keys:
        part = key[start:end]
        lanes[part] = lanes.get(part, 0) + lanes_of(key)
    return lanes
