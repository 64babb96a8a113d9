"""What is measured while a node is attacked, and what may be measured at most."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from benchmarks.processes import family, memory

MIB: Final = 1 << 20
_SAMPLE_INTERVAL: Final = 0.05


@dataclass(frozen=True, slots=True)
class Row:
    """A measurement of an attack, beside its bound."""

    what: str
    bound: str
    measured: str
    holds: bool


@dataclass(frozen=True, slots=True)
class Bounds:
    """What holds under every attack, on a machine that does nothing else."""

    memory: float = 300 * MIB
    """Bytes that the node's processes may take more than before."""
    liveness: float = 1.0
    """Seconds until `/ceramic/liveness` is answered."""
    crossing: float = 3.0
    """Seconds until an honest peer's new event is at the node."""
    slack: float = 1.0
    """Times the bounds of time, on a machine that is busy."""

    def at_most(self, what: str, seconds: float, bound: float) -> Row:
        """A time beside its bound."""
        bound *= self.slack
        return Row(what, f"{bound:g} s", f"{seconds:.2f} s", seconds <= bound)


@dataclass(slots=True)
class Measured:
    """The worst that was measured."""

    before: int = 0
    memory: int = 0
    liveness: float = 0.0
    crossing: float = 0.0
    crossings: int = 0
    failures: list[str] = field(default_factory=list)

    def rows(self, bounds: Bounds) -> list[Row]:
        """Compare with the bounds."""
        grown = max(self.memory - self.before, 0)
        return [
            Row(
                "memory",
                f"+{bounds.memory / MIB:.0f} MiB",
                f"+{grown / MIB:.0f} MiB",
                grown <= bounds.memory,
            ),
            bounds.at_most("liveness", self.liveness, bounds.liveness),
            bounds.at_most("honest event", self.crossing, bounds.crossing),
            *(Row("answered", "always", text, holds=False) for text in self.failures[:2]),
        ]


def is_so(what: str, expected: object, actual: object) -> Row:
    """A fact beside what it should be."""
    return Row(what, str(expected), str(actual)[:100], expected == actual)


@contextmanager
def watched(pid: int, look: Callable[[], None], cross: Callable[[], None]) -> Iterator[Measured]:
    """Measure while the block runs: memory, and how long two operations take at worst.

    Args:
        pid: of the node; its children count as well.
        look: asks for its liveness.
        cross: gives an event to an honest peer, and waits until the node has it.
    """
    measured = Measured(before=memory_of(pid))
    stop = threading.Event()

    def repeat(name: str, work: Callable[[], None], pause: float) -> None:
        while not stop.is_set():
            started = time.monotonic()
            try:
                work()
            except Exception as error:
                measured.failures.append(f"{name}: {error!r}"[:120])
            lasted = time.monotonic() - started
            setattr(measured, name, max(getattr(measured, name), lasted))
            measured.crossings += name == "crossing"
            stop.wait(pause)

    def weigh() -> None:
        while not stop.wait(_SAMPLE_INTERVAL):
            measured.memory = max(measured.memory, memory_of(pid))

    threads = [
        threading.Thread(target=weigh, daemon=True),
        threading.Thread(target=repeat, args=("liveness", look, _SAMPLE_INTERVAL), daemon=True),
        threading.Thread(target=repeat, args=("crossing", cross, 0.5), daemon=True),
    ]
    for thread in threads:
        thread.start()
    try:
        yield measured
        crossings = measured.crossings
        limit = time.monotonic() + 60  # at least one that began after the attack
        while measured.crossings < crossings + 2 and time.monotonic() < limit:
            time.sleep(_SAMPLE_INTERVAL)
    finally:
        stop.set()
        for thread in threads:
            thread.join(70)


def memory_of(pid: int) -> int:
    """Bytes of resident memory of a process and of all that it started, if they still run."""
    return memory("VmRSS", *family(pid))
