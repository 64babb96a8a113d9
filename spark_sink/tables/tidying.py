"""Keeps the files of a table few, and what its older versions leave behind small."""

import math
from pathlib import Path
from typing import Final, NamedTuple

from spark_sink.schema import TABLES
from spark_sink.tables.commits import Commits
from spark_sink.tables.delta_files import CHANGES, RETENTION, listed, merge_small_files, vacuum
from spark_sink.tables.retention import LEAST_KEPT, Leftovers
from spark_sink.tables.staging import Stager

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
