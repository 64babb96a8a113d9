"""`spark-sink verify`: the tables against a node, whole, by model, and event by event."""

import json
import operator
import shutil
import sqlite3
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from nacl.signing import SigningKey
from spark_helpers import Node, NodeProcesses, filled, printed, told
from support.waiting import kept_port

from recon_node.base.terminal import DEFAULT_URL
from recon_node.ceramic import Event
from recon_node.ceramic.builder import data_event, init_event
from recon_node.ceramic.init_header import METAMODEL
from recon_node.recon import Sha256a
from spark_sink.cli.table_commands import verify
from spark_sink.schema import FEED
from spark_sink.source.feed_client import Feed

CIP = Path(__file__).parents[2] / "docs" / "tables.md"


@pytest.fixture(scope="module")
def node(node_processes: NodeProcesses, tmp_path_factory: pytest.TempPathFactory) -> Node:
    return Node(node_processes, tmp_path_factory.mktemp("verified") / "node")


@pytest.fixture(scope="module")
def sound(node: Node, sample: list[Event], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tables made of the node's feed; not to be changed."""
    node.add(sample[:400])
    tables = tmp_path_factory.mktemp("sound") / "tables"
    filled(
        tables,
        pa.Table.from_batches(Feed(node.url).read(0, 400, node.epoch), FEED),
        epoch=node.epoch,
    )
    node.add(sample[400:500])  # what the tables have not read yet is not compared
    return tables


def verified(node: Node, tables: Path, code: int = 0) -> dict[str, Any]:
    command = ("verify", "--tables", tables, "--url", node.url, "--json")
    return dict(json.loads(printed(*command, code=code)))


def keys_of(tables: Path) -> list[bytes]:
    column = DeltaTable(tables / "raw_events").to_pyarrow_table(columns=["event_id"]).column(0)
    return [bytes(key) for key in column.to_pylist()]


def test_the_node_of_this_machine_is_the_default(tmp_path, monkeypatch):
    monkeypatch.delenv("RECON_NODE_URL", raising=False)
    context = verify.make_context("verify", ["--tables", str(tmp_path)])
    assert context.params["url"] == DEFAULT_URL


def test_a_node_that_does_not_answer_is_reported_at_once(sound, monkeypatch):
    """It was waited for two minutes, without a word."""
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("it waits"))
    with kept_port() as port:
        answer = told("verify", "--tables", sound, "--url", f"http://127.0.0.1:{port}", code=1)
    assert "cannot be reached" in answer


def test_the_tables_have_what_the_node_has(node: Node, sound: Path) -> None:
    answer = verified(node, sound)
    keys = keys_of(sound)
    assert (answer["equal"], answer["upto"]) == (True, 400)
    assert answer["tables"] == {"events": 400, "sha256a": str(Sha256a.of(*keys))}
    models = answer["models"]
    assert all(model["node"] == model["tables"] for model in models.values())
    assert models[str(METAMODEL)]["node"]["events"] > 0
    assert sum(model["node"]["events"] for model in models.values()) == 400
    text = told("verify", "--tables", sound, "--url", node.url)
    assert "400 events up to position 400, the node has the same" in text
    hashes = (Sha256a(bytes.fromhex(model["node"]["sha256a"])) for model in models.values())
    assert str(reduce(operator.add, hashes)) == answer["node"]["sha256a"]  # parts add up


def test_what_run_appends_meanwhile_is_not_compared(node, sound, tmp_path, monkeypatch):
    tables = Path(shutil.copytree(sound, tmp_path / "tables"))
    ask = Feed.hashes

    def hashes(feed: Feed, upto: int, *arguments: Any) -> dict[str, Any]:
        answer = ask(feed, upto, *arguments)
        rows = pa.Table.from_batches(Feed(node.url).read(400, 420, node.epoch), FEED)
        filled(tables, rows, names=(), epoch=node.epoch)
        return answer

    monkeypatch.setattr(Feed, "hashes", hashes)
    answer = verified(node, tables)
    assert (answer["upto"], answer["tables"]["events"]) == (400, 400)
    assert len(keys_of(tables)) == 420


