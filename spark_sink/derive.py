"""Bringing the derived tables to the position of `raw_events`.

Theory of operation. There is no state but the tables. For the streams that have events beyond a
table's position, all their events are read back from `raw_events`, and what changed is computed
from them (`spark_sink.transforms`). Tables that are at the same position, as they nearly always
are, share the reading.

What a document says depends on its model, which is another stream. Models come before their
documents, as a rule, and hardly ever change. Where the content of one does, all its documents are
read back as well.

Each table takes a step in one commit, which moves its position. The rows of documents that change
because their model does can be many: they are put in place before that, some thousand streams at a
time, without moving the position. A crash in between leaves some of them ahead of it; the step is
done again then, and gives the same rows.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from recon_node.lattice import StreamData
from spark_sink.schema import TABLES, partition_of
from spark_sink.streams import Row, Stream, read_streams
from spark_sink.tables import Store, Tables
from spark_sink.transforms import NEED_MODELS, TRANSFORMS

# Positions of a step, when the tables are far behind. All new rows of a table are in memory once:
# those of tables with a row an event are many, of those with a row a stream they are few.
WINDOW: Final = 50_000
_LONG_WINDOW: Final = 1_000_000
# Streams that are read back at once; more are read a partition at a time.
_STREAMS: Final = 2_000
_MODELS: Final = 1_000
_ROWS: Final = 4_096


class Derivation:
    """Keeps the derived tables of `tables` up to date."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._models = _Models(tables.raw)

    def catch_up(self, window: int | None = None, *, steps: int | None = None) -> int:
        """Bring the tables to the position of `raw_events`; returns how many streams changed.

        `window` are the positions of a step, None: what memory allows; `steps` ends it after so
        many.

        Raises:
            TablesError: `raw_events` is damaged.
        """
        streams = 0
        end = self._tables.raw_position
        derived = self._tables.derived
        left = steps
        while derived and (after := self._tables.position) < end and left != 0:
            left = None if left is None else left - 1
            behind = [name for name, table in derived.items() if table.position == after]
            ahead = [table.position for table in derived.values() if table.position > after]
            # A step that broke off is done again as it was: some rows are as they are at its end.
            begun = [u for name in behind if (u := derived[name].under_way) > after]
            reach = after + (window or _window(behind))
            upto = min(begun) if begun else min(reach, end, *ahead)
            streams += self._step(behind, after, upto)
        return streams

    def _step(self, names: Sequence[str], after: int, upto: int) -> int:
        """Bring these tables from one position to another."""
        raw = self._tables.raw
        touched = _Histories(raw, raw.streams_between(after, upto), upto)
        changed = self._changed_models(names, touched, after, upto)
        self._revise_documents(names, changed, touched, after)
        rows = {name: _Rows(name) for name in names}
        revised = {name: _Rows(name) for name in names}
        for stream in touched.read():
            model = self._models.of(stream) if NEED_MODELS.intersection(names) else None
            for name in names:
                for row in TRANSFORMS[name](stream, model):
                    if not TABLES[name].is_history or row[TABLES[name].key] > after:
                        rows[name].add(row)
                    elif name in NEED_MODELS and stream.model in changed:
                        revised[name].add(row)
        for name in names:
            self._revise(name, revised[name].table(), upto)
            self._finish(name, rows[name].table(), upto)
        return len(touched.cids)

    def _finish(self, name: str, rows: pa.Table, upto: int) -> None:
        """The commit that brings a table to a position."""
        table = self._tables.derived[name]
        if table.spec.is_history:
            table.append(rows, upto)
        else:
            table.put(rows, upto)
        self._tables.on_write(name, rows)

    def _revise(self, name: str, rows: pa.Table, towards: int) -> None:
        if rows.num_rows:
            self._tables.derived[name].revise(rows, towards)
            self._tables.on_write(name, rows)

    def _changed_models(
        self, names: Sequence[str], touched: "_Histories", after: int, upto: int
    ) -> dict[bytes, bytes]:
        """The models whose content is another one at `upto` than at `after`: CID to StreamID."""
        needed = NEED_MODELS.intersection(names)
        if not needed:
            return {}
        self._models.move(after, upto)
        found: dict[bytes, bytes] = {}
        for stream in touched.read(models_only=True):
            before, now = stream.upto(after), stream.data()
            self._models.set(stream.cid, now)
            if _text(now) != _text(before.data() if before else None):
                found[stream.cid] = stream.stream_id.to_bytes()
        return found

    def _revise_documents(
        self,
        names: Sequence[str],
        changed: dict[bytes, bytes],
        touched: "_Histories",
        after: int,
    ) -> None:
        """Compute those documents of changed models anew that have no new events themselves."""
        dependent = [name for name in names if name in NEED_MODELS]
        if not changed or not after or not dependent:
            return
        documents = self._tables.derived[dependent[0]].streams_of_models(changed.values())
        others = sorted(set(documents).difference(touched.cids))
        for start in range(0, len(others), _STREAMS):
            rows = {name: _Rows(name) for name in dependent}
            some = _Histories(touched.raw, others[start : start + _STREAMS], touched.upto)
            for stream in some.read():
                model = self._models.of(stream)
                for name in dependent:
                    for row in TRANSFORMS[name](stream, model):
                        rows[name].add(row)
            for name in dependent:
                self._revise(name, rows[name].table(), touched.upto)


