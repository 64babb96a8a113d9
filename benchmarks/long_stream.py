"""The cost of one event on a long stream, with the ends of long streams kept, and without.

    python -m benchmarks.long_stream [--events N] [--samples N] [--json FILE]

One stream has all events but its model's, as `benchmarks.spark_log` writes them. One row per way,
each with ends and without, in one run:

- `derived tables`: in one process, without Spark: from an event's commit to `raw_events` until the
  four other tables have it.
- `node to tables`: `spark-sink run` follows a node's feed: from writing an event to the node until
  all tables have it.

`first_s` is the time of the step that computes all earlier events, without an end to go on from.
So does the first event after it, which is not among the samples.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import httpx
import pyarrow as pa

from benchmarks.report import Row, progress, show
from benchmarks.spark import line, program, run_way, tell
from benchmarks.spark_log import KEY, LogFiller
from recon_node.ceramic import Event, parse_event
from recon_node.ceramic.builder import data_event
from recon_node.ipld import multibase
from spark_sink.derive import streams
from spark_sink.derive.derivation import Derivation
from spark_sink.schema import FEED
from spark_sink.source.feed import Feed
from spark_sink.tables.directory import Tables


def without_ends() -> None:
    """Let this process keep no ends."""
    streams.LONG = 2**63  # type: ignore[misc]


def following(last: Event, count: int) -> list[Event]:
    """Return the next events of a stream after its last one."""
    events: list[Event] = []
    for number in range(count):
        patch = [{"op": "replace", "path": "/body", "value": f"new {number:>100}"}]
        events.append(data_event(KEY, last.init, [(events or [last])[-1].cid], patch))
    return events


def derived_tables(url: str, samples: int) -> Row:
    """Measure the derived tables alone, in this process."""
    head = Feed(url).head()
    feed = pa.Table.from_batches(Feed(url).read(0, head.head, head.epoch), FEED)
    events = following(parse_event(feed["car"][-1].as_py()), samples)
    with tempfile.TemporaryDirectory() as name:
        tables = Tables(Path(name), head.epoch)
        derivation = Derivation(tables)
        tables.append(feed)
        first = time.perf_counter()
        derivation.catch_up()
        first = time.perf_counter() - first
        taken = []
        for event in events:
            row = {
                **dict.fromkeys(FEED.names),
                "position": tables.raw_position + 1,
                "event_id": bytes(event.cid),
                "event_cid": bytes(event.cid),
                "stream_cid": bytes(event.init),
                "event_type": event.kind.value,
                "car": event.car,
            }
            tables.append(pa.Table.from_pylist([row], schema=FEED))
            started = time.perf_counter()
            derivation.catch_up()
            taken.append(time.perf_counter() - started)
    return {"first_s": first, **_milliseconds(taken[1:])}


def node_to_tables(url: str, samples: int, arguments: list[str]) -> Row:
    """Measure a run of the pipeline, in another process that is started with these arguments."""
    head = Feed(url).head()
    batch = pa.Table.from_batches(Feed(url).read(head.head - 1, head.head, head.epoch), FEED)
    taken = []
    with (
        tempfile.TemporaryDirectory() as directory,
        program(
            "benchmarks.long_stream", *arguments, "--url", url, "--directory", directory
        ) as run,
        httpx.Client(base_url=url, timeout=60) as client,
    ):
        position, first = 0, 0.0
        while position < head.head:
            report = line(run, "batch")
            position, first = report["position"], report["seconds"]
        for sample, event in enumerate(following(parse_event(batch["car"][0].as_py()), samples)):
            time.sleep(0.05 * (sample % 10))  # not in step with the trigger
            sent = time.perf_counter()
            body = {"data": multibase.encode(event.car)}
            client.post("/ceramic/events", json=body).raise_for_status()
            position += 1
            while line(run, "batch")["position"] < position:
                pass
            taken.append(time.perf_counter() - sent)
    return {"first_s": first, **_milliseconds(taken[1:])}


def _milliseconds(taken: list[float]) -> Row:
    return {
        "p50_ms": statistics.median(taken) * 1000,
        "p90_ms": statistics.quantiles(taken, n=10)[-1] * 1000,
    }


def run(events: int, samples: int) -> list[Row]:
    """Measure both ways on a new log, with ends and without."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        progress(f"filling a log with a stream of {events:,} events")
        for number, options in enumerate((["--ends", "no"], ["--ends", "yes"])):
            log = Path(name) / str(number)  # of its own, because the samples extend the stream
            LogFiller(log, 1).fill(events)
            with program("benchmarks.spark_log", str(log)) as node:
                assert node.stdout is not None
                url = node.stdout.readline().strip()
                about = {"ends": options[1], "events": events}
                progress(f"derived tables, ends: {options[1]}")
                with program(
                    "benchmarks.long_stream", *options, "--derive", str(samples), "--url", url
                ) as child:
                    rows.append({"way": "derived tables", **about, **line(child, "row")["row"]})
                progress(f"node to tables, ends: {options[1]}")
                row = node_to_tables(url, samples, options)
                rows.append({"way": "node to tables", **about, **row})
                progress("; ".join(f"{row['way']}: {row['p50_ms']:.0f} ms" for row in rows))
    return rows


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--events", type=int, default=50_000)
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--json", type=Path)
    for hidden in ("--ends", "--derive", "--url", "--directory"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.url is None:
        show("One event on a long stream", run(options.events, options.samples), options.json)
        return
    if options.ends == "no":
        without_ends()
    if options.derive is not None:
        tell("row", {"row": derived_tables(options.url, int(options.derive))})
    else:
        run_way("one event", options.url, Path(options.directory))


if __name__ == "__main__":
    main()
