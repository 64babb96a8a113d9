"""GET /ceramic/dag/...: what is here, as JSON and as CAR; every answer is held to the document."""

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from api_samples import Api, admit, api_of, read
from nacl.signing import SigningKey
from support.dag_logs import join

from recon_node.api.routes.products import dag
from recon_node.dag.dag_events import DAG_MODEL, Identifier, replica_event, shard_event
from recon_node.dag.dag_index import FILE
from recon_node.dag.dag_service import open_dags
from recon_node.dag.dag_source import open_source
from recon_node.dag.protocol.dag_operations import Append
from recon_node.dag.protocol.publishing import make_publish
from recon_node.dag.protocol.replica import Replica, decode_replica
from recon_node.dag.protocol.shards import appends, split, walk
from recon_node.ipld import CID, DAG_CBOR, RAW, car, dag_cbor, multibase
from recon_node.store import Store

KEY = SigningKey(bytes([5]) * 32)
LEAF = CID.of(RAW, b"leaf")
ROOT_BLOCK = dag_cbor.encode([LEAF])
ROOT = CID.of(DAG_CBOR, ROOT_BLOCK)
BLOCKS = {ROOT: ROOT_BLOCK, LEAF: b"leaf"}
[SHARD] = split(ROOT, walk(ROOT, BLOCKS.__getitem__), 10_000)
[APPEND] = appends([SHARD.cid])


@pytest.fixture
async def dag_api(store: Store, tmp_path: Path) -> AsyncIterator[Api]:
    async with open_dags(store, tmp_path / "node") as dags, api_of(store, dags=dags) as client:
        yield client


async def post(api: Api, data: bytes) -> None:
    answer = await api.post("/ceramic/events", json={"data": multibase.encode(data)})
    assert answer.status_code == 204, answer.text


async def test_a_dag_that_is_sent_as_events_is_read_as_a_car(dag_api: Api) -> None:
    state = (await dag_api.get(f"/ceramic/dag/{ROOT}")).json()
    assert (state["complete"], state["missing_blocks"]) == (
        False,
        {"count": 1, "first": [str(ROOT)]},
    )
    refused = await dag_api.get(f"/ceramic/dag/{ROOT}.car")
    assert refused.status_code == 404
    assert str(ROOT) in refused.json()["message"]

    await post(dag_api, shard_event(KEY, ROOT, SHARD.car).car)
    await post(dag_api, replica_event(KEY, ROOT, APPEND.block).car)
    state = (await dag_api.get(f"/ceramic/dag/{ROOT}")).json()
    assert (state["complete"], state["blocks"], state["bytes"]) == (True, 2, len(ROOT_BLOCK) + 4)
    assert (state["shards"], state["heads"]) == ([str(SHARD.cid)], [str(APPEND.cid)])
    assert multibase.decode(state["head"]["data"]) == APPEND.block
    answer = await dag_api.get(f"/ceramic/dag/{ROOT}.car")
    assert answer.headers["content-type"] == "application/vnd.ipld.car"
    assert answer.content == car.encode([ROOT], BLOCKS)


async def test_a_shard_is_a_stream_like_any_other(dag_api: Api) -> None:
    event = shard_event(KEY, ROOT, SHARD.car)
    await post(dag_api, event.car)
    state = (await dag_api.get(f"/ceramic/streams/{event.stream_id()}")).json()
    assert state["event_cid"] == str(event.cid)
    assert multibase.decode(state["dimensions"]["model"]) == DAG_MODEL.to_bytes()
    content = json.loads(multibase.decode(state["data"]))["content"]
    assert content["shard"]["/"]["bytes"] == base64.b64encode(SHARD.car).decode().rstrip("=")


async def test_an_identifier_leads_to_what_was_published(dag_api: Api) -> None:
    identifier = Identifier(bytes(KEY.verify_key))
    path = f"/ceramic/dag/publish/{identifier}"
    assert (await dag_api.get(path)).json()["link"] is None
    published = make_publish(KEY, identifier.key, ROOT, APPEND.cid, prior=None, expires=None)
    expired = make_publish(KEY, identifier.key, LEAF, LEAF, prior=None, expires=1)
    for replica in (published, expired):
        await post(dag_api, replica_event(KEY, identifier, replica.block).car)
    answer = (await dag_api.get(path)).json()
    assert (answer["id"], answer["link"], answer["origin"]) == (str(identifier), None, None)
    assert answer["pending"] == {"link": str(ROOT), "origin": str(APPEND.cid)}
    assert answer["waiting_for"] == [str(APPEND.cid)]
    await post(dag_api, replica_event(KEY, ROOT, APPEND.block).car)
    await post(dag_api, shard_event(KEY, ROOT, SHARD.car).car)
    answer = (await dag_api.get(path)).json()
    assert (answer["link"], answer["origin"]) == (str(ROOT), str(APPEND.cid))
    assert (answer["pending"], answer["waiting_for"]) == (None, [])
    assert answer["order"] == [str(published.cid)]
    assert [refused["cid"] for refused in answer["refused"]] == [str(expired.cid)]


