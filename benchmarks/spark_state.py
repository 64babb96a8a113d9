"""An alternative for `stream_tips`: Spark keeps the shapes of all streams in RocksDB state.

The pipeline keeps no state: it reads a stream's events back from `raw_events`. This is a well-tuned
alternative to compare it with. Streams are in 64 buckets, each a key with a map of its streams, so
that a batch costs 64 visits instead of one per stream; for each stream, only what the tip depends
on is kept. Each batch merges the tips into a Delta table.

    python -m benchmarks.spark_state URL [--max-rows N]

reads a node's feed to its head and prints the speed; `benchmarks.spark_log` is such a node, and
`python -m benchmarks.spark --tables "stream_tips (state)",stream_tips` compares both designs.
"""

from __future__ import annotations

import argparse
import struct
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from recon_node.ceramic import parse_event
from recon_node.streams import StreamEvent, select_tip
from spark_sink.errors import SinkError
from spark_sink.run.session import find_java, start_session
from spark_sink.source.feed import Feed

BUCKETS: Final = 64
SETTINGS: Final = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.python.unix.domain.socket.enabled": "true",
}
_KINDS: Final = ("init", "data", "time")
_SCHEMA: Final = pa.schema(
    [("stream_cid", pa.binary()), ("event_cid", pa.binary()), ("events", pa.int64())]
)


class Tips(StatefulProcessor):
    """The streams of a bucket."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.streams = handle.getMapState("streams", "cid binary", "shapes binary")

    def handleInputRows(  # noqa: N802
        self,
        key: Any,
        rows: Iterator[Row],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[Row]:
        added: dict[bytes, list[bytes]] = defaultdict(list)
        for row in rows:
            added[bytes(row.stream_cid)].append(_pack(bytes(row.car)))
        for cid, shapes in added.items():
            before = self.streams.getValue((cid,))
            packed = (bytes(before[0]) if before else b"") + b"".join(shapes)
            self.streams.updateValue((cid,), (packed,))
            events = list(_unpack(packed))
            tip = select_tip(events)
            yield Row(stream_cid=cid, event_cid=tip.event, events=len(events))

    def close(self) -> None:
        pass


def _pack(car: bytes) -> bytes:
    event = parse_event(car)
    cids = [bytes(event.cid), *map(bytes, event.prevs)]
    head = struct.pack("<BB", _KINDS.index(event.kind.value), len(cids))
    return head + b"".join(bytes([len(cid)]) + cid for cid in cids)


def _unpack(packed: bytes) -> Iterator[StreamEvent[bytes]]:
    at = 0
    while at < len(packed):
        kind, count = packed[at], packed[at + 1]
        at += 2
        cids = []
        for _ in range(count):
            size = packed[at]
            cids.append(packed[at + 1 : at + 1 + size])
            at += 1 + size
        yield StreamEvent(cids[0], _KINDS[kind], tuple(cids[1:]))


def run(spark: SparkSession, url: str, directory: Path, max_rows: int) -> None:
    """Read the node's feed to its head; keep the tips in a Delta table."""
    table = str(directory / "tips")
    write_deltalake(table, pa.Table.from_pylist([], schema=_SCHEMA))

    def merge(frame: DataFrame, batch: int) -> None:
        rows = frame.toArrow().cast(_SCHEMA)
        on = "old.stream_cid = new.stream_cid"
        merger = DeltaTable(table).merge(rows, on, source_alias="new", target_alias="old")
        merger.when_matched_update_all().when_not_matched_insert_all().execute()

    options = {"url": url, "maxRowsPerBatch": str(max_rows)}
    events = spark.readStream.format("recon").options(**options).load()
    tips = (
        events.withColumn("bucket", f.crc32("stream_cid") % BUCKETS)
        .groupBy("bucket")
        .transformWithState(
            statefulProcessor=Tips(),
            outputStructType="stream_cid binary, event_cid binary, events long",
            outputMode="Update",
            timeMode="None",
        )
    )
    query = (
        tips.writeStream.outputMode("update")
        .foreachBatch(merge)
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    if (failure := query.exception()) is not None:
        raise failure


def main() -> None:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.spark_state",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument(
        "url", metavar="URL", help="URL of the node's API, such as http://127.0.0.1:5101"
    )
    parser.add_argument(
        "--max-rows", type=int, default=50_000, help="rows per batch; default: %(default)s"
    )
    options = parser.parse_args()
    try:
        head = Feed(options.url, patience=0).head().head
        with tempfile.TemporaryDirectory() as name:
            spark = start_session(find_java(), Path(name) / "scratch", settings=SETTINGS)
            started = time.perf_counter()
            run(spark, options.url, Path(name), options.max_rows)
            seconds = time.perf_counter() - started
            streams = DeltaTable(f"{name}/tips").to_pyarrow_table().num_rows
            spark.stop()
    except SinkError as error:
        raise SystemExit(str(error)) from None
    print(f"{head} events of {streams} streams in {seconds:.1f} s, {head / seconds:.0f} a second")


if __name__ == "__main__":
    main()
