"""`spark-sink run` on a standalone cluster: its workers write and compute the tables.

Master, workers and executors are processes of their own, on the loopback; the tables' directory is
shared because the machine is.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from spark_helpers import Node
from spark_oracle import assert_tables
from spark_programs import EXAMPLES, FRUGAL, Cluster, configured
from support.waiting import kept_port, wait_until

from spark_sink.errors import SinkError
from spark_sink.run.cluster import check_master
from spark_sink.run.spark_session import Java, start_session
from spark_sink.tables.location import Location, StoreUrl, files_below, open_delta_table

pytestmark = pytest.mark.spark

CHILD = Path(__file__).with_name("spark_cluster_child.py")
SPARK_SINK = (sys.executable, "-m", "spark_sink")
LONG_STEPS = (
    "from spark_sink.cli import main; from spark_sink.derive import derivation; "
    "derivation._SHORT_POSITIONS = 0; main()"
)
HISTORIES = ("raw_events", "conclusion_events", "event_states")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    started = Cluster(tmp_path_factory.mktemp("cluster"))
    yield started
    started.close()


def run_options(cluster: Cluster, node: Node, tables: Location, **settings: str) -> list[object]:
    """With tables in a store, workers get its options from the driver."""
    options = ["--master", cluster.master, "--url", node.url, "--tables", tables, "--once"]
    if isinstance(tables, StoreUrl):
        options += configured("--storage-option", dict(tables.options))
    frugal = FRUGAL | {"spark.pyspark.python": str(cluster.python)}
    return ["run", *options, *configured("--spark-conf", frugal | settings)]


def refused(cluster: Cluster, *command: object, **environment: str) -> str:
    """What a command that ends with an error says: one line."""
    ended = cluster.ended(*command, **environment)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert len(ended.stderr.splitlines()) == 1, ended.stderr
    return ended.stderr


def orphans(table: Location) -> int:
    """Count the files with rows that do not belong to a table."""
    files = [file for file in files_below(table) if file.path.endswith(".parquet")]
    return len(files) - len(open_delta_table(table).file_uris())


@pytest.mark.long
def test_tables_are_right_though_executors_are_killed(cluster, full_node, tmp_path, place):
    """On a disk, nothing that the killed ones wrote stays behind."""
    tables = place / "tables"
    before = cluster.executors()
    options = run_options(cluster, full_node, tables)
    output = cluster.run(sys.executable, CHILD, tmp_path, *options)
    assert '"position": 930' in output
    killed = {(tmp_path / name).read_text() for name in ("fetch", "compute")}
    assert len(killed) == 2
    assert len(cluster.executors() - before) == 4, "two were there, two came for those killed"
    assert_tables(tables, full_node.feed())
    if isinstance(tables, Path):  # in an object store, others may be about to commit their files
        assert not any(orphans(tables / name) for name in HISTORIES)


def has_rows(tables: Location, name: str) -> bool:
    """Whether there are files with rows for a table, in their place or on their way there."""
    try:
        paths = [file.path for file in files_below(tables)]
    except FileNotFoundError:  # a directory was deleted while it was listed
        return False
    return any(f"{name}/" in path and path.endswith(".parquet") for path in paths)


@pytest.mark.long
def test_the_driver_is_killed_while_workers_write(cluster, full_node, place):
    """The next one gets the cluster's cores, and goes on with what was committed."""
    options = run_options(cluster, full_node, place)
    for table in ("raw_events", "stream_tips"):
        log = cluster.start(sys.executable, "-c", LONG_STEPS, *options)
        wait_until(
            lambda table=table: has_rows(place, table), f"a worker has written rows of {table}"
        )
        cluster.running[-1].kill()
        cluster.running[-1].wait()
        assert "stopped" not in log.read_text()
    cluster.run(sys.executable, "-c", LONG_STEPS, *options)
    assert_tables(place, full_node.feed())


@pytest.mark.long
def test_spark_submit_runs_a_program_that_reads_the_source(cluster, full_node, tmp_path, sample):
    before = cluster.executors()
    output = cluster.run(
        *("spark-submit", "--master", cluster.master, "--driver-memory", "600m"),
        *configured("--conf", FRUGAL | {"spark.sql.shuffle.partitions": "2"}),
        *(EXAMPLES / "streams.py", full_node.url, tmp_path),
    )
    streams = len({event.init for event in sample})
    assert f"{streams} streams, {len(sample)} events" in output
    assert len(cluster.executors() - before) == 2, "both workers did a part"
    assert ds.dataset(tmp_path / "streams").count_rows() == streams


