"""The feed as Arrow, read with pyarrow and compared with the store's rows."""

from datetime import UTC, datetime, timedelta

import httpx
import pyarrow as pa
from api_samples import Api, Events, api_of

from recon_node.api import Limits
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
