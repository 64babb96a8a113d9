"""The Ceramic SDK for JavaScript, as it is published on npm, against real nodes.

It needs `node` and `npm`. The packages are those of package-lock.json, put into node_modules here
by the first run; where the npm registry is out of reach then, there is nothing to test with.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from recon_node import __version__
from recon_node.testnet import Testnet, TestnetNode

HERE = Path(__file__).parent
MODULES = HERE / "node_modules"
MARK = MODULES / ".installed-from"
LIMIT = 60.0
INSTALL_LIMIT = 300.0


@pytest.fixture(scope="module", autouse=True)
def _sdk() -> None:
    """The packages of package-lock.json in node_modules."""
    if not (shutil.which("node") and shutil.which("npm")):
        pytest.skip("node and npm are not here: the Ceramic SDK cannot run")
    lock = hashlib.sha256((HERE / "package-lock.json").read_bytes()).hexdigest()
    if MARK.exists() and MARK.read_text() == lock:
        return
    install = npm("ci", "--ignore-scripts", "--no-audit", "--no-fund")
    if install.returncode and npm("ping").returncode:
        pytest.skip("the npm registry does not answer: the Ceramic SDK cannot be installed")
    assert install.returncode == 0, install.stderr
    MARK.write_text(lock)


def run(command: list[str], limit: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=HERE, capture_output=True, text=True, timeout=limit, check=False
    )


def npm(*args: str) -> subprocess.CompletedProcess[str]:
    return run(["npm", *args], INSTALL_LIMIT)


def sdk(*args: str) -> Any:
    """Run the application; what it says."""
    done = run(["node", "sdk.mjs", *args], LIMIT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def recon(node: TestnetNode) -> dict[str, Any]:
    return dict(httpx.get(f"{node.api_url}/ceramic/recon").raise_for_status().json())


def wait_until_equal(one: TestnetNode, other: TestnetNode) -> None:
    deadline = time.monotonic() + LIMIT
    while True:
        left, right = recon(one), recon(other)
        whole = left["sha256a"] == right["sha256a"] and left["head"] == right["head"]
        if whole and left["head"] == left["events"]:
            return
        assert time.monotonic() < deadline, (left, right)


@pytest.fixture
def pair() -> Iterator[list[TestnetNode]]:
    with Testnet(2, flags=("--sync-interval", "1")) as testnet:
        yield testnet.nodes


def test_what_is_written_on_one_node_is_read_on_another(pair: list[TestnetNode]) -> None:
    here, there = pair
    written = sdk("write", here.api_url)
    assert written["version"] == __version__
    wait_until_equal(here, there)
    for node in (here, there):
        found = sdk("read", node.api_url, json.dumps(written["ids"]))
        check(found, written, recon(node)["head"])


def check(found: Any, written: Any, events: int) -> None:
    states = found["states"]
    assert {name: state["content"] for name, state in states.items()} == {
        "post": {"text": "third ☃"},
        "profile": {"name": "Ada L."},
        "vote": {"topic": "tea", "yes": True},
    }
    assert {state["metadata"]["controller"] for state in states.values()} == {written["did"]}
    metadata = states["post"]["metadata"]
    assert metadata["shouldIndex"] is False
    assert metadata["modelVersion"].startswith("b")
    assert metadata["model"] == written["ids"]["model"] == found["documentModel"]
    assert found["definition"]["description"] == "A short text"
    assert found["firstDefinition"]["description"] == "What someone has to say"
    assert {"jws", "linkedBlock"} <= set(found["signedEvent"])
    assert found["feedLength"] == events
    assert found["missing"].startswith("Failed to fetch stream state: Stream not found")
