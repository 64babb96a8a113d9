"""How long a reconciliation takes where the network has a round-trip time.

    python -m benchmarks.round_trips --keys 1000000 --rtt 0,50,200 --json FILE

Both sides hold N keys of which d, scattered, are on one side only. In each row,

    rtt_ms          the round-trip time, half of it each way; bandwidth is not limited
    seconds         waiting_s + cpu_s: how long it takes until both sides are done
    waiting_s       the time spent waiting for the network, in virtual time
    cpu_s           CPU seconds of both sides together, measured

This project's versions run as they do in a node: the framing and the session driver of
recon_node.p2p, over memory streams that hold up all data for half a round trip. A virtual clock
goes on only while both sides wait. The other contestants have no such driver here: their
waiting_s is rounds * rtt_ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import trio
from trio.testing import MockClock, memory_stream_pair, wait_all_tasks_blocked

from benchmarks.contestants import (
    CONTESTANTS,
    WHOLE,
    Cost,
    CpuTimer,
    check_union,
    look_up,
    make_sketches,
)
from benchmarks.pairs import Pair, Population
from benchmarks.reconcile import make_row
from benchmarks.report import Row, command_line, count, numbers, show, track
from recon_node.p2p.settings import P2PSettings
from recon_node.p2p.sync.reconciler import LONG_MESSAGES_AT_ONCE, FrameWire
from recon_node.p2p.sync.sessions import Tally, converse
from recon_node.p2p.transport.framing import FrameStream
from recon_node.recon import VERSIONS, Failed, Fetch, FetchById, KeyStore, Side, Version
from recon_node.recon.actions import Admit

_VERSIONS: Final = {f"recon/{version.id.rpartition('/')[2]}": version for version in VERSIONS}
_SETTINGS: Final = P2PSettings()
_THREAD_CUSHION: Final = 0.001
"""Real seconds between two looks at whether a worker thread has finished."""
_Stream = trio.StapledStream


@dataclass(frozen=True, slots=True)
class _Task:
    """One contestant's work, and the round-trip times to tell it for."""

    name: str
    pair: Pair
    rtts_ms: Sequence[int]

    def __str__(self) -> str:
        keys = len(self.pair.population.keys)
        rtts = ", ".join(map(str, self.rtts_ms))
        return f"{self.name}: {keys:,} keys, {self.pair.differences:,} differences, {rtts} ms"

    def rows(self) -> list[Row]:
        """Do it."""
        if self.name in _VERSIONS:
            (rtt_ms,) = self.rtts_ms
            cost, waiting = drive(_VERSIONS[self.name], self.pair, rtt_ms / 1000)
            return [self._row(cost, rtt_ms, waiting)]
        cost = CONTESTANTS[self.name](self.pair)
        return [self._row(cost, rtt_ms, cost.rounds * rtt_ms / 1000) for rtt_ms in self.rtts_ms]

    def _row(self, cost: Cost, rtt_ms: int, waiting: float) -> Row:
        row = make_row(self.name, self.pair, cost)
        del row["bytes_sent"], row["bytes_received"]
        times = {"seconds": waiting + cost.cpu_s, "waiting_s": waiting}
        return {**row, **times, "rtt_ms": rtt_ms}


def run(keys: int, differences: Sequence[int], rtts_ms: Sequence[int]) -> list[Row]:
    """Measure all contestants for all numbers of differences and round-trip times."""
    population = Population(keys)
    tasks = []
    for number in differences:
        pair = population.pair(number, "scattered" if number else "none")
        for name in CONTESTANTS:
            runs = [[rtt_ms] for rtt_ms in rtts_ms] if name in _VERSIONS else [rtts_ms]
            tasks += [_Task(name, pair, run) for run in runs]
    return [row for task in track(tasks, str) for row in task.rows()]


def drive(version: Version[Any], pair: Pair, rtt: float) -> tuple[Cost, float]:
    """Reconcile over streams with a round-trip time; return the cost and the virtual seconds."""
    ours, theirs = map(KeyStore, pair.keys())
    make_sketches(version, ours, theirs)
    clock = MockClock()
    with CpuTimer() as timer:
        cost = trio.run(_reconcile, version, ours, theirs, rtt, clock, clock=clock)
    cost.cpu_s = timer.seconds
    check_union(pair, ours, theirs)
    return cost, clock.current_time()


