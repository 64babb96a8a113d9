"""Syncs a node, and kills itself on the way: python sync_child.py DATA_DIR URL SEEN AFTER.

It appends the name of whatever it has fetched and verified to the file SEEN. AFTER is at which of
its requests, writes and admissions it dies; 0: at none.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import trio
from snapshot_support import NETWORK

from recon_node.snapshot import syncing
from recon_node.snapshot.kept import KeptFile
from recon_node.snapshot.objects import Objects
from recon_node.snapshot.syncing import SnapshotSync, SourceReport, sync_all
from recon_node.store import Store, StoreSettings, open_store

STEPS = itertools.count(1)
NOTING = threading.Lock()
"""Held from a write until it is noted: a kill by another thread does not come in between."""


def step() -> None:
    if next(STEPS) == int(sys.argv[4]):
        with NOTING:
            os.kill(os.getpid(), signal.SIGKILL)


def stepping(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        step()
        with NOTING if function is PUT else nullcontext():
            result = function(*args)
            if function is PUT:
                with Path(sys.argv[3]).open("a") as seen:
                    seen.write("".join(f"{bytes(name).hex()}\n" for name, _ in args[1]))
        step()
        return result

    return call


async def main() -> None:
    async with open_store(Path(sys.argv[1]), NETWORK, settings=StoreSettings(verifiers=0)) as store:
        report = SnapshotSync([SourceReport(sys.argv[2])])
        await sync_all(report, store, (), Path(sys.argv[1]))
        assert report.is_whole


PUT = KeptFile.put

if __name__ == "__main__":
    syncing._PART = 16  # many parts
    for kind, name in ((KeptFile, "put"), (KeptFile, "drop"), (Objects, "get_range")):
        setattr(kind, name, stepping(getattr(kind, name)))
    admit = Store.admit_remote

    async def admit_remote(self: Store, *args: Any) -> Any:
        step()
        verdicts = await admit(self, *args)
        step()
        return verdicts

    Store.admit_remote = admit_remote  # type: ignore[method-assign]
    trio.run(main)
