"""A Delta table without Java: written by delta-rs, readable by any Delta reader.

The table is partitioned by `stream_cid_partition`: the history of the streams in a batch is read
back from their partitions only. Delta has no statistics on binary columns, so it cannot skip files
by `stream_cid`. Parquet has: in a file sorted by it, a reader decodes only the row groups with the
stream. Event files are always sorted. Stream files are sorted and small
(`spark_sink.tables.leaves`); those of many changes at once are written by merges of delta-rs, in
small row groups, and sorted when few rows of them are changed, or `optimize` rewrites them.
"""

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.transaction import AddAction, RemoveAction

from spark_sink.errors import other_rules
from spark_sink.schema import TableSpec, partition_of
from spark_sink.tables.commits import (
    FORGOT,
    PROPERTIES,
    READING_PROPERTY,
    RULES_PROPERTY,
    STAGED_DIR,
    Commits,
    Reading,
    add_missing_columns,
    excludes_dags,
    open_table,
    rules_of,
    times_forgot,
)
from spark_sink.tables.delta_files import LOG, added, data_files, placed, query, removed, vacuum
from spark_sink.tables.location import Location, delete_below, file_system, files_below
from spark_sink.tables.raw_files import RawFiles
from spark_sink.tables.retention import Retention, Tidying
from spark_sink.tables.staging import Staged, Stager, read_file

# The last position of a file without statistics.
_UNKNOWN: Final = 2**63 - 1


