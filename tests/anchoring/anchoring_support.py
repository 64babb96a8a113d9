"""What the tests of anchoring share."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import trio

from recon_node.anchoring.service import Anchoring
from recon_node.ceramic import Network
from recon_node.store import Store

NETWORK = Network.local(7)
Opened = AbstractAsyncContextManager[tuple[Store, Anchoring]]


async def until(condition: Callable[[], bool], limit: float = 60) -> None:
    """Wait until a condition holds."""
    with trio.fail_after(limit):
        while not condition():  # noqa: ASYNC110 (what threads do)
            await trio.sleep(0.01)
