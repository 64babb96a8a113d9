"""What runs in such a process. It imports next to nothing: each process pays for its imports."""

from __future__ import annotations

import marshal
import os
import signal
import struct
from collections.abc import Callable
from typing import IO, Any

SIZE = struct.Struct("<I")
"""Bytes of the frame that follows."""


def answer_requests(answer: Callable[[Any], Any]) -> None:
    """Be such a process: answer requests until standard input ends."""
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing may print into the answers
    try:
        write_frame(answers, [])
        while (request := read_frame(requests)) is not None:
            write_frame(answers, answer(request))
    except BrokenPipeError:
        pass  # the node is gone
    os._exit(0)  # everything is flushed, and a regular exit is slow


def read_frame(stream: IO[bytes]) -> Any:
    """Read the next value; None at the end of the stream, even within a frame."""
    head = stream.read(SIZE.size)
    if len(head) < SIZE.size:
        return None
    (size,) = SIZE.unpack(head)
    body = stream.read(size)
    return marshal.loads(body) if len(body) == size else None


def write_frame(stream: IO[bytes], value: Any) -> None:
    """Write a value and flush it."""
    body = marshal.dumps(value)
    stream.write(SIZE.pack(len(body)))
    stream.write(body)
    stream.flush()
