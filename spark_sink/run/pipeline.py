"""One streaming query that keeps the tables up to date with a node's feed, exactly once.

Spark divides the feed into batches and records the end of each in its checkpoint before it starts.
It is not asked for their rows, which would go through Java: of a batch, only that end is used.
Spark's workers fetch the rows up to there, a range each, and write them to files
(`tables.staging`); for a short batch, this process does both. Then `Sink` takes two steps:

1. It appends to `raw_events` the rows after the table's position, which must follow without a gap.
2. It brings the other tables to the position of `raw_events` (`spark_sink.derive`), each in one
   commit. While the node has many more events, this waits for further batches.

Why every row counts once: A position always holds the same event, and each commit records the
position that its table has reached (see `spark_sink.tables`; of several nodes,
`spark_sink.run.follower`). Whatever is repeated after a crash is compared with the tables
themselves:

- Killed before or during commit 1: nothing is visible, and the batch runs again.
- Killed between commit 1 and the last commit of step 2: the batch runs again. Its rows are not
  after the position of `raw_events`, so none is appended. The tables that are behind catch up.
- Killed after that, before Spark has recorded the batch as done: it runs again and changes nothing,
  not even a table's version.
- The checkpoint is lost: a new one starts at the position of `raw_events`. Its batch numbers start
  again, but no table depends on them.
- A table is lost: it starts at position 0 again, and the next run computes all of it.

No step depends on Spark's batch ids, nor on the same division into batches. A gap, which only a
deleted `raw_events` can cause, ends the run with an error.
"""

import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_sink.derive.derivation import STEP_LENGTH, Derivation
from spark_sink.derive.workers import NoWorkers, Workers, stage_frame, stage_ranges
from spark_sink.errors import FeedUnreachableError, SinkError, TablesError, cannot_write
from spark_sink.run.spark_session import translate
from spark_sink.source.data_source import ReconDataSource
from spark_sink.source.source_options import SourceOptions
from spark_sink.tables.location import FAULTS
from spark_sink.tables.placement import Placement
from spark_sink.tables.staging import StagedFeed, stage_feed
from spark_sink.tables.tables import Tables
from spark_sink.views.keeping import Views

ROWS_PER_BATCH: Final = 1_000_000
"""Positions per batch by default. Between two batches, the node waits for the commit and for
Spark."""
_BACKLOG: Final = 20_000
"""Events still to be read from the node above which the derived tables wait: a step reads whole
streams back, and one long step reads each only once."""
_LONGEST_WAIT: Final = 1_000_000
"""Events that the derived tables wait for at most, if they contain fewer themselves."""
_IDLE_ROWS: Final = 1_000
"""Rows of a batch below which there is time to merge the many files of large batches before it."""
_TIDIED_BYTES: Final = 8 * 1024 * 1024
"""Bytes of files of a table that are merged between two small batches: the next one must not
wait."""
_SHORT_BATCH: Final = 500
"""Positions of a batch up to which this process fetches it."""
_MAX_RANGES: Final = 8
"""Ranges to fetch in parallel if Spark has enough cores. More do not make a node faster, and each
writes files of its own."""


_COMPUTING: Final = "computing"


@dataclass(frozen=True, slots=True)
class BatchReport:
    """What a batch did.

    Attributes:
        batch: Spark's number of it.
        rows: the number of rows appended to `raw_events`.
        streams: the number of streams recomputed.
        position: the position that all tables have reached.
        seconds: the time from the batch's arrival to its last commit.
        positions: the position of each table.
    """

    batch: int
    rows: int
    streams: int
    position: int
    seconds: float
    positions: dict[str, int]


