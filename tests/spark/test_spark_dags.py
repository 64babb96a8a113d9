"""Tables without the events of DAGs (`--exclude-dags`): what stays, and who is refused."""

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from nacl.signing import SigningKey
from spark_helpers import EPOCH, Served, feed_rows, read_on, silent
from spark_oracle import assert_tables, table_rows

from recon_node.ceramic import Event
from recon_node.ceramic.builder import data_event, init_event
from recon_node.dag.dag_events import DAG_MODEL, Identifier, replica_event, shard_event
from recon_node.ipld import CID, DAG_CBOR
from spark_sink.errors import TablesError
from spark_sink.run.pipeline import Sink
from spark_sink.schema import DERIVED, RAW
from spark_sink.tables.tables import Tables
from spark_sink.upkeep.maintenance import rebuild

KEY = SigningKey(b"\1" * 32)
ROOT = CID.of(DAG_CBOR, b"root")


def mixed(sample: list[Event]) -> tuple[pa.Table, set[int]]:
    """A feed with events of DAGs among others, and the positions of the former."""
    look_alike = init_event(KEY, DAG_MODEL, {"sep": "dag", "shard": b"no sort key"})
    shard = shard_event(KEY, ROOT, b"a shard" * 1_000)
    on_top = data_event(KEY, shard, [shard.cid], [{"op": "add", "path": "/x", "value": 1}])
    dags = [
        shard,
        replica_event(KEY, ROOT, b"a replica"),
        replica_event(KEY, Identifier(bytes(KEY.verify_key)), b"a publish"),
    ]
    events = [*sample[:20], *dags, *sample[20:40], look_alike, on_top, *sample[40:60]]
    positions = {at for at, event in enumerate(events, 1) if event in dags}
    return feed_rows(events), positions


def append(directory: Path, rows: pa.Table, exclude_dags: bool | None = True) -> Tables:
    sink = Sink(Tables(directory, EPOCH, exclude_dags=exclude_dags))
    for upto in (15, 22, len(rows)):
        read_on(sink, rows.slice(0, upto))
    return sink.tables


def assert_without_dags(directory: Path, rows: pa.Table, dags: set[int]) -> None:
    expected = [{**row, "car": b""} if row["position"] in dags else row for row in rows.to_pylist()]
    raw = table_rows(directory, RAW)
    assert [{name: row[name] for name in rows.schema.names} for row in raw] == expected
    left_out = {row["stream_cid"] for row in expected if not row["car"]}
    others = [row for row in expected if row["stream_cid"] not in left_out]
    assert len(others) == len(rows) - len(dags) - 1  # what is on top of one has no stream left
    assert_tables(directory, others, DERIVED)


def test_rows_stay_and_bytes_go_and_no_other_table_has_them(sample, tmp_path):
    rows, dags = mixed(sample)
    tables = append(tmp_path, rows)
    assert set(tables.positions.values()) == {len(rows)}
    assert_without_dags(tmp_path, rows, dags)


def test_tables_keep_what_they_were_made_with(sample: list[Event], tmp_path: Path) -> None:
    rows, _ = mixed(sample)
    append(tmp_path / "without", rows)
    with pytest.raises(TablesError, match=r"without was made without .*: run with --exclude-dags"):
        Tables(tmp_path / "without", EPOCH, exclude_dags=False)
    append(tmp_path / "with", rows, exclude_dags=False)
    with pytest.raises(TablesError, match=r"with was made with .*: run without --exclude-dags"):
        Tables(tmp_path / "with", EPOCH, exclude_dags=True)
    shutil.rmtree(tmp_path / "with" / "stream_tips")
    (tmp_path / "without" / "stream_tips").rename(tmp_path / "with" / "stream_tips")
    with pytest.raises(TablesError, match=r"with/stream_tips was made without the events of DAGs"):
        Tables(tmp_path / "with", EPOCH)


@pytest.mark.parametrize("lost", ["stream_states", RAW])
def test_a_rebuild_leaves_out_what_was_left_out(sample, tmp_path, lost):
    rows, dags = mixed(sample)
    append(tmp_path, rows)
    (tmp_path / lost).rename(tmp_path / f"lost {lost}")
    rebuild(tmp_path, RAW, Served(rows), silent)
    rebuild(tmp_path, "stream_tips", None, silent)
    append(tmp_path, rows)
    assert_without_dags(tmp_path, rows, dags)
