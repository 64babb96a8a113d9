"""The rows of `stream_tips` from those of `raw_events`, against a computation of its own kind."""

import random
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from nacl.signing import SigningKey
from spark_helpers import NO_TIMES, feed_rows
from spark_oracle import assert_tables

from recon_node.ceramic import Event, StreamId
from recon_node.ceramic.builder import (
    controller_of,
    data_event,
    deterministic_init_event,
    init_event,
    model_event,
    signed_event,
    time_event,
)
from recon_node.ipld import CID
from spark_sink.derive.feed_streams import read_streams
from spark_sink.derive.transforms import stream_tips
from spark_sink.errors import TablesError
from spark_sink.run.pipeline import Sink
from spark_sink.schema import STREAM_TIPS
from spark_sink.tables.directory import Tables

KEY = SigningKey(bytes(range(32)))


def walk_to_the_tip(events: list[Event]) -> dict[str, Any]:
    """For streams of init and data events without merges: from the init up, lowest CID first."""
    nexts: dict[bytes, list[bytes]] = defaultdict(list)
    for event in events:
        for prev in event.prevs:
            nexts[bytes(prev)].append(bytes(event.cid))
    path = [bytes(events[0].init)]
    while nexts[path[-1]]:
        path.append(min(nexts[path[-1]]))
    ids = sorted(bytes(event.cid) for event in events)
    return {
        "event_cid": path[-1],
        "event_height": len(path) - 1,
        "data_tip": [path[-1]],
        "anchored_at": [],
        "tips": [id_ for id_ in ids if not nexts[id_]],
        "pruned": [id_ for id_ in ids if id_ not in path],
        "diverged": sum(not nexts[id_] for id_ in ids) > 1,
        "events": len(ids),
        "pending_time_events": 0,
    }


def compute_tips(raw_events: pa.Table) -> pa.Table:
    rows = [
        {**stream.columns, **row}
        for stream in read_streams(raw_events)
        for row in stream_tips(stream)
    ]
    return pa.Table.from_pylist(rows, schema=STREAM_TIPS)


def tip_of(init: Event, events: list[Event], times: Mapping[CID, int] = NO_TIMES) -> dict[str, Any]:
    rows = compute_tips(feed_rows(events, times)).to_pylist()
    row: dict[str, Any] = next(row for row in rows if row["stream_cid"] == init.cid)
    return row


def test_every_stream_of_the_sample(sample: list[Event]) -> None:
    streams: dict[bytes, list[Event]] = defaultdict(list)
    for event in sample:
        streams[bytes(event.init)].append(event)
    rows = compute_tips(feed_rows(sample)).to_pylist()
    assert len(rows) == len(streams) == 263
    assert sum(row["diverged"] for row in rows) == sum(
        len({e.prevs for e in events}) < len(events) for events in streams.values()
    )
    positions = {bytes(event.cid): i for i, event in enumerate(sample, 1)}
    for row in rows:
        events = streams[row["stream_cid"]]
        expected = walk_to_the_tip(events)
        assert {name: row[name] for name in expected} == expected
        assert row["position"] == max(positions[bytes(event.cid)] for event in events)
        header = events[0].header
        assert header is not None
        assert header.model is not None
        assert row["stream_id"] == str(events[0].stream_id())
        assert row["controller"] == header.controller
        assert row["dimensions"] == [
            ("model", header.model.to_bytes()),
            ("controller", header.controller.encode()),
            ("context", b""),
            ("unique", header.unique or b""),
        ]
        assert row["stream_cid_partition"] == row["stream_cid"][-1] % 16


def test_streams_without_a_model(sample: list[Event], tmp_path: Path) -> None:
    """Tile documents, and streams with another sort key, among others and in every table."""
    events: list[Event] = []
    headers: list[dict[str, Any]] = [{}, {"sep": "family", "family": "blog"}, {"tags": ["a"]}]
    for fields in headers:
        header = {"controllers": [controller_of(KEY)], **fields}
        init = signed_event(KEY, {"header": header, "data": {"a": 1}})
        patch = [{"op": "replace", "path": "/a", "value": 2}]
        events += (init, data_event(KEY, init, [init.cid], patch))
    rows = feed_rows([*sample[:20], *events])
    sink = Sink(Tables(tmp_path, "5f0c8a10-aaaa-bbbb-cccc-000000000001"))
    for start, stop in ((0, 21), (21, 26)):
        sink.tables.append(rows.slice(start, stop - start))
        sink.catch_up()
    assert_tables(tmp_path, rows.to_pylist())
    row = tip_of(events[0], events)
    assert (row["stream_type"], row["event_cid"]) == (0, events[1].cid)
    assert row["dimensions"][0] == ("model", b"")


