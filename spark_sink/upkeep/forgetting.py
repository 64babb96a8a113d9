"""Forgets streams: removes what the tables have of them, now and in all older versions.

Theory of operation. The streams are put on a list beside the tables first, so that what comes of
them later is left out as well, also when `raw_events` is rebuilt. In `raw_events` their rows stay,
without their bytes: its positions have no gaps, and its CIDs say which events of a node it has.
From all other tables, and from views, their rows go. Then the files, changes and log entries of
older versions are deleted, at once, whoever may be reading them. Wherever this is interrupted, the
next call does all of it again.
"""

from collections.abc import Callable, Collection
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_sink.errors import cannot_write
from spark_sink.schema import DERIVED, RAW
from spark_sink.tables.dags import LeaveOut, forgotten_streams, leave_out_for_good
from spark_sink.tables.delta import DeltaStore
from spark_sink.tables.delta_files import query
from spark_sink.tables.delta_state import epoch_of
from spark_sink.tables.directory import STAGING_DIR
from spark_sink.tables.location import FAULTS, Location, delete_below
from spark_sink.tables.status import no_tables, open_delta
from spark_sink.tables.views import path_of, spec_of

Change = Callable[[pa.Table], pa.Table]
_REBUILD_DIR: Final = "_rebuild"


def streams_of(directory: Location, controllers: Collection[str]) -> set[bytes]:
    """Return the streams of some controllers, by their CIDs.

    Raises:
        TablesError: a table cannot be read.
    """
    quoted = ", ".join("'" + did.replace("'", "''") + "'" for did in controllers)
    found: set[bytes] = set()
    for name, table in open_delta(directory).items():
        if name in DERIVED and controllers:
            sql = f"SELECT DISTINCT stream_cid FROM t WHERE controller IN ({quoted})"
            found.update(query({"t": table}, sql)["stream_cid"].to_pylist())
    return found


def forget(directory: Location, streams: Collection[bytes]) -> dict[str, int]:
    """Forget streams, by their CIDs; return how many rows of each table are changed or gone.

    Raises:
        TablesError: a table cannot be read or written. The next call does all of it again.
    """
    tables = open_delta(directory)
    if not tables:
        raise no_tables(directory)
    leave_out_for_good(directory, frozenset(streams))
    all_ = forgotten_streams(directory)
    rows: dict[str, int] = {}
    try:
        delete_below(directory, STAGING_DIR)
        delete_below(directory, _REBUILD_DIR)
        for name, table in tables.items():
            path, spec = path_of(directory, name), spec_of(name, table)
            store = DeltaStore(spec, path, epoch_of(table), for_replacement=True)
            rows[name] = store.forget(all_, _emptied(all_) if name == RAW else _without(all_))
            store.forget_history()
    except FAULTS as error:
        raise cannot_write(directory, error) from error
    return rows


def _emptied(streams: frozenset[bytes]) -> Change:
    leave_out = LeaveOut(streams=streams)
    return lambda rows: pa.Table.from_batches(map(leave_out, rows.to_batches()), rows.schema)


def _without(streams: frozenset[bytes]) -> Change:
    cids = pa.array(streams, pa.binary())
    return lambda rows: rows.filter(pc.invert(pc.is_in(rows["stream_cid"], cids)))
