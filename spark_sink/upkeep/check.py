"""Checks that tables hold what they say: cheap for `status`, all files for `check`, and every row
for `check --deep`.

The log of a Delta table can lose a commit without any reader noticing: after a power cut, the file
of a commit may have length zero, and what it added is not in the table, though all that came later
is. But what a table says of itself shows it: `raw_events` has a row for each position, and so have
the other tables of events, unless streams are left out. Tables of streams have a row for each
stream of `raw_events` then. A table that cannot be opened is a `TablesError`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import PurePath
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from recon_node.base.terminal import counted
from recon_node.ipld import IpldError, car, multibase
from spark_sink.errors import one_line, remedy
from spark_sink.schema import DERIVED, RAW, TABLES, UNPROCESSED, TableSpec
from spark_sink.tables.catalog import TableStatus, are_without_dags, open_delta, path_of, spec_of
from spark_sink.tables.delta_log import LOG, data_files, position_of
from spark_sink.tables.location import FAULTS, Location, file_system, files_below
from spark_sink.tables.placement import forgotten_streams
from spark_sink.tables.retention import held
from spark_sink.tables.staging import DataFile

# Tables with a row for each event, or each stream, that is not left out.
_COMPLETE: Final = tuple(name for name in DERIVED if name != UNPROCESSED)
_ROWS: Final = 8_192

OnProgress = Callable[[str, int, int], None]


def check_counts(directory: Location, tables: Sequence[TableStatus]) -> list[str]:
    """Compare what tables say of themselves; return what is wrong, one line each.

    It reads no rows, and asks for one list of files per table.
    """
    return [
        f"{trouble}: {remedy(path_of(directory, name))}"
        for name, trouble in (*_empty_commits(directory, tables), *_counts(directory, tables))
    ]


def _empty_commits(directory: Location, tables: Sequence[TableStatus]) -> Iterator[tuple[str, str]]:
    for table in tables:
        for file in files_below(path_of(directory, table.name), LOG):
            path = PurePath(file.path)
            if file.size == 0 and path.suffix in (".json", ".parquet"):
                lost = f"{path.name} in the log of {table.name} is empty, so its rows are lost"
                yield table.name, lost


def _counts(directory: Location, tables: Sequence[TableStatus]) -> Iterator[tuple[str, str]]:
    by_name, opened = {table.name: table for table in tables}, open_delta(directory)
    if RAW not in by_name:
        yield RAW, f"{RAW} is missing, which the other tables are computed from"
    for name in (RAW, *_COMPLETE):
        if (table := by_name.get(name)) is None or not TABLES[name].rows_are_events:
            continue
        aside = by_name.get(UNPROCESSED)
        left_out = name != RAW and _may_leave_out(directory, opened, table.position, aside)
        if table.rows > table.position or (table.rows < table.position and not left_out):
            yield (
                name,
                f"{name} is at position {table.position} but has {counted(table.rows, 'row')}, and "
                f"should have {table.position}",
            )


def _may_leave_out(
    directory: Location, opened: Mapping[str, DeltaTable], position: int, aside: TableStatus | None
) -> bool:
    """Return whether a table at a position may lack streams, which are set aside or left out."""
    return (
        aside is None
        or aside.rows > 0
        or aside.position < position
        or are_without_dags(opened)
        or bool(forgotten_streams(directory))
    )


@contextmanager
def _held_tables(directory: Location) -> Iterator[dict[str, DeltaTable]]:
    """Provide all tables; what they have now stays for the block, also if `run` replaces it."""
    opened = open_delta(directory)
    with ExitStack() as holds:
        for name, table in opened.items():
            holds.enter_context(held(path_of(directory, name), table.version()))
        yield opened


def check_files(directory: Location) -> list[str]:
    """Compare the files that the tables name with those that are there; return what is wrong.

    It reads none of them, and asks for one list of files per table.
    """
    troubles: list[str] = []
    with _held_tables(directory) as opened:
        for name, table in opened.items():
            path = path_of(directory, name)
            sizes = {file.path: file.size for file in files_below(path)}
            files = data_files(table, spec_of(name, table), path)
            wrong = [file.path for file in files if sizes.get(file.path) != file.size]
            if wrong:
                troubles.append(
                    f"{name}: {len(wrong)} of {len(files)} files are missing or have another size, "
                    f"the first is {wrong[0]}: {remedy(path)}"
                )
    return troubles


def check_rows(
    directory: Location, tables: Sequence[TableStatus], on_progress: OnProgress
) -> list[str]:
    """Read every row of all tables; return what is wrong, one line each.

    Of each file, that it can be read and has as many rows as the log says; of each table, that its
    keys are unique; of `raw_events`, that each position is there, and each event is what its CID
    says; of the others, that they have the events and streams of `raw_events`, and no others.
    """
    aside = {table.name: table for table in tables}.get(UNPROCESSED)
    troubles: list[str] = []
    raw: _Rows | None = None
    upto = 0
    with _held_tables(directory) as opened:
        for name, table in opened.items():
            rows = _Rows(spec_of(name, table), path_of(directory, name))
            files = data_files(table, rows.spec, rows.path)
            for done, file in enumerate(files, 1):
                rows.read(file)
                on_progress(name, done, len(files))
            position = position_of(table)
            if name == RAW:
                raw, upto = rows, position
                rows.check_positions(position)
            elif raw and not raw.troubles and position <= upto:  # else `run` has gone on
                rows.check_streams(raw.streams)
                if name in _COMPLETE and not _may_leave_out(directory, opened, position, aside):
                    if rows.spec.rows_are_events:
                        rows.check_positions(position)
                    elif position == upto:
                        rows.check_complete(raw.streams)
            troubles += [*rows.troubles, *rows.check_keys()]
    return troubles


class _Rows:
    """What was read of a table."""

    def __init__(self, spec: TableSpec, path: Location) -> None:
        self.spec = spec
        self.path = path
        self.troubles: list[str] = []
        self.streams: set[bytes] = set()
        self._keys: list[np.ndarray] = []
        self._count = 0

    def read(self, file: DataFile) -> None:
        """Read a file."""
        columns = [*dict.fromkeys((self.spec.key, "stream_cid"))]
        is_raw = self.spec.name == RAW
        count = 0
        try:
            with pq.ParquetFile(file.path, filesystem=file_system(self.path)) as parquet:
                for batch in parquet.iter_batches(_ROWS):  # all columns: any may be damaged
                    count += batch.num_rows
                    keys, cids = (batch[column] for column in (columns[0], columns[-1]))
                    self.streams.update(cids.to_pylist())
                    if self.spec.rows_are_events:
                        self._keys.append(keys.to_numpy())
                    if is_raw:
                        self._check_events(batch)
        except FAULTS as error:
            self._wrong(f"{file.path} cannot be read ({one_line(error)})")
            return
        self._count += count
        if file.rows is not None and count != file.rows:
            self._wrong(f"{file.path} has {counted(count, 'row')}, and the log says {file.rows}")

    def check_positions(self, position: int) -> None:
        """Check that each position up to this one is there."""
        positions = np.unique(np.concatenate([np.empty(0, np.int64), *self._keys]))
        missing = np.setdiff1d(np.arange(1, position + 1), positions)
        if len(missing):
            self._wrong(f"it lacks {counted(len(missing), 'position')}, the first is {missing[0]}")

    def check_streams(self, known: set[bytes]) -> None:
        """Check that `raw_events` has each stream."""
        if unknown := len(self.streams - known):
            self._wrong(f"it has {counted(unknown, 'stream')} not in {RAW}")

    def check_complete(self, known: set[bytes]) -> None:
        """Check that each stream of `raw_events` is there."""
        if missing := len(known - self.streams):
            self._wrong(f"it lacks {counted(missing, 'stream')} of {RAW}")

    def check_keys(self) -> list[str]:
        """Return what is wrong with the keys: they are unique."""
        unique = len(self.streams)
        if self.spec.rows_are_events:
            unique = len(np.unique(np.concatenate([np.empty(0, np.int64), *self._keys])))
        twice = self._count - unique
        return [f"{self.spec.name}: it repeats {counted(twice, 'row')}"] if twice else []

    def _check_events(self, batch: pa.RecordBatch) -> None:
        for cid, content in zip(
            batch["event_cid"].to_pylist(), batch["car"].to_pylist(), strict=True
        ):
            try:
                if content and bytes(car.decode(content).roots[0]) != cid:
                    raise IpldError("its CAR has another root")
            except (IpldError, IndexError) as error:
                self._wrong(f"the event {multibase.encode(cid, 'base32')}: {error}")

    def _wrong(self, what: str) -> None:
        self.troubles.append(f"{self.spec.name}: {what}")
