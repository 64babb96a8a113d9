"""Virtual time: waits of minutes pass at once, when nothing else is left to do."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import chain_server
import pytest
import trio.testing
from chain_server import Chain, serving

from recon_node.ceramic import Network
from recon_node.chain.rpc_endpoint import RpcEndpoint
from recon_node.store import Store, open_store
from recon_node.store.intake import Writer


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> trio.testing.MockClock:
    """A clock that jumps to the next deadline when really nothing else can happen: no thread is at
    work, and no request is on its way to a server or back."""
    busy = 0

    def counted(function: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(*args: Any) -> Any:
            nonlocal busy
            busy += 1
            try:
                return await function(*args)
            finally:
                busy -= 1

        return call

    def start(writer: Writer, job: Any) -> None:
        nonlocal busy
        started(writer, job)
        busy += 1

    def finish(writer: Writer, job: Any) -> Any:
        nonlocal busy
        busy -= 1
        return finished(writer, job)

    def jump_when_all_rest() -> None:
        if trio.testing.active_thread_count() == 0 and busy <= chain_server.held():
            jump()

    monkeypatch.setattr(chain_server, "epoch", time.time() + 600)
    monkeypatch.setattr(RpcEndpoint, "_post", counted(RpcEndpoint._post))
    started, finished = Writer._start, Writer._finish
    monkeypatch.setattr(Writer, "_start", start)  # trio does not count its thread
    monkeypatch.setattr(Writer, "_finish", finish)
    clock = trio.testing.MockClock(autojump_threshold=0.002)
    jump = clock._autojump
    clock._autojump = jump_when_all_rest
    return clock


@pytest.fixture
def chain() -> Chain:
    return Chain()


@pytest.fixture
async def url(chain: Chain) -> AsyncIterator[str]:
    """Where the chain is served."""
    async with serving(chain) as address:
        yield address


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with open_store(tmp_path, Network.local(7)) as opened:
        yield opened
