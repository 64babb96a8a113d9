"""Long computations on trio's thread: in steps, so that other tasks need not wait."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

import trio

T = TypeVar("T")


async def in_steps(steps: Generator[None, None, T]) -> T:
    """Do all steps, and let other tasks run between two of them; return what they return."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        await trio.lowlevel.checkpoint()
