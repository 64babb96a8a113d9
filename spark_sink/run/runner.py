"""Runs the pipeline from start to stop: node, tables, Spark, query; and reports events."""

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

from recon_node.base.terminal import human_size
from recon_node.base.timing import span
from spark_sink.derive.workers import SparkWorkers, warming_up
from spark_sink.errors import SinkError, TablesError, another_log
from spark_sink.exposition import served
from spark_sink.run.backfill import ANYONE, Backfill, find_backfill
from spark_sink.run.cluster import WORKERS_PATIENCE, calling_after, check_workers, is_local
from spark_sink.run.feed_reader import SILENCE, FeedReader, RunNodes
from spark_sink.run.memory import allowance, heap_within, tasks_within, why_killed
from spark_sink.run.metrics import SinkMetrics
from spark_sink.run.pipeline import BatchReport, QuerySettings, Sink
from spark_sink.run.spark_session import Java, find_java, java_exit, start_session, translate
from spark_sink.schema import DERIVED, RAW, TABLES, UNPROCESSED
from spark_sink.source.feed_client import Feed, Head
from spark_sink.tables.catalog import find_own_table
from spark_sink.tables.delta_log import Reading, epoch_of, reading_of
from spark_sink.tables.location import Location, absolute, local_directory
from spark_sink.tables.retention import Retention
from spark_sink.tables.staging import Staged
from spark_sink.tables.tables import CHECKPOINT_DIR, SCRATCH_DIR, Tables, check_checkpoint, lock

_START_TIMEOUT: Final = 30.0
"""Seconds to wait for the node at the start."""
_POLL: Final = 0.2
"""Seconds to wait for a signal that may have ended Spark's Java as well."""
KEEP_FREE: Final = 64_000_000
"""Bytes to keep free on the tables' disk."""
FAILOVER_AFTER: Final = 30.0
"""Seconds to wait for the node that is read before another one is."""

