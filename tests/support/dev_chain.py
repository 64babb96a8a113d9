"""A development chain (anvil, from npm) with this project's anchor contract."""

import os
import platform
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
from eth_account import Account

from recon_node.anchoring.evm import deploy
from recon_node.anchoring.signer import Signer
from recon_node.chain import ChainReport, ChainSettings
from recon_node.chain.rpc import open_provider
from support import npm_packages
from support.waiting import kept_port, wait_until

FOLDER = Path(__file__).parent.parent / "dev_chain"
CHAIN_ID = 1337
CHAIN = f"eip155:{CHAIN_ID}"
KEY = bytes(range(1, 33))
ADDRESS = Account.from_key(KEY).address
CONFIRMATIONS = 3
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_RICH = 10**20
DID_ANCHOR = "0x37f9254ff1973d24d609016d6bb0aef8e6de91808811a546fad8eaa0e481d9d9"
"""The topic of the contract's event: keccak-256 of DidAnchor(address,bytes32)."""


class DevChain:
    """A running anvil."""

    def __init__(self, url: str, process: subprocess.Popen[bytes]) -> None:
        self.url = url
        self.process = process
        self.contract = ""

    def call(self, method: str, *params: object) -> Any:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": list(params)}
        answer = httpx.post(self.url, json=body, timeout=30).json()
        assert "error" not in answer, answer
        return answer["result"]

    def mine(self, blocks: int = 1) -> None:
        self.call("anvil_mine", hex(blocks))

    def reorganise(self, depth: int) -> None:
        """Replace the latest blocks by empty ones; their transactions are gone."""
        self.call("anvil_reorg", depth, [])

    def roots(self) -> list[str]:
        """The roots that were anchored, each as often as it was."""
        logs = self.call("eth_getLogs", {"fromBlock": "0x0", "topics": [DID_ANCHOR]})
        return [log["data"][2:] for log in logs]

    def gas_used(self) -> set[int]:
        """How much gas the calls that anchored took."""
        logs = self.call("eth_getLogs", {"fromBlock": "0x0", "topics": [DID_ANCHOR]})
        receipts = [self.call("eth_getTransactionReceipt", log["transactionHash"]) for log in logs]
        return {int(receipt["gasUsed"], 16) for receipt in receipts}

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Answer nothing for a while."""
        os.kill(self.process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.process.pid, signal.SIGCONT)

    def flags(self, directory: Path, *, interval: str = "1s") -> list[str]:
        """Flags of a node that anchors on it."""
        key = directory / "anchor.key"
        key.write_text(KEY.hex())
        key.chmod(0o600)
        return [
            *("--anchor", "evm", "--anchor-chain", CHAIN, "--anchor-contract", self.contract),
            *("--anchor-key-file", str(key), "--anchor-interval", interval),
            *self.reading(),
        ]

    def reading(self) -> list[str]:
        """Flags of a node that reads its anchors."""
        return ["--chain-rpc", f"{CHAIN}={self.url}", "--chain-confirmations", str(CONFIRMATIONS)]


@contextmanager
def dev_chain(block_time: float = 1) -> Iterator[DevChain]:
    """Run a chain; skip the test where npm, or a binary for this machine, is missing."""
    npm_packages.install(FOLDER)
    machine = _MACHINES.get(platform.machine(), platform.machine())
    binary = FOLDER / f"node_modules/@foundry-rs/anvil-linux-{machine}/bin/anvil"
    if not binary.exists():
        pytest.skip(f"npm has no anvil for {platform.system()} on {platform.machine()}")
    with kept_port() as port:
        command = [str(binary), "--port", str(port), "--chain-id", str(CHAIN_ID), "--silent"]
        command += ["--block-time", str(block_time)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            chain = DevChain(f"http://127.0.0.1:{port}", process)
            wait_until(partial(_answers, chain))
            chain.call("anvil_setBalance", ADDRESS, hex(_RICH))
            chain.contract = trio.run(_deploy, chain.url)
            yield chain
        finally:
            process.kill()
            process.communicate()


def _answers(chain: DevChain) -> bool:
    assert chain.process.poll() is None, "anvil did not start"
    try:
        return bool(chain.call("eth_chainId") == hex(CHAIN_ID))
    except httpx.HTTPError:
        time.sleep(0.1)
        return False


async def _deploy(url: str) -> str:
    settings = ChainSettings(providers={CHAIN: (url,)})
    async with open_provider(settings, ChainReport(CHAIN)) as provider:
        return await deploy(provider, Signer(Account.from_key(KEY)), 10**11)
