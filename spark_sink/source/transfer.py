"""Reading from a node over HTTP: waiting for it, and a body that is read as a file."""

import io
import math
import time
from typing import Any, Final

import httpx

from recon_node.backoff import Backoff
from spark_sink.errors import FeedUnreachableError

_DELAYS: Final = Backoff(first=0.1, longest=1.0)


class Retry:
    """Waits longer and longer between tries, for `patience` seconds in all."""

    def __init__(self, patience: float) -> None:
        self._deadline = time.monotonic() + patience
        self._failures = 0

    def wait(self, error: FeedUnreachableError) -> None:
        """Sleep before the next try; raise `error` if time is up."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise error
        self._failures += 1
        time.sleep(min(_DELAYS.wait(self._failures), left))


class Body(io.RawIOBase):
    """A response's body as a file for the Arrow reader.

    Args:
        response: whose body it is.
        seconds: after which an answer that is still not complete counts as broken off.
    """

    def __init__(self, response: httpx.Response, seconds: float = math.inf) -> None:
        self._deadline = time.monotonic() + seconds
        self._chunks = response.iter_bytes()
        self._rest = memoryview(b"")
        self.tail = b""  # the last bytes received

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read some bytes; 0 at the end."""
        while not self._rest:
            if time.monotonic() > self._deadline:
                raise OSError("its answer took too long")
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self.tail = (self.tail + chunk[-8:])[-8:]
            self._rest = memoryview(chunk)
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size
