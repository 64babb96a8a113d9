"""Reading from a node over HTTP: waiting for it, and a body that is read as a file."""

import io
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

import httpx

from recon_node.fairness.pacing import Backoff
from spark_sink.errors import FeedRefusedError, FeedUnreachableError, one_line

T = TypeVar("T")

_DELAYS: Final = Backoff(first=0.1, longest=1.0)
# How httpx's errors begin if an answer is not HTTP at all. Its other protocol errors mean that an
# answer was cut off, for example because the node stopped.
_NO_HTTP: Final = ("illegal request line", "illegal status line", "illegal header line")


def connection_error(url: str, error: Exception) -> FeedUnreachableError | FeedRefusedError:
    """Return the error for a request that failed, or whose answer was cut off."""
    reason = one_line(error)
    if isinstance(error, httpx.RemoteProtocolError) and reason.startswith(_NO_HTTP):
        return FeedRefusedError(
            f"the server at {url} does not speak HTTP: is it the node's API? ({reason})"
        )
    return FeedUnreachableError(
        f"the node at {url} cannot be reached ({reason}): is it running, and is the URL right?"
    )


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


def retried(
    ask: Callable[[], T],
    patience: float,
    on_failure: Callable[[FeedUnreachableError], None] = lambda error: None,
) -> T:
    """Return an answer, which is asked for again and again, for `patience` seconds."""
    retry = Retry(patience)
    while True:
        try:
            return ask()
        except FeedUnreachableError as error:
            on_failure(error)
            retry.wait(error)


class ResponseBody(io.RawIOBase):
    """A response's body as a file for the Arrow reader."""

    def __init__(self, response: httpx.Response) -> None:
        self._chunks = response.iter_bytes()
        self._rest = memoryview(b"")
        self.tail = b""  # the last bytes received

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read some bytes; 0 at the end."""
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self.tail = (self.tail + chunk[-8:])[-8:]
            self._rest = memoryview(chunk)
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size
