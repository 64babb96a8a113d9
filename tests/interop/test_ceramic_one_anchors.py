"""Time events of a ceramic-one node and of this project's, on one chain: each believes the other's.

They need a binary of ceramic-one in RECON_TEST_CERAMIC_ONE, and anvil from npm.
"""

from collections.abc import Iterator

import httpx
import pytest
from eth_account import Account
from nacl.signing import SigningKey
from support.dev_chain import CHAIN, CHAIN_ID, CONFIRMATIONS, DevChain, dev_chain
from support.waiting import wait_until

from benchmarks.ceramic_one_node import BINARY_VARIABLE, CeramicOneNode, binary_from_environment
from recon_node.ceramic import Event, EventKind, StreamId, parse_event
from recon_node.ceramic.builder import data_event, init_event, model_event
from recon_node.ipld import CID, multibase
from recon_node.testnet import TestnetNode

BINARY = binary_from_environment()
pytestmark = pytest.mark.skipif(
    BINARY is None, reason=f"{BINARY_VARIABLE} does not name a binary of ceramic-one"
)
NUMBER = 4713
LIMIT = 180.0
THEIR_KEY = bytes(range(2, 34))
OWNER = SigningKey(bytes([9]) * 32)
DEFINITION = {
    "name": "Note",
    "version": "2.0",
    "interface": False,
    "immutableFields": [],
    "implements": [],
    "schema": {"type": "object", "properties": {"n": {"type": "number"}}},
    "accountRelation": {"type": "list"},
}


@pytest.fixture(scope="module")
def chain() -> Iterator[DevChain]:
    with dev_chain() as running:
        running.call("anvil_setBalance", Account.from_key(THEIR_KEY).address, hex(10**20))
        yield running


def post(api_url: str, *events: Event) -> None:
    for event in events:
        body = {"data": multibase.encode(event.car)}
        answer = httpx.post(f"{api_url}/ceramic/events", json=body, timeout=60)
        assert answer.status_code == 204, answer.text


def feed(api_url: str) -> dict[CID, Event]:
    """The events of a node's own feed: those that it has validated and delivered."""
    url = f"{api_url}/ceramic/feed/events?limit=10000&includeData=full"
    page = httpx.get(url, timeout=60).json()
    events = [parse_event(multibase.decode(entry["data"])) for entry in page["events"]]
    return {event.cid: event for event in events}


def times_of(api_url: str, cid: CID) -> list[Event]:
    """The delivered time events of an event."""
    return [
        event
        for event in feed(api_url).values()
        if event.kind is EventKind.TIME and event.prevs == (cid,)
    ]


def streams(count: int, unique: bytes) -> tuple[Event, list[Event], list[CID]]:
    """A model, documents with a change each, and the tips."""
    model = model_event(OWNER, DEFINITION)
    events, tips = [], [model.cid]
    for number in range(count):
        init = init_event(
            OWNER, StreamId.parse(str(model.stream_id())), {"n": 0}, unique=unique + bytes([number])
        )
        patch = [{"op": "replace", "path": "/n", "value": number}]
        change = data_event(OWNER, init, [init.cid], patch)
        events += [init, change]
        tips.append(change.cid)
    return model, events, tips


def by_themselves(chain: DevChain, ours: TestnetNode) -> list[str]:
    return [
        *("--evm-rpc-url", chain.url, "--evm-private-key", THEIR_KEY.hex()),
        *("--evm-chain-id", str(CHAIN_ID), "--evm-contract-address", chain.contract),
        *("--evm-confirmations", str(CONFIRMATIONS)),
    ]


def by_our_service(chain: DevChain, ours: TestnetNode) -> list[str]:
    return [
        *("--experimental-features", "--additional-chain-rpc-urls", chain.url),
        *("--remote-anchor-service-url", ours.api_url, "--anchor-poll-interval", "2"),
    ]


@pytest.mark.parametrize(
    ("theirs_anchors", "count"),
    [(by_our_service, 0), (by_our_service, 3), (by_themselves, 0), (by_themselves, 3)],
)
def test_each_believes_the_other_s_times(chain, tmp_path, theirs_anchors, count):
    """Trees of one event, and of several; a ceramic-one node pays itself, or uses our service."""
    number = NUMBER + count
    shared = ["--network", f"local-{number}", "--sync-interval", "1"]
    flags = [*shared, *chain.flags(tmp_path, interval="3s"), "--anchor-serve"]
    ours = TestnetNode("ours", tmp_path, flags)
    model, events, tips = streams(count, b"ours")
    theirs = None
    try:
        ours.launch()
        ours.wait_until_ready()
        assert BINARY is not None
        anchoring = [*theirs_anchors(chain, ours), "--anchor-interval", "6"]
        theirs = CeramicOneNode(BINARY, tmp_path / "theirs", number, anchoring)
        theirs.start(ours.addresses)
        theirs.want([str(model.stream_id())])

        post(ours.api_url, model, *events)
        for tip in tips:
            wait_until(lambda tip=tip: times_of(theirs.api_url, tip) != [], limit=LIMIT)
            [time] = times_of(theirs.api_url, tip)
            assert time.proof.chain_id == CHAIN

        _, changes, last = streams(count + 1, b"theirs")
        post(theirs.api_url, *changes)
        for tip in last[1:]:
            wait_until(lambda tip=tip: times_of(ours.api_url, tip) != [], limit=LIMIT)
            url = f"{ours.api_url}/ceramic/anchors/events/{tip}"
            answer = httpx.get(url, timeout=60).json()
            assert (answer["state"], answer["chain_id"]) == ("anchored", CHAIN)
            assert answer["time"] is not None
    finally:
        ours.discard()
        if theirs is not None:
            theirs.kill()
