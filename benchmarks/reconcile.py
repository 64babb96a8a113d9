"""What it costs two nodes to find their differences, in rounds, bytes and CPU time.

    python -m benchmarks.reconcile --keys 10000,100000 --differences 0,1,100 --json FILE

Both sides hold N keys of which d are on one side only, half of them on each side. `scattered`
differences lie anywhere in the key order, `recent` ones beside each other. Only the reconciliation
is measured, not the transfer of the events. In each row,

    rounds          round trips until the initiator is done
    bytes           of both directions, frames included
    bytes_sent      of these, what the initiator sent; bytes_received is the rest
    cpu_s           CPU seconds of both sides together, the loading of the keys left out; if that
                    is less than 50 ms, the least of five runs

Every contestant's result is checked: one that finds other differences ends the run.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.contestants import CONTESTANTS, Contestant, Cost
from benchmarks.pairs import Pair, Population, pairs
from benchmarks.report import Row, command_line, numbers, show, track

_WARM_UP_KEYS = 1000
_SHORT_S = 0.05
_SHORT_RUNS = 5


def run(keys: Sequence[int], differences: Sequence[int]) -> list[Row]:
    """Measure all contestants over all sizes, numbers of differences and placements."""
    for contestant in CONTESTANTS.values():  # else the first row pays for what is made only once
        contestant(Population(_WARM_UP_KEYS).pair(10, "scattered"))
    rows = []
    for size in keys:
        fitting = [number for number in differences if number <= size]
        tasks = [(pair, name) for pair in pairs(Population(size), fitting) for name in CONTESTANTS]
        for pair, name in track(tasks, _describe):
            rows.append(make_row(name, pair, _least(CONTESTANTS[name], pair)))
    return rows


def _least(contestant: Contestant, pair: Pair) -> Cost:
    """Return what one run cost, or the cheapest of some if they are short."""
    cost = contestant(pair)
    if cost.cpu_s >= _SHORT_S:
        return cost
    again = (contestant(pair) for _ in range(_SHORT_RUNS - 1))
    return min(cost, *again, key=lambda cost: cost.cpu_s)


def make_row(name: str, pair: Pair, cost: Cost) -> Row:
    """Return what a contestant did with a pair as a row."""
    return {
        "system": name,
        "keys": len(pair.population.keys),
        "differences": pair.differences,
        "placement": pair.placement,
        "rounds": cost.rounds,
        "bytes": cost.bytes_sent + cost.bytes_received,
        "bytes_sent": cost.bytes_sent,
        "bytes_received": cost.bytes_received,
        "cpu_s": cost.cpu_s,
    }


def _describe(task: tuple[Pair, str]) -> str:
    pair, name = task
    keys = len(pair.population.keys)
    return f"{name}: {keys:,} keys, {pair.differences:,} differences, {pair.placement}"


def main() -> None:
    """Run the benchmark from the command line."""
    parser = command_line("reconcile", __doc__)
    parser.add_argument(
        "--keys",
        type=numbers,
        default=[100_000],
        metavar="N,...",
        help="sizes of the sets (default: 100000)",
    )
    parser.add_argument(
        "--differences",
        type=numbers,
        default=[0, 1, 100, 10_000],
        metavar="d,...",
        help="numbers of keys on one side only (default: 0,1,100,10000)",
    )
    options = parser.parse_args()
    if max(options.keys) < min(options.differences):
        parser.error("there are more differences than keys")
    show("Reconciliation", run(options.keys, options.differences), options.json)


if __name__ == "__main__":
    main()
