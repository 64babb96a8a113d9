"""Ends a process that computes something of a stream for too long.

A process of `spark_sink.derive.child_process` says in shared memory which stream it is computing
(`Marked`), and is ended in time. Anywhere else, nothing is marked or bounded.
"""

import mmap
import os
import signal
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

STREAM_TIMEOUT: Final = 60.0
"""CPU seconds that a stream may take: all that its events pay for takes a sixth."""
TIMEOUT_PER_BYTE: Final = 6e-6
"""The same for each byte of its events in addition."""
SLOWNESS: Final = 10
"""How much longer it may take altogether: other programs, and the disk, take time, too."""
SHARED_SIZE: Final = mmap.PAGESIZE
"""Bytes of the shared memory."""
_LAYOUT: Final = struct.Struct("<dd200p")


class Marked(NamedTuple):
    """A stream that a process is computing.

    Attributes:
        deadline: when the owner is to end the process, as `time.monotonic` says; 0.0: there is
            no stream.
        seconds: of CPU time, after which the kernel does.
        cid: of the stream.
    """

    deadline: float
    seconds: float
    cid: bytes


class _Mark:
    """Where the process marks streams; `memory` is None if it does not."""

    memory: mmap.mmap | None = None
    owner = 0


def share(file: int) -> None:
    """Mark streams in a file of `SHARED_SIZE` bytes, by its descriptor: the owner reads it, too."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    _Mark.memory, _Mark.owner = mmap.mmap(file, SHARED_SIZE), os.getppid()


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


def read_mark(memory: mmap.mmap) -> Marked:
    """Return the stream that is marked."""
    return Marked(*_LAYOUT.unpack_from(memory))
