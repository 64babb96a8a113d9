"""One such process, as its owner sees it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from subprocess import PIPE, Popen, TimeoutExpired
from typing import Any

from recon_node.processes.child import read_frame, write_frame


class ProcessDiedError(Exception):
    """The process ended before it answered, or was killed because it took too long."""


class Process:
    """A process; used from one thread at a time, except for `kill` and `reap`.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, command: Sequence[str], files: Sequence[int] = ()) -> None:
        path = os.pathsep.join(entry for entry in sys.path if entry)
        self._process = Popen(
            command,
            stdin=PIPE,
            stdout=PIPE,
            env={**os.environ, "PYTHONPATH": path},
            pass_fds=files,
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