async def _reconcile(
    version: Version[Any], ours: KeyStore, theirs: KeyStore, rtt: float, clock: MockClock
) -> Cost:
    settings = _SETTINGS.session_settings
    asking = version.session(Side.initiator(ours, WHOLE, settings))
    answering = version.session(Side.responder(theirs, [WHOLE], settings))
    async with trio.open_nursery() as background:
        near, far = _slow_stream_pair(background, rtt / 2)
        decoders = trio.CapacityLimiter(LONG_MESSAGES_AT_ONCE)
        background.start_soon(_move_on, clock, decoders)
        here_frames = FrameStream(near, _SETTINGS.max_frame)
        there_frames = FrameStream(far, _SETTINGS.max_frame)
        async with trio.open_nursery() as sides:
            for session, frames, store, other in (
                (asking, here_frames, ours, theirs),
                (answering, there_frames, theirs, ours),
            ):
                wire = FrameWire(version, session, frames, _SETTINGS, decoders)
                sides.start_soon(converse, session, wire, _Events(store, other))
        background.cancel_scope.cancel()
    return Cost(asking.side.rounds, here_frames.bytes_sent, here_frames.bytes_received)


@dataclass
class _Events:
    """Has every event at hand; the keys of ids are looked up in the other store."""

    store: KeyStore
    other: KeyStore
    tally: Tally = field(default_factory=Tally)

    async def perform(self, action: Fetch | FetchById | Admit) -> Failed:
        if isinstance(action, FetchById):
            self.store.load(look_up(action.sought, self.other))
        elif isinstance(action, Fetch):
            self.store.load(action.keys)
        return Failed()


def _slow_stream_pair(nursery: trio.Nursery, delay: float) -> tuple[_Stream, _Stream]:
    """Make two connected streams; what is written to one arrives at the other after a delay."""
    near, near_relay = memory_stream_pair()
    far, far_relay = memory_stream_pair()
    for source, target in ((near_relay, far_relay), (far_relay, near_relay)):
        due_data = trio.open_memory_channel[tuple[float, bytes]](1024)
        nursery.start_soon(_take, source, delay, due_data[0])
        nursery.start_soon(_deliver, due_data[1], target)
    return near, far


async def _take(
    source: trio.abc.ReceiveStream,
    delay: float,
    due_data: trio.MemorySendChannel[tuple[float, bytes]],
) -> None:
    async for data in source:
        await due_data.send((trio.current_time() + delay, bytes(data)))


async def _deliver(
    due_data: trio.MemoryReceiveChannel[tuple[float, bytes]], target: trio.abc.SendStream
) -> None:
    async for due, data in due_data:
        await trio.sleep_until(due)
        await target.send_all(data)


async def _move_on(clock: MockClock, decoders: trio.CapacityLimiter) -> None:
    """Move the clock to the next deadline whenever nobody, threads included, has work to do.

    trio's own autojump does not know of threads: it would jump while one parses a message.
    """
    while True:
        await wait_all_tasks_blocked(_THREAD_CUSHION)
        if decoders.borrowed_tokens == 0:
            clock.jump(max(0.0, trio.lowlevel.current_statistics().seconds_to_next_deadline))


def main() -> None:
    """Run the benchmark from the command line."""
    parser = command_line("round_trips", __doc__)
    parser.add_argument(
        "--keys",
        type=count,
        default=100_000,
        metavar="N",
        help="size of the sets (default: 100000)",
    )
    parser.add_argument(
        "--differences",
        type=numbers,
        default=[0, 1, 100, 10_000],
        metavar="d,...",
        help="numbers of keys on one side only (default: 0,1,100,10000)",
    )
    parser.add_argument(
        "--rtt",
        type=numbers,
        default=[0, 50, 200],
        metavar="MS,...",
        help="round-trip times in milliseconds (default: 0,50,200)",
    )
    options = parser.parse_args()
    if options.keys < max(options.differences):
        parser.error("there are more differences than keys")
    rows = run(options.keys, options.differences, options.rtt)
    show("Round trips", rows, options.json)


if __name__ == "__main__":
    main()
