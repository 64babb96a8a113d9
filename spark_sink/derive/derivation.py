"""Bringing the derived tables to the position of `raw_events`.

Theory of operation. There is no state but the tables. For the streams that have events beyond a
table's position, all their events are read back from `raw_events`, and what changed is computed
from them (`derive.portion`). Tables that are at the same position, as they nearly always are,
share the reading. A long step is cut into the partitions of the tables, which Spark's workers
compute side by side; a short one, of an event or some hundred, is computed here at once.

What a document says depends on its model, which is another stream. Models come before their
documents, as a rule, and hardly ever change. Where one gets events, all its documents are read back
as well.

Each table takes a step in one commit, which moves its position. The rows of documents that change
because their model does can be many: they are put in place before that, some thousand streams at a
time, without moving the position; so are the rows of very large streams. A crash in between leaves
some of them ahead of it; the step is done again then, and gives the same rows.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from spark_sink.derive.models import Models
from spark_sink.derive.portion import Portion, Step, compute, compute_anew, compute_partition
from spark_sink.derive.transforms import NEED_MODELS
from spark_sink.derive.workers import InProcess, Workers
from spark_sink.schema import PARTITIONS, TABLES, partition_of
from spark_sink.tables.directory import Tables
from spark_sink.tables.raw_files import RawFiles
from spark_sink.tables.staging import Staged, Stager

# Positions of a step, when the tables are far behind. Each step reads whole streams back, so that
# few long ones are quicker than many short ones; and the rows of streams are in memory once.
WINDOW: Final = 1_000_000
# Streams of a step, for the same reason: a step is made shorter until it has no more.
_MOST_STREAMS: Final = 250_000
# Positions of a step that is computed here: to start tasks elsewhere takes longer than the work.
_SHORT: Final = 1_000
# What its events may take in files.
_SMALL: Final = 32 * 1024 * 1024
# Bytes of rows that are put in the place of others at once.
_AT_ONCE: Final = 256 * 1024 * 1024
# Documents of changed models that are computed at once.
_STREAMS: Final = 2_000


class Derivation:
    """Keeps the derived tables of `tables` up to date, long steps by way of `workers`."""

    def __init__(self, tables: Tables, workers: Workers | None = None) -> None:
        self._tables = tables
        self._workers = workers or InProcess()
        self._models = Models(RawFiles(()), 0, 0)
        tables.clear_staging()

    def catch_up(self, window: int | None = None, *, steps: int | None = None) -> int:
        """Bring the tables to the position of `raw_events`; returns how many streams changed.

        `window` are the positions of a step at most, None: what memory allows; `steps` ends it
        after so many.

        Raises:
            TablesError: `raw_events` is damaged, or a table cannot be written.
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
            upto = min(begun) if begun else min(after + (window or WINDOW), end, *ahead)
            streams += self._take(behind, after, upto, shorten=not begun)
        return streams

    def _take(self, names: Sequence[str], after: int, upto: int, *, shorten: bool) -> int:
        """Bring these tables from one position to another, or not quite as far."""
        raw = self._tables.raw.files_upto(upto)
        touched = raw.streams_between(after, upto)
        while shorten and len(touched) > _MOST_STREAMS and upto - after > _SHORT:
            upto = after + (upto - after) // 2
            touched = raw.streams_between(after, upto)
        step = Step(raw, tuple(names), after, upto, self._own_stagers(names))
        is_short = upto - after <= _SHORT and raw.bytes_between(after, upto) <= _SMALL
        portion = self._short(step, touched) if is_short else self._long(step)
        if after and portion.changed:
            self._revise_documents(step, portion.changed, touched)
        for name in names:
            self._revise(name, portion.revised.get(name, Staged()), upto)
            self._finish(name, portion.rows[name], upto)
        self._tables.clear_staging()
        return portion.streams

    def _short(self, step: Step, touched: Sequence[bytes]) -> Portion:
        self._models.move(step.raw, step.after, step.upto, set(touched))
        return compute(step, touched, self._models)

    def _long(self, step: Step) -> Portion:
        aside = {name: self._tables.staged_aside(name) for name in step.names}
        whole = replace(step, stagers={**aside, **step.stagers}, aside=aside)
        portion = Portion()
        for part in self._workers.map(partial(compute_partition, whole), range(PARTITIONS)):
            portion.add(part)
        return portion

    def _own_stagers(self, names: Sequence[str]) -> dict[str, Stager]:
        """What writes rows where they belong in the end, where they are new ones for good."""
        own = {name: self._tables.derived[name].stager() for name in names}
        return {name: s for name, s in own.items() if s is not None and TABLES[name].is_history}

    def _finish(self, name: str, rows: Staged, upto: int) -> None:
        """The commit that brings a table to a position."""
        table = self._tables.derived[name]
        if table.spec.is_history:
            rows = table.append(rows, upto)
        else:
            *some, last = rows.portions(table.spec.schema, _AT_ONCE)
            for part in some:
                table.revise(part, upto)
            table.put(last, upto)
        self._tables.on_write(name, rows)

    def _revise(self, name: str, rows: Staged, towards: int) -> None:
        if rows.num_rows:
            table = self._tables.derived[name]
            for part in rows.portions(table.spec.schema, _AT_ONCE):
                table.revise(part, towards)
            self._tables.on_write(name, rows)

    def _revise_documents(
        self, step: Step, changed: dict[bytes, bytes], touched: Sequence[bytes]
    ) -> None:
        """Compute those documents of changed models anew that have no new events themselves."""
        names = tuple(name for name in step.names if name in NEED_MODELS)
        documents = self._tables.derived[names[0]].streams_of_models(changed.values())
        # Those next to each other in the files of raw_events are one small read.
        others = sorted(set(documents).difference(touched), key=lambda c: (partition_of(c), c))
        anew = Step(step.raw, names, step.after, step.upto)
        models = Models(step.raw, step.after, step.upto)
        for start in range(0, len(others), _STREAMS):
            rows = compute_anew(anew, others[start : start + _STREAMS], models)
            for name in names:
                self._revise(name, Staged(tables=(rows[name],)), step.upto)
