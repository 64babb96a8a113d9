"""Inserts and updates rows of a table by key: in leaves if there are few, else by delta-rs."""

from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties

from spark_sink.schema import PARTITION_COLUMN
from spark_sink.tables.commits import Commits
from spark_sink.tables.delta_files import WRITER
from spark_sink.tables.leaves import MOST_ROWS, Leaves


class Upserts:
    """Changes rows of the table of `commits`."""

    def __init__(self, commits: Commits) -> None:
        spec, path = commits.spec, commits.path
        self._commits = commits
        self._leaves: Leaves | None = None
        if isinstance(path, Path) and not spec.is_history:
            self._leaves = Leaves(spec.schema, path)

    @property
    def has_leaves(self) -> bool:
        """Whether the files of the table stay small and sorted without merging them."""
        return self._leaves is not None

    def upsert(self, rows: pa.Table, properties: CommitProperties) -> None:
        """Insert or update rows in one commit."""
        if self._leaves is not None and rows.num_rows <= MOST_ROWS:
            actions = self._leaves.upsert(self._commits.table, rows)
            if actions is not None:
                self._commits.write_changes(actions, properties)
                return
        self._merge(rows, properties)

    def _merge(self, rows: pa.Table, properties: CommitProperties) -> None:
        spec, table = self._commits.spec, self._commits.table
        partitions = sorted(set(rows[PARTITION_COLUMN].to_pylist()))
        match = (
            f"old.{PARTITION_COLUMN} = new.{PARTITION_COLUMN} "
            f"AND old.{spec.key} = new.{spec.key} "
            f"AND old.{PARTITION_COLUMN} IN ({', '.join(map(str, partitions))})"
        )
        merge = table.merge(
            rows,
            predicate=match,
            source_alias="new",
            target_alias="old",
            writer_properties=WRITER,
            commit_properties=properties,
        )
        # A row that stays what it was would be written, and be in the change data feed. Those of
        # views come from rows that have changed.
        columns = [] if spec.model else spec.schema
        names = [field.name for field in columns if _is_comparable(field.type)]
        differs = " OR ".join(f"(old.{n} IS DISTINCT FROM new.{n})" for n in names) or None
        before = table.version()
        merge.when_matched_update_all(predicate=differs).when_not_matched_insert_all().execute()
        if table.version() == before:  # nothing was to be done, but the position counts
            self._commits.write([], properties)


def _is_comparable(kind: pa.DataType) -> bool:
    """Return whether delta-rs compares values of a type; the others never differ alone."""
    if pa.types.is_list(kind):
        kind = kind.value_type
    return not pa.types.is_nested(kind)
