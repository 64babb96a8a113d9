"""Three nodes of one kind that anchor what the first of them got: ours, or ceramic-one's.

Ours are asked by HTTP how far they are. A ceramic-one node is read instead: its log says when it
has made the time events of a tree, and its SQLite file what it has delivered. So asking costs it
nothing that counts. It anchors from a start on that has the flags for it, at whole multiples of the
interval: the first node is started again once all have the events.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import httpx
import trio
from eth_account import Account

from benchmarks.ceramic_one import WRITERS, Node
from benchmarks.ceramic_one_node import CeramicOneNode
from recon_node.anchoring.evm import deploy
from recon_node.anchoring.signer import Signer
from recon_node.ceramic import StreamId
from recon_node.chain import ChainReport, ChainSettings
from recon_node.chain.rpc import open_provider
from recon_node.testnet import TestnetNode

LIMIT: Final = 7200.0
"""Seconds that a stage may take."""
NETWORK_ID: Final = 77
CONFIRMATIONS: Final = 3
_POSTED: Final = 1000
"""Events in one request; a ceramic-one node takes one at a time."""
_TICK: Final = 12
"""Seconds between two looks of a ceramic-one node for what is to be anchored."""
_RICH: Final = 10**20
_DEPLOYING_MAX_FEE: Final = 10**11


class DevelopmentChain:
    """A development chain (anvil) with a contract of its own, and an account with coins.

    Args:
        url: of its JSON-RPC endpoint.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.key = bytes(range(1, 33))
        self.number = int(self._call("eth_chainId"), 16)
        self.name = f"eip155:{self.number}"
        self._account = Account.from_key(self.key)
        self._call("anvil_setBalance", self._account.address, hex(_RICH))
        self.contract: str = trio.run(self._deploy)

    def transactions(self) -> int:
        """Return how many transactions the account has sent."""
        return int(self._call("eth_getTransactionCount", self._account.address, "latest"), 16)

    async def _deploy(self) -> str:
        settings = ChainSettings(providers={self.name: (self.url,)})
        async with open_provider(settings, ChainReport(self.name)) as provider:
            return await deploy(provider, Signer(self._account), _DEPLOYING_MAX_FEE)

    def _call(self, method: str, *params: object) -> Any:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": list(params)}
        return httpx.post(self.url, json=body, timeout=30).raise_for_status().json()["result"]


class Contestant(Protocol):
    """Three nodes; the first one is written to, and anchors."""

    name: str

    @property
    def nodes(self) -> Sequence[Node]: ...

    def write(self, events: Sequence[str]) -> None:
        """Post events, as multibase text, to the first node."""

    def have_delivered(self, count: int) -> bool:
        """Whether all nodes have delivered so many events."""

    def anchor(self, count: int) -> None:
        """Have the first node anchor the events that it was written, so many, in one tree."""

    def is_anchored(self) -> bool:
        """Whether the tree's transaction counts."""

    def has_made(self, count: int) -> bool:
        """Whether the first node has admitted so many time events of the tree."""

    def close(self) -> None:
        """Kill the nodes."""


def post_all(posts: Sequence[Callable[[httpx.Client], httpx.Response]], url: str) -> None:
    """Send requests by several clients at once."""

    def send(part: Sequence[Callable[[httpx.Client], httpx.Response]]) -> None:
        with httpx.Client(base_url=url, timeout=LIMIT) as client:
            for post in part:
                post(client).raise_for_status()

    with ThreadPoolExecutor(WRITERS) as threads:
        list(threads.map(send, (posts[first::WRITERS] for first in range(WRITERS))))


