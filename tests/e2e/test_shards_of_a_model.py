"""One model on several real nodes, each with a shard of it (CIP-124: "sharding a stream set")."""

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.waiting import wait_until

from recon_node.ceramic import Shard
from recon_node.client import Ceramic, Key, ModelDefinition, StreamId
from recon_node.testnet import TestnetNode

FLAGS = ("--network", "local-4723", "--sync-interval", "1")
DOCUMENTS = 40


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[TestnetNode]]:
    """Not started yet: five, and the one that is written to."""
    made = [TestnetNode(f"node-{number}", tmp_path, FLAGS) for number in range(6)]
    try:
        yield made
    finally:
        for node in made:
            node.discard()


def write(node: TestnetNode) -> tuple[StreamId, dict[str, str]]:
    """Write a model's documents; return the controllers of their events, by CID."""
    schema = {"properties": {"n": {"type": "integer"}}}
    written: dict[str, str] = {}
    with Ceramic(node.api_url, key=Key.generate(), timeout=60) as ceramic:
        model = ceramic.create_model(ModelDefinition(name="Large", schema=schema)).id
        for number in range(DOCUMENTS):
            key = Key.generate()
            document = ceramic.create(model, {"n": number}, key=key)
            updated = ceramic.update(document.id, {"n": -number - 1}, key=key)
            written |= dict.fromkeys((str(document.event), str(updated.event)), key.did)
    return model, written


def held(node: TestnetNode, model: StreamId, **only: str) -> set[str]:
    path = f"/ceramic/experimental/events/model/{model}"
    answer = httpx.get(node.api_url + path, params=only, timeout=60).raise_for_status().json()
    return {event["id"] for event in answer["events"]}


def received(node: TestnetNode) -> int:
    """How many events peers have delivered to it, new or not."""
    metrics = httpx.get(f"{node.api_url}/metrics", timeout=60).text
    counted = re.findall(r"recon_peer_events_total\{[^}]*\} ([0-9.e+]+)", metrics)
    return sum(int(float(number)) for number in counted)


def interests(node: TestnetNode, method: str, model: StreamId, shard: str) -> None:
    params = {"sep": "model", "sepValue": str(model), "controllers": shard}
    body = {"params": params} if method == "DELETE" else {"json": params}
    answer = httpx.request(method, f"{node.api_url}/ceramic/interests", timeout=60, **body)
    assert answer.status_code == 204, answer.text


def in_shards(written: dict[str, str], *shards: str) -> set[str]:
    parsed = [Shard.parse(shard) for shard in shards]
    return {cid for cid, did in written.items() if any(shard.covers(did) for shard in parsed)}


@pytest.mark.long
def test_four_nodes_share_a_model_and_then_five(nodes: list[TestnetNode]) -> None:
    *sharing, writer = nodes
    writer.launch()
    writer.wait_until_ready()
    model, written = write(writer)
    assert held(writer, model, controllers="1/4") == in_shards(written, "00..3f")
    wanted = [["1/4"], ["2/4"], ["3/4"], ["4/4"], ["1/4", "2/4"]]
    for node, shards in zip(sharing, wanted, strict=True):
        expected = [f"model={model} shard={shard}" for shard in shards]
        flags = [flag for interest in expected for flag in ("--interest", interest)]
        node.launch(["--bootstrap", writer.addresses[0], *flags])
    for node, shards in zip(sharing, wanted, strict=True):
        node.wait_until_ready()
        right = in_shards(written, *shards)
        wait_until(lambda node=node, right=right: held(node, model) == right)
    parts = [held(node, model) for node in sharing]
    assert set.union(*parts[:4]) == written.keys()  # each event is at one of the four ...
    assert sum(map(len, parts[:4])) == len(written)
    assert parts[4] == parts[0] | parts[1]  # ... and half of them at the fifth as well
    assert [received(node) for node in sharing] == [len(part) for part in parts]

    writer.stop()  # what is moved now comes from the five
    fifths = [f"{number}/5" for number in range(1, 6)]
    for node, shard in zip(sharing, fifths, strict=True):
        interests(node, "POST", model, shard)
    for node, shard, before in zip(sharing, fifths, parts, strict=True):
        right = before | in_shards(written, shard)
        wait_until(lambda node=node, right=right: held(node, model) == right)
        assert received(node) == len(right)  # nothing that it had came again
    listed = httpx.get(f"{sharing[1].api_url}/ceramic/experimental/interests").json()["interests"]
    assert [interest["controllers"] for interest in listed] == ["40..7f", "33..65"]
    added = {"sep": "model", "sepValue": str(model), "controllers": "66..98"}
    url = f"{sharing[2].api_url}/ceramic/interests"
    assert httpx.request("DELETE", url, params=added).status_code == 204
    assert httpx.request("DELETE", url, params=added).status_code == 404
