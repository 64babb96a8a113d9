"""The feed as Arrow, whole or by CIDs, read with pyarrow and compared with the store's rows."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pyarrow as pa
from api_samples import INIT, Api, Events, api_of
from support.time_events import time_event
from test_api_damage import DAMAGED, damage

from recon_node.api.settings import Limits
from recon_node.ipld import CID, DAG_JOSE
from recon_node.store import Store

ARROW = "/ceramic/feed/arrow"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
COLUMNS = {
    "position": pa.int64(),
    "event_id": pa.binary(),
    "event_cid": pa.binary(),
    "stream_cid": pa.binary(),
    "event_type": pa.utf8(),
    "car": pa.binary(),
    "time": pa.int64(),
    "chain_id": pa.utf8(),
    "delivered_at": pa.timestamp("ms", "UTC"),
    "fault": pa.utf8(),
}
# Of some events only.
OPTIONAL = ("time", "chain_id", "delivered_at", "fault")


async def rows_of(store: Store, after: int, upto: int) -> list[dict[str, object]]:
    return [
        {
            "position": row.position,
            "event_id": bytes(row.event_id),
            "event_cid": bytes(row.event_cid),
            "stream_cid": bytes(row.stream_cid),
            "event_type": row.kind.value,
            "car": row.car,
            "time": row.block_time,
            "chain_id": row.chain_id,
            "delivered_at": None
            if row.delivered_at is None
            else EPOCH + timedelta(milliseconds=row.delivered_at),
            "fault": row.fault,
        }
        for row in await store.reader.feed(after, 1_000, upto)
    ]


def table_of(answer: httpx.Response) -> pa.Table:
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/vnd.apache.arrow.stream"
    return pa.ipc.open_stream(answer.content).read_all()


async def test_the_whole_feed_with_its_schema(api: Api, filled: Events, store: Store) -> None:
    table = table_of(await api.get(ARROW))
    fields = [pa.field(name, kind, nullable=name in OPTIONAL) for name, kind in COLUMNS.items()]
    assert table.schema.equals(pa.schema(fields), check_metadata=True)
    assert table.to_pylist() == await rows_of(store, 0, store.head)
    assert set(table["event_type"].to_pylist()) == {"init", "data"}


async def test_any_range_is_a_slice_of_the_feed(services, filled, store, rng):
    limits = Limits(arrow_rows=9)
    async with api_of(services, limits=limits) as api:
        for _ in range(10):
            after = rng.randint(0, store.head)
            upto = rng.randint(after, store.head)
            params = {"after": after, "upto": upto, "epoch": store.epoch}
            answer = await api.get(ARROW, params=params)
            assert table_of(answer).to_pylist() == await rows_of(store, after, upto)
            batches = list(pa.ipc.open_stream(answer.content))
            assert all(0 < batch.num_rows <= limits.arrow_rows for batch in batches)


async def test_a_batch_ends_with_the_event_that_fills_it(services, filled):
    async with api_of(services, limits=Limits(arrow_bytes=3_000)) as api:
        batches = list(pa.ipc.open_stream((await api.get(ARROW)).content))
    sizes = [[len(car) for car in batch["car"].to_pylist()] for batch in batches]
    assert sum(map(len, sizes)) == len(filled)
    assert all(sum(batch[:-1]) < 3_000 for batch in sizes)
    assert all(sum(batch) >= 3_000 for batch in sizes[:-1])


async def test_the_answer_to_head_is_that_to_get_without_the_rows(api, filled):
    """It said that the body has no bytes (RFC 9110, section 8.6)."""
    whole = await api.get(ARROW)
    head = await api.head(ARROW)
    assert head.headers == whole.headers
    assert head.content == b""


async def test_an_empty_feed_is_an_empty_table(api: Api) -> None:
    assert table_of(await api.get(ARROW)).num_rows == 0


async def test_some_columns_alone(api: Api, filled: Events, store: Store) -> None:
    """In several batches, of any range, and with a filter."""
    model = {"sortKey": "model", "sortValue": "kh4q0ozorrgaq2mezktnrmdwleo1d"}
    rows = await rows_of(store, 0, store.head)
    whole = table_of(await api.get(ARROW, params=model))
    assert 0 < whole.num_rows < len(filled)
    for columns in ("event_cid", "car", "event_id,delivered_at", "time,position"):
        names = [name for name in COLUMNS if name in f"position,{columns}".split(",")]
        wanted = [{name: row[name] for name in names} for row in rows]
        chosen = {"columns": columns}
        assert table_of(await api.get(ARROW, params=chosen)).to_pylist() == wanted
        part = table_of(await api.get(ARROW, params={**chosen, "after": 1, "upto": 3}))
        assert part.to_pylist() == wanted[1:3]
        assert table_of(await api.get(ARROW, params={**chosen, "upto": 0})).schema.names == names
        filtered = table_of(await api.get(ARROW, params={**chosen, **model}))
        assert filtered.to_pylist() == whole.select(names).to_pylist()
        assert filtered.schema.metadata == whole.schema.metadata


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


async def test_some_columns_of_named_events(api: Api, filled: Events, store: Store) -> None:
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
