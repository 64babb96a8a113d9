"""The API of two nodes with a real network side each, on the loopback."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import trio
from openapi_check import check_answer

from recon_node.api import Limits, Services, create_app
from recon_node.api.openapi import DOCUMENT
from recon_node.api.routes.node_info import did_of_peer
from recon_node.ceramic import Network
from recon_node.ipld import multibase
from recon_node.p2p import P2P, P2PSettings, open_p2p
from recon_node.store import Store, open_store

Events = list[dict[str, str]]
SETTINGS = P2PSettings(listen=("/ip4/127.0.0.1/tcp/0",), discovery=False, sync_interval=0.5)


@asynccontextmanager
async def running(data_dir: Path) -> AsyncIterator[tuple[httpx.AsyncClient, P2P, Store]]:
    async with (
        open_store(data_dir, Network.local(7)) as store,
        open_p2p(SETTINGS, store, data_dir) as p2p,
    ):
        services = Services(store=store, peers=p2p)
        services = dataclasses.replace(services, limits=Limits(connect=5))
        transport = httpx.ASGITransport(create_app(services))
        hooks = {"response": [check_answer]}
        async with httpx.AsyncClient(
            transport=transport, base_url="http://node", event_hooks=hooks
        ) as api:
            yield api, p2p, store


async def until(
    api: httpx.AsyncClient, path: str, condition: Callable[[Any], bool]
) -> dict[str, Any]:
    """What `path` answers, once it fulfils a condition."""
    with trio.fail_after(20):
        while True:
            answer = (await api.get(path)).json()
            if condition(answer):
                return dict(answer)
            await trio.sleep(0.02)


async def test_two_nodes_get_connected_and_say_so(tmp_path: Path, sample: Events) -> None:
    async with running(tmp_path / "a") as (api, _, store), running(tmp_path / "b") as (_, other, _):
        await store.admit_local([multibase.decode(event["car"]) for event in sample[:5]])
        dead = f"/ip4/127.0.0.1/tcp/1/p2p/{other.peer_id}"
        good = other.addresses[0]
        answer = await api.post("/ceramic/peers", params={"addresses": [dead, good]})
        assert (answer.status_code, answer.content) == (204, b"")

        peers = await until(api, "/ceramic/peers", lambda answer: answer["peers"])
        assert peers == {"peers": [{"id": did_of_peer(other.peer_id), "addresses": [good]}]}
        recon = await until(api, "/ceramic/recon", lambda answer: answer["syncs"])
        assert recon["syncs"][0]["peer"] == other.peer_id
        assert recon["syncs"][0]["outcome"] == "agreed"
        assert [peer["id"] for peer in recon["peers"] if peer["connected"]] == [other.peer_id]
        for name, found in (("SyncReport", recon["syncs"][0]), ("KnownPeer", recon["peers"][0])):
            assert set(found) == set(DOCUMENT["components"]["schemas"][name]["properties"])
        assert recon["transfers"] == recon["syncs"][:1]
        assert recon["transfers"][0]["events_sent"] == 5
        assert 'recon_peers{state="connected"} 1.0' in (await api.get("/metrics")).text


async def test_a_peer_that_cannot_be_reached(tmp_path: Path) -> None:
    async with running(tmp_path / "a") as (api, p2p, _):
        peer_id = "12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp"
        for address in (
            f"/ip4/127.0.0.1/tcp/1/p2p/{peer_id}",
            "/ip4/127.0.0.1/tcp/1",
            "/nonsense",
            p2p.addresses[0],
        ):
            answer = await api.post("/ceramic/peers", params={"addresses": address})
            assert answer.status_code == 400, address
            assert address in answer.json()["message"]
