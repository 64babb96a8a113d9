"""A file of a table that is missing or damaged ends a run with an error that says what to do."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from spark_helpers import Node, NodeProcesses, diagonal
from spark_oracle import assert_tables
from spark_samples import scenario
from support.waiting import wait_until

from spark_sink.cli import main
from spark_sink.errors import TablesError, cannot_write
from spark_sink.run.pipeline import Sink
from spark_sink.schema import FEED
from spark_sink.source.feed_client import Feed
from spark_sink.tables import tidying
from spark_sink.tables.directory import Tables


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


@pytest.mark.parametrize(
    ("name", "damage"),
    diagonal(["raw_events", "event_states", "stream_tips"], [cut, empty, Path.unlink]),
)
def test_a_file_with_rows(
    node: Node,
    sink: Sink,
    name: str,
    damage: Callable[[Path], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is met when the file is read, at the latest when small files are merged."""
    monkeypatch.setattr(tidying, "_COMMITS_PER_TIDY", 1)
    monkeypatch.setattr("spark_sink.tables.delta_files._MIN_FILES", 2)
    directory = sink.tables.directory
    for file in DeltaTable(directory / name).file_uris():
        damage(Path(file))
    head = Feed(node.url).head().head
    with pytest.raises(TablesError, match=r"damaged or missing.*spark-sink rebuild"):
        go_on(node, Sink(Tables(directory, node.epoch)), head)
    mended(node, directory, name)


@pytest.mark.parametrize("name", ["raw_events", "stream_tips"])
def test_what_a_table_says_of_itself_is_damaged(
    tmp_path: Path, node: Node, sink: Sink, name: str
) -> None:
    """The advice in the message helps; the other tables can be rebuilt, too."""
    directory = tmp_path / "damaged"
    made = Sink(Tables(directory, node.epoch))
    go_on(node, made, sink.tables.raw_position)
    cut(max((directory / name / "_delta_log").glob("*.json")))
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
    mended(node, directory, name)


def mended(node: Node, directory: Path, name: str) -> None:
    """Make a table anew and go on."""
    told = invoked("rebuild", "--tables", directory, name, "--url", node.url)
    assert told.exit_code == 0, told.output
    again = Sink(Tables(directory, node.epoch))
    go_on(node, again, Feed(node.url).head().head)
    assert_tables(directory, node.feed())


def invoked(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])