class Sink:
    """Adds each batch to the tables.

    Its methods raise `SinkError` if that fails. Nothing is lost, and the batch can run again.

    Args:
        tables: to keep up to date.
        on_batch: called after each batch.
        head: returns the head of the node's feed; None if unknown.
        workers: fetch long batches and compute long steps; by default, this process does.
        placement: returns where the rows go that are in the feed by now; by default, behind those
            of the table.
        may_continue: asked between two commits; if it says no, the rest is left to the next run.
        on_view_fault: see `Views`.

    Attributes:
        error: the error of the latest batch, of which Spark passes on only the text.
        doing: what it does at the moment.
    """

    def __init__(
        self,
        tables: Tables,
        on_batch: Callable[[BatchReport], None] = lambda report: None,
        head: Callable[[], int | None] = lambda: None,
        workers: Workers | None = None,
        placement: Callable[[], Placement] | None = None,
        may_continue: Callable[[], bool] = lambda: True,
        on_view_fault: Callable[[str, str], None] | None = None,
    ) -> None:
        self.tables = tables
        self._may_continue = may_continue
        self._doing: str | None = None
        self._feed_head = head
        self._placement = placement or tables.following
        self._workers = workers or NoWorkers()
        self._derivation = Derivation(tables, self._workers)
        self._views = Views(tables.directory, tables.retention, on_view_fault)
        self.error: SinkError | None = None
        self._on_batch = on_batch
        self._busy = threading.Lock()
        self._closed = False

    def add_batch(self, source: SourceOptions, batch_id: int, end: tuple[str, int]) -> None:
        """Add a batch to the tables: what the feed has after them.

        Args:
            source: the feed, and how many ranges of it are fetched in parallel.
            batch_id: Spark's number of the batch.
            end: the log of the batch, and up to where it reads it.
        """
        started = time.monotonic()
        self._doing = f"fetching the events of batch {batch_id}"
        with self.as_sink_errors():
            placement = self._placement()
            parts = self._fetch(source, end, placement)
            with self._busy:
                report = self._commit(parts, batch_id, started, placement)
        self._doing = None
        self._on_batch(report)

    @property
    def doing(self) -> str | None:
        """What it does at the moment; None: it waits."""
        return self._derivation.doing if self._doing == _COMPUTING else self._doing

    def append_snapshot(self, frame: DataFrame) -> int:
        """Append all rows of a frame to an empty `raw_events`, in one commit; return how many."""
        with self.as_sink_errors():
            tables = self.tables
            stager, leave_out = tables.raw.stager(), tables.leave_out
            parts = stage_frame(frame, stager, tables.following(), leave_out)
            last = max((part.last for part in parts), default=0)
            if sum(part.positions for part in parts) != last:
                self.tables.clear_staging()
                raise SinkError(
                    f"the snapshot lacks some of the events up to position {last}: `recon-node "
                    "snapshot verify` says which objects are wrong; or start without it"
                )
            appended = self.tables.append_staged(parts)
            self.tables.clear_staging()
            return appended

    def close(self, patience: float) -> bool:
        """Let the current batch finish, for at most `patience` seconds; return whether it has.

        No other one is taken.
        """
        finished = self._busy.acquire(timeout=patience)
        self._closed = True
        if finished:
            self._derivation.close()
            self._busy.release()
        return finished

    def _fetch(
        self, source: SourceOptions, end: tuple[str, int], placement: Placement
    ) -> list[StagedFeed]:
        """Write the rows of a batch to files.

        Those of a short batch here: to start tasks would take longer. If the node does not answer,
        workers wait for it.
        """
        stager, leave_out = self.tables.raw.stager(), self.tables.leave_out
        after, (epoch, upto) = self.tables.reading.position, end
        if upto - after <= _SHORT_BATCH:
            rows = source.feed.read(after, upto, epoch, patience=0)
            with suppress(FeedUnreachableError):
                return list(stage_feed(map(leave_out, rows), stager, placement))
        stage = partial(stage_ranges, source.feed, stager, placement, leave_out)
        parts = self._workers.map(stage, [[part] for part in source.ranges(after, upto, epoch)])
        return list(chain.from_iterable(parts))

    def _commit(
        self,
        parts: Sequence[StagedFeed],
        batch_id: int,
        started: float,
        placement: Placement | None = None,
    ) -> BatchReport:
        if self._closed:
            raise SinkError("the pipeline is stopping")
        self._doing = f"writing raw_events, batch {batch_id}"
        appended = self.tables.append_staged(parts, placement)
        self.tables.clear_staging()
        streams = 0 if self._is_far_behind() else self.catch_up()
        self._keep_views()
        idle = appended < _IDLE_ROWS
        self._tidy(idle=idle, most=_TIDIED_BYTES if idle else math.inf)
        seconds = time.monotonic() - started
        positions = self.tables.positions
        return BatchReport(batch_id, appended, streams, min(positions.values()), seconds, positions)

    def _is_far_behind(self) -> bool:
        """Return whether the derived tables should wait for more of the feed."""
        raw, derived = self.tables.raw_position, self.tables.position
        if raw - derived >= max(_LONGEST_WAIT, derived):
            return False
        head = self._feed_head()
        return head is not None and head - raw >= _BACKLOG

    def catch_up(self, step_length: int = STEP_LENGTH) -> int:
        """Bring the derived tables to where `raw_events` is; return how many streams changed."""
        self._doing = _COMPUTING
        with self.as_sink_errors():
            streams = self._derivation.catch_up(step_length, may_continue=self._may_continue)
        self._doing = None
        return streams

    def _keep_views(self) -> None:
        if self._may_continue():
            self._doing = "writing views"
            self._views.keep()

    def fill_new_views(self) -> None:
        """Fill views that were created since the last batch, unless there is a batch."""
        if self._busy.acquire(blocking=False):
            try:
                with self.as_sink_errors():
                    self._keep_views()
            finally:
                self._doing = None
                self._busy.release()

    def _tidy(self, *, idle: bool, most: float = math.inf) -> None:
        if self._may_continue():
            self._doing = "merging small files and deleting old ones"
            self.tables.tidy(idle=idle, most=most)

    def finish(self) -> None:
        """After the last batch, let the derived tables catch up, and merge small files."""
        self.catch_up()
        with self.as_sink_errors():
            self._keep_views()
            self._tidy(idle=True)

    @contextmanager
    def as_sink_errors(self) -> Iterator[None]:
        """Raise errors of the disk, the libraries and Spark as `SinkError`s."""
        try:
            yield
        except SinkError as error:
            self.error = error
            raise
        except (PySparkException, Py4JError, ConnectionError) as error:
            self.error = translate(error)
            raise self.error from error
        except FAULTS as error:
            self.error = cannot_write(self.tables.directory, error)
            raise self.error from error


