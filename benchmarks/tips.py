"""What it costs to select the tip of a stream (CIP-145).

    python -m benchmarks.tips [--events N] [--json FILE]

`streams`: N events over N / 10 streams of ten events, most of them with a fork. `one stream`: N /
10 events with 1,000 forks. CPU times, without the garbage collector, as `timeit` does it.
"""

from __future__ import annotations

import argparse
import gc
import random
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.report import Row, progress, show
from recon_node.streams import StreamEvent, select_tip

FORKS = 1_000
EVENTS_A_STREAM = 10
TIMES = 3


def growing_stream(size: int, fork_at: set[int], seed: int) -> Iterator[StreamEvent[bytes]]:
    """A stream of data and time events that forks, from somewhere below, at some of its events."""
    rng = random.Random(seed)
    names = [rng.randbytes(36)]
    heads = [names[0]]
    yield StreamEvent(names[0], "init")
    for number in range(1, size):
        name = rng.randbytes(36)
        head = rng.randrange(len(heads))
        prev = rng.choice(names) if number in fork_at else heads[head]
        is_time = number % 4 == 0
        yield StreamEvent(name, "time" if is_time else "data", (prev,), number if is_time else None)
        names.append(name)
        if number in fork_at:
            heads.append(name)
        else:
            heads[head] = name


def many_streams(events: int) -> Row:
    """Streams of ten events each."""
    rng = random.Random(1)
    streams = [
        list(growing_stream(EVENTS_A_STREAM, {rng.randrange(2, 12)}, seed))
        for seed in range(events // EVENTS_A_STREAM)
    ]
    gc.disable()
    started = time.process_time()
    for stream in streams:
        select_tip(stream)
    return _row("streams", len(streams), EVENTS_A_STREAM, time.process_time() - started)


def one_stream(events: int) -> Row:
    """One stream with many forks."""
    rng = random.Random(2)
    fork_at = set(rng.sample(range(1, events), min(FORKS, events // 10)))
    stream = list(growing_stream(events, fork_at, 2))
    gc.disable()
    started = time.process_time()
    for _ in range(TIMES):
        select_tip(stream)
    return _row("one stream", TIMES, events, time.process_time() - started)


def _row(system: str, selections: int, events: int, seconds: float) -> Row:
    return {
        "system": system,
        "events": events,
        "us_per_selection": seconds / selections * 1e6,
        "us_per_event": seconds / selections / events * 1e6,
    }


def run(events: int) -> list[Row]:
    """Measure both; `events` in all for many streams, a tenth of them for the one."""
    progress(f"{events:,} events over {events // EVENTS_A_STREAM:,} streams")
    rows = [many_streams(events)]
    progress(f"one stream of {events // 10:,} events")
    return [*rows, one_stream(events // 10)]


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    show("Tip selection", run(options.events), options.json)


if __name__ == "__main__":
    main()
