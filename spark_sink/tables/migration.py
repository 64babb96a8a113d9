"""Columns that later versions of the pipeline have added to tables."""

from collections.abc import Iterable
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable, Schema

from spark_sink.errors import TablesError, other_columns
from spark_sink.schema import RAW, TableSpec
from spark_sink.tables.delta_files import query
from spark_sink.tables.location import Location

# Columns that tables of earlier versions lack. Null is right, but for time events without the
# columns about their anchors.
_ANCHOR_COLUMNS: Final = frozenset({"time", "chain_id"})
_ADDED_COLUMNS: Final = {
    RAW: _ANCHOR_COLUMNS | {"delivered_at", "fault"},
    "conclusion_events": frozenset({"fault"}),
}


def add_missing_columns(spec: TableSpec, table: DeltaTable, path: Location) -> None:
    """Add columns that a table of an older version lacks.

    Raises:
        TablesError: it has other columns, or its rows would not be correct.
    """
    there = _columns(table)
    if there == _sorted(spec.schema):
        return
    missing = _ADDED_COLUMNS.get(spec.name, frozenset()) - {field.name for field in there}
    added = [field for field in spec.schema if field.name in missing]
    if _sorted([*there, *added]) != _sorted(spec.schema):
        raise other_columns(path)
    if not missing.isdisjoint(_ANCHOR_COLUMNS):
        _check_anchors(table, path)
    table.alter.add_columns(Schema.from_arrow(pa.schema(added)).fields)


def _check_anchors(table: DeltaTable, path: Location) -> None:
    """Check that a table without the columns about anchors has no time events."""
    anchors = query({"t": table}, "SELECT count(*) AS n FROM t WHERE event_type = 'time'")
    if count := anchors["n"].to_pylist()[0]:
        raise TablesError(
            f"the table {path} was written by an older version, without the anchor times "
            f"of its {count} time events: read the feed again with spark-sink "
            f"rebuild {RAW} --tables {path.parent} --url URL"
        )


def _columns(table: DeltaTable) -> list[pa.Field]:
    return _sorted(pa.schema(table.schema().to_arrow()))


def _sorted(fields: Iterable[pa.Field]) -> list[pa.Field]:
    return sorted(fields, key=lambda field: str(field.name))
