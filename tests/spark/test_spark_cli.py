"""The command `spark-sink`, as a process of its own."""

import random
import resource
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from spark_helpers import (
    PATIENCE,
    Node,
    await_end_of,
    environment_for,
    processes_under,
    ran,
    wait_until,
)
from spark_oracle import assert_each_row_once, assert_tables, table_rows
from spark_runs import CHILD, kill, running
from spark_samples import TRAP

from recon_node.ceramic import parse_event
from recon_node.ipld import CID
from spark_sink.errors import SinkError
from spark_sink.run.runner import RunSettings
from spark_sink.schema import RAW, TABLES
from spark_sink.tables.catalog import table_status
from spark_sink.tables.location import Location, file_system, open_delta_table


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.usefixtures("borrowed")
def test_a_full_disk_and_a_directory_that_cannot_be_written(node, sample, tmp_path):
    """Each ends the run with an error that says so, and the next goes on; numbers are served."""
    node.add(sample[:20])
    options = ["--url", node.url, "--tables", tmp_path]
    with running(*options, "--metrics", "127.0.0.1:0") as run:
        url = run.next("started")["metrics"]
        assert run.next("batch")["position"] == 20
        numbers = httpx.get(url).text
        for line in (
            'spark_sink_rows_total{table="raw_events"} 20.0',
            'spark_sink_position{table="stream_states"} 20.0',
            "spark_sink_lag_events 0.0",
            "spark_sink_batch_duration_seconds_count 1.0",
            "spark_sink_node_up 1.0",
        ):
            assert line in numbers.splitlines()
        # No file of the driver may grow beyond so many bytes, as when a disk is full.
        resource.prlimit(run.process.pid, resource.RLIMIT_FSIZE, (512, resource.RLIM_INFINITY))
        node.add(sample[20:40])
        _, output = run.process.communicate(timeout=PATIENCE)
        assert run.process.returncode == 1
        [last] = output.splitlines()  # what the libraries below print is in a file
        assert last.startswith(f"Error: cannot write the tables in {tmp_path}")
        assert "File too large" in last

    log = tmp_path / "raw_events" / "_delta_log"
    for directory, says in (
        (log, f"cannot write the tables in {tmp_path}: this user may not write there ("),
        (tmp_path, f"cannot write to {tmp_path}: Permission denied"),
    ):
        directory.chmod(0o555)
        with running(*options, bound=True) as run:
            _, output = run.process.communicate(timeout=2 * PATIENCE)
            assert run.process.returncode == 1
            assert output.startswith(f"Error: {says}")
        directory.chmod(0o755)
    ran(RunSettings(node.url, tmp_path, once=True))
    assert_tables(tmp_path, node.feed())


@pytest.mark.long
@pytest.mark.spark
def test_kills_of_the_driver_and_half_as_many_of_the_node(node, sample, tmp_path, place):
    """At any moment, under load: every row is there once at any time, and all are in the end.

    What a kill at each commit leaves is in test_spark_crashes; here, the processes are real ones.
    The sizes are such that the workers compute all steps, and every fourth commit of a table of
    events is followed by one that merges small files.
    """
    rng = random.Random(7)
    events = [*TRAP.events, *sample]
    options = ["--url", node.url, "--tables", str(place), "--max-rows-per-batch", "9"]
    small = (CHILD, "none", tmp_path)
    environ = environment_for(place, tmp_path / "state")
    # In a store, a batch takes seconds.
    kills, longest = (10, 1.0) if isinstance(place, Path) else (6, 5.0)
    per_run = len(events) // kills
    for number in range(kills):
        node.add(events[number * per_run : (number + 1) * per_run])
        with running(*options, child=small, environ=environ) as run:
            for _ in range(rng.randint(0, 3)):
                run.next("batch")
            if number % 2:
                node.kill()
                node.start()
                if rng.random() < 0.5:
                    run.next("batch")
            assert_each_row_once(place)
            # Not at a batch's end, but somewhere in the one that follows.
            with suppress(subprocess.TimeoutExpired):
                run.process.wait(rng.random() * longest)
            kill(run)
        assert_each_row_once(place)
    node.add(events[kills * per_run :])
    wait_until(lambda: len(node.feed()) == len(events), "all anchors are looked up")
    with running(*options[:-1], "50", "--once", child=small, environ=environ) as run:
        assert run.next("stopped")["position"] == len(events)
    assert_tables(place, node.feed())
    for name in (name for name, spec in TABLES.items() if spec.rows_are_events):
        assert any(b'"dataChange":false' in commit for commit in commits(place / name)), name


