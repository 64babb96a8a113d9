"""The data directory: one process at a time, and a part of its disk that is kept free.

**The lock.** A locked file has the name of its holder in it. The pid and the host name only tell
those who are refused what to stop: several containers may share a directory, and in each of them
the node is process 1 of a host of its own. The file is never deleted; otherwise two processes could
lock two files of the same name.

**The reserve.** Anybody may send valid events to a node on an open network, until its disk is full:
then nothing works that has to write. So below a reserve (`keep_free`) nothing is taken from peers,
while this node's own clients can still write. Peers are told nothing: their events count as
unwanted for now, so that sessions go on, this node's own events reach the others, and the rest is
fetched once there is room again.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import structlog

from recon_node.files import open_locked
from recon_node.store.errors import DiskFullError, StoreError

logger = structlog.get_logger(__name__)

LOOK_EVERY: Final = 1.0
"""Seconds between two looks at the disk."""
_COPIES: Final = 3
"""How many times an event may be on the disk: in the write-ahead log, in the log, and its index."""
_ENOUGH: Final = 1.1
"""How many times what was lacking must be free until peers' events are taken again."""


class DiskReserve:
    """The reserve on the disk of a store.

    Args:
        keep: bytes to keep free; 0: none.
        free: returns how many bytes are free now, less those that are still to be written.
        clock: returns the time in seconds.
    """

    def __init__(self, keep: int, free: Callable[[], int], clock: Callable[[], float]) -> None:
        self.keep = keep
        self._free = free
        self._clock = clock
        self._held = 0
        """Bytes of events that are being written."""
        self._is_short = False
        self._enough = 0.0
        """The bytes that must be free until peers' events are taken again."""
        self._looked_at = -LOOK_EVERY

    @property
    def free(self) -> int:
        """The bytes that are free now."""
        try:
            return self._free()
        except OSError:  # the disk is gone: writing says so better
            return self.keep

    @property
    def is_short(self) -> bool:
        """Whether nothing is taken from peers; as of the last look."""
        if self.keep and self._clock() >= self._looked_at + LOOK_EVERY:
            self._looked_at = self._clock()
            free = self.free
            self._change(free < (self._enough if self._is_short else self.keep), free, self.keep)
        return self._is_short

    @contextmanager
    def room_for(self, size: int) -> Iterator[None]:
        """Take room for events of peers, while they are being written.

        Args:
            size: of their CARs, in bytes.

        Raises:
            DiskFullError: there is not.
        """
        free, needed = self.free, self.keep + _COPIES * (self._held + size)
        if self.keep and (self.is_short or free < needed):
            self._change(True, free, needed)
            raise DiskFullError(
                f"the disk has {free / 1e6:,.0f} MB left, and {self.keep / 1e6:,.0f} MB are kept "
                "free (keep_free): nothing is taken from peers until there is more"
            )
        self._held += size
        try:
            yield
        finally:
            self._held -= size

    def _change(self, is_short: bool, free: int, needed: int) -> None:
        if is_short and not self._is_short:
            self._enough = _ENOUGH * needed
        if is_short != self._is_short:
            (logger.warning if is_short else logger.info)(
                "The disk is nearly full: nothing is taken from peers until it has more room"
                if is_short
                else "The disk has room again: events are taken from peers",
                free=free,
                keep_free=self.keep,
            )
        self._is_short = is_short


def free_space(log: Path) -> int:
    """Return how many bytes are free on the disk of an event log, less its write-ahead log.

    What stands in that one is still to be written to the log itself.
    """
    try:
        ahead = log.with_name(log.name + "-wal").stat().st_size
    except OSError:  # there is none now
        ahead = 0
    return max(0, shutil.disk_usage(log.parent).free - ahead)


LOCK_FILE: Final = "lock"


@contextmanager
def directory_lock(data_dir: Path) -> Iterator[None]:
    """Hold the directory's `lock` file, which is created if it is missing.

    Raises:
        StoreError: another process holds it (its pid is named), or the file cannot be created.
    """
    path = data_dir / LOCK_FILE
    try:
        file = open_locked(path)
    except BlockingIOError:
        raise StoreError(
            f"the data directory {data_dir} is in use by {_holder(path)} first, or give this one a "
            "separate data directory"
        ) from None
    except OSError as error:
        is_link = error.errno == errno.ELOOP
        reason = "its file 'lock' is a symbolic link: remove it" if is_link else error.strerror
        raise StoreError(f"the data directory {data_dir} cannot be locked: {reason}") from error
    with file:
        mark = f"{os.getpid()} {os.uname().nodename}\n".encode()
        with suppress(OSError):  # the lock is held; a full disk only costs the others our pid
            os.pwrite(file.fileno(), mark, 0)
            os.ftruncate(file.fileno(), len(mark))
        yield


def is_in_use(data_dir: Path) -> bool:
    """Return whether a process holds a directory's lock."""
    path = data_dir / LOCK_FILE
    if not path.exists():
        return False
    try:
        open_locked(path).close()
    except BlockingIOError:
        return True
    except OSError:
        return False  # whoever takes the lock hears what is wrong
    return False


def _holder(path: Path) -> str:
    """Which process holds the lock, and what to stop."""
    mark = path.read_text(encoding="utf-8", errors="replace").strip()
    pid, _, host = mark.partition(" ")
    pid, own = pid or "(unknown)", os.uname().nodename
    if pid == "1" and host in ("", own):  # with the host's network, containers share its name
        return f"process {pid}, the node of a container: stop that container"
    if host not in ("", own):
        return f"process {pid} on host {host}, another container or machine: stop that node"
    return f"process {pid}: stop that daemon"
