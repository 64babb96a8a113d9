"""Running the pipeline from start to stop: node, tables, Spark, query, and the telling of it."""

import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_sink.derive.workers import SparkWorkers, warming_up
from spark_sink.errors import FeedUnreachableError, SinkError, TablesError
from spark_sink.run.cluster import WORKERS_PATIENCE, check_workers, is_local
from spark_sink.run.java import Java, find_java
from spark_sink.run.memory import allowance, heap_within, tasks_within, why_killed
from spark_sink.run.metrics import SinkMetrics, served
from spark_sink.run.pipeline import BatchReport, QuerySettings, Sink, start_query
from spark_sink.run.session import java_exit, start_session, translate
from spark_sink.schema import DERIVED, TABLES
from spark_sink.source.feed import Feed, Head
from spark_sink.tables.directory import CHECKPOINT_DIR, SCRATCH_DIR, Format, Tables, format_of, lock
from spark_sink.tables.staging import Staged

# How long a node is waited for at the start, a batch at the end; seconds.
_START_PATIENCE: Final = 30.0
_STOP_PATIENCE: Final = 30.0
_POLL: Final = 0.2
_ASK_NODE_EVERY: Final = 5.0
# After so long without an answer it is told that a node is waited for.
_SILENCE: Final = 1.0
KEEP_FREE: Final = 64_000_000

