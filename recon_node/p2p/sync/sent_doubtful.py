"""Which doubtful events were sent to which ceramic-one nodes, so that none is sent all the time.

A ceramic-one node ends the session over a time event that it cannot verify, because it has no
endpoint of the chain, or the endpoint knows no such transaction; and over an event that merges
branches (CIP-145), which it cannot decode. It would ask for the event again in every session, and
never get to the events after it. So a peer that asks for such an event again gets it only after a
pause, which becomes longer and longer: by then it may have an endpoint, or a newer version.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Final

from recon_node.backoff import Backoff
from recon_node.ceramic import parse_event

BEFORE_RESENDING: Final = Backoff(first=10.0, longest=3600.0)
"""Seconds after which a doubtful event is sent to the same peer again."""
MAX_REMEMBERED: Final = 50_000
"""Events, for each peer that got them, that are remembered: about 10 MB. The one that was sent
longest ago makes room."""
_SEVERAL_PREVS: Final = re.compile(rb"\x64prev[\x82-\x9b]")
"""In DAG-CBOR, the key of a field `prev` and the head of an array of two items or more."""


def is_merge(car: bytes) -> bool:
    """Return whether the event of a sound CAR has several prevs."""
    return _SEVERAL_PREVS.search(car) is not None and len(parse_event(car).prevs) > 1


class SentDoubtful:
    """Remembers the doubtful events that were sent to peers.

    Args:
        clock: returns seconds that never jump back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sent: dict[int, tuple[int, float]] = {}
        """How often, and when it may be sent again, by a hash of the peer and the key."""

    def may_send(self, peer_id: str, key: bytes) -> bool:
        """Tell whether to send a doubtful event to a peer that lacks it; if so, note that it is."""
        name = hash((peer_id, key))
        times, not_before = self._sent.get(name, (0, 0.0))
        now = self._clock()
        if times and now < not_before:
            return False
        self._sent.pop(name, None)  # so that it becomes the latest
        while len(self._sent) >= MAX_REMEMBERED:
            del self._sent[next(iter(self._sent))]
        self._sent[name] = times + 1, now + BEFORE_RESENDING.wait(times + 1)
        return True