async def test_whether_a_replica_contains_a_block(dag_api: Api) -> None:

    async def contained(block: CID) -> tuple[bool | None, list[str], str | None]:
        answer = await dag_api.get(f"/ceramic/dag/{block}/contained/{APPEND.cid}")
        body = answer.json()
        return body["contains"], body["waiting_for"], body["shard"]

    assert await contained(LEAF) == (None, [str(APPEND.cid)], None)
    await post(dag_api, replica_event(KEY, ROOT, APPEND.block).car)
    assert await contained(LEAF) == (None, [str(SHARD.cid)], None)
    await post(dag_api, shard_event(KEY, ROOT, SHARD.car).car)
    assert await contained(LEAF) == (True, [], str(SHARD.cid))
    assert await contained(CID.of(RAW, b"another")) == (False, [], None)


async def test_names_that_are_none_are_refused(dag_api: Api) -> None:
    for path, complaint in (
        ("nonsense", "'nonsense' is not a CID: "),
        ("nonsense.car", "'nonsense' is not a CID: "),
        ("nonsense/replicas", "'nonsense' is not a CID: "),
        (f"{ROOT}/contained/nonsense", "'nonsense' is not a CID: "),
        (f"nonsense/contained/{ROOT}", "'nonsense' is not a CID: "),
        ("publish/nonsense", "Invalid identifier: "),
        ("publish/did:key:zDn", "Invalid identifier: "),
    ):
        assert (await read(dag_api, f"dag/{path}", 400))["message"].startswith(complaint)


async def test_an_index_that_cannot_be_read_is_answered_503(dag_api: Api, tmp_path: Path) -> None:
    (tmp_path / "node" / FILE.name).unlink()
    for path in ("", f"/{ROOT}", f"/{ROOT}.car", f"/{ROOT}/entry"):
        assert f"{FILE.name} failed" in (await read(dag_api, f"dag{path}", 503))["message"]


async def test_all_that_is_here_of_a_log(dag_api, store, monkeypatch):
    shards = [CID.of(RAW, bytes([number])) for number in range(3)]
    first, second = (Replica(None, Append.of([shard])) for shard in shards[:2])
    heads = {replica.cid: replica for replica in (first, second)}
    both = join(heads, heads)
    orphan = Replica(CID.of(RAW, b"lost"), Append.of(shards))
    replicas = [first, second, both, orphan]
    await admit(store, *(replica_event(KEY, ROOT, replica.block) for replica in replicas))
    path = f"dag/{ROOT}/replicas"
    replicas_here = {
        CID.parse(replica["cid"]): decode_replica(multibase.decode(replica["data"]))
        for replica in (await read(dag_api, path))["replicas"]
    }
    assert replicas_here == {replica.cid: replica for replica in replicas}
    assert (await read(dag_api, f"dag/{LEAF}/replicas"))["replicas"] == []
    monkeypatch.setattr(dag, "MAX_REPLICA_BYTES", sum(len(r.block) for r in replicas) - 1)
    assert "read them as events" in (await read(dag_api, path, 400))["message"]


async def test_lists_of_dags_and_publishes(dag_api: Api) -> None:
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
    rows: list[object] = []
    after = ""
    for number in range(3):
        page = (await dag_api.get("/ceramic/dag", params={"limit": 1, "after": after})).json()
        rows += page["dags"]
        assert (page["next"] is None) is (number == 2)
        after = page["next"] or ""
    assert rows == [{"root": str(root), "shards": 1, "replicas": 1} for root in sorted(roots)]
    page = (await dag_api.get("/ceramic/dag/publish", params={"limit": 2})).json()
    rest = (await dag_api.get("/ceramic/dag/publish", params={"after": page["next"]})).json()
    assert rest["next"] is None
    listed = {
        identifier["id"]: identifier for identifier in page["identifiers"] + rest["identifiers"]
    }
    assert list(listed) == [str(id_) for id_ in sorted(ids, key=lambda id_: id_.key)]
    assert [listed[str(id_)]["refused"] for id_ in ids] == [0, 1, 0]
    assert [listed[str(id_)]["publishes"] for id_ in ids] == [1, 1, 1]
    assert (await dag_api.get("/ceramic/dag?after=nonsense")).status_code == 400


async def test_a_dag_is_looked_into(dag_api: Api, tmp_path: Path) -> None:
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
