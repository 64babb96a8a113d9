"""Real ceramic-one nodes beside this project's, on loopback.

They need a binary of ceramic-one 0.58, built from its public source, in the environment variable
RECON_TEST_CERAMIC_ONE. RECON_TEST_CERAMIC_ONE_EVENTS says how many events both sides get at once.

A ceramic-one node's own feed is compared after a restart: of several events with the same prev that
come out of order, it delivers one, and the others when it starts again. It holds, counts and serves
them all the same.
"""

import base64
import json
import os
import random
import secrets
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from nacl.signing import SigningKey
from support import sdk_sample
from support.time_events import time_event
from support.waiting import recon, wait_until

from benchmarks.ceramic_one_node import (
    BINARY_VARIABLE,
    CeramicOneNode,
    binary_from_environment,
    holdings,
)
from recon_node.ceramic import METAMODEL, Network, StreamId
from recon_node.ceramic.auth.did import controller_of
from recon_node.ceramic.builder import data_event, init_event
from recon_node.client import Ceramic, Key, ModelDefinition
from recon_node.ipld import CID, DAG_CBOR, DAG_JOSE, car, cid_head, dag_cbor, multibase
from recon_node.testnet import TestnetNode

BINARY = binary_from_environment()
pytestmark = [
    pytest.mark.skipif(
        BINARY is None, reason=f"{BINARY_VARIABLE} does not name a binary of ceramic-one"
    )
]

EVENTS = int(os.environ.get(f"{BINARY_VARIABLE}_EVENTS", "2000"))
"""Events that are written to two nodes at once."""
LIMIT = 120.0 + EVENTS / 20
"""Seconds until nodes are equal at most; a build without optimisation takes 50 events a second."""
STREAM = 5
"""Events of a stream that is made up here."""
WRITERS = 4
"""Clients that write to a node at once."""

Node = TestnetNode | CeramicOneNode


def sample() -> list[str]:
    """The events of the SDK, in causal order, as multibase text."""
    return [line["car"] for line in sdk_sample.lines()]


def models() -> dict[str, int]:
    """The models of the sample's documents, and how many events each has."""
    counts: dict[str, int] = {}
    model_of = {}
    for event in sdk_sample.events():
        if event.header is not None:
            model_of[event.init] = str(event.header.model)
        model = model_of[event.init]
        counts[model] = counts.get(model, 0) + 1
    return {model: count for model, count in counts.items() if model.startswith("kjz")}


def made_up(rng: random.Random, count: int) -> list[list[str]]:
    """Streams of documents of the sample's first model, with so many events in all."""
    model = StreamId.parse(next(iter(models())))
    streams = []
    for _ in range(0, count, STREAM):
        key = SigningKey(rng.randbytes(32))
        init = last = init_event(key, model, {"n": 0}, unique=rng.randbytes(12))
        stream = [init]
        for number in range(1, STREAM):
            patch = [{"op": "replace", "path": "/n", "value": number}]
            last = data_event(key, init, [last.cid], patch)
            stream.append(last)
        streams.append([multibase.encode(event.car) for event in stream])
    return streams


def write(node: Node, cars: list[str]) -> None:
    """Post events one after the other; each has to be acknowledged."""
    with httpx.Client(base_url=node.api_url, timeout=LIMIT) as client:
        for car in cars:
            answer = client.post("/ceramic/events", json={"data": car})
            assert answer.status_code == 204, answer.text


def write_at_once(*work: tuple[Node, list[list[str]]]) -> None:
    """Write streams to some nodes, all at the same time and with several clients each."""
    with ThreadPoolExecutor(WRITERS * len(work)) as threads:
        writes = [
            threads.submit(
                write, node, [car for stream in streams[first::WRITERS] for car in stream]
            )
            for node, streams in work
            for first in range(WRITERS)
        ]
        for done in writes:
            done.result()


def feed(node: Node) -> set[str]:
    """The events of a node's own feed."""
    page = httpx.get(f"{node.api_url}/ceramic/feed/events?limit=10000", timeout=LIMIT).json()
    return {event["id"] for event in page["events"]}


