"""The log of a DAG over HTTP."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import httpx
import pytest
from nacl.signing import SigningKey
from openapi_check import check_answer

from recon_node.api import Services, create_app
from recon_node.api.routes import dag
from recon_node.dag.dag_events import replica_event
from recon_node.dag.dag_service import open_dags
from recon_node.dag.protocol.dag_operations import Append, Join
from recon_node.dag.protocol.replica import Replica, decode_replica, join
from recon_node.ipld import CID, RAW, multibase

KEY = SigningKey(bytes(32))
ROOT = CID.of(RAW, b"root")


async def ask(services: Services, name: object) -> httpx.Response:
    transport = httpx.ASGITransport(create_app(services))
    hooks = {"response": [check_answer]}
    async with httpx.AsyncClient(
        transport=transport, base_url="http://node", event_hooks=hooks
    ) as client:
        return await client.get(f"/ceramic/dag/{name}/replicas")


async def test_all_that_is_here_of_a_log(
    services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = [CID.of(RAW, bytes([number])) for number in range(3)]
    first, second = (Replica(None, Append.of([shard])) for shard in shards[:2])
    heads = {each.cid: each for each in (first, second)}
    both = join(heads, heads)
    assert isinstance(both.change, Join)
    orphan = Replica(CID.of(RAW, b"lost"), Append.of(shards))
    replicas = [first, second, both, orphan]
    cars = [replica_event(KEY, ROOT, each.block).car for each in replicas]
    await services.store.admit_local(cars)
    async with open_dags(services.store, tmp_path / "node") as dags:
        answering = dataclasses.replace(services, dags=dags)
        answer = await ask(answering, ROOT)
        assert answer.status_code == 200
        told = {
            CID.parse(each["cid"]): decode_replica(multibase.decode(each["data"]))
            for each in answer.json()["replicas"]
        }
        assert told == {each.cid: each for each in replicas}
        assert (await ask(answering, CID.of(RAW, b"nobody's"))).json()["replicas"] == []
        assert (await ask(answering, "nonsense")).status_code == 400
        monkeypatch.setattr(dag, "MAX_REPLICA_BYTES", sum(len(r.block) for r in replicas) - 1)
        too_many = await ask(answering, ROOT)
        assert too_many.status_code == 400
        assert "read them as events" in too_many.json()["message"]


async def test_a_node_without_an_index(services: Services) -> None:
    assert (await ask(services, ROOT)).status_code == 503