@pytest.mark.long
@pytest.mark.spark
def test_kills_of_the_driver_while_it_goes_on_from_another_node(pair, sample, tmp_path, place):
    """Each event is there once, after its prevs."""
    first, second = pair
    first.add(sample)
    second.add(sorted(sample, key=lambda event: event.init))
    options = ["--url", first.url, "--url", second.url, "--failover-after", "1s"]
    options += ["--tables", str(place), "--max-rows-per-batch", "20"]
    environ = environment_for(place, tmp_path / "state")
    with running(*options, environ=environ) as run:
        run.next("batch", position=200)
        first.kill()
        run.next("taking_over")
        kill(run)
    with running(*options, "--metrics", "127.0.0.1:0", environ=environ) as run:
        page = run.next("started")["metrics"]
        run.next("took_over")
        run.next("batch")
        assert "spark_sink_takeovers_total 1.0" in httpx.get(page).text.splitlines()
        kill(run)
    with running(*options, "--once", environ=environ) as run:
        assert run.next("stopped")["position"] == len(sample)
    assert_each_row_once(place)
    rows = table_rows(place, RAW)
    assert_tables(place, rows)
    seen: set[CID] = set()
    for event in (parse_event(row["car"]) for row in rows):
        assert seen.issuperset(event.prevs)
        seen.add(event.cid)
    assert len(seen) == len(sample)


def commits(table: Location) -> Iterator[bytes]:
    """The commits to a table, as they are in its log."""
    files = file_system(table)
    for version in range(open_delta_table(table).version() + 1):
        with files.open_input_stream(f"_delta_log/{version:020}.json") as stream:
            yield stream.read()


def test_a_stop_while_there_is_nothing_to_finish(tmp_path: Path) -> None:
    """Waiting for a node that does not answer it says so, ends at once and leaves nothing."""
    tables = tmp_path / "tables"
    with running("--url", "http://127.0.0.1:1", "--tables", tables) as run:
        facts = run.next("waiting")
        assert facts["url"] == "http://127.0.0.1:1"
        assert "http://127.0.0.1:1" in facts["reason"]
        run.process.send_signal(signal.SIGTERM)
        assert run.process.communicate(timeout=PATIENCE) == ("", "")
        assert run.process.returncode == 0
    assert not tables.exists()


TWO_SIGNALS = """
import os
import signal
from spark_sink.cli import commands

class Busy:
    def stop(self):
        os.write(1, b"told to stop\\n")  # print must not be interrupted by another print
        return True  # a batch is under way

    def clean(self):
        print("cleaned")

    def report_stopping(self, patience):
        pass

commands._stop_on_signals(Busy())
os.write(1, b"ready\\n")
while True:
    signal.pause()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_second_signal_ends_a_run_at_once(number: signal.Signals) -> None:
    with running(child=("-c", TWO_SIGNALS)) as run:
        assert run.process.stdout.readline() == "ready\n"
        run.process.send_signal(number)
        assert run.process.stdout.readline() == "told to stop\n"
        run.process.send_signal(number)
        assert run.process.communicate(timeout=PATIENCE) == ("told to stop\ncleaned\n", "")
        assert run.process.returncode == 128 + number


SLOW = """
import time
from spark_sink.cli import main
from spark_sink.derive.derivation import Derivation

finish = Derivation._finish

def slow(self, name, rows, upto):
    if name == "stream_tips":
        self.doing += ", on a slow disk"
        time.sleep(600)
    finish(self, name, rows, upto)

Derivation._finish = slow
main(["run", *__import__("sys").argv[1:]], auto_envvar_prefix="SPARK_SINK")
"""


@pytest.mark.long
@pytest.mark.spark
def test_a_stop_does_not_wait_for_a_long_step(full_node: Node, tmp_path: Path) -> None:
    """It says what it waits for, and ends before a service manager would kill it."""
    options = ("--url", full_node.url, "--tables", tmp_path)
    # Java writes to its standard error, as it does when its threads are stopped.
    noise = ("--spark-conf", "spark.driver.extraJavaOptions=-Xlog:safepoint*=info:stderr")
    with running(*options, *noise, child=("-c", SLOW)) as run:
        run.next("started")
        wait_until(lambda: position(tmp_path, "event_states") == 930, "a table is written")
        run.process.send_signal(signal.SIGTERM)
        line = run.next("stopping")
        assert line["doing"] == "writing event_states at position 930, on a slow disk"
        began = time.monotonic()
        assert run.next("stopped")["position"] == 930
        assert run.process.communicate(timeout=PATIENCE)[1] == ""
        assert run.process.returncode == 0
        assert time.monotonic() - began < 60
    assert "safepoint" in (tmp_path / "spark-sink.log").read_text()
    assert position(tmp_path, "stream_tips") == 0
    with running(*options, "--once") as run:
        assert run.next("stopped")["rows"] == 0
    assert_tables(tmp_path, full_node.feed())


def position(tables: Path, name: str) -> int:
    try:
        return {table.name: table.position for table in table_status(tables)}.get(name, 0)
    except SinkError:  # there are none yet
        return 0


@pytest.mark.spark
@pytest.mark.long
def test_a_stop_while_spark_starts(full_node: Node, tmp_path: Path) -> None:
    """No stack trace, no Java that stays behind."""
    with running("--url", full_node.url, "--tables", tmp_path) as run:
        run.next("starting")
        wait_until(lambda: bool(processes_under(run.process.pid)), "Java is starting")
        others = processes_under(run.process.pid)
        run.process.send_signal(signal.SIGINT)
        assert run.next("stopped")["rows"] == 0
        assert run.process.communicate(timeout=PATIENCE) == ("", "")
        assert run.process.returncode == 0
        await_end_of(others, "Java is gone too")
