"""100 MB from A to C through B, while everything involved is killed at random moments.

What is killed with SIGKILL: the push, the pull, and the daemons A, B and C. Whoever was killed is
started again, and in the end what C writes is what A was given.
"""

import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from dag_nodes import Row
from dag_samples import contents, make_files
from support import forking
from support.waiting import wait_until

from recon_node.dag.dag_source import FileTree
from recon_node.testnet import TestnetNode

MB = 1_000_000
SIZE = 100 * MB
KILLS = 6
"""Of the push, and of the pull."""
LIMIT = 300.0
"""Seconds for all of a push, or of a pull, with those that were killed."""
PAUSE = 0.02
"""Seconds between two looks at how far it is: some fall into the middle of it."""


def command(node: TestnetNode, home: Path, *args: str) -> subprocess.Popen[str]:
    return forking.Popen(
        [sys.executable, "-m", "recon_node", "dag", *args, "--url", node.api_url],
        env={"RECON_NODE_DATA_DIR": str(home), "PATH": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def events(node: TestnetNode) -> int:
    try:
        return int(httpx.get(f"{node.api_url}/ceramic/recon").raise_for_status().json()["events"])
    except httpx.HTTPError:
        return -1


def state_of(node: TestnetNode, root: str) -> dict[str, Any]:
    return dict(httpx.get(f"{node.api_url}/ceramic/dag/{root}").raise_for_status().json())


def until_it_ends_well(
    start: Callable[[], subprocess.Popen[str]],
    harm: Callable[[subprocess.Popen[str]], None],
    deadline: float,
) -> int:
    """Start a command again until it ends well, doing some harm each time; how often that was."""
    tries = 0
    while True:
        tries += 1
        process = start()
        try:
            harm(process)
            output, _ = process.communicate(timeout=max(1.0, deadline - time.monotonic()))
        finally:
            process.kill()
            process.wait()
        if process.returncode == 0:
            return tries
        assert time.monotonic() < deadline, output
        assert "Traceback" not in output, output


@pytest.mark.long
def test_100_mb_arrive_whatever_is_killed(row: Row, tmp_path: Path, rng: random.Random) -> None:
    """The push and A are killed in turn, then B, C and the pull."""
    sizes = [SIZE // 2, SIZE // 3, SIZE // 6 - 50_000, 49_000, 1000, 0]
    files = make_files(tmp_path / "files", rng, *sizes)
    root = str(FileTree(files).root)
    harmed = 0

    def harm_push(process: subprocess.Popen[str]) -> None:
        nonlocal harmed
        harmed += 1
        if harmed > KILLS:
            return
        wanted = events(a) + rng.randint(1, max(1, SIZE // MB // (2 * KILLS)))
        while events(a) < wanted and process.poll() is None:
            time.sleep(PAUSE)
        if harmed % 2:
            process.kill()
        else:
            a.kill()
            a.restart()

    def harm_pull(process: subprocess.Popen[str]) -> None:
        nonlocal harmed
        for _ in range(KILLS):
            wanted = events(c) + rng.randint(1, max(1, SIZE // MB // (2 * KILLS)))
            while events(c) < wanted and process.poll() is None:
                assert time.monotonic() < deadline
                time.sleep(PAUSE)
            harmed += 1
            victim = [b, c, None][harmed % 3]
            if victim is None:
                process.kill()
                return
            victim.kill()
            victim.restart()

    a, b, c = row
    b.stop()
    deadline = time.monotonic() + LIMIT
    started = time.monotonic()
    pushes = until_it_ends_well(
        lambda: command(a, tmp_path / "home", "push", str(files)), harm_push, deadline
    )
    pushed = time.monotonic()
    b.restart()
    harmed = 0
    out = tmp_path / "back"
    pulls = until_it_ends_well(
        lambda: command(c, tmp_path / "home", "pull", root, "--out", str(out)), harm_pull, deadline
    )
    pulled = time.monotonic()
    assert contents(out) == contents(files)
    state = state_of(a, root)
    assert state["complete"]
    assert (state["unclaimed"], state["ignored"]) == ([], 0)
    wait_until(lambda: state_of(c, root) == state)  # the replica may come after the last block
    print(
        f"\n{SIZE / MB:g} MB: pushed in {pushed - started:.1f} s ({pushes} tries), "
        f"pulled in {pulled - pushed:.1f} s ({pulls} tries)"
    )
