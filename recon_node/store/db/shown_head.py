"""The last feed position that was shown to anyone, in a small file beside the log.

A commit is never lost to a kill. But a log can still come back shorter than its readers know it: a
byte of the write-ahead log flips and SQLite drops all that follows it, the power fails with
`synchronous = "normal"`, or an operator puts an older copy back. New events would then get
positions that readers have seen on other events. So the file keeps the epoch and the head of each
commit before the head is shown. A log that is opened with less than that gets a new epoch, by which
readers notice that they must start anew.

The file is one line, rewritten in place by a single write, so that a kill leaves the old or the new
line. It is not synced: it only has to be as new as what the operating system keeps of the log.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

FILE_NAME: Final = "feed.head"


class ShownHead:
    """Reads and writes the file of one data directory; by the thread that writes the log.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(self, data_dir: Path) -> None:
        self._descriptor = os.open(
            data_dir / FILE_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644
        )

    def of(self, epoch: str) -> int:
        """Return the last position of that epoch that may have been shown; 0 if none is known."""
        fields = os.pread(self._descriptor, 100, 0).split()
        if len(fields) != 2 or fields[0] != epoch.encode() or not fields[1].isdigit():
            return 0
        return int(fields[1])

    def note(self, epoch: str, head: int) -> None:
        """Keep the head of a commit, before anyone sees it."""
        os.pwrite(self._descriptor, f"{epoch} {head:020d}\n".encode("ascii"), 0)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)
