"""The Delta tables: gapless and exactly once, whatever is done twice, lost or broken off."""

import json
import shutil
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, WriterProperties, write_deltalake
from deltalake.transaction import AddAction
from hypothesis import given, settings
from hypothesis import strategies as st
from spark_helpers import EPOCH, asked, feed_rows, filled, read_on
from spark_oracle import assert_tables
from spark_samples import DEFINITION, KEY, TRAP, Scenario, change, document, replace
from support import sdk_sample

from recon_node.ceramic import Event
from recon_node.ceramic.builder import model_event
from recon_node.ipld import CID, DAG_CBOR
from spark_sink.derive import derivation as derive
from spark_sink.errors import FeedChangedError, TablesError
from spark_sink.query.show import show
from spark_sink.run.pipeline import Sink
from spark_sink.schema import DERIVED, FEED, TABLES
from spark_sink.tables import delta_log, retention, sink_table
from spark_sink.tables.catalog import table_status
from spark_sink.tables.retention import Retention
from spark_sink.tables.staging import DataFile
from spark_sink.tables.tables import Tables, lock


def test_rows_are_appended_once_and_tips_follow(sample: list[Event], tmp_path: Path) -> None:
    rows = feed_rows(sample[:300])
    tables = Tables(tmp_path, EPOCH)
    sink = Sink(tables)
    assert (tables.raw_position, tables.position) == (0, 0)
    assert tables.append(rows.slice(0, 130)) == 130
    assert tables.append(rows.slice(0, 130)) == 0
    assert tables.append(rows.slice(30, 170)) == 70  # some of it is known
    assert (tables.raw_position, tables.position) == (200, 0)
    assert sink.catch_up(step_length=60) > 0
    assert (tables.raw_position, tables.position) == (200, 200)
    assert sink.catch_up() == 0
    assert_tables(tmp_path, rows.slice(0, 200).to_pylist())
    assert tables.append(rows) == 100
    sink.catch_up()
    assert_tables(tmp_path, rows.to_pylist())


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 60)),  # so many rows more
        st.tuples(st.just("replay"), st.integers(1, 60)),  # a batch that ends where the table does
        st.tuples(st.just("catch up"), st.integers(5, 50)),  # in windows of so many positions
        st.tuples(st.just("in portions"), st.integers(20, 90)),  # each partition for itself
        st.tuples(st.just("reopen"), st.just(0)),
        st.tuples(st.just("lose a table"), st.integers(0, 3)),
        st.tuples(st.just("some"), st.integers(0, 3)),
        st.tuples(st.just("tidy"), st.just(0)),
    ),
    max_size=9,
)


@settings(max_examples=4, deadline=None)
@given(STEPS)
def test_any_order_of_steps_ends_in_the_same_tables(steps: list[tuple[str, int]]) -> None:
    """Crashes between steps, replays in other cuts, a lost table: the end is always the same."""
    rows = feed_rows([*TRAP.events, *sdk_sample.events()[:100]], TRAP.times)
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
                sink.catch_up(step_length=size)
            elif step == "in portions":
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(derive, "_SHORT_POSITIONS", 0)
                    sink.catch_up(step_length=size)
            elif step == "lose a table":
                shutil.rmtree(directory / DERIVED[size])
                sink = Sink(Tables(directory, EPOCH))
            elif step == "some":  # kept up by a run that was told of one table
                one = Sink(Tables(directory, EPOCH, [DERIVED[size]]))
                one.catch_up()
                sink = Sink(Tables(directory, EPOCH))
            elif step == "tidy":
                sink.tables.tidy()
            else:
                sink = Sink(Tables(directory, EPOCH))
        assert sink.tables.position <= sink.tables.raw_position
        sink.tables.append(rows)
        sink.catch_up()
        assert_tables(directory, rows.to_pylist())


