"""The settings of a session: how it splits and lists, and what bounds it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, log
from typing import Final

_MIN_PARTS: Final = 2
_ROUNDING: Final = 1e-9
"""Slack for logarithms that are whole numbers but for their last bits."""
_MARGIN: Final = 0.5
"""Parts are not quite equal: we aim at gaps of half the threshold, so that nearly all are below it.
"""


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """How a session splits and lists, and what bounds it. The two sides' settings may differ."""

    fan_out: int = 8
    """Maximum parts that a differing gap is split into: see :meth:`parts`."""
    list_threshold: int = 8
    """A differing gap with at most this many keys is listed instead of split."""
    page_keys: int = 4096
    """Maximum keys listed for one gap in one message."""
    message_bytes: int = 1 << 20
    """Maximum bytes of a message: what does not fit is covered by one hash, for a later round."""
    turn_messages: int = 16
    """Maximum messages of one turn of ours, as far as the protocol version allows (1.2.0: 16)."""
    max_idle_rounds: int = 64
    """Maximum rounds in a row in which no key is sent or learned; then the peer is cut off."""
    max_given_up: int = 1000
    """Maximum keys that a peer may list without delivering events for them."""

    def __post_init__(self) -> None:
        if self.fan_out < _MIN_PARTS:
            raise ValueError(f"fan_out must be at least {_MIN_PARTS}, not {self.fan_out}")
        if self.turn_messages < 1:
            raise ValueError(f"turn_messages must be at least 1, not {self.turn_messages}")
        if self.page_keys < 1 or self.list_threshold < 0:
            raise ValueError("page_keys must be at least 1, and list_threshold not negative")

    def parts(self, count: int) -> int:
        """Return how many parts a gap of ``count`` keys, above the threshold, is split into.

        ``fan_out`` decides how many rounds it takes until gaps are short enough to be listed. We
        split no finer than that number of rounds requires, because fewer parts are fewer bytes. So
        a fan-out of 8 takes fewer rounds than a constant 4, for about the same bytes.
        """
        return _parts(count, self.fan_out, self.list_threshold)


@lru_cache(maxsize=4096)  # a turn has thousands of gaps of about the same size
def _parts(count: int, fan_out: int, list_threshold: int) -> int:
    ratio = count / max(1, list_threshold * _MARGIN)
    levels = max(1, ceil(log(ratio, fan_out) - _ROUNDING))
    finest: int = ceil(ratio ** (1 / levels) - _ROUNDING)
    return min(fan_out, max(_MIN_PARTS, finest))


DEFAULT_SETTINGS = SessionSettings()
