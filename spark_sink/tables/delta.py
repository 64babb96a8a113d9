"""A Delta table without Java: written by delta-rs, readable by any Delta reader.

Every commit that advances the table carries a Delta *application transaction*: its name has the
log's epoch, its version is the feed position that the table now includes. Delta commits both or
neither, so the table itself knows its position, whatever happens to Spark's checkpoint. And of two
processes that write one table, which in a store nothing prevents, the second to commit is refused.

The table is partitioned by `stream_cid_partition`: the history of the streams in a batch is read
back from their partitions only. Delta has no statistics on binary columns, so it cannot skip files
by `stream_cid`. Parquet has: in a file sorted by it, a reader decodes only the row groups with the
stream. Event files are always sorted. Stream files on a disk are sorted and small
(`spark_sink.tables.leaves`); those in a store, or of many changes at once, are written by merges of
delta-rs, in small row groups, and sorted only when `tidy` or `optimize` rewrites them.
"""

import math
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Final, Literal

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from spark_sink.errors import other_rules, written_by_another
from spark_sink.schema import PARTITION_COLUMN, TABLES, TableSpec, partition_of
from spark_sink.tables.delta_files import (
    CHANGES,
    HISTORY,
    WRITER,
    added,
    data_files,
    merge_small_files,
    placed,
    query,
    vacuum,
)
from spark_sink.tables.delta_state import (
    FORGOT,
    PROPERTIES,
    READING_PROPERTY,
    RULES_PROPERTY,
    Reading,
    add_missing_columns,
    app_id,
    excludes_dags,
    has_changed_logs,
    open_table,
    position_of,
    read_suffix,
    reading_of,
    rules_of,
    times_forgot,
)
from spark_sink.tables.leaves import MOST_ROWS, Action, Leaves, commit
from spark_sink.tables.location import Location, delete_below, file_system, files_below
from spark_sink.tables.raw_files import RawFiles
from spark_sink.tables.retention import LEAST_KEPT, LOG, Leftovers
from spark_sink.tables.staging import Staged, Stager, read_file

#: How long older versions are kept, and the change data feed: the arguments of `keep_history`.
History = tuple[float, float | None, float | None]
# What delta-rs says if another commit came first.
_CONFLICT: Final = re.compile("(?i)concurrent transaction|changed since last commit|existing table")
_STEP: Final = "/step"
_FOLLOW: Final = "/follow/"
# Delta ignores names that begin with an underscore.
_STAGED_DIR: Final = "_staged"
# A batch adds up to one file per partition, and to read a stream back opens all of one. They are
# small, so that most of them is not rows: with four times as many, a table takes twice the space.
_COMMITS_PER_TIDY: Final = 16
_MAX_NEW_FILES: Final = 256
# As delta-rs does after commits of its own.
_COMMITS_PER_CHECKPOINT: Final = 100
# Commits to a store between two looks at what they left behind: each takes a request.
_COMMITS_PER_TRIM: Final = 16
# The last position of a file without statistics.
_UNKNOWN: Final = 2**63 - 1
# A commit every half second writes many log files. Without the files of a version, they are of no
# use, and they must not be kept for a month.
_LOG: Final = "delta.logRetentionDuration"
_LOG_HOURS: Final = 1


