"""Commits to a Delta table: each has the table's position, and is refused if another came first.

Rows are changed in leaves (`tables.leaves`) if they are few and the table is on a disk, else by
delta-rs.

Every commit that advances the table carries a Delta *application transaction*: its name has the
log's epoch, its version is the feed position that the table now includes. Delta commits both or
neither, so the table itself knows its position, whatever happens to Spark's checkpoint. And of two
processes that write one table, which in an object store nothing prevents, the second to commit is
refused.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from spark_sink.errors import written_by_another
from spark_sink.schema import PARTITION_COLUMN, TableSpec
from spark_sink.tables.delta_files import WRITER
from spark_sink.tables.delta_state import (
    Reading,
    app_id,
    has_changed_logs,
    position_of,
    read_suffix,
    reading_of,
)
from spark_sink.tables.leaves import MOST_ROWS, Action, Leaves, commit
from spark_sink.tables.location import Location

#: Where drafts of commits and staged files are. Delta ignores names that begin with an underscore.
STAGED_DIR: Final = "_staged"
# What delta-rs says if another commit came first.
_CONFLICT: Final = re.compile("(?i)concurrent transaction|changed since last commit|existing table")
_STEP: Final = "/step"
_FOLLOW: Final = "/follow/"
# As delta-rs does after commits of its own.
_COMMITS_PER_CHECKPOINT: Final = 100


class Commits:
    """Commits to a table of a log, which is as our latest commit left it, in memory, too."""

    def __init__(self, spec: TableSpec, path: Location, epoch: str, table: DeltaTable) -> None:
        self.spec = spec
        self.path = path
        self.epoch = epoch
        self.table = table
        # As of our latest commit: to ask the log takes a request for each of its files.
        self.position = position_of(table, epoch)
        #: The goal of the latest `FeedTable.revise`.
        self.under_way = table.transaction_version(app_id(epoch) + _STEP) or 0
        #: None: the same log and position as the table's.
        self.reading = reading_of(table, epoch) if has_changed_logs(table) else None
        self._leaves = self._new_leaves()

    @property
    def has_leaves(self) -> bool:
        """Whether the files of the table stay small and sorted without merging them."""
        return self._leaves is not None

    def change_spec(self, spec: TableSpec) -> None:
        """Give the table other columns; the next commit must replace all rows."""
        self.spec = spec
        self._leaves = self._new_leaves()

    def _new_leaves(self) -> Leaves | None:
        if isinstance(self.path, Path) and not self.spec.rows_are_events:
            return Leaves(self.spec.schema, self.path)
        return None

    def followed(self, table: str) -> int | None:
        """Return up to which version of another table, by its identity, this one follows it."""
        return self.table.transaction_version(app_id(self.epoch) + _FOLLOW + table)

    @contextmanager
    def advancing_to(
        self,
        position: int,
        *,
        under_way: int | None = None,
        reading: Reading | None = None,
        following: tuple[str, int] | None = None,
        others: Mapping[str, int] | None = None,
    ) -> Iterator[CommitProperties]:
        """Provide the properties of a commit that brings the table to a position.

        Each commit names the position, even if it stays. So if someone else has committed since
        this table was read, delta-rs refuses this commit: both have the same application
        transaction.

        Args:
            position: of the table.
            under_way: see `under_way`; None: as it is.
            reading: see `reading`; None: as it is.
            following: the identity of another table, and the version up to which the rows are.
            others: versions of further transactions, by what follows in their names.

        Raises:
            TablesError: someone else has written the table. This commit may have been made, too:
                it was read together with one that came later.
        """
        version = self.table.version()
        named = {"": position, **(others or {})}
        if under_way is not None:
            named[_STEP] = under_way
        if reading is not None:
            named[read_suffix(reading.epoch)] = reading.position
        if following is not None:
            named[_FOLLOW + following[0]] = following[1]
        name = app_id(self.epoch)
        try:
            yield CommitProperties(
                app_transactions=[Transaction(name + suffix, at) for suffix, at in named.items()]
            )
        except CommitFailedError as error:
            if _CONFLICT.search(str(error)):
                raise written_by_another(self.path) from error
            raise
        if self.table.version() != version + 1:
            raise written_by_another(self.path)
        self.position = position
        self.under_way = self.under_way if under_way is None else under_way
        self.reading = reading or self.reading

    def write(
        self,
        actions: Sequence[AddAction | RemoveAction],
        properties: CommitProperties,
        mode: Literal["append", "overwrite"] = "append",
    ) -> None:
        """Commit files by delta-rs."""
        self.table.create_write_transaction(
            list(actions),
            mode,
            self.spec.schema,
            partition_by=[PARTITION_COLUMN],
            commit_properties=properties,
        )
        self.table.update_incremental()

    def upsert(self, rows: pa.Table, properties: CommitProperties) -> None:
        """Insert or update rows by key."""
        if self._leaves is not None and rows.num_rows <= MOST_ROWS:
            actions = self._leaves.upsert(self.table, rows)
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
        merge = self.table.merge(
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
        before = self.table.version()
        merge.when_matched_update_all(predicate=differs).when_not_matched_insert_all().execute()
        if self.table.version() == before:  # nothing was to be done, but the position counts
            self.write([], properties)

    def _write_changes(self, actions: Iterable[Action], properties: CommitProperties) -> None:
        """Commit files and their changes, which delta-rs cannot; only for a table on a disk."""
        assert isinstance(self.path, Path)
        version = self.table.version() + 1
        transactions = properties.app_transactions or ()
        try:
            commit(self.path, version, transactions, actions, self.path / STAGED_DIR)
        except FileExistsError as error:
            raise written_by_another(self.path) from error
        self.table.update_incremental()
        if version % _COMMITS_PER_CHECKPOINT == 0:
            self.table.create_checkpoint()
            self.table.cleanup_metadata()

    def set_properties(self, properties: dict[str, str]) -> None:
        """Set properties of the table."""
        self.table.alter.set_table_properties(properties, raise_if_not_exists=False)
        self.check_alone()

    def check_alone(self) -> None:
        """Check that no one else has moved the table, after it was read again."""
        if position_of(self.table, self.epoch) != self.position:
            raise written_by_another(self.path)


def _is_comparable(kind: pa.DataType) -> bool:
    """Return whether delta-rs compares values of a type; the others never differ alone."""
    if pa.types.is_list(kind):
        kind = kind.value_type
    return not pa.types.is_nested(kind)
