"""A test that hangs fails, and tells where: in which threads, and in which tasks of trio.

CI is killed after some minutes, without a word. So each test has a limit far beyond what it needs
even on a slow machine. A timer's signal interrupts whatever the main thread waits for.
"""

import faulthandler
import os
import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

import trio

TELL: Final = 200.0
"""Seconds after which a test shows where it is; the slowest takes 10 s on an idle machine."""
LIMIT: Final = 500.0
"""Seconds after which it fails; with the fixtures that are made for it."""


class HangError(BaseException):
    """A test took too long. No code under test handles it as an error of its own."""


@contextmanager
def limited(name: str, stderr: int) -> Iterator[None]:
    """Write where everything is to a file descriptor, after `TELL` and after `LIMIT` seconds; then
    raise `HangError` in the main thread."""

    reported = hung = False

    def look(number: int, frame: FrameType | None) -> None:
        nonlocal reported, hung
        tasks = "".join(f"{line}\n" for line in waiting_tasks())
        os.write(stderr, f"\n{name} takes long; trio's tasks are at\n{tasks}".encode())
        faulthandler.dump_traceback(stderr)
        reported, hung = True, reported
        if hung:
            raise HangError(f"{name} took longer than {LIMIT:g} s")

    before = signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, TELL, LIMIT - TELL)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if hung:  # a loop that was interrupted just anywhere does not clean up after itself
            vars(trio._core._run.GLOBAL_RUN_CONTEXT).clear()


def waiting_tasks() -> Iterator[str]:
    """Where each task of the trio loop that runs in this thread waits, if there is one."""
    runner = getattr(trio._core._run.GLOBAL_RUN_CONTEXT, "runner", None)
    for task in [] if runner is None else list(runner.tasks):
        yield f"Task {task.name}:"
        yield "".join(traceback.format_list(frames_of(task))).rstrip()


def frames_of(task: trio.lowlevel.Task) -> traceback.StackSummary:
    """The frames of a task's coroutines, the outermost first."""
    frames = []
    awaited: Any = task.coro
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is None:
            break
        frames.append((frame, frame.f_lineno))
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    return traceback.StackSummary.extract(iter(frames))
