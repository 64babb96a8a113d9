"""The tables at a location, and the feed position of each.

- `raw_events` at position p holds the feed's positions 1 to p, each once, and nothing else. If it
  went on from another node, it holds p events of their feeds, each once and after its prevs, and
  among them all up to the *read position* of the feed that it goes on from
  (`spark_sink.run.follower`).
- Every other table at position p is a pure function of the rows of `raw_events` up to p (see
  `spark_sink.derive.transforms`), and is never ahead of `raw_events`.

A lock on the directory ensures that only one process writes the tables. For tables in an object
store, it is on a directory of this machine: processes of other machines are refused when they
commit. A table and its position change together: `spark_sink.tables.delta_log`.
"""

import math
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from recon_node.base.files import open_locked
from spark_sink.errors import ConflictError, TablesError, other_dags
from spark_sink.schema import DERIVED, FORMER, RAW, TABLES
from spark_sink.tables.catalog import are_parquet, is_table, no_tables
from spark_sink.tables.delta_log import Reading
from spark_sink.tables.location import (
    Location,
    concurrently,
    delete_below,
    delta_uri,
    file_system,
    files_below,
    local_directory,
)
from spark_sink.tables.placement import LeaveOut, Placement, forgotten_streams
from spark_sink.tables.retention import Retention
from spark_sink.tables.sink_table import SinkTable
from spark_sink.tables.staging import Staged, StagedFeed, Stager, feed_rows

CHECKPOINT_DIR: Final = "_checkpoint"
SCRATCH_DIR: Final = "_scratch"
STAGING_DIR: Final = "_staging"
_ABANDONED_AFTER: Final = timedelta(hours=1)
"""Older staged files in an object store are not about to be committed by any process."""

OnWrite = Callable[[str, Staged], None]


@contextmanager
def lock(directory: Location, *, make: bool = True) -> Iterator[None]:
    """Hold the tables in `directory` for this process, until the block ends.

    Raises:
        TablesError: another process holds them, or the directory cannot be written, is a table or
            holds tables that are not Delta tables.
    """
    delta_uri(directory)
    local = local_directory(directory)
    make = make or not isinstance(directory, Path)
    try:
        if is_table(directory) or are_parquet(directory) or not (make or local.is_dir()):
            raise no_tables(directory)
        local.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=local).close()  # an existing lock file proves nothing
        file = open_locked(local / ".spark-sink.lock")
    except BlockingIOError:
        raise ConflictError(
            f"another spark-sink is writing the tables in {directory}: stop it first"
        ) from None
    except OSError as error:
        hint = "" if local == directory else "; XDG_STATE_HOME can name another place"
        raise TablesError(f"cannot write to {local}: {error.strerror}{hint}") from None
    with file:
        yield


def check_checkpoint(checkpoint: Path, tables: Location) -> None:
    """Check that Spark's checkpoint is not in a table, where files of others are deleted."""
    ours: set[Path] = set()
    if isinstance(tables, Path):
        ours = {tables.resolve() / name for name in (*TABLES, STAGING_DIR, SCRATCH_DIR)}
    place = checkpoint.resolve()
    for directory in (place, *place.parents):
        if directory in ours or is_table(directory):
            raise TablesError(
                f"the checkpoint cannot be in {directory}: files that are not the table's are "
                "deleted there"
            )


