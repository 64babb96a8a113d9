"""kill -9 while snapshots are written: each is there whole, or not there."""

import subprocess
import sys
from pathlib import Path
from random import Random

from snapshot_support import events, make_log
from support import forking

from recon_node.snapshot.objects import Objects
from recon_node.snapshot.snapshot_reader import read_root
from recon_node.snapshot.upkeep import list_roots, verify_snapshot

CHILD = Path(__file__).parent / "snapshot_child.py"


def test_a_killed_process_leaves_whole_snapshots(tmp_path: Path) -> None:
    make_log(tmp_path / "node", events(200, seed=10))
    url = str(tmp_path / "snapshots")
    rng = Random(10)
    for _ in range(2):
        command = [sys.executable, str(CHILD), str(tmp_path / "node"), url]
        with forking.Popen(command, stdout=subprocess.PIPE) as child:
            for _ in range(rng.randint(1, 4)):
                assert child.stdout.readline() == b"made\n"
            child.kill()  # in the midst of the next one
        objects = Objects.open(url, make=True)
        roots, faults = list_roots(objects)
        assert not faults
        assert roots
        for root in [roots[-1], read_root(objects)]:
            report = verify_snapshot(objects, root, lambda done, total: None)
            assert not report.faults
            assert report.events == root.manifest.count == 200
