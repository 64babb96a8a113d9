"""A table as a Delta table, without Java: written by delta-rs, read by whatever reads Delta.

Every commit that moves the table forward carries a Delta *application transaction*: the log's epoch
as the application's name, the feed position that the table now includes as its version. Delta
writes both or neither, so the table itself says how far it is, whatever became of Spark's
checkpoint.

The table is partitioned by `stream_cid_partition`: the history of the streams that a batch touches
is read back from their partitions only. Delta keeps no statistics on binary columns, so it cannot
skip files by `stream_cid`; Parquet does, and each file is sorted by it, so that a reader decodes
only the row groups with the stream.
"""

import math
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import pyarrow as pa
from deltalake import (
    CommitProperties,
    DeltaTable,
    Schema,
    Transaction,
    write_deltalake,
)
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction

from spark_sink.errors import FeedChangedError, TablesError
from spark_sink.schema import PARTITION_COLUMN, RAW, TableSpec
from spark_sink.tables.datafusion import query
from spark_sink.tables.delta_files import HISTORY, added, merge_small_files, placed, vacuum
from spark_sink.tables.raw_files import RawFile, RawFiles
from spark_sink.tables.staging import Staged, Stager

_EPOCH: Final = "recon.epoch"
_STEP: Final = "/step"
# Delta leaves alone what begins with an underscore.
_STAGED: Final = "_staged"
# A batch adds up to one file a partition: this many commits make a thousand, tidied in a second.
_TIDY_EVERY: Final = 64
_MANY_FILES: Final = 256
_ROWS_AT_ONCE: Final = 8192
# The last position of a file that someone wrote without statistics.
_UNKNOWN: Final = 2**63 - 1
# What raw_events of version 0.1 lacks; right for events that are no time events.
_ADDED_COLUMNS: Final = ("time", "chain_id")
# A commit of every half second makes many small files: they are not kept for a month.
_LOG: Final = "delta.logRetentionDuration"
_LOG_HOURS: Final = 24
_PROPERTIES: Final = {"delta.enableChangeDataFeed": "true"}


class DeltaStore:
    """The table `spec` at `path`, of the log `epoch`; made when it is not there.

    With `for_replacement` its columns may be other ones.

    Raises:
        FeedChangedError: it was made from another log.
        TablesError: it is damaged, or was written by another version.
    """

    def __init__(
        self, spec: TableSpec, path: Path, epoch: str, *, for_replacement: bool = False
    ) -> None:
        self.spec = spec
        self.path = path
        self.epoch = epoch
        self._table = _open(spec, path, epoch)
        self._tidied = self._table.version()
        self._files = 0  # after it was tidied
        if not for_replacement and _columns(self._table) != sorted(spec.schema, key=_name):
            _migrate(spec, self._table, path)

    @property
    def position(self) -> int:
        """The feed position that the table includes."""
        return position_of(self._table, self.epoch)

    @property
    def under_way(self) -> int:
        """The position of the latest `revise`: some rows may be as they are there."""
        return self._table.transaction_version(_app_id(self.epoch) + _STEP) or 0

    def stager(self) -> Stager:
        """What writes the files that `append` takes; in a worker, for it can be sent there."""
        return Stager(self.spec, self.path / _STAGED)

    def clear_staging(self) -> None:
        """Delete the files that were written for `append`, and did not come to it."""
        shutil.rmtree(self.path / _STAGED, ignore_errors=True)

    def append(self, rows: Staged, position: int) -> Staged:
        """Add rows that are not in the table, which then is at `position`: one commit; returns
        them where they are now.

        Raises:
            TablesError: a file of theirs is not to be seen from here.
        """
        files = [placed(self.path, file) for file in rows.files]
        for table in rows.tables:
            files += Stager(self.spec, self.path).stage(table).files
        self._commit([added(self.path, file) for file in files], self._reaches(position))
        return Staged(tuple(files))

    def put(self, rows: pa.Table, position: int) -> None:
        """Put rows in the place of those with the same key, or beside the others; the table then
        is at `position`: one commit."""
        self._merge(rows, self._reaches(position))

    def revise(self, rows: pa.Table, towards: int) -> None:
        """Put rows in the place of those with the same key, as they are at the position `towards`,
        which is not reached by this: one commit."""
        under_way = [Transaction(_app_id(self.epoch) + _STEP, towards)]
        self._merge(rows, CommitProperties(app_transactions=under_way))

    def replace(self, other: "DeltaStore") -> None:
        """Put the rows and the position of `other` in the place of all that is here: one commit."""
        names = ", ".join(self.spec.schema.names)
        told = self._table.metadata().configuration
        if missing := {n: v for n, v in _PROPERTIES.items() if told.get(n) != v}:
            self._table.alter.set_table_properties(missing)  # a table of an older version
        write_deltalake(
            self._table,
            other.select(names, "TRUE").cast(self.spec.schema).to_reader(_ROWS_AT_ONCE),
            mode="overwrite",
            schema_mode="overwrite",
            commit_properties=self._reaches(other.position),
        )

    def keep_history(self, hours: float) -> None:
        """For how long what is replaced can be read in older versions."""
        wanted = {
            HISTORY: f"interval {round(hours * 3600)} seconds",
            _LOG: f"interval {max(_LOG_HOURS, math.ceil(hours))} hours",
        }
        told = self._table.metadata().configuration
        if any(told.get(name) != value for name, value in wanted.items()):
            self._table.alter.set_table_properties(wanted)

    def tidy(self, *, idle: bool) -> None:
        """Every so many commits, and when there is time for the many files of large batches: make
        few of them, delete those replaced long ago."""
        many = idle and len(self._table.file_uris()) - self._files >= _MANY_FILES
        if not many and self._table.version() // _TIDY_EVERY == self._tidied // _TIDY_EVERY:
            return
        if actions := merge_small_files(self._table, Stager(self.spec, self.path)):
            self._commit(actions, CommitProperties())
        vacuum(self._table, None, dry_run=False)
        self._tidied = self._table.version()
        self._files = len(self._table.file_uris())

    # What only some tables are asked for.

    def files_upto(self, position: int) -> RawFiles:
        """Of raw_events: the files with rows up to a position."""
        files = pa.table(self._table.get_add_actions(flatten=True))
        columns = (
            "path",
            f"partition.{PARTITION_COLUMN}",
            "min.position",
            "max.position",
            "size_bytes",
        )
        rows = zip(*(files[name].to_pylist() for name in columns), strict=True)
        return RawFiles(
            tuple(
                RawFile(self.path / unquote(path), partition, first or 0, last or _UNKNOWN, size)
                for path, partition, first, last, size in rows
                if (first or 0) <= position
            )
        )

    def streams_of_models(self, models: Iterable[bytes]) -> list[bytes]:
        """Of a derived table: the streams whose model's StreamID, as bytes, is one of these."""
        ids = ", ".join(map(_literal, models))
        found = self.select("DISTINCT stream_cid", f"dimensions['model'] IN ({ids})")
        return sorted(found["stream_cid"].to_pylist())

    def _commit(
        self, actions: Sequence[AddAction | RemoveAction], properties: CommitProperties
    ) -> None:
        self._table.create_write_transaction(
            list(actions),
            "append",
            self.spec.schema,
            partition_by=[PARTITION_COLUMN],
            commit_properties=properties,
        )
        self._table.update_incremental()

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
            commit_properties=properties,
        )
        merge.when_matched_update_all().when_not_matched_insert_all().execute()

    def select(self, columns: str, where: str) -> pa.Table:
        """Columns of the rows for which a condition in SQL holds."""
        return query({"t": self._table}, f"SELECT {columns} FROM t WHERE {where}")

    def _reaches(self, position: int) -> CommitProperties:
        return CommitProperties(app_transactions=[Transaction(_app_id(self.epoch), position)])


