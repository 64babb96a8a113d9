"""A log that lost its end: how far its readers know it, in a small file beside it.

A kill never loses a commit. But a log can still become shorter than its readers know it: a byte of
the write-ahead log flips and SQLite drops everything after it, the power fails with `synchronous =
"normal"`, or an operator restores an older copy. New events would then get positions that readers
have seen on other events. So the file keeps the epoch and the head of each commit before the head
is shown. A log that is opened with a lower head gets a new epoch, which tells readers to start
over.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

HEAD_FILE: Final = "feed.head"


class ShownHead:
    """The file that keeps the last feed position that was shown to anyone.

    It is one line, rewritten in place by a single write, so that a kill leaves the old or the new
    line. It is not synced: it only has to be as new as what the operating system keeps of the log.

    Args:
        data_dir: where the log is.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(self, data_dir: Path) -> None:
        path = data_dir / HEAD_FILE
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

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
