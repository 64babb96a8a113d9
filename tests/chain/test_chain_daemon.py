"""The daemon as a process: a time event waits for its chain, and no restart looks it up again."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import PIPE

import httpx
import pytest
import trio
from chain_server import ANSWERS, KEY, Chain, serving
from click.testing import CliRunner
from support import forking
from support.waiting import eventually, kept_port, post_events, recon, wait_until
from trio.to_thread import run_sync

from recon_node.anchoring.signer import create_key
from recon_node.ceramic import parse_event
from recon_node.cli import main
from recon_node.ipld import multibase
from recon_node.testnet import Testnet, TestnetNode

SEPOLIA = "eip155:11155111"


@asynccontextmanager
async def running(directory: Path, *flags: str) -> AsyncIterator[Testnet]:
    net = Testnet(nodes=1, directory=directory, flags=flags)
    try:
        await run_sync(net.start)
        yield net
    finally:
        with trio.CancelScope(shield=True):
            await run_sync(net.stop)


def metrics_of(node: TestnetNode) -> set[str]:
    return set(httpx.get(f"{node.api_url}/metrics").text.splitlines())


async def test_a_time_event_waits_for_its_chain_and_is_looked_up_once(tmp_path: Path) -> None:
    """The events are those of a ceramic-one node, and the transaction is on Sepolia."""
    recorded = ANSWERS["sepolia"]
    proof = parse_event(multibase.decode(recorded["cars"][2])).proof
    assert proof is not None
    chain = Chain(SEPOLIA)
    chain.mine(proof, recorded["timestamp"], data=bytes.fromhex(recorded["input"][2:]))
    with kept_port() as port:
        url = f"{SEPOLIA}=http://127.0.0.1:{port}/v3/{KEY}"
        flags = ("--chain-rpc", url, "--log-level", "debug", "--no-discovery")
        async with running(tmp_path, *flags) as net:
            [node] = net.nodes
            await run_sync(post_events, node.api_url, recorded["cars"])
            state = await run_sync(recon, node)
            assert (state["head"], state["pending"], state["pending_proofs"]) == (2, 1, 1)
            async with serving(chain, port):
                await run_sync(wait_until, lambda: recon(node)["head"] == 3)
                expected = {  # the last lookup counts once the feed has its result
                    f'recon_anchor_lookups_total{{chain="{SEPOLIA}",outcome="anchored"}} 1.0',
                    f'recon_rpc_duration_seconds_count{{chain="{SEPOLIA}"}} 4.0',
                    "recon_pending_proofs 0.0",
                }
                await run_sync(wait_until, lambda: expected <= metrics_of(node))
                node.kill()
                await run_sync(node.restart)
                await eventually(lambda: chain.count("eth_chainId") == 2)
                assert (await run_sync(recon, node))["head"] == 3
                assert await run_sync(node.stop) == 0
            asked = [param for method, param in chain.asked if method == "eth_getTransactionByHash"]
            assert asked == [recorded["hash"]]
            log = node.log_path.read_text()
    assert "An RPC endpoint is failing" in log
    assert f"http://127.0.0.1:{port}" in log
    assert KEY not in log


async def test_an_endpoint_of_another_chain_is_one_line_and_the_end(tmp_path: Path) -> None:
    async with serving(Chain("eip155:5")) as url:
        args = ["run", "--network", "local-1", "--data-dir", str(tmp_path), "--no-discovery"]
        args += ["--api", "127.0.0.1:0", "--listen", "/ip4/127.0.0.1/tcp/0"]
        args += ["--chain-rpc", f"eip155:1={url}"]
        process = await run_sync(
            lambda: forking.run([sys.executable, "-m", "recon_node", *args], stderr=PIPE, text=True)
        )
    assert process.returncode == 1
    last = process.stderr.splitlines()[-1]
    host = url.partition("/v3")[0]
    assert last == (
        f"Error: the RPC endpoint {host} is set for eip155:1 but serves eip155:5: correct chain_rpc"
    )
    assert KEY not in process.stderr


async def test_no_contract_is_created_on_another_chain(tmp_path, monkeypatch) -> None:
    create_key(tmp_path / "key")
    monkeypatch.setenv("RECON_NODE_ANCHOR_CHAIN", "eip155:1")
    monkeypatch.setenv("RECON_NODE_ANCHOR_KEY_FILE", str(tmp_path / "key"))
    args = ["anchor", "deploy", "--data-dir", str(tmp_path / "node")]
    async with serving(Chain("eip155:5")) as url:
        monkeypatch.setenv("RECON_NODE_CHAIN_RPC", f"eip155:1={url}")
        result = await run_sync(CliRunner().invoke, main, args)
        assert (result.exit_code, "serves eip155:5: correct" in result.stderr) == (1, True)
        monkeypatch.setenv("ALL_PROXY", "ftp://127.0.0.1:9")
        result = await run_sync(CliRunner().invoke, main, args)
        assert (result.exit_code, "ALL_PROXY cannot be used" in result.stderr) == (1, True)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--chain-rpc", f"https://x.org/{KEY}"], "--chain-rpc: an entry should be CHAIN=URL"),
        (["--chain-confirmations", "0"], "'0' should be 'finalized' or a number of blocks"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named_without_the_key(flags, words, tmp_path):
    result = CliRunner().invoke(main, ["run", "--data-dir", str(tmp_path), *flags])
    assert result.exit_code == 2
    assert words in result.stderr
    assert KEY not in result.output
    assert "Traceback" not in result.stderr
