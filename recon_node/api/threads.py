"""Worker threads for the API's rendering: a few, so that requests do not crowd out the disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import trio

T = TypeVar("T")

_LIMITER = trio.CapacityLimiter(1)
"""Rendering is pure Python: more threads would only take turns, with the event loop, too."""


_LONG_LIMITER = trio.CapacityLimiter(1)


async def in_long_thread(function: Callable[[], T]) -> T:
    """Run what may take seconds in a worker thread: one such at a time, and beside the rendering,
    which does not wait for it."""
    return await trio.to_thread.run_sync(function, limiter=_LONG_LIMITER)


async def in_thread(function: Callable[[], T]) -> T:
    """Run a rendering function in a worker thread."""
    return await trio.to_thread.run_sync(function, limiter=_LIMITER)
