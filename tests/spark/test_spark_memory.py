"""What the pipeline may take in memory, and what it says when the kernel found it too much."""

import signal
from pathlib import Path

import pytest
from py4j.protocol import Py4JError

from spark_sink.errors import SinkError
from spark_sink.run import runner
from spark_sink.run.memory import MemoryAllowance, allowance, heap_within, tasks_within, why_killed
from spark_sink.run.runner import Runner, RunSettings
from spark_sink.run.spark_session import translate

GIB = 1024**3


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_limit_of_version_2(tmp_path: Path) -> None:
    write(tmp_path / "own", "0::/a/b\n")
    assert allowance(tmp_path / "none", tmp_path / "own") == MemoryAllowance(None, 0)
    write(tmp_path / "groups/a/memory.max", f"{GIB}\n")
    write(tmp_path / "groups/a/b/memory.max", "max\n")
    write(tmp_path / "groups/a/b/memory.events", "low 0\noom 4\noom_kill 3\n")
    assert allowance(tmp_path / "groups", tmp_path / "own") == MemoryAllowance(GIB, 3)


def test_the_limit_of_version_1_in_a_container(tmp_path: Path) -> None:
    write(tmp_path / "own", "9:name=systemd:/x\n4:memory:/docker/3f\n0::/\n")
    write(tmp_path / "groups/memory/memory.limit_in_bytes", f"{GIB}\n")
    write(tmp_path / "groups/memory/memory.oom_control", "under_oom 0\noom_kill 1\n")
    assert allowance(tmp_path / "groups", tmp_path / "own") == MemoryAllowance(GIB, 1)
    write(tmp_path / "groups/memory/memory.limit_in_bytes", "9223372036854771712\n")
    assert allowance(tmp_path / "groups", tmp_path / "own") == MemoryAllowance(None, 1)


@pytest.mark.parametrize(
    ("limit", "heap", "tasks"),
    [
        (None, "1024m", 2),
        (16 * GIB, "1024m", 2),
        (2 * GIB, "512m", 2),
        (1200 * 1024**2, "512m", 1),
        (3 * GIB, "768m", 2),
    ],
)
def test_a_small_container_gets_a_small_spark(limit: int | None, heap: str, tasks: int) -> None:
    assert (heap_within(limit), tasks_within(limit)) == (heap, tasks)


def test_what_the_kernel_did_is_reported() -> None:
    before = MemoryAllowance(1200 * 1024**2, 1)
    assert why_killed(before, before, None) is None
    assert why_killed(before, before, 1) is None
    reason = why_killed(before, MemoryAllowance(before.limit, 2), None)
    assert "beyond its memory limit of 1,200 MiB. The pipeline needs 2 GiB" in reason
    reason = why_killed(before, before, -signal.SIGKILL)
    assert reason.startswith("Spark's Java was killed, probably because the memory of the machine")


def test_a_run_that_was_killed_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kills = iter(range(1, 9))
    monkeypatch.setattr(runner, "allowance", lambda: MemoryAllowance(GIB, next(kills)))
    monkeypatch.setattr(runner, "find_java", lambda: None)
    monkeypatch.setattr(Runner, "_find_node", lambda self, reading: None)

    def fail(*_: object) -> int:
        raise SinkError("Spark failed: Py4JError.")

    monkeypatch.setattr(Runner, "_run_pipeline", fail)
    settings = RunSettings("http://127.0.0.1:1", tmp_path, keep_free=0)
    with pytest.raises(SinkError, match="memory limit of 1,024 MiB"):
        Runner(settings, lambda event, facts: None).run()


def test_a_java_that_is_gone_is_named() -> None:
    text = str(translate(Py4JError("An error occurred while calling o49.toArrow")))
    assert text.startswith("Spark failed: its Java process is gone")
    answered = Py4JError("An error occurred while calling z:x. Trace:\njava.lang.Error: 42")
    assert "is gone" not in str(translate(answered))
