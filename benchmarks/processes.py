"""Nodes in processes of their own, and what processes take, as /proc has it: if ended, nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from recon_node.testnet import TestnetNode

TICKS: Final = os.sysconf("SC_CLK_TCK")


@contextmanager
def running(data_dir: Path, network: str) -> Iterator[TestnetNode]:
    """Run a node of a data directory, which has no peers, during the block."""
    flags = ("--network", network, "--no-discovery")
    node = TestnetNode(data_dir.name, data_dir.parent, flags)
    try:
        node.launch()
        node.wait_until_ready()
        yield node
    finally:
        node.stop()


def family(pid: int | None) -> list[int]:
    """Return a process and all that it started, if they still run; none of what never began."""
    found = [] if pid is None else [pid]
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += family(int(child))
    return found


def cpu_seconds(*pids: int | None) -> float:
    """Return the CPU that processes have used so far, their threads included."""
    ticks = 0
    for pid in pids:
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / TICKS


def memory(what: str, *pids: int | None) -> int:
    """Return bytes of processes.

    Args:
        what: `VmRSS`: resident; `VmHWM`: the most that was; `RssAnon`: what the system cannot take
            back.
        pids: of the processes.
    """
    total = 0
    for pid in pids:
        with suppress(OSError):
            _, named, rest = Path(f"/proc/{pid}/status").read_text().partition(f"\n{what}:")
            total += int(rest.split()[0]) * 1024 if named else 0
    return total
