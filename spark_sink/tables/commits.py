"""What a Delta table knows about itself, and commits, which are refused if another came first.

The log that a table was made from and its rules are properties of the table. Every commit that
advances the table carries a Delta *application transaction*: its name has the log's epoch, its
version is the feed position that the table now includes. Delta commits both or neither, so the
table itself knows its position, whatever happens to Spark's checkpoint. And of two processes that
write one table, which in an object store nothing prevents, the second to commit is refused.

`raw_events` may go on from another log than the one it was made from. Then the property
`recon.reading` names the log that it is filled from, and commits have the position that was read up
to in this log in an application transaction of its own. Without the property, both logs, and both
positions, are the same. Columns that later versions of the pipeline have added are added here, too.

Rows are changed in leaves (`tables.leaves`) if they are few, else by delta-rs.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from spark_sink.errors import (
    TablesError,
    another_log,
    cannot_open,
    other_columns,
    written_by_another,
)
from spark_sink.schema import PARTITION_COLUMN, RAW, TableSpec
from spark_sink.tables.delta_files import WRITER, query
from spark_sink.tables.leaves import MOST_ROWS, Action, Leaves, commit
from spark_sink.tables.location import (
    FAULTS,
    Location,
    delta_uri,
    has_objects,
    is_delta,
    open_delta_table,
    storage_options,
)

_EPOCH: Final = "recon.epoch"
# What was left out of a table, by `spark_sink.tables.dags`.
_EXCLUDED: Final = "recon.excluded"
_DAGS: Final = "dags"
#: What follows in the name of the transaction that counts how often rows were forgotten.
FORGOT: Final = "/forgot"
#: The property with the log that the table is filled from, if it is not the one it was made from.
READING_PROPERTY: Final = "recon.reading"
#: The property with the version of the rules that computed the rows.
RULES_PROPERTY: Final = "recon.rules"
#: The property of a view with its model's StreamID.
MODEL_PROPERTY: Final = "recon.model"
#: Properties of every table.
PROPERTIES: Final = {"delta.enableChangeDataFeed": "true"}


@dataclass(frozen=True, slots=True)
class Reading:
    """The log that a table is filled from, and up to which position the table has its events."""

    epoch: str
    position: int


def identity_of(table: DeltaTable) -> str:
    """Return what tells a table from any other, and from itself before rows of it were forgotten.

    After rows were forgotten, those who follow it start over, so that their copies lose them, too.
    """
    name, times = str(table.metadata().id), times_forgot(table)
    return f"{name}/{times}" if times else name


def times_forgot(table: DeltaTable) -> int:
    """Return how often rows of a table were forgotten."""
    return table.transaction_version(app_id(epoch_of(table)) + FORGOT) or 0


def epoch_of(table: DeltaTable) -> str:
    """Return the log that a table was made from; empty for a table of someone else."""
    return table.metadata().configuration.get(_EPOCH) or ""


def position_of(table: DeltaTable, epoch: str) -> int:
    """Return the feed position of a table."""
    return table.transaction_version(app_id(epoch)) or 0


def excludes_dags(table: DeltaTable) -> bool:
    """Return whether a table was made without the events of DAGs."""
    return table.metadata().configuration.get(_EXCLUDED) == _DAGS


def has_changed_logs(table: DeltaTable) -> bool:
    """Return whether a table ever went on from another log than the one it was made from."""
    return READING_PROPERTY in table.metadata().configuration


def reading_of(table: DeltaTable, epoch: str) -> Reading:
    """Return how far a table, made from the log `epoch`, has got in the log that is read now."""
    read = table.metadata().configuration.get(READING_PROPERTY)
    if not read:
        return Reading(epoch, position_of(table, epoch))
    return Reading(read, table.transaction_version(app_id(epoch) + read_suffix(read)) or 0)


def open_table(
    spec: TableSpec, path: Location, epoch: str, *, exclude_dags: bool = False
) -> DeltaTable:
    """Open the table `spec` of the log `epoch`; create it if there is none.

    A new table is noted to be without the events of DAGs if `exclude_dags`.

    Raises:
        FeedChangedError: it was made from another log.
        TablesError: it is damaged, or was not made by spark-sink.
    """
    try:
        if not is_delta(path):
            rules = {} if spec.rules is None else {RULES_PROPERTY: str(spec.rules)}
            excluded = {_EXCLUDED: _DAGS} if exclude_dags else {}
            model = {} if spec.model is None else {MODEL_PROPERTY: spec.model}
            return DeltaTable.create(
                delta_uri(path),
                schema=spec.schema,
                partition_by=[PARTITION_COLUMN],
                name=spec.name,
                configuration={_EPOCH: epoch, **rules, **excluded, **model, **PROPERTIES},
                raise_if_key_not_exists=False,
                storage_options=storage_options(path),
            )
        table = open_delta_table(path)
    except FAULTS as error:
        raise cannot_open(path, error) from error
    made_from = epoch_of(table)
    if made_from != epoch:
        raise another_log(path, made_from, epoch)
    return table


def rules_of(table: DeltaTable) -> int | None:
    """Return the version of the rules that computed the rows of a table."""
    text = table.metadata().configuration.get(RULES_PROPERTY) or ""
    return int(text) if text.isdecimal() else None


def app_id(epoch: str) -> str:
    """Return the name of the application transaction with a table's position."""
    return f"spark-sink/{epoch}"


