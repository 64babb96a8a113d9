"""Virtual time: waits of minutes pass at once, when nothing else is left to do."""

from __future__ import annotations

import time
from typing import Any

import chain_server
import pytest
import trio.testing
from trio import _threads

from recon_node.chain.rpc_endpoint import RpcEndpoint


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> trio.testing.MockClock:
    """A clock that jumps to the next deadline when really nothing else can happen: no thread of
    the store is at work, and no request is on its way to a server or back."""
    under_way = 0
    post = RpcEndpoint._post

    async def counted(*args: Any) -> Any:
        nonlocal under_way
        under_way += 1
        try:
            return await post(*args)
        finally:
            under_way -= 1

    def jump_when_all_rest() -> None:
        threads = _threads._active_threads_local.get(None)
        if (threads is None or threads.count == 0) and under_way <= chain_server.held():
            jump()

    monkeypatch.setattr(chain_server, "epoch", time.time() + 600)
    monkeypatch.setattr(RpcEndpoint, "_post", counted)
    clock = trio.testing.MockClock(autojump_threshold=0.002)
    jump = clock._autojump
    clock._autojump = jump_when_all_rest
    return clock