def test_a_model_arrives_in_a_step_that_is_divided(tmp_path, monkeypatch):
    """Whoever computes documents in one partition has looked for it before, in vain, and is not
    the one who computes the model in another."""
    monkeypatch.setattr(derive, "_SHORT_POSITIONS", 0)
    derive.worker_computer.cache_clear()
    model = model_event(KEY, DEFINITION)
    documents = [document(model.stream_id(), {"n": 1}, bytes([n])) for n in range(40)]
    forbidden = [change(init, replace("/n", 2)) for init in documents]
    rows = feed_rows([*documents, model, *forbidden])
    filled(tmp_path, rows, len(documents), len(rows))
    assert_tables(tmp_path, rows.to_pylist())


def test_tidying_makes_few_files_and_keeps_what_they_say(sample, tmp_path, monkeypatch):
    """However many commits a step makes."""
    monkeypatch.setattr(retention, "_COMMITS_PER_TIDY", 6)
    monkeypatch.setattr(retention, "_MIN_FILES", 2)
    rows = feed_rows(sample[:200])
    sink = Sink(Tables(tmp_path, EPOCH))
    sink.tables.set_retention(Retention(1.0))  # from here on, versions are odd when a step ends
    for end in range(40, 201, 40):
        sink.tables.append(rows.slice(0, end))
        sink.tables.set_retention(Retention(float(end)))
        sink.catch_up()
        sink.tables.tidy()
    files = {table.name: table.files for table in table_status(tmp_path)}
    for name in ("raw_events", "event_states", "stream_tips"):
        assert files[name] <= 2 * 16
    assert_tables(tmp_path, rows.to_pylist())
    reopened = Tables(tmp_path, EPOCH)
    assert set(reopened.positions.values()) == {200}
    # Each change once: merging files is not a change.
    changes = pa.table(DeltaTable(tmp_path / "raw_events").load_cdf(starting_version=0).read_all())
    assert sorted(changes["position"].to_pylist()) == list(range(1, 201))


def test_what_large_batches_leave_is_tidied_when_there_is_time(sample, tmp_path, monkeypatch):
    monkeypatch.setattr(retention, "_MAX_NEW_FILES", 30)
    monkeypatch.setattr(retention, "_MIN_FILES", 2)
    rows = feed_rows(sample[:300])
    tables = Tables(tmp_path, EPOCH, ())

    def files() -> int:
        return len(DeltaTable(tmp_path / "raw_events").file_uris())

    for end in (100, 200, 299):
        tables.append(rows.slice(0, end))
        tables.tidy()
    many = files()
    assert many > 30
    tables.append(rows)
    tables.tidy(idle=True)
    few = files()
    assert few < many
    tables.tidy(idle=True)
    assert files() == few
    assert_tables(tmp_path, rows.to_pylist(), ("raw_events",))


def test_what_delta_rs_merges_into_a_table_is_in_small_row_groups(sample, tmp_path, monkeypatch):
    """And the first rows of streams are sorted, as those of events always are."""
    small = WriterProperties(compression="SNAPPY", max_row_group_size=4)
    monkeypatch.setattr(sink_table, "WRITER", small)
    monkeypatch.setattr(sink_table, "MOST_ROWS", 0)
    rows = feed_rows(sample[:300])
    sink = filled(tmp_path, rows.slice(0, 150))
    for uri in DeltaTable(tmp_path / "stream_tips").file_uris():
        streams = pq.read_table(uri, columns=["stream_cid"], partitioning=None)["stream_cid"]
        assert streams.to_pylist() == sorted(streams.to_pylist())
    read_on(sink, rows)
    files = [pq.read_metadata(f) for f in DeltaTable(tmp_path / "stream_tips").file_uris()]
    assert max(file.num_rows for file in files) > 4
    merged = [file for file in files if "parquet-rs" in file.created_by]
    assert merged
    for file in merged:
        groups = [file.row_group(i) for i in range(file.num_row_groups)]
        assert all(group.num_rows <= 4 for group in groups)
        assert groups[0].column(0).compression == "SNAPPY"
    assert_tables(tmp_path, rows.to_pylist())


