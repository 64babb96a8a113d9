"""The processes, as the node sees them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar, TypeVarTuple, Unpack

import trio

from recon_node.processes.child import read_frame, write_frame

Ts = TypeVarTuple("Ts")
T = TypeVar("T")

START_PATIENCE: Final = 60.0
"""Seconds for a process to start, which takes a fifth of a second."""


class ProcessDiedError(Exception):
    """The process ended before it answered, or was killed because it took too long."""


class CannotStartError(Exception):
    """No process can be started."""


class Processes:
    """Processes that are started as they are needed, and stay.

    Args:
        command: what starts one.
        count: how many work at once, at most.
    """

    def __init__(self, command: Sequence[str], count: int) -> None:
        self._command = command
        self._idle: list[_Process] = []
        self._threads = trio.CapacityLimiter(max(1, count))

    async def ask(
        self, request: Any, patience: float, on_ready: Callable[[], object] | None = None
    ) -> Any:
        """Return the answer of a process.

        Args:
            request: a value for `marshal`.
            patience: seconds, after which the process is killed.
            on_ready: called when there is a process, which may have to be started.

        Raises:
            ProcessDiedError: there is no answer; the message says how the process ended.
            CannotStartError: there is no process.
        """
        process = self._idle.pop() if self._idle else await self._start()
        if on_ready is not None:
            on_ready()
        answer = await self._bounded(process, patience, process.ask, request)
        self._idle.append(process)
        return answer

    async def warm_up(self) -> None:
        """Start a process, for the first request; if that fails, the request says so."""
        with contextlib.suppress(CannotStartError):
            self._idle.append(await self._start())

    async def in_thread(self, work: Callable[[Unpack[Ts]], T], *args: *Ts) -> T:
        """Call a function in one of the threads that wait for the processes."""
        return await trio.to_thread.run_sync(work, *args, limiter=self._threads)

    async def close(self) -> None:
        """End the processes."""
        idle, self._idle = self._idle, []
        async with trio.open_nursery() as nursery:
            for process in idle:
                nursery.start_soon(self.in_thread, process.end)

    async def _start(self) -> _Process:
        try:
            process = await self.in_thread(_Process, self._command)
            await self._bounded(process, START_PATIENCE, process.receive)
        except (OSError, ProcessDiedError) as error:
            raise CannotStartError(f"no process can be started: {error}") from None
        return process

    async def _bounded(
        self, process: _Process, patience: float, work: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> T:
        """Wait for a process, and kill it if it takes too long."""
        try:
            with trio.fail_after(patience):
                # An abandoned thread ends as soon as its process does.
                return await trio.to_thread.run_sync(
                    work,
                    *args,
                    abandon_on_cancel=True,  # type: ignore[call-arg]  # stubs of trio 0.22
                    limiter=self._threads,
                )
        except trio.TooSlowError:
            process.kill()
            raise ProcessDiedError(await self.in_thread(process.reap)) from None
        except trio.Cancelled:
            process.kill()
            raise


class _Process:
    """A process; used from one thread at a time, except for `kill` and `reap`.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, command: Sequence[str]) -> None:
        path = os.pathsep.join(entry for entry in sys.path if entry)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._answers = self._process.stdin, self._process.stdout

    def ask(self, request: Any) -> Any:
        """Return the answer to a request."""
        try:
            write_frame(self._requests, request)
        except OSError as error:
            raise ProcessDiedError(f"{error}; {self.reap()}") from None
        return self.receive()

    def receive(self) -> Any:
        """Wait for the next answer. The first one says that the process is ready."""
        answer = read_frame(self._answers)
        if answer is None:
            raise ProcessDiedError(self.reap())
        return answer

    def kill(self) -> None:
        """End the process at once; a thread that waits for it learns of its death."""
        self._process.kill()

    def end(self) -> None:
        """Let the process end, or kill it after a second."""
        with contextlib.suppress(OSError):
            self._requests.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1)
        self.reap()

    def reap(self) -> str:
        """End what is left of the process; say how it ended."""
        self._process.kill()
        status = self._process.wait()
        for stream in (self._requests, self._answers):
            with contextlib.suppress(OSError):
                stream.close()
        if status >= 0:
            return f"its exit code is {status}"
        return f"it was ended by signal {-status} ({signal.strsignal(-status)})"
