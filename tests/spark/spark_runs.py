"""`spark-sink run` in a process of its own."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from spark_helpers import PATIENCE, await_end_of, processes_under
from support import forking

# Of small sizes.
CHILD = Path(__file__).with_name("spark_trap_child.py")
# Runs a program in which root is bound by permissions as everyone is: without CAP_DAC_OVERRIDE and
# CAP_DAC_READ_SEARCH. (PR_CAPBSET_DROP is refused to others than root, who are bound anyway.)
BOUND = """
import ctypes, os, sys
for capability in (1, 2):
    ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


class Run:
    """A `spark-sink run`; its lines are read as they come."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def next(self, event: str, **least: int) -> dict[str, Any]:
        """The facts of the next event of this kind, whose numbers are no smaller than these."""
        for line in self.process.stdout:
            facts: dict[str, Any] = json.loads(line)
            if facts["event"] == event and all(facts[name] >= least[name] for name in least):
                return facts
        _, errors = self.process.communicate(timeout=PATIENCE)
        raise AssertionError(f"no {event}; exit code {self.process.returncode}: {errors}")


@contextmanager
def running(
    *arguments: object,
    environ: dict[str, str] | None = None,
    bound: bool = False,
    child: Sequence[object] = ("-m", "spark_sink", "run"),
    patience: float = 5 * PATIENCE,
) -> Iterator[Run]:
    prefix = [sys.executable, "-c", BOUND] if bound else []
    process = forking.Popen(
        [*prefix, sys.executable, *map(str, (*child, *arguments))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environ,
    )
    watchdog = threading.Timer(patience, process.kill)
    watchdog.start()
    try:
        yield Run(process)
    finally:
        watchdog.cancel()
        process.kill()
        process.communicate()


def kill(run: Run) -> None:
    """End a run without notice, and wait until all that it started has ended, too."""
    others = processes_under(run.process.pid)
    run.process.kill()
    run.process.wait()
    await_end_of(others, "Spark is gone too")
