"""Badly signed data events in the tables: figures 5 and 6 of CIP-145, and tables from before."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import trio
from deltalake import DeltaTable
from spark_helpers import (
    EPOCH,
    Node,
    NodeProcesses,
    StreamCounter,
    feed_rows,
    filled,
    make_old,
    read_on,
    silent,
)
from spark_oracle import KEYS, assert_tables, table_rows, tables_of
from spark_samples import DEFINITION, FAULT, KEY, Scenario, change, document, replace
from test_spark_snapshot import table, write_snapshot

from recon_node.ceramic import Event, EventId, Network
from recon_node.ceramic.builder import data_event, model_event, signed_event
from recon_node.store import open_store
from recon_node.streams.graph import heights
from spark_sink.derive import feed_streams
from spark_sink.run.pipeline import Sink
from spark_sink.schema import DERIVED, FEED
from spark_sink.source.feed_client import Feed
from spark_sink.tables.tables import Tables
from spark_sink.upkeep.maintenance import rebuild


class Figures:
    """Figures 5 and 6, with the repair: A is badly signed, and C merges B and what is on A.

    Before them, the stream has some changes.
    """

    def __init__(self, changes: int = 0) -> None:
        self.all = Scenario()
        model = model_event(KEY, DEFINITION)
        self.start = document(model.stream_id(), {"n": 1, "t": "start"})
        self.all.add(model, self.start)
        for number in range(changes):
            self.start = change(self.start, replace("/t", str(number)))
            self.all.add(self.start)
        self.first = self.all.anchor(self.start, 1_700_000_001)
        self.a = self.all.forge(change(self.start, replace("/t", "A")))
        self.second = self.all.anchor(self.a, 1_700_000_002)
        self.b = self._add(change(self.first, replace("/t", "B")))
        merged = [self.b.cid, self.second.cid]
        self.c = self._add(data_event(KEY, self.b.init, merged, [replace("/t", "C")]))
        self.later = self._add(change(self.c, replace("/t", "later")))

    def _add(self, event: Event) -> Event:
        self.all.add(event)
        return event

    @property
    def rows(self) -> pa.Table:
        return feed_rows(self.all.events, self.all.times, self.all.faults)


def fill(directory: Path, rows: pa.Table, start: int = 1) -> None:
    """Bring the tables to the end of these rows, event by event from some position on."""
    filled(directory, rows, *range(start, len(rows) + 1))


def rows_of(directory: Path, name: str, event: Event) -> dict[str, Any]:
    [row] = [row for row in table_rows(directory, name) if row["event_cid"] == bytes(event.cid)]
    return row


@pytest.mark.parametrize("changes", [0, 8])
def test_what_merges_a_badly_signed_event_is_the_tip(changes, tmp_path, monkeypatch):
    """In a short stream, and in one whose computation goes on from where it ended."""
    monkeypatch.setattr(feed_streams, "LONG", 8)
    counter = StreamCounter(monkeypatch)
    figures = Figures(changes)
    rows = figures.rows
    tips: list[bytes] = []
    sink = Sink(Tables(tmp_path, EPOCH))
    for upto in range(2 + changes, len(rows) + 1):
        read_on(sink, rows.slice(0, upto))
        assert_tables(tmp_path, rows.slice(0, upto).to_pylist())
        faults = [
            row["event_cid"]
            for name in ("stream_tips", "stream_states")
            for row in table_rows(tmp_path, name)
            if row["stream_type"] == 3
        ]
        assert faults[0] == faults[1]
        tips.append(faults[0])
    on_a = [figures.first, figures.first]  # while there is nothing but A and its anchor
    order = [figures.start, figures.first, *on_a, figures.b, figures.c, figures.later]
    assert tips == [bytes(event.cid) for event in order]
    assert (counter.later > 0) == (changes > 0)

    bad = rows_of(tmp_path, "event_states", figures.a)
    assert bad["validation_errors"] == [FAULT]
    assert bad["data"] == rows_of(tmp_path, "event_states", figures.start)["data"]
    assert rows_of(tmp_path, "conclusion_events", figures.a)["fault"] == FAULT
    assert rows_of(tmp_path, "event_states", figures.c)["validation_errors"] == []
    for name in DERIVED:
        before = table_rows(tmp_path, name)
        rebuild(tmp_path, name, None, silent)
        assert table_rows(tmp_path, name) == before


def test_a_badly_signed_version_of_a_model_does_not_count(tmp_path: Path) -> None:
    """A document that names it has no usable model, whatever the version says."""
    all_ = Scenario()
    model = model_event(KEY, DEFINITION)
    all_.add(model)
    version = all_.forge(change(model, replace("/name", "Forged")))
    top = change(version, replace("/name", "Notes"))
    all_.add(top)
    for named in (version, top):
        init = document(model.stream_id(), {"n": 1}, bytes(named.cid)[-8:])
        payload = {"id": init.cid, "prev": init.cid, "data": [replace("/n", 1)]}
        payload["header"] = {"modelVersion": named.cid}
        all_.add(init, signed_event(KEY, payload))
    rows = feed_rows(all_.events, all_.times, all_.faults)
    fill(tmp_path, rows)
    assert_tables(tmp_path, rows.to_pylist())
    wrong, right = (rows_of(tmp_path, "event_states", all_.events[at]) for at in (-3, -1))
    assert "has no version" in wrong["validation_errors"][0]
    assert right["validation_errors"] == []


def test_tables_from_before_get_the_column(tmp_path: Path) -> None:
    figures = Figures()
    rows, before = figures.rows, 3
    fill(tmp_path, rows.slice(0, before), before)
    for name in ("raw_events", "conclusion_events"):
        make_old(tmp_path, name, "fault")
        assert "fault" not in {field.name for field in DeltaTable(tmp_path / name).schema().fields}
    rebuild(tmp_path, "event_states", None, silent)  # from the old raw_events
    assert_tables(tmp_path, rows.slice(0, before).to_pylist(), [*KEYS][2:])
    fill(tmp_path, rows, before + 1)
    assert_tables(tmp_path, rows.to_pylist())
    for name in ("conclusion_events", "stream_tips"):
        rebuild(tmp_path, name, None, silent)
        assert table_rows(tmp_path, name) == tables_of(rows.to_pylist())[name]


def offers_of(events: Sequence[Event]) -> list[tuple[EventId, bytes]]:
    """Events of some streams as a peer offers them."""
    rows = []
    headers = {event.cid: event.header for event in events if event.header is not None}
    for init, header in headers.items():
        stream = [event for event in events if event.init == init]
        height = heights({event.cid: event.prevs for event in stream})
        for event in stream:
            key = event.event_id(Network.local(7), header, height[event.cid])
            rows.append((key, event.car))
    return rows


@pytest.fixture
def node(node_processes: NodeProcesses, tmp_path: Path) -> Node:
    """A node that has got the figures from a peer."""
    figures = Figures()

    async def fill_store() -> None:
        async with open_store(tmp_path / "node", Network.local(7)) as store:
            await store.admit_remote(offers_of(figures.all.events))
            pending = await store.reader.pending_proofs(10)
            times = [(proof.cid, int.from_bytes(proof.proof.tx_hash[-32:])) for proof in pending]
            await store.settle_proofs(times)
            assert store.head == len(figures.all.events)

    trio.run(fill_store)
    return Node(node_processes, tmp_path / "node")


def test_the_feed_and_snapshots_have_it(node: Node, tmp_path: Path) -> None:
    feed = Feed(node.url, patience=5)
    head, expected = feed.head(), node.feed()
    [bad] = [row for row in expected if row["fault"] is not None]
    assert (bad["event_cid"], bad["event_type"]) == (bytes(Figures().a.cid), "data")
    assert "signature" in bad["fault"] or "controller" in bad["fault"]

    plain = pa.Table.from_batches(feed.read(0, head.head, head.epoch), FEED)
    fill(tmp_path / "tables", plain, head.head)
    assert_tables(tmp_path / "tables", expected)

    write_snapshot(node.data_dir, str(tmp_path / "snapshots"))
    rows, _ = table(url=str(tmp_path / "snapshots"))
    assert rows.sort_by("position").cast(FEED) == plain
