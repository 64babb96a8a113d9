"""The programs beside `benchmarks.spark`: they explain themselves, and say what is wrong."""

import io
import runpy
import signal
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

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
    """The exit code of a program, and what it prints; run here, which saves its imports."""
    told, wrong = io.StringIO(), io.StringIO()
    name, *rest = map(str, arguments)
    code: Any = 0
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(told), redirect_stderr(wrong):
        patch.setattr(sys, "argv", [name, *rest])
        patch.delitem(sys.modules, name, raising=False)
        try:
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        except SystemExit as exit_:
            code = exit_.code
    if isinstance(code, str):  # as Python does when nobody catches it
        code, text = 1, f"{code}\n"
        wrong.write(text)
    return code or 0, told.getvalue(), wrong.getvalue()


@pytest.mark.parametrize("name", ["spark", "spark_log"])
def test_help(name: str) -> None:
    code, told, wrong = ended(f"benchmarks.{name}", "--help")
    assert (code, wrong) == (0, "")
    assert told.startswith("usage: ")
    assert f"python -m benchmarks.{name}" in told


def test_a_log_is_made_and_served_until_it_is_ended(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code, _, wrong = ended("benchmarks.spark_log", log)
    assert code == 2
    assert "give its size with --events" in wrong
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
    assert "already exists" in wrong
