"""A process that checks events: lists of CARs come in on standard input, facts go out.

    request   u32 size, then marshal of a list of CARs
    answer    u32 size, then marshal of a list, for each CAR (1, the facts) or (0, a bug's text)

A first answer, an empty list, says that the process is ready. It ends when its standard input does:
whichever way the node dies, the pipe closes. Signals that are sent to a whole group of processes
(Ctrl-C, a service manager's SIGTERM) are left to the node. `marshal` is for values of the same
Python version, which both ends are; neither end takes such bytes from anyone else.
"""

from __future__ import annotations

import marshal
import os
import signal
import struct
from typing import IO, Any

from recon_node.verification.facts import check, to_wire

SIZE = struct.Struct("<I")


def main() -> None:
    """Answer requests until standard input ends."""
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints something must not print into the answers
    try:
        write_frame(answers, [])
        while (cars := read_frame(requests)) is not None:
            write_frame(answers, [_answer(car) for car in cars])
    except BrokenPipeError:
        pass  # the node is gone
    os._exit(0)  # nothing is left to be flushed, and an ending interpreter takes its time


def read_frame(stream: IO[bytes]) -> Any:
    """The next value, None at the end of the stream, also in the midst of a frame."""
    head = stream.read(SIZE.size)
    if len(head) < SIZE.size:
        return None
    (size,) = SIZE.unpack(head)
    body = stream.read(size)
    return marshal.loads(body) if len(body) == size else None


def write_frame(stream: IO[bytes], value: list[Any]) -> None:
    """Write a value and hand it on at once."""
    body = marshal.dumps(value)
    stream.write(SIZE.pack(len(body)) + body)
    stream.flush()


def _answer(car: bytes) -> tuple[int, object]:
    try:
        return 1, to_wire(check(car), car)
    except Exception as error:  # a bug, met by one event: the others are not to suffer from it
        return 0, repr(error)


if __name__ == "__main__":
    main()
