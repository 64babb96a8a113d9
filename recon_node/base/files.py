"""Files that survive a crash or a power cut: locked, or complete under their name.

Locks are `flock` locks, which the kernel releases when their holder dies: after kill -9 nothing has
to be cleaned up. They are taken here and not with the filelock library, which truncates a lock file
before it asks for the lock and deletes it afterwards: a process that is refused could then not read
in it who the holder is.
"""

import errno
import fcntl
import os
import select
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import BinaryIO, Final

SQLITE_HEAD: Final = b"SQLite format 3\0"
"""What a database of SQLite begins with."""

_CANNOT_SYNC: Final = (errno.EINVAL, errno.EACCES)
"""Directories on SMB cannot be synced, nor can those that may be written but not read."""


MAX_SECRET: Final = 64 * 1024
"""Bytes of a file with a key or a token."""
_PIPE_PATIENCE: Final = 10.0
"""Seconds to wait for a pipe."""
_RESERVE: Final = 1 << 30
_RESERVED_PART: Final = 20
_PRIVATE_DIRECTORY: Final = 0o700
_OTHERS: Final = 0o077
_ALL_OTHERS: Final = 0o007
_SCRATCH: Final = ".recon-node.part"
"""The folder in a data directory for files that are not complete."""
_TEMPORARY: Final = "recon-node-files-"
_LOCK: Final = ".lock"
_NO_OTHER_USE: Final = ("lost+found", _SCRATCH)
"""Directories that a disk has, and that a command which was killed leaves behind."""


def private_directory(path: Path) -> list[Path]:
    """Make a directory that only its owner can read, or make an existing one so, with its files.

    What belongs to another user is left as it is, and so is all of a directory that `is_shared`.

    Returns:
        What others could read or write before.

    Raises:
        OSError: it cannot be created.
    """
    path.mkdir(mode=_PRIVATE_DIRECTORY, parents=True, exist_ok=True)
    if is_shared(path):
        return []
    return [entry for entry in (path, *path.iterdir()) if make_private(entry)]


def is_shared(directory: Path) -> bool:
    """Return whether a directory has other uses than to hold the files of one program: it is for
    temporary files of all users, or has directories in it.

    A home directory, `/` or `/tmp` that somebody names by mistake is not to be closed to others.
    """
    if directory.stat().st_mode & stat.S_ISVTX:
        return True
    return any(
        not entry.is_symlink() and entry.is_dir() and entry.name not in _NO_OTHER_USE
        for entry in directory.iterdir()
    )


def make_private(path: Path) -> bool:
    """Take others' permissions from a file or directory of ours; return whether they had any.

    What has none is not touched: its disk may be read-only.

    Raises:
        OSError: they cannot be taken.
    """
    try:
        status = path.lstat()
        if status.st_uid != os.geteuid() or not status.st_mode & _OTHERS or path.is_symlink():
            return False
        path.chmod(stat.S_IMODE(status.st_mode) & ~_OTHERS)
    except FileNotFoundError:  # the node that uses the directory has moved or deleted it meanwhile
        return False
    return True