class World:
    """Some nodes of both kinds in a local network; those that wait for peers start with them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.network = Network.local(secrets.randbelow(2**31))
        self.nodes: list[Node] = []

    def ours(self, *peers: str, flags: tuple[str, ...] = ()) -> TestnetNode:
        """Start one of ours."""
        every = ["--network", self.network.name, "--sync-interval", "1", *flags]
        for peer in peers:
            every += ["--bootstrap", peer]
        node = TestnetNode(f"ours-{len(self.nodes)}", self.directory, every)
        self.nodes.append(node)
        node.launch()
        node.wait_until_ready()
        return node

    def theirs(self, *peers: str, wants: list[str] | None = None) -> CeramicOneNode:
        """Start one of theirs, which wants all the sample's models."""
        assert BINARY is not None
        number = int(self.network.name.partition("-")[2])
        node = CeramicOneNode(BINARY, self.directory / f"theirs-{len(self.nodes)}", number)
        self.nodes.append(node)
        node.start(peers)
        node.want(list(models()) if wants is None else wants)
        return node

    def count(self, node: Node) -> int:
        """How many events a node serves on the model ring."""
        return holdings(self.address(node), self.network).count

    def address(self, node: Node) -> str:
        """Where a node can be reached."""
        return node.address if isinstance(node, CeramicOneNode) else node.addresses[0]

    def settle(self, count: int, limit: float = LIMIT) -> None:
        """Wait until all nodes hold the same events, and check that those are so many."""
        wait_until(lambda: all(self.count(node) >= count for node in self.nodes), limit=limit)
        holdings_seen = {holdings(self.address(node), self.network) for node in self.nodes}
        assert len(holdings_seen) == 1, "as many events, but not the same ones"
        assert holdings_seen.pop().count == count
        for node in self.nodes:
            if isinstance(node, TestnetNode):
                assert recon(node)["events"] == recon(node)["head"] == count

    def close(self) -> None:
        """End all nodes."""
        for node in self.nodes:
            node.kill()
            if isinstance(node, TestnetNode):
                node.release_ports()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    nodes = World(tmp_path)
    try:
        yield nodes
    finally:
        nodes.close()


def test_what_is_written_to_theirs_is_in_our_feed(world: World) -> None:
    theirs = world.theirs()
    ours = world.ours(theirs.address)
    write(theirs, sample())
    world.settle(len(sample()))
    assert feed(ours) == feed(theirs)
    assert len(feed(ours)) == len(sample())


def test_what_is_written_to_ours_is_in_their_feed(world: World) -> None:
    ours = world.ours()
    write(ours, sample())
    theirs = world.theirs(ours.addresses[0])
    world.settle(len(sample()))
    theirs.stop()
    theirs.start()
    wait_until(lambda: feed(theirs) == feed(ours), limit=LIMIT)


