"""What runs in such a process. It imports next to nothing: each process pays for its imports."""

from __future__ import annotations

import marshal
import os
import signal
import struct
from collections.abc import Callable
from typing import IO, Any

HEAD = struct.Struct("<I?")
"""Bytes of the frame that follows, and whether they are the value themselves."""


def answer_requests(answer: Callable[[Any], Any]) -> None:
    """Be such a process: answer requests until standard input ends."""
    for stop_signal in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(stop_signal, signal.SIG_IGN)
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing may print into the answers
    try:
        write_frame(answers, [])
        while (frame := [read_frame(requests)])[0] is not None:
            write_frame(answers, answer(frame.pop()))  # which may be large: nothing keeps it
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