def test_history_as_other_writers_write_it(tmp_path: Path) -> None:
    Tables(tmp_path, EPOCH, ())
    for text, words in (
        ("7 days", timedelta(days=7)),
        ("interval 1 week", timedelta(weeks=1)),
        ("INTERVAL 1 day 12 Hours", timedelta(hours=36)),
        ("interval 2 months", timedelta(days=62)),
        ("interval 1.5 hours 100 milliseconds", timedelta(minutes=90, seconds=0.1)),
    ):
        assert retention.retention_of(told_history(tmp_path, text)) == words
    for text in ("", "interval", "a week", "interval 1 moon", "interval 1", "-1 day"):
        # With the name of the property, so that it can be set right.
        with pytest.raises(TablesError, match=r"property delta.deletedFileRetentionDuration = "):
            retention.retention_of(told_history(tmp_path, text))


def told_history(tables: Path, text: str) -> DeltaTable:
    table = DeltaTable(tables / "raw_events")
    table.alter.set_table_properties({"delta.deletedFileRetentionDuration": text})
    return DeltaTable(tables / "raw_events")


@given(st.lists(st.integers(1, 10**9), max_size=100))
def test_files_of_about_the_same_size_are_merged(sizes: list[int]) -> None:
    files = [DataFile(Path(), str(n), 0, 1, size, "position", n, n) for n, size in enumerate(sizes)]
    groups = list(retention._groups_of_like_size(files))
    merged = [file for group in groups for file in group]
    assert len(set(merged)) == len(merged)
    for group in groups:
        assert len(group) >= retention._MIN_FILES
        total = group[0].size
        for file in group[1:]:
            assert total < retention._MAX_MERGE_BYTES
            assert file.size <= retention._MAX_RATIO * total
            total += file.size
    equal = len(files) >= retention._MIN_FILES and len(set(sizes)) == 1
    assert groups or not equal


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


def test_tables_that_are_ahead_of_their_events_are_refused(sample, tmp_path):
    filled(tmp_path, feed_rows(sample[:5]))
    shutil.rmtree(tmp_path / "raw_events")
    with pytest.raises(TablesError, match=r"events is at position 5, but raw_events only at 0"):
        Tables(tmp_path, EPOCH)


def test_tables_of_others_and_damaged_ones_are_refused(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "a" / "raw_events", pa.table({"x": [1]}))
    with pytest.raises(TablesError, match=r"raw_events was not made by spark-sink: point --tables"):
        Tables(tmp_path / "a", EPOCH)
    path = tmp_path / "b" / "raw_events"
    DeltaTable.create(
        path, schema=FEED, configuration={"recon.epoch": EPOCH}, raise_if_key_not_exists=False
    )
    with pytest.raises(TablesError, match="has other columns"):
        Tables(tmp_path / "b", EPOCH)
    Tables(tmp_path / "c", EPOCH)
    (log,) = (tmp_path / "c" / "raw_events" / "_delta_log").glob("*.json")
    log.write_text("{")
    with pytest.raises(
        TablesError, match=r"cannot open the table .*raw_events: .*rebuild raw_events .*--url URL"
    ):
        Tables(tmp_path / "c", EPOCH)
    with pytest.raises(TablesError, match=r"cannot open the table .*raw_events"):
        table_status(tmp_path / "c")


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
    for name, spec in TABLES.items():
        table = DeltaTable(tmp_path / name)
        assert pa.schema(table.schema().to_arrow()) == spec.schema
        assert table.metadata().partition_columns == ["stream_cid_partition"]


DOCS = Path(__file__).parents[2] / "docs" / "tables.md"
_TYPES = {
    pa.int8(): "byte",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.timestamp("us", "UTC"): "timestamp",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.bool_(): "boolean",
}


def documented(name: str) -> list[tuple[str, str]]:
    """The columns of a table and their types, as docs/tables.md has them."""
    section = DOCS.read_text().split(f"\n## {name}\n")[1].split("\n## ")[0]
    cells = [line.split("|")[1:3] for line in section.splitlines() if line.startswith("| ")]
    rows = [(column.strip(), type_.strip()) for column, type_ in cells]
    return [row for row in rows if row[0] not in ("column", "option")]


def type_of(field: pa.Field) -> str:
    kind = field.type
    if pa.types.is_map(kind):
        text = "map of string to binary"
    elif pa.types.is_list(kind):
        element = "struct" if pa.types.is_struct(kind.value_type) else _TYPES[kind.value_type]
        text = f"array of {element}"
    else:
        text = _TYPES[kind]
    return text + (", null" if field.nullable else "")


