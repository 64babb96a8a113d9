"""A node's event feed over HTTP: its head, and its rows as Arrow record batches.

The feed is a log: as long as its `epoch` stays the same, a position always holds the same event. So
an interrupted read can continue after the last row that arrived, and a node may restart at any
time: the reader waits for it, for up to `patience` seconds without a new row.

The node applies the filters: rows that do not match are left out, and positions do not change.
"""

import io
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Final, TypeVar

import httpx
import pyarrow as pa
import pyarrow.compute as pc

from recon_node.base.connection import ClientError, http_options, usable_proxy
from recon_node.ceramic.auth.did import ed25519_did
from recon_node.fairness.pacing import Backoff
from recon_node.ipld import multibase
from spark_sink.errors import FeedChangedError, FeedRefusedError, FeedUnreachableError, one_line
from spark_sink.schema import FEED

T = TypeVar("T")

CID: Final = "event_cid"
_POSITION: Final = "position"
CIDS: Final = pa.schema([FEED.field(_POSITION), FEED.field(CID)])
# Nodes that do not note when they delivered an event, or deliver valid events only, serve their
# feed without these.
_NEW_COLUMNS: Final = frozenset({"delivered_at", "fault"})

DEFAULT_PATIENCE: Final = 120.0
"""Seconds to wait for a node that does not answer."""
_ARROW: Final = "/ceramic/feed/arrow"
_READ_BUFFER_BYTES: Final = 1 << 16
_DELAYS: Final = Backoff(first=0.1, longest=1.0)
_NO_HTTP: Final = ("illegal request line", "illegal status line", "illegal header line")
"""How httpx's errors begin if an answer is not HTTP at all. Its other protocol errors mean that an
answer was cut off, for example because the node stopped."""
_TIMEOUT: Final = httpx.Timeout(30.0, connect=5.0)
_HASH_TIMEOUT: Final = httpx.Timeout(600.0, connect=5.0)  # for a hundred million events
# A node knows its head: one that does not answer hangs, and another one may be read instead.
_HEAD_TIMEOUT: Final = httpx.Timeout(10.0, connect=5.0)
_START_AGAIN: Final = "start again with empty tables and a new checkpoint"
_TOKEN: Final = (
    "give it to spark-sink by --token-file or RECON_NODE_TOKEN, or to the source 'recon' by its "
    "option token"
)
_END_OF_STREAM: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""The end of an Arrow stream; one that was cut off between two batches looks complete otherwise."""

_ED25519_PEER_ID: Final = bytes.fromhex("002408011220")
_KEY_SIZE: Final = 32


@dataclass(frozen=True, slots=True)
class Head:
    """The feed holds the positions (low, head] of the log `epoch`."""

    epoch: str
    low: int
    head: int


class Feed:
    """The feed of the node at `url`. It can be pickled, and connects on first use.

    Its methods raise `FeedUnreachableError` if no answer comes in time, `FeedRefusedError` if
    something answers, but not as a feed does, and `FeedChangedError` if the node has another log
    than the one that was named.

    Args:
        url: of the node's HTTP API.
        patience: seconds to wait for an unreachable node before giving up.
        token: the API token, if the node requires one.
        filters: what rows must match, by parameter of the API (sortKey, sortValue, controller,
            controllers, streamId).
    """

    def __init__(
        self,
        url: str,
        patience: float = DEFAULT_PATIENCE,
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
        """Close the connection; the next call opens a new one."""
        client = self.__dict__.pop("_client", None)
        if client is not None:
            client.close()

    def head(
        self,
        patience: float | None = None,
        on_failure: Callable[[FeedUnreachableError], None] = lambda error: None,
        *,
        long_poll: Mapping[str, float] | None = None,
    ) -> Head:
        """Return the current head of the feed.

        Args:
            patience: seconds to wait for an answer; None: the feed's own.
            on_failure: called after each try that failed.
            long_poll: `after` and `wait`: up to `wait` seconds for an event after a position.
        """
        patience = self.patience if patience is None else patience
        return _retried(partial(self._head_once, long_poll), patience, on_failure)

    def check(self, position: int, epoch: str, head: Head) -> None:
        """Check that the feed continues what was read, up to `position` of the log `epoch`."""
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
        """Yield the rows at positions (after, upto] in order, in the schema `FEED`.

        There are no gaps, except with filters, which leave out rows that do not match. A row must
        arrive every `patience` seconds (default: the feed's own).
        """
        return self._read(after, upto, epoch, FEED, patience)

    def event_cids(self, after: int, upto: int, epoch: str) -> Iterator[pa.Array]:
        """Yield the CIDs of the events at positions (after, upto] in order, some at a time."""
        for batch in self._read(after, upto, epoch, CIDS, None):
            yield batch.column(CID)

    def _read(
        self, after: int, upto: int, epoch: str, columns: pa.Schema, patience: float | None
    ) -> Iterator[pa.RecordBatch]:
        patience = self.patience if patience is None else patience
        retry = _Retry(patience)
        while after < upto:
            try:
                for batch in self._read_once(after, upto, epoch, columns):
                    yield batch
                    after = _last_position(batch)
                    retry = _Retry(patience)
                if after < upto and not self.filters:
                    raise FeedUnreachableError(
                        f"the node at {self.url} ended its answer at position {after} of {upto}"
                    )
                return
            except FeedUnreachableError as error:
                retry.wait(error)

    def ask(
        self, path: str, timeout: httpx.Timeout = _TIMEOUT, **params: float | str
    ) -> httpx.Response:
        """Return the answer to a question about the feed, for `check_status`."""
        try:
            return self._client.get(path, params=params, timeout=timeout)
        except httpx.HTTPError as error:
            raise _connection_error(self.url, error) from None

    def hashes(self, upto: int, epoch: str, prefix: bytes, size: int) -> dict[str, Any]:
        """Return the Sha256a of the events up to a position, and of parts of them.

        Args:
            upto: the position.
            epoch: of the log.
            prefix: what their EventIds have after the network id.
            size: of the parts, in bytes after the prefix.
        """
        response = self.ask(
            "/ceramic/feed/sha256a",
            _HASH_TIMEOUT,
            upto=upto,
            epoch=epoch,
            prefix=prefix.hex(),
            size=size,
        )
        self.check_status(response, epoch)
        answer: dict[str, Any] = response.json()
        return answer

    def check_status(self, response: httpx.Response, epoch: str = "") -> None:
        """Check that an answer is that of a feed, of the log `epoch` if one was named."""
        status = response.status_code
        if status == httpx.codes.GONE:
            raise _epoch_changed(self.url, "another log", f"log {epoch}")
        if status in (408, 429) or response.is_server_error:
            raise FeedUnreachableError(
                f"the node at {self.url} answered {status}: {reason_of(response)}"
            )
        if status == httpx.codes.UNAUTHORIZED:
            what = "refuses the token" if self._token else "requires a token"
            raise FeedRefusedError(f"the node at {self.url} {what} (401): {_TOKEN}")
        if not response.is_success:
            raise FeedRefusedError(
                f"the node at {self.url} does not serve its feed; it answered {status}: "
                f"{reason_of(response)}"
            )

    def signer(self) -> str | None:
        """Return the did:key by which the node signs its snapshots; None if it does not say."""
        response = self.ask("/ceramic/recon", _HEAD_TIMEOUT)
        self.check_status(response)
        try:
            raw = multibase.decode("z" + str(response.json().get("peer_id", "")))
        except (ValueError, AttributeError):
            return None
        return ed25519_did(raw[-_KEY_SIZE:]) if raw[:-_KEY_SIZE] == _ED25519_PEER_ID else None

    def _head_once(self, long_poll: Mapping[str, float] | None) -> Head:
        response = self.ask("/ceramic/feed/head", _HEAD_TIMEOUT, **(long_poll or {}))
        self.check_status(response)
        try:
            body = response.json()
            return Head(str(body["epoch"]), int(body["low"]), int(body["head"]))
        except (ValueError, KeyError, TypeError):
            raise FeedRefusedError(
                f"{self.url}/ceramic/feed/head is not a feed of a recon-node: is the URL right?"
            ) from None

    def _read_once(
        self, after: int, upto: int, epoch: str, columns: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one request, as far as they arrive completely."""
        params = {"after": after, "upto": upto, "epoch": epoch, **self.filters}
        if columns != FEED:  # the position comes with any columns
            names = (name for name in columns.names if name != _POSITION)
            params["columns"] = ",".join(names)
        for batch in self._stream(params):
            yield self._checked(batch, after, upto, columns)
            after = _last_position(batch)

    def _stream(self, params: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
        """Yield the batches of an answer, as far as they arrive completely."""
        try:
            with self._client.stream("GET", _ARROW, params=params) as response:
                if response.is_error:
                    response.read()
                self.check_status(response, str(params.get("epoch", "")))
                raw = _ResponseBody(response)
                stream = pa.ipc.open_stream(io.BufferedReader(raw, _READ_BUFFER_BYTES))
                self._check_filters(stream.schema)
                for batch in stream:
                    if batch.num_rows:
                        yield batch
                if raw.tail != _END_OF_STREAM:
                    raise OSError("its answer was cut off")
        except (httpx.HTTPError, pa.ArrowInvalid, OSError) as error:  # interrupted or cut off
            raise _connection_error(self.url, error) from None

    def _checked(
        self, batch: pa.RecordBatch, after: int, upto: int, columns: pa.Schema
    ) -> pa.RecordBatch:
        checked = self._shaped(batch, columns)
        positions = checked.column("position")
        first, last = positions[0].as_py(), positions[-1].as_py()
        right = _ascends(positions) and after < first and last <= upto
        # Ascending integers have no gaps if their count equals the distance between their ends.
        if not right or not (self.filters or last == after + len(positions)):
            raise FeedRefusedError(
                f"the node at {self.url} served the positions {first} to {last} "
                f"instead of {after + 1} to {upto}: is it a recon-node, and is it undamaged?"
            )
        return checked

    def _shaped(self, batch: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
        try:
            batch.validate(full=True)  # or reading it could read beyond its memory
            arrays = [_column_of(batch, field) for field in columns]
            return pa.RecordBatch.from_arrays(arrays, schema=columns)
        except (KeyError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise FeedRefusedError(
                f"the feed of the node at {self.url} has unexpected columns ({error}): use a node "
                "and a pipeline of the same version"
            ) from None

    def _check_filters(self, schema: pa.Schema) -> None:
        applied = (schema.metadata or {}).get(b"filter", b"{}")
        if json.loads(applied) != self.filters:
            raise FeedRefusedError(
                f"the node at {self.url} does not know the filters {', '.join(self.filters)}: use "
                "a node and a pipeline of the same version, or no filter"
            )

    @cached_property
    def _client(self) -> httpx.Client:
        if not self.url.startswith(("http://", "https://")):
            raise FeedRefusedError(f"{self.url!r} is not a URL such as http://127.0.0.1:5101")
        try:
            options = http_options(self.url, self._token)
            with usable_proxy():
                return httpx.Client(**options, timeout=_TIMEOUT)
        except ClientError as error:
            raise FeedRefusedError(str(error)) from None


def _connection_error(url: str, error: Exception) -> FeedUnreachableError | FeedRefusedError:
    """Return the error for a request that failed, or whose answer was cut off."""
    reason = one_line(error)
    if isinstance(error, httpx.RemoteProtocolError) and reason.startswith(_NO_HTTP):
        return FeedRefusedError(
            f"the server at {url} does not speak HTTP: is it the node's API? ({reason})"
        )
    return FeedUnreachableError(
        f"the node at {url} cannot be reached ({reason}): is it running, and is the URL right?"
    )


class _Retry:
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


def _retried(
    ask: Callable[[], T],
    patience: float,
    on_failure: Callable[[FeedUnreachableError], None] = lambda error: None,
) -> T:
    """Return an answer, which is asked for again and again, for `patience` seconds."""
    retry = _Retry(patience)
    while True:
        try:
            return ask()
        except FeedUnreachableError as error:
            on_failure(error)
            retry.wait(error)


class _ResponseBody(io.RawIOBase):
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


def _last_position(batch: pa.RecordBatch) -> int:
    """Return the position of a batch's last row."""
    return int(batch.column(_POSITION)[-1].as_py())


def _column_of(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    """Return a column of the feed; nulls for one that older nodes do not know."""
    if field.name in _NEW_COLUMNS and field.name not in batch.schema.names:
        return pa.nulls(batch.num_rows, field.type)
    return batch.column(field.name).cast(field.type)


def _ascends(positions: pa.Array) -> bool:
    """Return whether each position is greater than the previous one and none is null."""
    steps = pc.less(positions[:-1], positions[1:])
    return positions.null_count == 0 and bool(pc.all(steps, min_count=0).as_py())


def _epoch_changed(url: str, actual: str, expected: str) -> FeedChangedError:
    return FeedChangedError(
        f"the node at {url} has {actual}, not {expected}: it was set up from scratch, or is "
        f"another node. Point --url at the node that the tables were made from, or {_START_AGAIN}"
    )


def reason_of(response: httpx.Response) -> str:
    """Return the reason in a node's answer that something went wrong."""
    try:
        return str(response.json()["message"])
    except (ValueError, KeyError, TypeError):
        return response.reason_phrase or "no reason given"


@dataclass(frozen=True, slots=True)
class FeedTime:
    """The events up to `position` of the log `epoch` were delivered before a time, others later.

    `is_final` says whether that stays so: no further event will be delivered before the time.
    """

    epoch: str
    position: int
    is_final: bool


def find_time(feed: Feed, moment: int) -> FeedTime:
    """Return up to which position events were delivered before a time in Unix milliseconds.

    Raises:
        FeedUnreachableError: no answer within the feed's `patience`.
        FeedRefusedError: the node did not note when it delivered events around that time, or
            something answers, but not as a feed does.
    """
    return _retried(partial(_find_once, feed, moment), feed.patience)


def _find_once(feed: Feed, moment: int) -> FeedTime:
    response = feed.ask("/ceramic/feed/position", time=moment)
    if response.status_code == httpx.codes.BAD_REQUEST:
        raise FeedRefusedError(f"the node at {feed.url} answered 400: {reason_of(response)}")
    if response.status_code == httpx.codes.NOT_FOUND:
        raise FeedRefusedError(
            f"the node at {feed.url} does not know when it delivered events: use a node and a "
            "pipeline of the same version, or positions in place of times"
        )
    feed.check_status(response)
    try:
        body = response.json()
        return FeedTime(str(body["epoch"]), int(body["position"]), body["final"] is True)
    except (ValueError, KeyError, TypeError):
        raise FeedRefusedError(
            f"{feed.url}/ceramic/feed/position is not of a recon-node: is the URL right?"
        ) from None
