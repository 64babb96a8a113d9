"""Anchoring on a real EVM chain: the contract, the key, kill -9, reorganisations."""

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml
from click.testing import CliRunner
from nacl.signing import SigningKey
from support import npm_packages
from support.dev_chain import ADDRESS, CHAIN, FOLDER, KEY, DevChain, dev_chain
from support.waiting import kept_port, post_events, recon, wait_until

from recon_node.anchoring import evm
from recon_node.anchoring.signer import load_signer
from recon_node.ceramic import Event, EventKind, StreamId, StreamType, parse_event
from recon_node.ceramic.builder import data_event, init_event
from recon_node.cli import main
from recon_node.client import Ceramic, Key, ModelDefinition
from recon_node.ipld import CID, DAG_CBOR, multibase
from recon_node.testnet import TestnetNode

MODEL = StreamId(StreamType.MODEL, CID.of(DAG_CBOR, b"model"))
COMPOSE = Path(__file__).parents[2] / "config" / "docker-compose.yml"
GAS = 23_214
"""What a call of the contract takes, as docs/how-to/anchors.md has it."""
ZERO_BYTE = 12
"""How much less it takes for each zero byte of the root."""
KILLS = 20
NETWORK = ("--network", "local-4712", "--sync-interval", "1")


@pytest.fixture(scope="module")
def chain() -> Iterator[DevChain]:
    with dev_chain() as running:
        yield running


def post(node: TestnetNode, *events: Event) -> None:
    """In one request: an event that later ones cover would get an anchor of its own before them."""
    post_events(node.api_url, [multibase.encode(event.car) for event in events])


def feed(node: TestnetNode) -> list[Event]:
    page = httpx.get(f"{node.api_url}/ceramic/feed/events?limit=10000&includeData=full", timeout=60)
    return [parse_event(multibase.decode(entry["data"])) for entry in page.json()["events"]]


def status(node: TestnetNode) -> dict:
    return dict(httpx.get(f"{node.api_url}/ceramic/anchors", timeout=60).json())


def is_settled(node: TestnetNode, events: int) -> bool:
    """Is everything anchored, and are all time events delivered?"""
    before, status_then, after = recon(node), status(node), recon(node)
    is_busy = status_then["requests"]["waiting"] + status_then["requests"]["in_tree"]
    is_whole = after["events"] == after["head"] == before["head"] > events
    return is_whole and not is_busy and status_then["position"] >= before["head"]


def check(node: TestnetNode, chain: DevChain, written: list[Event], before: int = 0) -> None:
    """One transaction a tree, one time event for each tip, and none for what is covered by it."""
    events = feed(node)
    anchored = Counter(event.prevs[0] for event in events if event.kind is EventKind.TIME)
    assert set(anchored.values()) == {1}
    covered = {prev for event in written for prev in event.prevs}
    assert {event.cid for event in written} - covered <= set(anchored)
    roots = {event.proof.root.digest.hex() for event in events if event.proof is not None}
    counts = Counter(chain.roots()[before:])
    assert counts == dict.fromkeys(roots, 1)


def test_the_bytecode_is_that_of_the_source() -> None:
    npm_packages.install(FOLDER)
    source = Path(evm.__file__).with_name("Anchors.sol")
    compiled = npm_packages.node(FOLDER, 60, "compile.mjs", str(source))
    assert compiled == evm.BYTECODE.hex()


def test_events_are_anchored_on_the_chain(chain: DevChain, tmp_path: Path) -> None:
    before = len(chain.roots())
    key = SigningKey(bytes([7]) * 32)
    init = init_event(key, MODEL, {"n": 0})
    left, right = (
        data_event(key, init, [init.cid], [{"op": "add", "path": f"/{n}", "value": 1}])
        for n in "ab"
    )
    anchoring = TestnetNode("anchoring", tmp_path, [*NETWORK, *chain.flags(tmp_path)])
    reading = TestnetNode("reading", tmp_path, [*NETWORK, *chain.reading()])
    try:
        anchoring.launch()
        anchoring.wait_until_ready()
        wait_until(lambda: status(anchoring)["balance_wei"] is not None)  # before the first tree
        reading.launch(["--bootstrap", anchoring.addresses[0]])
        reading.wait_until_ready()
        post(anchoring, init, left, right)
        wait_until(lambda: is_settled(anchoring, 3))
        check(anchoring, chain, [init, left, right], before)
        assert all(GAS - 32 * ZERO_BYTE <= gas <= GAS for gas in chain.gas_used())
        wait_until(lambda: len(feed(reading)) == len(feed(anchoring)))
        shown = status(anchoring)
        assert (shown["account"], shown["chain_id"], shown["alarm"]) == (ADDRESS, CHAIN, "")
        assert 0 < int(shown["spent_wei"]) < 10**16
        assert int(shown["balance_wei"]) < 10**20
        result = CliRunner().invoke(main, ["anchor", "status", "--url", anchoring.api_url])
        assert f"account    {ADDRESS}, balance 99.9" in result.output
        url = reading.api_url
        result = CliRunner().invoke(main, ["anchor", "verify", str(init.cid), "--url", url])
        assert "which covers it" in result.output
    finally:
        anchoring.discard()
        reading.discard()
    log = anchoring.log_path.read_text()
    assert KEY.hex() not in log
    assert "Sent a transaction" in log


