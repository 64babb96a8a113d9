"""What a Delta table knows about itself: the log it was made from, its position, its rules.

These are properties of the table, and application transactions of its commits.

`raw_events` may go on from another log than the one it was made from. Then the property
`recon.reading` names the log that it is filled from, and commits have the position that was read up
to in this log in an application transaction of its own. Without the property, both logs, and both
positions, are the same. Columns that later versions of the pipeline have added are added here, too.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable, Schema

from spark_sink.errors import TablesError, another_log, cannot_open, other_columns
from spark_sink.schema import PARTITION_COLUMN, RAW, TableSpec
from spark_sink.tables.delta_files import query
from spark_sink.tables.location import (
    FAULTS,
    Location,
    delta_uri,
    is_delta,
    open_delta_table,
    storage_options,
)

_EPOCH: Final = "recon.epoch"
# What was left out of a table, by `spark_sink.tables.dags`.
_EXCLUDED: Final = "recon.excluded"
_DAGS: Final = "dags"
#: What follows in the name of the transaction that counts how often rows were forgotten.
FORGOT: Final = "/forgot"
#: The property with the log that the table is filled from, if it is not the one it was made from.
READING_PROPERTY: Final = "recon.reading"
#: The property with the version of the rules that computed the rows.
RULES_PROPERTY: Final = "recon.rules"
#: The property of a view with its model's StreamID.
MODEL_PROPERTY: Final = "recon.model"
#: Properties of every table.
PROPERTIES: Final = {"delta.enableChangeDataFeed": "true"}


@dataclass(frozen=True, slots=True)
class Reading:
    """The log that a table is filled from, and up to which position the table has its events."""

    epoch: str
    position: int


def identity_of(table: DeltaTable) -> str:
    """Return what tells a table from any other, and from itself before rows of it were forgotten.

    After rows were forgotten, those who follow it start over, so that their copies lose them, too.
    """
    name, times = str(table.metadata().id), times_forgot(table)
    return f"{name}/{times}" if times else name


def times_forgot(table: DeltaTable) -> int:
    """Return how often rows of a table were forgotten."""
    return table.transaction_version(app_id(epoch_of(table)) + FORGOT) or 0


def epoch_of(table: DeltaTable) -> str:
    """Return the log that a table was made from; empty for a table of someone else."""
    return table.metadata().configuration.get(_EPOCH) or ""


def position_of(table: DeltaTable, epoch: str) -> int:
    """Return the feed position of a table."""
    return table.transaction_version(app_id(epoch)) or 0


def excludes_dags(table: DeltaTable) -> bool:
    """Return whether a table was made without the events of DAGs."""
    return table.metadata().configuration.get(_EXCLUDED) == _DAGS


def has_changed_logs(table: DeltaTable) -> bool:
    """Return whether a table ever went on from another log than the one it was made from."""
    return READING_PROPERTY in table.metadata().configuration


def reading_of(table: DeltaTable, epoch: str) -> Reading:
    """Return how far a table, made from the log `epoch`, has got in the log that is read now."""
    read = table.metadata().configuration.get(READING_PROPERTY)
    if not read:
        return Reading(epoch, position_of(table, epoch))
    return Reading(read, table.transaction_version(app_id(epoch) + read_suffix(read)) or 0)


def open_table(
    spec: TableSpec, path: Location, epoch: str, *, exclude_dags: bool = False
) -> DeltaTable:
    """Open the table `spec` of the log `epoch`; create it if there is none.

    A new table is noted to be without the events of DAGs if `exclude_dags`.

    Raises:
        FeedChangedError: it was made from another log.
        TablesError: it is damaged, or was not made by spark-sink.
    """
    try:
        if not is_delta(path):
            rules = {} if spec.rules is None else {RULES_PROPERTY: str(spec.rules)}
            excluded = {_EXCLUDED: _DAGS} if exclude_dags else {}
            model = {} if spec.model is None else {MODEL_PROPERTY: spec.model}
            return DeltaTable.create(
                delta_uri(path),
                schema=spec.schema,
                partition_by=[PARTITION_COLUMN],
                name=spec.name,
                configuration={_EPOCH: epoch, **rules, **excluded, **model, **PROPERTIES},
                raise_if_key_not_exists=False,
                storage_options=storage_options(path),
            )
        table = open_delta_table(path)
    except FAULTS as error:
        raise cannot_open(path, error) from error
    made_from = epoch_of(table)
    if made_from != epoch:
        raise another_log(path, made_from, epoch)
    return table


def rules_of(table: DeltaTable) -> int | None:
    """Return the version of the rules that computed the rows of a table."""
    text = table.metadata().configuration.get(RULES_PROPERTY) or ""
    return int(text) if text.isdecimal() else None


def app_id(epoch: str) -> str:
    """Return the name of the application transaction with a table's position."""
    return f"spark-sink/{epoch}"


def read_suffix(epoch: str) -> str:
    """Return what follows in the name of the transaction with the position read in a log."""
    return f"/read/{epoch}"


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
