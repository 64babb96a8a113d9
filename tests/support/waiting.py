"""Waiting for processes and tasks, by conditions and never by fixed sleeps; and their ports."""

import json
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import trio

from recon_node.testnet import TestnetNode

LIMIT = 120.0
"""Seconds to wait, which a busy machine may need."""
PAUSE = 0.05
"""Seconds between two looks: a node that is asked without a pause gets nothing else done."""


def wait_until(
    condition: Callable[[], bool], what: str = "it came true", limit: float = LIMIT
) -> None:
    """Look until a condition holds; fail the test if it does not in time."""
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, f"waited {limit:g} s in vain until {what}"
        time.sleep(PAUSE)


def finished(command: Sequence[object], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program to its end: its exit code, and what it printed."""
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


async def eventually(condition: Callable[[], Any], limit: float = LIMIT) -> None:
    """Let other tasks run until a condition holds; fail the test if it does not in time."""
    with trio.fail_after(limit):
        while not condition():  # noqa: ASYNC110 (not all that is waited for has an event)
            await trio.sleep(0.01)


@contextmanager
def kept_port(port: int = 0) -> Iterator[int]:
    """A port, or this one, at which nothing listens, and which no one gets who asks for any.

    Who asks for this very port can listen at it, since both allow to share the address.
    """
    with socket.socket() as keeper:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind(("127.0.0.1", port))
        yield int(keeper.getsockname()[1])


def post_events(url: str, cars: list[str]) -> None:
    """Write events, as CARs in multibase, through a node's API; it gets new events only, or knows
    them already."""
    lines = "\n".join(json.dumps({"data": car}) for car in cars)
    kind = {"content-type": "application/x-ndjson"}
    answer = httpx.post(f"{url}/ceramic/events", content=lines, headers=kind, timeout=600)
    refused = [
        verdict for verdict in answer.raise_for_status().json() if verdict["status"] == "refused"
    ]
    assert not refused, refused


def recon(node: TestnetNode) -> dict[str, Any]:
    """What a node says about its events and syncs."""
    return dict(httpx.get(f"{node.api_url}/ceramic/recon").raise_for_status().json())


def equal(nodes: list[TestnetNode]) -> bool:
    """Do the nodes have the same events, all of them delivered?"""
    states = [recon(node) for node in nodes]
    whole = {(state["events"], state["head"], state["sha256a"]) for state in states}
    return len(whole) == 1 and states[0]["events"] == states[0]["head"]


@contextmanager
def anchoring_pair(
    directory: Path, settings: Sequence[str], *flags: str
) -> Iterator[list[TestnetNode]]:
    """Two nodes of these settings; the first, with flags of its own, gives every event a time."""
    settings = [*settings, "--development-time", "--sync-interval", "1"]
    first, second = (TestnetNode(name, directory, settings) for name in ("anchoring", "other"))
    try:
        first.launch(["--anchor", "development", "--anchor-interval", "1s", *flags])
        first.wait_until_ready()
        second.launch(["--bootstrap", first.addresses[0]])
        second.wait_until_ready()
        yield [first, second]
    finally:
        for node in (first, second):
            node.discard()
