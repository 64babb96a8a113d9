"""Sorts, vacuums and rebuilds the tables, and forgets streams.

None of this needs Spark, and all of it holds the lock of the tables: stop `spark-sink run` first.

A rebuild writes a new table to `_rebuild`, from all rows of `raw_events` (or, for `raw_events`
itself, from the node's feed), while readers continue with the old one. Then it moves the files into
place, in one commit. An interrupted rebuild changes nothing before that, and the next attempt
starts over.

Rebuilding `raw_events` rebuilds all tables. Each is swapped in separately, `raw_events` last.
Therefore the feed is read only up to the old position of `raw_events`, even if the node has more: a
derived table that is in place already also fits the old `raw_events`, and is not ahead of it.
A `raw_events` that went on from another node cannot be rebuilt.
Wherever this is interrupted, `spark-sink run` continues. If `raw_events` is missing or behind the
other tables, it is swapped in first, and includes everything the node has.

To forget streams, they are put on a list beside the tables first, so that what comes of them later
is left out as well, also when `raw_events` is rebuilt. In `raw_events` their rows stay, without
their bytes: its positions have no gaps, and its CIDs say which events of a node it has. From all
other tables, and from views, their rows go. Then the files, changes and log entries of older
versions are deleted, at once, whoever may be reading them. Wherever this is interrupted, the next
call does all of it again.

All functions raise `TablesError` if there are no such tables, or they cannot be read or written.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from recon_node.ceramic.auth.did import did_spellings
from spark_sink.derive.child_process import COMMAND
from spark_sink.derive.derivation import Derivation
from spark_sink.derive.workers import NoWorkers
from spark_sink.errors import SinkError, TablesError, cannot_write
from spark_sink.schema import DERIVED, RAW, TABLES, UNPROCESSED, partition_of
from spark_sink.source.feed_client import Feed
from spark_sink.tables import retention
from spark_sink.tables.catalog import (
    are_without_dags,
    find_own_table,
    no_tables,
    open_delta,
    path_of,
    spec_of,
)
from spark_sink.tables.delta_log import epoch_of, has_changed_logs, position_of, query
from spark_sink.tables.location import Location, delete_below, faults_as
from spark_sink.tables.placement import LeaveOut, forgotten_streams, leave_out_for_good
from spark_sink.tables.retention import Retention
from spark_sink.tables.sink_table import SinkTable
from spark_sink.tables.tables import STAGING_DIR, Tables, delete_abandoned

REBUILD_DIR: Final = "_rebuild"
_ROWS_PER_READ: Final = 50_000

OnProgress = Callable[[str, int, int], None]


def optimize(directory: Location, names: Sequence[str]) -> dict[str, int]:
    """Sort tables and views by stream, into few files; return how many each has. No names: all.

    Then a stream's history is one small read.
    """
    tables = _tables(directory, names)
    with faults_as(partial(cannot_write, directory)):
        return {name: retention.optimize(table) for name, table in tables.items()}


def vacuum(
    directory: Location, names: Sequence[str], hours: float | None, *, dry_run: bool
) -> dict[str, int]:
    """Delete files that only versions older than `hours` need; return how many, by table."""
    tables = _tables(directory, names)
    with faults_as(partial(cannot_write, directory)):
        if not dry_run:
            delete_abandoned(directory)
        return {
            name: len(retention.vacuum(path_of(directory, name), table, hours, dry_run=dry_run))
            for name, table in tables.items()
        }


def rebuild(
    directory: Location, name: str, feed: Feed | None, on_progress: OnProgress
) -> dict[str, int]:
    """Rebuild a table; with `raw_events` all others, too, because they are computed from it.

    `raw_events` is read from the `feed`. `on_progress` is called with a table's name, its position
    and its goal. Returns the position of each table that was rebuilt. If this fails, each table is
    either the old one or the new one.
    """
    beside = directory / REBUILD_DIR
    with faults_as(partial(cannot_write, directory)):
        delete_below(directory, REBUILD_DIR)
        try:
            if name == RAW:
                return _rebuild_all(directory, beside, feed, on_progress)
            return _rebuild_one(directory, beside, name, on_progress)
        finally:
            delete_below(directory, REBUILD_DIR)


def _rebuild_one(
    directory: Location, beside: Location, name: str, on_progress: OnProgress
) -> dict[str, int]:
    raw = find_own_table(directory / RAW)
    if raw is None:
        if not any(find_own_table(directory / derived) for derived in DERIVED):
            raise no_tables(directory)
        raise TablesError(f"there is no table raw_events in {directory} to rebuild {name} from")
    find_own_table(directory / name)  # reports damage before any work is done
    # Which streams are set aside shows when the tables are computed.
    names = DERIVED if name == UNPROCESSED else (name, UNPROCESSED)
    new = Tables(beside, epoch_of(raw), names, raw=directory)
    for table in new.derived.values():
        table.set_retention(Retention(0.0))
    _derive(new, [name], on_progress)
    if name == UNPROCESSED:  # the other tables still lack the streams that it has
        with suppress(TablesError):  # unless it cannot be read
            kept = _old(directory, new, name).select("*", "reason IS NOT NULL")
            new.derived[name].put(kept, new.derived[name].position)
    _note_set_aside(directory, new)
    _swap(directory, new, name)
    return {name: new.derived[name].position}


def _rebuild_all(
    directory: Location, beside: Location, feed: Feed | None, on_progress: OnProgress
) -> dict[str, int]:
    if feed is None:
        raise SinkError("raw_events is rebuilt from a node's feed: name it with --url")
    known = {name: table for name in TABLES if (table := find_own_table(directory / name))}
    if not known:
        raise no_tables(directory)
    if RAW in known and has_changed_logs(known[RAW]):
        raise SinkError(
            f"raw_events in {directory} was filled from several nodes, and none has the events in "
            "this order: it cannot be rebuilt. Run spark-sink with a new directory instead, and it "
            "reads all events again"
        )
    head = feed.head(patience=0)
    positions = {name: position_of(table) for name, table in known.items()}
    for name, position in positions.items():
        feed.check(position, epoch_of(known[name]), head)
    derived = [name for name in DERIVED if name in known or name == UNPROCESSED]
    old = positions.get(RAW, 0)
    raw_first = RAW not in known or max(positions.values()) > old
    upto = head.head if raw_first else old
    excluded = are_without_dags(known)
    new = Tables(beside, head.epoch, derived, forgotten=directory, exclude_dags=excluded)
    new.set_retention(Retention(0.0))
    while new.raw_position < upto:
        end = min(new.raw_position + _ROWS_PER_READ, upto)
        new.append(pa.Table.from_batches(feed.read(new.raw_position, end, head.epoch)))
        new.raw.tidy(idle=True)
        on_progress(RAW, new.raw_position, upto)
    _derive(new, derived, on_progress)
    _note_set_aside(directory, new)
    for name in (RAW, *derived) if raw_first else (*derived, RAW):
        _swap(directory, new, name)
    return {RAW: new.raw_position, **{name: new.derived[name].position for name in derived}}


def _derive(new: Tables, shown: Collection[str], on_progress: OnProgress) -> None:
    derivation = Derivation(new, NoWorkers(COMMAND))
    while new.position < new.raw_position:
        derivation.catch_up(steps=1)
        for name, table in new.derived.items():
            table.tidy(idle=True)
            if name in shown:
                on_progress(name, table.position, new.raw_position)
    derivation.close()


def _note_set_aside(directory: Location, new: Tables) -> None:
    """Note the streams that new tables lack, before these are in their places."""
    if (rows := new.derived[UNPROCESSED].select("*", "true")).num_rows:
        noted = _old(directory, new, UNPROCESSED)
        noted.put(rows, noted.position)


def _swap(directory: Location, new: Tables, name: str) -> None:
    _old(directory, new, name).replace(new.table(name))


def _old(directory: Location, new: Tables, name: str) -> SinkTable:
    spec, excluded = TABLES[name], new.excludes_dags
    return SinkTable(spec, directory / name, new.epoch, exclude_dags=excluded, for_replacement=True)


def _tables(directory: Location, names: Sequence[str]) -> dict[str, DeltaTable]:
    tables = open_delta(directory)
    if not tables:
        raise no_tables(directory)
    if missing := [name for name in names if name not in tables]:
        raise TablesError(
            f"there is no table {', '.join(missing)} in {directory}, but {', '.join(tables)}"
        )
    return {name: table for name, table in tables.items() if not names or name in names}


def streams_of(directory: Location, controllers: Collection[str]) -> dict[bytes, str]:
    """Return the streams of some controllers by CID, with its controller as events spell it."""
    spelled = (spelling for did in controllers for spelling in did_spellings(did))
    quoted = ", ".join("'" + did.replace("'", "''") + "'" for did in spelled)
    streams: dict[bytes, str] = {}
    for name, table in open_delta(directory).items():
        if name in DERIVED and controllers:
            sql = f"SELECT DISTINCT stream_cid, controller FROM t WHERE controller IN ({quoted})"
            streams.update(zip(*query(table, sql).to_pydict().values(), strict=True))
    return streams


def forget(directory: Location, streams: Collection[bytes]) -> dict[str, int]:
    """Forget streams, by their CIDs; return how many rows of each table are changed or gone."""
    tables = _tables(directory, ())
    leave_out_for_good(directory, frozenset(streams))
    all_ = forgotten_streams(directory)
    leave_out, partitions = LeaveOut(streams=all_), set(map(partition_of, all_))
    theirs = pc.field("stream_cid").isin(pa.array(all_, pa.binary()))
    with_bytes = theirs & (pc.binary_length(pc.field("car")) > 0)

    def emptied(rows: pa.Table) -> pa.Table:
        return pa.Table.from_batches(map(leave_out, rows.to_batches()), rows.schema)

    def without(rows: pa.Table) -> pa.Table:
        return rows.filter(~theirs)

    rows: dict[str, int] = {}
    with faults_as(partial(cannot_write, directory)):
        delete_below(directory, STAGING_DIR)
        delete_below(directory, REBUILD_DIR)
        for name, delta in tables.items():
            path, spec = path_of(directory, name), spec_of(name, delta)
            table = SinkTable(spec, path, epoch_of(delta), for_replacement=True)
            wanted, change = (with_bytes, emptied) if name == RAW else (theirs, without)
            rows[name] = table.forget(partitions, wanted, change)
            table.forget_old_versions()
    return rows
