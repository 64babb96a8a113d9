"""The Delta tables on disk, and how far each of them is.

Every commit that moves a table forward carries a Delta *application transaction*: the log's epoch
as the application's name, the feed position that the table now includes as its version. Delta
writes both or neither, so the table itself says how far it is, whatever became of Spark's
checkpoint:

- `raw_events` at position p holds the feed's positions 1 to p, each once, and nothing else.
- `stream_tips` at position p is `compute_tips` of the rows of `raw_events` up to p.

Both tables are partitioned by `stream_cid_partition`: the history of the streams that a batch
touches is read back from their partitions only (Delta keeps no statistics on binary columns, so it
could not skip files by `stream_cid` itself). Within a table only this process writes: a lock on
the directory sees to it.
"""

import fcntl
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, QueryBuilder, Transaction, write_deltalake
from deltalake.exceptions import DeltaError

from spark_sink.errors import FeedChangedError, TablesError
from spark_sink.schema import (
    PARTITION_COLUMN,
    RAW_EVENTS,
    STREAM_TIPS,
    partition_of,
    with_partition,
)

RAW_EVENTS_DIR: Final = "raw_events"
STREAM_TIPS_DIR: Final = "stream_tips"
CHECKPOINT_DIR: Final = "_checkpoint"
SCRATCH_DIR: Final = "_scratch"
_LOCK_FILE: Final = ".spark-sink.lock"
_EPOCH: Final = "recon.epoch"
# Each merge rewrites the files it touches: what it replaces is deleted after an hour, not a week.
_TIPS_CONFIGURATION: Final = {"delta.deletedFileRetentionDuration": "interval 1 hours"}
# A batch adds up to one file a partition: this many commits make a thousand, tidied in a second.
_TIDY_EVERY: Final = 64
_FILE_SIZE: Final = 32 * 1024 * 1024
_PLAIN_TYPES: Final = {pa.binary_view(): pa.binary(), pa.string_view(): pa.string()}
# Naming a few streams lets the reader skip row groups; naming thousands costs more than it saves.
_FEW_STREAMS: Final = 100


