"""The lock of a data directory, so that one process at a time uses it.

A locked file has the name of its holder in it. The pid and the host name only tell those who are
refused what to stop: several containers may share a directory, and in each of them the node is
process 1 of a host of its own. The file is never deleted; otherwise two processes could lock two
files of the same name.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from recon_node.base.errors import reason_of
from recon_node.base.files import open_locked
from recon_node.store.errors import StoreError

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
        reason = "its file 'lock' is a symbolic link: remove it" if is_link else reason_of(error)
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
        return False  # the next to take the lock sees what is wrong
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
