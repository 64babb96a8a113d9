"""The tutorial, run as a reader runs it: its shell blocks in their order, in a new home directory.

A block whose title names a terminal keeps running until the end. All of it takes a minute or two.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from waiting import kept_port

PAGE = Path(__file__).parents[2] / "docs/tutorial.md"
LIMIT = 450.0
"""Seconds, for a busy machine."""
_BLOCK = re.compile(r"^```sh(?: title=\"([^\"]*)\")?\n(.*?)^```", re.MULTILINE | re.DOTALL)


def script() -> str:
    """The tutorial as one script of bash."""
    parts = ["set -e -o pipefail", "PS4='+ '", "set -x"]
    for title, block in _BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if title == "once" or "activate" in block:
            continue
        if "terminal" not in title:
            parts.append(block)
            continue
        parts.append(f"{{ {block.rstrip()}\n}} > '{title}.log' 2>&1 &")
        if "recon-node run" in block:
            api = re.search(r"--api (\S+)", block)
            where = f" --url http://{api[1]}" if api else ""
            parts.append(
                f"until recon-node status{where} > /dev/null 2>&1; do kill -0 $!; sleep 0.2; done"
            )
    return "\n".join([*parts, "echo the end"])


@pytest.mark.long
def test_the_tutorial(tmp_path: Path) -> None:
    with ExitStack() as stack:
        _run(_on_other_ports(script(), stack), tmp_path)


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


def _run(text: str, directory: Path) -> None:
    own = {name: value for name, value in os.environ.items() if not name.startswith("RECON_NODE")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with subprocess.Popen(
        ["bash", "-c", text],
        cwd=directory,
        env={**own, "HOME": str(directory), "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as shell:
        try:
            output, _ = shell.communicate(timeout=LIMIT)
        finally:
            os.killpg(shell.pid, signal.SIGKILL)
    logs = "\n".join(f"{log.name}:\n{log.read_text()}" for log in directory.glob("*.log"))
    assert output.endswith("the end\n"), f"{output}\n{logs}"
    assert shell.returncode == 0, output