def test_the_order_of_rows_does_not_matter(sample: list[Event]) -> None:
    rows = feed_rows(sample[:300])
    order = list(range(300))
    random.Random(5).shuffle(order)
    by_stream = [("stream_cid", "ascending")]
    expected = compute_tips(rows).sort_by(by_stream)
    assert compute_tips(rows.take(order)).sort_by(by_stream) == expected


def test_a_stream_with_time_events_a_fork_and_a_merge() -> None:
    model = model_event(KEY, {"name": "thing"})
    init = init_event(KEY, model.stream_id(), {"n": 0}, unique=b"u", context=b"c")
    left = data_event(KEY, init, [init.cid], [{"op": "add", "path": "/n", "value": 1}])
    right = data_event(KEY, init, [init.cid], [{"op": "add", "path": "/n", "value": 2}])
    anchor = time_event(init, right.cid)
    fork = [model, init, left, right, anchor]
    low, high = sorted([left, right], key=lambda event: bytes(event.cid))
    row = tip_of(init, fork)
    # Where nobody knows what time the anchor proves, the lowest CID decides.
    assert row["event_cid"] == bytes(anchor.cid if low is right else left.cid)
    assert row["data_tip"] == [bytes(low.cid)]
    assert (row["diverged"], row["events"], row["pending_time_events"]) == (True, 4, 1)
    assert row["anchored_at"] == []
    assert row["tips"] == sorted([bytes(left.cid), bytes(anchor.cid)])
    assert bytes(high.cid) in row["pruned"]
    lowest = {"rule": "lowest CID", "winner": bytes(low.cid), "rivals": [bytes(high.cid)]}
    assert row["reasons"] == [lowest]

    # It is known now: the anchored branch wins, whatever its CID.
    row = tip_of(init, fork, {anchor.cid: 1_700_000_000})
    assert (row["event_cid"], row["event_type"]) == (bytes(anchor.cid), "time")
    assert (row["anchored_at"], row["pending_time_events"]) == ([bytes(right.cid)], 0)
    earliest = {"rule": "earliest time", "winner": bytes(right.cid), "rivals": [bytes(left.cid)]}
    assert row["reasons"] == [earliest]

    merge = data_event(KEY, init, [left.cid, anchor.cid], [])
    row = tip_of(init, [*fork, merge])
    assert (row["event_cid"], row["event_type"]) == (bytes(merge.cid), "data")
    assert (row["event_height"], row["diverged"], row["pruned"]) == (3, False, [])
    assert (row["events"], row["pending_time_events"], row["position"]) == (5, 1, 6)
    assert dict(row["dimensions"])["context"] == b"c"
    assert (row["stream_type"], row["stream_cid"]) == (3, bytes(init.cid))


def test_a_model_and_a_deterministic_document() -> None:
    model = model_event(KEY, {"name": "single"})
    model_id = model.stream_id()
    document = deterministic_init_event("did:key:z6Mkfoo", StreamId(2, model_id.cid))
    tips = compute_tips(feed_rows([model, document]))
    assert tips.schema == STREAM_TIPS
    assert sorted(tips["stream_type"].to_pylist()) == [2, 3]
    assert tips["event_type"].to_pylist() == ["init", "init"]
    assert tips["event_height"].to_pylist() == [0, 0]


def test_no_rows_no_tips() -> None:
    assert compute_tips(feed_rows([])).num_rows == 0


def test_damaged_rows_are_told(sample: list[Event]) -> None:
    rows = feed_rows(sample)
    with pytest.raises(
        TablesError, match=r"not hold the whole stream 0185.*starts with an event that"
    ):
        compute_tips(rows.filter([event.header is None for event in sample]))
    cars = [b"junk", *rows["car"].to_pylist()[1:]]
    broken = rows.set_column(rows.schema.get_field_index("car"), rows.schema.field("car"), [cars])
    with pytest.raises(TablesError, match="raw_events holds no event at position 1: "):
        compute_tips(broken)
    other = rows["stream_cid"].to_pylist()[0]
    moved = rows.slice(1, 1).set_column(3, rows.schema.field("stream_cid"), [[other]])
    with pytest.raises(TablesError, match="events of another stream under 0185"):
        compute_tips(moved)
