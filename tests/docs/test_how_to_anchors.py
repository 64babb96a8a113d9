"""The guide to anchors, run as a reader runs it: from nothing to an anchored stream."""

from __future__ import annotations

import re
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest
from shell_blocks import run, script
from support.waiting import kept_port

PAGE = Path(__file__).parents[2] / "docs/how-to/anchors.md"
LIMIT = 300.0
"""Seconds, for a busy machine."""


@pytest.mark.long
def test_from_nothing_to_an_anchored_stream(tmp_path: Path) -> None:
    if not (shutil.which("npx") and shutil.which("curl")):
        pytest.skip("npx or curl is not installed: the guide's chain cannot run")
    text = script(PAGE, without=("any node",))
    start = "recon-node run --config anchoring.toml\n"
    assert text.count(start) == 1
    with ExitStack() as stack:
        chain, api, peers = (stack.enter_context(kept_port()) for _ in range(3))
        flags = f"--api 127.0.0.1:{api} --listen /ip4/127.0.0.1/tcp/{peers} --no-discovery"
        text = text.replace(start, f"{start.rstrip()} {flags}\n").replace("8545", str(chain))
        text = text.replace("status >", f"status --url http://127.0.0.1:{api} >")
        text = f"export RECON_NODE_URL=http://127.0.0.1:{api}\n{text}"
        output = run(text, tmp_path, LIMIT)
    anchored = output.partition("stream anchor")[2]
    assert ": anchored 20" in anchored
    assert "[anchored]" in anchored
    assert "Anchoring on eip155:1337" in anchored
    assert re.search(r"[1-9] anchored in [1-9] trees?\b", anchored)