OnEvent = Callable[[str, dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The options of `spark-sink run`.

    Attributes:
        tables: where they are; None: in a temporary directory.
        checkpoint: None: inside `tables`, or for those in an object store, one that lasts as long
            as the run: the tables know their position.
        names: tables to keep up to date besides `raw_events`. Without `unprocessed_streams`, it is
            noted nowhere which streams are set aside.
        show_rows: report each row as an event.
        history: hours for which old versions stay readable.
        history_size: bytes that their files may take, for each table; None: in proportion to it.
        changes: hours for which the change data feed is kept; None: as old versions are.
        from_snapshot: URL of a snapshot to fill empty tables from; None: the feed has it all.
        signers: did:keys of whom one must have signed it, or `ANYONE`; none: the node that is read.
        exclude_dags: leave the events of DAGs out; tables that exist must be without them, too.
        other_urls: of further nodes of the same network, to go on from when one fails.
        failover_after: seconds without the node that is read, after which another one is.
        keep_free: the run ends when the tables' disk has fewer bytes free.
        master: see `start_session`; None: depends on the available memory, like `driver_memory`.

    The others are those of `QuerySettings` and `start_session`.
    """

    url: str
    tables: Location | None
    checkpoint: Path | None = None
    names: tuple[str, ...] = DERIVED
    show_rows: bool = False
    history: float = 1.0
    history_size: float | None = None
    changes: float | None = None
    keep_free: int = KEEP_FREE
    metrics: str | None = None
    once: bool = False
    trigger_ms: int = 0
    max_rows_per_batch: int | None = None
    partitions: int | None = None
    master: str | None = None
    driver_memory: str | None = None
    verbose: bool = False
    token: str | None = field(default=None, repr=False)
    other_urls: tuple[str, ...] = ()
    failover_after: float = FAILOVER_AFTER
    from_snapshot: str | None = None
    signers: tuple[str, ...] = ()
    exclude_dags: bool = False
    spark_settings: dict[str, str] = field(default_factory=dict)


class Runner:
    """One run. `on_begin` is called with the directory of this machine that belongs to the tables.

    `on_event` is called with the name of an event and its fields:

    waiting {url, reason}, resumed {url},
    starting {url, tables, epoch, position, head},
    lost {url, reason}, taking_over {url, epoch, head, from},
    took_over {url, epoch, head, rows, missing, position, seconds},
    no_workers {master, patience}, filling {snapshot, position}, filled {rows, position, seconds},
    started {url, tables, epoch, position, head, metrics},
    batch {batch, rows, streams, position, seconds, lag}, row {table, row},
    set_aside {stream, reason}, view_set_aside {view, reason}, stopping {doing, patience},
    stopped {position, rows, seconds}. At the start, `waiting` also has {patience}, in seconds.
    """

    def __init__(
        self,
        settings: RunSettings,
        on_event: OnEvent,
        on_begin: Callable[[Path], None] = lambda directory: None,
    ) -> None:
        self._settings = settings
        self._on_begin = on_begin
        self._started = time.monotonic()
        self._tables: Tables | None = None
        self._on_event = on_event
        urls = (settings.url, *settings.other_urls)
        patience = settings.failover_after if settings.other_urls else _START_TIMEOUT
        feeds = [Feed(url, patience, settings.token) for url in dict.fromkeys(urls)]
        self._nodes = RunNodes(feeds, settings.failover_after)
        self._reader: FeedReader | None = None
        self._metrics = SinkMetrics()
        self._stop = threading.Event()
        self._began = False
        self._rows = 0
        self._temporary: Path | None = None
        self._local = Path()  # what is not in an object store
        self._allowance = allowance()

    def stop(self) -> bool:
        """Ask for a clean end, from any thread or a signal handler.

        Returns:
            False if the query has not begun: there is nothing to finish, so the process can end
            at once, after `clean`.
        """
        self._stop.set()
        return self._began

    def report_stopping(self, patience: float) -> None:
        """Report what the end waits for, for some seconds at most."""
        doing = None if self._reader is None else self._reader.doing
        facts = {"doing": doing or "ending Spark", "patience": patience}
        self._on_event("stopping", facts)

    def report_stopped(self) -> None:
        """Report the end of a run that has opened the tables."""
        if self._tables is not None:
            seconds, position = time.monotonic() - self._started, self._tables.raw_position
            facts = {"position": position, "rows": self._rows, "seconds": round(seconds, 3)}
            self._on_event("stopped", facts)

    def clean(self) -> None:
        """Delete the tables if they are temporary."""
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def run(self) -> None:
        """Run until the end: the head with `once`, else `stop()`.

        Raises:
            SinkError: what ended the run early. The tables are consistent; another run continues.
        """
        java = find_java()
        known = self._known_reading()
        head = self._find_node(known)
        if self._settings.tables is None:
            self._temporary = Path(tempfile.mkdtemp(prefix="spark-sink-"))
        directory = absolute(self._settings.tables or self._temporary or Path())
        self._local = local_directory(directory)
        try:
            if self._settings.checkpoint is not None:
                check_checkpoint(self._settings.checkpoint, directory)
            with lock(directory), served(self._metrics.registry, self._settings.metrics) as metrics:
                self._check_disk()
                self._on_begin(self._local)
                self._run_pipeline(java, directory, head, metrics)
        except SinkError as error:
            if (why := why_killed(self._allowance, allowance(), java_exit())) is None:
                raise
            raise SinkError(why) from error
        finally:
            self.clean()
        self.report_stopped()

    def _known_reading(self) -> Reading | None:
        """Return how far which log was read; with one node, it is checked later."""
        tables = self._settings.tables
        if not self._nodes.several or tables is None:
            return None
        known = find_own_table(tables / RAW)
        return None if known is None else reading_of(known)

    def _find_node(self, reading: Reading | None) -> Head:
        """Return the head of a node's feed; report if it does not answer."""
        waits = threading.Event()
        nodes = self._nodes

        def report() -> None:
            waits.set()
            patience = _START_TIMEOUT + (nodes.failover_after if nodes.several else 0)
            reason = nodes.trouble or f"the node at {nodes.urls} has not answered yet"
            facts = {"url": nodes.urls, "reason": reason, "patience": patience}
            self._on_event("waiting", facts)

        with calling_after(SILENCE, report):
            head = nodes.find(reading, _START_TIMEOUT)
        if waits.is_set():
            self._on_event("resumed", {"url": nodes.current.url})
        return head

    def _run_pipeline(
        self, java: Java, directory: Location, head: Head, metrics: str | None
    ) -> None:
        """Open the tables, start Spark, run the query."""
        settings = self._settings
        self._tables = tables = self._open_tables(directory, head)
        same_log = head.epoch == tables.reading.epoch
        facts = {
            "url": self._nodes.current.url,
            "tables": str(directory),
            "epoch": head.epoch,
            "position": tables.raw_position,
            "head": tables.position_when_read_to(head.head) if same_log else head.head,
        }
        backfill = self._find_backfill(tables, head)
        self._on_event("starting", facts)
        tables.set_retention(Retention(settings.history, settings.history_size, settings.changes))
        spark = start_session(
            java,
            self._local / SCRATCH_DIR,
            master=settings.master,
            tasks=tasks_within(self._allowance.limit),
            driver_memory=settings.driver_memory or heap_within(self._allowance.limit),
            verbose=settings.verbose,
            settings=settings.spark_settings,
        )
        self._on_event("started", {**facts, "metrics": metrics})
        with warming_up(spark):
            try:
                self._check_cluster(spark, directory)
                if backfill is not None:
                    self._append_snapshot(spark, Sink(tables), backfill)
                self._read(spark, tables, head)
            finally:
                with suppress(Exception):  # it may have ended already
                    spark.stop()

    def _open_tables(self, directory: Location, head: Head) -> Tables:
        """Open the tables, which with one node must have been filled from its log."""
        known = find_own_table(directory / RAW)
        epoch = head.epoch if known is None else epoch_of(known)
        read = head.epoch if known is None else reading_of(known).epoch
        if not self._nodes.several and read != head.epoch:
            raise another_log(directory / RAW, read, head.epoch)
        tables = Tables(
            directory,
            epoch,
            self._settings.names,
            exclude_dags=self._settings.exclude_dags,
            on_write=self._on_write,
        )
        if head.epoch == tables.reading.epoch:
            self._nodes.current.check(tables.reading.position, head.epoch, head)
        return tables

    def _find_backfill(self, tables: Tables, head: Head) -> Backfill | None:
        """Return the snapshot to start from; None if the tables have begun, or none is given."""
        url = self._settings.from_snapshot
        if url is None or tables.raw_position or head.epoch != tables.reading.epoch:
            return None
        signers = self._settings.signers
        if not signers:
            own = self._nodes.current.signer()
            if own is None:
                raise SinkError(
                    f"the node at {self._nodes.current.url} does not say by which key it signs "
                    "snapshots: say whose to use with --snapshot-signer"
                )
            signers = (own,)
        return find_backfill(url, () if ANYONE in signers else signers, head)

    def _append_snapshot(self, spark: SparkSession, sink: Sink, backfill: Backfill) -> None:
        """Append the events of a snapshot to the empty `raw_events`."""
        started = time.monotonic()
        self._on_event("filling", {"snapshot": backfill.name, "position": backfill.position})
        partitions = self._settings.partitions or spark.sparkContext.defaultParallelism
        rows = sink.append_snapshot(backfill.rows(spark, partitions))
        seconds = round(time.monotonic() - started, 3)
        self._on_event("filled", {"rows": rows, "position": rows, "seconds": seconds})

    def _check_cluster(self, spark: SparkSession, directory: Location) -> None:
        """Check the workers before the first batch, except in local mode."""
        master = spark.sparkContext.master or ""
        if not is_local(master):
            facts = {"master": master, "patience": WORKERS_PATIENCE}
            report = partial(self._on_event, "no_workers", facts)
            try:
                check_workers(spark, directory, report, patience=WORKERS_PATIENCE)
            except Exception as error:
                raise translate(error) from error

    def _read(self, spark: SparkSession, tables: Tables, head: Head) -> None:
        """Read the feed until the run is stopped, or up to the head."""
        settings = self._settings
        checkpoint = settings.checkpoint or self._local / CHECKPOINT_DIR
        if settings.checkpoint is None and not isinstance(tables.directory, Path):
            shutil.rmtree(checkpoint, ignore_errors=True)
        workers = SparkWorkers(spark)
        reader = FeedReader(
            spark,
            tables,
            self._nodes,
            QuerySettings(
                url=settings.url,
                checkpoint=checkpoint.absolute(),
                trigger_ms=None if settings.once else settings.trigger_ms,
                max_rows_per_batch=settings.max_rows_per_batch,
                partitions=settings.partitions,
                token=settings.token,
            ),
            sink=lambda follower: Sink(
                tables,
                self._on_batch,
                reader.head,
                workers,
                follower.placement,
                lambda: not self._stop.is_set(),
                lambda view, why: self._on_event("view_set_aside", {"view": view, "reason": why}),
            ),
            patience=_START_TIMEOUT,
            stop=self._stop,
            on_event=self._on_reading,
            on_look=partial(self._on_look, tables),
        )
        self._reader = reader
        self._began = True
        try:
            reader.run(head)
        except Exception as error:
            # A signal to the whole process group ends Spark's Java as well, maybe before us.
            if not self._stop.wait(_POLL):
                raise translate(error) from error

    def _on_reading(self, event: str, facts: dict[str, Any]) -> None:
        if event == "took_over":
            self._metrics.takeovers.inc()
        self._on_event(event, facts)

    def _on_look(self, tables: Tables, head: int | None) -> None:
        self._metrics.reached(tables.positions, head)
        self._check_disk()

    def _on_batch(self, report: BatchReport) -> None:
        head = None if self._reader is None else self._reader.head()
        self._metrics.batch_duration.observe(report.seconds)
        self._metrics.reached(report.positions, head)
        span(
            "pipeline batch",
            report.seconds,
            lambda: {
                "recon.batch": report.batch,
                "recon.rows": report.rows,
                "recon.streams": report.streams,
                "recon.position": report.position,
            },
        )
        lag = None if head is None else max(0, head - report.position)
        facts = {**asdict(report), "seconds": round(report.seconds, 3), "lag": lag}
        self._on_event("batch", facts)
        self._check_disk()

    def _check_disk(self) -> None:
        """End the run while there is still space for what is being written."""
        free = shutil.disk_usage(self._local).free
        self._metrics.disk_free.set(free)
        if free < self._settings.keep_free:
            raise TablesError(
                f"the disk of {self._local} is nearly full: {human_size(free)} are free, and "
                f"--keep-free is {human_size(self._settings.keep_free)}; free some space and "
                "start again, nothing is lost"
            )

    def _on_write(self, name: str, rows: Staged) -> None:
        self._metrics.rows.labels(name).inc(rows.num_rows)
        if name == UNPROCESSED:
            self._on_unprocessed(rows)
        if name == RAW:
            self._rows += rows.num_rows
        if self._settings.show_rows:
            for row in rows.read(TABLES[name].schema).to_pylist():
                self._on_event("row", {"table": name, "row": row})

    def _on_unprocessed(self, rows: Staged) -> None:
        for row in rows.read(TABLES[UNPROCESSED].schema).to_pylist():
            if row["reason"] is not None:
                self._metrics.set_aside.inc()
                facts = {"stream": row["stream_id"], "reason": row["reason"]}
                self._on_event("set_aside", facts)
