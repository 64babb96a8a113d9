"""Views of models, which follow the table `stream_states`.

Theory of operation. A view is a table of its own, with a row for each document of its model. Each
of its commits names the version of `stream_states` up to which it has followed that table, as
`spark-sink changes` does: so it goes on after any crash, and where it cannot, because the changes
are not kept any more or the table was rebuilt, it is filled anew in one commit. So it is when a
later version of its model has other columns. Only the process that writes the tables fills views.

All functions raise `TablesError` if a view or a table is missing, or cannot be read or written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from recon_node.ceramic import StreamId, StreamType
from spark_sink.errors import ConflictError, TablesError, cannot_write, one_line
from spark_sink.query.changes import Changes, Token
from spark_sink.schema import (
    RAW,
    STATES,
    TABLES,
    TANGLES,
    TableSpec,
    partition_of,
    view_schema,
)
from spark_sink.tables.catalog import NAME, VIEWS, no_tables, open_view, view_names
from spark_sink.tables.delta_log import epoch_of, position_of, query
from spark_sink.tables.location import (
    FAULTS,
    Location,
    delete_below,
    faults_as,
    find_delta_table,
    is_delta,
)
from spark_sink.tables.retention import Retention
from spark_sink.tables.sink_table import SinkTable
from spark_sink.views.model_columns import MAX_VALUES, Columns, Misfit

_MAX_SHOWN: Final = 80
"""Characters of a name that an error quotes."""
_MERGE_BYTES: Final = 32 * 1024 * 1024
"""Bytes of rows that are converted and merged at once."""
_FREE_VALUES: Final = 1_000
"""Values that a row may have beside one for each byte of its content."""
_VALUES_AT_ONCE: Final = 500_000
"""Values of rows that are converted at once."""
_BATCH_STATES: Final = 64
"""Rows of which the content is taken out of Arrow at once."""
_MAX_CONTAINERS: Final = 200_000
"""Objects and lists in content that is converted; each takes 60 bytes or more meanwhile."""


def create_view(directory: Location, model: StreamId, name: str | None) -> str:
    """Create an empty view of a model; return its name, by default the model's in lower case."""
    if model.type != StreamType.MODEL:
        raise TablesError(f"{model} is not the StreamID of a model")
    states = Changes(directory, STATES, None)
    definition = _definition(states, model)
    if definition is None:
        raise TablesError(
            f"the model {model} is not in the tables in {directory}: has the node its events, and "
            "has spark-sink run read them?"
        )
    if name is None:
        name = re.sub(r"\W+", "_", str(definition.get("name")), flags=re.ASCII).strip("_").lower()
    is_taken = name in (*TABLES, TANGLES) or name.endswith("_feed")
    if not NAME.fullmatch(name) or is_taken or name.startswith("spark_sink_"):  # tables of exports
        raise TablesError(
            f"{name[:_MAX_SHOWN]!r} cannot be the name of a view: choose another one with --as: "
            "one of a-z, and then up to 62 of a-z, 0-9 and _. It is not that of a table, does not "
            "end in _feed, and does not begin with spark_sink_"
        )
    if name in view_names(directory):
        raise TablesError(f"there is a view {name} already: choose another name with --as")
    schema = view_schema(Columns(definition).fields)
    spec = TableSpec(name, schema, "stream_cid", str(model))
    SinkTable(spec, directory / VIEWS / name, states.epoch)
    return name


def drop_view(directory: Location, name: str) -> None:
    """Delete a view."""
    open_view(directory, name)
    delete_below(directory, f"{VIEWS}/{name}")


def list_views(directory: Location) -> list[dict[str, Any]]:
    """Return all views among the tables in a directory: `name`, `model` and `position`, how many
    `rows` each has, and how many of them have values that do not fit, `misfits`."""
    counts = "count(*) AS rows, count(*) FILTER (WHERE array_length(misfits) > 0) AS misfits"
    views = []
    for spec, table in (open_view(directory, name) for name in view_names(directory)):
        (row,) = query(table, f"SELECT {counts} FROM t").to_pylist()
        facts = {"name": spec.name, "model": spec.model, "position": position_of(table)}
        views.append(facts | row)
    if not views and find_delta_table(directory / RAW) is None:
        raise no_tables(directory)
    return views


