"""`recon-node snapshot sync` of a running node, through its API."""

from pathlib import Path

import httpx
import pytest
import trio
from cli_run import Events, run

from recon_node.ceramic import Network
from recon_node.ipld import multibase
from recon_node.store import StoreSettings, open_store
from recon_node.testnet import TestnetNode

EVENTS = 60


@pytest.fixture
def url(node: TestnetNode, sample: Events, tmp_path: Path) -> str:
    """A snapshot of a node that has stopped."""
    name = httpx.get(f"{node.api_url}/ceramic/config/network").json()["name"]

    async def fill() -> None:
        settings = StoreSettings(verifiers=0)
        async with open_store(tmp_path / "other", Network.parse(name), settings=settings) as store:
            await store.admit_local([multibase.decode(event["car"]) for event in sample[:EVENTS]])

    trio.run(fill)
    run("snapshot", "create", tmp_path / "snapshots", "--data-dir", tmp_path / "other")
    return str(tmp_path / "snapshots")


def test_the_node_that_uses_the_directory_is_asked(node, url, tmp_path):
    here = ("--data-dir", node.data_dir)
    result = run("snapshot", "sync", url, *here, node=node)
    assert f"{EVENTS} new, 0 known, 0 refused" in result.output
    again = run("snapshot", "sync", url, tmp_path / "none", *here, node=node, code=1)
    assert "0 new" in again.output
    assert "none does not exist" in again.output
    nobody = run("snapshot", "sync", url, *here, RECON_NODE_URL="http://127.0.0.1:1", code=1)
    assert "is in use, but no node answers" in nobody.output
