"""What it costs to keep the tips of streams while their events come (CIP-145).

    python -m benchmarks.tips [--events N] [--json FILE]

`streams`: N events over N / 10 streams, shuffled among each other, one in ten of them a fork; after
each event its stream's tip is asked for. `one stream`: N / 10 events with 1,000 forks, the same.
`anew` selects the tip of the one stream from all of its events, as often as time allows: what each
event would cost without the summaries that are kept. CPU times, without the garbage collector, as
`timeit` does it: its walks over a million streams would double them, and say nothing of tips.
"""

from __future__ import annotations

import argparse
import gc
import random
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.report import Row, progress, show
from recon_node.streams import StreamEvent, StreamTip, select_tip

FORKS = 1_000
EVENTS_A_STREAM = 10
ANEW = 3


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
    streams = events // EVENTS_A_STREAM
    order = [number for number in range(streams) for _ in range(EVENTS_A_STREAM)]
    rng.shuffle(order)
    growing = [
        growing_stream(EVENTS_A_STREAM, {rng.randrange(2, 12)}, seed) for seed in range(streams)
    ]
    arriving = [(number, next(growing[number])) for number in order]
    tips: dict[int, StreamTip[bytes]] = {}
    gc.disable()
    started = time.process_time()
    for number, event in arriving:
        stream = tips.get(number)
        if stream is None:
            stream = tips[number] = StreamTip()
        stream.add(event)
        stream.event()
    seconds = time.process_time() - started
    return _row("streams", events, events, seconds)


def one_stream(events: int) -> list[Row]:
    """One stream with many forks, kept up and selected anew."""
    rng = random.Random(2)
    fork_at = set(rng.sample(range(1, events), min(FORKS, events // 10)))
    arriving = list(growing_stream(events, fork_at, 2))
    stream: StreamTip[bytes] = StreamTip()
    gc.disable()
    started = time.process_time()
    for event in arriving:
        stream.add(event)
        stream.event()
    kept = time.process_time() - started
    started = time.process_time()
    for _ in range(ANEW):
        tip = select_tip(arriving)
    anew = time.process_time() - started
    assert tip == stream.tip()
    return [
        _row("one stream", events, events, kept),
        _row("one stream, anew", events, ANEW, anew),
    ]


def _row(system: str, events: int, steps: int, seconds: float) -> Row:
    return {
        "system": system,
        "events": events,
        "us_per_event": seconds / steps * 1e6,
        "events_per_s": steps / seconds,
    }


def run(events: int) -> list[Row]:
    """Measure all; `events` in all for many streams, a tenth of them for the one."""
    progress(f"{events:,} events over {events // EVENTS_A_STREAM:,} streams")
    rows = [many_streams(events)]
    progress(f"one stream of {events // 10:,} events")
    return rows + one_stream(events // 10)


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
