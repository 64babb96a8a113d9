"""A portion of a step: the rows of some streams in all tables, computed by one worker.

All events of the streams that get new ones are read back from `raw_events`, and determine the rows
of each table (`derive.transforms`). So a portion is a function of `raw_events` alone: it can be
computed anywhere, and more than once.
"""

import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, TypeVar

import pyarrow as pa

from spark_sink.derive.models import Models
from spark_sink.derive.streams import Row, Stream, read_streams
from spark_sink.derive.transforms import NEED_MODELS, rows_of
from spark_sink.schema import TABLES
from spark_sink.tables.raw_files import RawFiles
from spark_sink.tables.staging import MAX_STAGED_BYTES, Staged, Stager

Item = TypeVar("Item")

# Streams whose models are read at once; rows, or bytes of data, per conversion to Arrow.
_STREAMS_PER_LOOKUP: Final = 500
_ROWS_PER_TABLE: Final = 4_096
_DATA_BYTES: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Step:
    """A step of some tables from the position `after` to `upto`. Can be sent to a worker.

    Attributes:
        stagers: of the tables whose rows the worker writes to files.
        aside: stagers for earlier rows that change because a model did.
    """

    raw: RawFiles
    names: tuple[str, ...]
    after: int
    upto: int
    stagers: Mapping[str, Stager] = field(default_factory=dict)
    aside: Mapping[str, Stager] = field(default_factory=dict)

    @property
    def needs_models(self) -> bool:
        """Whether the tables depend on models."""
        return not NEED_MODELS.isdisjoint(self.names)


@dataclass(slots=True)
class Portion:
    """The results of a step for some streams.

    Attributes:
        streams: how many.
        rows: by table: new rows of event tables, all rows of stream tables.
        revised: earlier rows of event tables, which may have changed because a model did.
        changed: the changed models among the streams, as CID and StreamID.
    """

    streams: int = 0
    rows: dict[str, Staged] = field(default_factory=dict)
    revised: dict[str, Staged] = field(default_factory=dict)
    changed: dict[bytes, bytes] = field(default_factory=dict)

    def add(self, other: "Portion") -> None:
        """Merge another portion of the same step."""
        self.streams += other.streams
        for mine, others in (self.rows, other.rows), (self.revised, other.revised):
            for name, staged in others.items():
                mine[name] = mine.get(name, Staged()) + staged
        self.changed |= other.changed


def compute_partition(step: Step, partition: int) -> Portion:
    """Compute the portion of the streams in a partition.

    Raises:
        TablesError: `raw_events` is damaged, or files cannot be written.
    """
    with _no_garbage_collection():
        streams = step.raw.streams_between(step.after, step.upto, [partition])
        return compute(step, streams, Models(step.raw, step.after, step.upto))


def compute(step: Step, streams: Sequence[bytes], models: Models) -> Portion:
    """Compute the portion of these streams.

    Raises:
        TablesError: as `compute_partition`.
    """
    portion = Portion(streams=len(streams))
    rows = {name: _Rows(name, step.stagers.get(name)) for name in step.names}
    revised = {
        name: _Rows(name, step.aside.get(name)) for name in NEED_MODELS.intersection(step.names)
    }
    for some in _streams_of(step, streams):
        if step.needs_models:
            models.load(some)
        for stream in some:
            definitions, model_changed = None, False
            if step.needs_models:
                definitions = models.of(stream)
                model_changed = models.has_changed(stream.cid if stream.is_model else stream.model)
            if stream.is_model and model_changed:
                portion.changed[stream.cid] = stream.stream_id.to_bytes()
            for name, row in rows_of(stream, step.names, definitions):
                if not TABLES[name].is_history or row[TABLES[name].key] > step.after:
                    rows[name].add(row)
                elif name in revised and model_changed and not stream.is_model:
                    revised[name].add(row)
    portion.rows = {name: each.finish() for name, each in rows.items()}
    portion.revised = {name: each.finish() for name, each in revised.items()}
    return portion


def compute_anew(step: Step, streams: Sequence[bytes], models: Models) -> dict[str, pa.Table]:
    """Compute all rows of these streams as of the end of the step.

    Raises:
        TablesError: `raw_events` is damaged.
    """
    rows = {name: _Rows(name, None) for name in step.names}
    for some in _streams_of(step, streams):
        models.load(some)
        for stream in some:
            for name, row in rows_of(stream, step.names, models.of(stream)):
                rows[name].add(row)
    return {name: each.finish().read(TABLES[name].schema) for name, each in rows.items()}


def _streams_of(step: Step, streams: Sequence[bytes]) -> Iterator[list[Stream]]:
    """Read the streams, a few at a time."""
    for piece in step.raw.pieces(streams, step.upto):
        yield from _batched(read_streams(step.raw.events_of(piece, step.upto)), _STREAMS_PER_LOOKUP)


class _Rows:
    """Collects rows of a table as Arrow, or in files if there is a stager."""

    def __init__(self, name: str, stager: Stager | None) -> None:
        self._schema = TABLES[name].schema
        self._stager = stager
        self._rows: list[Row] = []
        self._data = 0
        self._tables: list[pa.Table] = []
        self._bytes = 0
        self._staged = Staged()

    def add(self, row: Row) -> None:
        """Add a row."""
        self._rows.append(row)
        self._data += len(row.get("data") or b"")
        if len(self._rows) >= _ROWS_PER_TABLE or self._data >= _DATA_BYTES:
            self._pack()

    def finish(self) -> Staged:
        """Return all rows."""
        self._pack()
        if self._stager is None:
            return Staged(tables=tuple(self._tables))
        self._write()
        return self._staged

    def _pack(self) -> None:
        if self._rows:
            self._tables.append(pa.Table.from_pylist(self._rows, schema=self._schema))
            self._bytes += self._tables[-1].nbytes
            self._rows, self._data = [], 0
        if self._stager is not None and self._bytes >= MAX_STAGED_BYTES:
            self._write()

    def _write(self) -> None:
        if self._tables:
            assert self._stager is not None
            self._staged += self._stager.stage(pa.concat_tables(self._tables))
            self._tables, self._bytes = [], 0


def _batched(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    rest = iter(items)
    while piece := list(islice(rest, size)):
        yield piece


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Switch off garbage collection, which takes much of the time, though no cycles are made."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