class Tables:
    """The tables in a directory, made from the log `epoch`. Positions are those of `raw_events`.

    Missing tables are created.

    Args:
        directory: of the tables.
        epoch: of the log.
        names: the derived tables to keep up to date.
        raw: the directory of `raw_events`, if different.
        forgotten: the directory with the list of forgotten streams, if different.
        exclude_dags: whether the tables are without the events of DAGs; None: as they are, if they
            exist.
        on_write: called with the name of a table and its new or changed rows.

    Raises:
        FeedChangedError: a table was made from another log.
        TablesError: a table is damaged, or was written by another version.
    """

    def __init__(
        self,
        directory: Location,
        epoch: str,
        names: Iterable[str] = DERIVED,
        *,
        raw: Location | None = None,
        forgotten: Location | None = None,
        exclude_dags: bool | None = None,
        on_write: OnWrite = lambda name, rows: None,
    ) -> None:
        self.directory = directory
        self.epoch = epoch
        self._staging = f"{STAGING_DIR}/{uuid.uuid4()}"
        self.on_write = on_write
        self.retention: Retention | None = None
        wanted = set(names)
        self.raw = SinkTable(
            TABLES[RAW], (raw or directory) / RAW, epoch, exclude_dags=bool(exclude_dags)
        )
        self.excludes_dags = self.raw.excludes_dags
        if exclude_dags not in (None, self.excludes_dags):
            raise other_dags(directory, self.excludes_dags)
        self.leave_out = LeaveOut(self.excludes_dags, forgotten_streams(forgotten or directory))
        self.derived = {
            name: SinkTable(TABLES[name], directory / name, epoch, exclude_dags=self.excludes_dags)
            for name in DERIVED
            if name in wanted
        }
        delete_below(directory, FORMER)
        for name, table in self.derived.items():
            if table.excludes_dags is not self.excludes_dags:
                raise other_dags(table.path, table.excludes_dags)
            if table.position > self.raw_position:
                raise TablesError(
                    f"in {directory} the table {name} is at position {table.position}, but "
                    f"raw_events only at {self.raw_position}: delete {table.path}, and it will be "
                    "rebuilt"
                )

    def table(self, name: str) -> SinkTable:
        """Return a table."""
        return self.raw if name == RAW else self.derived[name]

    @property
    def _all(self) -> Iterator[SinkTable]:
        yield self.raw
        yield from self.derived.values()

    @property
    def raw_position(self) -> int:
        """`raw_events` holds the positions from 1 to this one."""
        return self.raw.position

    @property
    def reading(self) -> Reading:
        """The log that `raw_events` is filled from, and up to where it has all events of it."""
        return self.raw.reading

    @property
    def mirrors_log(self) -> bool:
        """Whether `raw_events` has the events of the log up to where it was read, and no others."""
        return self.reading.position == self.raw_position

    def position_when_read_to(self, position: int) -> int:
        """Return which position `raw_events` would have if the log were read up to a position.

        That is, if `raw_events` had none of the events that it has yet to read.
        """
        return self.raw_position + position - self.reading.position

    @property
    def positions(self) -> dict[str, int]:
        """The position of each table."""
        return {RAW: self.raw.position, **{n: table.position for n, table in self.derived.items()}}

    @property
    def position(self) -> int:
        """All tables include the events up to this position."""
        return min((t.position for t in self.derived.values()), default=self.raw_position)

    def scratch_stager(self, name: str) -> Stager:
        """Return what writes rows of a table to files that `clear_staging` deletes."""
        return Stager(TABLES[name], self.directory / self._staging / name)

    def clear_staging(self) -> None:
        """Delete files of stagers that are not part of a table."""
        for table in self._all:
            table.clear_staging()
        # Those of others may be in use, unless the lock keeps them out.
        is_local = isinstance(self.directory, Path)
        delete_below(self.directory, STAGING_DIR if is_local else self._staging)

    def append(self, rows: pa.Table) -> int:
        """Append those rows of the feed that `raw_events` does not hold; return how many.

        Positions are those of `raw_events`. Raises `TablesError` if there are gaps.
        """
        new = rows.filter(pc.field("position") > self.raw_position)
        new = pa.Table.from_batches(map(self.leave_out, new.to_batches()), new.schema)
        return self.append_staged([feed_rows(new)] if new.num_rows else [])

    def following(self) -> Placement:
        """Return where rows go if the table has no events but those that were read."""
        assert self.mirrors_log
        return Placement.following(self.reading.position, self.raw_position)

    def append_staged(self, parts: Iterable[StagedFeed], placement: Placement | None = None) -> int:
        """Append staged rows, at positions that `raw_events` does not hold; return how many.

        `placement` says how they got their positions; by default, as `following` does. Raises
        `TablesError` as `append`, and if this process does not see a staged file.
        """
        done = last = self.raw_position
        ordered = sorted(parts, key=attrgetter("first"))
        count = sum(part.positions for part in ordered)
        for part in ordered:
            if part.first != last + 1 or part.positions != part.last - last:
                raise TablesError(
                    f"raw_events in {self.directory} ends at position {done}, but the rows to "
                    f"append are {count} from {ordered[0].first} to {ordered[-1].last}: was the "
                    "table deleted while its checkpoint was kept? Delete the checkpoint (by "
                    f"default {CHECKPOINT_DIR} in that directory), and reading continues where the "
                    "table ends"
                )
            last = part.last
        read_position = (placement or self.following()).read_position_at(last)
        if count or read_position > self.reading.position:
            rows = sum((part.staged for part in ordered), Staged())
            self.on_write(RAW, self.raw.append(rows, last, read_position))
        return count

    def set_retention(self, retention: Retention) -> None:
        """Set how long older versions of the tables stay readable."""
        self.retention = retention
        for table in self._all:
            table.set_retention(retention)

    def tidy(self, *, idle: bool = False, most: float = math.inf) -> None:
        """Merge small files and vacuum, after some commits; see `SinkTable.tidy`."""
        tidied = [table.tidy(idle=idle, most=most) for table in self._all]
        if any(tidied):
            delete_abandoned(self.directory)


def delete_abandoned(directory: Location) -> None:
    """Delete staged files of killed processes from an object store once they are of no use.

    On a disk, the holder of the lock deletes them all: `Tables.clear_staging`.
    """
    if isinstance(directory, Path):
        return
    before = datetime.now(UTC) - _ABANDONED_AFTER
    old = [file.path for file in files_below(directory, STAGING_DIR) if file.mtime <= before]
    concurrently(directory, file_system(directory).delete_file, old)
