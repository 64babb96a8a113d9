"""The daemon as a process: a time event waits for its chain, and no restart asks again."""

from __future__ import annotations

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
from support.waiting import eventually, kept_port

from recon_node.ceramic import parse_event
from recon_node.cli import main
from recon_node.ipld import multibase
from recon_node.testnet import Testnet

SEPOLIA = "eip155:11155111"


@asynccontextmanager
async def running(directory: Path, *flags: str) -> AsyncIterator[Testnet]:
    net = Testnet(nodes=1, directory=directory, flags=flags)
    try:
        await trio.to_thread.run_sync(net.start)
        yield net
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(net.stop)


async def head_after(client: httpx.AsyncClient, url: str, position: int) -> int:
    """The feed's head, once it is beyond the position: by the API's long poll."""
    for _ in range(3):
        answer = await client.get(
            f"{url}/ceramic/feed/head", params={"after": position, "wait": 20}, timeout=60
        )
        head: int = answer.json()["head"]
        if head > position:
            return head
    raise AssertionError(f"the feed ends at {head}")


async def metrics_of(client: httpx.AsyncClient, url: str) -> set[str]:
    return set((await client.get(f"{url}/metrics")).text.splitlines())


async def test_a_time_event_waits_for_its_chain_and_is_asked_for_once(tmp_path: Path) -> None:
    recorded = ANSWERS["sepolia"]
    proof = parse_event(multibase.decode(recorded["cars"][2])).proof
    assert proof is not None
    chain = Chain(SEPOLIA)
    chain.mine(proof, recorded["timestamp"])
    with kept_port() as port:
        url = f"{SEPOLIA}=http://127.0.0.1:{port}/v3/{KEY}"
        flags = ("--chain-rpc", url, "--log-level", "debug", "--no-discovery")
        async with running(tmp_path, *flags) as net, httpx.AsyncClient() as client:
            [node] = net.nodes
            for car in recorded["cars"]:
                answer = await client.post(f"{node.api_url}/ceramic/events", json={"data": car})
                assert answer.status_code == 204, answer.text
            state = (await client.get(f"{node.api_url}/ceramic/recon")).json()
            assert (state["head"], state["pending"], state["pending_proofs"]) == (2, 1, 1)
            async with serving(chain, port):
                assert await head_after(client, node.api_url, 2) == 3
                expected = {  # the last lookup counts once the feed has its result
                    f'recon_anchor_lookups_total{{chain="{SEPOLIA}",outcome="anchored"}} 1.0',
                    f'recon_rpc_duration_seconds_count{{chain="{SEPOLIA}"}} 4.0',
                    "recon_pending_proofs 0.0",
                }
                with trio.fail_after(60):
                    while expected - await metrics_of(client, node.api_url):  # noqa: ASYNC110
                        await trio.sleep(0.02)

                node.kill()
                await trio.to_thread.run_sync(node.restart)
                await eventually(lambda: chain.count("eth_chainId") == 2)
                feed = await client.get(f"{node.api_url}/ceramic/feed/events")
                assert len(feed.json()["events"]) == 3
                assert await trio.to_thread.run_sync(node.stop) == 0
            assert chain.count("eth_getTransactionByHash") == 1
            log = node.log_path.read_text()
    assert "An RPC endpoint is failing" in log
    assert f"http://127.0.0.1:{port}" in log
    assert KEY not in log


async def test_an_endpoint_of_another_chain_is_one_line_and_the_end(tmp_path: Path) -> None:
    async with serving(Chain("eip155:5")) as url:
        args = ["run", "--network", "local-1", "--data-dir", str(tmp_path), "--no-discovery"]
        args += ["--api", "127.0.0.1:0", "--listen", "/ip4/127.0.0.1/tcp/0"]
        args += ["--chain-rpc", f"eip155:1={url}"]
        process = await trio.to_thread.run_sync(
            lambda: forking.run([sys.executable, "-m", "recon_node", *args], stderr=PIPE, text=True)
        )
    assert process.returncode == 1
    last = process.stderr.splitlines()[-1]
    host = url.partition("/v3")[0]
    assert last == (
        f"Error: the RPC endpoint {host} is set for eip155:1 but serves eip155:5: correct chain_rpc"
    )
    assert KEY not in process.stderr


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--chain-rpc", f"https://x.org/{KEY}"], "--chain-rpc: an entry should be CHAIN=URL"),
        (["--chain-rpc", f"solana:1=https://x.org/{KEY}"], "'solana:1' is not a supported chain"),
        (["--chain-rpc", f"eip155:1=ftp://x.org/{KEY}"], "eip155:1 (ftp://x.org) should start"),
        (["--chain-rpc", f"eip155:1=http://[{KEY}"], "the URL for eip155:1 is not valid"),
        (["--chain-rpc", f"eip155:1=http://x:port/{KEY}"], "the URL for eip155:1 is not valid"),
        (["--chain-confirmations", "0"], "'0' should be 'finalized' or a number of blocks"),
        (["--chain-confirmations", "soon"], "'soon' should be 'finalized' or a number of blocks"),
    ],
)
def test_bad_settings_name_the_fault_and_not_the_key(
    flags: list[str], words: str, tmp_path: Path
) -> None:
    result = CliRunner().invoke(main, ["run", "--data-dir", str(tmp_path), *flags])
    assert result.exit_code == 2
    assert words in result.stderr
    assert KEY not in result.output
    assert "Traceback" not in result.stderr
