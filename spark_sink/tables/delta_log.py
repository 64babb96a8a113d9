"""What the log of a Delta table says: its properties, its feed position, its files and commits.

The node's log that a table was made from and its rules are properties of the table. Every commit
that advances the table carries a Delta *application transaction*: its name has the epoch of that
log, its version is the feed position that the table now includes. Delta commits both or neither, so
the table itself knows its position, whatever happens to Spark's checkpoint. And of two processes
that write one table, which in an object store nothing prevents, the second to commit is refused.

`raw_events` may go on from another log than the one it was made from. Then the property
`recon.reading` names the log that it is filled from, and commits have the position that was read up
to in this log in an application transaction of its own. Without the property, both logs, and both
positions, are the same.
"""

import json
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, Transaction
from deltalake.transaction import AddAction, RemoveAction

from spark_sink.errors import cannot_read
from spark_sink.schema import PARTITION_COLUMN, TableSpec
from spark_sink.tables.location import Location, file_system, location_of, put_if_absent
from spark_sink.tables.staging import DataFile

EPOCH_PROPERTY: Final = "recon.epoch"
"""The property with the log that the table was made from."""
READING_PROPERTY: Final = "recon.reading"
"""The property with the log that the table is filled from, if it went on from another one."""
RULES_PROPERTY: Final = "recon.rules"
"""The property with the version of the rules that computed the rows."""
MODEL_PROPERTY: Final = "recon.model"
"""The property of a view with its model's StreamID."""
EXCLUDED_PROPERTY: Final = "recon.excluded"
"""The property with what was left out of a table, by `spark_sink.tables.placement`: `DAGS`."""
DAGS: Final = "dags"
_REPLACED: Final = "/forgot"
"""What follows in the name of the transaction that counts how often rows were forgotten, those of
streams that were set aside inserted, or all of them replaced by a rebuild."""
PROPERTIES: Final = {"delta.enableChangeDataFeed": "true"}
"""Properties of every table."""
LOG: Final = "_delta_log"
"""The directory of the log."""
CHANGE_DATA: Final = "_change_data"
"""The directory of the change data feed."""
CHANGE_TYPE: Final = "_change_type"
"""The column of the feed that says what became of a row."""
PARTITION: Final = f"partition.{PARTITION_COLUMN}"
"""The partition of a file, among the facts that delta-rs has about it."""
_PLAIN_TYPES: Final = {pa.binary_view(): pa.binary(), pa.string_view(): pa.string()}

Action = dict[str, dict[str, Any]]
"""What a commit does with a file, as the log has it."""
FileActions = list[AddAction | RemoveAction]
"""What a commit does with files, as delta-rs takes it."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The log that a table is filled from, and up to which position the table has its events."""

    epoch: str
    position: int


def identity_of(table: DeltaTable) -> str:
    """Return what distinguishes a table from others, and from itself before rows were replaced.

    After that, those who follow the table start over: so their copies have the new rows, and lose
    those that are gone.
    """
    name, times = str(table.metadata().id), version_of(table, _REPLACED)
    return f"{name}/{times}" if times else name


def replacing(table: DeltaTable) -> dict[str, int]:
    """Return the transaction of a commit after which a table has another identity."""
    return {_REPLACED: (version_of(table, _REPLACED) or 0) + 1}


def epoch_of(table: DeltaTable) -> str:
    """Return the log that a table was made from; empty for a table of someone else."""
    return table.metadata().configuration.get(EPOCH_PROPERTY) or ""


def position_of(table: DeltaTable) -> int:
    """Return the feed position of a table."""
    return version_of(table, "") or 0


def version_of(table: DeltaTable, suffix: str) -> int | None:
    """Return the version of a table's application transaction with this end of its name."""
    return table.transaction_version(app_id(epoch_of(table)) + suffix)


def excludes_dags(table: DeltaTable) -> bool:
    """Return whether a table was made without the events of DAGs."""
    return table.metadata().configuration.get(EXCLUDED_PROPERTY) == DAGS


def has_changed_logs(table: DeltaTable) -> bool:
    """Return whether a table ever went on from another log than the one it was made from."""
    return READING_PROPERTY in table.metadata().configuration


def reading_of(table: DeltaTable) -> Reading:
    """Return how far a table has got in the log that is read now."""
    read = table.metadata().configuration.get(READING_PROPERTY)
    if not read:
        return Reading(epoch_of(table), position_of(table))
    return Reading(read, version_of(table, read_suffix(read)) or 0)


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


