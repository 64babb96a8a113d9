"""Putting another file in the log's place, whatever ends the process in the middle of it.

A log is its file and the write-ahead log or journal beside it: two files, that no system replaces
at once. And either of them beside the wrong file would destroy that one. So the new file gets the
name `events.sqlite3.replacement` first, when it is whole and on the disk: from then on it *is* the
log, and whoever opens the log takes the rest of the steps.
"""

from __future__ import annotations

import os
from pathlib import Path

from recon_node.store.db.files import sync_directory

_SUFFIX = ".replacement"


def replace_log(path: Path, new: Path) -> None:
    """Put the file `new`, on the same file system, in the place of the log `path`.

    Nobody has either of them open, and `new` has no write-ahead log of its own.
    """
    descriptor = os.open(new, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    new.rename(path.with_name(path.name + _SUFFIX))
    sync_directory(path.parent)
    finish_replacement(path)


def finish_replacement(path: Path) -> None:
    """Take the rest of the steps, if a replacement was broken off."""
    new = path.with_name(path.name + _SUFFIX)
    if not new.exists():
        return
    for suffix in ("-wal", "-shm", "-journal"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    sync_directory(path.parent)
    new.replace(path)
    sync_directory(path.parent)
