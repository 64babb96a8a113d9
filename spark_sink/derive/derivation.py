"""Brings the derived tables to the position of `raw_events`.

Theory of operation. The tables are the only state. For each stream that has events after a table's
position, all its events are read back from `raw_events`, and what changed is computed from them
(`derive.portion`). Tables at the same position, which is nearly always the case, share the reading.
A long step is divided by the partitions of the tables, which Spark's workers compute in parallel. A
short step, of up to a thousand events, is computed without them. Either way a `Computer`
(`derive.portion`) does it, in a process that may be killed (`ChildComputer`), because the content
is strangers': one beside the driver, and one beside each of Spark's workers (`compute_partition`).

When a model arrives, or a version of it that documents name, these are read back, too
(`derive.portion`); of long streams, only the last events (`derive.feed_streams`).

Each table takes a step in one commit, which moves its position. When a model changes, many rows of
documents may change: they are written before that commit, a few thousand streams at a time, without
moving the position; so are the rows of very large streams. After a crash in between, some rows are
ahead of the position; the step is repeated and computes the same rows.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Final

import pyarrow as pa

from recon_node import __version__
from recon_node.streams import no_version
from spark_sink.derive.child_process import ChildProcess, StreamEndedError
from spark_sink.derive.portion import (
    Computer,
    Portion,
    Step,
    compute_in_child,
    portion_of_set_aside,
)
from spark_sink.derive.transforms import NEED_MODELS
from spark_sink.derive.workers import NoWorkers, Workers
from spark_sink.errors import SinkError
from spark_sink.schema import DERIVED, PARTITIONS, TABLES, UNPROCESSED, partition_of
from spark_sink.tables.location import is_delta
from spark_sink.tables.raw_files import RawFiles
from spark_sink.tables.staging import Staged, Stager
from spark_sink.tables.tables import Tables

STEP_LENGTH: Final = 1_000_000
"""Positions per step when the tables are far behind. Each step reads whole streams back, so a few
long steps are faster than many short ones, within the limits of memory."""
_MAX_STREAMS: Final = 250_000
"""Streams per step, for the same reason: a step with more is shortened."""
_SHORT_POSITIONS: Final = 1_000
"""Positions of a step that is computed without Spark's workers: to start tasks would take
longer."""
_SHORT_BYTES: Final = 32 * 1024 * 1024
"""Bytes in files of the events of such a step."""
_MERGE_BYTES: Final = 256 * 1024 * 1024
"""Bytes of rows that are merged into a table in one commit."""
_MAX_VERSIONS: Final = 1_000
"""New versions of models for which the documents that lacked them are looked up. After more, all
documents of these models are computed again."""
_DOCUMENTS_PER_COMMIT: Final = 2_000
"""Documents of changed models that are computed again per commit."""
_IDLE: Final = 60.0
"""Seconds without work after which the child of a Spark worker ends."""
_TRIES: Final = 2
"""How many processes a stream may end before it is set aside."""


class Derivation:
    """Keeps the derived tables of `tables` up to date.

    Args:
        tables: which.
        workers: compute long steps, and say where strangers' content is computed; without any, all
            is done in this process.

    Attributes:
        doing: what it does at the moment.
    """

    def __init__(self, tables: Tables, workers: Workers | None = None) -> None:
        self._tables = tables
        self._workers = workers or NoWorkers()
        command = self._workers.child_command
        self._computer = Computer() if command is None else ChildComputer(command)
        self._read_set_aside()
        self.doing = "computing tables"
        tables.clear_staging()

    def catch_up(
        self,
        step_length: int = STEP_LENGTH,
        *,
        steps: int | None = None,
        may_continue: Callable[[], bool] = lambda: True,
    ) -> int:
        """Bring the tables to the position of `raw_events`.

        Args:
            step_length: positions per step.
            steps: stop after this many.
            may_continue: asked before each step.

        Returns:
            The number of streams that changed.

        Raises:
            TablesError: `raw_events` is damaged, or a table cannot be written.
        """
        self._retry_set_aside()
        streams = taken = 0
        while taken != steps and self._is_behind and may_continue():
            streams += self._take_step(step_length)
            taken += 1
        return streams

    @property
    def _is_behind(self) -> bool:
        return self._tables.position < self._tables.raw_position

    def _take_step(self, length: int) -> int:
        """Take a step of the tables that are the furthest behind, up to `length` positions long;
        return how many streams it had."""
        step = self._next_step(length)
        raw, after, upto = step.raw, step.after, step.upto
        if upto - after <= _SHORT_POSITIONS and raw.bytes_between(after, upto) <= _SHORT_BYTES:
            portion = self._computer.compute(step, raw.streams_between(after, upto))
        else:
            portion = self._in_workers(step)
        if after and (portion.arrived or portion.changed):
            self._recompute_documents(step, portion)
        # First which streams are set aside: after a crash, they may not fail again.
        for name in sorted(step.names, key=UNPROCESSED.__ne__):
            if self._tables.derived[name].position > after:
                self._write_revised(name, portion.rows[name], upto)
            else:
                self._write_revised(name, portion.revised.get(name, Staged()), upto)
                self._finish(name, portion.rows[name], upto)
        if portion.rows.get(UNPROCESSED, Staged()).num_rows:
            self._read_set_aside()
        self._tables.clear_staging()
        return portion.streams

    def _next_step(self, length: int) -> Step:
        """Return the step of the tables that are the furthest behind. It is shorter than `length`
        if it would have too many streams.

        The table of the streams that are set aside takes part even if it is further ahead.
        """
        derived, after = self._tables.derived, self._tables.position
        names = tuple(name for name, table in derived.items() if table.position == after)
        ahead = [table.position for table in derived.values() if table.position > after]
        # An interrupted step is repeated exactly, because some rows are at its end already.
        begun = [u for name in names if (u := derived[name].under_way) > after]
        upto = min(begun or [after + length, self._tables.raw_position, *ahead])
        self.doing = f"computing {', '.join(names)} up to position {upto}"
        raw = self._tables.raw.files_upto(upto)
        while not begun and _count_streams(raw, after, upto) > _MAX_STREAMS:
            upto = after + (upto - after) // 2
        stagers = self._own_stagers(names)
        names += tuple({UNPROCESSED}.intersection(derived).difference(names))
        return Step(raw, names, after, upto, stagers, set_aside=self._set_aside)

    def _in_workers(self, step: Step) -> Portion:
        """Compute all streams of a step, a partition each."""
        self._computer.close()  # for its memory
        scratch = {name: self._tables.scratch_stager(name) for name in step.names}
        stagers = {**scratch, **step.stagers}
        whole = replace(step, stagers=stagers, revised_stagers=scratch, is_divided=True)
        portion = Portion()
        work = partial(compute_partition, whole, self._workers.child_command)
        for of_partition in self._workers.map(work, range(PARTITIONS)):
            portion.merge(of_partition)
        if UNPROCESSED in portion.rows:
            portion.rows[UNPROCESSED] = _each_once(portion.rows[UNPROCESSED])
        return portion

    def _own_stagers(self, names: Sequence[str]) -> dict[str, Stager]:
        """Return the stagers of the tables to which rows are only appended."""
        tables = self._tables.derived
        return {name: tables[name].stager() for name in names if tables[name].only_grows}

    def _finish(self, name: str, rows: Staged, upto: int) -> None:
        """Commit the rows that bring a table to a position."""
        self.doing = f"writing {name} at position {upto}"
        table = self._tables.derived[name]
        if table.only_grows:
            rows = table.append(rows, upto)
        else:
            *earlier, last = rows.chunks(table.spec.schema, _MERGE_BYTES)
            for chunk in earlier:
                table.revise(chunk, upto)
            table.put(last, upto)
        self._tables.on_write(name, rows)

    def _write_revised(
        self, name: str, rows: Staged, towards: int, *, restart_followers: bool = False
    ) -> None:
        if rows.num_rows:
            table = self._tables.derived[name]
            for chunk in rows.chunks(table.spec.schema, _MERGE_BYTES):
                table.revise(chunk, towards, restart_followers=restart_followers)
            self._tables.on_write(name, rows)

    def _recompute_documents(self, step: Step, portion: Portion) -> None:
        """Recompute documents of new and changed models that have no new events themselves."""
        names = tuple(name for name in step.names if name in NEED_MODELS)
        table = self._tables.derived["event_states" if "event_states" in names else names[0]]
        documents = table.streams_of_models(portion.arrived.values())
        errors = [no_version(version) for version in sorted(portion.versions)]
        if len(errors) > _MAX_VERSIONS or "validation_errors" not in table.spec.schema.names:
            errors = []
        documents += table.streams_of_models(portion.changed.values(), errors)
        touched = step.raw.streams_between(step.after, step.upto)
        # Neighbours in the files of raw_events are one small read.
        others = sorted(set(documents).difference(touched), key=lambda c: (partition_of(c), c))
        self._recompute(Step(step.raw, names, step.after, step.upto), others)

    def _read_set_aside(self) -> None:
        """Read which streams are set aside, and which of them by other versions."""
        table = self._tables.derived.get(UNPROCESSED)
        rows = pa.table({"stream_cid": [], "version": []})
        if table is not None and table.position:
            rows = table.select("stream_cid, version", "reason IS NOT NULL")
        versions = dict(zip(*rows.to_pydict().values(), strict=True))
        self._set_aside = frozenset(versions)
        self._of_other_versions = {cid for cid, v in versions.items() if v != __version__}

    def _retry_set_aside(self) -> None:
        """Compute the streams that other versions have set aside."""
        derived = self._tables.derived
        table = derived.get(UNPROCESSED)
        others = [t.position for name, t in derived.items() if name != UNPROCESSED]
        if table is not None and table.position < min(others, default=0):
            # The tables are of a version that set nothing aside: there is nothing to catch up on.
            table.put(table.spec.schema.empty_table(), min(others))
        position = self._tables.position
        streams = sorted(self._of_other_versions)
        names = tuple(name for name in derived if name != UNPROCESSED)
        # Tables that are not kept up to date now would lack their rows.
        left_out = (self._tables.directory / name for name in DERIVED if name not in derived)
        if (
            streams
            and position == max(t.position for t in derived.values())
            and not any(map(is_delta, left_out))
        ):
            raw = self._tables.raw.files_upto(position)
            self._recompute(Step(raw, names, position, position), streams, streams)

    def _recompute(
        self, step: Step, streams: Sequence[bytes], retried: Collection[bytes] = ()
    ) -> None:
        names = (*step.names, UNPROCESSED)
        step = replace(step, names=names, after=0, retried=frozenset(retried))
        for start in range(0, len(streams), _DOCUMENTS_PER_COMMIT):
            chunk = streams[start : start + _DOCUMENTS_PER_COMMIT]
            taken_up = self._of_other_versions if retried else frozenset()
            step = replace(step, set_aside=self._set_aside - taken_up)
            for name, rows in self._computer.compute(step, chunk).rows.items():
                if name in self._tables.derived:
                    self._write_revised(name, rows, step.upto, restart_followers=bool(retried))
            self._read_set_aside()

    def close(self) -> None:
        """End the process that computes short steps. It is started again when it is needed."""
        self._computer.close()


class ChildComputer:
    """Computes portions as `Computer` does, in a process of its own, which can be killed.

    The stream at which the process ended is set aside, with that reason, and the others are
    computed again, in two halves, so that many such streams cost little more than one. A process
    may also end because somebody kills it, or because the machine has no memory left. So what has
    not used up its time is tried twice. `raw_events` is the only state, so a process can be
    replaced at any moment; it keeps models and summaries of long streams only to be fast.
    """

    def __init__(self, command: Sequence[str], idle: float = 0.0) -> None:
        self._process = ChildProcess(command, idle)

    def compute(self, step: Step, streams: Sequence[bytes]) -> Portion:
        """Compute the portion of these streams; see `Computer.compute`.

        Raises:
            SinkError: `raw_events` is damaged, or process after process ends.
        """
        portion = Portion()
        deaths: Counter[bytes] = Counter()
        reasons: dict[bytes, str] = {}
        left = [list(streams)]
        while left:
            chunk = left.pop()
            try:
                portion.merge(self._process.ask(partial(compute_in_child, step, chunk)))
            except StreamEndedError as error:
                cid = error.cid
                deaths[cid] += _TRIES if error.timed_out else 1
                if deaths[cid] >= _TRIES and cid:
                    reasons[cid] = error.reason
                    step = replace(step, set_aside=step.set_aside | {cid})
                elif deaths[cid] > _TRIES:
                    raise SinkError(f"cannot compute the tables: {error}") from None
                half = len(chunk) // 2
                left += [chunk[half:], chunk[:half]] if half else [chunk]
        if reasons:
            portion.merge(self._set_aside(step, reasons))
        return portion

    def _set_aside(self, step: Step, reasons: Mapping[bytes, str]) -> Portion:
        """Return the rows about streams that are set aside, for these reasons by stream CID."""
        unreadable: set[bytes] = set()
        while True:
            request = partial(portion_of_set_aside, step, reasons, frozenset(unreadable))
            try:
                return self._process.ask(request)
            except StreamEndedError as error:
                if error.cid in unreadable or error.cid not in reasons:
                    raise SinkError(f"cannot compute the tables: {error}") from None
                unreadable.add(error.cid)

    def close(self) -> None:
        """End the process; the next request starts another one."""
        self._process.close()


@cache
def worker_computer(command: Sequence[str] | None) -> Computer | ChildComputer:
    """Return what computes portions for this worker of Spark's; see `Workers.child_command`."""
    return Computer() if command is None else ChildComputer(command, _IDLE)


def compute_partition(step: Step, command: Sequence[str] | None, partition: int) -> Portion:
    """Compute the portion of the streams in a partition.

    Raises:
        SinkError: as `ChildComputer.compute`.
    """
    streams = step.raw.streams_between(step.after, step.upto, [partition])
    return worker_computer(command).compute(step, streams)


def _count_streams(raw: RawFiles, after: int, upto: int) -> int:
    """Return about how many streams have events at positions (after, upto]."""
    if upto - after <= _SHORT_POSITIONS:
        return 0
    # To list all of them takes half a second of a step; the partitions are about equal.
    return PARTITIONS * len(raw.streams_between(after, upto, [0]))


def _each_once(rows: Staged) -> Staged:
    """Return one row for each stream: several partitions may have set one model aside."""
    read = rows.read(TABLES[UNPROCESSED].schema)
    at = {cid: number for number, cid in enumerate(read["stream_cid"].to_pylist())}
    return Staged(tables=(read.take(pa.array([*at.values()], pa.int64())),))
