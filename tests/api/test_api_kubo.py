"""What ceramic-one has of kubo's API: answers as those recorded from a ceramic-one node (0.58)."""

import json
import platform
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
from api_samples import KEY, MODEL, Api, Events, admit, running, until
from support import vectors

from recon_node import __version__
from recon_node.api.routes import kubo
from recon_node.ceramic import parse_event
from recon_node.ceramic.builder import init_event
from recon_node.ipld import CID, car, dag_cbor, multibase

UNKNOWN = "bafyreihq6ky3nfhxfoqrhk4c5hyqgqdolkwdqnpxzbrkgxhq5n7zwmpxzy"
STRANGER = "12D3KooWMqCFj5bnwuNi6D6KLhYiK4C8Eh9xSUKv2E6Jozs4nWEE"


async def post(api: Api, path: str, **query: Any) -> httpx.Response:
    params = {name.replace("_", "-"): value for name, value in query.items()}
    return await api.post(f"/api/v0/{path}", params=params)


def blocks_of(event: dict[str, str]) -> dict[CID, bytes]:
    return dict(car.decode(multibase.decode(event["car"])).blocks)


def signed(events: Events) -> tuple[CID, CID, dict[str, Any]]:
    """The first signed event: the CIDs of its envelope and payload, and the payload."""
    for sdk_event in events:
        event = parse_event(multibase.decode(sdk_event["car"]))
        if event.envelope is not None:
            return event.cid, event.envelope.payload, event.payload
    raise AssertionError("no event is signed")


async def test_every_block_of_every_event_is_found(api: Api, filled: Events) -> None:
    blocks = {cid: block for event in filled for cid, block in blocks_of(event).items()}
    assert len(blocks) > len(filled)
    for cid, block in blocks.items():
        answer = await post(api, "block/get", arg=str(cid), offline="true")
        assert (answer.status_code, answer.content) == (200, block)
        stat = await post(api, "block/stat", arg=str(cid))
        assert stat.json() == {"Key": str(cid), "Size": len(block)}


async def test_paths_into_an_event(api: Api, filled: Events) -> None:
    """As ceramic-one does, `payload` of an envelope, which is bytes, is followed like a link."""
    envelope, payload, content = signed(filled)
    for path, cid, rest in (
        (f"{envelope}", envelope, ""),
        (f"/ipfs/{envelope}/", envelope, ""),
        (f"{envelope}/signatures/0/protected", envelope, "signatures/0/protected"),
        (f"{envelope}/payload", payload, ""),
        (f"{envelope}/payload/header/controllers/0", payload, "header/controllers/0"),
        (f"{payload}/header", payload, "header"),
    ):
        answer = await post(api, "dag/resolve", arg=path)
        assert answer.json() == {"Cid": {"/": str(cid)}, "RemPath": rest}
        pinned = await post(api, "pin/add", arg=path, recursive="false")
        assert pinned.json() == {"Pins": [str(cid)]}
    block = await post(api, "dag/get", arg=f"{envelope}/payload", output_codec="dag-cbor")
    assert dag_cbor.decode(block.content) == content
    assert block.headers["content-type"] == "application/octet-stream"
    block = await post(api, "dag/get", arg=f"{envelope}/payload/header/controllers")
    assert json.loads(block.content) == content["header"]["controllers"]
    block = await post(api, "dag/get", arg=str(envelope))
    assert list(json.loads(block.content)) == ["payload", "signatures"]
    assert set(json.loads(block.content)["payload"]["/"]) == {"bytes"}


ABSENT_HERE = "block was not found locally (offline)"
REFUSED = vectors.load("kubo_refusals", UNKNOWN=UNKNOWN, STRANGER=STRANGER)
REFUSED.append(["dag/get", {"arg": UNKNOWN + "/a" * 300}, 400, "more than 256 parts"])


async def test_requests_that_are_refused(api: Api, filled: Events) -> None:
    envelope, _, _ = signed(filled)
    nowhere = ("nope", "signatures/7", "signatures/x", "payload/data/0/0", "٣")
    lost = [
        ("dag/resolve", {"arg": f"{envelope}/{rest}"}, 500, "couldn't find part")
        for rest in nowhere
    ]
    for path, query, status, said in REFUSED + lost:
        answer = await post(api, path, **query)
        assert answer.status_code == status, (path, query)
        assert set(answer.json()) == {"Message", "Code", "Type"}
        assert said in answer.json()["Message"], (path, query)
        if said == ABSENT_HERE:
            assert answer.json() == {"Message": ABSENT_HERE, "Code": 0, "Type": "error"}
    assert set((await api.get("/api/v0/version")).json()) == {"Message", "Code", "Type"}