@pytest.mark.parametrize("number", [1, 30])
def test_where_they_part_is_found(node: Node, sound: Path, tmp_path: Path, number: int) -> None:
    """Rows that were deleted, of any model, by name; in fewer questions than events."""
    tables = Path(shutil.copytree(sound, tmp_path / "tables"))
    lost = sorted(keys_of(tables))[:: 400 // number][:number]
    names = ", ".join(f"X'{key.hex()}'" for key in lost)
    DeltaTable(tables / "raw_events").delete(f"event_id IN ({names})")
    answer = verified(node, tables, code=1)
    assert not answer["equal"]
    assert sorted(answer["missing"]) == sorted(key.hex() for key in lost)
    assert (answer["extra"], answer["complete"]) == ([], True)
    assert answer["tables"]["events"] == 400 - number
    text = told("verify", "--tables", tables, "--url", node.url, code=1)
    assert text.count("missing in the tables: ba") == number
    assert "differs: " in text


def test_what_the_node_lacks_is_found(node: Node, sound: Path, tmp_path: Path) -> None:
    """A row too many: of an event that the node never had."""
    tables = Path(shutil.copytree(sound, tmp_path / "tables"))
    [first, *_] = sorted(keys_of(tables))
    other = first[:-4] + b"\0\0\0\0"
    DeltaTable(tables / "raw_events").update(
        {"event_id": f"X'{other.hex()}'"}, predicate=f"event_id = X'{first.hex()}'"
    )
    answer = verified(node, tables, code=1)
    assert (answer["missing"], answer["extra"]) == ([first.hex()], [other.hex()])


def test_the_node_returns_hashes_of_any_part(node, node_processes, tmp_path):
    """With more events than one answer lists, in one stream."""
    full = Node(node_processes, tmp_path / "node")
    key = SigningKey(bytes(32))
    events = [init_event(key, METAMODEL, {})]
    for number in range(1200):
        patch = [{"op": "add", "path": "/n", "value": number}]
        events.append(data_event(key, events[0], [events[-1].cid], patch))
    full.add(events)
    feed = Feed(full.url)
    epoch = feed.head().epoch
    answer = feed.hashes(1201, epoch, b"", 8)
    [part] = answer["parts"]
    assert (answer["count"], part["sha256a"]) == (1201, answer["sha256a"])
    assert "event_ids" not in answer
    earlier = feed.hashes(1000, epoch, bytes.fromhex(part["prefix"]), 1)
    assert len(earlier["event_ids"]) == earlier["count"] == 1000
    keys = [bytes.fromhex(event_id) for event_id in earlier["event_ids"]]
    assert earlier["sha256a"] == str(Sha256a.of(*keys))
    assert feed.hashes(1201, epoch, b"\1\2", 1)["count"] == 0
    full.kill()


def test_the_example_of_the_cip(sound: Path) -> None:
    """CREATE TABLE, INSERT and SELECT of CIP-124's appendix A, as the documentation has them."""
    text = CIP.read_text().split("### The hash in SQL")[1]
    create, select = (block.split("```")[0] for block in text.split("```sql\n")[1:3])
    keys = keys_of(sound)
    connection = sqlite3.connect(":memory:")
    connection.execute(create)
    lanes = [Sha256a.of(key) for key in keys]
    rows = [
        (key, *(int.from_bytes(lane[n : n + 4], "little") for n in range(0, 32, 4)))
        for key, lane in zip(keys, lanes, strict=True)
    ]
    connection.executemany(f"INSERT INTO data VALUES ({', '.join('?' * 9)})", rows)
    [sums] = connection.execute(select, (min(keys)[:1], max(keys) + b"\xff"))
    assert b"".join(lane.to_bytes(4, "little") for lane in sums) == Sha256a.of(*keys)
