"""The tutorial, run as a reader runs it, in a new home directory. It takes a minute or two."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from shell_blocks import run, script
from support.waiting import kept_port

PAGE = Path(__file__).parents[2] / "docs/tutorial.md"
LIMIT = 450.0
"""Seconds, for a busy machine."""


@pytest.mark.long
def test_the_tutorial(tmp_path: Path) -> None:
    with ExitStack() as stack:
        run(_on_other_ports(script(PAGE), stack), tmp_path, LIMIT)


def _on_other_ports(text: str, stack: ExitStack) -> str:
    """The script with free ports instead of the usual ones, which other tests may be using."""
    ports = {usual: stack.enter_context(kept_port()) for usual in (5101, 5201, 4101, 4201)}
    first = "recon-node run --network local-7\n"
    assert text.count(first) == 1
    text = text.replace(
        first, f"{first.rstrip()} --api 127.0.0.1:5101 --listen /ip4/127.0.0.1/tcp/4101\n"
    )
    text = f"export RECON_NODE_URL=http://127.0.0.1:5101\n{text}"
    for usual, free in ports.items():
        text = text.replace(str(usual), str(free))
    return text