async def test_large_blocks_are_decoded_beside_the_event_loop(api, store, monkeypatch):
    """32 clients that asked for a path into 480 kB of lists held up all others for 50 s."""
    event = init_event(KEY, MODEL, {"n": [[0]] * 20_000}, unique=b"u")
    await admit(store, event)
    here = threading.get_ident()
    decoded: list[tuple[int, bool]] = []

    def decode(block: bytes) -> Any:
        decoded.append((len(block), threading.get_ident() == here))
        return dag_cbor.decode(block)

    own = SimpleNamespace(decode=decode, encode=dag_cbor.encode)
    monkeypatch.setattr(kubo, "dag_cbor", own)
    path = f"{event.cid}/payload/data/n/7/0"
    answer = await post(api, "dag/get", arg=path)
    assert (answer.status_code, answer.json()) == (200, 0)
    assert [(size > 16_384, is_here) for size, is_here in decoded] == [(False, True), (True, False)]
    monkeypatch.setattr(kubo, "MAX_WALKED", 40_000)
    answer = await post(api, "dag/resolve", arg=path)
    assert "the blocks on the path have more than 40000 bytes" in answer.text


async def test_a_node_without_a_network_side(api: Api) -> None:
    system = f"{platform.machine()}/{platform.system().lower()}"
    expected = {"Commit": "", "System": system, "Version": __version__}
    assert (await post(api, "version")).json() == expected
    assert (await post(api, "swarm/peers")).json() == {"Peers": []}
    assert (await post(api, "pin/rm", arg=UNKNOWN)).json() == {"Pins": [UNKNOWN]}


async def test_nodes_and_their_peers(tmp_path: Path) -> None:
    async with running(tmp_path / "a") as (api, p2p, _), running(tmp_path / "b") as (_, other, _):
        me = (await post(api, "id")).json()
        assert (me["ID"], me["Addresses"]) == (p2p.peer_id, p2p.addresses)
        assert "ceramic-one" in me["AgentVersion"]  # js-ceramic looks for it
        assert me["ProtocolVersion"] == "ipfs/0.1.0"
        assert {"/ipfs/ping/1.0.0", "/ceramic/recon/0.1.0/model"} <= set(me["Protocols"])
        assert (await post(api, "id", arg=p2p.peer_id)).json() == me

        [address] = other.addresses
        answer = await post(api, "swarm/connect", arg=address)
        assert answer.json() == {"Strings": [f"connect {other.peer_id} success"]}
        peers = {"Peers": [{"Addr": address, "Peer": other.peer_id}]}
        assert (await post(api, "swarm/peers")).json() == peers
        await until(api, "peers", lambda answer: answer["peers"])
        they = (await post(api, "id", arg=other.peer_id)).json()
        assert (they["ID"], they["Addresses"]) == (other.peer_id, [address])
        assert they["AgentVersion"] == f"recon-node/{__version__}"
        assert set(they["Protocols"]) == set(me["Protocols"])


async def test_peers_that_cannot_be_asked_or_reached(tmp_path: Path) -> None:
    async with running(tmp_path / "a") as (api, p2p, _):
        for path, query, status, said in (
            ("id", STRANGER, 500, "not connected"),
            ("id", "foo0", 400, "is not a peer id"),
            ("id", "foo", 400, "is not a peer id"),
            ("id", "", 400, "is not a peer id"),
            ("swarm/connect", "/ip4/127.0.0.1/tcp/1", 400, "no peer id"),
            ("swarm/connect", [f"/p2p/{STRANGER}", f"/p2p/{p2p.peer_id}"], 400, "several peers"),
            ("swarm/connect", f"/ip4/127.0.0.1/tcp/1/p2p/{STRANGER}", 500, "cannot connect"),
            ("swarm/connect", "/ip4/127.0.0.1/tcp/1/p2p/0", 400, "is not a peer id"),
        ):
            answer = await post(api, path, arg=query)
            assert (answer.status_code, said in answer.json()["Message"]) == (status, True), said
