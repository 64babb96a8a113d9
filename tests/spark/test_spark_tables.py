"""The Delta tables: gapless and exactly once, whatever is done twice, lost or broken off."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st
from spark_helpers import feed_rows, sample_events

from recon_node.ceramic import Event
from spark_sink import tables as tables_module
from spark_sink.errors import FeedChangedError, TablesError
from spark_sink.pipeline import Sink
from spark_sink.schema import FEED, RAW_EVENTS, STREAM_TIPS
from spark_sink.status import run_query, show, table_status
from spark_sink.tables import Tables, lock, query
from spark_sink.tips import compute_tips

EPOCH = "5f0c8a10-aaaa-bbbb-cccc-000000000001"


def contents(directory: Path, name: str, by: str) -> list[dict[str, Any]]:
    """A table's rows, read as any other Delta reader would."""
    rows = query({name: DeltaTable(directory / name)}, f"SELECT * FROM {name}")
    return rows.sort_by(by).to_pylist()


def assert_tables_hold(directory: Path, rows: pa.Table) -> None:
    """Both tables are what plain Python makes of these rows of the feed."""
    raw = [{**row, "stream_cid_partition": row["stream_cid"][-1] % 16} for row in rows.to_pylist()]
    assert contents(directory, "raw_events", "position") == raw
    tips = compute_tips(rows).sort_by("stream_cid").to_pylist()
    assert contents(directory, "stream_tips", "stream_cid") == tips


def test_rows_are_appended_once_and_tips_follow(sample: list[Event], tmp_path: Path) -> None:
    rows = feed_rows(sample)
    tables = Tables(tmp_path, EPOCH)
    sink = Sink(tables)
    assert (tables.raw_position, tables.tips_position) == (0, 0)
    assert tables.append(rows.slice(0, 400)) == 400
    assert tables.append(rows.slice(0, 400)) == 0
    assert tables.append(rows.slice(100, 500)) == 200  # half of it is known
    assert (tables.raw_position, tables.tips_position) == (600, 0)
    assert sink.catch_up(window=170) > 0
    assert (tables.raw_position, tables.tips_position) == (600, 600)
    assert sink.catch_up() == 0
    assert_tables_hold(tmp_path, rows.slice(0, 600))
    assert tables.append(rows) == 330
    sink.catch_up()
    assert_tables_hold(tmp_path, rows)


def test_doing_it_again_makes_no_version(sample: list[Event], tmp_path: Path) -> None:
    rows = feed_rows(sample[:100])
    sink = Sink(Tables(tmp_path, EPOCH))
    sink.tables.append(rows)
    sink.catch_up()
    before = [(t.name, t.version, t.files) for t in table_status(tmp_path)]
    again = Sink(Tables(tmp_path, EPOCH))
    assert again.catch_up() == 0
    assert again.tables.append(rows.slice(20)) == 0
    assert again.catch_up() == 0
    assert [(t.name, t.version, t.files) for t in table_status(tmp_path)] == before


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 60)),  # so many rows more
        st.tuples(st.just("replay"), st.integers(1, 60)),  # a batch that ends where the table does
        st.tuples(st.just("catch up"), st.integers(5, 50)),  # in windows of so many positions
        st.tuples(st.just("reopen"), st.just(0)),
        st.tuples(st.just("lose tips"), st.just(0)),
        st.tuples(st.just("tidy"), st.just(0)),
    ),
    max_size=9,
)


@settings(max_examples=25, deadline=None)
@given(STEPS)
def test_any_order_of_steps_ends_in_the_same_tables(steps: list[tuple[str, int]]) -> None:
    """Crashes between steps, replays in other cuts, a lost table: the end is always the same."""
    rows = feed_rows(sample_events()[:250])
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        sink = Sink(Tables(directory, EPOCH))
        for step, size in steps:
            position = sink.tables.raw_position
            if step == "append":
                sink.tables.append(rows.slice(0, position + size))
            elif step == "replay":
                sink.tables.append(rows.slice(max(0, position - size), size))
            elif step == "catch up":
                sink.catch_up(window=size)
            elif step == "lose tips":
                shutil.rmtree(directory / "stream_tips")
                sink = Sink(Tables(directory, EPOCH))
            elif step == "tidy":
                sink.tables.tidy()
            else:
                sink = Sink(Tables(directory, EPOCH))
        assert sink.tables.tips_position <= sink.tables.raw_position
        sink.tables.append(rows)
        sink.catch_up()
        assert_tables_hold(directory, rows)