def data_files(table: DeltaTable, spec: TableSpec, location: Location) -> list[DataFile]:
    """List the files of a table that this version of the pipeline wrote."""
    order = spec.order
    facts = (PARTITION, "num_records", "size_bytes", f"min.{order}", f"max.{order}")
    return [
        DataFile(location, path, partition, count, size, order, first, last)
        for path, partition, count, size, first, last in listed(table, *facts)
    ]


def listed(table: DeltaTable, *facts: str) -> Iterator[tuple[Any, ...]]:
    """Yield the name of each file, relative to the table, and facts about it from the log."""
    files = pa.table(table.get_add_actions(flatten=True))
    names = map(unquote, files["path"].to_pylist())
    return zip(names, *(files[fact].to_pylist() for fact in facts), strict=True)


def names_of(table: DeltaTable) -> list[str]:
    """Return the names of the table's files, relative to the table."""
    return [name for (name,) in listed(table)]


def read_commit(location: Location, version: int) -> list[dict[str, Any]]:
    """Return the entries of a commit; raise FileNotFoundError if the log begins later."""
    with file_system(location).open_input_stream(f"{LOG}/{version:020}.json") as stream:
        return [json.loads(line) for line in stream.read().splitlines()]


def put_commit(
    path: Location, version: int, transactions: Iterable[Transaction], actions: Iterable[Action]
) -> None:
    """Commit a version of a table; raise FileExistsError if it exists."""
    info = {"timestamp": now(), "operation": "MERGE", "operationParameters": {}}
    entries: list[Mapping[str, object]] = [
        {"commitInfo": {**info, "txnId": str(uuid.uuid4())}},  # no two commits have the same bytes
        *({"txn": {"appId": done.app_id, "version": done.version}} for done in transactions),
        *actions,
    ]
    data = "".join(json.dumps(entry) + "\n" for entry in entries).encode()
    put_if_absent(path, f"{LOG}/{version:020}.json", data)


def added(file: DataFile, *, is_new: bool = True) -> AddAction:
    """Return the action of a commit that adds a file."""
    stats = {
        "numRecords": file.rows,
        "minValues": {file.order: file.first},
        "maxValues": {file.order: file.last},
        "nullCount": {file.order: 0},
    }
    values: dict[str, str | None] = {PARTITION_COLUMN: str(file.partition)}
    return AddAction(file.path, file.size, values, now(), is_new, json.dumps(stats))


def removed(file: DataFile, *, is_change: bool = True) -> RemoveAction:
    """Return the action of a commit that removes a file."""
    values: dict[str, str | None] = {PARTITION_COLUMN: str(file.partition)}
    return RemoveAction(file.path, is_change, now(), file.size, values)


def properties_of(spec: TableSpec, epoch: str, *, exclude_dags: bool) -> dict[str, str]:
    """Return the properties of a new table of the log `epoch`."""
    return {
        EPOCH_PROPERTY: epoch,
        **({} if spec.rules is None else {RULES_PROPERTY: str(spec.rules)}),
        **({EXCLUDED_PROPERTY: DAGS} if exclude_dags else {}),
        **({} if spec.model is None else {MODEL_PROPERTY: spec.model}),
        **PROPERTIES,
    }


def now() -> int:
    """Return the time in milliseconds, as the log has it."""
    return round(time.time() * 1000)


def query(table: DeltaTable, sql: str) -> pa.Table:
    """Return the answer of delta-rs's DataFusion to a SELECT from the table `t`.

    It has plain text and binary columns. Not `DeltaTable.to_pyarrow_table`: a process that used it
    was seen to abort when it ended.
    """
    try:
        answer = pa.table(QueryBuilder().register("t", table).execute(sql).read_all())
    except Exception as error:  # the reader of the answer raises no class of its own
        raise cannot_read(location_of(table.table_uri, {}), error) from error
    return answer.cast(pa.schema([_plain(field) for field in answer.schema]))


def _plain(field: pa.Field) -> pa.Field:
    kind = field.type
    if pa.types.is_map(kind):
        kind = pa.map_(_plain(kind.key_field).type, _plain(kind.item_field))
    elif pa.types.is_list(kind):
        kind = pa.list_(_plain(kind.value_field))
    elif pa.types.is_struct(kind):
        kind = pa.struct([_plain(member) for member in kind])
    else:
        kind = _PLAIN_TYPES.get(kind, kind)
    return field.with_type(kind)
