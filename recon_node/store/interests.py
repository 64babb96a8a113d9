"""From interests to ranges of keys (CIP-124, "Stream Set Ranges")."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from recon_node.ceramic import (
    EventId,
    Network,
    controller_range,
    network_range,
    sort_value_range,
    stream_range,
)
from recon_node.recon import KeyRange, merge_ranges
from recon_node.store.model import Interest


def key_ranges(network: Network, interests: Iterable[Interest]) -> list[KeyRange]:
    """The ranges of all interests, ascending and apart; the network's when there is none."""
    ranges = [KeyRange(*_fenceposts(network, interest)) for interest in interests]
    return merge_ranges(ranges or [KeyRange(*network_range(network))])


def covers(ranges: Sequence[KeyRange], key: bytes) -> bool:
    """Tell whether a key lies in one of the ranges, which are ascending and apart."""
    at = bisect_left(ranges, key, key=lambda each: each.lower) - 1
    return at >= 0 and ranges[at].covers(key)


def _fenceposts(network: Network, interest: Interest) -> tuple[EventId, EventId]:
    value, controller, stream = interest.sort_value, interest.controller, interest.stream_id
    if controller is None:
        return sort_value_range(network, value)
    if stream is None:
        return controller_range(network, value, controller)
    return stream_range(network, value, controller, stream.cid)
