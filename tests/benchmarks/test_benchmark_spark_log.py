"""The log that the pipeline's benchmarks read: what a node could have delivered."""

from collections import defaultdict

from benchmarks.spark_log import NETWORK, fill_log
from recon_node.ceramic import parse_event
from recon_node.store import open_store
from recon_node.streams import EventShape, select_tip


async def test_a_filled_log_is_a_node_s(tmp_path):
    await fill_log(tmp_path / "node", 200, streams=12)
    async with open_store(tmp_path / "node", NETWORK) as store:
        rows = await store.reader.feed(0, 1000)
        assert store.head == len(rows) == len(store.keys) == 200
    heights, streams = {}, defaultdict(list)
    for row in rows:
        event = parse_event(row.car)
        assert (event.cid, event.init, event.kind) == (row.event_cid, row.stream_cid, row.kind)
        heights[event.cid] = 1 + max((heights[prev] for prev in event.prevs), default=-1)
        assert row.event_id.height == heights[event.cid]
        assert row.event_id.event_cid == event.cid
        streams[event.init].append(EventShape(event.cid, event.kind.value, tuple(event.prevs)))
    assert len(streams) == 13  # the model's, too
    tips = {init: select_tip(events) for init, events in streams.items()}
    assert sum(tip.height + 1 for tip in tips.values()) == 200
