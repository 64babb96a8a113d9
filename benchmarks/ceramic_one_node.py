"""Real ceramic-one nodes: processes of a binary, and what a node says it holds on the model ring.

For the benchmark against real nodes and for the tests of tests/interop. The binary is built by
whoever runs them, from the public source of ceramicnetwork/rust-ceramic.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import httpx
import trio
from libp2p.crypto.ed25519 import create_new_key_pair

from recon_node.ceramic.heightless_event_id import network_range
from recon_node.ceramic.network import Network
from recon_node.p2p.errors import P2PError
from recon_node.p2p.settings import P2PSettings
from recon_node.p2p.sync.rings import MODEL_RING
from recon_node.p2p.transport.framing import PeerStream
from recon_node.p2p.transport.host import open_host
from recon_node.recon.keys.ordered_keys import KeyRange, Summary
from recon_node.recon.keys.sha256a import ZERO, Sha256a
from recon_node.recon.ring.ring_codec import (
    Decoder,
    Finished,
    InterestRequest,
    InterestResponse,
    KeyForm,
    Message,
    RangeHash,
    RangeRequest,
    RangeResponse,
    encode,
)

BINARY_VARIABLE: Final = "RECON_TEST_CERAMIC_ONE"
"""The environment variable that names the binary."""
START_LIMIT: Final = 60.0
"""Seconds that a node may take to start."""
STOP_LIMIT: Final = 15.0
"""Seconds that a node may take to stop."""
ANSWER_LIMIT: Final = 60.0
"""Seconds that a node may take to say what it holds."""
TRIES: Final = 5
"""How often a node is asked before that is given up."""
METAMODEL_VALUE: Final = "kh4q0ozorrgaq2mezktnrmdwleo1d"
"""Under which ceramic-one registers an interest in models."""
_WRONG: Final = Summary(Sha256a.of(b"a key that nobody holds"), 2**32)
"""A summary that differs from every set's, so that a node answers with its own."""


