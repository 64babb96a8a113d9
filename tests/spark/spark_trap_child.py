"""`spark-sink run` on a small scale, so that a few events take every path; with traps for workers.

python spark_trap_child.py TRAP DIRECTORY ARGUMENT...

TRAP: none; or what befalls some workers once, when they have written their files and before they
say so: `fail`, an error; `kill`, the process is gone. DIRECTORY is where it is noted that it did.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spark_sink.cli import main
from spark_sink.derive import derivation
from spark_sink.derive.derivation import compute_partition
from spark_sink.derive.workers import stage_ranges
from spark_sink.run import pipeline
from spark_sink.tables import retention


def trapped(function: Callable[..., Any], trap: str, directory: Path) -> Callable[..., Any]:
    """The function, which ends badly once in each eighth partition; it travels to the workers."""
    name = function.__name__

    def call(*arguments: Any) -> Any:
        answer = function(*arguments)
        which = arguments[-1] if name == "compute_partition" else 0
        if which % 8:
            return answer
        try:
            (directory / f"{name}-{which}").touch(exist_ok=False)
        except FileExistsError:
            return answer
        if trap == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise RuntimeError("the trap")

    return call


if __name__ == "__main__":
    small = {
        retention: {"_COMMITS_PER_TIDY": 4, "_MIN_FILES": 2},
        derivation: {"_SHORT_POSITIONS": 5},
        pipeline: {"_SHORT_BATCH": 5},
    }
    for module, sizes in small.items():
        vars(module).update(sizes)
    trap, directory = sys.argv[1], Path(sys.argv[2])
    if trap != "none":
        directory.mkdir(exist_ok=True)
        vars(derivation)["compute_partition"] = trapped(compute_partition, trap, directory)
        vars(pipeline)["stage_ranges"] = trapped(stage_ranges, trap, directory)
    main(["run", *sys.argv[3:]])
