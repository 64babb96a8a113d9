"""The tables on disk, and how far each of them is.

- `raw_events` at position p holds the feed's positions 1 to p, each once, and nothing else.
- Each other table at position p is a pure function of the rows of `raw_events` up to p (see
  `spark_sink.derive.transforms`). None of them is ever ahead of `raw_events`.

A table is written by this process alone: a lock on the directory sees to it. How a table and its
position change at once is up to its format: `spark_sink.tables.delta`, `spark_sink.tables.parquet`.
"""

import fcntl
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import Final, Literal

import pyarrow as pa
import pyarrow.compute as pc

from spark_sink.errors import TablesError
from spark_sink.schema import DERIVED, RAW, TABLES
from spark_sink.tables.delta import DeltaStore
from spark_sink.tables.parquet import POSITION_FILE, ParquetStore
from spark_sink.tables.staging import Staged, StagedFeed, Stager, feed_rows
from spark_sink.tables.status import is_table, no_tables
from spark_sink.tables.store import Store

CHECKPOINT_DIR: Final = "_checkpoint"
SCRATCH_DIR: Final = "_scratch"
STAGING_DIR: Final = "_staging"
_LOCK_FILE: Final = ".spark-sink.lock"

Format = Literal["delta", "parquet"]
OnWrite = Callable[[str, Staged], None]

_STORES: Final[dict[str, type[DeltaStore] | type[ParquetStore]]] = {
    "delta": DeltaStore,
    "parquet": ParquetStore,
}
# What each format has in the directory of a table, and the other has not.
_SIGNS: Final[dict[Format, str]] = {"delta": "_delta_log", "parquet": POSITION_FILE}


@contextmanager
def lock(directory: Path, *, make: bool = True) -> Iterator[None]:
    """Hold the tables in `directory` for this process, until the block ends.

    Args:
        directory: of the tables.
        make: whether it is made when it is missing.

    Raises:
        TablesError: another process holds them, the directory cannot be written, or is a table.
    """
    try:
        if is_table(directory) or not (make or directory.is_dir()):
            raise no_tables(directory)
        directory.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=directory).close()  # a lock file that is there proves nothing
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


def format_of(directory: Path) -> Format:
    """The format of the tables in `directory`; that of new ones is Delta."""
    is_parquet = any((directory / name / POSITION_FILE).exists() for name in TABLES)
    return "parquet" if is_parquet else "delta"


def _check_format(path: Path, table_format: Format) -> None:
    other: Format = "delta" if table_format == "parquet" else "parquet"
    if (path / _SIGNS[other]).exists():
        raise TablesError(
            f"the table {path} is a {other.capitalize()} table: use --format {other}, or another "
            "directory"
        )


class Tables:
    """The tables in a directory, of the log `epoch`. Positions are the feed's.

    Opening makes the tables that are missing.

    Args:
        directory: where they are.
        epoch: the log.
        names: those of the derived tables that are to be kept up to date.
        table_format: delta or parquet.
        raw: the directory of `raw_events`, when it is another one.
        on_write: called with the name of a table and its rows that are new or have changed.

    Raises:
        FeedChangedError: a table was made from another log.
        TablesError: a table is damaged, or was written by another version.
    """

    def __init__(
        self,
        directory: Path,
        epoch: str,
        names: Iterable[str] = DERIVED,
        *,
        table_format: Format = "delta",
        raw: Path | None = None,
        on_write: OnWrite = lambda name, rows: None,
    ) -> None:
        self.directory = directory
        self.epoch = epoch
        self.on_write = on_write
        wanted = set(names)
        for path in ((raw or directory) / RAW, *(directory / name for name in wanted)):
            _check_format(path, table_format)
        store = _STORES[table_format]
        self.raw: Store = store(TABLES[RAW], (raw or directory) / RAW, epoch)
        self.derived: dict[str, Store] = {
            name: store(TABLES[name], directory / name, epoch) for name in DERIVED if name in wanted
        }
        for name, table in self.derived.items():
            if table.position > self.raw_position:
                raise TablesError(
                    f"in {directory} the table {name} is at position {table.position}, but "
                    f"raw_events only at {self.raw_position}: delete {table.path}, it will be made "
                    "anew"
                )

    def store(self, name: str) -> Store:
        """A table."""
        return self.raw if name == RAW else self.derived[name]

    @property
    def raw_position(self) -> int:
        """`raw_events` holds the positions from 1 to this one."""
        return self.raw.position

    @property
    def positions(self) -> dict[str, int]:
        """The position of each table."""
        return {RAW: self.raw.position, **{n: table.position for n, table in self.derived.items()}}

    @property
    def position(self) -> int:
        """All tables include the events up to this position."""
        return min((t.position for t in self.derived.values()), default=self.raw_position)

    def raw_stager(self) -> Stager:
        """What writes rows of raw_events to files; in a worker, for it can be sent there."""
        return self.raw.stager() or self.staged_aside(RAW)

    def staged_aside(self, name: str) -> Stager:
        """What writes rows of a table to files that are gone after `clear_staging`."""
        return Stager(TABLES[name], self.directory / STAGING_DIR / name)

    def clear_staging(self) -> None:
        """Delete the files that stagers wrote: their rows are in the tables, or of no use."""
        for table in (self.raw, *self.derived.values()):
            table.clear_staging()
        shutil.rmtree(self.directory / STAGING_DIR, ignore_errors=True)

    def append(self, rows: pa.Table) -> int:
        """Append those of the feed's rows that `raw_events` does not hold; returns how many.

        Raises:
            TablesError: there is a gap between the table and the rows, or within the rows.
        """
        new = rows.filter(pc.field("position") > self.raw_position)
        return self.append_staged([feed_rows(new)] if new.num_rows else [])

    def append_staged(self, parts: Iterable[StagedFeed]) -> int:
        """The same with rows that were staged, of positions that `raw_events` does not hold.

        Raises:
            TablesError: as `append`; a staged file is not to be seen from here.
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
                    f"default {CHECKPOINT_DIR} in that directory), and reading goes on where the "
                    "table ends"
                )
            last = part.last
        if count:
            rows = sum((part.staged for part in ordered), Staged())
            self.on_write(RAW, self.raw.append(rows, last))
        return count

    def keep_history(self, hours: float) -> None:
        """For how long what is replaced can be read in older versions."""
        for table in (self.raw, *self.derived.values()):
            table.keep_history(hours)

    def tidy(self, *, idle: bool = False) -> None:
        """Every so many commits: make few files of many, delete those replaced long ago."""
        for table in (self.raw, *self.derived.values()):
            table.tidy(idle=idle)
