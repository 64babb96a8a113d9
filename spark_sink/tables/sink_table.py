"""A Delta table without Java: written by delta-rs, readable by any Delta reader.

The table is partitioned by `stream_cid_partition`: the history of the streams in a batch is read
back from their partitions only. Delta has no statistics on binary columns, so it cannot skip files
by `stream_cid`. Parquet has: in a file sorted by it, a reader decodes only the row groups with the
stream. Event files are sorted, those of long batches in parts. Stream files are sorted and small
(`spark_sink.tables.leaves`); those of many changes at once are written by merges of delta-rs, in
small row groups, and sorted when few rows of them are changed, or `optimize` rewrites them.

Every commit names the position of the table (`spark_sink.tables.delta_log`), and is refused if
another process has committed first.
"""

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePath
from typing import Final, Literal

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError

from spark_sink.errors import (
    TablesError,
    another_log,
    cannot_open,
    must_rebuild,
    written_by_another,
)
from spark_sink.schema import PARTITION_COLUMN, RAW, TableSpec
from spark_sink.tables import delta_log
from spark_sink.tables.delta_log import LOG, Action, FileActions, Reading
from spark_sink.tables.leaves import MOST_ROWS, Leaves
from spark_sink.tables.location import (
    Location,
    concurrently,
    delete_below,
    delta_uri,
    faults_as,
    file_system,
    files_below,
    find_delta_table,
    has_objects,
    move_file,
    storage_options,
)
from spark_sink.tables.raw_files import RawFiles
from spark_sink.tables.retention import WRITER, Retention, Tidying, merge_small_files, vacuum
from spark_sink.tables.staging import DataFile, Staged, Stager, read_parts

_STAGED_DIR: Final = "_staged"
"""The directory of staged files. Delta ignores names that begin with an underscore."""
_CONFLICT: Final = re.compile("(?i)concurrent transaction|changed since last commit|existing table")
"""What delta-rs says if another commit came first."""
_STEP: Final = "/step"
_FOLLOW: Final = "/follow/"
_COMMITS_PER_CHECKPOINT: Final = 100
"""As many as delta-rs makes of its own."""
_UNKNOWN: Final = 2**63 - 1
"""The last position of a file without statistics."""
_ANCHOR_COLUMNS: Final = frozenset({"time", "chain_id"})
"""Columns about the anchor of a time event."""
_ADDED_COLUMNS: Final = {
    RAW: _ANCHOR_COLUMNS | {"delivered_at", "fault"},
    "conclusion_events": frozenset({"fault"}),
}
"""Columns that tables of earlier versions lack. Null is right, but for time events without the
columns about their anchors."""


