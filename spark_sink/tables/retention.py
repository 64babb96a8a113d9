"""Keeps the files of a table few and sorted, and deletes those that only older versions need, as
soon as they take much space.

A table of streams is changed by copying files: every small batch leaves behind the files that it
rewrote, in an object store as large as the table, and an entry in the table's log that names them.
Time alone cannot bound that, as the more batches there are, the more is kept. So the oldest
leftovers are deleted once all together take more than a limit. Entries of the log are among them as
soon as a later checkpoint of Delta's has all that they say. Two kinds of leftovers stay: those that
were needed until a moment ago, which a reader may just be opening; and those of a version that
somebody holds. Readers of this project hold what they read: they have a locked file in `_readers`,
named for the version, so that the lock ends with them however they end.
"""

import json
import math
import re
import time
import uuid
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from functools import partial
from operator import attrgetter, itemgetter
from pathlib import Path, PurePath
from typing import Final, NamedTuple
from urllib.parse import unquote

from deltalake import DeltaTable, WriterProperties
from deltalake.transaction import AddAction, RemoveAction

from recon_node.base.files import open_locked
from spark_sink.errors import TablesError
from spark_sink.schema import TABLES
from spark_sink.tables.delta_log import (
    CHANGE_DATA,
    LOG,
    FileActions,
    added,
    data_files,
    listed,
    names_of,
    read_commit,
    removed,
)
from spark_sink.tables.location import Location, concurrently, file_system, files_below
from spark_sink.tables.staging import ROW_GROUP, DataFile, Stager

