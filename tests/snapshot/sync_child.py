"""Syncs a node, and kills itself on the way: python sync_child.py DATA_DIR URL AFTER.

AFTER is at which step it dies: the beginning and the end of each admission are steps; 0: at none.
Prints how many events were new.
"""

import itertools
import os
import signal
import sys
from pathlib import Path
from typing import Any

import trio
from snapshot_support import NETWORK

from recon_node.snapshot import snapshot_reader
from recon_node.snapshot.syncing import SnapshotSync, SourceReport, sync_all
from recon_node.store import Store, StoreSettings, open_store

STEPS = itertools.count(1)


def step() -> None:
    if next(STEPS) == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)


async def main() -> None:
    async with open_store(Path(sys.argv[1]), NETWORK, settings=StoreSettings(verifiers=0)) as store:
        report = SnapshotSync([SourceReport(sys.argv[2])])
        await sync_all(report, store, ())
        assert report.is_whole
        assert report.synced.counts.keys() <= {"new"}
        print(report.synced.counts["new"])


if __name__ == "__main__":
    snapshot_reader._NODES_AT_ONCE = 8  # many parts
    admit = Store.admit_remote

    async def admit_remote(self: Store, *args: Any) -> Any:
        step()
        verdicts = await admit(self, *args)
        step()
        return verdicts

    Store.admit_remote = admit_remote  # type: ignore[method-assign]
    trio.run(main)
