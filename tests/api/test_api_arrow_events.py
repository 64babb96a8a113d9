"""POST /ceramic/feed/arrow: events by their CIDs, compared with the rows of the feed."""

import re
from typing import Any

import pyarrow as pa
from api_samples import INIT, Api, Events, api_of
from test_api_arrow import ARROW, COLUMNS, rows_of, table_of
from test_api_damage import DAMAGED, damage

from recon_node.api import Limits
from recon_node.ceramic.builder import time_event
from recon_node.ipld import CID, DAG_JOSE
from recon_node.store import Store

Row = dict[str, Any]


async def feed_of(store: Store) -> list[Row]:
    return await rows_of(store, 0, store.head)


def body_of(rows: list[Row]) -> bytes:
    return b"".join(row["event_cid"] for row in rows)


async def test_any_events_in_any_order(services, filled, store, rng):
    rows = await feed_of(store)
    strangers = [{"event_cid": CID.of(DAG_JOSE, bytes([n]))} for n in range(20)]
    for limits in (Limits(), Limits(arrow_rows=7), Limits(arrow_bytes=3_000)):
        async with api_of(services, limits=limits) as api:
            for _ in range(5):
                named = rng.choices([*rows, *strangers], k=rng.randint(0, 150))
                answer = await api.post(ARROW, content=body_of(named))
                assert table_of(answer).to_pylist() == [row for row in named if row in rows]
                batches = list(pa.ipc.open_stream(answer.content))
                assert all(0 < batch.num_rows <= limits.arrow_rows for batch in batches)
                for batch in batches:
                    sizes = [len(car) for car in batch["car"].to_pylist()]
                    assert sum(sizes[:-1]) < limits.arrow_bytes


async def test_some_columns_alone(api: Api, filled: Events, store: Store) -> None:
    rows = (await feed_of(store))[10:20]
    params = {"columns": "event_cid,car"}
    table = table_of(await api.post(ARROW, params=params, content=body_of(rows)))
    names = ["position", "event_cid", "car"]
    assert table.to_pylist() == [{name: row[name] for name in names} for row in rows]
    assert table_of(await api.post(ARROW, params=params)).schema.names == names
    assert table_of(await api.post(ARROW)).schema.names == list(COLUMNS)


async def test_only_delivered_events_are_here(api: Api, store: Store) -> None:
    """A time event has the time of its anchor."""
    anchor = time_event(INIT, INIT.cid, chain_id="eip155:100")
    await store.admit_local([INIT.car, anchor.car])
    both = anchor.cid + INIT.cid
    assert table_of(await api.post(ARROW, content=both))["position"].to_pylist() == [1]
    state = (await api.get("/ceramic/recon")).json()
    assert (state["head"], state["pending"], state["pending_proofs"]) == (1, 1, 1)
    assert "recon_pending_proofs 1.0" in (await api.get("/metrics")).text
    [proof] = await store.reader.pending_proofs(10)
    await store.settle_proofs([(proof.cid, 1_725_913_338)])
    named = table_of(await api.post(ARROW, content=both)).to_pylist()
    whole = table_of(await api.get(ARROW)).to_pylist()
    assert whole == named[::-1] == await feed_of(store)
    assert [row["time"] for row in whole] == [None, 1_725_913_338]
    assert [row["chain_id"] for row in whole] == [None, "eip155:100"]


async def test_a_damaged_event_is_not_here_and_is_noted(api, filled, store, tmp_path):
    rows = await feed_of(store)
    damage(tmp_path / "node")
    table = table_of(await api.post(ARROW, content=body_of(rows)))
    assert table.to_pylist() == rows[: DAMAGED - 1] + rows[DAMAGED:]
    assert (await api.get("/ceramic/recon")).json()["damaged"] == 1
    listing = {"columns": "event_cid"}  # no CAR is read for it
    assert table_of(await api.get(ARROW, params=listing)).num_rows == len(rows)


async def test_a_body_that_is_none(api: Api) -> None:
    cid = CID.of(DAG_JOSE, b"")
    what = "the body should be binary CIDs and nothing else"
    for body, words in (
        (b"{}", f"{what}: no CIDv1 at byte 0"),
        (cid + b"\0", what),
        (cid[:-1], f"{what}: .* bytes end within the CID"),
        (cid * 10_001, "the body names more than 10000 events"),
    ):
        answer = await api.post(ARROW, content=body)
        assert answer.status_code == 400
        assert re.match(words, answer.json()["message"])
    assert (await api.post(ARROW, content=cid * 10_000)).status_code == 200
    assert (await api.post(ARROW, params={"columns": "cars"})).status_code == 400