WRITER: Final = WriterProperties(compression="SNAPPY", max_row_group_size=ROW_GROUP)
"""Settings for the files that delta-rs writes; by default it does not compress."""
_RETENTION: Final = "delta.deletedFileRetentionDuration"
"""The property for how long older versions stay readable."""
_CHANGES: Final = "recon.changesRetentionDuration"
"""The property for how long their change data feed does."""
_HOURS: Final = {
    "microsecond": Fraction(1, 3_600_000_000),
    "millisecond": Fraction(1, 3_600_000),
    "second": Fraction(1, 3_600),
    "minute": Fraction(1, 60),
    "hour": Fraction(1),
    "day": Fraction(24),
    "week": Fraction(7 * 24),
    "month": Fraction(31 * 24),
    "year": Fraction(366 * 24),
}
"""Hours per unit of the property; months and years count with their greatest length."""
_TARGET_BYTES: Final = 32 * 1024 * 1024
"""Bytes of a file from which on it is not merged."""
_MIN_FILES: Final = 8
"""Files that are merged together at least."""
_MAX_RATIO: Final = 2
"""How many times as large as all smaller ones together a file of them may be."""
_MAX_MERGE_BYTES: Final = 64 * 1024 * 1024
"""Bytes of files that are merged together."""
_READERS: Final = "_readers"
_LAST_CHECKPOINT: Final = f"{LOG}/_last_checkpoint"
_ENTRY: Final = re.compile(rf"{LOG}/(\d{{20}})\.[^/]+")
LEAST_KEPT: Final = 4_000_000
"""Bytes of leftovers that are always kept."""
_GRACE: Final = 10.0
"""Seconds for which a leftover stays: a reader opens a version, and only then its files."""
_STORE_GRACE: Final = 60.0
"""Seconds for which it stays in an object store, whose readers cannot hold a version."""
_COMMITS_PER_TIDY: Final = 16
"""A commit adds up to one file per partition, and to read a stream back opens all files of one.
They are small, so that most of them is not rows: with four times as many, a table takes twice the
space."""
_MAX_NEW_FILES: Final = 256
_COMMITS_PER_TRIM: Final = 16
"""Commits to an object store between two looks at what they left behind: each takes a request."""
_LOG: Final = "delta.logRetentionDuration"
"""The property for how long the log is kept. A commit every half second writes many log files,
which are of no use without the files of their versions."""
_LOG_HOURS: Final = 1


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
    """Deletes the files that only older versions of a table need, and says when to merge others.

    The owner reads `table` again after each commit.
    """

    def __init__(self, name: str, path: Location, table: DeltaTable) -> None:
        self._name = name
        self._path = path
        self._table = table
        self._tidied = table.version()
        self._count = len(table.file_uris())  # after it was last tidied
        self._leftovers: Leftovers | None = None
        self._trimmed = self._tidied
        self._most_bytes: float | None = None
        self._keeps_changes = False

    def set_retention(self, retention: Retention) -> dict[str, str]:
        """Set how long older versions stay readable; return the properties that this changes."""
        hours, self._most_bytes, changes = retention
        self._keeps_changes = changes is not None
        longest = max(_LOG_HOURS, math.ceil(hours), math.ceil(changes or 0))
        wanted = {
            _RETENTION: f"interval {round(hours * 3600)} seconds",
            _CHANGES: f"interval {round((hours if changes is None else changes) * 3600)} seconds",
            _LOG: f"interval {longest} hours",
        }
        current = self._table.metadata().configuration
        return {} if wanted.items() <= current.items() else wanted

    def tidy(self, merge: Callable[[], None] | None, *, idle: bool) -> bool:
        """Tidy if it is time for that, and return whether it was: see `SinkTable.tidy`.

        `merge` merges small files; None: they are not merged.
        """
        self._trim()
        many = idle and len(self._table.file_uris()) - self._count >= _MAX_NEW_FILES
        if not many and self._round(self._table.version()) == self._round(self._tidied):
            return False
        if merge is not None:
            merge()
        kept = math.ceil(_kept(self._path, self._table) / timedelta(hours=1))
        vacuum(self._path, self._table, None, dry_run=False)
        if self._leftovers is not None:
            self._leftovers.forget(kept * 3600.0)
        self._tidied = self._table.version()
        self._count = len(self._table.file_uris())
        return True

    def _round(self, version: int) -> int:
        """Count the rounds of tidying, which begin at other versions for each table.

        A batch commits to all tables once, and must not tidy them all.
        """
        turn = [*TABLES].index(self._name) if self._name in TABLES else len(TABLES)
        return (version + turn * _COMMITS_PER_TIDY // (len(TABLES) + 1)) // _COMMITS_PER_TIDY

    def _trim(self) -> None:
        """Delete what older versions need beyond the limit; without one, time alone decides."""
        path = self._path
        if self._most_bytes == math.inf:  # what they need would be remembered for all that time
            return
        if self._leftovers is None:
            self._leftovers = Leftovers(path, self._table, with_changes=not self._keeps_changes)
        version = self._table.version()
        if version - self._trimmed < (1 if isinstance(path, Path) else _COMMITS_PER_TRIM):
            return
        self._trimmed = version
        self._leftovers.follow(version)
        limit = self._most_bytes
        if limit is None and self._leftovers.size > LEAST_KEPT:
            live = sum(size for _, size in listed(self._table, "size_bytes"))
            limit = max(LEAST_KEPT, live)
        self._leftovers.trim(math.inf if limit is None else limit)


def merge_small_files(table: DeltaTable, stager: Stager, most: float) -> FileActions:
    """Merge small files in each partition, sorted by stream; return the actions to commit.

    Only files of similar size are merged, so that a row is rewritten once per doubling of the table
    instead of every time. Partitions grow alike: all of them would have to be merged at once.

    After `most` bytes, the rest, the larger files, is left to the next time.
    """
    files: dict[int, list[DataFile]] = defaultdict(list)
    for file in data_files(table, stager.spec, stager.location):
        if file.size < _TARGET_BYTES:
            files[file.partition].append(file)
    groups = [
        (sum(file.size for file in group), group)
        for small in files.values()
        for group in _groups_of_like_size(small)
    ]
    actions: FileActions = []
    for size, group in sorted(groups, key=itemgetter(0)):
        actions += _merge(stager, group)
        most -= size
        if most <= 0:
            break
    return actions


def _groups_of_like_size(files: list[DataFile]) -> Iterator[list[DataFile]]:
    """Group files to merge: from the smallest on, until one is much larger than all before it."""
    group: list[DataFile] = []
    total = 0
    for file in sorted(files, key=attrgetter("size")):
        if group and (file.size > _MAX_RATIO * total or total >= _MAX_MERGE_BYTES):
            if len(group) >= _MIN_FILES:
                yield group
            group, total = [], 0
        group.append(file)
        total += file.size
    if len(group) >= _MIN_FILES:
        yield group


def _merge(stager: Stager, files: list[DataFile]) -> Iterator[AddAction | RemoveAction]:
    """Merge files, sorted as far as their rows fit in memory."""
    for new in stager.rewrite(files).files:
        yield added(new, is_new=False)
    for old in files:
        yield removed(old, is_change=False)


def optimize(table: DeltaTable) -> int:
    """Sort the table's partitions by stream, into few files; return the number of files."""
    table.optimize.z_order(["stream_cid"], target_size=_TARGET_BYTES, writer_properties=WRITER)
    return len(table.file_uris())


def vacuum(
    location: Location, table: DeltaTable, hours: float | None, *, dry_run: bool
) -> list[str]:
    """Delete files that only versions older than `hours` need, and uncommitted files of that age.

    `hours` None: as the table's property says, or for as long as a reader has held its version.
    Nothing else may be writing a table on a disk. In a store, where no lock ensures that,
    uncommitted files are kept for an hour at least, because they may be about to be committed.
    Returns the names of the files.
    """
    keep = _kept(location, table) if hours is None else timedelta(hours=hours)
    changes = keep if hours is not None else max(keep, retention_of(table, _CHANGES))
    # delta-rs counts whole hours: round up to keep too much rather than too little.
    whole_hours = math.ceil(keep / timedelta(hours=1))
    clear = partial(table.vacuum, enforce_retention_duration=False, dry_run=dry_run)
    if isinstance(location, Path) and changes == keep:
        files = clear(whole_hours, full=True)
    else:  # in full, it deletes the change data feed, too
        uncommitted = max(1, math.ceil(changes / timedelta(hours=1)))
        files = [*clear(whole_hours), *clear(uncommitted, full=True)]
    return [*files, *_old_changes(location, changes, dry_run=dry_run)]


def _kept(location: Location, table: DeltaTable) -> timedelta:
    """Return how long what a commit left behind is kept, if no limit of its size says less."""
    return max(retention_of(table), _longest_hold(location))


def _old_changes(location: Location, keep: timedelta, *, dry_run: bool) -> list[str]:
    """Delete files of the change data feed, which delta-rs does not vacuum."""
    before = datetime.now(UTC) - keep
    expired = [file.path for file in files_below(location, CHANGE_DATA) if file.mtime <= before]
    if not dry_run:
        concurrently(location, file_system(location).delete_file, expired)
    return expired


def retention_of(table: DeltaTable, name: str = _RETENTION) -> timedelta:
    """Return how long older versions stay readable, or what another property says."""
    default = "interval 7 days" if name == _RETENTION else "interval 0 seconds"
    text = table.metadata().configuration.get(name, default)
    words = text.lower().split()
    pairs = words[1:] if words[:1] == ["interval"] else words
    try:
        numbers = [Fraction(number) for number in pairs[::2]]
        hours = [_HOURS[unit.removesuffix("s")] for unit in pairs[1::2]]
        total = sum((n * h for n, h in zip(numbers, hours, strict=True)), Fraction())
        if not pairs or total < 0:
            raise ValueError(text)
        return timedelta(hours=float(total))
    except (ValueError, KeyError, ZeroDivisionError, OverflowError):
        raise TablesError(
            f"the table at {table.table_uri} has the property {name} = {text!r}, which is "
            "not a duration such as 'interval 7 days'"
        ) from None


@dataclass(frozen=True, slots=True)
class _Leftover:
    """A file that only versions before `version` need, or the changes of that version."""

    name: str
    size: int
    version: int
    since: float


class Leftovers:
    """The files of a table that its latest version does not need.

    What was left behind before it was made counts as left behind then. With `with_changes`, the
    files of the change data feed are among them, and the log, which names them.
    """

    def __init__(
        self,
        location: Location,
        table: DeltaTable,
        clock: Callable[[], float] = time.monotonic,
        *,
        with_changes: bool = True,
    ) -> None:
        self._with_changes = with_changes
        self._checkpoint = 0
        self._location = location
        self._clock = clock
        self._grace = _GRACE if isinstance(location, Path) else _STORE_GRACE
        self._seen = table.version()
        self._files: deque[_Leftover] = deque()
        self.size = 0
        if isinstance(location, Path):  # in an object store, others may be about to commit theirs
            live = set(names_of(table))
            for file in files_below(location):
                if file.path in live or _is_own(file.path):
                    continue
                if with_changes or not file.path.startswith(CHANGE_DATA):
                    self._add(file.path, file.size, self._seen)
        self._follow_log()

    def follow(self, version: int) -> None:
        """Take in what the commits up to a version have left behind."""
        new = range(self._seen + 1, version + 1)
        commits = concurrently(self._location, self._read, new)
        for commit_version, commit in zip(new, commits, strict=True):
            for name, size in commit.items():
                self._add(name, size, commit_version)
        self._seen = version
        self._follow_log()

    def _follow_log(self) -> None:
        """Take in the entries of the log, and older checkpoints, that a checkpoint has replaced."""
        if not self._with_changes:
            return
        files = file_system(self._location)
        try:
            with files.open_input_stream(_LAST_CHECKPOINT) as stream:
                checkpoint = int(json.loads(stream.read())["version"])
        except (FileNotFoundError, ValueError, KeyError):
            return  # there is none yet, or another process is writing it
        if checkpoint <= self._checkpoint:
            return
        for file in files_below(self._location, LOG):
            entry = _ENTRY.fullmatch(file.path)
            if entry and self._checkpoint <= int(entry[1]) < checkpoint:
                self._add(file.path, file.size, checkpoint)
        self._checkpoint = checkpoint

    def _add(self, name: str, size: int, version: int) -> None:
        self._files.append(_Leftover(name, size, version, self._clock()))
        self.size += size

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

    def forget(self, seconds: float) -> None:
        """Forget what was left behind longer ago: vacuum has deleted that.

        Else all of it would be in memory as long as a large limit is not reached, and count.
        """
        before = self._clock() - seconds
        while self._files and self._files[0].since < before:
            self.size -= self._files.popleft().size

    def _read(self, version: int) -> Mapping[str, int]:
        """Return what a commit left behind, with sizes; nothing if its file is gone."""
        left: dict[str, int] = {}
        with suppress(FileNotFoundError):
            kinds = ("remove", "cdc") if self._with_changes else ("remove",)
            for entry in read_commit(self._location, version):
                for action in (entry[kind] for kind in kinds if kind in entry):
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
    with ExitStack() as holds:

        def move(to: int) -> None:
            before = holds.pop_all()
            with suppress(OSError):
                if isinstance(location, Path):
                    holds.enter_context(_hold(location / _READERS, to))
            before.close()

        move(version)
        yield move


@contextmanager
def _hold(readers: Path, version: int) -> Iterator[None]:
    readers.mkdir(exist_ok=True)
    path = readers / f"{version}-{uuid.uuid4()}"
    with open_locked(path):
        try:
            yield
        finally:
            with suppress(OSError):
                path.unlink()


def oldest_held(location: Location) -> int | None:
    """Return the oldest version that a reader holds; forget readers that have ended."""
    versions = (int(path.name.partition("-")[0]) for path in _holds(location))
    return min(versions, default=None)


def _longest_hold(location: Location) -> timedelta:
    """Return for how long a reader has held its version; of several, the longest time."""
    now = time.time()
    begun = [now]
    for path in _holds(location):
        with suppress(OSError):  # it has ended just now
            begun.append(path.stat().st_mtime)
    return timedelta(seconds=now - min(begun))


def _holds(location: Location) -> list[Path]:
    """Return the files of readers, without those that have ended."""
    if not isinstance(location, Path):
        return []
    held_files: list[Path] = []
    for path in (location / _READERS).glob("*-*"):
        try:
            with open_locked(path):
                path.unlink()
        except BlockingIOError:
            held_files.append(path)
        except OSError:
            continue
    return held_files