class SinkTable:
    """The Delta table `spec` at `path`, and its position in the log `epoch`.

    It is created if it does not exist; a new table is noted to be without the events of DAGs if
    `exclude_dags`. With `for_replacement`, one that exists may have other columns.

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
        self._epoch = epoch
        self._table = table = _open_table(spec, path, epoch, exclude_dags=exclude_dags)
        # As of our latest commit: to ask the log takes a request for each of its files.
        self.position = delta_log.position_of(table)
        self.under_way = delta_log.version_of(table, _STEP) or 0
        self._reading = delta_log.reading_of(table) if delta_log.has_changed_logs(table) else None
        self._leaves = self._new_leaves()
        self._tidying = Tidying(spec.name, path, table)
        if for_replacement:
            return
        _add_missing_columns(spec, table, path)
        if delta_log.rules_of(table) != spec.rules:
            raise must_rebuild(path, "was computed by the rules of another version of spark-sink")

    @property
    def has_changed_logs(self) -> bool:
        """Whether the table ever went on from another log than the one it was made from."""
        return self._reading is not None

    @property
    def reading(self) -> Reading:
        """The log that the table is filled from, and up to where the table has its events."""
        return self._reading or Reading(self._epoch, self.position)

    def read_from(self, epoch: str) -> None:
        """Fill the table from another log from now on, of which nothing counts as read yet.

        What was read of this log once is forgotten: its node may have been restored from a backup.
        """
        with self._advancing_to(self.position, reading=Reading(epoch, 0)) as properties:
            read = {delta_log.READING_PROPERTY: epoch}
            self._table.alter.set_table_properties(
                read, raise_if_not_exists=False, commit_properties=properties
            )

    @property
    def excludes_dags(self) -> bool:
        """Whether the table was made without the events of DAGs."""
        return delta_log.excludes_dags(self._table)

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
        return self.spec.rows_are_events or not (self.position or self._table.file_uris())

    def append(self, rows: Staged, position: int, read_position: int = 0) -> Staged:
        """Append new rows in one commit, which brings the table to `position`.

        `read_position` is in the log that the table is filled from, if it has changed logs. Returns
        the rows in their place; raises `TablesError` if this process does not see a staged file.
        """
        files = _placed(self.path, rows.files)
        for table in rows.tables:
            files += Stager(self.spec, self.path).stage(table).files
        before = self._reading
        reading = before and Reading(before.epoch, read_position)
        with self._advancing_to(position, reading=reading) as properties:
            self._write([delta_log.added(file) for file in files], properties)
        return Staged(tuple(files))

    def followed(self, table: str) -> int | None:
        """Return up to which version of another table, by its identity, this one follows it."""
        return delta_log.version_of(self._table, _FOLLOW + table)

    def put(self, rows: pa.Table, position: int, following: tuple[str, int] | None = None) -> None:
        """Insert or update rows by key in one commit, which brings the table to `position`.

        `following` is the identity of another table, and the version up to which the rows are.
        """
        with self._advancing_to(position, others=_follow(following)) as properties:
            if rows.num_rows:
                self._upsert(rows, properties)
            else:
                self._write([], properties)

    def revise(self, rows: pa.Table, towards: int, *, restart_followers: bool = False) -> None:
        """Update rows by key to their values at `towards`, in one commit.

        The position does not change. If rows of earlier positions are inserted, followers of the
        table would not see them, because they go by positions: `restart_followers`.
        """
        others = delta_log.replacing(self._table) if restart_followers else None
        with self._advancing_to(self.position, under_way=towards, others=others) as properties:
            self._upsert(rows, properties)

    def replace_rows(
        self, spec: TableSpec, rows: Iterable[pa.Table], position: int, following: tuple[str, int]
    ) -> None:
        """Replace all rows and the columns in one commit; the arguments are as in `put`."""
        self.spec = spec
        self._leaves = self._new_leaves()
        stager = Stager(spec, self.path)
        files = [file for part in rows if part.num_rows for file in stager.stage(part).files]
        with self._advancing_to(position, others=_follow(following)) as properties:
            self._write([delta_log.added(file) for file in files], properties, mode="overwrite")

    def forget(
        self,
        partitions: Collection[int],
        wanted: pc.Expression,
        change: Callable[[pa.Table], pa.Table],
    ) -> int:
        """Rewrite the files of partitions that have wanted rows; return how many rows those are.

        `change` returns rows without what is to be forgotten.
        """
        schema = self.spec.schema
        count = 0
        actions: FileActions = []
        for file in delta_log.data_files(self._table, self.spec, self.path):
            if file.partition not in partitions:
                continue
            theirs = read_parts(self.path, file.path, file.partition, schema, wanted)
            if number := sum(part.num_rows for part in theirs):
                count += number
                new = Stager(self.spec, self.path).rewrite([file], change)
                actions += [*map(delta_log.added, new.files), delta_log.removed(file)]
        if actions:
            others = delta_log.replacing(self._table)
            with self._advancing_to(self.position, others=others) as properties:
                self._write(actions, properties)
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

    def replace(self, other: "SinkTable") -> None:
        """Replace all rows and the position by those of `other`, in one commit.

        Files are moved, so `other` is unusable afterwards. A crash before that changes nothing.
        """
        current = self._table.metadata().configuration
        if missing := {n: v for n, v in delta_log.PROPERTIES.items() if current.get(n) != v}:
            self._set_properties(missing)  # a table of an older version
        files = _placed(self.path, delta_log.data_files(other._table, other.spec, other.path))
        others = delta_log.replacing(self._table)
        with self._advancing_to(other.position, others=others) as properties:
            self._write([delta_log.added(file) for file in files], properties, mode="overwrite")
        # Only now are its rows by these rules.
        if delta_log.rules_of(self._table) != self.spec.rules:
            self._set_properties({delta_log.RULES_PROPERTY: str(self.spec.rules)})

    def set_retention(self, retention: Retention) -> None:
        """Set how long older versions stay readable, and the change data feed."""
        if properties := self._tidying.set_retention(retention):
            self._set_properties(properties)

    def tidy(self, *, idle: bool, most: float = math.inf) -> bool:
        """Merge small files and vacuum, after some commits and after large batches.

        `idle` says that there is time for the many files of large batches; `most` is as in
        `merge_small_files`. Returns whether it was time for that.
        """
        # Leaves stay small and sorted without merging them.
        merge = None if self._leaves else partial(self._merge_small_files, most)
        if not self._tidying.tidy(merge, idle=idle):
            return False
        self._check_alone()
        return True

    def _merge_small_files(self, most: float) -> None:
        if actions := merge_small_files(self._table, Stager(self.spec, self.path), most):
            with self._advancing_to(self.position) as properties:
                self._write(actions, properties)

    def files_upto(self, position: int) -> RawFiles:
        """List the files with rows up to a position."""
        files = (
            replace(file, first=file.first or 0, last=_UNKNOWN if file.last is None else file.last)
            for file in delta_log.data_files(self._table, self.spec, self.path)
        )
        return RawFiles(tuple(file for file in files if file.first <= position), self.path)

    def streams_of_models(
        self, models: Collection[bytes], errors: Collection[str] = ()
    ) -> list[bytes]:
        """Return a derived table's streams whose model's StreamID, as bytes, is one of these.

        With `errors`, only those of which an event was rejected for one of them.
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
        return delta_log.query(self._table, f"SELECT {columns} FROM t WHERE {where}")

    def _new_leaves(self) -> Leaves | None:
        if self.spec.rows_are_events or not has_objects(self.path):
            return None
        return Leaves(self.spec.schema, self.path)

    @contextmanager
    def _advancing_to(
        self,
        position: int,
        *,
        under_way: int | None = None,
        reading: Reading | None = None,
        others: Mapping[str, int] | None = None,
    ) -> Iterator[CommitProperties]:
        """Provide the properties of a commit that brings the table to a position.

        Each commit names the position, even if it stays. So if someone else has committed since
        this table was read, delta-rs refuses this commit: both have the same application
        transaction.

        Args:
            position: of the table.
            under_way: the goal of a `revise`; None: as it is.
            reading: of the log that the table is filled from; None: as it is.
            others: versions of further transactions, by what follows in their names.

        Raises:
            TablesError: someone else has written the table. This commit may have been made, too:
                it was read together with one that came later.
        """
        version = self._table.version()
        named = {"": position, **(others or {})}
        if under_way is not None:
            named[_STEP] = under_way
        if reading is not None:
            named[delta_log.read_suffix(reading.epoch)] = reading.position
        name = delta_log.app_id(self._epoch)
        try:
            yield CommitProperties(
                app_transactions=[Transaction(name + suffix, at) for suffix, at in named.items()]
            )
        except CommitFailedError as error:
            if _CONFLICT.search(str(error)):
                raise written_by_another(self.path) from error
            raise
        if self._table.version() != version + 1:
            raise written_by_another(self.path)
        self.position = position
        self.under_way = self.under_way if under_way is None else under_way
        self._reading = reading or self._reading

    def _write(
        self,
        actions: FileActions,
        properties: CommitProperties,
        mode: Literal["append", "overwrite"] = "append",
    ) -> None:
        self._table.create_write_transaction(
            actions,
            mode,
            self.spec.schema,
            partition_by=[PARTITION_COLUMN],
            commit_properties=properties,
        )
        self._table.update_incremental()

    def _upsert(self, rows: pa.Table, properties: CommitProperties) -> None:
        if self._leaves is not None and rows.num_rows <= MOST_ROWS:
            actions = self._leaves.upsert(self._table, rows)
            if actions is not None:
                self._write_changes(actions, properties)
                return
        self._merge(rows, properties)

    def _merge(self, rows: pa.Table, properties: CommitProperties) -> None:
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
            self._write([], properties)

    def _write_changes(self, actions: Iterable[Action], properties: CommitProperties) -> None:
        """Commit files and their changes, which delta-rs cannot."""
        version = self._table.version() + 1
        try:
            delta_log.put_commit(self.path, version, properties.app_transactions or (), actions)
        except FileExistsError as error:
            raise written_by_another(self.path) from error
        self._table.update_incremental()
        if version % _COMMITS_PER_CHECKPOINT == 0:
            self._table.create_checkpoint()
            self._table.cleanup_metadata()

    def _set_properties(self, properties: dict[str, str]) -> None:
        self._table.alter.set_table_properties(properties, raise_if_not_exists=False)
        self._check_alone()

    def _check_alone(self) -> None:
        """Check that no one else has moved the table, after it was read again."""
        if delta_log.position_of(self._table) != self.position:
            raise written_by_another(self.path)


