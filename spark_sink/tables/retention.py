"""Keeps the files of a table few, and deletes those that only older versions need, as soon as they
take much space.

A table of streams is changed by copying files: every small batch leaves behind the files that it
rewrote, in an object store as large as the table, and an entry in the table's log that names them.
Time alone cannot bound that, as the more batches there are, the more is kept. So the oldest
leftovers are deleted once all together take more than a limit. Entries of the log are among them as
soon as a later checkpoint of Delta's has all that they say. Two kinds of leftovers stay: those that
were needed until a moment ago, which a reader may just be opening; and those of a version that
somebody holds. Readers of this project hold what they read: they have a locked file in `_readers`,
named for the version, so that the lock ends with them however they end.
"""

from __future__ import annotations

import json
import math
import re
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import IO, Final, NamedTuple
from urllib.parse import unquote

from deltalake import DeltaTable

from recon_node.base.files import open_locked
from spark_sink.schema import TABLES
from spark_sink.tables.commits import Commits
from spark_sink.tables.delta_files import (
    CHANGE_DATA,
    CHANGES,
    LOG,
    RETENTION,
    listed,
    merge_small_files,
    names_of,
    read_commit,
    vacuum,
)
from spark_sink.tables.location import Location, concurrently, file_system, files_below
from spark_sink.tables.staging import Stager

_READERS: Final = "_readers"
_LAST_CHECKPOINT: Final = f"{LOG}/_last_checkpoint"
_ENTRY: Final = re.compile(rf"{LOG}/(\d{{20}})\.[^/]+")
#: Bytes of leftovers that are always kept.
LEAST_KEPT: Final = 4_000_000
# Seconds for which a leftover stays: a reader opens a version, and only then its files. Readers of
# an object store cannot hold a version.
_GRACE: Final = 10.0
_STORE_GRACE: Final = 60.0
# A batch adds up to one file per partition, and to read a stream back opens all of one. They are
# small, so that most of them is not rows: with four times as many, a table takes twice the space.
_COMMITS_PER_TIDY: Final = 16
_MAX_NEW_FILES: Final = 256
# Commits to an object store between two looks at what they left behind: each takes a request.
_COMMITS_PER_TRIM: Final = 16
# A commit every half second writes many log files. Without the files of a version, they are of no
# use, and they must not be kept for a month.
_LOG: Final = "delta.logRetentionDuration"
_LOG_HOURS: Final = 1


@dataclass(frozen=True, slots=True)
class _Leftover:
    """A file that only versions before `version` need, or the changes of that version."""

    name: str
    size: int
    version: int
    since: float


class Leftovers:
    """The files of a table that its latest version does not need.

    Args:
        location: of the table.
        table: as it is now. What was left behind before counts as left behind now.
        clock: returns the time in seconds.
        with_changes: whether the files of the change data feed are among them, and the log, which
            names them.
    """

    def __init__(
        self,
        location: Location,
        table: DeltaTable,
        clock: Callable[[], float] = time.monotonic,
        *,
        with_changes: bool = True,
    ) -> None:
        self._kinds = ("remove", "cdc") if with_changes else ("remove",)
        self._with_log = with_changes
        self._checkpoint = 0
        self._location = location
        self._clock = clock
        self._grace = _GRACE if isinstance(location, Path) else _STORE_GRACE
        self._seen = table.version()
        self._files: deque[_Leftover] = deque()
        if isinstance(location, Path):  # in an object store, others may be about to commit theirs
            live, now = set(names_of(table)), clock()
            for file in files_below(location):
                if file.path in live or _is_own(file.path):
                    continue
                if with_changes or not file.path.startswith(CHANGE_DATA):
                    self._files.append(_Leftover(file.path, file.size, self._seen, now))
        self.size = sum(file.size for file in self._files)
        self._follow_log()

    def follow(self, version: int) -> None:
        """Take in what the commits up to a version have left behind."""
        new = range(self._seen + 1, version + 1)
        now = self._clock()
        for commit_version, commit in zip(
            new, concurrently(self._location, self._read, new), strict=True
        ):
            for name, size in commit.items():
                self._files.append(_Leftover(name, size, commit_version, now))
                self.size += size
        self._seen = version
        self._follow_log()

    def _follow_log(self) -> None:
        """Take in the entries of the log, and older checkpoints, that a checkpoint has replaced."""
        if not self._with_log:
            return
        files = file_system(self._location)
        try:
            with files.open_input_stream(_LAST_CHECKPOINT) as stream:
                checkpoint = int(json.loads(stream.read())["version"])
        except (FileNotFoundError, ValueError, KeyError):
            return  # there is none yet, or another process is writing it
        if checkpoint <= self._checkpoint:
            return
        now = self._clock()
        for file in files_below(self._location, LOG):
            entry = _ENTRY.fullmatch(file.path)
            if entry and self._checkpoint <= int(entry[1]) < checkpoint:
                self._files.append(_Leftover(file.path, file.size, checkpoint, now))
                self.size += file.size
        self._checkpoint = checkpoint

    def trim(self, limit: float) -> int:
        """Delete the oldest until they take no more than `limit` bytes; return how many."""
        if self.size <= limit:
            return 0
        before = self._clock() - self._grace
        held = oldest_held(self._location)
        paths: list[str] = []
        while self._files and self.size > limit:
            file = self._files[0]
            if file.since > before or (held is not None and file.version > held):
                break
            self.size -= self._files.popleft().size
            paths.append(file.name)
        concurrently(self._location, self._delete, paths)
        return len(paths)

    def _read(self, version: int) -> Mapping[str, int]:
        """Return what a commit left behind, with sizes; nothing if its file is gone."""
        left: dict[str, int] = {}
        with suppress(FileNotFoundError):
            for entry in read_commit(self._location, version):
                for action in (entry[kind] for kind in self._kinds if kind in entry):
                    left[unquote(action["path"])] = action.get("size") or 0
        return left

    def _delete(self, name: str) -> None:
        with suppress(FileNotFoundError):
            file_system(self._location).delete_file(name)