def epoch_of(table: DeltaTable) -> str:
    """The log that a table was made from; empty for a table that is not ours."""
    return table.metadata().configuration.get(_EPOCH) or ""


def position_of(table: DeltaTable, epoch: str) -> int:
    """How far a table is: the feed position that its latest commit brought it to."""
    return table.transaction_version(_app_id(epoch)) or 0


def _open(spec: TableSpec, path: Path, epoch: str) -> DeltaTable:
    try:
        if not DeltaTable.is_deltatable(str(path)):
            return DeltaTable.create(
                str(path),
                schema=spec.schema,
                partition_by=[PARTITION_COLUMN],
                name=spec.name,
                configuration={_EPOCH: epoch, **_PROPERTIES},
                raise_if_key_not_exists=False,
            )
        table = DeltaTable(str(path))
    except (DeltaError, OSError) as error:
        raise TablesError(f"cannot open the table {path}: {_one_line(error)}") from error
    made_from = epoch_of(table)
    if made_from != epoch:
        raise FeedChangedError(
            f"the table {path} was made from log {made_from}, but the node has log {epoch}: it was "
            "set up anew, or is another node. Point --url at the right node, or --tables at a new "
            "directory"
        )
    return table


def _migrate(spec: TableSpec, table: DeltaTable, path: Path) -> None:
    """Bring a table of an older version to its schema, where its rows stay right."""
    if spec.name != RAW:
        raise TablesError(
            f"the table {path} has other columns than this version of spark-sink writes: make it "
            f"anew with spark-sink rebuild {spec.name} --tables {path.parent}"
        )
    added = [spec.schema.field(name) for name in _ADDED_COLUMNS]
    if sorted([*_columns(table), *added], key=_name) != sorted(spec.schema, key=_name):
        raise TablesError(
            f"the table {path} has other columns than this version of spark-sink writes: point "
            "--tables at a new directory"
        )
    anchors = query({"t": table}, "SELECT count(*) AS n FROM t WHERE event_type = 'time'")
    if count := anchors["n"].to_pylist()[0]:
        raise TablesError(
            f"the table {path} was written by an older version, which did not read when the "
            f"anchors of its {count} time events were made: read the feed again with spark-sink "
            f"rebuild {RAW} --tables {path.parent} --url URL"
        )
    table.alter.add_columns(Schema.from_arrow(pa.schema(added)).fields)


def _columns(table: DeltaTable) -> list[pa.Field]:
    return sorted(pa.schema(table.schema().to_arrow()), key=_name)


def _name(field: pa.Field) -> str:
    return str(field.name)


def _app_id(epoch: str) -> str:
    return f"spark-sink/{epoch}"


def _literal(value: bytes) -> str:
    return f"X'{value.hex()}'"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
