"""The rows of a feed, as they come: those that a table has, and then each that is new or changes.

A reader opens the table's latest version again and again, and shows DuckDB a step's rows at a time.

- In `raw_events`, `conclusion_events` and `event_states`, a row is an event. New ones come in the
  order of their positions, in windows of positions. If the rows of a window do not fit in memory,
  the window becomes smaller. So a client that notes the position of the last row can continue
  behind it.
- In `stream_tips` and `stream_states`, a row is a stream, and changes. First come the rows that the
  table has, by their positions. Then the change data feed of each commit says what is new.
- Rows of `event_states` change too, when the stream's model gets an event. They come again.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from spark_sink.errors import RequestError
from spark_sink.query.changes import APPENDED, GoneError, changed_rows
from spark_sink.serve.database import Database
from spark_sink.serve.statement import FEED
from spark_sink.tables.delta_log import data_files, identity_of, position_of

_POSITIONS_PER_STEP: Final = 50_000
"""Positions per step, at most."""
_POLL: Final = 0.2
"""Seconds between two looks at a table on a disk."""
_STORE_POLL: Final = 1.0
"""Seconds between two looks at a table in an object store."""
_POLLS_PER_OPEN: Final = 25


class ServedFeed:
    """The feed of one of the pipeline's tables."""

    def __init__(
        self, database: Database, name: str, wait: Callable[[float], None] = time.sleep
    ) -> None:
        self._database = database
        self._spec = database.specs[name]
        self._wait = partial(wait, _POLL if database.is_local else _STORE_POLL)
        self._window = _POSITIONS_PER_STEP
        self._repeat = False

    def shrink(self) -> bool:
        """Let the next step repeat this one with fewer rows; return whether it can have fewer."""
        self._repeat = self._window > 1
        self._window = max(1, self._window // 4)
        return self._repeat

    def steps(self) -> Iterator[None]:
        """Yield, for ever, when DuckDB has the next rows in the feed's table.

        Raises:
            RequestError: the table was made anew.
            TablesError: it cannot be read.
        """
        while (table := self._database.open(self._spec.name)) is None:
            self._wait()
        with self._database.held(table) as hold:
            yield from self._steps(table, hold)

    def _steps(self, table: DeltaTable, hold: Callable[[int], None]) -> Iterator[None]:
        identity, version, last, polls = identity_of(table), -1, 0, 0
        while True:
            position = position_of(table)
            if identity_of(table) != identity or table.version() < version or position < last:
                raise RequestError(
                    "UNAVAILABLE",
                    f"the table {self._spec.name} was made anew: start the feed again from its "
                    "beginning",
                )
            if table.version() == version:
                polls += 1
                self._wait()
                table.update_incremental()
                if polls % _POLLS_PER_OPEN == 0:  # only this notices that it was made anew
                    table = self._database.open(self._spec.name) or table
                continue
            if version < 0 or self._spec.rows_are_events:
                yield from self._windows(table, last, position)
            if version >= 0 and self._spec.name not in APPENDED:
                for commit in range(version + 1, table.version() + 1):
                    yield from self._changes(table, commit)
            version, last = table.version(), position
            hold(version)

    def _windows(self, table: DeltaTable, after: int, upto: int) -> Iterator[None]:
        """Show the rows between two positions."""
        order = self._spec.order
        files = data_files(table, self._spec, self._database.location)
        if not self._spec.rows_are_events:  # a step under way has written rows of later positions
            upto = max((file.last or 0 for file in files), default=0)
        while after < upto:
            end = min(after + self._window, upto)
            within = [
                file.path
                for file in files
                if (file.first or 0) <= end and (file.last is None or file.last > after)
            ]
            where = f"WHERE {order} > {after} AND {order} <= {end} ORDER BY {order}"
            if within:
                self._database.show_files(self._spec.name + FEED, table, within, where)
                yield
            if not self._repeat:
                after = end
            self._repeat = False

    def _changes(self, table: DeltaTable, version: int) -> Iterator[None]:
        """Show the rows that a commit has changed, and, in tables of streams, added."""
        updated: dict[str, list[pa.Table]] = {"update_preimage": [], "update_postimage": []}
        try:
            for rows, kinds in changed_rows(table, version, self._spec.schema):
                if not self._spec.rows_are_events:
                    yield from self._show(rows.filter(pc.equal(kinds, "insert")))
                for kind, parts in updated.items():
                    parts.append(rows.filter(pc.equal(kinds, kind)))
        except GoneError as error:
            raise RequestError(
                "UNAVAILABLE",
                f"this feed is too far behind: the changes of {self._spec.name} in version "
                f"{version} cannot be read any more; start it again ({error})",
            ) from error
        if all(updated.values()):
            old, new = map(pa.concat_tables, updated.values())
            yield from self._show(_differing(old, new, self._spec.key))

    def _show(self, rows: pa.Table) -> Iterator[None]:
        if rows.num_rows:
            self._database.show_rows(self._spec.name + FEED, rows.sort_by(self._spec.order))
            yield


def _differing(old: pa.Table, new: pa.Table, key: str) -> pa.Table:
    before = {row[key]: row for row in old.to_pylist()}
    return new.filter(
        pa.array([before.get(row[key]) != row for row in new.to_pylist()], pa.bool_())
    )
