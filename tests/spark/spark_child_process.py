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

from recon_node.streams import Stream, StreamStates
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


def of_chain(init: Any, *others: Any) -> Any:
    end(bytes(init.cid))
    return of_the_chain(init, *others)


def read_chain(cars: Sequence[bytes]) -> Any:
    chain = read_the_chain(cars)
    if chain is not None:
        end(bytes(chain.init.cid))
    return chain


if __name__ == "__main__":
    vars(child_process).update(STREAM_TIMEOUT=0.2, TIMEOUT_PER_BYTE=0.0, SLOWNESS=5)
    of_stream: Any = Stream.states.fget  # type: ignore[attr-defined]
    of_the_chain = StreamStates.of_chain
    parse, read = portion.parse_event, feed_streams.read_checked
    read_the_chain = feed_streams.read_chain
    if "read" in sys.argv[1]:
        portion.parse_event, feed_streams.read_checked = parse_event, read_checked
        feed_streams.read_chain = read_chain
    else:
        Stream.states = property(states)  # type: ignore[assignment,method-assign]
        StreamStates.of_chain = of_chain  # type: ignore[method-assign]
    child_process.main()
