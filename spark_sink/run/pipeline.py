"""One streaming query that keeps the tables up to date with a node's feed, exactly once.

Spark cuts the feed into batches and writes down the end of each before it starts; its workers
fetch a batch's rows in parallel, and write them to files (`tables.staging`). `Sink` then does
two things with a batch:

1. append to `raw_events` the rows beyond the table's position, which must follow it without a gap;
2. bring the other tables to the position of `raw_events` (`spark_sink.derive`), each in one commit;
   while there is much more at the node, that waits for some batches.

Why every row counts once. A position holds the same event for ever, and each commit carries the
position that it brings its table to (see `spark_sink.tables`). Whatever is done again after a crash
is measured against the tables themselves:

- killed before or in commit 1: nothing of it is visible; the batch runs again.
- killed between 1 and the last of 2: the batch runs again; its rows are not beyond the position of
  `raw_events`, so none is appended. The tables that are still behind are computed now.
- killed after that, before Spark has noted the batch as done: it runs again and changes nothing,
  not even a table's version.
- the checkpoint is lost: a new one starts at the position of `raw_events`. It has another batch
  numbering, which no table knows of.
- a table is lost: it is at position 0 again, and the next run computes all of it.

No step depends on Spark's batch ids, nor on batches being cut the same way twice. A gap, which
only a deleted `raw_events` can cause, ends the run with an error.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_sink.derive.derivation import Derivation
from spark_sink.derive.workers import Workers, stage_frame
from spark_sink.errors import SinkError, TablesError, cannot_write
from spark_sink.run.session import translate
from spark_sink.source.options import MAX_ROWS_PER_BATCH
from spark_sink.tables.delta import FAULTS
from spark_sink.tables.directory import Tables
from spark_sink.tables.staging import StagedFeed

# Rows of a batch where the workers' files become the table's; else this process writes it all.
_ROWS_PER_BATCH: Final = 50_000
# With more than that at the node still to be read, the derived tables wait for it: a step of theirs
# reads whole streams back, and one long step reads them once.
_BACKLOG: Final = 20_000
# They wait for no more than that many events, or as many as they have.
_LONGEST_WAIT: Final = 1_000_000
# A batch of so few leaves time to tidy up what large ones before it have left.
_FEW_ROWS: Final = 1_000
# Ranges that are fetched at once, where Spark has that many cores. A node is not quicker for more,
# and each of them writes files of its own.
_MOST_RANGES: Final = 8


@dataclass(frozen=True, slots=True)
class BatchReport:
    """What a batch did: rows appended to `raw_events`, streams computed anew, and the position
    that all tables have reached, and each of them."""

    batch: int
    rows: int
    streams: int
    position: int
    seconds: float
    positions: dict[str, int]


class Sink:
    """What Spark calls with each batch.

    `head` tells where the node's feed ends, None when that is not known; `workers` compute long
    steps.

    `error` is what went wrong in the latest batch, as it was raised here: Spark hands on only its
    text.
    """

    def __init__(
        self,
        tables: Tables,
        on_batch: Callable[[BatchReport], None] = lambda report: None,
        head: Callable[[], int | None] = lambda: None,
        workers: Workers | None = None,
    ) -> None:
        self.tables = tables
        self._feed_head = head
        self._derivation = Derivation(tables, workers)
        self.error: SinkError | None = None
        self._on_batch = on_batch
        self._busy = threading.Lock()
        self._closed = False

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Take a batch into the tables.

        Raises:
            SinkError: it could not be; nothing is lost, the batch can run again.
        """
        started = time.monotonic()
        with self._telling():
            parts = self._stage(frame)
            with self._busy:
                report = self._take(parts, batch_id, started)
        self._on_batch(report)

    def close(self, patience: float) -> None:
        """Let the batch under way finish, for at most `patience` seconds, and take no other."""
        finished = self._busy.acquire(timeout=patience)
        self._closed = True
        if finished:
            self._busy.release()

    def _stage(self, frame: DataFrame) -> list[StagedFeed]:
        """The batch's new rows, in files."""
        return stage_frame(frame, self.tables.raw_stager(), self.tables.raw_position)

    def _take(self, parts: Sequence[StagedFeed], batch_id: int, started: float) -> BatchReport:
        if self._closed:
            raise SinkError("the pipeline is stopping")
        appended = self.tables.append_staged(parts)
        self.tables.clear_staging()
        streams = 0 if self._is_far_behind() else self.catch_up()
        self.tables.tidy(idle=appended < _FEW_ROWS)
        seconds = time.monotonic() - started
        positions = self.tables.positions
        return BatchReport(batch_id, appended, streams, min(positions.values()), seconds, positions)

    def _is_far_behind(self) -> bool:
        """Should the derived tables wait until more of the feed is here?"""
        raw, derived = self.tables.raw_position, self.tables.position
        if raw - derived >= max(_LONGEST_WAIT, derived):
            return False
        head = self._feed_head()
        return head is not None and head - raw >= _BACKLOG

    def catch_up(self, window: int | None = None) -> int:
        """Bring the derived tables to the position of `raw_events`; returns how many streams
        were computed.

        Raises:
            SinkError: they could not be; nothing is lost.
        """
        with self._telling():
            return self._derivation.catch_up(window)

    def finish(self) -> None:
        """After the last batch: what it left to the next one, and the tidying up.

        Raises:
            SinkError: as `catch_up`.
        """
        self.catch_up()
        with self._telling():
            self.tables.tidy(idle=True)

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """What the disk, the libraries and Spark say, as errors of ours."""
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


