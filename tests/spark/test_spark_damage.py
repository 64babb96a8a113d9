"""A file of a table that is gone or damaged ends a run with an error that says what to do."""

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from spark_helpers import Node, wait_until
from spark_oracle import assert_tables
from spark_samples import scenario

from spark_sink.cli import main
from spark_sink.errors import TablesError, cannot_write
from spark_sink.run.pipeline import Sink
from spark_sink.schema import FEED
from spark_sink.source.feed import Feed
from spark_sink.tables import delta
from spark_sink.tables.directory import Tables


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def empty(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


@pytest.fixture
def sink(node: Node, tmp_path: Path) -> Sink:
    """Tables that are half as far as the node."""
    trap = scenario()
    node.add(trap.events)
    wait_until(lambda: len(node.feed()) == len(trap.events), "all anchors are looked up")
    made = Sink(Tables(tmp_path / "tables", node.epoch))
    go_on(node, made, len(trap.events) // 2)
    return made


def go_on(node: Node, sink: Sink, upto: int) -> None:
    batches = Feed(node.url).read(sink.tables.raw_position, upto, node.epoch)
    sink.tables.append(pa.Table.from_batches(batches, FEED))
    try:
        sink.catch_up()
        sink.tables.tidy()
    except DeltaError as error:  # as the sink does
        raise cannot_write(sink.tables.directory, error) from error


@pytest.mark.parametrize("damage", [cut, empty, Path.unlink])
@pytest.mark.parametrize("name", ["raw_events", "event_states", "stream_tips"])
def test_a_delta_table(
    node: Node,
    sink: Sink,
    name: str,
    damage: Callable[[Path], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is met when the file is read, at the latest when small files are merged."""
    monkeypatch.setattr(delta, "_TIDY_EVERY", 1)
    monkeypatch.setattr("spark_sink.tables.delta_files._MANY", 2)
    directory = sink.tables.directory
    for file in DeltaTable(directory / name).file_uris():
        damage(Path(file))
    head = Feed(node.url).head().head
    with pytest.raises(TablesError, match=r"damaged or gone.*spark-sink rebuild"):
        go_on(node, Sink(Tables(directory, node.epoch)), head)
    told = CliRunner().invoke(
        main, ["rebuild", "--tables", str(directory), name, "--url", node.url]
    )
    assert told.exit_code == 0, told.output
    again = Sink(Tables(directory, node.epoch))
    go_on(node, again, head)
    assert_tables(directory, node.feed())


def test_a_parquet_table(tmp_path: Path, node: Node, sink: Sink) -> None:
    directory = tmp_path / "parquet"
    made = Sink(Tables(directory, node.epoch, table_format="parquet"))
    go_on(node, made, sink.tables.raw_position)
    largest = max((directory / "stream_tips").glob("part-*"), key=lambda f: f.stat().st_size)
    first = min((directory / "stream_tips").glob("part-*"))
    cut(largest)
    with pytest.raises(TablesError, match=r"damaged or gone.*spark-sink rebuild"):
        go_on(node, made, Feed(node.url).head().head)
    cut(first)
    with pytest.raises(TablesError, match=r"stream_tips is damaged: .*delete the table"):
        Tables(directory, node.epoch, table_format="parquet")