@pytest.mark.long
def test_spark_submit_runs_spark_sink(cluster: Cluster, full_node: Node, tmp_path: Path) -> None:
    submit = ("spark-submit", "--master", cluster.master, *configured("--conf", FRUGAL))
    options = ("run", "--url", full_node.url, "--tables", tmp_path, "--once")
    before = cluster.executors()
    output = cluster.run(*submit, EXAMPLES / "spark_sink_job.py", *options)
    assert '"event": "stopped", "position": 930' in output
    assert len(cluster.executors() - before) == 2
    assert_tables(tmp_path, full_node.feed())


@pytest.mark.long
def test_settings_of_spark_submit_hold(cluster: Cluster, tmp_path: Path) -> None:
    """Above the package's own settings, below those that are given here."""
    names = ("spark.master", "spark.ui.enabled", "spark.sql.shuffle.partitions", "spark.x")
    script = tmp_path / "script.py"
    script.write_text(
        "from pathlib import Path\n"
        "from spark_sink.run.spark_session import find_java\n"
        "from spark_sink.run.spark_session import start_session\n"
        f"settings, scratch = {{'spark.x': 'given'}}, Path('{tmp_path}/scratch')\n"
        "spark = start_session(find_java(), scratch, settings=settings)\n"
        f"print([spark.sparkContext.getConf().get(name) for name in {names}])\n"
    )
    settings = {"spark.sql.shuffle.partitions": "3", "spark.x": "told"}
    submit = ("spark-submit", "--master", "local[3]", *configured("--conf", settings))
    assert cluster.run(*submit, script) == "['local[3]', 'false', '3', 'given']\n"


@pytest.mark.long
def test_a_directory_that_workers_do_not_see_is_reported(cluster, full_node, tmp_path):
    """It is another directory for each process, as on machines that do not share it."""
    tables = Path("/proc/self/cwd/unshared")
    line = refused(cluster, *SPARK_SINK, *run_options(cluster, full_node, tables))
    assert f"does not see the tables in {tables}: all workers and the driver must have" in line


@pytest.mark.long
def test_workers_without_the_package_are_reported(cluster, full_node, tmp_path):
    packages = tmp_path / "packages"
    packages.mkdir()
    own = ("recon_node", "spark_sink", "pyspark_recon", "__editable__", "_recon_node")
    for path in sys.path:
        if path.endswith("site-packages"):
            for file in Path(path).iterdir():
                if not file.name.startswith(own) and file.suffix != ".pth":
                    (packages / file.name).symlink_to(file)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{packages}" exec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    settings = {"spark.pyspark.python": str(python)}
    options = run_options(cluster, full_node, tmp_path / "tables", **settings)
    line = refused(cluster, *SPARK_SINK, *options)
    assert "the Python of Spark's workers has no module spark_sink: install" in line
    options[-1] = "spark.pyspark.python=/nowhere/python"
    line = refused(cluster, *SPARK_SINK, *options)
    assert "Spark's workers have no /nowhere/python: name the Python that they have" in line


@pytest.mark.long
def test_a_cluster_without_room_is_reported(
    cluster: Cluster, full_node: Node, tmp_path: Path
) -> None:
    options = run_options(cluster, full_node, tmp_path, **{"spark.executor.memory": "9g"})
    code = (
        "import sys; from spark_sink.run import runner; runner.WORKERS_PATIENCE = 2.0; "
        "from spark_sink.cli import main; main()"
    )
    line = refused(cluster, sys.executable, "-c", code, *options)
    assert f"the Spark cluster {cluster.master} provided no worker in 2 s" in line
    assert "An executor needs more than 9g" in line


def test_a_master_that_is_not_there_is_reported_at_once(tmp_path: Path) -> None:
    # Spark itself tries for a minute; here it is not even started.
    none = Java(Path("/nowhere/java"), 17)
    with kept_port() as port:
        master = f"spark://127.0.0.1:{port},nowhere.invalid"
        answers = rf"no Spark master answers at {master} \(127\.0\.0\.1:"
        with pytest.raises(SinkError, match=answers):
            start_session(none, tmp_path, master=master)
    with pytest.raises(SinkError, match=r"no Spark master answers at spark://127\.0\.0\.1:port"):
        check_master("spark://127.0.0.1:port")
    check_master("yarn")
