"""Computes portions of steps in a process of its own, which can be killed.

What is computed of a stream is paid for by its events (`recon_node.streams.budget`), and an error
sets a stream aside. Neither helps against a call of native code that hangs, or that ends the
process: of a decoder, a pattern, an allocator. So strangers' content is computed in a process
beside the one that needs the rows. It marks in shared memory which stream it is at
(`derive.watchdog`). Whether the kernel ends it, because that stream has had its time, or the
owner, or the stream itself: the stream is set aside with that reason, and the others are computed
again, in two halves, so that many such streams cost little more than one.

A process may also end because somebody kills it, or because the machine has no memory left. So what
has not used up its time is tried twice. `raw_events` is the only state, so a process can be
replaced at any moment; it keeps models and summaries of long streams only to be fast.
"""

from __future__ import annotations

import mmap
import pickle
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Final

from recon_node.processes.process import Process, ProcessDiedError, answer_requests
from spark_sink.derive.feed_streams import SummaryCache
from spark_sink.derive.portion import Models, Portion, Step, compute, portion_of_set_aside
from spark_sink.derive.watchdog import SHARED_SIZE, read_mark, share
from spark_sink.errors import SinkError

COMMAND: Final = (sys.executable, "-P", "-m", "spark_sink.derive.child_process")
"""Starts a process. -P: no modules are taken from the working directory."""
IDLE: Final = 60.0
"""Seconds without work after which a process of Spark's worker ends."""
_TRIES: Final = 2
"""How often a stream may end a process."""
_LOOK_EVERY: Final = 0.5

#: A portion, from what the process keeps.
_Request = Callable[[Models, SummaryCache], Portion]


class LocalComputer:
    """Computes portions in this process."""

    def __init__(self) -> None:
        self._models, self._summaries = Models(), SummaryCache()

    def compute(self, step: Step, streams: Sequence[bytes]) -> Portion:
        """Compute the portion of these streams; see `derive.portion.compute`."""
        return compute(step, streams, self._models, self._summaries)

    def close(self) -> None:
        """Forget what is kept."""
        self._models, self._summaries = Models(), SummaryCache()


class ChildProcess:
    """Computes portions in a process of its own, which is started when it is needed.

    Args:
        command: what starts it.
        idle: seconds after which it ends if there is nothing to do; 0: it stays.
    """

    def __init__(self, command: Sequence[str] = COMMAND, idle: float = 0.0) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  # it has no name
        self._file.truncate(SHARED_SIZE)
        self._memory = mmap.mmap(self._file.fileno(), SHARED_SIZE)
        self._command = (*command, str(idle), str(self._file.fileno()))
        self._process: Process | None = None
        self._overdue = False

    def compute(self, step: Step, streams: Sequence[bytes]) -> Portion:
        """Compute the portion of these streams; see `derive.portion.compute`.

        Raises:
            SinkError: also if processes end whatever they do.
        """
        portion = Portion()
        deaths: Counter[bytes] = Counter()
        reasons: dict[bytes, str] = {}
        unreadable: set[bytes] = set()
        left = [list(streams)]
        while left:
            batch = left.pop()
            try:
                portion.add(self._ask(partial(compute, step, batch)))
            except ProcessDiedError as error:
                cid, reason, is_final = self._blame(error)
                deaths[cid] += _TRIES if is_final else 1
                if deaths[cid] >= _TRIES and cid:
                    reasons[cid] = reason
                    step = replace(step, set_aside=step.set_aside | {cid})
                elif deaths[cid] > _TRIES:
                    raise SinkError(f"cannot compute the tables: {error}") from None
                half = len(batch) // 2
                left += [batch[half:], batch[:half]] if half else [batch]
        while reasons:
            try:
                portion.add(self._ask(partial(_set_aside, step, reasons, frozenset(unreadable))))
                break
            except ProcessDiedError as error:
                cid, _, _ = self._blame(error)
                if cid in unreadable or cid not in reasons:
                    raise SinkError(f"cannot compute the tables: {error}") from None
                unreadable.add(cid)
        return portion

    def close(self) -> None:
        """End the process; the next request starts another one."""
        if self._process is not None:
            self._process.end()
            self._process = None

    def _ask(self, request: _Request) -> Portion:
        asked = pickle.dumps(request)
        if self._process is not None and self._process.status is not None:
            self.close()  # it had nothing to do
        if self._process is None:
            self._memory[:] = bytes(SHARED_SIZE)
            try:
                self._process = Process(self._command, (self._file.fileno(),))
            except OSError as error:
                raise SinkError(f"no process can be started to compute tables: {error}") from None
            self._process.receive()
        self._overdue = False
        answered = threading.Event()
        watch = threading.Thread(target=self._watch, args=(self._process, answered), daemon=True)
        watch.start()
        try:
            found, answer = pickle.loads(self._process.ask(asked))
        finally:
            answered.set()
            watch.join()
        if not found:
            raise answer
        portion: Portion = answer
        return portion

    def _watch(self, process: Process, answered: threading.Event) -> None:
        """Kill a process that is at one stream for too long, and takes no CPU time."""
        while not answered.wait(_LOOK_EVERY):
            if 0 < read_mark(self._memory).deadline < time.monotonic():
                self._overdue = True
                process.kill()
                return

    def _blame(self, error: ProcessDiedError) -> tuple[bytes, str, bool]:
        """Return the stream at which the process ended, why, and whether its time was up."""
        assert self._process is not None
        marked = read_mark(self._memory)
        used_up = self._overdue or self._process.status == -signal.SIGPROF
        self._process = None
        if used_up:
            return marked.cid, f"its content takes more than {marked.seconds:.3g} s", True
        return marked.cid, f"the process that computes its content ends: {error}", False


@cache
def in_worker(command: Sequence[str] | None) -> LocalComputer | ChildProcess:
    """Return what computes portions for this process, one of Spark's; see `Workers.command`."""
    return LocalComputer() if command is None else ChildProcess(command, IDLE)


def compute_partition(step: Step, command: Sequence[str] | None, partition: int) -> Portion:
    """Compute the portion of the streams in a partition.

    Raises:
        SinkError: as `ChildProcess.compute`.
    """
    streams = step.raw.streams_between(step.after, step.upto, [partition])
    return in_worker(command).compute(step, streams)


def _set_aside(
    step: Step,
    reasons: dict[bytes, str],
    unreadable: frozenset[bytes],
    models: Models,
    summaries: SummaryCache,
) -> Portion:
    return portion_of_set_aside(step, reasons, unreadable)


def main() -> None:
    """Be such a process."""
    idle, file = sys.argv[-2:]
    share(int(file))
    with suppress(OSError):  # if the machine runs out of memory, this process goes, not its owner
        Path("/proc/self/oom_score_adj").write_text("1000")
    models, summaries = Models(), SummaryCache()

    def answer(asked: bytes) -> bytes:
        signal.setitimer(signal.ITIMER_REAL, 0)
        try:
            request: _Request = pickle.loads(asked)
            answered = pickle.dumps((True, request(models, summaries)))
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


if __name__ == "__main__":
    main()