def test_both_are_written_to_at_once(world: World, rng: random.Random) -> None:
    theirs = world.theirs()
    ours = world.ours(theirs.address)
    here, there = made_up(rng, EVENTS // 2), made_up(rng, EVENTS // 2)
    write(ours, sample()[:3])  # the models
    wait_until(lambda: world.count(theirs) == 3, limit=LIMIT)
    write_at_once((ours, here), (theirs, there))
    syncs = model_syncs(ours)
    world.settle(3 + STREAM * (len(here) + len(there)))
    assert model_syncs(ours) - syncs <= 4, "more than three intervals, and the one under way"


def model_syncs(node: TestnetNode) -> int:
    """How many sessions of the model ring moved events to or from one of our nodes."""
    return sum(transfer["protocol"].endswith("/model") for transfer in recon(node)["transfers"])


@pytest.mark.parametrize("kind", ["ours", "theirs"])
def test_a_node_killed_in_the_middle_catches_up(world, rng, kind):
    theirs = world.theirs()
    ours = world.ours(theirs.address)
    victim: Node = ours if kind == "ours" else theirs
    other: Node = theirs if kind == "ours" else ours
    write(ours, sample()[:3])
    streams = made_up(rng, EVENTS // 2)
    share = -(-len(streams) // 3)
    written = 3
    for _ in range(3):
        part, streams = streams[:share], streams[share:]
        write_at_once((other, part))
        written += STREAM * len(part)
        before = written - STREAM * len(part)
        wait_until(lambda before=before: world.count(victim) > before, limit=LIMIT)  # type: ignore[misc]
        victim.kill()
        if isinstance(victim, CeramicOneNode):
            victim.start()
        else:
            victim.restart()
    world.settle(written)


def test_five_nodes_in_a_chain_become_equal(world: World, rng: random.Random) -> None:
    """Each knows only the one before it; the others it meets through the peer ring."""
    first = world.theirs()
    second = world.ours(first.address)
    third = world.ours(second.addresses[0], flags=("--no-discovery",))
    fourth = world.theirs(third.addresses[0])
    fifth = world.ours(fourth.address)
    write(first, sample()[:3])
    world.settle(3)
    streams = made_up(rng, EVENTS // 4)
    parts = [streams[number::5] for number in range(5)]
    write_at_once(*zip([first, second, third, fourth, fifth], parts, strict=True))
    world.settle(3 + STREAM * len(streams))
    wait_until(lambda: connected(fifth, second.peer_id), limit=LIMIT)


def connected(node: TestnetNode, peer_id: str) -> bool:
    return any(peer["id"] == peer_id and peer["connected"] for peer in recon(node)["peers"])


def test_interests_registered_over_http_reach_the_other_kind(world: World) -> None:
    one, two, *_ = models()
    source = world.ours()
    write(source, sample())
    theirs = world.theirs(source.addresses[0], wants=[one])
    wait_until(lambda: world.count(theirs) == 3 + models()[one], limit=LIMIT)
    ours = world.ours(theirs.address, flags=("--interest", one))
    wait_until(lambda: recon(ours)["head"] == models()[one], limit=LIMIT)
    theirs.want([two])
    wait_until(lambda: world.count(theirs) == 3 + models()[one] + models()[two], limit=LIMIT)
    httpx.post(f"{ours.api_url}/ceramic/interests/model/{two}").raise_for_status()
    wait_until(lambda: recon(ours)["head"] == models()[one] + models()[two], limit=LIMIT)


def test_a_merge_does_not_keep_the_rest_from_theirs(world: World) -> None:
    """It refuses the event, ends the session, and asks for it again in the next one (CIP-145)."""
    ours = world.ours()
    theirs = world.theirs(ours.addresses[0], wants=[str(METAMODEL)])

    def refusals() -> int:
        return theirs.log_path.read_text(errors="replace").count("it will never allow")

    with Ceramic(ours.api_url, key=Key.generate()) as ceramic:
        model = ceramic.create_model(
            ModelDefinition(name="Post", schema={"properties": {"title": {"type": "string"}}})
        )
        theirs.want([str(model.id)])
        post = ceramic.create(model, {"title": "a"})
        for title in ("b", "c"):
            last = ceramic.update(post, {"title": title}, at=post.event)
        wait_until(lambda: world.count(theirs) == 4, limit=LIMIT)
        ceramic.merge(post, prefer=last.event)
        wait_until(lambda: refusals() > 0, limit=LIMIT)
        for number in range(3):
            time.sleep(2)  # some syncs
            ceramic.create(model, {"title": str(number)})
            wait_until(lambda number=number: world.count(theirs) == 5 + number, limit=LIMIT)
        assert refusals() <= 3


def odd_contents() -> dict[str, Any]:
    """Contents of documents that are valid to both nodes, or to one, by what is odd about them."""
    digest = bytes(range(32))
    links = {
        "a CIDv0": b"\x12\x20" + digest,
        "a digest of 20 bytes": b"\x01\x71\x12\x14" + digest[:20],
        "a digest of 64 bytes": b"\x01\x71\x12\x40" + digest * 2,
        "no digest": b"\x01\x71\x12\x00",
        "an unknown hash function": b"\x01\x71\x99\x99\x03\x04" + digest[:4],
        "a block of 64 bytes in a CID": b"\x01\x55\x00\x40" + digest * 2,
        "a codec of 64 bits": b"\x01" + b"\xff" * 9 + b"\x01\x12\x20" + digest,
    }
    nested: Any = 0
    for _ in range(124):
        nested = [nested]
    return {name: bytes.__new__(CID, raw) for name, raw in links.items()} | {
        "minus zero": -0.0,
        "the least float": 5e-324,
        "2^64 - 1": 2**64 - 1,
        "-2^63": -(2**63),
        "-2^64": -(2**64),
        "126 levels": nested,
        "not in Normalization Form C": "e\u0301",
        "a zero character": "\0",
    }


def document(
    key: SigningKey, content: Any, *, codec: int = DAG_JOSE, times: int = 1, **fields: Any
) -> tuple[CID, bytes]:
    """The CID and CAR of an init event; our own parser need not take it.

    Args:
        key: its controller's.
        content: its content.
        codec: that its CID names.
        times: how often it is signed.
        fields: of the signature, beside the usual ones.
    """
    model = StreamId.parse(next(iter(models())))
    header = {"controllers": [controller_of(key)], "model": model.to_bytes(), "sep": "model"}
    payload = dag_cbor.encode({"data": content, "header": header})
    payload_cid = CID.of(DAG_CBOR, payload)
    kid = f"{controller_of(key)}#{controller_of(key).removeprefix('did:key:')}"
    protected = json.dumps({"alg": "EdDSA", "kid": kid}, separators=(",", ":")).encode()
    signed = b".".join(
        base64.urlsafe_b64encode(part).rstrip(b"=") for part in (protected, payload_cid)
    )
    signature = {"protected": protected, "signature": key.sign(signed).signature} | fields
    envelope = dag_cbor.encode({"payload": bytes(payload_cid), "signatures": [signature] * times})
    cid = CID.of(codec, envelope)
    return cid, car.encode([cid], {cid: envelope, payload_cid: payload})


def odd_events(number: int) -> dict[str, tuple[CID, bytes]]:
    """Documents with odd contents, and events of kinds that not all take."""
    key = SigningKey(bytes([number]) * 32)
    odd = {
        name: document(key, {"n": number, "odd": content})
        for name, content in odd_contents().items()
    }
    odd |= {
        "an envelope named by DAG-CBOR": document(key, {"n": number, "e": 1}, codec=DAG_CBOR),
        "an unprotected header": document(key, {"n": number, "e": 2}, header={"x": 1}),
        "two signatures": document(key, {"n": number, "e": 3}, times=2),
    }
    model = StreamId.parse(next(iter(models())))
    init = init_event(key, model, {"n": number})
    forks = [
        data_event(key, init, [init.cid], [{"op": "replace", "path": "/n", "value": value}])
        for value in (1, 2)
    ]
    others = {
        "an init event": init,
        "a branch": forks[0],
        "another branch": forks[1],
        "a merge": data_event(key, init, [fork.cid for fork in forks], []),
        "a time event": time_event(init, init.cid, tx_hash=bytes([number]) * 32),
        "more after those": init_event(key, model, {"n": -number}),
    }
    return odd | {name: (event.cid, event.car) for name, event in others.items()}


def test_what_only_one_kind_takes_does_not_keep_the_rest_apart(world: World) -> None:
    theirs = world.theirs()
    ours = world.ours(theirs.address)
    write(ours, sample()[:3])  # the models
    wait_until(lambda: world.count(theirs) == 3, limit=LIMIT)
    taken: dict[str, set[str]] = {ours.name: set(), theirs.name: set()}
    for number, node in enumerate((ours, theirs), 1):
        for name, (_, event) in odd_events(number).items():
            body = {"data": multibase.encode(event)}
            answer = httpx.post(f"{node.api_url}/ceramic/events", json=body, timeout=LIMIT)
            assert answer.status_code in (204, 400), answer.text
            if answer.status_code == 204:
                taken[node.name].add(name)
    assert taken[ours.name] - taken[theirs.name] == {"a merge", "a time event"}
    assert taken[theirs.name] - taken[ours.name] == {"an unprotected header", "two signatures"}
    renamed = "an envelope named by DAG-CBOR"  # for us, it is the event that DAG-JOSE names
    both = taken[ours.name] & taken[theirs.name] - {renamed}
    for number, node in ((1, theirs), (2, ours)):
        for name in both:
            cid, _ = odd_events(number)[name]
            wait_until(lambda: holds(node, cid), limit=LIMIT)  # noqa: B023
    cid, _ = odd_events(1)[renamed]
    wait_until(lambda: holds(theirs, CID(cid_head(DAG_JOSE) + cid.digest)), limit=LIMIT)

    def refusals() -> int:
        return theirs.log_path.read_text(errors="replace").count("it will never allow")

    time.sleep(3)  # for what is sent last
    before = model_syncs(ours), refusals()
    time.sleep(6)  # some syncs, in which nothing is sent again
    assert (model_syncs(ours), refusals()) == before


def holds(node: Node, cid: CID) -> bool:
    return httpx.get(f"{node.api_url}/ceramic/events/{cid}", timeout=LIMIT).is_success
