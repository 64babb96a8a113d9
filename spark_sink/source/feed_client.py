"""A node's event feed over HTTP: its head, and its rows as Arrow record batches.

The feed is a log: as long as its `epoch` stays the same, a position always holds the same event. So
an interrupted read can continue after the last row that arrived, and a node may restart at any
time: the reader waits for it, for up to `patience` seconds without a new row.

The node applies the filters: rows that do not match are left out, and positions do not change.
"""

import io
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from typing import Annotated, Any, Final, TypeVar

import httpx
import msgspec
import pyarrow as pa

from recon_node.base.connection import Answer, ClientError, http_options, usable_proxy
from recon_node.base.errors import plain
from recon_node.ceramic.auth.did import ed25519_did
from recon_node.ceramic.event_id import FIELDS_SIZE
from recon_node.fairness.pacing import Backoff
from recon_node.ipld import multibase
from spark_sink import ipc
from spark_sink.errors import FeedChangedError, FeedRefusedError, FeedUnreachableError, one_line
from spark_sink.schema import FEED
from spark_sink.source.served_rows import (
    CIDS,
    EVENT_CID,
    POSITION,
    ResponseBody,
    RowChecks,
    last_position,
)

T = TypeVar("T")

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
_MAX_ANSWER: Final = 16 * 1024 * 1024
"""Bytes of an answer that is read at once."""
_MAX_REASON: Final = 500
"""Characters of a node's message that an error quotes."""
_NO_STREAM: Final = (httpx.HTTPError, pa.ArrowException, OSError, ValueError, RecursionError)
"""What reading raises if an answer is not a whole stream of Arrow's."""

_ED25519_PEER_ID: Final = bytes.fromhex("002408011220")
_KEY_SIZE: Final = 32


_Position = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Epoch = Annotated[str, msgspec.Meta(pattern=r"\A[0-9A-Za-z._:-]{1,100}\Z")]


class Head(msgspec.Struct, frozen=True):
    """The feed holds the positions (low, head] of the log `epoch`."""

    epoch: _Epoch
    low: _Position
    head: _Position


_Hex = Annotated[str, msgspec.Meta(pattern=r"\A([0-9A-Fa-f]{2})*\Z")]


class _Part(msgspec.Struct):
    prefix: _Hex
    count: _Position
    sha256a: _Hex