def _open_table(spec: TableSpec, path: Location, epoch: str, *, exclude_dags: bool) -> DeltaTable:
    """Open the table; create it if there is none."""
    if (table := find_delta_table(path)) is None:
        with faults_as(partial(cannot_open, path)):
            return DeltaTable.create(
                delta_uri(path),
                schema=spec.schema,
                partition_by=[PARTITION_COLUMN],
                name=spec.name,
                configuration=delta_log.properties_of(spec, epoch, exclude_dags=exclude_dags),
                raise_if_key_not_exists=False,
                storage_options=storage_options(path),
            )
    made_from = delta_log.epoch_of(table)
    if made_from != epoch:
        raise another_log(path, made_from, epoch)
    return table


def _follow(following: tuple[str, int] | None) -> dict[str, int]:
    """Return the transaction that says up to which version another table is followed."""
    return {} if following is None else {_FOLLOW + following[0]: following[1]}


def _add_missing_columns(spec: TableSpec, table: DeltaTable, path: Location) -> None:
    """Add columns that a table of an older version lacks, if its rows are correct then."""
    there = _sorted(pa.schema(table.schema().to_arrow()))
    if there == _sorted(spec.schema):
        return
    missing = _ADDED_COLUMNS.get(spec.name, frozenset()) - {field.name for field in there}
    new = [field for field in spec.schema if field.name in missing]
    if _sorted([*there, *new]) != _sorted(spec.schema):
        raise must_rebuild(path, "has other columns than this version of spark-sink writes")
    if not missing.isdisjoint(_ANCHOR_COLUMNS):
        _check_anchors(table, path)
    table.alter.add_columns(Schema.from_arrow(pa.schema(new)).fields)


