"""Reading one stream: its delivered events, all of them, in feed order."""

from pathlib import Path

from store_helpers import NETWORK, World, feed_of

from recon_node.ipld import CID, DAG_CBOR
from recon_node.store import Store, open_store
from recon_node.store.db import log_schema
from recon_node.store.reading.columns import OF_STREAM


async def test_a_stream_is_the_feed_s_rows_of_that_stream(store: Store) -> None:
    world = World(3, streams=4, events=40)
    offers = world.offers()
    withheld = offers[len(offers) // 2]  # whatever builds on it is held back, and no stream has it
    await store.admit_remote([offer for offer in offers if offer != withheld])
    feed = await feed_of(store)
    for init in world.headers:
        assert await store.reader.signed_events(init) == [r for r in feed if r.stream_cid == init]
    longest = max([await store.reader.signed_events(init) for init in world.headers], key=len)
    init = longest[0].stream_cid
    assert await store.reader.signed_events(init, limit=2) == longest[:2]
    assert await store.reader.signed_events(init, max_bytes=len(longest[0].car) + 1) == longest[:2]
    assert await store.reader.signed_events(CID.of(DAG_CBOR, b"nothing")) == []


async def test_a_stream_is_found_by_an_index(tmp_path: Path) -> None:
    async with open_store(tmp_path, NETWORK):
        connection = log_schema.open_reader(tmp_path)
        plan = connection.execute(
            "EXPLAIN QUERY PLAN SELECT position FROM events CROSS JOIN cars USING (id) "
            f"WHERE {OF_STREAM} AND position IS NOT NULL ORDER BY position LIMIT ?",
            (b"", b"", 1),
        ).fetchall()
        connection.close()
    assert any("by_stream" in row[3] for row in plan)
    assert not any("TEMP B-TREE" in row[3] for row in plan)
