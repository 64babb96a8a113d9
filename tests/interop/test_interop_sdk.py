"""The Ceramic SDK for JavaScript, as it is published on npm, against real nodes.

It needs `node` and `npm`. The packages are those of package-lock.json, put into node_modules here
by the first run; where the npm registry is out of reach then, there is nothing to test with.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import npm_packages
from support.waiting import equal, recon, wait_until

from recon_node import __version__
from recon_node.testnet import Testnet, TestnetNode

HERE = Path(__file__).parent
LIMIT = 150.0
"""Seconds for a run of the application."""


@pytest.fixture(scope="module", autouse=True)
def _sdk() -> None:
    npm_packages.install(HERE)


def sdk(*args: str) -> Any:
    """Run the application; what it says."""
    return npm_packages.node(HERE, LIMIT, "sdk.mjs", *args)


@pytest.fixture
def pair() -> Iterator[list[TestnetNode]]:
    with Testnet(2, flags=("--sync-interval", "1")) as testnet:
        yield testnet.nodes


def test_what_is_written_on_one_node_is_read_on_another(pair: list[TestnetNode]) -> None:
    here, there = pair
    written = sdk("write", here.api_url)
    assert written["version"] == __version__
    wait_until(lambda: equal([here, there]))
    read = sdk("read", there.api_url, json.dumps(written["ids"]))
    states = read["states"]
    assert {name: state["content"] for name, state in states.items()} == {
        "post": {"text": "third ☃"},
        "profile": {"name": "Ada L."},
        "vote": {"topic": "tea", "yes": True},
    }
    assert {state["metadata"]["controller"] for state in states.values()} == {written["did"]}
    metadata = states["post"]["metadata"]
    assert metadata["shouldIndex"] is False
    assert metadata["modelVersion"].startswith("b")
    assert metadata["model"] == written["ids"]["model"] == read["documentModel"]
    assert read["definition"]["description"] == "A short text"
    assert read["firstDefinition"]["description"] == "What someone has to say"
    assert {"jws", "linkedBlock"} <= set(read["signedEvent"])
    assert read["feedLength"] == recon(there)["head"]
    assert read["missing"].startswith("Failed to fetch stream state: Stream not found")
