"""A file of a table that is missing or damaged ends a run with an error that says what to do."""

import os
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError
from spark_helpers import Node, NodeProcesses, told
from spark_oracle import assert_tables
from spark_samples import TRAP

from spark_sink.errors import TablesError, cannot_open, cannot_write, one_line
from spark_sink.run.pipeline import Sink
from spark_sink.schema import FEED
from spark_sink.source.feed_client import Feed
from spark_sink.tables import retention
from spark_sink.tables.delta_log import query
from spark_sink.tables.tables import Tables


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def empty(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


@pytest.fixture(scope="module")
def node(node_processes: NodeProcesses, tmp_path_factory: pytest.TempPathFactory) -> Node:
    """A node with the events of the scenario; not to be changed."""
    node = Node(node_processes, tmp_path_factory.mktemp("full") / "node")
    node.add_scenario(TRAP)
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
    ("name", "damage"), [("raw_events", cut), ("event_states", empty), ("stream_tips", Path.unlink)]
)
def test_a_file_with_rows(node, sink, name, damage, monkeypatch):
    """It is met when the file is read, at the latest when small files are merged."""
    monkeypatch.setattr(retention, "_COMMITS_PER_TIDY", 1)
    monkeypatch.setattr("spark_sink.tables.retention._MIN_FILES", 2)
    directory = sink.tables.directory
    for file in DeltaTable(directory / name).file_uris():
        damage(Path(file))
    head = Feed(node.url).head().head
    with pytest.raises(TablesError, match=rf"damaged or missing.*spark-sink rebuild {name}"):
        go_on(node, Sink(Tables(directory, node.epoch)), head)
    mended(node, directory, name)


def test_a_view_is_not_rebuilt_but_created_again(tmp_path: Path) -> None:
    view = tmp_path / "views" / "posts"
    write_deltalake(view, pa.table({"stream_cid": [b"cid"]}))
    for file in view.glob("*.parquet"):
        file.unlink()
    with pytest.raises(TablesError, match=r"missing.*: spark-sink view drop posts, then view"):
        query(DeltaTable(view), "SELECT * FROM t")


@pytest.mark.parametrize(
    ("fault", "advice"),
    [
        ("Read-only file system", "the file system is mounted read-only"),
        ("No space left on device", "the disk is full; free some space and start again"),
    ],
)
def test_what_a_file_system_refuses_is_not_damage(tmp_path: Path, fault: str, advice: str) -> None:
    """A table that is not there yet is a directory that delta-rs makes before it looks."""
    error = OSError(f"Could not create local directory Error: Os {{ message: {fault} }}")
    assert f"posts: {advice}" in str(cannot_open(tmp_path / "views" / "posts", error))


@pytest.mark.parametrize("name", ["raw_events", "stream_tips", "unprocessed_streams"])
def test_what_a_table_says_of_itself_is_damaged(node: Node, sink: Sink, name: str) -> None:
    """The advice in the message helps; the other tables can be rebuilt, too."""
    directory = sink.tables.directory
    cut(max((directory / name / "_delta_log").glob("*.json")))
    refused = told("rebuild", "--tables", directory, name, "--url", node.url, code=1)
    assert f"cannot open the table {directory / name}: " in refused
    assert "if it is damaged, delete it" in refused
    if name != "stream_tips":
        url = " --url URL" if name == "raw_events" else ""
        assert f"spark-sink rebuild {name} --tables {directory}{url}" in refused
    if name != "raw_events":
        told("rebuild", "--tables", directory, "stream_states")
    shutil.rmtree(directory / name)
    mended(node, directory, name)


def test_advice_is_in_sight_behind_what_the_library_says(sink: Sink) -> None:
    """Of a gap in a log, it says all that it knows about the entries beside it."""
    directory = sink.tables.directory
    *_, gone, _ = sorted((directory / "stream_tips" / "_delta_log").glob("*.json"))
    gone.unlink()
    said = told("check", "--tables", directory, code=1)
    assert "if it is damaged, delete it, and it will be rebuilt" in said
    assert len(said) < 500 + len(str(directory))


def test_the_stack_of_a_library_is_not_part_of_a_message() -> None:
    assert (
        one_line(OSError("no JSON\n   0: <unknown>\n   1: main\n        at ./main.c")) == "no JSON"
    )


def mended(node: Node, directory: Path, name: str) -> None:
    """Make a table anew and go on."""
    told("rebuild", "--tables", directory, name, "--url", node.url)
    again = Sink(Tables(directory, node.epoch))
    go_on(node, again, Feed(node.url).head().head)
    assert_tables(directory, node.feed())
