"""The processes, as the node sees them."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar, TypeVarTuple, Unpack

import trio

from recon_node.processes.process import Process, ProcessDiedError, ProcessTooSlowError

Ts = TypeVarTuple("Ts")
T = TypeVar("T")

START_TIMEOUT: Final = 60.0
"""Seconds for a process to start, which takes a fifth of a second."""


class CannotStartError(Exception):
    """No process can be started."""


class Processes:
    """Processes that are started as they are needed, and stay."""

    def __init__(self, command: Sequence[str], count: int) -> None:
        self._command = command
        self._idle: list[Process] = []
        self._threads = trio.CapacityLimiter(max(1, count))

    async def ask(
        self, request: Any, patience: float, on_ready: Callable[[], object] | None = None
    ) -> Any:
        """Return the answer of a process.

        The request is a value for `marshal`. After `patience` seconds the process is killed;
        `on_ready` is called when there is one, which may have to be started.

        Raises:
            ProcessTooSlowError: it was killed.
            ProcessDiedError: there is no answer; the message says how the process ended.
            CannotStartError: there is no process.
        """
        process = await self._take()
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

    async def _take(self) -> Process:
        while self._idle:
            process = self._idle.pop()
            if process.status is None:
                return process
            await self.in_thread(process.reap)  # somebody else has ended it
        return await self._start()

    async def _start(self) -> Process:
        try:
            process = await self.in_thread(Process, self._command)
            await self._bounded(process, START_TIMEOUT, process.receive)
        except (OSError, ProcessDiedError) as error:
            raise CannotStartError(f"no process can be started: {error}") from None
        return process

    async def _bounded(
        self, process: Process, patience: float, work: Callable[[Unpack[Ts]], T], *args: *Ts
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
            raise ProcessTooSlowError(await self.in_thread(process.reap)) from None
        except trio.Cancelled:
            process.kill()
            raise
