"""A node's event feed over HTTP: where it stands, and its rows as Arrow record batches.

The feed is a log: position p holds the same event for ever, as long as the log's `epoch` stays
the same. So a read that breaks off can go on after the last row that arrived, and a node may
restart at any time: its reader waits for it, up to `patience` seconds without a single new row.

Filters are applied by the node: rows that do not fit are left out, and positions stay as they are.
"""

import io
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import httpx
import pyarrow as pa
import pyarrow.compute as pc

from spark_sink.errors import FeedChangedError, FeedRefusedError, FeedUnreachableError, one_line
from spark_sink.schema import FEED

PATIENCE: Final = 120.0
_FIRST_DELAY: Final = 0.1
_LONGEST_DELAY: Final = 1.0
_TIMEOUT: Final = httpx.Timeout(30.0, connect=5.0)
_START_AGAIN: Final = "start again with empty tables and a new checkpoint"
_TOKEN: Final = (
    "spark-sink takes it from --token-file or RECON_NODE_TOKEN, the source 'recon' from its option "
    "token"
)
# What httpx says of an answer that begins with no HTTP. What else it calls an error of the protocol
# is an answer that breaks off, as a node's does that ends.
_NO_HTTP: Final = ("illegal request line", "illegal status line", "illegal header line")
# How an Arrow stream ends; one that was cut between two batches looks whole otherwise.
_END_OF_STREAM: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"


@dataclass(frozen=True, slots=True)
class Head:
    """The feed holds the positions in (low, head] of the log `epoch`."""

    epoch: str
    low: int
    head: int


