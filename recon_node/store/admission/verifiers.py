"""Events are checked here, before the writer sees them: in other processes when they are many.

A check (parse, hashes, signature) takes longer than everything that the log does with an event, and
Python threads would take turns at it. So long lists are cut into chunks, which a few processes
(`recon_node.verification.worker`) take one after the other; short ones are checked in a thread of
this process, at once. The processes are started when the first long list comes, and stay.

**A process that dies** (out of memory, killed) takes no event with it: its chunk is cut in half and
both halves are tried again in new processes, down to the one event. What two processes died of when
it was alone with them is refused and named, and so is what keeps one busy beyond `PATIENCE`. If
processes cannot be started at all, events are checked in this one.

**What was found is remembered** by the hash of the CAR, a bounded number of the latest: a bad event
that ten peers offer costs one check. By the CAR, for only a check tells which event it holds. What
is wrong with an event is remembered by its CID elsewhere, in the log (`Source.refused_events`).
"""

from __future__ import annotations

import contextlib
import marshal
import os
import signal
import subprocess
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, TypeVar, TypeVarTuple, Unpack

import structlog
import trio

from recon_node.verification import Facts, Unreadable, check
from recon_node.verification.facts import Wire, from_wire, to_wire
from recon_node.verification.worker import read_frame, write_frame

Ts = TypeVarTuple("Ts")
T = TypeVar("T")

logger = structlog.get_logger(__name__)

WORTH_IT: Final = 16
"""Fewer events than this are checked faster where they are."""
CHUNK: Final = 48
"""Events that a process is given at a time: some milliseconds of work."""
PATIENCE: Final = 30.0
"""Seconds for a chunk, which is some milliseconds of work. What takes longer is ended."""
START_PATIENCE: Final = 60.0
"""Seconds for a process to begin; it takes a fifth of one."""
REMEMBERED: Final = 16_384
MAX_REMEMBERED: Final = 4096
"""Bytes of a finding that is remembered: what is remembered of strangers stays bounded."""


@dataclass(frozen=True, slots=True)
class Broken:
    """An event over which this node failed: a bug, or worse."""

    reason: str


Checked = Facts | Unreadable | Broken
_Finding = Wire | Broken


class _WorkerDiedError(Exception):
    """The process ended before it answered."""


class _CannotStartError(Exception):
    """No process can be had."""


class Verifiers:
    """Checks lists of events; used by one task at a time.

    Args:
        count: processes at most; 0: all is checked in this process.
        command: what starts a process.
    """

    def __init__(self, count: int, command: Sequence[str] | None = None) -> None:
        self._count = count
        self._command = tuple(command or _command())
        self._idle: list[_Worker] = []
        self._threads = trio.CapacityLimiter(max(1, count))
        self._memory: OrderedDict[bytes, Wire] = OrderedDict()
        self.checked_total = 0
        """Events that were looked at; those whose findings were remembered are not among them."""
        self.deaths_total = 0
        """Processes that ended, or had to be ended, at work."""

    async def check(self, cars: Sequence[bytes]) -> list[Checked]:
        """Check events; what is found of each, in their order."""
        digests = [sha256(car).digest() for car in cars]
        unknown = {
            digest: car
            for digest, car in zip(digests, cars, strict=True)
            if digest not in self._memory
        }
        found = dict(zip(unknown, await self._examine(list(unknown.values())), strict=True))
        self.checked_total += len(unknown)
        known = {digest: self._memory[digest] for digest in digests if digest in self._memory}
        for digest, finding in found.items():
            if not isinstance(finding, Broken) and len(marshal.dumps(finding)) <= MAX_REMEMBERED:
                self._memory[digest] = finding
        for digest in known:
            self._memory.move_to_end(digest)
        while len(self._memory) > REMEMBERED:
            self._memory.popitem(last=False)
        findings = [found[each] if each in found else known[each] for each in digests]
        return await self._in_thread(_unpack, findings, cars)

    async def close(self) -> None:
        """End the processes."""
        idle, self._idle, self._count = self._idle, [], 0
        async with trio.open_nursery() as nursery:
            for worker in idle:
                nursery.start_soon(self._in_thread, worker.end)

    async def _examine(self, cars: list[bytes]) -> list[_Finding]:
        if self._count == 0 or len(cars) < WORTH_IT:
            return await self._in_thread(_examine_here, cars) if cars else []
        findings: list[_Finding] = [Broken("was not checked")] * len(cars)
        chunks = deque(
            range(start, min(start + CHUNK, len(cars))) for start in range(0, len(cars), CHUNK)
        )

        async def work() -> None:
            while chunks:
                chunk = chunks.popleft()
                part = await self._examine_chunk([cars[at] for at in chunk])
                for at, finding in zip(chunk, part, strict=True):
                    findings[at] = finding

        async with trio.open_nursery() as nursery:
            for _ in range(min(self._count, len(chunks))):
                nursery.start_soon(work)
        return findings

    async def _examine_chunk(self, cars: list[bytes], attempt: int = 1) -> list[_Finding]:
        """Have a process examine a few events, or what is left of them after it died."""
        try:
            return await self._ask(cars)
        except _CannotStartError as error:
            if self._count:
                logger.error("Events are checked in the node's own process", reason=str(error))
            self._count = 0
            return await self._in_thread(_examine_here, cars)
        except _WorkerDiedError as error:
            self.deaths_total += 1
            logger.error("A verifier died at work", events=len(cars), reason=str(error))
        if len(cars) > 1:
            half = len(cars) // 2
            first = await self._examine_chunk(cars[:half])
            return first + await self._examine_chunk(cars[half:])
        if attempt == 1:
            return await self._examine_chunk(cars, attempt=2)
        return [Broken("two processes of this node died over it; the node's log says when")]

    async def _ask(self, cars: list[bytes]) -> list[_Finding]:
        if self._idle:
            worker = self._idle.pop()
        else:
            worker = _Worker(self._command)
            await self._bounded(worker, START_PATIENCE, worker.start)
        answer = await self._bounded(worker, PATIENCE, worker.ask, cars)
        self._idle.append(worker)
        return answer

    async def _bounded(
        self, worker: _Worker, patience: float, work: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> T:
        """Wait for a process, and end it when it takes too long."""
        done: list[T] = []
        failure: Exception | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_kill_late, worker, patience)
            try:
                done.append(await self._in_thread(work, *args))
            except (_WorkerDiedError, _CannotStartError) as error:  # as they are, in no group
                failure = error
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
        return done[0]

    async def _in_thread(self, work: Callable[[Unpack[Ts]], T], *args: *Ts) -> T:
        return await trio.to_thread.run_sync(work, *args, limiter=self._threads)