def read_suffix(epoch: str) -> str:
    """Return what follows in the name of the transaction with the position read in a log."""
    return f"/read/{epoch}"


# Columns that tables of earlier versions lack. Null is right, but for time events without the
# columns about their anchors.
_ANCHOR_COLUMNS: Final = frozenset({"time", "chain_id"})
_ADDED_COLUMNS: Final = {
    RAW: _ANCHOR_COLUMNS | {"delivered_at", "fault"},
    "conclusion_events": frozenset({"fault"}),
}


def add_missing_columns(spec: TableSpec, table: DeltaTable, path: Location) -> None:
    """Add columns that a table of an older version lacks.

    Raises:
        TablesError: it has other columns, or its rows would not be correct.
    """
    there = _columns(table)
    if there == _sorted(spec.schema):
        return
    missing = _ADDED_COLUMNS.get(spec.name, frozenset()) - {field.name for field in there}
    added = [field for field in spec.schema if field.name in missing]
    if _sorted([*there, *added]) != _sorted(spec.schema):
        raise other_columns(path)
    if not missing.isdisjoint(_ANCHOR_COLUMNS):
        _check_anchors(table, path)
    table.alter.add_columns(Schema.from_arrow(pa.schema(added)).fields)


def _check_anchors(table: DeltaTable, path: Location) -> None:
    """Check that a table without the columns about anchors has no time events."""
    anchors = query({"t": table}, "SELECT count(*) AS n FROM t WHERE event_type = 'time'")
    if count := anchors["n"].to_pylist()[0]:
        raise TablesError(
            f"the table {path} was written by an older version, without the anchor times "
            f"of its {count} time events: read the feed again with spark-sink "
            f"rebuild {RAW} --tables {path.parent} --url URL"
        )


def _columns(table: DeltaTable) -> list[pa.Field]:
    return _sorted(pa.schema(table.schema().to_arrow()))


def _sorted(fields: Iterable[pa.Field]) -> list[pa.Field]:
    return sorted(fields, key=lambda field: str(field.name))


#: Where staged files are. Delta ignores names that begin with an underscore.
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
        if self.spec.rows_are_events or not has_objects(self.path):
            return None
        return Leaves(self.spec.schema, self.path)

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
        """Commit files and their changes, which delta-rs cannot."""
        version = self.table.version() + 1
        try:
            commit(self.path, version, properties.app_transactions or (), actions)
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