def _definition(states: Changes, model: StreamId) -> dict[str, Any] | None:
    """Return the latest definition of a model; None if there is none."""
    cid = bytes(model.cid)
    where = f"stream_cid_partition = {partition_of(cid)} AND stream_id = '{model}'"
    where += f" AND stream_type = {StreamType.MODEL.value}"
    contents = query(states.table, f"SELECT data FROM t WHERE {where}")["data"].to_pylist()
    content = _content(contents[0])[0] if contents else None
    return content if isinstance(content, dict) else None


def _content(data: bytes | None) -> tuple[Any, bool | None]:
    """Return a stream's content, and whether it should be indexed; None for what is unknown."""
    state = json.loads(data) if data is not None else {}
    return state.get("content"), state.get("metadata", {}).get("shouldIndex")


class Views:
    """The views among the tables in a directory, for the process that writes the tables.

    Args:
        directory: of the tables.
        retention: of the views; None: as it is.
        on_fault: called with the name of a view that cannot be written because of what it is to
            have, and the reason. That view then stays as it is until the next run, and the others
            go on. None: the fault is raised.
    """

    def __init__(
        self,
        directory: Location,
        retention: Retention | None = None,
        on_fault: Callable[[str, str], None] | None = None,
    ) -> None:
        self._directory = directory
        self._retention = retention
        self._on_fault = on_fault
        self._views: dict[str, _View] = {}
        self._aside: set[str] = set()
        self._seen: tuple[int, list[str]] | None = None

    def keep(self) -> int:
        """Bring all views to where `stream_states` is; return how many of their rows changed."""
        names = view_names(self._directory)
        if not names or not is_delta(self._directory / STATES):
            return 0
        states = Changes(self._directory, STATES, None)
        if self._seen == (states.token.version, names):
            return 0
        rows = 0
        self._aside.intersection_update(names)  # a view that was dropped can be created again
        for name in (name for name in names if name not in self._aside):
            try:
                rows += self._view(name).follow(states)
            except (TablesError, *FAULTS) as error:
                self._views.pop(name, None)
                if name in view_names(self._directory):
                    self._set_aside(name, error)
        self._views = {name: view for name, view in self._views.items() if name in names}
        self._seen = (states.token.version, names)
        return rows

    def fill(self, name: str) -> int:
        """Bring a new view to where `stream_states` is; return how many rows it has.

        If that fails, or is interrupted, the view is deleted.
        """
        with faults_as(partial(cannot_write, self._directory)):
            try:
                return self._view(name).follow(Changes(self._directory, STATES, None))
            except BaseException as error:
                if not isinstance(error, ConflictError):  # or else another process fills it
                    delete_below(self._directory, f"{VIEWS}/{name}")
                raise

    def _set_aside(self, name: str, error: Exception) -> None:
        """Leave a view out from now on, unless the cause is the disk, the store or a process."""
        cause = error.__cause__ or error
        if self._on_fault is None or isinstance(cause, (ConflictError, OSError)):
            raise error
        self._aside.add(name)
        self._on_fault(name, one_line(error))

    def _view(self, name: str) -> _View:
        spec, delta = open_view(self._directory, name)
        known, identity = self._views.get(name), str(delta.metadata().id)
        if known is None or known.identity != identity:  # or created again
            table = SinkTable(
                spec, self._directory / VIEWS / name, epoch_of(delta), for_replacement=True
            )
            if self._retention is not None:
                table.set_retention(self._retention)
            self._views[name] = _View(table, identity)
        return self._views[name]