class _Worker:
    """A process; used from one thread at a time, but for `kill`."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, cars: list[bytes]) -> list[_Finding]:
        """Have events examined."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            write_frame(process.stdin, cars)
            answer = read_frame(process.stdout)
        except OSError as error:
            raise _WorkerDiedError(f"{error}; {self._reap(process)}") from None
        if answer is None:
            raise _WorkerDiedError(self._reap(process))
        return [finding if good else _bug(finding) for good, finding in answer]

    def kill(self) -> None:
        """End the process at once; whoever asks it learns of its death."""
        if self._process is not None:
            self._process.kill()

    def end(self) -> None:
        """Let the process end, or make it."""
        if self._process is None:
            return
        process = self._process
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(1)
        except subprocess.TimeoutExpired:
            self._reap(process)
        if process.stdout is not None:
            process.stdout.close()

    def start(self) -> None:
        """Start the process and wait until it is ready."""
        path = os.pathsep.join(entry for entry in sys.path if entry)
        try:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": path},
            )
        except OSError as error:
            raise _CannotStartError(f"no process can be started: {error}") from None
        self._process = process
        assert process.stdout is not None
        if read_frame(process.stdout) is None:
            raise _CannotStartError(
                f"a process that checks events ended when it had hardly begun: "
                f"{self._reap(process)}"
            )

    def _reap(self, process: subprocess.Popen[bytes]) -> str:
        """End what is left of the process; say how it ended."""
        process.kill()
        status = process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        if status >= 0:
            return f"its exit code is {status}"
        return f"it was ended by signal {-status} ({signal.strsignal(-status)})"


async def _kill_late(worker: _Worker, patience: float) -> None:
    await trio.sleep(patience)
    worker.kill()


def _command() -> tuple[str, ...]:
    # -P: the working directory is no place to take modules from.
    return sys.executable, "-P", "-m", "recon_node.verification.worker"


def _examine_here(cars: Sequence[bytes]) -> list[_Finding]:
    return [_examine_one(car) for car in cars]


def _examine_one(car: bytes) -> _Finding:
    try:
        return to_wire(check(car), car)
    except Exception as error:
        logger.exception("an event could not be checked")
        return _bug(repr(error))


def _bug(error: str) -> Broken:
    return Broken(f"this node failed over the event ({error}); that is a bug of this node")


def _unpack(findings: Sequence[_Finding], cars: Sequence[bytes]) -> list[Checked]:
    return [
        finding if isinstance(finding, Broken) else from_wire(finding, car)
        for finding, car in zip(findings, cars, strict=True)
    ]
