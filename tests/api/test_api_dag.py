"""GET /ceramic/dag/...: what is here, as JSON and as CAR; every answer is held to the document."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from nacl.signing import SigningKey
from openapi_check import check_answer

from recon_node.api import Services, create_app
from recon_node.ceramic.auth.did import ed25519_did
from recon_node.dag.dag_events import DAG_MODEL, Identifier, replica_event, shard_event
from recon_node.dag.dag_index import FILE
from recon_node.dag.dag_service import open_dags
from recon_node.dag.dag_source import open_source
from recon_node.dag.protocol.publishing import make_publish
from recon_node.dag.protocol.shards import appends, split, walk
from recon_node.ipld import CID, DAG_CBOR, RAW, car, dag_cbor, multibase
from recon_node.store import Store

KEY = SigningKey(bytes([5]) * 32)
LEAF = CID.of(RAW, b"leaf")
ROOT_BLOCK = dag_cbor.encode([LEAF])
ROOT = CID.of(DAG_CBOR, ROOT_BLOCK)
BLOCKS = {ROOT: ROOT_BLOCK, LEAF: b"leaf"}


@pytest.fixture
async def dag_api(store: Store, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with open_dags(store, tmp_path / "node") as dags:
        services = replace(Services(store=store), dags=dags)
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(create_app(services)),
            base_url="http://node",
            event_hooks={"response": [check_answer]},
        ) as client:
            yield client


async def post(api: httpx.AsyncClient, data: bytes) -> None:
    answer = await api.post("/ceramic/events", json={"data": multibase.encode(data)})
    assert answer.status_code == 204, answer.text


async def test_a_dag_that_is_sent_as_events_is_read_as_a_car(dag_api: httpx.AsyncClient) -> None:
    state = (await dag_api.get(f"/ceramic/dag/{ROOT}")).json()
    assert (state["complete"], state["missing_blocks"]) == (
        False,
        {"count": 1, "first": [str(ROOT)]},
    )
    refused = await dag_api.get(f"/ceramic/dag/{ROOT}.car")
    assert refused.status_code == 404
    assert str(ROOT) in refused.json()["message"]

    [shard] = split(ROOT, walk(ROOT, BLOCKS.__getitem__), 10_000)
    [replica] = appends([shard.cid])
    await post(dag_api, shard_event(KEY, ROOT, shard.car).car)
    await post(dag_api, replica_event(KEY, ROOT, replica.block).car)
    state = (await dag_api.get(f"/ceramic/dag/{ROOT}")).json()
    assert (state["complete"], state["blocks"], state["bytes"]) == (True, 2, len(ROOT_BLOCK) + 4)
    assert (state["shards"], state["heads"]) == ([str(shard.cid)], [str(replica.cid)])
    assert multibase.decode(state["head"]["data"]) == replica.block
    answer = await dag_api.get(f"/ceramic/dag/{ROOT}.car")
    assert answer.headers["content-type"] == "application/vnd.ipld.car"
    assert answer.content == car.encode([ROOT], BLOCKS)


async def test_a_shard_is_a_stream_like_any_other(dag_api: httpx.AsyncClient) -> None:
    [shard] = split(ROOT, walk(ROOT, BLOCKS.__getitem__), 10_000)
    event = shard_event(KEY, ROOT, shard.car)
    await post(dag_api, event.car)
    state = (await dag_api.get(f"/ceramic/streams/{event.stream_id()}")).json()
    assert state["event_cid"] == str(event.cid)
    assert multibase.decode(state["dimensions"]["model"]) == DAG_MODEL.to_bytes()
    content = json.loads(multibase.decode(state["data"]))["content"]
    assert content["shard"]["/"]["bytes"] == base64.b64encode(shard.car).decode().rstrip("=")


async def test_an_identifier_leads_to_what_was_published(dag_api: httpx.AsyncClient) -> None:
    identifier = Identifier(bytes(KEY.verify_key))
    path = f"/ceramic/dag/publish/{identifier}"
    assert (await dag_api.get(path)).json()["link"] is None
    [shard] = split(ROOT, walk(ROOT, BLOCKS.__getitem__), 10_000)
    [append] = appends([shard.cid])
    published = make_publish(KEY, identifier.key, ROOT, append.cid, prior=None, expires=None)
    expired = make_publish(KEY, identifier.key, LEAF, LEAF, prior=None, expires=1)
    for replica in (published, expired):
        await post(dag_api, replica_event(KEY, identifier, replica.block).car)
    found = (await dag_api.get(path)).json()
    assert (found["id"], found["link"], found["origin"]) == (str(identifier), None, None)
    assert found["pending"] == {"link": str(ROOT), "origin": str(append.cid)}
    assert found["waiting_for"] == [str(append.cid)]
    await post(dag_api, replica_event(KEY, ROOT, append.block).car)
    await post(dag_api, shard_event(KEY, ROOT, shard.car).car)
    found = (await dag_api.get(path)).json()
    assert (found["link"], found["origin"]) == (str(ROOT), str(append.cid))
    assert (found["pending"], found["waiting_for"]) == (None, [])
    assert found["order"] == [str(published.cid)]
    assert [each["cid"] for each in found["refused"]] == [str(expired.cid)]


async def test_whether_a_replica_contains_a_block(dag_api: httpx.AsyncClient) -> None:
    [shard] = split(ROOT, walk(ROOT, BLOCKS.__getitem__), 10_000)
    [append] = appends([shard.cid])

    async def contained(block: CID) -> tuple[bool | None, list[str], str | None]:
        answer = await dag_api.get(f"/ceramic/dag/{block}/contained/{append.cid}")
        found = answer.json()
        return found["contains"], found["waiting_for"], found["shard"]

    assert await contained(LEAF) == (None, [str(append.cid)], None)
    await post(dag_api, replica_event(KEY, ROOT, append.block).car)
    assert await contained(LEAF) == (None, [str(shard.cid)], None)
    await post(dag_api, shard_event(KEY, ROOT, shard.car).car)
    assert await contained(LEAF) == (True, [], str(shard.cid))
    assert await contained(CID.of(RAW, b"another")) == (False, [], None)


@pytest.mark.parametrize(
    ("path", "complaint"),
    [
        ("/ceramic/dag/nonsense", "Invalid Cid: "),
        ("/ceramic/dag/nonsense.car", "Invalid Cid: "),
        (f"/ceramic/dag/{ROOT}/contained/nonsense", "Invalid Cid: "),
        (f"/ceramic/dag/nonsense/contained/{ROOT}", "Invalid Cid: "),
        ("/ceramic/dag/publish/nonsense", "Invalid identifier: "),
        ("/ceramic/dag/publish/did:key:zDn", "Invalid identifier: "),
    ],
)
async def test_names_that_are_none_are_refused(
    dag_api: httpx.AsyncClient, path: str, complaint: str
) -> None:
    answer = await dag_api.get(path)
    assert answer.status_code == 400
    assert answer.json()["message"].startswith(complaint)


@pytest.mark.parametrize("path", ["", f"/{ROOT}", f"/{ROOT}.car", f"/{ROOT}/entry"])
async def test_an_index_that_cannot_be_read_is_answered_503(
    dag_api: httpx.AsyncClient, tmp_path: Path, path: str
) -> None:
    (tmp_path / "node" / FILE.name).unlink()
    answer = await dag_api.get(f"/ceramic/dag{path}")
    assert answer.status_code == 503
    assert f"{FILE.name} failed" in answer.json()["message"]


async def test_a_node_without_an_index_says_so(api: httpx.AsyncClient) -> None:
    did = ed25519_did(bytes(KEY.verify_key))
    for path in (f"{ROOT}", f"{ROOT}.car", f"publish/{did}"):
        answer = await api.get(f"/ceramic/dag/{path}")
        assert answer.status_code == 503


async def test_lists_of_dags_and_publishes(dag_api: httpx.AsyncClient) -> None:
    for path in ("", "/publish"):
        assert (await dag_api.get(f"/ceramic/dag{path}")).json()["next"] is None
    roots, ids = [], []
    for n in range(3):
        block = dag_cbor.encode(n)
        root = CID.of(DAG_CBOR, block)
        [shard] = split(root, [(root, block)], 10_000)
        [replica] = appends([shard.cid])
        await post(dag_api, shard_event(KEY, root, shard.car).car)
        await post(dag_api, replica_event(KEY, root, replica.block).car)
        roots.append(root)
        key = SigningKey(bytes([n + 1]) * 32)
        identifier = Identifier(bytes(key.verify_key))
        expires = 1 if n == 1 else None  # long ago
        publish = make_publish(key, identifier.key, root, replica.cid, prior=None, expires=expires)
        event = replica_event(KEY, identifier, publish.block)
        await post(dag_api, event.car)
        ids.append(identifier)
    found: list[object] = []
    after = ""
    for number in range(3):
        page = (await dag_api.get("/ceramic/dag", params={"limit": 1, "after": after})).json()
        found += page["dags"]
        assert (page["next"] is None) is (number == 2)
        after = page["next"] or ""
    assert found == [{"root": str(root), "shards": 1, "replicas": 1} for root in sorted(roots)]
    page = (await dag_api.get("/ceramic/dag/publish", params={"limit": 2})).json()
    rest = (await dag_api.get("/ceramic/dag/publish", params={"after": page["next"]})).json()
    assert rest["next"] is None
    listed = {each["id"]: each for each in page["identifiers"] + rest["identifiers"]}
    assert list(listed) == [str(each) for each in sorted(ids, key=lambda each: each.key)]
    assert [listed[str(each)]["refused"] for each in ids] == [0, 1, 0]
    assert [listed[str(each)]["publishes"] for each in ids] == [1, 1, 1]
    assert (await dag_api.get("/ceramic/dag?after=nonsense")).status_code == 400


async def test_a_dag_is_looked_into(dag_api: httpx.AsyncClient, tmp_path: Path) -> None:
    (tmp_path / "files" / "more").mkdir(parents=True)
    (tmp_path / "files" / "more" / "words").write_text("Words.")
    source = open_source(tmp_path / "files")
    root = source.root

    async def look(path: str, status: int = 200) -> dict[str, Any]:
        answer = await dag_api.get(f"/ceramic/dag/{root}/entry", params={"path": path})
        assert answer.status_code == status, answer.text
        return dict(answer.json())

    assert "not here" in (await look("", 404))["message"]
    for shard in split(root, walk(root, source.read), 10_000):
        await post(dag_api, shard_event(KEY, root, shard.car).car)
    top = await look("")
    assert (top["kind"], [entry["name"] for entry in top["entries"]]) == ("directory", ["more"])
    assert (await look("/more/words/"))["text"] == "Words."
    assert "no entry 'less'" in (await look("less", 404))["message"]
    assert "64 parts" in (await look("a/" * 65, 400))["message"]
