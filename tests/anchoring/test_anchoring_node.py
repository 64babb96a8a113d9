"""A node that anchors by the development clock, as its users see it: HTTP, commands, clients."""

import base64
import hashlib
import json
from collections.abc import Iterator

import httpx
import pytest
import trio
from click.testing import CliRunner
from nacl.signing import SigningKey
from support.waiting import anchoring_pair, wait_until

from recon_node.api.errors import ApiError
from recon_node.api.routes.products import anchor_service
from recon_node.ceramic import StreamId, StreamType, parse_event
from recon_node.ceramic.auth.did import controller_of
from recon_node.cli import main
from recon_node.client import AsyncCeramic, Ceramic, Key, ModelDefinition
from recon_node.ipld import CID, DAG_CBOR, car, dag_cbor
from recon_node.testnet import TestnetNode

CLIENT = SigningKey(bytes(range(32)))
STREAM = StreamId(StreamType.MODEL, CID.of(DAG_CBOR, b"a node's stream"))


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[TestnetNode]]:
    """Two nodes; the first anchors, for one other node as well."""
    directory = tmp_path_factory.mktemp("anchoring")
    config = directory / "anchoring.toml"
    config.write_text(f'anchor_clients = ["{controller_of(CLIENT)}"]\n')
    flags = ("--anchor-serve", "--config", str(config))
    with anchoring_pair(directory, ("--network", "local-4711"), *flags) as pair:
        yield pair


def command(node: TestnetNode, *args: str) -> str:
    result = CliRunner().invoke(main, [*args, "--url", node.api_url])
    assert result.exit_code == 0, result.output
    return result.output


def test_a_document_is_anchored_at_every_node(nodes: list[TestnetNode]) -> None:
    with Ceramic(nodes[0].api_url, key=Key.generate()) as ceramic:
        model = ceramic.create_model(
            ModelDefinition(name="Note", schema={"properties": {"n": {"type": "number"}}})
        )
        note = ceramic.create(model.id, {"n": 1})
        note = ceramic.update(note.id, {"n": 2})
        anchored = ceramic.wait_until_anchored(note.event, timeout=60)
        assert anchored.state == "anchored"
        assert anchored.chain_id == "local:clock"
        earlier = ceramic.wait_until_anchored(note.id.cid, timeout=60)
        assert (earlier.time or 0) <= (anchored.time or 0)
        assert ceramic.request_anchor(note.id) == note.event
    with Ceramic(nodes[1].api_url) as other:
        wait_until(lambda: note.event in {e.cid for e in other.events(note.id)})
        assert other.wait_until_anchored(note.event, timeout=60) == anchored
        tip = other.read(note.id).event  # the time event itself
        assert tip == anchored.time_event
        assert other.wait_until_anchored(tip, timeout=60) == anchored
    output = command(nodes[0], "anchor", "verify", str(note.event))
    assert "was anchored 20" in output
    assert str(anchored.time_event) in output
    assert "is anchored" not in output
    assert "anchored 20" in command(nodes[0], "stream", "anchor", str(note.id), "--wait")
    status = command(nodes[0], "anchor", "status")
    assert "Anchoring on local:clock" in status
    assert str(note.event) in command(nodes[0], "anchor", "requests", "--state", "anchored")
    command(nodes[0], "anchor", "now")
    assert "does not anchor" in command(nodes[1], "anchor", "status")
    metrics = httpx.get(f"{nodes[0].api_url}/metrics").text
    assert "recon_anchoring_trees" in metrics
    assert "recon_anchoring_alarm 0.0" in metrics
    assert httpx.get(f"{nodes[0].api_url}/ceramic/recon").json()["anchoring_alarm"] == ""


async def test_the_asynchronous_client_waits_too(nodes: list[TestnetNode]) -> None:
    async with AsyncCeramic(nodes[0].api_url, key=Key.generate()) as ceramic:
        model = await ceramic.create_model(ModelDefinition(name="Other", schema={}))
        with trio.fail_after(60):
            anchored = await ceramic.wait_until_anchored(model.event)
    assert anchored.time is not None


def jwt(key: SigningKey, body: bytes) -> str:
    """As ceramic-one makes it (anchor-remote, cas_remote.rs)."""

    def encode(value: bytes) -> str:
        return base64.urlsafe_b64encode(value).decode().rstrip("=")

    did = controller_of(key)
    header = {"kid": f"{did}#{did.removeprefix('did:key:')}", "alg": "EdDSA", "typ": "JWT"}
    digest = "0x" + hashlib.sha256(body).hexdigest()
    claims = {"digest": digest, "nonce": "1", "url": "http://node/api/v0/requests"}
    message = f"{encode(json.dumps(header).encode())}.{encode(json.dumps(claims).encode())}"
    return f"Bearer {message}.{encode(key.sign(message.encode()).signature)}"