def _check_checkpoint(checkpoint: Path, tables: Tables) -> None:
    """Would the query go on where the tables end? It shows with the next event only, otherwise."""
    commits = checkpoint / "commits"
    done = [int(file.name) for file in commits.glob("*") if file.name.isdigit()]
    if not done:
        return
    try:
        *_, last = (checkpoint / "offsets" / str(max(done))).read_text().splitlines()
        offset = json.loads(last)
        epoch, position = str(offset["epoch"]), int(offset["position"])
    except (OSError, ValueError, KeyError, TypeError):
        return  # Spark says what is wrong with it
    if epoch != tables.epoch or position > tables.raw_position:
        raise TablesError(
            f"raw_events in {tables.directory} is at position {tables.raw_position} of log "
            f"{tables.epoch}, but the checkpoint {checkpoint} has read up to {position} of log "
            f"{epoch}: was the table deleted while its checkpoint was kept? Delete the checkpoint, "
            "and reading goes on where the table ends"
        )


@dataclass(frozen=True, slots=True)
class QuerySettings:
    """How the feed is read. `trigger_ms` None: up to the head as it is now, then stop;
    `max_rows_per_batch` None: what the tables' format is good for; `partitions` None: as many as
    Spark has cores, up to a bound."""

    url: str
    checkpoint: Path
    trigger_ms: int | None = 500
    max_rows_per_batch: int | None = None
    partitions: int | None = None
    token: str | None = field(default=None, repr=False)


def start_query(spark: SparkSession, sink: Sink, settings: QuerySettings) -> StreamingQuery:
    """Start the streaming query that feeds `sink`.

    Raises:
        TablesError: the checkpoint has read more than the tables hold, or another log.
    """
    _check_checkpoint(settings.checkpoint, sink.tables)
    by_workers = sink.tables.raw.stager() is not None
    rows = settings.max_rows_per_batch or (_ROWS_PER_BATCH if by_workers else MAX_ROWS_PER_BATCH)
    ranges = settings.partitions or min(_MOST_RANGES, spark.sparkContext.defaultParallelism)
    source = (
        spark.readStream.format("recon")
        .option("url", settings.url)
        .option("startingOffset", sink.tables.raw_position)
        .option("maxRowsPerBatch", rows)
        .option("partitions", ranges)
    )
    if settings.token is not None:
        source = source.option("token", settings.token)
    events = source.load()
    writer = events.writeStream.queryName("spark-sink").foreachBatch(sink)
    writer = writer.option("checkpointLocation", str(settings.checkpoint))
    if settings.trigger_ms is None:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{settings.trigger_ms} milliseconds").start()