Tell = Callable[[str, dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What `spark-sink run` is told.

    `tables` None: a directory that is gone afterwards. `checkpoint` None: inside `tables`. `names`
    are the tables wanted beside `raw_events`, `table_format` None is that of the tables that are
    there. `show_rows`: tell of each row. `history` is how many hours old versions can be read. With
    less than `keep_free` bytes free on the tables' disk the run ends, before writing fails. For the
    rest see `QuerySettings` and `start_session`; `master` and `driver_memory` None: what the memory
    allows.
    """

    url: str
    tables: Path | None
    checkpoint: Path | None = None
    names: tuple[str, ...] = DERIVED
    table_format: Format | None = None
    show_rows: bool = False
    history: float = 1.0
    keep_free: int = KEEP_FREE
    metrics: str | None = None
    once: bool = False
    trigger_ms: int = 500
    max_rows_per_batch: int | None = None
    partitions: int | None = None
    master: str | None = None
    driver_memory: str | None = None
    verbose: bool = False
    token: str | None = field(default=None, repr=False)
    spark_settings: dict[str, str] = field(default_factory=dict)


class Runner:
    """One run. `tell` gets what happens, as the name of an event and its facts:

    waiting {url}, resumed {url}, starting {url, tables, epoch, position, head},
    no_workers {master, patience},
    started {url, tables, epoch, position, head, metrics},
    batch {batch, rows, streams, position, seconds, lag}, row {table, row},
    stopped {position, rows, seconds}. `waiting` at the start also has {patience}, in seconds.
    """

    def __init__(self, settings: RunSettings, tell: Tell) -> None:
        self._settings = settings
        self._tell = tell
        self._feed = Feed(settings.url, _START_PATIENCE, settings.token)
        self._metrics = SinkMetrics()
        self._stop = threading.Event()
        self._began = False
        self._rows = 0
        self._temporary: Path | None = None
        self._directory = Path()
        self._allowance = allowance()

    def stop(self) -> bool:
        """Ask for a clean end, from any thread or a signal handler.

        Returns:
            False while the query has not begun: there is nothing to finish. The process can end
            at once, after `clean`.
        """
        self._stop.set()
        return self._began

    def clean(self) -> None:
        """Remove the tables, if they are of this run alone."""
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def run(self) -> None:
        """Run until the end: the head with `once`, else `stop()`.

        Raises:
            SinkError: what ended the run early. The tables are whole; another run goes on.
        """
        started = time.monotonic()
        java = find_java()
        head = self._find_node()
        if self._settings.tables is None:
            self._temporary = Path(tempfile.mkdtemp(prefix="spark-sink-"))
        directory = (self._settings.tables or self._temporary or Path()).absolute()
        self._directory = directory
        try:
            with lock(directory), served(self._metrics, self._settings.metrics) as metrics:
                self._check_room()
                position = self._keep_up(java, directory, head, metrics)
        except SinkError as error:
            if (why := why_killed(self._allowance, allowance(), java_exit())) is None:
                raise
            raise SinkError(why) from error
        finally:
            self.clean()
        seconds = round(time.monotonic() - started, 3)
        self._tell("stopped", {"position": position, "rows": self._rows, "seconds": seconds})

    def _find_node(self) -> Head:
        """Where the node's feed is; says so while it does not answer."""
        waits = threading.Event()

        def tell() -> None:
            waits.set()
            self._tell("waiting", {"url": self._settings.url, "patience": _START_PATIENCE})

        timer = threading.Timer(_SILENCE, tell)
        timer.daemon = True
        timer.start()
        try:
            head = self._feed.head()
        finally:
            timer.cancel()
        if waits.is_set():
            self._tell("resumed", {"url": self._settings.url})
        return head

    def _keep_up(self, java: Java, directory: Path, head: Head, metrics: str | None) -> int:
        """Tables, Spark, query; returns the position that `raw_events` is at in the end."""
        settings = self._settings
        tables = Tables(
            directory,
            head.epoch,
            settings.names,
            table_format=settings.table_format or format_of(directory),
            on_write=self._on_write,
        )
        self._feed.check(tables.raw_position, head.epoch, head)
        self._tell(
            "starting",
            {
                "url": settings.url,
                "tables": str(directory),
                "epoch": head.epoch,
                "position": tables.raw_position,
                "head": head.head,
            },
        )
        tables.keep_history(settings.history)
        spark = start_session(
            java,
            directory / SCRATCH_DIR,
            master=settings.master,
            tasks=tasks_within(self._allowance.limit),
            driver_memory=settings.driver_memory or heap_within(self._allowance.limit),
            verbose=settings.verbose,
            settings=settings.spark_settings,
        )
        self._tell(
            "started",
            {
                "url": settings.url,
                "tables": str(directory),
                "epoch": head.epoch,
                "position": tables.raw_position,
                "head": head.head,
                "metrics": metrics,
            },
        )
        with warming_up(spark):
            try:
                self._check_cluster(spark, directory)
                sink = Sink(tables, self._on_batch, self._head, SparkWorkers(spark))
                sink.catch_up()
                self._metrics.reached(tables.positions, head.head)
                self._run_query(spark, sink)
            finally:
                with suppress(Exception):  # it may be gone already, and has nothing of ours
                    spark.stop()
        return tables.raw_position

    def _check_cluster(self, spark: SparkSession, directory: Path) -> None:
        """Before the first batch, where it is more than this process."""
        master = spark.sparkContext.master or ""
        if not is_local(master):
            facts = {"master": master, "patience": WORKERS_PATIENCE}
            tell = partial(self._tell, "no_workers", facts)
            try:
                check_workers(spark, directory, tell, patience=WORKERS_PATIENCE)
            except Exception as error:
                raise translate(error) from error

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
            self._watch(query, sink)
            if self._stop.is_set():
                sink.close(_STOP_PATIENCE)
                query.stop()
            elif (failure := query.exception()) is not None:
                self._metrics.failures.inc()
                raise sink.error or translate(failure) from failure
            else:
                sink.finish()
        except Exception as error:
            # A signal to the whole process group ends Spark's Java as well, maybe before us.
            if not self._stop.wait(_POLL):
                raise translate(error) from error

    def _watch(self, query: StreamingQuery, sink: Sink) -> None:
        """Wait for the end of the query or of us; tell when the node goes away and comes back."""
        answers = True
        asked = time.monotonic()
        while query.isActive and not self._stop.wait(_POLL):
            if time.monotonic() - asked < _ASK_NODE_EVERY:
                continue
            asked = time.monotonic()
            self._check_room()
            head = self._head()
            self._metrics.reached(sink.tables.positions, head)
            if (head is not None) != answers:
                answers = not answers
                self._tell("resumed" if answers else "waiting", {"url": self._settings.url})

    def _on_batch(self, report: BatchReport) -> None:
        self._rows += report.rows
        head = self._head()
        self._metrics.batch_seconds.observe(report.seconds)
        self._metrics.reached(report.positions, head)
        lag = None if head is None else max(0, head - report.position)
        facts = {**asdict(report), "seconds": round(report.seconds, 3), "lag": lag}
        self._tell("batch", facts)
        self._check_room()

    def _check_room(self) -> None:
        """End the run while the disk still has room for what is being written."""
        free = shutil.disk_usage(self._directory).free
        if free < self._settings.keep_free:
            raise TablesError(
                f"the disk of {self._directory} is nearly full: {free / 1e6:.0f} MB are free, and "
                f"--keep-free is {self._settings.keep_free / 1e6:.0f} MB; make room and start "
                "again, nothing is lost"
            )

    def _on_write(self, name: str, rows: Staged) -> None:
        self._metrics.rows.labels(name).inc(rows.num_rows)
        if self._settings.show_rows:
            for row in rows.read(TABLES[name].schema).to_pylist():
                self._tell("row", {"table": name, "row": row})

    def _head(self) -> int | None:
        """The feed's head; None when the node does not answer, or has another log by now."""
        try:
            return self._feed.head(patience=0).head
        except FeedUnreachableError:
            return None
        except SinkError:  # the query meets it too, and ends with it
            return None
