"""Far behind the node, the derived tables take few long steps; in the end they are the same."""

from deltalake import DeltaTable
from spark_helpers import EPOCH, feed_rows
from spark_oracle import assert_tables

from spark_sink.run import pipeline
from spark_sink.run.pipeline import Sink
from spark_sink.tables import retention
from spark_sink.tables.staging import feed_rows as staged
from spark_sink.tables.tables import Tables


def test_the_derived_tables_wait_while_much_is_waiting_at_the_node(tmp_path, sample, monkeypatch):
    monkeypatch.setattr(pipeline, "_BACKLOG", 200)
    monkeypatch.setattr(pipeline, "_LONGEST_WAIT", 300)
    rows = feed_rows(sample)
    sink = Sink(Tables(tmp_path, EPOCH, ["stream_tips"]), head=lambda: len(sample))
    reached = []
    for batch in range(10):
        report = sink._commit([staged(rows.slice(batch * 100, 100))], batch, 0.0)
        assert report.rows == len(rows.slice(batch * 100, 100))
        reached.append(report.position)
    # After 300 it has waited for long enough; for 600 it may wait for as many as it has; at 800
    # there is little left at the node.
    assert reached == [0, 0, 300, 300, 300, 600, 600, 800, 900, 930]
    assert_tables(tmp_path, rows.to_pylist(), ("raw_events", "stream_tips"))


def test_a_run_that_ends_leaves_all_tables_up_to_date_and_tidy(tmp_path, sample, monkeypatch):
    monkeypatch.setattr(pipeline, "_IDLE_ROWS", 0)
    monkeypatch.setattr(retention, "_MAX_NEW_FILES", 20)
    monkeypatch.setattr(retention, "_MIN_FILES", 2)
    rows = feed_rows(sample)
    sink = Sink(Tables(tmp_path, EPOCH, ["stream_tips"]), head=lambda: 10**6)
    for batch in range(5):
        report = sink._commit([staged(rows.slice(batch * 180, 180))], batch, 0.0)
        assert report.position == 0
    files = len(DeltaTable(tmp_path / "raw_events").file_uris())
    sink.finish()
    assert sink.tables.positions == {"raw_events": 900, "stream_tips": 900}
    assert len(DeltaTable(tmp_path / "raw_events").file_uris()) < files
    assert_tables(tmp_path, rows.slice(0, 900).to_pylist(), ("raw_events", "stream_tips"))


def test_a_sink_that_has_caught_up_does_nothing(tmp_path):
    """Else a stop says that it waits for tables that are computed already."""
    sink = Sink(Tables(tmp_path, EPOCH))
    sink.catch_up()
    assert sink.doing is None