def _is_own(name: str) -> bool:
    """Return whether a file is not one with rows of some version."""
    first = PurePath(name).parts[0]
    return first.startswith((".", "_")) and first != CHANGE_DATA


@contextmanager
def held(location: Location, version: int) -> Iterator[Callable[[int], None]]:
    """Keep a version of a table readable for the block, and those after it.

    Yields a function that changes the version to a later one. Where the directory is an object
    store, or may not be written, nothing is held.
    """
    holds: list[tuple[Path, IO[bytes]]] = []

    def move(to: int) -> None:
        before = holds[:]
        with suppress(OSError):
            holds[:] = [_hold(location, to)] if isinstance(location, Path) else []
        for path, file in before:
            _let_go(path, file)

    move(version)
    try:
        yield move
    finally:
        for path, file in holds:
            _let_go(path, file)


def _hold(table: Path, version: int) -> tuple[Path, IO[bytes]]:
    directory = table / _READERS
    directory.mkdir(exist_ok=True)
    path = directory / f"{version}-{uuid.uuid4()}"
    return path, open_locked(path)


def _let_go(path: Path, file: IO[bytes]) -> None:
    with suppress(OSError):
        path.unlink()
    file.close()


def oldest_held(location: Location) -> int | None:
    """Return the oldest version that a reader holds; forget readers that have ended."""
    if not isinstance(location, Path):
        return None
    versions: list[int] = []
    for path in (location / _READERS).glob("*-*"):
        try:
            _let_go(path, open_locked(path))
        except BlockingIOError:
            versions.append(int(path.name.partition("-")[0]))
        except OSError:
            continue
    return min(versions, default=None)


class Retention(NamedTuple):
    """How long older versions of a table are kept.

    Attributes:
        hours: for which they stay readable.
        size: how many bytes their files may take, in this process; None: in proportion to the
            latest version.
        changes: hours for which the change data feed is kept; None: as older versions are.
    """

    hours: float
    size: float | None = None
    changes: float | None = None


class Tidying:
    """Merges small files of the table of `commits`, and deletes those of older versions."""

    def __init__(self, commits: Commits) -> None:
        self._commits = commits
        self._table = commits.table
        self._tidied = self._table.version()
        self._count = len(self._table.file_uris())  # after it was last tidied
        self._leftovers: Leftovers | None = None
        self._trimmed = self._tidied
        self._kept: float | None = None
        self._keeps_changes = False

    def set_retention(self, retention: Retention) -> None:
        """Set how long older versions stay readable."""
        hours, self._kept, changes = retention
        self._keeps_changes = changes is not None
        longest = max(_LOG_HOURS, math.ceil(hours), math.ceil(changes or 0))
        wanted = {
            RETENTION: f"interval {round(hours * 3600)} seconds",
            CHANGES: f"interval {round((hours if changes is None else changes) * 3600)} seconds",
            _LOG: f"interval {longest} hours",
        }
        current = self._table.metadata().configuration
        if any(current.get(name) != value for name, value in wanted.items()):
            self._commits.set_properties(wanted)

    def tidy(self, *, merges: bool, idle: bool, most: float) -> bool:
        """Tidy if it is time for that, and return whether it was: see `FeedTable.tidy`.

        Args:
            merges: whether small files are to be merged.
            idle: whether there is time for the many files of large batches.
            most: see `merge_small_files`.
        """
        self._trim()
        many = idle and len(self._table.file_uris()) - self._count >= _MAX_NEW_FILES
        if not many and self._round(self._table.version()) == self._round(self._tidied):
            return False
        if merges:
            self._merge_small_files(most)
        vacuum(self._commits.path, self._table, None, dry_run=False)
        self._commits.check_alone()
        self._tidied = self._table.version()
        self._count = len(self._table.file_uris())
        return True

    def _merge_small_files(self, most: float) -> None:
        stager = Stager(self._commits.spec, self._commits.path)
        if actions := merge_small_files(self._table, stager, most):
            with self._commits.advancing_to(self._commits.position) as properties:
                self._commits.write(actions, properties)

    def _round(self, version: int) -> int:
        """Count the rounds of tidying, which begin at other versions for each table.

        A batch commits to all tables once, and must not tidy them all.
        """
        name = self._commits.spec.name
        turn = [*TABLES].index(name) if name in TABLES else len(TABLES)
        return (version + turn * _COMMITS_PER_TIDY // (len(TABLES) + 1)) // _COMMITS_PER_TIDY

    def _trim(self) -> None:
        """Delete what older versions need beyond the limit."""
        path = self._commits.path
        if self._leftovers is None:
            self._leftovers = Leftovers(path, self._table, with_changes=not self._keeps_changes)
        version = self._table.version()
        if version - self._trimmed < (1 if isinstance(path, Path) else _COMMITS_PER_TRIM):
            return
        self._trimmed = version
        self._leftovers.follow(version)
        limit = self._kept
        if limit is None and self._leftovers.size > LEAST_KEPT:
            live = sum(size for _, size in listed(self._table, "size_bytes"))
            limit = max(LEAST_KEPT, live)
        self._leftovers.trim(math.inf if limit is None else limit)