class CeramicOneNode:
    """A ceramic-one node on loopback. Started again, it keeps its data, ports and identity.

    Args:
        binary: of ceramic-one.
        directory: for its data and its log; made if it does not exist.
        network_id: of the local network.
        flags: more flags of its command.
    """

    def __init__(
        self, binary: str, directory: Path, network_id: int, flags: Sequence[str] = ()
    ) -> None:
        self.name = directory.name
        self.log_path = directory / "log"
        self._ports = _free_ports(4)
        self._process: subprocess.Popen[bytes] | None = None
        self._peer_id = ""
        folders = {name: directory / name for name in ("store", "keys", "objects")}
        for folder in folders.values():
            folder.mkdir(parents=True, exist_ok=True)
        self.database = folders["store"] / "db.sqlite3"
        swarm, api, flight, metrics = self._ports
        self._command = [binary, "daemon", "--network", "local"]
        self._command += ["--local-network-id", str(network_id)]
        self._command += ["--store-dir", str(folders["store"])]
        self._command += ["--p2p-key-dir", str(folders["keys"])]
        self._command += ["--object-store-url", f"file://{folders['objects']}"]
        self._command += ["--swarm-addresses", f"/ip4/127.0.0.1/tcp/{swarm}"]
        self._command += ["--bind-address", f"127.0.0.1:{api}"]
        self._command += ["--flight-sql-bind-address", f"127.0.0.1:{flight}"]
        self._command += ["--metrics-bind-address", f"127.0.0.1:{metrics}", *flags]
        self.api_url = f"http://127.0.0.1:{api}"

    @property
    def address(self) -> str:
        """Its multiaddr, with its peer ID; known once it is ready."""
        return f"/ip4/127.0.0.1/tcp/{self._ports[0]}/p2p/{self._peer_id}"

    @property
    def pid(self) -> int:
        """Its process ID; 0 if it was never started."""
        return 0 if self._process is None else self._process.pid

    def start(self, peers: Sequence[str] = (), flags: Sequence[str] = ()) -> None:
        """Start it, keeping connections to some peers, and wait until it answers.

        Args:
            peers: their multiaddrs.
            flags: more flags, from this start on.

        Raises:
            RuntimeError: it does not start in time.
        """
        for peer in peers:
            self._command += ["--extra-ceramic-peer-addresses", peer]
        self._command += flags
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        deadline = time.monotonic() + START_LIMIT
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                identity = httpx.post(f"{self.api_url}/api/v0/id", timeout=5.0)
                self._peer_id = identity.raise_for_status().json()["ID"]
                return
            except httpx.HTTPError:
                time.sleep(0.05)
        self.kill()
        tail = self.log_path.read_text(errors="replace")[-2000:]
        raise RuntimeError(f"{self.name} did not start:\n{tail}")

    def stop(self) -> None:
        """Ask it to stop, and wait; kill it if it takes too long."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it (SIGKILL): it cannot clean up."""
        self._end(signal.SIGKILL)

    def want(self, models: Sequence[str]) -> None:
        """Register interests over HTTP: in the models themselves and in their documents."""
        for sort_value in (METAMODEL_VALUE, *models):
            url = f"{self.api_url}/ceramic/interests/model/{sort_value}"
            httpx.post(url, timeout=ANSWER_LIMIT).raise_for_status()

    def _end(self, by: signal.Signals) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(by)
        try:
            self._process.wait(STOP_LIMIT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def binary_from_environment() -> str | None:
    """Return the path of the binary that the environment names; None if it names none."""
    return os.environ.get(BINARY_VARIABLE) or None


def holdings(address: str, network: Network) -> Summary:
    """Ask a running node of either kind for the hash and number of its keys on the model ring.

    It is asked as a peer asks: for every range that it is interested in, with a summary that cannot
    be its own. The answer is the range in parts, whose hashes add up.

    Args:
        address: a multiaddr with the peer ID.
        network: of the node.

    Raises:
        P2PError: the node cannot be reached, or does not speak the model ring.
        trio.TooSlowError: it does not answer in time.
    """
    for _ in range(TRIES - 1):
        with suppress(P2PError, trio.TooSlowError):  # it may be busy, or starting
            return trio.run(_ask_for_holdings, address, network)
    return trio.run(_ask_for_holdings, address, network)


async def _ask_for_holdings(address: str, network: Network) -> Summary:
    settings = replace(P2PSettings(), listen=("/ip4/127.0.0.1/tcp/0",))
    with trio.fail_after(ANSWER_LIMIT):
        async with open_host(settings, create_new_key_pair()) as host:
            peer = await host.connect(address)
            stream = await host.open_stream(peer, MODEL_RING)
            summary = await _sum_up(stream, KeyRange(*network_range(network)))
            await stream.aclose()
            return summary


async def _sum_up(stream: PeerStream, everything: KeyRange) -> Summary:
    decoder = Decoder(KeyForm.BYTES, from_initiator=False)

    async def send(message: Message) -> None:
        await stream.send_all(encode(message, KeyForm.BYTES, "a question"))

    await send(InterestRequest((everything,)))
    total, left = Summary(ZERO, 0), 1
    while left:
        for message in decoder.feed(await stream.receive_some(64 * 1024)):
            left -= 1
            if isinstance(message, InterestResponse):
                left += len(message.interests)
                for first, last in message.interests:
                    await send(RangeRequest(RangeHash(first, _WRONG, last)))
            elif isinstance(message, RangeResponse):
                for part in message.ranges:
                    total = Summary(
                        total.hash + part.summary.hash, total.count + part.summary.count
                    )
            else:
                raise RuntimeError(f"{type(message).__name__} in answer to a question")
    await send(Finished())
    return total


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for listener in sockets:
            listener.bind(("127.0.0.1", 0))
        return [listener.getsockname()[1] for listener in sockets]
    finally:
        for listener in sockets:
            listener.close()
