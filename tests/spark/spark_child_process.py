"""A process that computes portions, in which the content of some streams does not end well.

python spark_child_process.py WAY CID... IDLE FILE
"""

import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recon_node.streams import Stream
from spark_sink.derive import child_process, feed_streams, portion


def end(cid: bytes) -> None:
    """What a stream does to the process."""
    if cid.hex() not in sys.argv[2:-2]:
        return
    way, _, mark = sys.argv[1].rpartition(" ")
    if sys.argv[1] == "hangs":
        while True:  # nothing that Python could interrupt would differ for the kernel
            pass
    if sys.argv[1] == "sleeps":
        time.sleep(1e6)
    if way == "killed once":
        if not Path(mark).exists():
            Path(mark).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return
    os.abort()


def states(stream: Stream) -> Any:
    end(bytes(stream.id.cid))
    return of_stream(stream)


def parse_event(car: bytes) -> Any:
    event = parse(car)
    end(bytes(event.init))
    return event


def read_checked(cars: Sequence[bytes], **options: bool) -> Any:
    events = read(cars, **options)
    for event in events:
        end(bytes(event.init))
    return events


if __name__ == "__main__":
    vars(child_process).update(STREAM_TIMEOUT=0.2, TIMEOUT_PER_BYTE=0.0, SLOWNESS=5)
    of_stream: Any = Stream.states.fget  # type: ignore[attr-defined]
    parse, read = portion.parse_event, feed_streams.read_checked
    if "read" in sys.argv[1]:
        portion.parse_event, feed_streams.read_checked = parse_event, read_checked
    else:
        Stream.states = property(states)  # type: ignore[assignment,method-assign]
    child_process.main()
