"""One daemon a data directory: a lock that the kernel releases when its holder dies.

`flock` rather than a file with a pid in it: after kill -9 nothing has to be cleaned up. The pid and
the host name inside only name the holder to whoever is refused: several containers may share a
directory, and in each the node is process 1 of a host of its own. The file is never deleted; that
would let two processes lock two files of the same name.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from recon_node.store.errors import StoreError


@contextmanager
def directory_lock(data_dir: Path) -> Iterator[None]:
    """Hold the directory's `lock` file, which is made when missing.

    Raises:
        StoreError: another process holds it (its pid is named), or the file cannot be made.
    """
    path = data_dir / "lock"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StoreError(f"the data directory {data_dir} cannot be locked: {error}") from error
    try:
        _lock(descriptor, data_dir)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, data_dir: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise StoreError(
            f"the data directory {data_dir} is in use by {_holder(descriptor)} first, or give this "
            "one a data directory of its own"
        ) from None
    except OSError as error:
        raise StoreError(f"the data directory {data_dir} cannot be locked: {error}") from error
    mark = f"{os.getpid()} {os.uname().nodename}\n".encode()
    with suppress(OSError):  # the lock is held; a full disk only costs the others our pid
        os.pwrite(descriptor, mark, 0)
        os.ftruncate(descriptor, len(mark))


def _holder(descriptor: int) -> str:
    """Which process holds the lock, and what to stop."""
    pid, _, host = os.pread(descriptor, 100, 0).decode("utf-8", "replace").strip().partition(" ")
    pid, own = pid or "(unknown)", os.uname().nodename
    if pid == "1" and host in ("", own):  # with the host's network, containers share its name
        return f"process {pid}, the node of a container: stop that container"
    if host not in ("", own):
        return f"process {pid} on host {host}, another container or machine: stop that node"
    return f"process {pid}: stop that daemon"
