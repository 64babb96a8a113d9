"""Looking after the tables: sorting them, deleting old versions, making one anew.

None of it needs Spark, and all of it holds the lock of the tables: stop `spark-sink run` first.

A table is made anew side by side: in `_rebuild`, from all rows of `raw_events` (or, `raw_events`
itself, from the node's feed), while readers go on with what is there. One commit puts the new rows
in the place of the old. Whatever breaks off before it has changed nothing; the next attempt starts
over.
"""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from spark_sink.derive.derivation import Derivation
from spark_sink.errors import SinkError, TablesError, cannot_write
from spark_sink.schema import DERIVED, RAW, TABLES
from spark_sink.source.feed import Feed
from spark_sink.tables import delta_files
from spark_sink.tables.delta import DeltaStore
from spark_sink.tables.directory import Tables, format_of
from spark_sink.tables.parquet import ParquetStore
from spark_sink.tables.status import TableStatus, open_delta, table_status

REBUILD_DIR: Final = "_rebuild"
_ROWS: Final = 50_000

OnProgress = Callable[[str, int, int], None]


def optimize(directory: Path, names: Sequence[str] = ()) -> dict[str, int]:
    """Sort Delta tables (all without `names`) by stream, in few files; returns how many each has.

    A stream's history is one small read then.

    Raises:
        TablesError: there are no such Delta tables, or they cannot be written.
    """
    tables = _deltas(directory, names)
    with _told(directory):
        return {name: delta_files.optimize(table) for name, table in tables.items()}


def vacuum(
    directory: Path, names: Sequence[str], hours: float | None, *, dry_run: bool
) -> dict[str, int]:
    """Delete what only versions older than `hours` need; returns how many files, for each table.

    Raises:
        TablesError: there are no such Delta tables, or they cannot be written.
    """
    tables = _deltas(directory, names)
    with _told(directory):
        return {
            name: len(delta_files.vacuum(table, hours, dry_run=dry_run))
            for name, table in tables.items()
        }


def rebuild(directory: Path, name: str, feed: Feed | None, tell: OnProgress) -> None:
    """Make a table anew; with `raw_events` all others too, for they are computed from it.

    Args:
        directory: of the tables.
        name: of the table.
        feed: what `raw_events` is read from.
        tell: gets a table's name, its position and the one that it is to reach.

    Raises:
        SinkError: it cannot be; the tables are as before.
    """
    found = {status.name: status for status in table_status(directory)}
    if name != RAW and RAW not in found:
        raise TablesError(f"there is no table raw_events in {directory} to make {name} from")
    beside = directory / REBUILD_DIR
    shutil.rmtree(beside, ignore_errors=True)
    try:
        with _told(directory):
            if name == RAW:
                _rebuild_all(directory, beside, found, feed, tell)
            else:
                _rebuild_one(directory, beside, name, found[RAW].epoch, tell)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _rebuild_one(directory: Path, beside: Path, name: str, epoch: str, tell: OnProgress) -> None:
    new = Tables(beside, epoch, [name], table_format=format_of(directory), raw=directory)
    _derive(new, tell)
    _swap(directory, new, name)


def _rebuild_all(
    directory: Path,
    beside: Path,
    found: dict[str, TableStatus],
    feed: Feed | None,
    tell: OnProgress,
) -> None:
    if feed is None:
        raise SinkError("raw_events is made from a node's feed: say which with --url")
    head = feed.head()
    for status in found.values():
        feed.check(status.position, status.epoch, head)
    derived = [name for name in DERIVED if name in found]
    new = Tables(beside, head.epoch, derived, table_format=format_of(directory))
    while new.raw_position < head.head:
        upto = min(new.raw_position + _ROWS, head.head)
        new.append(pa.Table.from_batches(feed.read(new.raw_position, upto, head.epoch)))
        tell(RAW, new.raw_position, head.head)
    _derive(new, tell)
    # raw_events last: whatever else is new already is right for the old one as well.
    for name in (*derived, RAW):
        _swap(directory, new, name)


def _derive(new: Tables, tell: OnProgress) -> None:
    derivation = Derivation(new)
    while new.position < new.raw_position:
        derivation.catch_up(steps=1)
        for name, table in new.derived.items():
            tell(name, table.position, new.raw_position)


def _swap(directory: Path, new: Tables, name: str) -> None:
    made = new.store(name)
    if isinstance(made, DeltaStore):
        old = DeltaStore(TABLES[name], directory / name, new.epoch, for_replacement=True)
        old.replace(made)
    else:
        assert isinstance(made, ParquetStore)
        ParquetStore(TABLES[name], directory / name, new.epoch).replace(made)


def _deltas(directory: Path, names: Sequence[str]) -> dict[str, DeltaTable]:
    found = open_delta(directory)
    there = [status.name for status in table_status(directory)]
    missing = [name for name in names or there if name not in found]
    if missing:
        parquet = [name for name in missing if name in there]
        raise TablesError(
            f"{', '.join(parquet)} in {directory}: plain Parquet files, which are in order as they "
            "are; optimize and vacuum are for Delta tables"
            if parquet
            else f"there is no table {', '.join(missing)} in {directory}, but {', '.join(there)}"
        )
    return {name: table for name, table in found.items() if not names or name in names}


@contextmanager
def _told(directory: Path) -> Iterator[None]:
    """What the disk or the library says, as an error of ours."""
    try:
        yield
    except (DeltaError, OSError) as error:
        raise cannot_write(directory, error) from error