class _Histories:
    """All events up to a position of some streams, read when they are asked for."""

    def __init__(self, raw: Store, cids: Sequence[bytes], upto: int) -> None:
        self.raw = raw
        self.cids = cids
        self.upto = upto
        self._only: pa.Table | None = None

    def read(self, *, models_only: bool = False) -> Iterator[Stream]:
        """The streams, one at a time."""
        for rows in self._rows():
            yield from read_streams(rows, models_only=models_only)

    def _rows(self) -> Iterator[pa.Table]:
        """All at once when they are few, and kept then; else those of a partition at a time."""
        if len(self.cids) <= _STREAMS:
            if self._only is None:
                self._only = self.raw.events_of(self.cids, self.upto)
            yield self._only
            return
        portions: dict[int, list[bytes]] = defaultdict(list)
        for cid in self.cids:
            portions[partition_of(cid)].append(cid)
        for cids in portions.values():
            yield self.raw.events_of(cids, self.upto)


class _Models:
    """What models say at a feed position. Remembered while the position moves on step by step."""

    def __init__(self, raw: Store) -> None:
        self._raw = raw
        self._contents: dict[bytes, Any] = {}
        self._position = 0

    def move(self, after: int, upto: int) -> None:
        """From now on it is about `upto`; what changed since `after` will be set."""
        if self._position != after or len(self._contents) > _MODELS:
            self._contents.clear()
        self._position = upto

    def set(self, model: bytes, data: StreamData | None) -> None:
        """What a model says."""
        self._contents[model] = None if data is None else data.content

    def of(self, stream: Stream) -> Any:
        """The content of a stream's model; None when it is not known, and for models."""
        if stream.is_model:
            return None
        if stream.model not in self._contents:
            events = self._raw.events_of([stream.model], self._position)
            found = next(read_streams(events, models_only=True), None)
            self.set(stream.model, found.data() if found else None)
        return self._contents[stream.model]


class _Rows:
    """Rows of a table as they are computed, kept as Arrow."""

    def __init__(self, name: str) -> None:
        self._schema = TABLES[name].schema
        self._rows: list[Row] = []
        self._tables: list[pa.Table] = []

    def add(self, row: Row) -> None:
        """One more row."""
        self._rows.append(row)
        if len(self._rows) >= _ROWS:
            self._pack()

    def table(self) -> pa.Table:
        """All rows."""
        self._pack()
        return pa.concat_tables(self._tables)

    def _pack(self) -> None:
        self._tables.append(pa.Table.from_pylist(self._rows, schema=self._schema))
        self._rows = []


def _window(names: Sequence[str]) -> int:
    return WINDOW if any(TABLES[name].is_history for name in names) else _LONG_WINDOW


def _text(data: StreamData | None) -> bytes:
    """Content to compare; for Python, true equals 1."""
    return b"" if data is None else data.to_json()
