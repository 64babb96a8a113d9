"""Where the parts of a step are computed: in this process, or in Spark's Python workers."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import pyarrow as pa

from spark_sink.tables.staging import StagedFeed, Stager, stage_feed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Item = TypeVar("Item")
Answer = TypeVar("Answer")

_ANSWER: Final = "answer binary"
# Seconds for a Spark that stops to let go of a job.
_PATIENCE: Final = 10.0


class Workers(Protocol):
    """Whoever computes a function for each of some items."""

    def map(self, function: Callable[[Item], Answer], items: Sequence[Item]) -> Iterator[Answer]:
        """The answers, in any order."""


class InProcess:
    """One item after the other, here."""

    def map(self, function: Callable[[Item], Answer], items: Sequence[Item]) -> Iterator[Answer]:
        """The answers, in order, each computed when it is asked for."""
        return map(function, items)


class SparkWorkers:
    """Spark's workers, each item as a task of its own. Items and answers travel as pickles: answers
    should be small."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def map(self, function: Callable[[Item], Answer], items: Sequence[Item]) -> Iterator[Answer]:
        """The answers, in any order, once all are there."""

        def answer(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield _pickled(function(items[number]))

        tasks = self._spark.range(0, len(items), 1, len(items))
        return _unpickled(tasks.mapInArrow(answer, _ANSWER))


@contextmanager
def warming_up(spark: SparkSession) -> Iterator[None]:
    """Have Spark's workers start in the background, while the block prepares their first work."""
    workers = SparkWorkers(spark)

    def warm_up() -> None:
        with suppress(Exception):  # whatever is wrong, their first work meets it as well
            list(workers.map(abs, range(spark.sparkContext.defaultParallelism)))

    thread = threading.Thread(target=warm_up, name="warm-up", daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join(_PATIENCE)


def stage_frame(frame: DataFrame, stager: Stager, after: int) -> list[StagedFeed]:
    """Let the workers that have them write the rows of the feed beyond the position `after`."""

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return map(_pickled, stage_feed(batches, stager, after))

    return list(_unpickled(frame.mapInArrow(stage, _ANSWER)))


def _pickled(answer: object) -> pa.RecordBatch:
    return pa.record_batch({"answer": pa.array([pickle.dumps(answer)], pa.binary())})


def _unpickled(answers: DataFrame) -> Iterator[Any]:
    return map(pickle.loads, answers.toArrow()["answer"].to_pylist())
