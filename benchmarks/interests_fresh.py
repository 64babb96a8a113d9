"""How long what was just asked for takes to come; for `python -m benchmarks.interests fresh`."""

from __future__ import annotations

import secrets
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import httpx

from benchmarks.ceramic_one_node import CeramicOneNode
from benchmarks.interests_daemons import KEY, model_of, post
from benchmarks.report import Row
from recon_node.ceramic import METAMODEL, StreamId, StreamType
from recon_node.ceramic.builder import init_event, model_event
from recon_node.testnet import TestnetNode

LIMIT: Final = 120.0
"""Seconds in which everything must be there."""
SETTLE: Final = 10.0
"""Seconds in which three nodes find each other."""
_DEFINITION: Final = {
    "version": "2.0",
    "accountRelation": {"type": "list"},
    "interface": False,
    "implements": [],
    "schema": {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "additionalProperties": False,
    },
}


def fresh(models: int, events: int, interval: float, directory: Path, binary: str | None) -> Row:
    """Measure how long what was just asked for takes to come.

    Args:
        models: how many.
        events: how many, beside those of the models themselves.
        interval: the daemons' `sync_interval`, in seconds.
        directory: for data and logs.
        binary: of ceramic-one, to measure its nodes instead.
    """
    with ExitStack() as stack:
        urls = (
            _three(interval, directory, stack)
            if binary is None
            else _theirs(binary, directory, stack)
        )
        time.sleep(SETTLE)
        of_models = [model_event(KEY, {**_DEFINITION, "name": f"m{n}"}) for n in range(models)]
        ids = [StreamId(StreamType.MODEL, event.cid) for event in of_models]
        made = of_models + [
            init_event(KEY, ids[number % models], {"n": number}, unique=secrets.token_bytes(12))
            for number in range(events)
        ]
        clients = [httpx.Client(base_url=url, timeout=60) for url in urls]
        for client in clients:
            delivered(client)  # it is connected
        began = time.monotonic()
        for client in clients:
            for model in (METAMODEL, *ids):
                client.post(f"/ceramic/interests/model/{model}").raise_for_status()
        asked = time.monotonic()
        for number, event in enumerate(made):
            post(clients[number % len(clients)], event)
        written = time.monotonic()
        while any(delivered(client) < len(made) for client in clients):
            if time.monotonic() > began + LIMIT:
                raise SystemExit("not everything has arrived")
            time.sleep(0.02)
        ended = time.monotonic()
    return {
        "system": "recon-node" if binary is None else "ceramic-one",
        "nodes": len(urls),
        "models": models,
        "events": events,
        "asking_s": asked - began,
        "writing_s": written - asked,
        "after_last_write_s": ended - written,
        "seconds": ended - began,
    }


def _three(interval: float, directory: Path, stack: ExitStack) -> list[str]:
    """Start three daemons; return the URLs of their APIs."""
    flags = ["--network", f"local-{secrets.randbelow(2**32)}", "--sync-interval", f"{interval:g}"]
    flags += ["--interest", f"model={model_of(10**6)}"]
    nodes = [TestnetNode(f"node-{number}", directory, flags) for number in range(3)]
    for number, node in enumerate(nodes):
        stack.callback(node.kill)
        node.launch(["--bootstrap", nodes[0].addresses[0]] if number else [])
        node.wait_until_ready(180.0)
    return [node.api_url for node in nodes]


def _theirs(binary: str, directory: Path, stack: ExitStack) -> list[str]:
    """Start three ceramic-one nodes, each connected to those before it; return their APIs."""
    network = secrets.randbelow(2**32)
    nodes = [CeramicOneNode(binary, directory / f"one-{n}", network) for n in range(3)]
    for number, node in enumerate(nodes):
        stack.callback(node.kill)
        node.start([peer.address for peer in nodes[:number]])
    return [node.api_url for node in nodes]


def delivered(client: httpx.Client) -> int:
    """Return how many events are in a node's feed."""
    answer = client.get("/ceramic/feed/events", params={"limit": 10_000}).raise_for_status()
    return len(answer.json()["events"])
