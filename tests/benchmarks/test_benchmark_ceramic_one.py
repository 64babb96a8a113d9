"""The parts of the benchmark against real ceramic-one nodes, with a node of ours in their place."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks.ceramic_one import made_up_events
from benchmarks.ceramic_one_node import _ask_for_holdings
from benchmarks.counting_proxy import Proxy
from recon_node.ceramic import Network
from recon_node.p2p import P2PSettings, open_p2p
from recon_node.store import Store, open_store

NETWORK = Network.local(7)
CARS = [car for stream in made_up_events(121).streams for car in stream]


@asynccontextmanager
async def node(directory: Path, cars: list[bytes]) -> AsyncIterator[tuple[Store, str]]:
    """A node of ours that speaks the rings alone, and where it can be reached."""
    settings = P2PSettings(listen=("/ip4/127.0.0.1/tcp/0",), discovery=False)
    async with open_store(directory, NETWORK) as store:
        await store.admit_local(cars)
        async with open_p2p(settings, store, directory, ()) as p2p:
            yield store, p2p.addresses[0]


async def test_a_node_is_asked_what_it_holds(tmp_path):
    async with node(tmp_path / "full", CARS) as (store, address):
        keys = await store.load_ring_keys()
        assert await _ask_for_holdings(address, NETWORK) == keys.summarize()
    async with node(tmp_path / "empty", []) as (_, address):
        assert (await _ask_for_holdings(address, NETWORK)).count == 0


def test_a_proxy_counts_what_passes():
    with socket.create_server(("127.0.0.1", 0)) as server:
        proxy = Proxy(server.getsockname()[1])
        with socket.create_connection(("127.0.0.1", proxy.port)) as near:
            far, _ = server.accept()
            with far:
                near.sendall(b"to the server")
                assert far.recv(100) == b"to the server"
                far.sendall(b"and back")
                assert near.recv(100) == b"and back"
        proxy.close()
    assert (proxy.up, proxy.down) == (13, 8)