class FeedTable:
    """The table `spec` at `path`, of the log `epoch`; created if it does not exist.

    With `for_replacement` it may have other columns. A new table is noted to be without the events
    of DAGs if `exclude_dags`.

    Raises:
        FeedChangedError: it was made from another log.
        TablesError: it is damaged, or was written by another version.
    """

    def __init__(
        self,
        spec: TableSpec,
        path: Location,
        epoch: str,
        *,
        exclude_dags: bool = False,
        for_replacement: bool = False,
    ) -> None:
        self.path = path
        self._table = open_table(spec, path, epoch, exclude_dags=exclude_dags)
        self._commits = Commits(spec, path, epoch, self._table)
        self._tidying = Tidying(self._commits)
        if for_replacement:
            return
        add_missing_columns(spec, self._table, path)
        if rules_of(self._table) != spec.rules:
            raise other_rules(path)

    @property
    def spec(self) -> TableSpec:
        """What the table has."""
        return self._commits.spec

    @property
    def position(self) -> int:
        """The feed position that the table includes."""
        return self._commits.position

    @property
    def has_changed_logs(self) -> bool:
        """Whether the table ever went on from another log than the one it was made from."""
        return self._commits.reading is not None

    @property
    def reading(self) -> Reading:
        """The log that the table is filled from, and up to where the table has its events."""
        return self._commits.reading or Reading(self._commits.epoch, self.position)

    def read_from(self, epoch: str) -> None:
        """Fill the table from another log from now on, of which nothing counts as read yet.

        What was read of this log once is forgotten: its node may have been restored from a backup.
        """
        with self._commits.advancing_to(self.position, reading=Reading(epoch, 0)) as properties:
            self._table.alter.set_table_properties(
                {READING_PROPERTY: epoch}, raise_if_not_exists=False, commit_properties=properties
            )

    @property
    def identity(self) -> str:
        """What tells the table from any other, also at the same path."""
        return str(self._table.metadata().id)

    @property
    def excludes_dags(self) -> bool:
        """Whether the table was made without the events of DAGs."""
        return excludes_dags(self._table)

    @property
    def under_way(self) -> int:
        """The goal of the latest `revise`: some rows may be as of that position already."""
        return self._commits.under_way

    def stager(self) -> Stager:
        """Return what writes files for `append`, also in a worker."""
        is_local = isinstance(self.path, Path)
        return Stager(self.spec, self.path / STAGED_DIR if is_local else self.path)

    def clear_staging(self) -> None:
        """Delete files that were written for `append` but not committed."""
        delete_below(self.path, STAGED_DIR)

    @property
    def only_grows(self) -> bool:
        """Whether the next rows can be appended, because none of them replaces another one."""
        return self.spec.rows_are_events or not (self.position or self._table.file_uris())

    def append(self, rows: Staged, position: int, read_position: int = 0) -> Staged:
        """Append new rows in one commit, which brings the table to `position`.

        Args:
            rows: to append.
            position: of the table.
            read_position: in the log that the table is filled from, if it has changed logs.

        Returns:
            The rows in their place.

        Raises:
            TablesError: this process does not see a staged file.
        """
        files = placed(self.path, rows.files)
        for table in rows.tables:
            files += Stager(self.spec, self.path).stage(table).files
        before = self._commits.reading
        reading = before and Reading(before.epoch, read_position)
        with self._commits.advancing_to(position, reading=reading) as properties:
            self._commits.write([added(file) for file in files], properties)
        return Staged(tuple(files))

    def followed(self, table: str) -> int | None:
        """Return up to which version of another table, by its identity, this one follows it."""
        return self._commits.followed(table)

    def put(self, rows: pa.Table, position: int, following: tuple[str, int] | None = None) -> None:
        """Insert or update rows by key in one commit, which brings the table to `position`.

        `following` is the identity of another table, and the version up to which the rows are.
        """
        with self._commits.advancing_to(position, following=following) as properties:
            if rows.num_rows:
                self._commits.upsert(rows, properties)
            else:
                self._commits.write([], properties)

    def revise(self, rows: pa.Table, towards: int) -> None:
        """Update rows by key to their values at `towards`, in one commit.

        The position does not change.
        """
        with self._commits.advancing_to(self.position, under_way=towards) as properties:
            self._commits.upsert(rows, properties)

    def replace_rows(
        self,
        spec: TableSpec,
        rows: Iterable[pa.Table],
        position: int,
        following: tuple[str, int],
    ) -> None:
        """Replace all rows and the columns in one commit; the arguments are as in `put`."""
        self._commits.change_spec(spec)
        stager = Stager(spec, self.path)
        files = [file for part in rows if part.num_rows for file in stager.stage(part).files]
        with self._commits.advancing_to(position, following=following) as properties:
            self._commits.write([added(file) for file in files], properties, mode="overwrite")

    def forget(self, streams: Collection[bytes], change: Callable[[pa.Table], pa.Table]) -> int:
        """Rewrite the files that have rows of some streams; return how many rows those are.

        Args:
            streams: by their CIDs.
            change: returns the rows of a file without what is to be forgotten.
        """
        partitions = set(map(partition_of, streams))
        cids = pa.array(streams, pa.binary())
        count = 0
        actions: list[AddAction | RemoveAction] = []
        stager = Stager(self.spec, self.path)
        for file in data_files(self._table, self.spec, self.path):
            if file.partition not in partitions:
                continue
            rows = read_file(self.path, file.path, file.partition, self.spec.schema)
            theirs = pc.sum(pc.is_in(rows["stream_cid"], cids)).as_py() or 0
            changed = change(rows) if theirs else rows
            if changed.equals(rows):
                continue
            count += theirs
            if changed.num_rows:
                actions += map(added, stager.stage(changed).files)
            actions.append(removed(file))
        if actions:
            times = times_forgot(self._table) + 1
            with self._commits.advancing_to(self.position, others={FORGOT: times}) as properties:
                self._commits.write(actions, properties)
        return count

    def forget_old_versions(self) -> None:
        """Delete all that only older versions have: files, changes, and the log up to now."""
        vacuum(self.path, self._table, 0, dry_run=False)
        self._table.update_incremental()
        self._table.create_checkpoint()
        last = self._table.version()
        files = file_system(self.path)
        for file in files_below(self.path, LOG):
            name = PurePath(file.path).name
            version = name.partition(".")[0]
            if version.isdecimal() and int(version) < last:
                files.delete_file(file.path)

    def replace(self, other: "FeedTable") -> None:
        """Replace all rows and the position by those of `other`, in one commit.

        Files are moved, so `other` is unusable afterwards. A crash before that changes nothing.
        """
        current = self._table.metadata().configuration
        if missing := {n: v for n, v in PROPERTIES.items() if current.get(n) != v}:
            self._commits.set_properties(missing)  # a table of an older version
        adds = [
            added(file)
            for file in placed(self.path, data_files(other._table, other.spec, other.path))
        ]
        with self._commits.advancing_to(other.position) as properties:
            self._commits.write(adds, properties, mode="overwrite")
        if rules_of(self._table) != self.spec.rules:  # only now are its rows by these rules
            rules = {RULES_PROPERTY: str(self.spec.rules)}
            self._commits.set_properties(rules)

    def set_retention(self, retention: Retention) -> None:
        """Set how long older versions stay readable, and the change data feed."""
        self._tidying.set_retention(retention)

    def tidy(self, *, idle: bool, most: float = math.inf) -> bool:
        """Merge small files and vacuum, after some commits and after large batches.

        Args:
            idle: whether there is time for the many files of large batches.
            most: see `merge_small_files`.

        Returns:
            Whether it was time for that.
        """
        return self._tidying.tidy(merges=not self._commits.has_leaves, idle=idle, most=most)

    def files_upto(self, position: int) -> RawFiles:
        """List the files with rows up to a position."""
        files = (
            replace(file, first=file.first or 0, last=_UNKNOWN if file.last is None else file.last)
            for file in data_files(self._table, self.spec, self.path)
        )
        return RawFiles(tuple(file for file in files if file.first <= position), self.path)

    def streams_of_models(
        self, models: Collection[bytes], errors: Collection[str] = ()
    ) -> list[bytes]:
        """Return a derived table's streams whose model's StreamID, as bytes, is one of these.

        Args:
            models: the StreamIDs.
            errors: one of which an event of the stream was rejected for; none: all streams.
        """
        if not models:
            return []
        literals = ", ".join(f"X'{model.hex()}'" for model in models)
        where = f"dimensions['model'] IN ({literals})"
        if errors:
            where += f" AND validation_errors[1] IN ({', '.join(map(repr, errors))})"
        return sorted(self.select("DISTINCT stream_cid", where)["stream_cid"].to_pylist())

    def select(self, columns: str, where: str) -> pa.Table:
        """Return columns of the rows that match a condition in SQL."""
        return query({"t": self._table}, f"SELECT {columns} FROM t WHERE {where}")
