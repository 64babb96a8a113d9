"""Token buckets: how many requests each client address may make. Pure: the clock is the caller's.

A bucket holds at most `BURST_SECONDS` worth of requests, refills steadily, and is full to begin
with. So only those that are not full need to be remembered; the table of them is bounded, and the
bucket that was used least recently goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Final

BURST_SECONDS: Final = 2.0
MAX_BUCKETS: Final = 10_000
_IPV6_SITE: Final = 64
"""Bits of an IPv6 address that count: a client has all addresses that begin with them."""


class RateLimiter:
    """Decides who may make a request now.

    Args:
        rate: requests a second of one client, on average.
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._capacity = max(1.0, rate * BURST_SECONDS)
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, client: str, now: float) -> float:
        """Take one request from a client's bucket: 0 if it may go on, else the seconds to wait."""
        filled, when = self._buckets.pop(client, (self._capacity, now))
        filled = min(self._capacity, filled + (now - when) * self._rate)
        allowed = filled >= 1
        self._buckets[client] = (filled - allowed, now)
        if len(self._buckets) > MAX_BUCKETS:
            self._buckets.popitem(last=False)
        return 0.0 if allowed else (1 - filled) / self._rate


def client_of(host: str | None) -> str | None:
    """Who a client is, by its address; None for this machine itself, which is not limited."""
    try:
        address = ip_address((host or "").partition("%")[0])
    except ValueError:
        return None if host is None else host
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is None:
            if address.is_loopback:
                return None
            return str(ip_network((address, _IPV6_SITE), strict=False))
        return client_of(str(address.ipv4_mapped))
    return None if address.is_loopback else str(address)
