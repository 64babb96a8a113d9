"""Writes down each function of this project that a process calls, by the task that calls it.

A traced process has this module's `start` called by a `sitecustomize`. Each line of its file is
a JSON list: the time, the task (a trio task, or else a thread), the file, the function, and whether
it was called by one of `ROOTS`, however indirectly. A function is written down once for each of
these, each task, and each stretch between two marks, and not at all while modules are being
imported.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any, Final

ROOT: Final = Path(__file__).parent.parent.parent
DIRECTORY: Final = "RECON_JOURNEY"
"""The environment variable that names the directory of the traces."""
ROOTS: Final = ("Derivation.catch_up", "compute_partition", "main.<locals>.answer")
"""What computes tables from each other: in the pipeline, in Spark's workers, in their children."""
_TRACED: Final = tuple(f"{ROOT / package}{os.sep}" for package in ("recon_node", "spark_sink"))


class _Tracer:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._seen: set[tuple[object, ...]] = set()
        self._pid = 0
        self._out: Any = None

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(_TRACED):
            return
        if code.co_name == "<module>" or _importing(frame):
            return
        task = _task()
        if os.getpid() != self._pid:  # Spark's workers are forks
            self._pid, self._seen = os.getpid(), set()
            self._out = (self._directory / f"{self._pid}.jsonl").open("a", buffering=1)
        is_below = _is_below_root(frame)
        entry = (task, code, is_below, _mark(self._directory))
        if entry not in self._seen:
            self._seen.add(entry)
            path = str(Path(code.co_filename).relative_to(ROOT))
            # One write, so that lines of two threads don't mix.
            line = [time.time(), task, path, code.co_qualname, is_below]
            self._out.write(json.dumps(line) + "\n")


def _task() -> str:
    trio = sys.modules.get("trio")
    if trio is not None:
        try:
            task = trio.lowlevel.current_task()
        except (RuntimeError, AttributeError):
            pass
        else:
            return f"{task.name}#{id(task)}"
    return threading.current_thread().name


def _importing(frame: FrameType | None) -> bool:
    while frame is not None:
        code = frame.f_code
        if code.co_name == "<module>" and code.co_filename.startswith(_TRACED):
            return bool(frame.f_globals["__name__"] != "__main__")
        frame = frame.f_back
    return False


def _is_below_root(frame: FrameType | None) -> bool:
    while frame is not None:
        code = frame.f_code
        if code.co_qualname in ROOTS and code.co_filename.startswith(_TRACED):
            return True
        frame = frame.f_back
    return False


def _mark(directory: Path) -> int:
    try:
        return (directory / "mark").stat().st_mtime_ns
    except OSError:
        return 0


def start() -> None:
    """Trace this process, and those that it forks, if the environment says where to."""
    if directory := os.environ.get(DIRECTORY):
        tracer = _Tracer(Path(directory))
        threading.setprofile(tracer)
        sys.setprofile(tracer)
