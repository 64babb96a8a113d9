"""A nursery for services that are opened with ``async with``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


@asynccontextmanager
async def open_service_nursery() -> AsyncIterator[trio.Nursery]:
    """Open a nursery that raises a lone error as itself, and only several as a group.

    So who opens a service can catch the error that its contract names. An error of the body is
    raised as itself, too.
    """
    try:
        async with trio.open_nursery() as nursery:
            yield nursery
    except BaseExceptionGroup as group:
        if len(group.exceptions) > 1:
            raise
        lone = group.exceptions[0]
    else:
        return
    try:
        raise lone
    finally:
        del lone  # it would be part of a reference cycle
