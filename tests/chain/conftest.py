"""Virtual time: waits of minutes pass at once, when nothing else is left to do."""

from __future__ import annotations

import pytest
import trio.testing
from trio import _threads

THRESHOLD = 0.005
"""Seconds of real time, in which what was sent over the loopback arrives."""


@pytest.fixture
def clock() -> trio.testing.MockClock:
    """A clock that jumps to the next deadline, but not while the store works in a thread."""
    clock = trio.testing.MockClock(autojump_threshold=THRESHOLD)
    jump = clock._autojump

    def jump_when_threads_rest() -> None:
        active = _threads._active_threads_local.get(None)
        if active is None or active.count == 0:
            jump()

    clock._autojump = jump_when_threads_rest
    return clock
