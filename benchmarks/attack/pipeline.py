"""Attacks on the Spark pipeline, by what a peer gave the node."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

from benchmarks.attack.catalogue import attack
from benchmarks.attack.derived_work import dear_schema, many_conflicts, repeated_fields
from benchmarks.attack.field import Field
from recon_node.ceramic import Event


@attack()
def poison_for_the_pipeline(here: Field) -> None:
    """One stream of a stranger stops all derived tables, again at each start."""
    poison: list[Event] = []
    for events, _ in (repeated_fields(60_000), dear_schema(), many_conflicts()):
        poison += events
    tables = here.directory / "tables"
    command = [sys.executable, "-m", "spark_sink", "run", "--once", "--url", here.url]
    with here.attacked():
        here.add(poison)
        here.await_event(poison[-1])
        started = time.monotonic()
        code = _run([*command, "--tables", str(tables)], 300)
        here.at_most("the pipeline's run", time.monotonic() - started, 120.0)
    here.expect("exit code of the pipeline", 0, code)
    here.expect("second run", 0, _run([*command, "--tables", str(tables)], 300))
    asked = f"SELECT stream_id FROM stream_states WHERE stream_id = '{here.stream}'"
    found = subprocess.run(
        [sys.executable, "-m", "spark_sink", "query", "--tables", str(tables), asked],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    here.expect("honest stream in the tables", 1, found.stdout.count(str(here.stream)))


def _run(command: list[str], limit: float) -> int:
    """Run a command, which is killed with all that it started if it takes longer."""
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        return -1
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
