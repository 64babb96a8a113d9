"""Makes snapshots again and again, until it is killed: python snapshot_child.py DATA_DIR URL."""

import sys
from pathlib import Path

from nacl.signing import SigningKey

from recon_node.snapshot.creating import create_snapshot
from recon_node.snapshot.event_source import LogSource
from recon_node.snapshot.objects import Objects

if __name__ == "__main__":
    objects = Objects.open(sys.argv[2], make=True)
    with LogSource(Path(sys.argv[1])) as source:
        for _ in range(1000):
            create_snapshot(
                source,
                objects,
                SigningKey(b"k" * 32),
                lambda *step: None,
                pack_bytes=5000,
                afresh=True,
            )
            print("made", flush=True)
