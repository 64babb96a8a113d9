"""A part of the disk that is kept free of what comes from peers.

Anybody may send valid events to a node on an open network, until its disk is full: then nothing
works that has to write. So below a reserve (`keep_free`) nothing is taken from peers, while this
node's own clients can still write. Peers are told nothing: their events count as unwanted for now,
so that sessions go on, this node's own events reach the others, and the rest is fetched once there
is room again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from recon_node.store.errors import DiskFullError

logger = structlog.get_logger(__name__)

LOOK_EVERY: Final = 1.0
"""Seconds between two looks at the disk."""
_ENOUGH: Final = 1.1
"""How many times the reserve must be free until peers' events are taken again."""


class DiskReserve:
    """The reserve on the disk of a store.

    Args:
        keep: bytes to keep free; 0: none.
        free: returns how many bytes are free now.
        clock: returns the time in seconds.
    """

    def __init__(self, keep: int, free: Callable[[], int], clock: Callable[[], float]) -> None:
        self.keep = keep
        self._free = free
        self._clock = clock
        self._is_short = False
        self._looked_at = -LOOK_EVERY

    @property
    def free(self) -> int:
        """The bytes that are free now."""
        try:
            return self._free()
        except OSError:  # the disk is gone: writing says so better
            return self.keep

    @property
    def is_short(self) -> bool:
        """Whether nothing is taken from peers; as of the last look."""
        if self.keep and self._clock() >= self._looked_at + LOOK_EVERY:
            self._looked_at = self._clock()
            free = self.free
            self._change(free < self.keep * (_ENOUGH if self._is_short else 1), free)
        return self._is_short

    def check(self, size: int) -> None:
        """Check that there is room for events of peers.

        Args:
            size: of their CARs, in bytes.

        Raises:
            DiskFullError: there is not.
        """
        if not self.keep:
            return
        free = self.free
        if self.is_short or free < self.keep + size:
            self._change(True, free)
            raise DiskFullError(
                f"the disk has {free / 1e6:,.0f} MB left, and {self.keep / 1e6:,.0f} MB are kept "
                "free (keep_free): nothing is taken from peers until there is more"
            )

    def _change(self, is_short: bool, free: int) -> None:
        if is_short != self._is_short:
            (logger.warning if is_short else logger.info)(
                "The disk is nearly full: nothing is taken from peers until it has more room"
                if is_short
                else "The disk has room again: events are taken from peers",
                free=free,
                keep_free=self.keep,
            )
        self._is_short = is_short
