"""Running the pipeline from start to stop: node, tables, Spark, query, and the telling of it."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_sink.errors import FeedUnreachableError, SinkError
from spark_sink.feed import Feed
from spark_sink.java import find_java
from spark_sink.pipeline import BatchReport, QuerySettings, Sink, start_query
from spark_sink.session import start_session, translate
from spark_sink.source import MAX_ROWS_PER_BATCH, PARTITIONS
from spark_sink.tables import CHECKPOINT_DIR, SCRATCH_DIR, Tables, lock

# How long a node is waited for at the start, a batch at the end; seconds.
_START_PATIENCE: Final = 30.0
_STOP_PATIENCE: Final = 30.0
_POLL: Final = 0.2
_ASK_NODE_EVERY: Final = 5.0

Tell = Callable[[str, dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What `spark-sink run` is told. `checkpoint` None: inside `tables`."""

    url: str
    tables: Path
    checkpoint: Path | None = None
    once: bool = False
    trigger_ms: int = 500
    max_rows_per_batch: int = MAX_ROWS_PER_BATCH
    partitions: int = PARTITIONS
    master: str = "local[2]"
    driver_memory: str = "1g"
    verbose: bool = False
    token: str | None = field(default=None, repr=False)
    spark_settings: dict[str, str] = field(default_factory=dict)


class Runner:
    """One run. `tell` gets what happens, as the name of an event and its facts:

    started {url, tables, epoch, position, head}, batch {batch, rows, streams, position, seconds,
    lag}, waiting {url}, resumed {url}, stopped {position, rows, seconds}.
    """

    def __init__(self, settings: RunSettings, tell: Tell) -> None:
        self._settings = settings
        self._tell = tell
        self._feed = Feed(settings.url, _START_PATIENCE, settings.token)
        self._stop = threading.Event()
        self._began = False
        self._rows = 0

    def stop(self) -> bool:
        """Ask for a clean end, from any thread or a signal handler.

        Returns:
            False while the query has not begun: there is nothing to finish.
        """
        self._stop.set()
        return self._began

    def run(self) -> None:
        """Run until the end: the head with `once`, else `stop()`.

        Raises:
            SinkError: what ended the run early. The tables are whole; another run goes on.
        """
        started = time.monotonic()
        java = find_java()
        with lock(self._settings.tables):
            head = self._feed.head()
            tables = Tables(self._settings.tables.absolute(), head.epoch)
            self._feed.check(tables.raw_position, head.epoch, head)
            sink = Sink(tables, self._on_batch)
            sink.catch_up()
            spark = start_session(
                java,
                tables.directory / SCRATCH_DIR,
                master=self._settings.master,
                driver_memory=self._settings.driver_memory,
                verbose=self._settings.verbose,
                settings=self._settings.spark_settings,
            )
            self._tell(
                "started",
                {
                    "url": self._settings.url,
                    "tables": str(tables.directory),
                    "epoch": head.epoch,
                    "position": tables.raw_position,
                    "head": head.head,
                },
            )
            try:
                self._run_query(spark, sink)
            finally:
                with suppress(Exception):  # it may be gone already, and has nothing of ours
                    spark.stop()
        seconds = round(time.monotonic() - started, 3)
        self._tell(
            "stopped", {"position": tables.raw_position, "rows": self._rows, "seconds": seconds}
        )

    def _run_query(self, spark: SparkSession, sink: Sink) -> None:
        """Start the query and see it through to its end, or to ours."""
        settings = self._settings
        self._began = True
        checkpoint = settings.checkpoint or sink.tables.directory / CHECKPOINT_DIR
        try:
            query = start_query(
                spark,
                sink,
                QuerySettings(
                    url=settings.url,
                    checkpoint=checkpoint.absolute(),
                    trigger_ms=None if settings.once else settings.trigger_ms,
                    max_rows_per_batch=settings.max_rows_per_batch,
                    partitions=settings.partitions,
                    token=settings.token,
                ),
            )
            self._watch(query)
            if self._stop.is_set():
                sink.close(_STOP_PATIENCE)
                query.stop()
            elif (failure := query.exception()) is not None:
                raise sink.error or translate(failure) from failure
        except Exception as error:
            # A signal to the whole process group ends Spark's Java as well, maybe before us.
            if not self._stop.wait(_POLL):
                raise translate(error) from error

    def _watch(self, query: StreamingQuery) -> None:
        """Wait for the end of the query or of us; tell when the node goes away and comes back."""
        answers = True
        asked = time.monotonic()
        while query.isActive and not self._stop.wait(_POLL):
            if time.monotonic() - asked < _ASK_NODE_EVERY:
                continue
            asked = time.monotonic()
            if (self._head() is not None) != answers:
                answers = not answers
                self._tell("resumed" if answers else "waiting", {"url": self._settings.url})

    def _on_batch(self, report: BatchReport) -> None:
        self._rows += report.rows
        head = self._head()
        lag = None if head is None else max(0, head - report.position)
        facts = {**asdict(report), "seconds": round(report.seconds, 3), "lag": lag}
        self._tell("batch", facts)

    def _head(self) -> int | None:
        """The feed's head; None when the node does not answer, or has another log by now."""
        try:
            return self._feed.head(patience=0).head
        except FeedUnreachableError:
            return None
        except SinkError:  # the query meets it too, and ends with it
            return None