def test_another_node_gets_the_proof_of_its_root(nodes: list[TestnetNode]) -> None:
    """As ceramic-one asks (anchor-remote): with the root of its own tree, again and again."""
    root = CID.of(DAG_CBOR, b"a root")
    fields = {"streamId": str(STREAM), "cid": str(root), "timestamp": "2026-01-01T00:00:00Z"}
    body = json.dumps(fields).encode()
    url = f"{nodes[0].api_url}/api/v0/requests"
    headers = {"authorization": jwt(CLIENT, body), "content-type": "application/json"}
    answer = httpx.post(url, content=body, headers=headers)
    assert (answer.status_code, answer.json()["status"]) == (201, "PENDING")
    assert answer.json()["streamId"] == str(STREAM)
    wait_until(
        lambda: httpx.post(url, content=body, headers=headers).json()["status"] == "COMPLETED"
    )
    answer = httpx.get(f"{url}/{root}")
    text = answer.json()["witnessCar"]
    assert "=" not in text
    event = parse_event(base64.b64decode(text + "=" * (-len(text) % 4)))
    assert (event.init, event.prevs) == (STREAM.cid, (root,))
    assert answer.json()["anchorCommit"] == {"cid": str(event.cid)}
    chains = httpx.get(f"{nodes[0].api_url}/api/v0/service-info/supported_chains")
    assert chains.json() == {"supportedChains": ["local:clock"]}


def test_a_request_may_be_a_car(nodes: list[TestnetNode]) -> None:
    """As js-ceramic made them (anchor-request-params-parser.ts, V2)."""
    tip = CID.of(DAG_CBOR, b"a tip")
    block = dag_cbor.encode({"streamId": STREAM.to_bytes(), "tip": tip, "timestamp": "2026"})
    body = car.encode([CID.of(DAG_CBOR, block)], {CID.of(DAG_CBOR, block): block})
    headers = {"authorization": jwt(CLIENT, body), "content-type": "application/vnd.ipld.car"}
    answer = httpx.post(f"{nodes[0].api_url}/api/v0/requests", content=body, headers=headers)
    assert (answer.status_code, answer.json()["cid"]) == (201, str(tip))
    headers["authorization"] = jwt(CLIENT, body[:-1])
    answer = httpx.post(f"{nodes[0].api_url}/api/v0/requests", content=body, headers=headers)
    assert answer.status_code == 401


def test_a_request_of_empty_lists_is_not_decoded() -> None:
    """4 MB of them held the node for seconds."""
    block = b"\x9a" + (1_000_000).to_bytes(4, "big") + b"\x80" * 1_000_000
    cid = CID.of(DAG_CBOR, block)
    with pytest.raises(ApiError, match="its root has more than"):
        anchor_service._read_car(car.encode([cid], {cid: block}))


def test_strangers_and_forgers_are_refused(nodes: list[TestnetNode]) -> None:
    body = b'{"streamId": "k", "cid": "b"}'
    token = jwt(CLIENT, body)
    forged = token[:-4] + ("AAAA" if token[-4:] != "AAAA" else "BBBB")
    for authorization, words in (
        ("", "must be signed"),
        (jwt(SigningKey(bytes(32)), body), "not among anchor_clients"),
        (forged, "not signed by"),
    ):
        headers = {"authorization": authorization} if authorization else {}
        answer = httpx.post(f"{nodes[0].api_url}/api/v0/requests", content=body, headers=headers)
        assert answer.status_code == 401
        assert words in answer.json()["error"]


@pytest.mark.parametrize(("name", "status"), [("x", 400), (str(STREAM.cid), 404)])
def test_unknown_requests(nodes: list[TestnetNode], name: str, status: int) -> None:
    answer = httpx.get(f"{nodes[0].api_url}/api/v0/requests/{name}")
    assert answer.status_code == status
    assert answer.json()["error"]


def test_a_node_that_does_not_anchor_says_so(nodes: list[TestnetNode]) -> None:
    answer = httpx.post(f"{nodes[1].api_url}/ceramic/anchors/now")
    assert answer.status_code == 409
    assert "the setting `anchor`" in answer.json()["message"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--network", "testnet-clay", "--development-time"), "local networks only"),
        (("--network", "local-1", "--anchor", "development"), "needs development_time"),
        (("--network", "local-1", "--anchor", "evm"), "needs the setting anchor_chain"),
    ],
)
def test_settings_that_cannot_be_used_are_one_line(tmp_path, flags, words):
    args = ["run", "--data-dir", str(tmp_path), "--api", "127.0.0.1:0", "--no-discovery"]
    result = CliRunner().invoke(main, [*args, "--listen", "/ip4/127.0.0.1/tcp/0", *flags])
    assert result.exit_code == 1
    assert words in result.stderr
    assert "Traceback" not in result.stderr
