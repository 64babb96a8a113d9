"""Looking after the tables: sorting them, deleting old versions, making one anew.

None of it needs Spark, and all of it holds the lock of the tables: stop `spark-sink run` first.

A table is made anew side by side: in `_rebuild`, from all rows of `raw_events` (or, `raw_events`
itself, from the node's feed), while readers go on with what is there. Its files are then moved to
the place of the old ones: by one commit in a Delta table, file by file in a plain Parquet one.
Whatever breaks off before that has changed nothing; the next attempt starts over.

With `raw_events` all tables are made anew, and each is put in its place by itself, `raw_events`
last. So the feed is read up to the old position of `raw_events` only, though the node may have
more: a derived table that is in its place already is right for the old `raw_events` too, and not
ahead of it. `spark-sink run` goes on from there, whatever breaks off in between. Where there is no
`raw_events`, or one that the others are ahead of, it comes first, and has all that the node has.
"""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable

from spark_sink.derive.derivation import Derivation
from spark_sink.errors import SinkError, TablesError, cannot_write
from spark_sink.schema import DERIVED, RAW, TABLES
from spark_sink.source.feed import Feed
from spark_sink.tables import delta_files
from spark_sink.tables.delta import FAULTS, DeltaStore
from spark_sink.tables.directory import Tables, format_of
from spark_sink.tables.parquet import ParquetStore
from spark_sink.tables.status import made_from, no_tables, open_delta, table_status

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
        SinkError: it cannot be; the tables are as before, or each is the old one or the new.
    """
    beside = directory / REBUILD_DIR
    with _told(directory):
        shutil.rmtree(beside, ignore_errors=True)
        try:
            if name == RAW:
                _rebuild_all(directory, beside, feed, tell)
            else:
                _rebuild_one(directory, beside, name, tell)
        finally:
            shutil.rmtree(beside, ignore_errors=True)


def _rebuild_one(directory: Path, beside: Path, name: str, tell: OnProgress) -> None:
    raw = made_from(directory / RAW)
    if raw is None:
        if not any((directory / table).is_dir() for table in TABLES):
            raise no_tables(directory)
        raise TablesError(f"there is no table raw_events in {directory} to make {name} from")
    made_from(directory / name)  # tells what is wrong with it while there is nothing in vain
    new = Tables(beside, raw[0], [name], table_format=format_of(directory), raw=directory)
    new.derived[name].keep_history(0.0)
    _derive(new, tell)
    _swap(directory, new, name)


def _rebuild_all(directory: Path, beside: Path, feed: Feed | None, tell: OnProgress) -> None:
    if feed is None:
        raise SinkError("raw_events is made from a node's feed: say which with --url")
    found = {name: known for name in TABLES if (known := made_from(directory / name)) is not None}
    if not found:
        raise no_tables(directory)
    head = feed.head(patience=0)
    for epoch, position in found.values():
        feed.check(position, epoch, head)
    derived = [name for name in DERIVED if name in found]
    _, old = found.get(RAW, (head.epoch, 0))
    raw_first = RAW not in found or any(found[name][1] > old for name in derived)
    upto = head.head if raw_first else old
    new = Tables(beside, head.epoch, derived, table_format=format_of(directory))
    new.keep_history(0.0)
    while new.raw_position < upto:
        end = min(new.raw_position + _ROWS, upto)
        new.append(pa.Table.from_batches(feed.read(new.raw_position, end, head.epoch)))
        new.raw.tidy(idle=True)
        tell(RAW, new.raw_position, upto)
    _derive(new, tell)
    for name in (RAW, *derived) if raw_first else (*derived, RAW):
        _swap(directory, new, name)


def _derive(new: Tables, tell: OnProgress) -> None:
    derivation = Derivation(new)
    while new.position < new.raw_position:
        derivation.catch_up(steps=1)
        for name, table in new.derived.items():
            table.tidy(idle=True)
            tell(name, table.position, new.raw_position)


def _swap(directory: Path, new: Tables, name: str) -> None:
    made = new.store(name)
    if isinstance(made, DeltaStore):
        old = DeltaStore(TABLES[name], directory / name, new.epoch, for_replacement=True)
        old.replace(made)
    else:
        assert isinstance(made, ParquetStore)
        ParquetStore(TABLES[name], directory / name, new.epoch, for_replacement=True).replace(made)


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
    except FAULTS as error:
        raise cannot_write(directory, error) from error
