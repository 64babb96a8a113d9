"""A process that computes something of streams, and is killed if one of them takes too long.

What is computed of a stream is paid for by its events (`streams/json_values.py`), and an error
sets a stream aside. Neither helps against a call of native code that hangs, or that ends the
process: of a decoder, a pattern, an allocator. So strangers' content is computed in a process
beside the one that needs the rows. It marks in shared memory which stream it is at
(`killed_if_slow`). The kernel kills it when the stream has used up its CPU time. Its owner kills it
when `SLOWNESS` times that time has passed, as for a process that waits without taking CPU time. So
whatever ends the process, its owner knows at which stream. Anywhere else, nothing is marked or
bounded.
"""

import mmap
import os
import pickle
import signal
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Final, TypeVar

from recon_node.processes.process import Process, ProcessDiedError, answer_requests
from spark_sink.errors import SinkError

Answer = TypeVar("Answer")

# -P: no modules are taken from the working directory. Not -m: there would be two of this module.
_PROGRAM: Final = "from spark_sink.derive.child_process import main; main()"
COMMAND: Final = (sys.executable, "-P", "-c", _PROGRAM)
"""Starts a process."""
STREAM_TIMEOUT: Final = 60.0
"""CPU seconds that a stream may take: all that its events pay for takes a sixth."""
TIMEOUT_PER_BYTE: Final = 6e-6
"""CPU seconds that it may take in addition, for each byte of its events."""
SLOWNESS: Final = 10
"""How many times as long it may take by the clock: other programs and the disk take time, too."""
_DEADLINE_CHECK_INTERVAL: Final = 0.5
_LAYOUT: Final = struct.Struct("<dd200p")
"""What is in shared memory: when the owner is to end the process, as `time.monotonic` says (0.0:
there is no stream); seconds of CPU time after which the kernel does; the stream's CID."""
_SHARED_SIZE: Final = mmap.PAGESIZE


class StreamEndedError(Exception):
    """A process ended while it was at a stream; the message says how.

    Attributes:
        cid: of the stream; empty if the process was at none.
        reason: why the stream cannot be computed.
        timed_out: whether the stream's time was up.
    """

    def __init__(self, how: str, cid: bytes, reason: str, *, timed_out: bool) -> None:
        super().__init__(how)
        self.cid = cid
        self.reason = reason
        self.timed_out = timed_out


class ChildProcess:
    """A child process, which is started when it is needed.

    Args:
        command: what starts it.
        idle: seconds after which it ends if there is nothing to do; 0: it stays.
    """

    def __init__(self, command: Sequence[str], idle: float) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  # it has no name
        self._file.truncate(_SHARED_SIZE)
        self._memory = mmap.mmap(self._file.fileno(), _SHARED_SIZE)
        self._command = (*command, str(idle), str(self._file.fileno()))
        self._process: Process | None = None
        self._overdue = False

    def ask(self, request: Callable[[], Answer]) -> Answer:
        """Return what a function returns there, or raise what it raises.

        Raises:
            StreamEndedError: the process ended.
            SinkError: it cannot be started.
        """
        if self._process is not None and self._process.status is not None:
            self.close()  # it had nothing to do
        try:
            succeeded, answer = pickle.loads(self._asked(pickle.dumps(request)))
        except ProcessDiedError as error:
            raise self._ended(error) from None
        if not succeeded:
            raise answer
        return answer  # type: ignore[no-any-return]

    def close(self) -> None:
        """End the process; the next request starts another one."""
        if self._process is not None:
            self._process.end()
            self._process = None

    def _asked(self, request: bytes) -> bytes:
        if self._process is None:
            self._memory[:] = bytes(_SHARED_SIZE)
            try:
                self._process = Process(self._command, (self._file.fileno(),))
            except OSError as error:
                raise SinkError(f"no process can be started to compute tables: {error}") from None
            self._process.receive()
        self._overdue = False
        is_answered = threading.Event()
        watch = threading.Thread(target=self._watch, args=(self._process, is_answered), daemon=True)
        watch.start()
        try:
            answer: bytes = self._process.ask(request)
        finally:
            is_answered.set()
            watch.join()
        return answer

    def _watch(self, process: Process, is_answered: threading.Event) -> None:
        """Kill a process that is at one stream for too long by the clock."""
        while not is_answered.wait(_DEADLINE_CHECK_INTERVAL):
            deadline, _, _ = _LAYOUT.unpack_from(self._memory)
            if 0 < deadline < time.monotonic():
                self._overdue = True
                process.kill()
                return

    def _ended(self, error: ProcessDiedError) -> StreamEndedError:
        assert self._process is not None
        _, seconds, cid = _LAYOUT.unpack_from(self._memory)
        timed_out = self._overdue or self._process.status == -signal.SIGPROF
        self._process = None
        reason = f"the process that computes its content ends: {error}"
        if timed_out:
            reason = f"its content takes more than {seconds:.3g} s"
        return StreamEndedError(str(error), cid, reason, timed_out=timed_out)


class _Mark:
    """The memory in which this process marks streams; None if it marks none."""

    memory: mmap.mmap | None = None
    owner = 0


class _NoPandas(MetaPathFinder):
    """Lets no import of pandas succeed."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("there is no pandas in this process", name=fullname)


def do_without_pandas() -> None:
    """Have pyarrow find no pandas, if it has not looked for it yet.

    It imports pandas with the first array, to recognize values that are pandas objects. There are
    none in Spark's workers and in the processes that compute tables, and the import takes each of
    them a third of a second of CPU time and 40 MB.
    """
    if not any(isinstance(finder, _NoPandas) for finder in sys.meta_path):
        sys.meta_path.insert(0, _NoPandas())


@contextmanager
def killed_if_slow(cid: bytes, size: int) -> Iterator[None]:
    """Mark a stream while the block computes something of it, from events of some bytes.

    When that takes too long, the kernel ends the process (SIGPROF), whatever code it is in.
    """
    if _Mark.memory is None:
        yield
        return
    if os.getppid() != _Mark.owner:  # nobody waits for the answer
        os._exit(1)
    seconds = STREAM_TIMEOUT + TIMEOUT_PER_BYTE * size
    _LAYOUT.pack_into(_Mark.memory, 0, time.monotonic() + SLOWNESS * seconds, seconds, cid)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        _LAYOUT.pack_into(_Mark.memory, 0, 0.0, 0.0, b"")


def main() -> None:
    """Run as a child process: the last arguments are `idle` and the descriptor of the memory."""
    idle, file = sys.argv[-2:]
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    _Mark.memory, _Mark.owner = mmap.mmap(int(file), _SHARED_SIZE), os.getppid()
    do_without_pandas()
    with suppress(OSError):  # if the machine runs out of memory, this process goes, not its owner
        Path("/proc/self/oom_score_adj").write_text("1000")

    def answer(asked: bytes) -> bytes:
        signal.setitimer(signal.ITIMER_REAL, 0)
        try:
            answered = pickle.dumps((True, pickle.loads(asked)()))
        except Exception as error:
            answered = _pickled(error)
        signal.setitimer(signal.ITIMER_REAL, float(idle))
        return answered

    answer_requests(answer)


def _pickled(error: Exception) -> bytes:
    try:
        pickle.loads(answer := pickle.dumps((False, error)))
    except Exception:
        return pickle.dumps((False, RuntimeError(repr(error))))
    return answer