@pytest.mark.parametrize("name", TABLES)
def test_the_documentation_has_the_schemas(name: str) -> None:
    assert documented(name) == [(f.name, type_of(f)) for f in TABLES[name].schema]


def test_a_late_anchor_changes_the_tip_as_an_update(tmp_path: Path) -> None:
    """The row is replaced, and who follows the changes sees what was and what is."""
    trap = Scenario()
    model = model_event(KEY, DEFINITION)
    init = document(model.stream_id(), {"t": ""})
    left, right = (change(init, replace("/t", text)) for text in ("left", "right"))
    trap.add(model, init, left, right)
    first = trap.anchor(left, 200)
    second = trap.anchor(right, 100)
    rows = feed_rows(trap.events, trap.times)
    filled(tmp_path, rows, 5, 6)
    tip = f"SELECT event_cid FROM stream_tips WHERE stream_cid = from_cid('{init.cid}')"
    assert asked(tmp_path, tip) == [(str(second.cid),)]
    assert asked(tmp_path, tip, 1) == [(str(first.cid),)]
    for name, was, now in (
        ("stream_tips", first.cid, second.cid),
        ("stream_states", b'"left"', b'"right"'),
    ):
        changes = DeltaTable(tmp_path / name).load_cdf(starting_version=2).read_all()
        changes_by_type = {row["_change_type"]: row for row in pa.table(changes).to_pylist()}
        assert set(changes_by_type) == {"update_preimage", "update_postimage"}
        column = "event_cid" if name == "stream_tips" else "data"
        assert was in changes_by_type["update_preimage"][column]
        assert now in changes_by_type["update_postimage"][column]


def test_the_rows_of_files_without_statistics_are_counted(sample, tmp_path):
    """Another writer may leave them out."""
    tables = Tables(tmp_path, EPOCH, ())
    tables.append(feed_rows(sample[:50]))
    added = delta_log.added

    def without_statistics(*args: Any) -> AddAction:
        file = added(*args)
        facts = (file.size, file.partition_values, file.modification_time, file.data_change)
        return AddAction(file.path, *facts, "{}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delta_log, "added", without_statistics)
        tables.append(feed_rows(sample[:80]))
    (status,) = table_status(tmp_path)
    assert (status.rows, status.position) == (80, 80)


def test_how_values_are_shown(sample: list[Event]) -> None:
    cid, stream = sample[0].cid, sample[0].stream_id()
    assert show(bytes(cid)) == str(cid)
    assert show(stream.to_bytes()) == str(stream)
    assert show(b'{"content":[1]}') == {"content": [1]}
    assert show([b"\xff", ("k", b"\x00"), {"x": b"{"}, 5]) == [
        "0xff",
        ["k", "0x00"],
        {"x": "0x7b"},
        5,
    ]


@pytest.mark.parametrize(
    "data",
    [
        b'{"a":NaN}',
        b'{"a":1e999999}',
        b'{"a":"\\ud800"}',
        b'{"a":' * 3000,
        b'{"a":Infinity}',
        b'{"a":' * 300 + b"1" + b"}" * 300,
    ],
)
def test_bytes_of_strangers_are_no_json_that_others_refuse(data: bytes) -> None:
    assert show({"unique": data}) == {"unique": "0x" + data.hex()}


def test_a_row_that_is_too_large_is_sent_without_its_largest_fields() -> None:
    kafka = pytest.importorskip("spark_sink.export.kafka").Kafka(
        "127.0.0.1:1", "p", {"message.max.bytes": "4000"}
    )
    row = {"stream_cid": CID.of(DAG_CBOR, b"x"), "data": b'{"content":"' + b"x" * 5000 + b'"}'}
    shown = json.loads(kafka._text(row))
    assert shown == {"stream_cid": str(row["stream_cid"]), "data": None, "left_out": ["data"]}
    assert json.loads(kafka._text({**row, "data": b"{}"}))["data"] == {}