@pytest.mark.long
def test_killed_again_and_again(chain: DevChain, tmp_path: Path, rng: random.Random) -> None:
    """With three reorganisations, and an endpoint that says nothing for a minute."""
    before = len(chain.roots())
    keys = [SigningKey(bytes([n]) * 32) for n in range(11, 14)]
    streams = [[init_event(key, MODEL, {}, unique=b"killed")] for key in keys]
    written = [stream[0] for stream in streams]
    node = TestnetNode("node", tmp_path, [*NETWORK, *chain.flags(tmp_path)])
    try:
        node.launch()
        node.wait_until_ready()
        post(node, *written)
        for number in range(KILLS):
            for _ in range(3):
                at = rng.randrange(len(streams))
                patch = [{"op": "add", "path": "/n", "value": rng.random()}]
                event = data_event(keys[at], streams[at][0], [streams[at][-1].cid], patch)
                streams[at].append(event)
                written.append(event)
                post(node, event)
            time.sleep(rng.random() * 4)  # any moment is as good as another
            node.kill()
            if number % (KILLS // 3) == 0:
                chain.reorganise(rng.randrange(1, 3))
            if number == KILLS // 2:
                with chain.silent():
                    node.restart()
                    time.sleep(60)
                continue
            node.restart()
        wait_until(lambda: is_settled(node, len(written)), limit=180)
        check(node, chain, written, before)
    finally:
        node.discard()


def test_a_contract_is_deployed_by_a_command(chain, tmp_path, monkeypatch):
    key = tmp_path / "my.key"
    runner = CliRunner()
    address = runner.invoke(main, ["anchor", "key", str(key)]).output.strip()
    assert key.stat().st_mode & 0o777 == 0o600
    assert load_signer(key, None).address == address
    again = runner.invoke(main, ["anchor", "key", str(key)])
    assert (again.exit_code, "exists" in again.output) == (1, True)
    for name, value in {
        "CHAIN_RPC": f"{CHAIN}={chain.url}",
        "ANCHOR_CHAIN": CHAIN,
        "ANCHOR_KEY_FILE": str(key),
    }.items():
        monkeypatch.setenv(f"RECON_NODE_{name}", value)
    args = ["anchor", "deploy", "--data-dir", str(tmp_path / "node"), "--json"]
    poor = runner.invoke(main, args)
    assert poor.exit_code == 1
    assert "nsufficient funds" in poor.output
    chain.call("anvil_setBalance", address, hex(10**18))
    result = runner.invoke(main, args)
    assert result.exit_code == 0, result.output
    code = chain.call("eth_getCode", json.loads(result.output)["contract"], "latest")
    assert evm.BYTECODE.hex().endswith(code[2:])
    balance = chain.call("eth_getBalance", address, "latest")
    assert runner.invoke(main, args).output == result.output  # as after an answer that was lost
    assert chain.call("eth_getBalance", address, "latest") == balance


def is_up(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/ceramic/liveness").is_success
    except httpx.HTTPError:
        time.sleep(0.2)
        return False


@pytest.mark.long
def test_the_compose_file_has_a_node_that_anchors(chain: DevChain, tmp_path: Path) -> None:
    """The command of its container, without the container."""
    service = yaml.safe_load(COMPOSE.read_text())["services"]["anchoring"]
    command = service["command"][0].replace("$$", "$").replace("/data/", f"{tmp_path}/")
    command = command.replace("http://chain:8545", chain.url)
    command, bootstrap, _ = command.partition(" --bootstrap")
    assert bootstrap
    with kept_port() as port, kept_port() as peers:
        settings = service["environment"] | {
            "RECON_NODE_CHAIN_RPC": f"{CHAIN}={chain.url}",
            "RECON_NODE_ANCHOR_KEY_FILE": str(tmp_path / "anchor.key"),
            "RECON_NODE_ANCHOR_INTERVAL": "1s",
            "RECON_NODE_CHAIN_CONFIRMATIONS": "3",
            "RECON_NODE_DATA_DIR": str(tmp_path),
            "RECON_NODE_API": f"127.0.0.1:{port}",
            "RECON_NODE_LISTEN": f"/ip4/127.0.0.1/tcp/{peers}",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        with subprocess.Popen(["bash", "-c", command], env={**os.environ, **settings}) as shell:
            try:
                with Ceramic(f"http://127.0.0.1:{port}", key=Key.generate()) as ceramic:
                    wait_until(lambda: is_up(port))
                    model = ceramic.create_model(ModelDefinition(name="Note", schema={}))
                    anchor = ceramic.wait_until_anchored(model.event, timeout=60)
                    assert (anchor.chain_id, anchor.tx_hash[:2]) == (CHAIN, "0x")
            finally:
                shell.terminate()
