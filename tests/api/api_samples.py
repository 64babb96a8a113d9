"""Clients of a node's API, and a stream to write to it."""

import dataclasses
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import trio
from nacl.signing import SigningKey
from openapi_check import check_answer
from starlette.types import ASGIApp

from recon_node.api.app import create_app
from recon_node.api.endpoint import Services
from recon_node.api.listener import open_listener
from recon_node.api.server import serve
from recon_node.api.settings import Limits
from recon_node.ceramic import Event, Network, StreamId, StreamType
from recon_node.ceramic.builder import data_event, init_event
from recon_node.ipld import CID, DAG_CBOR
from recon_node.p2p import P2P, P2PSettings, open_p2p
from recon_node.recon import VERSIONS, Version
from recon_node.store import Store, open_store

Api = httpx.AsyncClient
"""A client of a node's API."""
Events = list[dict[str, str]]
KEY = SigningKey(bytes(32))
ABSENT = CID.of(DAG_CBOR, b"elsewhere")
"""Of an event that no node has."""
MODEL = StreamId(StreamType.MODEL, ABSENT)
INIT = init_event(KEY, MODEL, {"n": 0}, unique=b"u")
ON_LOOPBACK = P2PSettings(listen=("/ip4/127.0.0.1/tcp/0",), discovery=False, sync_interval=0.5)
PATIENCE = 120.0
"""Seconds to wait for what takes milliseconds: the machine may be slow, and busy with more."""


def api_of(node: Services | Store, host: str = "127.0.0.1", **changed: Any) -> Api:
    """A client at `host` of the services of a store, some of them changed, without a socket. Each
    answer is held to the OpenAPI document."""
    services = Services(store=node) if isinstance(node, Store) else node
    app = create_app(dataclasses.replace(services, **changed))
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app, client=(host, 1234)),
        base_url="http://node",
        event_hooks={"response": [check_answer]},
    )


@asynccontextmanager
async def serving(node: Services | ASGIApp, limit: float = PATIENCE) -> AsyncIterator[str]:
    """The URL of an application on a free port; on leaving, it must end in time."""
    listener = await open_listener("127.0.0.1", 0)
    app, closing = (
        (create_app(node), node.closing) if isinstance(node, Services) else (node, trio.Event())
    )
    with trio.fail_after(limit):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, app, listener, closing, ("node", "x"))
            try:
                yield listener.url
            finally:
                closing.set()


async def connect(url: str) -> trio.SocketStream:
    return await trio.open_tcp_stream("127.0.0.1", int(url.rpartition(":")[2]))


async def read_to_end(stream: trio.SocketStream) -> bytes:
    """What the server sends until it closes the connection."""
    data = b""
    async with stream:
        with suppress(trio.BrokenResourceError):
            async for part in stream:
                data += part
    return data


def change(*prevs: Event, init: Event = INIT, n: int = 1) -> Event:
    """A data event that sets the content to `n`."""
    patch = [{"op": "replace", "path": "/n", "value": n}]
    return data_event(KEY, init, [prev.cid for prev in prevs], patch)


async def admit(store: Store, *events: Event) -> None:
    """Write events that are new."""
    verdicts = await store.admit_local([event.car for event in events])
    assert [verdict.status for verdict in verdicts] == ["new"] * len(events)


async def hand_over(store: Store, event: Event, height: int, init: Event = INIT) -> None:
    """Write an event as a peer does."""
    event_id = event.event_id(store.network, init.header, height)
    [verdict] = await store.admit_remote([(event_id, event.car)])
    assert verdict.status == "new"


async def read(api: Api, path: str, status: int = 200, **params: Any) -> Any:
    """What is answered below /ceramic."""
    answer = await api.get(f"/ceramic/{path}", params=params or None)
    assert answer.status_code == status, answer.text
    return answer.json()


@asynccontextmanager
async def running(
    data_dir: Path, versions: Sequence[Version[Any]] = VERSIONS, discovery: bool = False
) -> AsyncIterator[tuple[Api, P2P, Store]]:
    async with (
        open_store(data_dir, Network.local(7)) as store,
        open_p2p(
            dataclasses.replace(ON_LOOPBACK, discovery=discovery), store, data_dir, versions
        ) as p2p,
        api_of(store, peers=p2p, limits=Limits(connect=60)) as api,
    ):
        yield api, p2p, store


async def until(api: Api, path: str, condition: Callable[[Any], bool]) -> dict[str, Any]:
    """What `path` answers, once it fulfils a condition."""
    with trio.fail_after(60):
        while True:
            answer = await read(api, path)
            if condition(answer):
                return dict(answer)
            await trio.sleep(0.02)