def test_tidying_makes_few_files_and_keeps_what_they_say(
    sample: list[Event], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables_module, "_TIDY_EVERY", 10)
    rows = feed_rows(sample[:200])
    sink = Sink(Tables(tmp_path, EPOCH))
    for end in range(20, 201, 20):
        sink.tables.append(rows.slice(0, end))
        sink.catch_up()
        sink.tables.tidy()
    files = {table.name: table.files for table in table_status(tmp_path)}
    assert files["raw_events"] <= 16
    assert files["stream_tips"] <= 16
    assert_tables_hold(tmp_path, rows)
    reopened = Tables(tmp_path, EPOCH)
    assert (reopened.raw_position, reopened.tips_position) == (200, 200)


def test_a_gap_is_refused(sample: list[Event], tmp_path: Path) -> None:
    rows = feed_rows(sample[:50])
    tables = Tables(tmp_path, EPOCH)
    tables.append(rows.slice(0, 10))
    with pytest.raises(
        TablesError, match=r"ends at position 10.*39 from 12 to 50.*Delete the checkpoint"
    ):
        tables.append(rows.slice(11))
    with pytest.raises(TablesError, match="39 from 11 to 50"):
        tables.append(pa.concat_tables([rows.slice(0, 19), rows.slice(20)]))
    assert tables.raw_position == 10


def test_tables_of_another_log_are_refused(sample: list[Event], tmp_path: Path) -> None:
    Tables(tmp_path, EPOCH).append(feed_rows(sample[:5]))
    with pytest.raises(FeedChangedError, match=f"made from log {EPOCH}, but the node has log new"):
        Tables(tmp_path, "new")


def test_tips_that_are_ahead_of_their_events_are_refused(
    sample: list[Event], tmp_path: Path
) -> None:
    sink = Sink(Tables(tmp_path, EPOCH))
    sink.tables.append(feed_rows(sample[:5]))
    sink.catch_up()
    shutil.rmtree(tmp_path / "raw_events")
    with pytest.raises(
        TablesError, match=r"stream_tips is at position 5, but raw_events only at 0"
    ):
        Tables(tmp_path, EPOCH)


def test_tables_of_others_and_damaged_ones_are_refused(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "a" / "raw_events", pa.table({"x": [1]}))
    with pytest.raises(FeedChangedError, match="was made from log , but"):
        Tables(tmp_path / "a", EPOCH)
    path = tmp_path / "b" / "raw_events"
    DeltaTable.create(
        path,
        schema=FEED,
        configuration={"recon.epoch": EPOCH},
        raise_if_key_not_exists=False,
    )
    with pytest.raises(TablesError, match="has other columns"):
        Tables(tmp_path / "b", EPOCH)
    Tables(tmp_path / "c", EPOCH)
    (log,) = (tmp_path / "c" / "raw_events" / "_delta_log").glob("*.json")
    log.write_text("{")
    with pytest.raises(TablesError, match=r"cannot open the table .*raw_events"):
        Tables(tmp_path / "c", EPOCH)


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with (
        lock(tmp_path / "new"),
        pytest.raises(TablesError, match="another spark-sink is writing"),
        lock(tmp_path / "new"),
    ):
        pass
    with lock(tmp_path / "new"):
        pass
    (tmp_path / "file").touch()
    with pytest.raises(TablesError, match="cannot write to"), lock(tmp_path / "file"):
        pass


def test_the_tables_have_their_public_schemas(tmp_path: Path) -> None:
    Tables(tmp_path, EPOCH)
    for name, schema in (("raw_events", RAW_EVENTS), ("stream_tips", STREAM_TIPS)):
        table = DeltaTable(tmp_path / name)
        assert pa.schema(table.schema().to_arrow()) == schema
        assert table.metadata().partition_columns == ["stream_cid_partition"]


def test_status_and_queries_need_no_spark(sample: list[Event], tmp_path: Path) -> None:
    with pytest.raises(TablesError, match="there are no tables in"):
        table_status(tmp_path)
    sink = Sink(Tables(tmp_path, EPOCH))
    sink.tables.append(feed_rows(sample[:100]))
    sink.catch_up()
    raw, tips = table_status(tmp_path)
    assert (raw.name, raw.epoch, raw.position, raw.rows) == ("raw_events", EPOCH, 100, 100)
    assert (tips.name, tips.rows) == ("stream_tips", len({e.init for e in sample[:100]}))
    answer = run_query(tmp_path, "SELECT count(*) AS n FROM stream_tips WHERE diverged")
    assert answer["n"].to_pylist()[0] == sum(
        row["diverged"] for row in compute_tips(feed_rows(sample[:100])).to_pylist()
    )
    first = run_query(tmp_path, "SELECT event_cid FROM raw_events WHERE position = 1").to_pylist()
    assert show(first[0]["event_cid"]) == str(sample[0].cid)
    assert show([b"\xff", ("k", b"\x00"), 5]) == ["0xff", ["k", "0x00"], 5]
    with pytest.raises(TablesError, match="nothing"):
        run_query(tmp_path, "SELECT nothing FROM raw_events")
