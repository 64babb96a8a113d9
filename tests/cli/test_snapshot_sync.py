"""`recon-node snapshot sync` of a running node, through its API."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
import trio
from click.testing import CliRunner, Result

from recon_node.ceramic import Network
from recon_node.cli import main
from recon_node.ipld import multibase
from recon_node.store import StoreSettings, open_store
from recon_node.testnet import TestnetNode

EVENTS = 60


@pytest.fixture
def url(node: TestnetNode, sample: list[dict[str, str]], tmp_path: Path) -> str:
    """A snapshot of a node that has stopped."""
    name = httpx.get(f"{node.api_url}/ceramic/config/network").json()["name"]

    async def fill() -> None:
        settings = StoreSettings(verifiers=0)
        async with open_store(tmp_path / "other", Network.parse(name), settings=settings) as store:
            await store.admit_local([multibase.decode(each["car"]) for each in sample[:EVENTS]])

    trio.run(fill)
    made = snapshot("create", tmp_path / "snapshots", "--data-dir", tmp_path / "other")
    assert made.exit_code == 0, made.output
    return str(tmp_path / "snapshots")


def snapshot(*args: object, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(main, ["snapshot", *map(str, args)], env=env)


def test_the_node_that_uses_the_directory_is_asked(
    node: TestnetNode, url: str, tmp_path: Path
) -> None:
    api = {"RECON_NODE_URL": node.api_url}
    found = snapshot("sync", url, "--data-dir", node.data_dir, env=api)
    assert found.exit_code == 0, found.output
    assert f"{EVENTS} new, 0 known, 0 refused" in found.output
    again = snapshot("sync", url, tmp_path / "none", "--data-dir", node.data_dir, env=api)
    assert again.exit_code == 1
    assert "0 new" in again.output
    assert "none does not exist" in again.output
    nobody = snapshot(
        "sync", url, "--data-dir", node.data_dir, env={"RECON_NODE_URL": "http://127.0.0.1:1"}
    )
    assert nobody.exit_code == 1
    assert "is in use, but no node answers" in nobody.output