@contextmanager
def lock(directory: Path) -> Iterator[None]:
    """Hold the tables in `directory` (made when missing) for this process, until the block ends.

    Raises:
        TablesError: another process holds them, or the directory cannot be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        file = (directory / _LOCK_FILE).open("w")
    except OSError as error:
        raise TablesError(f"cannot write to {directory}: {error.strerror}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise TablesError(
                f"another spark-sink is writing the tables in {directory}: stop it first"
            ) from None
        yield


class Tables:
    """The tables in a directory, of the log `epoch`. Positions are the feed's.

    Opening makes the tables that are missing.

    Raises:
        FeedChangedError: a table was made from another log.
        TablesError: a table is damaged, or was written by another version.
    """

    def __init__(self, directory: Path, epoch: str) -> None:
        self.directory = directory
        self.epoch = epoch
        self._raw = _open(directory / RAW_EVENTS_DIR, RAW_EVENTS, epoch, {})
        self._tips = _open(directory / STREAM_TIPS_DIR, STREAM_TIPS, epoch, _TIPS_CONFIGURATION)
        if self.tips_position > self.raw_position:
            raise TablesError(
                f"in {directory} the table stream_tips is at position {self.tips_position}, but "
                f"raw_events only at {self.raw_position}: delete {directory / STREAM_TIPS_DIR}, it "
                "will be made anew"
            )

    @property
    def raw_position(self) -> int:
        """`raw_events` holds the positions from 1 to this one."""
        return position_of(self._raw, self.epoch)

    @property
    def tips_position(self) -> int:
        """`stream_tips` is computed from the events up to this position."""
        return position_of(self._tips, self.epoch)

    def append(self, rows: pa.Table) -> int:
        """Append those of the feed's rows that `raw_events` does not hold; returns how many.

        Raises:
            TablesError: there is a gap between the table and the rows, or within the rows.
        """
        done = self.raw_position
        new = rows.filter(pc.field("position") > done).sort_by("position")
        if not new.num_rows:
            return 0
        last = new["position"][-1].as_py()
        if new["position"].to_pylist() != list(range(done + 1, last + 1)):
            first = new["position"][0].as_py()
            raise TablesError(
                f"raw_events in {self.directory} ends at position {done}, but the rows to append "
                f"are {new.num_rows} from {first} to {last}: was the table deleted while its "
                f"checkpoint was kept? Delete the checkpoint (by default {CHECKPOINT_DIR} in that "
                "directory), and reading goes on where the table ends"
            )
        write_deltalake(
            self._raw, with_partition(new), mode="append", commit_properties=self._reaches(last)
        )
        return int(new.num_rows)

    def streams_between(self, after: int, upto: int) -> list[bytes]:
        """The streams with events at the positions (after, upto]."""
        found = self._select("DISTINCT stream_cid", f"position > {after} AND position <= {upto}")
        return sorted(found["stream_cid"].to_pylist())

    def events_of(self, streams: Iterable[bytes], upto: int) -> pa.Table:
        """position, stream_cid and car of the events of these streams, up to a position."""
        wanted = sorted(set(streams))
        partitions = ", ".join(str(p) for p in sorted({partition_of(cid) for cid in wanted}))
        where = f"position <= {upto} AND {PARTITION_COLUMN} IN ({partitions or 'NULL'})"
        if len(wanted) <= _FEW_STREAMS:
            where += f" AND stream_cid IN ({', '.join(_literal(c) for c in wanted) or 'NULL'})"
        rows = self._select("position, stream_cid, car", where)
        return rows.filter(pc.is_in(rows["stream_cid"], pa.array(wanted, pa.binary())))

    def merge_tips(self, rows: pa.Table, position: int) -> None:
        """Put these rows into `stream_tips`, which then is at `position`."""
        partitions = sorted(set(rows[PARTITION_COLUMN].to_pylist()))
        match = (
            f"tip.{PARTITION_COLUMN} = new.{PARTITION_COLUMN} AND tip.stream_cid = new.stream_cid "
            f"AND tip.{PARTITION_COLUMN} IN ({', '.join(map(str, partitions))})"
        )
        merge = self._tips.merge(
            rows,
            predicate=match,
            source_alias="new",
            target_alias="tip",
            commit_properties=self._reaches(position),
        )
        merge.when_matched_update_all().when_not_matched_insert_all().execute()

    def tidy(self) -> None:
        """Every so many commits: make few files of many, delete those replaced long ago."""
        for table in (self._raw, self._tips):
            if table.version() % _TIDY_EVERY == 0:
                table.optimize.compact(target_size=_FILE_SIZE)
                table.vacuum(dry_run=False)

    def _reaches(self, position: int) -> CommitProperties:
        return CommitProperties(app_transactions=[Transaction(_app_id(self.epoch), position)])

    def _select(self, columns: str, where: str) -> pa.Table:
        return query({"raw_events": self._raw}, f"SELECT {columns} FROM raw_events WHERE {where}")


def epoch_of(table: DeltaTable) -> str:
    """The log that a table was made from; empty for a table that is not ours."""
    return table.metadata().configuration.get(_EPOCH) or ""


def position_of(table: DeltaTable, epoch: str) -> int:
    """How far a table is: the feed position that its latest commit brought it to."""
    return table.transaction_version(_app_id(epoch)) or 0


def query(tables: dict[str, DeltaTable], sql: str) -> pa.Table:
    """What DataFusion answers to a SELECT, its views of text and bytes made plain columns."""
    builder = QueryBuilder()
    for name, table in tables.items():
        builder.register(name, table)
    answer = pa.table(builder.execute(sql).read_all())
    return answer.cast(pa.schema([_plain(field) for field in answer.schema]))


def _plain(field: pa.Field) -> pa.Field:
    kind = field.type
    if pa.types.is_map(kind):
        kind = pa.map_(_plain(kind.key_field).type, _plain(kind.item_field))
    elif pa.types.is_list(kind):
        kind = pa.list_(_plain(kind.value_field))
    else:
        kind = _PLAIN_TYPES.get(kind, kind)
    return field.with_type(kind)


def _open(path: Path, schema: pa.Schema, epoch: str, configuration: dict[str, str]) -> DeltaTable:
    try:
        if not DeltaTable.is_deltatable(str(path)):
            return DeltaTable.create(
                str(path),
                schema=schema,
                partition_by=[PARTITION_COLUMN],
                name=path.name,
                configuration={_EPOCH: epoch, **configuration},
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
    if pa.schema(table.schema().to_arrow()) != schema:
        raise TablesError(
            f"the table {path} has other columns than this version of spark-sink writes: point "
            "--tables at a new directory"
        )
    return table


def _app_id(epoch: str) -> str:
    return f"spark-sink/{epoch}"


def _literal(value: bytes) -> str:
    return f"X'{value.hex()}'"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
