"""A process that checks events: it reads lists of CARs from standard input and writes facts.

    request   u32 size, then marshal of a list of CARs
    answer    u32 size, then marshal of a list, for each CAR (1, the facts) or (0, a bug's text)

A first answer, an empty list, says that the process is ready. The process ends when its standard
input does: however the node dies, the pipe closes. Signals to the whole process group (Ctrl-C, a
service manager's SIGTERM) are left to the node. `marshal` needs the same Python version at both
ends, which they have, and a trusted peer: neither end reads such bytes from anyone else.
"""

from __future__ import annotations

import marshal
import os
import signal
import struct
from typing import IO, Any

from recon_node.verification.facts import check_event, to_wire

SIZE = struct.Struct("<I")
"""Bytes of the frame that follows."""


def main() -> None:
    """Answer requests until standard input ends."""
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing may print into the answers
    try:
        write_frame(answers, [])
        while (cars := read_frame(requests)) is not None:
            write_frame(answers, [_answer(car) for car in cars])
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


def write_frame(stream: IO[bytes], value: list[Any]) -> None:
    """Write a value and flush it."""
    body = marshal.dumps(value)
    stream.write(SIZE.pack(len(body)) + body)
    stream.flush()


def _answer(car: bytes) -> tuple[int, object]:
    try:
        return 1, to_wire(check_event(car), car)
    except Exception as error:  # a bug: one event must not take the others with it
        return 0, repr(error)


if __name__ == "__main__":
    main()
