"""A portion of a step: the rows of some streams in all tables, computed by one worker.

All events of the streams that get new ones are read back from `raw_events`, and determine the rows
of each table (`derive.transforms`). So a portion is a function of `raw_events` alone: it can be
computed anywhere, and more than once.

Of a long stream whose summary is kept (`SummaryCache`), only the events after it are read, unless
its model has had an event since, or the step computes no content. If that turns out not to be
enough, the stream is read whole.

The states of documents depend on the definitions of their model. A model is a stream like any
other: it, or the version that a document names, can arrive after the document. A step goes from one
feed position to another and uses each model as of its end. If the step has brought a model, or a
version of it, the documents that lacked it are recomputed. Other events of a model change nothing
for its documents, so that its author cannot have them computed again and again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recon_node.ceramic import CeramicError, EventKind, parse_event
from recon_node.ipld import CID
from recon_node.streams import Definitions, ForgottenError, definitions_of
from spark_sink.derive.child_process import killed_if_slow
from spark_sink.derive.feed_streams import (
    NOT_OF_A_STREAM,
    Columns,
    FeedStream,
    ModelSetAsideError,
    Row,
    SummaryCache,
    read_later_events,
    read_streams,
    reason_of,
    stream_columns,
)
from spark_sink.derive.transforms import NEED_MODELS, own_columns, rows_of, unprocessed
from spark_sink.schema import PARTITION_COLUMN, TABLES, UNPROCESSED, TableSpec, partition_of
from spark_sink.tables.raw_files import RawFiles, batched
from spark_sink.tables.staging import MAX_STAGED_BYTES, Staged, Stager

_STREAMS_PER_LOOKUP: Final = 500
"""Streams whose models are read at once."""
_ROWS_PER_TABLE: Final = 2_048
"""Rows from which on they are converted to Arrow, between two streams."""
_MAX_ROWS: Final = 4_096
"""Rows of one stream from which on they are converted to Arrow."""
_DATA_BYTES: Final = 16 * 1024 * 1024
"""Bytes of data from which on rows are converted to Arrow."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step of some tables from the position `after` to `upto`. Can be sent to a worker.

    Attributes:
        stagers: of the tables whose rows the worker writes to files.
        revised_stagers: for earlier rows, which may change because a model did.
        is_divided: whether a worker computes only some of the streams that get events.
        set_aside: streams to leave out.
        retried: streams that another version of this software had set aside.
    """

    raw: RawFiles
    names: tuple[str, ...]
    after: int
    upto: int
    stagers: Mapping[str, Stager] = field(default_factory=dict)
    revised_stagers: Mapping[str, Stager] = field(default_factory=dict)
    is_divided: bool = False
    set_aside: frozenset[bytes] = frozenset()
    retried: frozenset[bytes] = frozenset()

    @property
    def needs_models(self) -> bool:
        """Whether the tables depend on models."""
        return not NEED_MODELS.isdisjoint(self.names)


@dataclass(slots=True)
class Portion:
    """The results of a step for some streams.

    Attributes:
        streams: the number of streams.
        rows: by table: new rows of event tables, all rows of stream tables.
        revised: earlier rows of event tables, which may have changed because a model did.
        arrived: models that are new, as CID and StreamID.
        changed: earlier models that have new versions, as CID and StreamID.
        versions: the CIDs of the new versions, as text.
    """

    streams: int = 0
    rows: dict[str, Staged] = field(default_factory=dict)
    revised: dict[str, Staged] = field(default_factory=dict)
    arrived: dict[bytes, bytes] = field(default_factory=dict)
    changed: dict[bytes, bytes] = field(default_factory=dict)
    versions: set[str] = field(default_factory=set)

    def merge(self, other: Portion) -> None:
        """Take in the results of another portion of the same step."""
        self.streams += other.streams
        for mine, others in (self.rows, other.rows), (self.revised, other.revised):
            for name, staged in others.items():
                mine[name] = mine.get(name, Staged()) + staged
        self.arrived |= other.arrived
        self.changed |= other.changed
        self.versions |= other.versions


class Computer:
    """Computes portions in this process, and keeps models and summaries for the next one.

    Args:
        summaries: the summaries of long streams.
    """

    def __init__(self, summaries: SummaryCache | None = None) -> None:
        self._models, self._summaries = Models(), summaries or SummaryCache()

    def compute(self, step: Step, streams: Sequence[bytes]) -> Portion:
        """Compute the portion of streams that have events in a step, or are computed again.

        Raises:
            TablesError: `raw_events` is damaged, or files cannot be written.
        """
        streams = [cid for cid in streams if cid not in step.set_aside]
        # Of a divided step, other workers see the events of some models.
        after = step.upto if step.is_divided else step.after
        self._models.begin_step(step.raw, after, step.upto, streams, step.set_aside)
        work = _Work(step, self._models, self._summaries)
        whole = work.add_from_summaries(streams)
        left_out = len(whole)
        for chunk in _streams_of(step, whole):
            left_out -= len(chunk)
            if step.needs_models:
                self._models.load(chunk)
            for stream in chunk:
                work.add_stream(stream)
        return work.finish(len(streams) - left_out)

    def close(self) -> None:
        """Forget what is kept."""
        self._models, self._summaries = Models(), SummaryCache()


def portion_of_set_aside(
    step: Step, reasons: Mapping[bytes, str], unreadable: Collection[bytes] = ()
) -> Portion:
    """Return the rows that say that streams of a step are set aside.

    Args:
        step: which.
        reasons: why, by stream CID.
        unreadable: those whose init event cannot be read, so that only the CID is known.
    """
    rows = _Rows(TABLES[UNPROCESSED], step.stagers.get(UNPROCESSED))
    for cid, reason in reasons.items() if UNPROCESSED in step.names else ():
        events = step.raw.events_of([cid], step.upto)
        span = pc.min_max(events["position"]).as_py()
        init = events["car"][pc.index(events["position"], span["min"]).as_py()].as_py()
        stream_id, columns = _identity(cid, b"" if cid in unreadable else init)
        rows.add(columns, (unprocessed(stream_id, span["max"], reason),))
    return Portion(rows={UNPROCESSED: rows.finish()})


def _identity(cid: bytes, init: bytes) -> tuple[str, Columns]:
    """Return the StreamID and the columns of a stream, as far as its init event can be read."""
    try:
        with killed_if_slow(cid, len(init)):
            event = parse_event(init)
            assert event.header is not None
            return str(event.stream_id()), stream_columns(cid, event.header)
    except (CeramicError, AssertionError):
        columns = {"stream_cid": cid, "stream_type": -1, "controller": "", "dimensions": []}
        return str(CID(cid)), {**columns, PARTITION_COLUMN: partition_of(cid)}


class _Work:
    """A portion while it is computed."""

    def __init__(self, step: Step, models: Models, summaries: SummaryCache) -> None:
        self.portion = Portion()
        self._step = step
        self._needs_models = step.needs_models
        self._models = models
        self._summaries = summaries
        self._rows = {n: _Rows(TABLES[n], step.stagers.get(n)) for n in step.names}
        self._event_tables = {n for n in step.names if TABLES[n].rows_are_events}
        self._revised = {
            n: _Rows(TABLES[n], step.revised_stagers.get(n))
            for n in NEED_MODELS.intersection(step.names)
        }

    def add_from_summaries(self, streams: Sequence[bytes]) -> list[bytes]:
        """Add the streams that can go on from a kept summary; return those to be read whole."""
        kept = self._summaries.take(streams, self._step.after)
        if not kept or not self._needs_models:  # without content, there would be no next summary
            return [*streams]
        after = {cid: one.position for cid, one in kept.items()}
        rows = self._step.raw.later_events_of(after, self._step.upto)
        later = [*read_later_events(rows, {cid: one.summary for cid, one in kept.items()})]
        self._models.load(later)
        done = set()
        for stream in later:
            if self._models.last_change(stream) > after[stream.cid]:
                continue  # by another definition, other events are accepted
            try:
                self.add_stream(stream)
            except ForgottenError:
                continue
            done.add(stream.cid)
        return [cid for cid in streams if cid not in done]

    def add_stream(self, stream: FeedStream) -> None:
        """Add the rows of a stream, and keep its summary if it is long; or set it aside.

        Raises:
            ForgottenError: the summary that it goes on from is not enough. Nothing was added.
        """
        every = [*self._rows.values(), *self._revised.values()]
        for rows in every:
            rows.begin()
        reason = None
        try:
            with killed_if_slow(stream.cid, stream.size):
                self._add_rows(stream)
                stream.close()
        except Exception as error:
            for rows in every:
                rows.undo()
            if isinstance(error, NOT_OF_A_STREAM):
                raise
            self.portion.arrived.pop(stream.cid, None)
            self.portion.changed.pop(stream.cid, None)
            reason = reason_of(error)
        if UNPROCESSED in self._rows and (reason or stream.cid in self._step.retried):
            row = unprocessed(stream.id_text, stream.last_position, reason)
            self._rows[UNPROCESSED].add(stream.columns, (row,))

    def _add_rows(self, stream: FeedStream) -> None:
        step, model_changed = self._step, False
        if self._needs_models:
            stream.define(self._models.of(stream))
            # In the first step of all, there are no earlier rows.
            model_changed = 0 < step.after < self._models.last_change(stream)
        for name, rows in rows_of(stream, step.names, 0 if model_changed else step.after):
            columns, repeated = stream.columns, stream.repeated_columns
            if name not in self._event_tables or (columns is repeated and not model_changed):
                self._rows[name].add(columns, rows)
                continue
            for row in rows:
                position, cid, *_ = row
                of_stream = columns if cid == stream.cid else repeated
                if position > step.after:
                    self._rows[name].add(of_stream, (row,))
                elif name in self._revised:
                    self._revised[name].add(of_stream, (row,))
        if self._needs_models:
            if stream.is_model:
                self._note_model(stream)
            self._summaries.keep(stream, step.upto)

    def _note_model(self, model: FeedStream) -> None:
        portion, model_id = self.portion, model.stream_id.to_bytes()
        new = [entry.event for entry in model.entries if entry.position > self._step.after]
        if len(new) == len(model.entries):
            portion.arrived[model.cid] = model_id
        elif versions := [str(event.cid) for event in new if event.kind is EventKind.DATA]:
            portion.changed[model.cid] = model_id
            portion.versions.update(versions)

    def finish(self, streams: int) -> Portion:
        """Return the portion, of some streams."""
        self.portion.streams = streams
        self.portion.rows = {name: rows.finish() for name, rows in self._rows.items()}
        self.portion.revised = {name: rows.finish() for name, rows in self._revised.items()}
        return self.portion


def _streams_of(step: Step, streams: Sequence[bytes]) -> Iterator[list[FeedStream]]:
    """Read the streams, a few at a time."""
    for chunk in step.raw.chunks(streams, step.upto):
        yield from batched(read_streams(step.raw.events_of(chunk, step.upto)), _STREAMS_PER_LOOKUP)


@dataclass(slots=True)
class _Pile:
    """Rows on their way into a table: as tuples first, then as Arrow, then in files."""

    rows: list[Row] = field(default_factory=list)
    runs: list[tuple[Columns, int]] = field(default_factory=list)
    """Of these rows, the columns that some in a row share, and the number of these."""
    data: int = 0
    """Bytes of data in these rows."""
    tables: list[pa.Table] = field(default_factory=list)
    bytes: int = 0
    """Of the tables."""
    staged: Staged = field(default_factory=Staged)


class _Rows:
    """Collects rows of a table as Arrow, or in files if there is a stager.

    The rows of the latest stream are in a pile of their own, so that they can be undone. The
    columns that all rows of a stream share are converted once per stream, and then repeated: that
    is a third of the work for `dimensions` alone.
    """

    def __init__(self, spec: TableSpec, stager: Stager | None) -> None:
        self._schema = spec.schema
        self._own = own_columns(spec.name)
        self._data_at = self._own.index("data") if "data" in self._own else None
        self._stager = stager
        self._done, self._latest = _Pile(), _Pile()

    def begin(self) -> None:
        """Begin with the rows of another stream."""
        done, latest = self._done, self._latest
        if latest.tables or latest.staged.files:
            self._pack(done)  # so that the rows stay in order
            done.tables += latest.tables
            done.bytes += latest.bytes
            done.staged += latest.staged
            latest.tables, latest.bytes, latest.staged = [], 0, Staged()
        if latest.rows:
            done.rows += latest.rows
            done.runs += latest.runs
            done.data += latest.data
            latest.rows, latest.runs, latest.data = [], [], 0
        if len(done.rows) >= _ROWS_PER_TABLE or done.data >= _DATA_BYTES:
            self._pack(done)
            self._write_if_full()

    def undo(self) -> None:
        """Forget the rows of the latest stream. Files of it stay until staging is cleared."""
        self._latest = _Pile()

    def add(self, columns: Columns, rows: Iterable[Row]) -> None:
        """Add rows; `columns` are those of their stream, the same object for all of its rows."""
        latest, at = self._latest, self._data_at
        own, data = latest.rows, latest.data
        begun = len(own)
        repeated = sum([len(value or b"") for _, value in columns["dimensions"]])
        for row in rows:
            own.append(row)
            data += repeated
            if at is not None and (content := row[at]) is not None:
                data += len(content)
            if len(own) >= _MAX_ROWS or data >= _DATA_BYTES:
                latest.runs.append((columns, len(own) - begun))
                self._pack(latest)
                self._write_if_full()
                own, data, begun = latest.rows, 0, 0
        if len(own) > begun:
            latest.runs.append((columns, len(own) - begun))
        latest.data = data

    def finish(self) -> Staged:
        """Return all rows."""
        self.begin()
        self._pack(self._done)
        if self._stager is not None:
            self._write(self._stager, self._done)
        return self._done.staged + Staged(tables=tuple(self._done.tables))

    def _pack(self, pile: _Pile) -> None:
        """Convert the rows of a pile to Arrow."""
        if not pile.rows:
            return
        runs = len(pile.runs)
        run_of = np.repeat(np.arange(runs, dtype=np.int32), [count for _, count in pile.runs])
        own = dict(zip(self._own, zip(*pile.rows, strict=True), strict=True))
        columns = []
        for name, kind in zip(self._schema.names, self._schema.types, strict=True):
            if name in own:
                columns.append(pa.array(own[name], kind))
            else:
                values = pa.array([shared[name] for shared, _ in pile.runs], kind)
                columns.append(values.take(run_of) if runs < len(run_of) else values)
        table = pa.Table.from_arrays(columns, schema=self._schema)
        pile.tables.append(table)
        pile.bytes += table.nbytes
        pile.rows, pile.runs, pile.data = [], [], 0

    def _write_if_full(self) -> None:
        piles = self._done, self._latest
        if self._stager is not None and sum(pile.bytes for pile in piles) >= MAX_STAGED_BYTES:
            for pile in piles:
                self._write(self._stager, pile)

    def _write(self, stager: Stager, pile: _Pile) -> None:
        if pile.tables:
            pile.staged += stager.stage(pa.concat_tables(pile.tables))
            pile.tables, pile.bytes = [], 0


_MAX_CACHED: Final = 10_000
"""Models; of more, all are forgotten."""


@dataclass(frozen=True, slots=True)
class _Model:
    """The definitions of a model: of its first version, and of those that documents name.

    `positions` are those of its init event and of the others that documents name; `fault` says why
    the model cannot be computed.
    """

    definitions: Definitions | None
    asked: frozenset[CID]
    positions: Mapping[CID, int] = field(default_factory=dict)
    fault: str | None = None


class Models:
    """The models of a step, kept for the next one."""

    def __init__(self) -> None:
        self._raw = RawFiles(())
        self._upto = 0
        self._set_aside: Collection[bytes] = ()
        self._models: dict[bytes, _Model] = {}

    def begin_step(
        self,
        raw: RawFiles,
        after: int,
        upto: int,
        touched: Collection[bytes],
        set_aside: Collection[bytes],
    ) -> None:
        """Go on to a step.

        Args:
            raw: the events.
            after: up to where models of the step before are still right, but for `touched`.
            upto: where the step ends.
            touched: the streams that get events between.
            set_aside: streams that are not read; so are their documents.
        """
        if self._upto not in (after, upto) or len(self._models) > _MAX_CACHED:
            self._models.clear()
        self._raw, self._upto, self._set_aside = raw, upto, set_aside
        for cid in {*touched, *set_aside}.intersection(self._models):
            del self._models[cid]

    def load(self, streams: Iterable[FeedStream]) -> None:
        """Read the models of these documents, and those among the streams, at once."""
        asked: dict[bytes, set[CID]] = {}
        for stream in streams:
            cid = stream.cid if stream.is_model else stream.model
            if cid is not None:
                asked.setdefault(cid, set()).update(stream.versions)
        wanted: dict[bytes, frozenset[CID]] = {}
        for cid, versions in asked.items():
            known = self._models.get(cid)
            if known is None or not known.asked.issuperset(versions):
                wanted[cid] = frozenset(versions).union(known.asked if known else ())
        if not wanted:
            return
        for cid, named in wanted.items():
            fault = "it is set aside" if cid in self._set_aside else None
            self._models[cid] = _Model(None, named, fault=fault)
        model_events = self._raw.events_of(wanted.keys() - set(self._set_aside), self._upto)
        for model in read_streams(model_events, models_only=True):
            with killed_if_slow(model.cid, model.size):
                self._models[model.cid] = _read(model, wanted[model.cid])

    def of(self, stream: FeedStream) -> Definitions | None:
        """Return the definitions of a document's model, which must have been loaded.

        None if they are unknown, for models themselves, and for streams without a model.

        Raises:
            ModelSetAsideError: the model cannot be computed.
        """
        if stream.is_model or stream.model is None:
            return None
        model = self._models[stream.model]
        if model.fault is not None:
            raise ModelSetAsideError(f"its model cannot be computed: {model.fault}")
        return model.definitions

    def last_change(self, stream: FeedStream) -> int:
        """Return the position of the last event of a document's model that matters to it.

        That is one of the versions that it names, or the init event. 0 if there is none.
        """
        if stream.is_model or stream.model is None:
            return 0
        positions = self._models[stream.model].positions
        named = (CID(stream.model), *stream.versions)
        return max(positions.get(version, 0) for version in named)


def _read(model: FeedStream, named: frozenset[CID]) -> _Model:
    init = CID(model.cid)
    positions = _positions(model, named)
    try:
        return _Model(definitions_of(model.as_stream.states.all(), init, named), named, positions)
    except NOT_OF_A_STREAM:
        raise
    except Exception as error:  # its documents are set aside, and it is
        return _Model(None, named, positions, reason_of(error))


def _positions(model: FeedStream, named: frozenset[CID]) -> dict[CID, int]:
    matter = {model.cid, *named}
    return {e.event.cid: e.position for e in model.entries if e.event.cid in matter}


_computer: Final = Computer()


def compute_in_child(step: Step, streams: Sequence[bytes]) -> Portion:
    """Compute a portion by the one `Computer` of this process, a child that is asked for it."""
    return _computer.compute(step, streams)
