"""POST /ceramic/feed/arrow: events by their CIDs, compared with the rows of the feed."""

from __future__ import annotations

import dataclasses
import random
import re
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from nacl.signing import SigningKey
from test_api_arrow import ARROW, COLUMNS, Events, rows_of, table_of
from test_api_damage import DAMAGED, damage

from recon_node.api import Access, Limits, Services, create_app
from recon_node.ceramic.builder import model_event, time_event
from recon_node.ipld import CID, DAG_JOSE
from recon_node.store import Store

Row = dict[str, Any]


async def feed_of(store: Store) -> list[Row]:
    return await rows_of(store, 0, store.head)


def body_of(rows: list[Row]) -> bytes:
    return b"".join(row["event_cid"] for row in rows)


def client(services: Services, **changed: Any) -> httpx.AsyncClient:
    app = create_app(dataclasses.replace(services, **changed))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://node")


async def test_any_events_in_any_order(
    services: Services, filled: Events, store: Store, rng: random.Random
) -> None:
    rows = await feed_of(store)
    strangers = [{"event_cid": CID.of(DAG_JOSE, bytes([n]))} for n in range(20)]
    for limits in (Limits(), Limits(arrow_rows=7), Limits(arrow_bytes=3_000)):
        async with client(services, limits=limits) as api:
            for _ in range(5):
                named = rng.choices([*rows, *strangers], k=rng.randint(0, 150))
                answer = await api.post(ARROW, content=body_of(named))
                assert table_of(answer).to_pylist() == [row for row in named if row in rows]
                batches = list(pa.ipc.open_stream(answer.content))
                assert all(0 < batch.num_rows <= limits.arrow_rows for batch in batches)
                for batch in batches:
                    sizes = [len(car) for car in batch["car"].to_pylist()]
                    assert sum(sizes[:-1]) < limits.arrow_bytes


async def test_some_columns_alone(api: httpx.AsyncClient, filled: Events, store: Store) -> None:
    rows = (await feed_of(store))[10:20]
    params = {"columns": "event_cid,car"}
    table = table_of(await api.post(ARROW, params=params, content=body_of(rows)))
    names = ["position", "event_cid", "car"]
    assert table.to_pylist() == [{name: row[name] for name in names} for row in rows]
    assert table_of(await api.post(ARROW, params=params)).schema.names == names
    assert table_of(await api.post(ARROW)).schema.names == list(COLUMNS)


async def test_only_delivered_events_are_here(api: httpx.AsyncClient, store: Store) -> None:
    init = model_event(SigningKey(bytes(32)), {})
    anchor = time_event(init, init.cid, chain_id="eip155:100")
    await store.admit_local([init.car, anchor.car])
    both = anchor.cid + init.cid
    assert table_of(await api.post(ARROW, content=both))["position"].to_pylist() == [1]
    [proof] = await store.reader.pending_proofs(10)
    await store.settle_proofs([(proof.cid, 1_725_913_338)])
    table = table_of(await api.post(ARROW, content=both))
    assert table["position"].to_pylist() == [2, 1]
    assert table["time"].to_pylist() == [1_725_913_338, None]
    assert table["chain_id"].to_pylist() == ["eip155:100", None]


async def test_a_damaged_event_is_not_here_and_is_noted(
    api: httpx.AsyncClient, filled: Events, store: Store, tmp_path: Path
) -> None:
    rows = await feed_of(store)
    damage(tmp_path / "node")
    table = table_of(await api.post(ARROW, content=body_of(rows)))
    assert table.to_pylist() == rows[: DAMAGED - 1] + rows[DAMAGED:]
    assert (await api.get("/ceramic/recon")).json()["damaged"] == 1
    listing = {"columns": "event_cid"}  # no CAR is read for it
    assert table_of(await api.get(ARROW, params=listing)).num_rows == len(rows)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{}", "the body should be binary CIDs and nothing else: no CIDv1 at byte 0"),
        (CID.of(DAG_JOSE, b"") + b"\0", "the body should be binary CIDs and nothing else"),
        (CID.of(DAG_JOSE, b"")[:-1], "the body should be binary CIDs .* bytes end within the CID"),
        (CID.of(DAG_JOSE, b"") * 10_001, "the body names more than 10000 events"),
    ],
)
async def test_a_body_that_is_none(api: httpx.AsyncClient, body: bytes, words: str) -> None:
    answer = await api.post(ARROW, content=body)
    assert answer.status_code == 400
    assert re.match(words, answer.json()["message"])
    assert (await api.post(ARROW, content=CID.of(DAG_JOSE, b"") * 10_000)).status_code == 200
    assert (await api.post(ARROW, params={"columns": "cars"})).status_code == 400


async def test_it_reads_and_so_needs_no_token_for_writes(services: Services) -> None:
    token = "0123456789abcdef"
    async with client(services, access=Access(token=token)) as api:
        assert (await api.post(ARROW)).status_code == 200
    async with client(services, access=Access(token=token, token_for="all")) as api:
        assert (await api.post(ARROW)).status_code == 401
        headers = {"authorization": f"Bearer {token}"}
        assert (await api.post(ARROW, headers=headers)).status_code == 200