class _Hashes(msgspec.Struct):
    """What `Feed.hashes` returns."""

    count: _Position
    sha256a: _Hex
    parts: list[_Part] = []
    event_ids: list[_Hex] = []


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
            raise _epoch_changed(self.url, f"log {head.epoch}", epoch)
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
            yield batch.column(EVENT_CID)

    def _read(
        self, after: int, upto: int, epoch: str, columns: pa.Schema, patience: float | None
    ) -> Iterator[pa.RecordBatch]:
        patience = self.patience if patience is None else patience
        retry = _Retry(patience)
        while after < upto:
            try:
                for batch in self._read_once(after, upto, epoch, columns):
                    yield batch
                    after = last_position(batch)
                    retry = _Retry(patience)
                if after < upto and not self.filters:
                    raise FeedUnreachableError(
                        f"the node at {self.url} ended its answer at position {after} of {upto}"
                    )
                return
            except FeedUnreachableError as error:
                retry.wait(error)

    def ask(self, path: str, timeout: httpx.Timeout = _TIMEOUT, **params: float | str) -> Answer:
        """Return the answer to a question about the feed, for `check_status`."""
        try:
            with self._client.stream("GET", path, params=params, timeout=timeout) as response:
                return self._whole(response, timeout)
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
        answer = self.ask(
            "/ceramic/feed/sha256a",
            _HASH_TIMEOUT,
            upto=upto,
            epoch=epoch,
            prefix=prefix.hex(),
            size=size,
        )
        self.check_status(answer, epoch)
        try:
            parts = msgspec.convert(answer.json, _Hashes).parts
        except msgspec.ValidationError:
            parts = [_Part("", 0, "")]
        digits = 2 * min(len(prefix) + size, FIELDS_SIZE)
        if not all(len(p.prefix) == digits and p.prefix.startswith(prefix.hex()) for p in parts):
            raise FeedRefusedError(f"the node at {self.url} answered with no hashes of its feed")
        hashes: dict[str, Any] = answer.json
        return hashes

    def check_status(self, answer: Answer, epoch: str = "") -> None:
        """Check that an answer is that of a feed, of the log `epoch` if one was named."""
        status = answer.status
        if status == httpx.codes.GONE:
            raise _epoch_changed(self.url, "another log", epoch)
        if status in (408, 429) or httpx.codes.is_server_error(status):
            raise FeedUnreachableError(
                f"the node at {self.url} answered {status}: {_reason_of(answer)}"
            )
        if status == httpx.codes.UNAUTHORIZED:
            what = "refuses the token" if self._token else "requires a token"
            raise FeedRefusedError(f"the node at {self.url} {what} (401): {_TOKEN}")
        if not answer.is_success:
            raise FeedRefusedError(
                f"the node at {self.url} does not serve its feed; it answered {status}: "
                f"{_reason_of(answer)}"
            )

    def signer(self) -> str | None:
        """Return the did:key by which the node signs its snapshots; None if it does not say."""
        answer = self.ask("/ceramic/recon", _HEAD_TIMEOUT)
        self.check_status(answer)
        try:
            raw = multibase.decode("z" + str(answer.json.get("peer_id", "")))
        except (ValueError, AttributeError):
            return None
        return ed25519_did(raw[-_KEY_SIZE:]) if raw[:-_KEY_SIZE] == _ED25519_PEER_ID else None

    def _head_once(self, long_poll: Mapping[str, float] | None) -> Head:
        answer = self.ask("/ceramic/feed/head", _HEAD_TIMEOUT, **(long_poll or {}))
        self.check_status(answer)
        try:
            return msgspec.convert(answer.json, Head)
        except msgspec.ValidationError:
            raise FeedRefusedError(
                f"{self.url}/ceramic/feed/head is not a feed of a recon-node: is the URL right?"
            ) from None

    def _whole(self, response: httpx.Response, timeout: httpx.Timeout) -> Answer:
        """Return an answer that is neither endless nor comes a byte at a time, for ever."""
        deadline = time.monotonic() + (timeout.read or 0.0)
        body = bytearray()
        for piece in response.iter_raw():  # nothing is compressed, unless to fill the memory
            body += piece
            if len(body) > _MAX_ANSWER:
                raise FeedRefusedError(
                    f"the node at {self.url} answered with more than {_MAX_ANSWER} bytes"
                )
            if time.monotonic() > deadline:
                raise httpx.ReadTimeout("timed out")
        return Answer.of(response, bytes(body))

    def _read_once(
        self, after: int, upto: int, epoch: str, columns: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one request, as far as they arrive completely."""
        params = {"after": after, "upto": upto, "epoch": epoch, **self.filters}
        if columns != FEED:  # the position comes with any columns
            names = (name for name in columns.names if name != POSITION)
            params["columns"] = ",".join(names)
        checks = RowChecks(self.url, self.filters)
        for batch in self._stream(params, checks):
            yield checks.checked(batch, after, upto, columns)
            after = last_position(batch)

    def _stream(self, params: Mapping[str, Any], checks: RowChecks) -> Iterator[pa.RecordBatch]:
        """Yield the batches of an answer, as far as they arrive completely."""
        try:
            with self._client.stream("GET", _ARROW, params=params) as response:
                if not response.is_success:
                    answer = self._whole(response, _TIMEOUT)
                    self.check_status(answer, str(params.get("epoch", "")))
                raw = ResponseBody(response, max(self.patience, _TIMEOUT.read or 0.0))
                schema, batches = ipc.read_stream(io.BufferedReader(raw, _READ_BUFFER_BYTES))
                checks.check_filters(schema)
                for batch in batches:
                    if batch.num_rows:
                        yield batch
                    if batch.num_rows or self.filters:
                        raw.wait()
        except _NO_STREAM as error:  # interrupted or cut off
            raise _connection_error(self.url, error) from None

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


def _epoch_changed(url: str, actual: str, epoch: str) -> FeedChangedError:
    return FeedChangedError(
        f"the node at {url} has {actual}, not log {epoch}: it was set up from scratch, or is "
        f"another node. Point --url at the node that the tables were made from, or {_START_AGAIN}"
    )


def _reason_of(answer: Answer) -> str:
    """Return the reason in a node's answer that something went wrong."""
    try:
        return plain(str(answer.json["message"]))[:_MAX_REASON]
    except (KeyError, TypeError):
        return httpx.codes.get_reason_phrase(answer.status) or "no reason given"


class FeedTime(msgspec.Struct, frozen=True):
    """The events up to `position` of the log `epoch` were delivered before a time, others later.

    `is_final` says whether that stays so: no further event will be delivered before the time.
    """

    epoch: _Epoch
    position: _Position
    is_final: bool = msgspec.field(name="final")


def find_time(feed: Feed, moment: int) -> FeedTime:
    """Return up to which position events were delivered before a time in Unix milliseconds.

    Raises:
        FeedUnreachableError: no answer within the feed's `patience`.
        FeedRefusedError: the node did not note when it delivered events around that time, or
            something answers, but not as a feed does.
    """
    return _retried(partial(_find_once, feed, moment), feed.patience)


def _find_once(feed: Feed, moment: int) -> FeedTime:
    answer = feed.ask("/ceramic/feed/position", time=moment)
    if answer.status == httpx.codes.BAD_REQUEST:
        raise FeedRefusedError(f"the node at {feed.url} answered 400: {_reason_of(answer)}")
    if answer.status == httpx.codes.NOT_FOUND:
        raise FeedRefusedError(
            f"the node at {feed.url} does not know when it delivered events: use a node and a "
            "pipeline of the same version, or positions in place of times"
        )
    feed.check_status(answer)
    try:
        return msgspec.convert(answer.json, FeedTime)
    except msgspec.ValidationError:
        raise FeedRefusedError(
            f"{feed.url}/ceramic/feed/position is not of a recon-node: is the URL right?"
        ) from None