class _View:
    """A view in the course of following `stream_states`."""

    def __init__(self, table: SinkTable, identity: str) -> None:
        self._table = table
        self._model = StreamId.parse(str(table.spec.model))
        self._columns: Columns | None = None
        self.identity = identity

    def follow(self, states: Changes) -> int:
        """Take in what has changed in `stream_states`; return how many rows of the view that were.

        `states` is that table as it is now, or was just now.
        """
        view, followed = self._table, states.token.table
        version = view.followed(followed)
        since = None if version is None else Token(followed, version, view.position)
        states = states.after(since)
        if self._columns is None and self._finds_columns(states):
            return self._replace_rows(states)
        if self._columns is None or states.token == since:
            return 0
        if since is None:
            return self._replace_rows(states)
        count = 0
        kept: list[pa.Table] = []
        has_model = False
        for kind, changed in states.rows():
            if kind == "reset":
                return self._replace_rows(states)
            has_model |= bytes(self._model.cid) in changed["stream_cid"].unique().to_pylist()
            mine = _of_model(changed, self._model)
            count += mine.num_rows
            kept.append(mine)
            if sum(part.nbytes for part in kept) > _MERGE_BYTES:
                view.put(self._rows(pa.concat_tables(kept)), view.position)
                kept = []
        if has_model and self._finds_columns(states):
            return self._replace_rows(states)
        rows = self._rows(pa.concat_tables(kept)) if kept else view.spec.schema.empty_table()
        view.put(rows, states.token.position, (followed, states.token.version))
        view.tidy(idle=True)
        return count

    def _finds_columns(self, states: Changes) -> bool:
        """Read the model's definition; return whether it has other columns than the view."""
        definition = _definition(states, self._model)
        if definition is None:
            return False
        self._columns = Columns(definition)
        return bool(view_schema(self._columns.fields) != self._table.spec.schema)

    def _replace_rows(self, states: Changes) -> int:
        assert self._columns is not None
        spec = replace(self._table.spec, schema=view_schema(self._columns.fields))
        token = states.token
        count = 0

        def rows() -> Iterator[pa.Table]:
            nonlocal count
            for batch in states.all_rows():
                mine = _of_model(batch, self._model)
                count += mine.num_rows
                yield self._rows(mine)

        self._table.replace_rows(spec, rows(), token.position, (token.table, token.version))
        self._table.tidy(idle=True)
        return count

    def _rows(self, states: pa.Table) -> pa.Table:
        """Convert rows of `stream_states` to rows of the view."""
        columns = self._columns
        assert columns is not None
        names = ("stream_id", "stream_cid", "controller", "event_cid", "position")
        schema = self._table.spec.schema
        done: list[pa.Table] = [schema.empty_table()]
        converted: list[dict[str, Any]] = []
        size = 0
        selected = states.select([*names, "data", "stream_cid_partition"])
        for batch in selected.to_batches(_BATCH_STATES):
            for row in batch.to_pylist():
                values, count = _values(columns, row)
                converted.append(values)
                size += count
                if size > _VALUES_AT_ONCE:
                    done.append(pa.Table.from_pylist(converted, schema=schema))
                    converted, size = [], 0
        return pa.concat_tables([*done, pa.Table.from_pylist(converted, schema=schema)])


def _values(columns: Columns, row: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Convert a row of `stream_states`; return how many values it has, too."""
    data = row.pop("data") or b"{}"
    misfits: list[Misfit] = []
    content, should_index = None, None
    if data.count(b"{") + data.count(b"[") > _MAX_CONTAINERS:
        misfits.append(("$", f"it has more than {_MAX_CONTAINERS:,} objects and lists"))
    else:
        content, should_index = _content(data)
    limit = min(_FREE_VALUES + len(data), MAX_VALUES)
    values, faults, count = columns.values(content, limit)
    reasons = [{"field": field, "reason": reason} for field, reason in (*misfits, *faults)]
    return {**row, "should_index": should_index, **values, "misfits": reasons}, count


def _of_model(states: pa.Table, model: StreamId) -> pa.Table:
    of = pc.map_lookup(states["dimensions"], pa.scalar("model"), "first")
    return states.filter(pc.equal(of, pa.scalar(model.to_bytes())))
