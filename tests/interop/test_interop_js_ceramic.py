"""js-ceramic 6, as it is published on npm, with recon-node as its Recon node.

It needs `node` and `npm`, and half a gigabyte for the packages, which the first run puts into
node_modules.
"""

import json
from pathlib import Path

import httpx
import pytest
from support import npm_packages
from support.waiting import equal, recon, wait_until

from recon_node.testnet import Testnet

FOLDER = Path(__file__).parent / "js_ceramic"
LIMIT = 120.0
"""Seconds for a run of the application."""

pytestmark = pytest.mark.long


def test_what_one_js_ceramic_writes_others_read_and_change(tmp_path: Path) -> None:
    """Each run has a new state directory: all that it knows comes from its Recon node."""
    npm_packages.install(FOLDER)
    with Testnet(2, flags=("--sync-interval", "1")) as testnet:
        here, there = testnet.nodes
        written = npm_packages.node(
            FOLDER, LIMIT, "app.mjs", "write", here.api_url, str(tmp_path / "1")
        )
        assert written["content"] == {"text": "second", "likes": 3}

        # Interests narrow a node down: the application's models have to be among them.
        ids = written["ids"]
        for node in (here, there):
            interest = {"sep": "model", "sepValue": ids["model"]}
            httpx.post(f"{node.api_url}/ceramic/interests", json=interest).raise_for_status()
        wait_until(lambda: equal([here, there]))
        assert recon(there)["events"] == 4

        for number, (at, before, after) in enumerate(
            ((here, "second", "third"), (there, "third", "fourth")), 2
        ):
            state = tmp_path / str(number)
            changed = npm_packages.node(
                FOLDER, LIMIT, "app.mjs", "change", at.api_url, str(state), json.dumps(ids), after
            )
            assert changed["found"] == {"text": before, "likes": 3}
            assert changed["content"] == {"text": after, "likes": 3}
            assert changed["model"] == "Post"
            ids = changed["ids"]
            wait_until(lambda: equal([here, there]))

        for node in (here, there):
            state = httpx.get(f"{node.api_url}/ceramic/streams/{ids['post']}").json()
            assert state["event_cid"] == ids["tip"]
