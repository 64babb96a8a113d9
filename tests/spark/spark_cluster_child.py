"""`spark-sink run` with long steps only, in which workers lose their executor.

python spark_cluster_child.py MARKS ARGUMENT...

The first worker that has written rows of the feed, and the first that has computed a portion of the
tables, leave their executor's process id in the directory MARKS and kill it, before they have told
the driver what they wrote.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spark_sink.cli import main
from spark_sink.derive import derivation
from spark_sink.run import pipeline


def fatal(function: Callable[..., Any], mark: Path) -> Callable[..., Any]:
    """The function, whose first caller does not get to say what came of it.

    Sent to the workers as it is: they have no module of its name.
    """

    def call(*args: Any) -> Any:
        answer = function(*args)
        try:
            note = mark.open("x")
        except FileExistsError:
            return answer
        executor = int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])
        with note:
            note.write(str(executor))
        os.kill(executor, signal.SIGKILL)
        return signal.pause()

    return call


if __name__ == "__main__":
    marks = Path(sys.argv.pop(1))
    derivation._SHORT_POSITIONS = 0
    pipeline.stage_ranges = fatal(pipeline.stage_ranges, marks / "fetch")
    derivation.compute_partition = fatal(derivation.compute_partition, marks / "compute")
    main(prog_name="spark-sink")
