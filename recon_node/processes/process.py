"""One such process: what runs in it, and how its owner sees it."""

import contextlib
import gc
import marshal
import os
import signal
import struct
import sys
from collections.abc import Callable, Sequence
from subprocess import PIPE, Popen, TimeoutExpired
from typing import IO, Any

HEAD = struct.Struct("<I?")
"""Bytes of the frame that follows, and whether they are the value themselves."""


def answer_requests(answer: Callable[[Any], Any]) -> None:
    """Be such a process: answer requests until standard input ends.

    Cycles of garbage are not looked for within an answer, which may make very many objects and
    makes few cycles: a block may be a million lists.
    """
    for stop_signal in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(stop_signal, signal.SIG_IGN)
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing may print into the answers
    try:
        write_frame(answers, [])
        while (frame := [read_frame(requests)])[0] is not None:
            gc.disable()
            write_frame(answers, answer(frame.pop()))  # which may be large: nothing keeps it
            gc.enable()
    except BrokenPipeError:
        pass  # the node is gone
    os._exit(0)  # everything is flushed, and a regular exit is slow


def read_frame(stream: IO[bytes]) -> Any:
    """Read the next value; None at the end of the stream, even within a frame."""
    head = stream.read(HEAD.size)
    if len(head) < HEAD.size:
        return None
    size, is_raw = HEAD.unpack(head)
    body = stream.read(size)
    if len(body) < size:
        return None
    return body if is_raw else marshal.loads(body)


def write_frame(stream: IO[bytes], value: Any) -> None:
    """Write a value and flush it. Bytes are not copied for that: they may be many."""
    is_raw = type(value) is bytes
    body = value if is_raw else marshal.dumps(value)
    stream.write(HEAD.pack(len(body), is_raw))
    stream.write(body)
    stream.flush()


class ProcessDiedError(Exception):
    """The process ended before it answered, or was killed because it took too long."""


class ProcessTooSlowError(ProcessDiedError):
    """The process was killed because it took too long."""


class Process:
    """A process; used from one thread at a time, except for `kill` and `reap`.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, command: Sequence[str], files: Sequence[int] = ()) -> None:
        path = os.pathsep.join(entry for entry in sys.path if entry)
        self._process = Popen(
            command, stdin=PIPE, stdout=PIPE, env={**os.environ, "PYTHONPATH": path}, pass_fds=files
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

    @property
    def status(self) -> int | None:
        """Its exit code, or the number of the signal that ended it, negative; None: it runs."""
        return self._process.poll()

    def kill(self) -> None:
        """End the process at once; a thread that waits for it learns of its death."""
        self._process.kill()

    def end(self) -> None:
        """Let the process end, or kill it after a second."""
        with contextlib.suppress(OSError):
            self._requests.close()
        with contextlib.suppress(TimeoutExpired):
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
