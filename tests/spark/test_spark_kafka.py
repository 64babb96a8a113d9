"""`spark-sink export kafka`, to a real broker: every change once, each stream's in their order."""

import json
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from spark_helpers import EPOCH, ROWS, read_on
from spark_oracle import table_rows
from support.kafka_broker import Broker, broker
from support.waiting import finished

from recon_node.ipld import CID
from spark_sink.query import changes
from spark_sink.query.show import show, to_json
from spark_sink.run.pipeline import Sink
from spark_sink.tables.tables import Tables

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with broker(tmp_path_factory.mktemp("kafka")) as running:
        yield running


def read(cluster: Broker, topic: str) -> list[tuple[str, dict[str, Any]]]:
    """All messages of a topic that are committed, by partition, with their keys."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.address,
            "group.id": "test",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    messages, left = [], {0}
    consumer.assign([TopicPartition(topic, 0, 0)])
    while left:
        message = consumer.poll(10)
        if message.error() is None:
            messages.append((message.key().decode(), json.loads(message.value())))
        else:
            left.discard(message.partition())
    consumer.close()
    return messages


def command(cluster: Broker, tables: Path, prefix: str, *names: str) -> list[str]:
    named = ["--tables", str(tables), "--to", cluster.address, "--prefix", prefix, "--json"]
    return [sys.executable, "-m", "spark_sink", "export", "kafka", *named, *names]


def exported(cluster: Broker, tables: Path, prefix: str, *names: str) -> list[dict[str, Any]]:
    done = finished([*command(cluster, tables, prefix, *names), "--once"])
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_event_is_sent_once_and_a_stream_in_its_order(cluster, tmp_path):
    sink = Sink(Tables(tmp_path, EPOCH))
    for end in (20, 21, 40, len(ROWS)):
        read_on(sink, ROWS.slice(0, end))
        output = exported(cluster, tmp_path, "one", "raw_events", "stream_states")
        assert {line["table"] for line in output} == {"raw_events", "stream_states"}
    assert exported(cluster, tmp_path, "one", "raw_events", "stream_states") == []
    sent = read(cluster, "one.raw_events")
    assert sorted(row["position"] for _, row in sent) == list(range(1, len(ROWS) + 1))
    assert all(key == row["stream_cid"] for key, row in sent)
    by_stream = defaultdict(list)
    for key, row in sent:
        by_stream[key].append(row["position"])
    assert all(positions == sorted(positions) for positions in by_stream.values())
    states = dict(read(cluster, "one.stream_states"))  # the last message of a key counts
    wanted = {
        str(CID(row["stream_cid"])): json.loads(to_json(show(row)))
        for row in table_rows(tmp_path, "stream_states")
    }
    assert states == {key: {name: row[name] for name in states[key]} for key, row in wanted.items()}


PROGRAM = """
import os, sys
from pathlib import Path
from spark_sink.export.following import follow
from spark_sink.export.kafka import Kafka
class Killed(Kafka):
    left = int(sys.argv[3])
    def _send(self, producer, topic, key, value):
        super()._send(producer, topic, key, value)
        Killed.left -= 1
        if not Killed.left:
            producer.flush(10)
            os.kill(os.getpid(), 9)
told = {"on_taken": print, "on_unreachable": print}
follow(Path(sys.argv[1]), ["raw_events"], Killed(sys.argv[2], "two", {}).take, every=None, **told)
"""


def test_a_killed_program_has_sent_nothing_or_all(cluster: Broker, tmp_path: Path) -> None:
    sink = Sink(Tables(tmp_path, EPOCH))
    for before, end in ((0, 40), (40, len(ROWS))):
        sink.tables.append(ROWS.slice(0, end))
        for at in (1, 5, end - before + 1):  # the last one is the token
            killed = subprocess.run(
                [sys.executable, "-c", PROGRAM, str(tmp_path), cluster.address, str(at)],
                check=False,
            )
            assert killed.returncode == -signal.SIGKILL
        exported(cluster, tmp_path, "two", "raw_events")
        positions = [row["position"] for _, row in read(cluster, "two.raw_events")]
        assert positions == list(range(1, end + 1))


def test_it_waits_for_a_broker_and_a_second_program_takes_over(cluster, tmp_path):
    sink = Sink(Tables(tmp_path, EPOCH))
    sink.tables.append(ROWS.slice(0, 30))
    first = [*command(cluster, tmp_path, "three", "raw_events"), "--every", "100ms"]
    with subprocess.Popen(first, stdout=-1, stderr=-1, text=True) as process:
        assert json.loads(process.stdout.readline())["rows"] == 30
        cluster.kill()
        sink.tables.append(ROWS.slice(0, 40))
        assert json.loads(process.stdout.readline())["event"] == "waiting"
        cluster.start()
        for line in process.stdout:
            if json.loads(line)["event"] == "copied":
                break
        assert exported(cluster, tmp_path, "three", "raw_events") == []
        sink.tables.append(ROWS.slice(0, 50))
        assert process.wait(60) == 1
        assert "another spark-sink export writes the topics three.*" in process.stderr.read()
    exported(cluster, tmp_path, "three", "raw_events")
    sent = [row["position"] for _, row in read(cluster, "three.raw_events")]
    assert sent == list(range(1, 51))


def test_files_that_overlap_are_read_together(tmp_path, monkeypatch):
    """So that a stream's events come in their order from large tables, too."""
    sink = Sink(Tables(tmp_path, EPOCH))
    for end in range(10, len(ROWS) + 10, 10):
        sink.tables.append(ROWS.slice(0, min(end, len(ROWS))))
        sink.tables.tidy(idle=True)
    monkeypatch.setattr(changes, "_TOGETHER", 0)
    by_stream = defaultdict(list)
    groups = 0
    for rows in changes.Changes(tmp_path, "raw_events", None).all_rows():
        groups += 1
        for row in rows.to_pylist():
            by_stream[row["stream_cid"]].append(row["position"])
    assert groups > 16
    assert sorted(p for positions in by_stream.values() for p in positions) == list(
        range(1, len(ROWS) + 1)
    )
    assert all(positions == sorted(positions) for positions in by_stream.values())
