"""Calls a function for each item of a sequence, in Spark's workers or in this process."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa

from spark_sink.derive.child_process import COMMAND, do_without_pandas
from spark_sink.source.feed_client import Feed
from spark_sink.source.source_options import RangePartition
from spark_sink.tables.placement import LeaveOut, Placement
from spark_sink.tables.staging import StagedFeed, Stager, stage_feed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Item = TypeVar("Item")
Answer = TypeVar("Answer")

_ANSWER: Final = "answer binary"
_JOIN_PATIENCE: Final = 10.0
"""Seconds to wait for the warm-up when Spark stops."""


class NoWorkers:
    """Does all work in this process, one item after the other.

    Attributes:
        child_command: starts the child process in which strangers' content is computed
            (`derive.child_process`); None: it is computed in this one.
    """

    def __init__(self, child_command: Sequence[str] | None = None) -> None:
        self.child_command = child_command

    def map(self, function: Callable[[Item], Answer], items: Sequence[Item]) -> Iterator[Answer]:
        """Yield the results in order, each computed on demand."""
        return map(function, items)


class SparkWorkers:
    """Works in Spark's workers, with one task per item; otherwise as `NoWorkers`.

    Items and results are pickled; results should be small.
    """

    def __init__(self, spark: SparkSession, child_command: Sequence[str] | None = COMMAND) -> None:
        self._spark = spark
        self.child_command = child_command

    def map(self, function: Callable[[Item], Answer], items: Sequence[Item]) -> Iterator[Answer]:
        """Return the results, in any order, when all are there."""

        def answer(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            do_without_pandas()
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield _pickled(function(items[number]))

        tasks = self._spark.range(0, len(items), 1, max(1, len(items)))
        return _unpickled(tasks.mapInArrow(answer, _ANSWER))


Workers = NoWorkers | SparkWorkers


@contextmanager
def warming_up(spark: SparkSession) -> Iterator[None]:
    """Start Spark's workers in the background, while the block prepares their first work."""
    workers = SparkWorkers(spark)

    def warm_up() -> None:
        with suppress(Exception):  # their first real task reports what is wrong
            list(workers.map(abs, range(spark.sparkContext.defaultParallelism)))

    thread = threading.Thread(target=warm_up, name="warm-up", daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join(_JOIN_PATIENCE)


def stage_ranges(
    feed: Feed,
    stager: Stager,
    placement: Placement,
    leave_out: LeaveOut,
    parts: Sequence[RangePartition],
) -> list[StagedFeed]:
    """Write the rows of ranges of the feed that have a place in the table to files.

    Raises:
        SinkError: as `Feed.read`, or the files cannot be written.
    """
    rows = chain.from_iterable(feed.read(part.after, part.upto, part.epoch) for part in parts)
    try:
        return list(stage_feed(map(leave_out, rows), stager, placement))
    finally:
        feed.close()


def stage_frame(
    frame: DataFrame, stager: Stager, placement: Placement, leave_out: LeaveOut
) -> list[StagedFeed]:
    """Have the workers write rows that Spark has to files, as `stage_ranges` does."""

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        do_without_pandas()
        return map(_pickled, stage_feed(map(leave_out, batches), stager, placement))

    return list(_unpickled(frame.mapInArrow(stage, _ANSWER)))


def _pickled(answer: object) -> pa.RecordBatch:
    return pa.record_batch({"answer": pa.array([pickle.dumps(answer)], pa.binary())})


def _unpickled(answers: DataFrame) -> Iterator[Any]:
    return map(pickle.loads, answers.toArrow()["answer"].to_pylist())
