"""A file of a table that is missing or damaged ends a run with an error that says what to do."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from spark_helpers import Node, NodeProcesses, wait_until
from spark_oracle import assert_tables
from spark_samples import scenario
from test_spark_crashes import assert_parquet

from spark_sink.cli import main
from spark_sink.errors import TablesError, cannot_write
from spark_sink.run.pipeline import Sink
from spark_sink.schema import FEED
from spark_sink.source.feed import Feed
from spark_sink.tables import delta
from spark_sink.tables.directory import Format, Tables
from spark_sink.tables.status import table_status


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def empty(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


@pytest.fixture(scope="module")
def node(node_processes: NodeProcesses, tmp_path_factory: pytest.TempPathFactory) -> Node:
    """A node with the events of the scenario; not to be changed."""
    trap = scenario()
    node = Node(node_processes, tmp_path_factory.mktemp("full") / "node")
    node.add(trap.events)
    wait_until(lambda: len(node.feed()) == len(trap.events), "all anchors are looked up")
    return node


@pytest.fixture(scope="module")
def half(node: Node, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables that are half as far as the node; not to be changed."""
    directory = tmp_path_factory.mktemp("half")
    go_on(node, Sink(Tables(directory, node.epoch)), Feed(node.url).head().head // 2)
    return directory


@pytest.fixture
def sink(node: Node, half: Path, tmp_path: Path) -> Sink:
    """A copy of the tables that are half as far as the node."""
    shutil.copytree(half, tmp_path / "tables")
    return Sink(Tables(tmp_path / "tables", node.epoch))


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
    monkeypatch.setattr(delta, "_COMMITS_PER_TIDY", 1)
    monkeypatch.setattr("spark_sink.tables.delta_files._MIN_FILES", 2)
    directory = sink.tables.directory
    for file in DeltaTable(directory / name).file_uris():
        damage(Path(file))
    head = Feed(node.url).head().head
    with pytest.raises(TablesError, match=r"damaged or missing.*spark-sink rebuild"):
        go_on(node, Sink(Tables(directory, node.epoch)), head)
    mended(node, directory, name, "delta")


def test_a_parquet_table(tmp_path: Path, node: Node, sink: Sink) -> None:
    directory = tmp_path / "parquet"
    made = Sink(Tables(directory, node.epoch, table_format="parquet"))
    go_on(node, made, sink.tables.raw_position)
    first, *others = sorted((directory / "stream_tips").glob("part-*"))
    for file in others:
        cut(file)
    head = Feed(node.url).head().head
    with pytest.raises(TablesError, match=r"damaged or missing.*spark-sink rebuild"):
        go_on(node, made, head)
    cut(first)
    with pytest.raises(
        TablesError, match=r"stream_tips is damaged: .*spark-sink rebuild stream_tips"
    ):
        Tables(directory, node.epoch, table_format="parquet")
    with pytest.raises(
        TablesError, match=r"stream_tips is damaged: .*spark-sink rebuild stream_tips"
    ):
        table_status(directory)
    mended(node, directory, "stream_tips", "parquet")


@pytest.mark.parametrize("name", ["raw_events", "event_states", "stream_tips"])
def test_a_parquet_file_that_is_gone_is_missed(
    tmp_path: Path, node: Node, sink: Sink, name: str
) -> None:
    """By a run under way, by the next one, and by who asks how the tables are."""
    directory = tmp_path / "parquet"
    made = Sink(Tables(directory, node.epoch, table_format="parquet"))
    go_on(node, made, sink.tables.raw_position)
    Tables(directory, node.epoch, table_format="parquet")
    for file in (directory / name).glob("part-*"):
        file.unlink()
    with pytest.raises(TablesError, match=r"damaged or missing.*spark-sink rebuild"):
        go_on(node, made, Feed(node.url).head().head)
    advice = rf"{name} is damaged: part-.* missing; rebuild it with spark-sink rebuild {name}"
    with pytest.raises(TablesError, match=advice):
        Tables(directory, node.epoch, table_format="parquet")
    with pytest.raises(TablesError, match=advice):
        table_status(directory)
    mended(node, directory, name, "parquet")


def test_a_parquet_table_of_an_older_version_names_no_files(
    tmp_path: Path, node: Node, sink: Sink
) -> None:
    directory = tmp_path / "parquet"
    made = Sink(Tables(directory, node.epoch, table_format="parquet"))
    go_on(node, made, sink.tables.raw_position)
    for path in directory.glob("*/_position.json"):
        facts = json.loads(path.read_text())
        assert facts.pop("files")
        path.write_text(json.dumps(facts))
    first = directory / "raw_events" / "part-000000000001.parquet"
    first.rename(tmp_path / "away")
    with pytest.raises(TablesError, match=f"{first.name} is missing"):
        Tables(directory, node.epoch, table_format="parquet")
    (tmp_path / "away").rename(first)
    again = Sink(Tables(directory, node.epoch, table_format="parquet"))
    go_on(node, again, Feed(node.url).head().head)
    assert all(json.loads(p.read_text())["files"] for p in directory.glob("*/_position.json"))
    assert_parquet(directory, node.feed())


@pytest.mark.parametrize("table_format", ["delta", "parquet"])
@pytest.mark.parametrize("name", ["raw_events", "event_states", "stream_tips"])
def test_what_a_table_says_of_itself_is_damaged(
    tmp_path: Path, node: Node, sink: Sink, name: str, table_format: Format
) -> None:
    """The advice in the message helps; the other tables can be rebuilt, too."""
    directory = tmp_path / "damaged"
    made = Sink(Tables(directory, node.epoch, table_format=table_format))
    go_on(node, made, sink.tables.raw_position)
    if table_format == "delta":
        damaged = max((directory / name / "_delta_log").glob("*.json"))
    else:
        damaged = directory / name / "_position.json"
    cut(damaged)
    told = invoked("rebuild", "--tables", directory, name, "--url", node.url)
    assert told.exit_code == 1
    assert f"cannot open the table {directory / name}: " in told.output
    assert "if it is damaged, delete it" in told.output
    if name != "raw_events":
        told = invoked("rebuild", "--tables", directory, "stream_states")
        assert told.exit_code == 0, told.output
    shutil.rmtree(directory / name)
    if name == "raw_events":
        assert f"spark-sink rebuild {name} --tables {directory} --url URL" in told.output
    mended(node, directory, name, table_format)


def mended(node: Node, directory: Path, name: str, table_format: Format) -> None:
    """Make a table anew and go on."""
    told = invoked("rebuild", "--tables", directory, name, "--url", node.url)
    assert told.exit_code == 0, told.output
    again = Sink(Tables(directory, node.epoch, table_format=table_format))
    go_on(node, again, Feed(node.url).head().head)
    check = assert_tables if table_format == "delta" else assert_parquet
    check(directory, node.feed())


def invoked(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])
