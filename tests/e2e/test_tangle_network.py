"""A thread by four authors on three real daemons that were apart: one order everywhere."""

from itertools import combinations
from pathlib import Path
from typing import Any

import httpx
import pytest
from nacl.signing import SigningKey
from support.waiting import post_events, wait_until

from recon_node.ceramic import Event, StreamId
from recon_node.ceramic.builder import init_event, model_event
from recon_node.client import ModelDefinition
from recon_node.ipld import multibase
from recon_node.testnet import TestnetNode

AUTHORS = [SigningKey(bytes([n]) * 32) for n in (1, 2, 3, 4)]
SCHEMA = {"properties": {"n": {"type": "integer"}, "tangles": {"type": "object"}}}
MODEL = model_event(AUTHORS[0], ModelDefinition(name="Message", schema=SCHEMA).to_json())


def write(node: TestnetNode, event: Event) -> None:
    post_events(node.api_url, [multibase.encode(event.car)])


def reply(node: TestnetNode, author: int, number: int, root: StreamId) -> StreamId:
    """Write a reply to all tips that a node knows."""
    links = {"root": str(root), "previous": read(node, root)["tips"]}
    content = {"n": number, "tangles": {"thread": links}}
    event = init_event(AUTHORS[author], MODEL.stream_id(), content, unique=b"%d" % number)
    write(node, event)
    return event.stream_id()


def read(node: TestnetNode, root: StreamId) -> dict[str, Any]:
    url = f"{node.api_url}/ceramic/tangles/thread/{root}"
    return dict(httpx.get(url, timeout=60).raise_for_status().json())


def connect(nodes: list[TestnetNode]) -> None:
    for one, other in combinations(nodes, 2):
        query = {"addresses": other.addresses[0]}
        url = f"{one.api_url}/ceramic/peers"
        httpx.post(url, params=query, timeout=60).raise_for_status()


@pytest.mark.long
def test_a_thread_has_one_order_after_a_partition(tmp_path: Path) -> None:
    flags = ("--network", "local-36", "--no-discovery", "--sync-interval", "1")
    nodes = [TestnetNode(f"node{n}", tmp_path, flags) for n in range(3)]
    try:
        for node in nodes:
            node.launch()
        for node in nodes:
            node.wait_until_ready()
        links = {"thread": {"root": None, "previous": None}}
        first = init_event(AUTHORS[0], MODEL.stream_id(), {"n": 0, "tangles": links}, unique=b"0")
        root = first.stream_id()
        for node in nodes:  # each has the root, and then goes on alone
            write(node, MODEL)
            write(node, first)
        for round_ in range(2):
            for at, node in enumerate(nodes):
                reply(node, at + 1, 1 + 3 * round_ + at, root)
        assert len({str(read(node, root)["tips"]) for node in nodes}) == 3
        connect(nodes)
        wait_until(lambda: all(len(read(node, root)["messages"]) == 7 for node in nodes))
        last = reply(nodes[2], 0, 7, root)  # which merges the three branches
        wait_until(lambda: all(read(node, root)["tips"] == [str(last)] for node in nodes))
        tangles = [read(node, root) for node in nodes]
        orders = [[message["id"] for message in tangle["messages"]] for tangle in tangles]
        assert orders[0] == orders[1] == orders[2]
        assert len(orders[0]) == 8
        assert len(tangles[0]["messages"][-1]["previous"]) == 3
        assert not any(tangle["excluded"] for tangle in tangles)
    finally:
        for node in nodes:
            node.discard()