class Feed:
    """The feed of the node at `url`. Can be pickled; connects when first used.

    `patience` is how long, in seconds, an unreachable node is waited for before giving up; `token`
    is shown to a node that asks for one; `filters` are what rows must fit, by the names of the
    API's parameters (sortKey, sortValue, controller, streamId).
    """

    def __init__(
        self,
        url: str,
        patience: float = PATIENCE,
        token: str | None = None,
        filters: Mapping[str, str] | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self.patience = patience
        self.filters = dict(filters or {})
        self._token = token

    def __reduce__(self) -> tuple[type["Feed"], tuple[str, float, str | None, dict[str, str]]]:
        return Feed, (self.url, self.patience, self._token, self.filters)

    def close(self) -> None:
        """Give back the connection; the next call makes a new one."""
        client = self.__dict__.pop("_client", None)
        if client is not None:
            client.close()

    def head(self, patience: float | None = None) -> Head:
        """Where the feed stands now.

        Raises:
            FeedUnreachableError: no answer within `patience` seconds (default: the feed's own).
            FeedRefusedError: an answer that is no feed's.
        """
        retry = Retry(self.patience if patience is None else patience)
        while True:
            try:
                return self._head_once()
            except FeedUnreachableError as error:
                retry.wait(error)

    def check(self, position: int, epoch: str, head: Head) -> None:
        """Does the feed still continue what was read, up to `position` of the log `epoch`?

        Raises:
            FeedChangedError: it does not.
        """
        node = f"the node at {self.url}"
        if head.epoch != epoch:
            raise _epoch_changed(self.url, f"log {head.epoch}", f"log {epoch}")
        if position < head.low:
            raise FeedChangedError(
                f"{node} has dropped the events up to position {head.low}, but only those up to "
                f"{position} were read: {_START_AGAIN}"
            )
        if position > head.head:
            raise FeedChangedError(
                f"the log of {node} ends at position {head.head}, but events up to {position} "
                f"were read from it: it was restored from an older copy; {_START_AGAIN}"
            )

    def read(
        self, after: int, upto: int, epoch: str, patience: float | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows of positions (after, upto] in order, in the schema `FEED`, without a gap; with
        filters, those that fit them.

        Raises:
            FeedChangedError: the node has another log now.
            FeedUnreachableError: no row arrived for `patience` seconds (default: the feed's own).
            FeedRefusedError: an answer that is no feed's.
        """
        patience = self.patience if patience is None else patience
        retry = Retry(patience)
        while after < upto:
            try:
                for batch in self._read_once(after, upto, epoch):
                    yield batch
                    after = last_position(batch)
                    retry = Retry(patience)
                if after < upto and not self.filters:
                    raise FeedUnreachableError(
                        f"the node at {self.url} ended its answer at position {after} of {upto}"
                    )
                return
            except FeedUnreachableError as error:
                retry.wait(error)

    def _head_once(self) -> Head:
        try:
            response = self._client.get("/ceramic/feed/head")
        except httpx.HTTPError as error:
            raise _failed(self.url, error) from None
        self._check_status(response)
        try:
            body = response.json()
            return Head(str(body["epoch"]), int(body["low"]), int(body["head"]))
        except (ValueError, KeyError, TypeError):
            raise FeedRefusedError(
                f"{self.url}/ceramic/feed/head is not a feed of a recon-node: is the URL right?"
            ) from None

    def _read_once(self, after: int, upto: int, epoch: str) -> Iterator[pa.RecordBatch]:
        """One request's rows, as far as they arrive whole."""
        params: dict[str, Any] = {"after": after, "upto": upto, "epoch": epoch, **self.filters}
        try:
            with self._client.stream("GET", "/ceramic/feed/arrow", params=params) as response:
                if response.is_error:
                    response.read()
                self._check_status(response, epoch)
                raw = _Body(response)
                stream = pa.ipc.open_stream(io.BufferedReader(raw, 1 << 16))
                self._check_filters(stream.schema)
                for batch in stream:
                    if batch.num_rows:
                        yield self._checked(batch, after, upto)
                        after = last_position(batch)
                if raw.tail != _END_OF_STREAM:
                    raise OSError("its answer was cut short")
        except (httpx.HTTPError, pa.ArrowInvalid, OSError) as error:  # broken off, or cut short
            raise _failed(self.url, error) from None

    def _checked(self, batch: pa.RecordBatch, after: int, upto: int) -> pa.RecordBatch:
        try:
            columns = [batch.column(field.name).cast(field.type) for field in FEED]
            checked = pa.RecordBatch.from_arrays(columns, schema=FEED)
        except (KeyError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise FeedRefusedError(
                f"the feed of the node at {self.url} has other columns than it should ({error}): "
                "use a node and a pipeline of the same version"
            ) from None
        positions = checked.column("position")
        first, last = positions[0].as_py(), positions[-1].as_py()
        right = _ascends(positions) and after < first and last <= upto
        # Ascending integers have no gap when their ends are as far apart as they are many.
        if not right or not (self.filters or last == after + len(positions)):
            raise FeedRefusedError(
                f"the node at {self.url} served the positions {first} to {last} "
                f"where {after + 1} to {upto} were asked for: is it a recon-node, and undamaged?"
            )
        return checked

    def _check_filters(self, schema: pa.Schema) -> None:
        told = (schema.metadata or {}).get(b"filter", b"{}")
        if json.loads(told) != self.filters:
            raise FeedRefusedError(
                f"the node at {self.url} does not know the filters {', '.join(self.filters)}: use "
                "a node and a pipeline of the same version, or no filter"
            )

    def _check_status(self, response: httpx.Response, epoch: str = "") -> None:
        status = response.status_code
        if status == httpx.codes.GONE:
            raise _epoch_changed(self.url, "another log", f"log {epoch}")
        if status in (408, 429) or response.is_server_error:
            raise FeedUnreachableError(
                f"the node at {self.url} answered {status}: {_reason(response)}"
            )
        if status == httpx.codes.UNAUTHORIZED:
            told = "refuses the token" if self._token else "wants a token"
            raise FeedRefusedError(f"the node at {self.url} {told} (401): {_TOKEN}")
        if not response.is_success:
            raise FeedRefusedError(
                f"the node at {self.url} does not serve its feed, it answered {status}: "
                f"{_reason(response)}"
            )

    @cached_property
    def _client(self) -> httpx.Client:
        try:
            if httpx.URL(self.url).scheme in ("http", "https"):
                headers = {"authorization": f"Bearer {self._token}"} if self._token else {}
                return httpx.Client(base_url=self.url, timeout=_TIMEOUT, headers=headers)
        except httpx.InvalidURL as error:
            raise FeedRefusedError(f"{self.url!r} is not a URL: {error}") from None
        raise FeedRefusedError(f"{self.url!r} is not a URL such as http://127.0.0.1:5101")


def last_position(batch: pa.RecordBatch) -> int:
    """The position of a batch's last row."""
    return int(batch.column("position")[-1].as_py())


def _ascends(positions: pa.Array) -> bool:
    """Is each of these greater than the one before it, and none of them null?"""
    steps = pc.less(positions[:-1], positions[1:])
    return positions.null_count == 0 and bool(pc.all(steps, min_count=0).as_py())


class Retry:
    """Waits longer and longer, and no longer than `patience` seconds in all."""

    def __init__(self, patience: float) -> None:
        self._deadline = time.monotonic() + patience
        self._delay = _FIRST_DELAY

    def wait(self, error: FeedUnreachableError) -> None:
        """Sleep before the next try; raise `error` when there should be none."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise error
        time.sleep(min(self._delay, left))
        self._delay = min(2 * self._delay, _LONGEST_DELAY)


class _Body(io.RawIOBase):
    """A response's body as a file, for the Arrow reader."""

    def __init__(self, response: httpx.Response) -> None:
        self._chunks = response.iter_bytes()
        self._rest = memoryview(b"")
        self.tail = b""  # the last bytes that came

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
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


def _failed(url: str, error: Exception) -> FeedUnreachableError | FeedRefusedError:
    reason = one_line(error)
    if isinstance(error, httpx.RemoteProtocolError) and reason.startswith(_NO_HTTP):
        return FeedRefusedError(
            f"what answers at {url} does not speak HTTP: is it the node's API? ({reason})"
        )
    return FeedUnreachableError(
        f"the node at {url} cannot be reached ({reason}): is it running, and is the URL right?"
    )


def _epoch_changed(url: str, found: str, expected: str) -> FeedChangedError:
    return FeedChangedError(
        f"the node at {url} has {found}, not {expected}: it was set up anew, or is another node. "
        f"Point --url at the node that the tables were made from, or {_START_AGAIN}"
    )


def _reason(response: httpx.Response) -> str:
    try:
        return str(response.json()["message"])
    except (ValueError, KeyError, TypeError):
        return response.reason_phrase or "no reason given"
