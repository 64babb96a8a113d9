"""Two real daemons over libp2p and HTTP: they become equal, stay so, and lose nothing."""

import random
from collections.abc import Iterator

import httpx
import pytest
from nacl.signing import SigningKey
from support import sdk_sample
from support.waiting import equal, post_events, recon, wait_until

from recon_node.ceramic import METAMODEL, Event, parse_event
from recon_node.ceramic.builder import init_event
from recon_node.ipld import multibase
from recon_node.testnet import Testnet, TestnetNode

SAMPLE = [line["car"] for line in sdk_sample.lines()]


def new_events(count: int, rng: random.Random) -> list[Event]:
    key = SigningKey(rng.randbytes(32))
    return [init_event(key, METAMODEL, {"n": n}, unique=rng.randbytes(12)) for n in range(count)]


def cars_of(events: list[Event]) -> list[str]:
    return [multibase.encode(event.car) for event in events]


def feed(node: TestnetNode) -> list[Event]:
    """All events of a node's feed, in its order."""
    events: list[Event] = []
    token = "0"
    while True:
        query = {"resumeAt": token, "limit": "500", "includeData": "full"}
        page = httpx.get(f"{node.api_url}/ceramic/feed/events", params=query).json()
        if not page["events"]:
            return events
        events += [parse_event(multibase.decode(row["data"])) for row in page["events"]]
        token = page["resumeToken"]


@pytest.fixture(scope="module")
def pair() -> Iterator[list[TestnetNode]]:
    with Testnet(2, flags=("--sync-interval", "1")) as testnet:
        yield testnet.nodes


def test_two_daemons_become_equal_and_stay_so(pair: list[TestnetNode], rng: random.Random) -> None:
    full, empty = pair
    before = recon(full)["events"]
    empty.stop()
    post_events(full.api_url, SAMPLE)
    empty.restart()
    wait_until(lambda: equal(pair))
    for node in pair:
        post_events(node.api_url, cars_of(new_events(50, rng)))
    events = before + len(SAMPLE) + 100
    wait_until(lambda: equal(pair) and recon(full)["events"] == events)

    for node in pair:
        seen: set[bytes] = set()
        for event in feed(node):
            assert seen.issuperset(event.prevs), "an event before one that it builds on"
            seen.add(event.cid)
        assert len(seen) == events