class Ours:
    """Nodes of this project's.

    Args:
        directory: for their data.
        chain: None for the development clock.
    """

    name = "recon-node"

    def __init__(self, directory: Path, chain: DevelopmentChain | None) -> None:
        shared = ["--network", f"local-{NETWORK_ID}", "--sync-interval", "2"]
        shared += ["--development-time"] if chain is None else _reading(chain)
        self.nodes = [TestnetNode(f"ours-{n}", directory, shared) for n in (1, 2, 3)]
        anchoring = ["--anchor", "development"] if chain is None else _anchoring(chain, directory)
        self.nodes[0].launch([*anchoring, "--anchor-interval", "1d"])
        self.nodes[0].wait_until_ready()
        for node in self.nodes[1:]:
            node.launch(["--bootstrap", self.nodes[0].addresses[0]])
        for node in self.nodes[1:]:
            node.wait_until_ready()

    def write(self, events: Sequence[str]) -> None:
        """See `Contestant`."""
        headers = {"content-type": "application/x-ndjson"}
        lines = [b'{"data": "%s"}\n' % event.encode() for event in events]
        bodies = [b"".join(lines[at : at + _POSTED]) for at in range(0, len(lines), _POSTED)]
        posts = [
            partial(httpx.Client.post, url="/ceramic/events", content=body, headers=headers)
            for body in bodies
        ]
        post_all(posts, self.nodes[0].api_url)

    def have_delivered(self, count: int) -> bool:
        """See `Contestant`."""
        return all(
            httpx.get(f"{node.api_url}/ceramic/recon", timeout=LIMIT).json()["head"] == count
            for node in self.nodes
        )

    def anchor(self, count: int) -> None:
        """See `Contestant`."""
        while self._anchors()["requests"]["waiting"] < count:
            time.sleep(0.2)
        httpx.post(f"{self.nodes[0].api_url}/ceramic/anchors/now").raise_for_status()

    def is_anchored(self) -> bool:
        """See `Contestant`."""
        latest = self._anchors()["latest"]
        return bool(latest) and latest[0]["tx_hash"] is not None

    def has_made(self, count: int) -> bool:
        """See `Contestant`."""
        [tree] = self._anchors()["latest"]
        return bool(tree["is_done"]) and tree["leaves"] == count

    def _anchors(self) -> dict[str, Any]:
        url = f"{self.nodes[0].api_url}/ceramic/anchors"
        return dict(httpx.get(url, timeout=LIMIT).raise_for_status().json())

    def close(self) -> None:
        """See `Contestant`."""
        for node in self.nodes:
            node.kill()


def _reading(chain: DevelopmentChain) -> list[str]:
    rpc = f"{chain.name}={chain.url}"
    return ["--chain-rpc", rpc, "--chain-confirmations", str(CONFIRMATIONS)]


def _anchoring(chain: DevelopmentChain, directory: Path) -> list[str]:
    key = directory / "anchor.key"
    key.touch(0o600)
    key.write_text(chain.key.hex())
    flags = ["--anchor", "evm", "--anchor-chain", chain.name]
    return [*flags, "--anchor-contract", chain.contract, "--anchor-key-file", str(key)]


class Theirs:
    """ceramic-one nodes.

    Args:
        directory: for their data.
        chain: on which they anchor.
        binary: of ceramic-one.
        model: of the events.
    """

    name = "ceramic-one"

    def __init__(
        self, directory: Path, chain: DevelopmentChain, binary: str, model: StreamId
    ) -> None:
        self._chain = chain
        reading = ["--additional-chain-rpc-urls", chain.url]
        self.nodes = [
            CeramicOneNode(binary, directory / f"theirs-{n}", NETWORK_ID, reading)
            for n in (1, 2, 3)
        ]
        for node in self.nodes:
            node.start([self.nodes[0].address] if node is not self.nodes[0] else [])
            node.want([str(model)])

    def write(self, events: Sequence[str]) -> None:
        """See `Contestant`."""
        posts = [
            partial(httpx.Client.post, url="/ceramic/events", json={"data": event})
            for event in events
        ]
        post_all(posts, self.nodes[0].api_url)

    def have_delivered(self, count: int) -> bool:
        """See `Contestant`."""
        return all(_stored(node).delivered == count for node in self.nodes)

    def anchor(self, count: int) -> None:
        """See `Contestant`."""
        chain, first = self._chain, self.nodes[0]
        first.stop()
        flags = ["--evm-rpc-url", chain.url, "--evm-private-key", chain.key.hex()]
        flags += ["--evm-chain-id", str(chain.number), "--evm-contract-address", chain.contract]
        flags += ["--evm-confirmations", str(CONFIRMATIONS), "--anchor-interval", str(_TICK)]
        first.start(flags=flags)

    def is_anchored(self) -> bool:
        """See `Contestant`."""
        return "store anchor batch" in self.nodes[0].log_path.read_text(errors="replace")

    def has_made(self, count: int) -> bool:
        """See `Contestant`."""
        return _stored(self.nodes[0]).time_events == count

    def close(self) -> None:
        """See `Contestant`."""
        for node in self.nodes:
            node.kill()


@dataclass(frozen=True, slots=True)
class _Stored:
    """How many events of a kind a ceramic-one node has."""

    delivered: int
    time_events: int


def _stored(node: CeramicOneNode) -> _Stored:
    sql = "SELECT count(delivered), count(*) FILTER (WHERE is_time_event) FROM ceramic_one_event"
    database = sqlite3.connect(f"file:{node.database}?mode=ro", uri=True, timeout=60)
    try:
        return _Stored(*database.execute(sql).fetchone())
    finally:
        database.close()