def _end_of(checkpoint: Path, batch: int) -> tuple[str, int] | None:
    """Return the log of a batch, and up to where it reads it, which Spark notes before it starts.

    None if that cannot be read: Spark reports what is wrong.
    """
    try:
        *_, last = (checkpoint / "offsets" / str(batch)).read_text().splitlines()
        offset = json.loads(last)
        return str(offset["epoch"]), int(offset["position"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _check_checkpoint(checkpoint: Path, tables: Tables) -> None:
    """Check that the query continues where the tables end, before the next event shows it."""
    commits = checkpoint / "commits"
    done = [int(file.name) for file in commits.glob("*") if file.name.isdigit()]
    if not done or (end := _end_of(checkpoint, max(done))) is None:
        return
    epoch, position = end
    reading = tables.reading
    if epoch != reading.epoch or position > reading.position:
        raise TablesError(
            f"raw_events in {tables.directory} is at position {reading.position} of log "
            f"{reading.epoch}, but the checkpoint {checkpoint} has read up to {position} of log "
            f"{epoch}: was the table deleted while its checkpoint was kept? Delete the checkpoint, "
            "and reading continues where the table ends"
        )


@dataclass(frozen=True, slots=True)
class QuerySettings:
    """How the feed is read.

    Attributes:
        url: of the node's HTTP API.
        checkpoint: directory of Spark's checkpoint.
        trigger_ms: least time between batches; None: stop at the current head.
        max_rows_per_batch: None: a default.
        partitions: parallel requests; None: as many as Spark has cores, up to a limit.
        patience: seconds to wait for a node that does not answer; None: the source's default.
        token: of the API.
    """

    url: str
    checkpoint: Path
    trigger_ms: int | None = 0
    max_rows_per_batch: int | None = None
    partitions: int | None = None
    patience: float | None = None
    token: str | None = field(default=None, repr=False)


def start_query(spark: SparkSession, sink: Sink, settings: QuerySettings) -> StreamingQuery:
    """Start the streaming query that feeds `sink`.

    Raises:
        TablesError: the checkpoint has read more than the tables hold, or another log.
    """
    _check_checkpoint(settings.checkpoint, sink.tables)
    ranges = settings.partitions or min(_MAX_RANGES, spark.sparkContext.defaultParallelism)
    options: dict[str, str] = {
        "url": settings.url,
        "startingOffset": str(sink.tables.reading.position),
        "maxRowsPerBatch": str(settings.max_rows_per_batch or ROWS_PER_BATCH),
        "partitions": str(ranges),
    }
    if settings.patience is not None:
        options["patience"] = str(settings.patience)
    if settings.token is not None:
        options["token"] = settings.token
    batches = spark.readStream.format(ReconDataSource.name()).options(**options).load()
    source = SourceOptions.parse(options)

    def add(_: DataFrame, batch: int) -> None:
        if (end := _end_of(settings.checkpoint, batch)) is None:
            raise TablesError(
                f"the checkpoint {settings.checkpoint} does not say where batch {batch} ends: "
                "delete it, and reading continues where the tables end"
            )
        sink.add_batch(source, batch, end)

    writer = batches.writeStream.queryName("spark-sink").foreachBatch(add)
    writer = writer.option("checkpointLocation", str(settings.checkpoint))
    if settings.trigger_ms is None:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{settings.trigger_ms} milliseconds").start()
