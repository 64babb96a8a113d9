"""The programs beside `benchmarks.spark`: they explain themselves, and say what is wrong."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from spark_helpers import PATIENCE

from spark_sink.source.feed import Feed

ROOT = Path(__file__).parent.parent.parent


def program(*arguments: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", *map(str, arguments)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(*arguments: str | Path) -> tuple[int, str, str]:
    process = program(*arguments)
    told, wrong = process.communicate(timeout=PATIENCE)
    return process.returncode, told, wrong


@pytest.mark.parametrize("name", ["spark", "spark_log", "spark_state"])
def test_help(name: str) -> None:
    code, told, wrong = ended(f"benchmarks.{name}", "--help")
    assert (code, wrong) == (0, "")
    assert told.startswith("usage: ")
    assert f"python -m benchmarks.{name}" in told


def test_a_log_is_made_and_served_until_it_is_ended(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code, _, wrong = ended("benchmarks.spark_log", log)
    assert code == 2
    assert "say with --events how large" in wrong
    node = program("benchmarks.spark_log", log, "--events", "50")
    try:
        assert node.stdout is not None
        url = node.stdout.readline().strip()
        assert Feed(url).head().head == 50
        port = url.rpartition(":")[2]
        for directory, told in ((log, "is in use by process"), (tmp_path / "other", "in use")):
            more = () if directory is log else ("--events", "5", "--port", port)
            code, _, wrong = ended("benchmarks.spark_log", directory, *more)
            assert code == 1
            assert told in wrong
            assert wrong.count("\n") == 1
    finally:
        node.send_signal(signal.SIGTERM)
        node.communicate(timeout=PATIENCE)
    assert node.returncode == 0
    code, _, wrong = ended("benchmarks.spark_log", log, "--events", "50")
    assert code == 2
    assert "is there already" in wrong


def test_the_other_way_says_when_there_is_no_node() -> None:
    code, _, wrong = ended("benchmarks.spark_state", "http://127.0.0.1:1")
    assert code == 1
    assert wrong.startswith("the node at http://127.0.0.1:1 cannot be reached")
    assert wrong.count("\n") == 1