def _check_anchors(table: DeltaTable, path: Location) -> None:
    """Check that a table without the columns about anchors has no time events."""
    anchors = delta_log.query(table, "SELECT count(*) AS n FROM t WHERE event_type = 'time'")
    if count := anchors["n"].to_pylist()[0]:
        raise TablesError(
            f"the table {path} was written by an older version, without the anchor times "
            f"of its {count} time events: read the feed again with spark-sink "
            f"rebuild {RAW} --tables {path.parent} --url URL"
        )


def _sorted(fields: Iterable[pa.Field]) -> list[pa.Field]:
    return sorted(fields, key=lambda field: str(field.name))


def _placed(table: Location, files: Iterable[DataFile]) -> list[DataFile]:
    """Move staged files to the table, as far as they are not there."""
    return concurrently(table, partial(_place, table), files)


def _place(table: Location, file: DataFile) -> DataFile:
    if file.location != table:
        try:
            move_file(file.path, file.location, table)
        except FileNotFoundError:
            raise TablesError(
                f"{file.location / file.path} was written for the table {table}, but the driver "
                "does not see it: all workers and the driver must have the directory of the tables "
                "at the same path"
            ) from None
    return replace(file, location=table)


def _is_comparable(kind: pa.DataType) -> bool:
    """Return whether delta-rs compares values of a type; the others never differ alone."""
    if pa.types.is_list(kind):
        kind = kind.value_type
    return not pa.types.is_nested(kind)