class DeltaStore:
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
        self.spec = spec
        self.path = path
        self.epoch = epoch
        self._table = open_table(spec, path, epoch, exclude_dags=exclude_dags)
        self._tidied = self._table.version()
        self._count = len(self._table.file_uris())  # of files, after it was last tidied
        self._leaves = self._new_leaves()
        self._leftovers: Leftovers | None = None
        self._trimmed = self._tidied
        self._kept: float | None = None
        self._keeps_changes = False
        # Of the table and of the latest `revise`, as of our latest commit: to ask the log for them
        # takes a request for each of its files.
        self._position = position_of(self._table, epoch)
        self._under_way = self._table.transaction_version(app_id(epoch) + _STEP) or 0
        # None: the same log and position as the table's.
        self._reading = reading_of(self._table, epoch) if has_changed_logs(self._table) else None
        if for_replacement:
            return
        add_missing_columns(spec, self._table, path)
        if rules_of(self._table) != spec.rules:
            raise other_rules(path)

    def _new_leaves(self) -> Leaves | None:
        if self.spec.is_history or not isinstance(self.path, Path):
            return None
        return Leaves(self.spec.schema, self.path)

    @property
    def position(self) -> int:
        """The feed position that the table includes."""
        return self._position

    @property
    def has_changed_logs(self) -> bool:
        """Whether the table ever went on from another log than the one it was made from."""
        return self._reading is not None

    @property
    def reading(self) -> Reading:
        """The log that the table is filled from, and up to where the table has its events."""
        return self._reading or Reading(self.epoch, self._position)

    def read_from(self, log: str) -> None:
        """Fill the table from another log from now on, of which nothing counts as read yet.

        What was read of this log once is forgotten: its node may have been restored from a backup.
        """
        with self._committing(self._position, reading=Reading(log, 0)) as properties:
            self._table.alter.set_table_properties(
                {READING_PROPERTY: log}, raise_if_not_exists=False, commit_properties=properties
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
        return self._under_way

    def stager(self) -> Stager:
        """Return what writes files for `append`, also in a worker."""
        is_local = isinstance(self.path, Path)
        return Stager(self.spec, self.path / _STAGED_DIR if is_local else self.path)

    def clear_staging(self) -> None:
        """Delete files that were written for `append` but not committed."""
        delete_below(self.path, _STAGED_DIR)

    @property
    def only_grows(self) -> bool:
        """Whether the next rows can be appended, because none of them replaces another one."""
        return self.spec.is_history or not (self._position or self._table.file_uris())

    def append(self, rows: Staged, position: int, read: int = 0) -> Staged:
        """Append new rows in one commit, which brings the table to `position`.

        Args:
            rows: to append.
            position: of the table.
            read: in the log that the table is filled from, if it has changed logs.

        Returns:
            The rows in their place.

        Raises:
            TablesError: this process does not see a staged file.
        """
        files = placed(self.path, rows.files)
        for table in rows.tables:
            files += Stager(self.spec, self.path).stage(table).files
        reading = self._reading and Reading(self._reading.log, read)
        with self._committing(position, reading=reading) as properties:
            self._commit([added(file) for file in files], properties)
        return Staged(tuple(files))

    def followed(self, table: str) -> int | None:
        """Return up to which version of another table, by its identity, this one follows it."""
        return self._table.transaction_version(app_id(self.epoch) + _FOLLOW + table)

    def put(self, rows: pa.Table, position: int, following: tuple[str, int] | None = None) -> None:
        """Insert or update rows by key in one commit, which brings the table to `position`.

        Args:
            rows: to insert or update.
            position: of the table.
            following: the identity of another table, and the version up to which the rows are.
        """
        with self._committing(position, others=_followed(following)) as properties:
            if rows.num_rows:
                self._merge(rows, properties)
            else:
                self._commit([], properties)

    def revise(self, rows: pa.Table, towards: int) -> None:
        """Update rows by key to their values at `towards`, in one commit.

        The position does not change.
        """
        with self._committing(self._position, under_way=towards) as properties:
            self._merge(rows, properties)

    def fill(
        self,
        spec: TableSpec,
        rows: Iterable[pa.Table],
        position: int,
        following: tuple[str, int],
    ) -> None:
        """Replace all rows and the columns in one commit; the arguments are as in `put`."""
        self.spec, self._leaves = spec, self._new_leaves()
        stager = Stager(spec, self.path)
        files = [file for some in rows if some.num_rows for file in stager.stage(some).files]
        with self._committing(position, others=_followed(following)) as properties:
            self._commit([added(file) for file in files], properties, mode="overwrite")

    def forget(self, streams: Collection[bytes], change: Callable[[pa.Table], pa.Table]) -> int:
        """Rewrite the files that have rows of some streams; return how many rows those are.

        Args:
            streams: by their CIDs.
            change: returns the rows of a file without what is to be forgotten.
        """
        partitions = set(map(partition_of, streams))
        cids = pa.array(streams, pa.binary())
        now, count = round(time.time() * 1000), 0
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
            values: dict[str, str | None] = {PARTITION_COLUMN: str(file.partition)}
            actions.append(RemoveAction(file.path, True, now, file.size, values))
        if actions:
            times = times_forgot(self._table) + 1
            with self._committing(self._position, others={FORGOT: times}) as properties:
                self._commit(actions, properties)
        return count

    def forget_history(self) -> None:
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

    def replace(self, other: "DeltaStore") -> None:
        """Replace all rows and the position by those of `other`, in one commit.

        Files are moved, so `other` is unusable afterwards. A crash before that changes nothing.
        """
        current = self._table.metadata().configuration
        if missing := {n: v for n, v in PROPERTIES.items() if current.get(n) != v}:
            self._set_properties(missing)  # a table of an older version
        adds = [
            added(file)
            for file in placed(self.path, data_files(other._table, other.spec, other.path))
        ]
        with self._committing(other.position) as properties:
            self._commit(adds, properties, mode="overwrite")
        if rules_of(self._table) != self.spec.rules:  # only now are its rows by these rules
            rules = {RULES_PROPERTY: str(self.spec.rules)}
            self._set_properties(rules)

    def keep_history(
        self, hours: float, size: float | None = None, changes: float | None = None
    ) -> None:
        """Set how long older versions stay readable, and the change data feed.

        Args:
            hours: for which older versions are kept.
            size: how many bytes their files may take, in this process; None: in proportion to the
                latest version.
            changes: hours for which the change data feed is kept; None: as older versions are.
        """
        self._kept = size
        self._keeps_changes = changes is not None
        longest = max(_LOG_HOURS, math.ceil(hours), math.ceil(changes or 0))
        wanted = {
            HISTORY: f"interval {round(hours * 3600)} seconds",
            CHANGES: f"interval {round((hours if changes is None else changes) * 3600)} seconds",
            _LOG: f"interval {longest} hours",
        }
        current = self._table.metadata().configuration
        if any(current.get(name) != value for name, value in wanted.items()):
            self._set_properties(wanted)

    def tidy(self, *, idle: bool, most: float = math.inf) -> bool:
        """Merge small files and vacuum, every so many commits and after large batches.

        Args:
            idle: whether there is time for the many files of large batches.
            most: see `merge_small_files`.

        Returns:
            Whether it was time for that.
        """
        self._trim()
        many = idle and len(self._table.file_uris()) - self._count >= _MAX_NEW_FILES
        if not many and self._round(self._table.version()) == self._round(self._tidied):
            return False
        if self._leaves is None:
            self._merge_small_files(most)
        vacuum(self.path, self._table, None, dry_run=False)
        self._check_alone()
        self._tidied = self._table.version()
        self._count = len(self._table.file_uris())
        return True

    def _merge_small_files(self, most: float) -> None:
        if actions := merge_small_files(self._table, Stager(self.spec, self.path), most):
            with self._committing(self._position) as properties:
                self._commit(actions, properties)

    def _round(self, version: int) -> int:
        """Count the rounds of tidying, which begin at other versions for each table.

        A batch commits to all tables once, and must not tidy them all.
        """
        turn = [*TABLES].index(self.spec.name) if self.spec.name in TABLES else len(TABLES)
        return (version + turn * _COMMITS_PER_TIDY // (len(TABLES) + 1)) // _COMMITS_PER_TIDY

    def _trim(self) -> None:
        """Delete what older versions need beyond the limit."""
        if self._leftovers is None:
            self._leftovers = Leftovers(
                self.path, self._table, with_changes=not self._keeps_changes
            )
        version = self._table.version()
        some = 1 if isinstance(self.path, Path) else _COMMITS_PER_TRIM
        if version - self._trimmed < some:
            return
        self._trimmed = version
        self._leftovers.follow(version)
        limit = self._kept
        if limit is None and self._leftovers.size > LEAST_KEPT:
            live = sum(pa.table(self._table.get_add_actions())["size_bytes"].to_pylist())
            limit = max(LEAST_KEPT, live)
        self._leftovers.trim(math.inf if limit is None else limit)

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

    def _commit(
        self,
        actions: Sequence[AddAction | RemoveAction],
        properties: CommitProperties,
        mode: Literal["append", "overwrite"] = "append",
    ) -> None:
        self._table.create_write_transaction(
            list(actions),
            mode,
            self.spec.schema,
            partition_by=[PARTITION_COLUMN],
            commit_properties=properties,
        )
        self._table.update_incremental()

    def _merge(self, rows: pa.Table, properties: CommitProperties) -> None:
        if self._leaves is not None and rows.num_rows <= MOST_ROWS:
            actions = self._leaves.upsert(self._table, rows)
            if actions is not None:
                self._commit_changes(actions, properties)
                return
        partitions = sorted(set(rows[PARTITION_COLUMN].to_pylist()))
        match = (
            f"old.{PARTITION_COLUMN} = new.{PARTITION_COLUMN} "
            f"AND old.{self.spec.key} = new.{self.spec.key} "
            f"AND old.{PARTITION_COLUMN} IN ({', '.join(map(str, partitions))})"
        )
        merge = self._table.merge(
            rows,
            predicate=match,
            source_alias="new",
            target_alias="old",
            writer_properties=WRITER,
            commit_properties=properties,
        )
        # A row that stays what it was would be written, and be in the change data feed. Those of
        # views come from rows that have changed.
        columns = [] if self.spec.model else self.spec.schema
        names = [field.name for field in columns if _is_comparable(field.type)]
        differs = " OR ".join(f"(old.{n} IS DISTINCT FROM new.{n})" for n in names) or None
        before = self._table.version()
        merge.when_matched_update_all(predicate=differs).when_not_matched_insert_all().execute()
        if self._table.version() == before:  # nothing was to be done, but the position counts
            self._commit([], properties)

    def _commit_changes(self, actions: Iterable[Action], properties: CommitProperties) -> None:
        assert isinstance(self.path, Path)
        version = self._table.version() + 1
        transactions = properties.app_transactions or ()
        try:
            commit(self.path, version, transactions, actions, self.path / _STAGED_DIR)
        except FileExistsError as error:
            raise written_by_another(self.path) from error
        self._table.update_incremental()
        if version % _COMMITS_PER_CHECKPOINT == 0:
            self._table.create_checkpoint()
            self._table.cleanup_metadata()

    def select(self, columns: str, where: str) -> pa.Table:
        """Return columns of the rows that match a condition in SQL."""
        return query({"t": self._table}, f"SELECT {columns} FROM t WHERE {where}")

    @contextmanager
    def _committing(
        self,
        position: int,
        under_way: int | None = None,
        reading: Reading | None = None,
        others: Mapping[str, int] | None = None,
    ) -> Iterator[CommitProperties]:
        """Provide the properties of a commit that brings the table to a position.

        Each commit names the position, even if it stays. So if someone else has committed since
        this table was read, delta-rs refuses this commit: both have the same application
        transaction.

        Raises:
            TablesError: someone else has written the table. This commit may have been made, too:
                it was read together with one that came later.
        """
        version = self._table.version()
        named = {"": position} | ({} if under_way is None else {_STEP: under_way})
        if reading is not None:
            named[read_suffix(reading.log)] = reading.position
        name = app_id(self.epoch)
        all_ = {**named, **(others or {})}
        try:
            yield CommitProperties(
                app_transactions=[Transaction(name + suffix, at) for suffix, at in all_.items()]
            )
        except CommitFailedError as error:
            if _CONFLICT.search(str(error)):
                raise written_by_another(self.path) from error
            raise
        if self._table.version() != version + 1:
            raise written_by_another(self.path)
        self._position = position
        self._under_way = named.get(_STEP, self._under_way)
        self._reading = reading or self._reading

    def _set_properties(self, properties: dict[str, str]) -> None:
        self._table.alter.set_table_properties(properties, raise_if_not_exists=False)
        self._check_alone()

    def _check_alone(self) -> None:
        """Check that no one else has moved the table, after it was read again."""
        if position_of(self._table, self.epoch) != self._position:
            raise written_by_another(self.path)


def _is_comparable(kind: pa.DataType) -> bool:
    """Return whether delta-rs compares values of a type; the others never differ alone."""
    if pa.types.is_list(kind):
        kind = kind.value_type
    return not pa.types.is_nested(kind)


def _followed(following: tuple[str, int] | None) -> dict[str, int]:
    return {} if following is None else {_FOLLOW + following[0]: following[1]}