def reserve_at(directory: Path) -> int:
    """Return how many bytes of a disk should stay free: 1 GiB, or 5 % of a disk that is small.

    Raises:
        OSError: there is no such directory.
    """
    return min(_RESERVE, shutil.disk_usage(directory).total // _RESERVED_PART)


def room_at(directory: Path) -> int:
    """Return how many bytes may be written above what should stay free.

    Raises:
        OSError: there is no such directory.
    """
    return max(shutil.disk_usage(directory).free - reserve_at(directory), 0)


def is_exposed(path: Path) -> bool:
    """Whether other users of this machine may read a file, which should be a secret.

    A file of another user, such as a credential of systemd or a secret of Kubernetes, which belong
    to root, may be read by its group: otherwise this process could not.
    """
    try:
        status = path.stat()
    except OSError:
        return False
    return bool(status.st_mode & (_OTHERS if status.st_uid == os.geteuid() else _ALL_OTHERS))


def read_secret(path: Path, encoding: str = "utf-8") -> str:
    """Return the text of a small file, such as a key or a token, without blanks around it.

    It is read as by `read_small`.

    Raises:
        OSError: it cannot be read, or has more than `MAX_SECRET` bytes.
        UnicodeDecodeError: it is not text in this encoding.
    """
    return read_small(path).decode(encoding).strip()


def read_small(path: Path, limit: int = MAX_SECRET) -> bytes:
    """Return the content of a small file.

    It may be a pipe, as of `<(pass show token)`, which must not be silent for `_PIPE_PATIENCE`.

    Raises:
        OSError: it cannot be read, or has more than `limit` bytes, as a device may.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        return _read_at_most(limit, descriptor)
    except OSError as error:  # which knows the descriptor at most
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        os.close(descriptor)


def _read_at_most(limit: int, descriptor: int) -> bytes:
    content = bytearray()
    ready = select.poll()  # `select` takes no descriptor above 1,023
    ready.register(descriptor, select.POLLIN)
    while ready.poll(_PIPE_PATIENCE * 1000):
        piece = os.read(descriptor, MAX_SECRET)
        content += piece
        if not piece:
            return bytes(content)
        if len(content) > limit:
            raise OSError(errno.EFBIG, f"it has more than {limit} bytes")
    raise OSError(errno.ETIMEDOUT, "nothing comes from it")


def create_file(path: Path, content: bytes) -> None:
    """Write a file that does not exist, durably, for its owner alone; if that fails, there is none.

    Raises:
        FileExistsError: it exists.
        OSError: it cannot be written.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        sync_directory(path.parent)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def open_locked(
    path: Path, *, wait: bool = False, create: bool = True, mode: int = 0o666
) -> BinaryIO:
    """Open a file for reading and writing, and hold an exclusive lock on it until it is closed.

    A symbolic link is not followed: another user could have another file overwritten by one.

    Args:
        path: the file.
        wait: until another holder has released the lock; by default nothing waits.
        create: the file, if it is missing.
        mode: permissions of a new file, less the umask.

    Raises:
        BlockingIOError: another holder has the lock, in this process or in another one.
        OSError: the file cannot be opened, or its file system has no locks.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if create else 0)
    while True:
        descriptor = os.open(path, flags, mode)
        file = os.fdopen(descriptor, "r+b")
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(file, path):  # otherwise it was moved or deleted before it was locked
                return file
        except BaseException:
            file.close()
            raise
        file.close()


@contextmanager
def draft_of(path: Path, *, wait: bool = False, mode: int = 0o666) -> Iterator[Path]:
    """Yield an empty file `.NAME.part` beside `path`, which is deleted after the block.

    Once it is complete, `move_into_place(draft, path)` keeps it. One process at a time has the
    draft; it starts empty even if an earlier process was killed and left one behind.

    Args:
        path: the file to make or replace.
        wait: until another process is done with its draft; by default nothing waits.
        mode: permissions of the file, less the umask.

    Raises:
        BlockingIOError: another process has a draft of this file.
        OSError: the draft cannot be created.
    """
    draft = path.with_name(f".{path.name}.part")
    if draft.is_symlink():  # not ours
        draft.unlink()
    with open_locked(draft, wait=wait, mode=mode) as file:
        try:
            file.truncate(0)
            yield draft
        finally:
            if _is_at(file, draft):  # it was not moved: the name may be another process's by now
                draft.unlink()


@contextmanager
def scratch_folder(directory: Path) -> Iterator[Path]:
    """Yield a new folder in a locked data directory, for files that are not complete.

    It is deleted after the block, or by `delete_scratch` if the process is killed.

    Raises:
        OSError: it cannot be made.
    """
    delete_scratch(directory)
    folder = directory / _SCRATCH
    folder.mkdir(mode=_PRIVATE_DIRECTORY)
    try:
        yield folder
    finally:
        delete_scratch(directory)


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield a new folder in the directory for temporary files, for this user alone.

    It is deleted after the block, or by the next process that makes one if this one is killed.

    Raises:
        OSError: it cannot be made.
    """
    for left in Path(gettempdir()).glob(f"{_TEMPORARY}*"):
        with suppress(OSError), open_locked(left / _LOCK, create=False):
            if len([*left.iterdir()]) > 1:  # else another process is just making it
                shutil.rmtree(left)
    with TemporaryDirectory(prefix=_TEMPORARY) as name, open_locked(Path(name) / _LOCK, wait=True):
        yield Path(name)


def delete_scratch(directory: Path) -> None:
    """Delete what a process that was killed has left in its `scratch_folder`."""
    shutil.rmtree(directory / _SCRATCH, ignore_errors=True)


def move_into_place(draft: Path, path: Path) -> None:
    """Rename a complete file to `path`, replacing what has that name, durably.

    After a power cut, `path` is either what it was before or the whole new file.

    Raises:
        OSError: the disk failed.
    """
    _sync(draft)
    draft.replace(path)
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Make renames and deletions in a directory survive a power cut, if that can be done.

    Raises:
        OSError: the disk failed.
    """
    try:
        _sync(directory)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_at(file: BinaryIO, path: Path) -> bool:
    """Is this open file the one that has the name `path`?"""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
