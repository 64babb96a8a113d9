"""The two clients: `Ceramic` for ordinary programs, `AsyncCeramic` for asyncio and trio.

Their methods are the operations (see `recon_node.client.operations`), whose texts and arguments
they have; what differs is only how requests and answers are carried.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import aclosing
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import anyio
import httpx

from recon_node import DEFAULT_URL
from recon_node.base.connection import TIMEOUT, AsyncConnection, ClientError, Connection
from recon_node.client import feed_entries, lists, merges, operations, writing
from recon_node.client.arguments import CidRef, Document, StreamRef
from recon_node.client.keys import Key
from recon_node.client.operations import ClientSession, Steps
from recon_node.streams.json_values import BudgetError

P = ParamSpec("P")
T = TypeVar("T")


def _blocking(
    operation: Callable[Concatenate[ClientSession, P], Steps[T]],
) -> Callable[Concatenate[Ceramic, P], T]:
    @wraps(operation)
    def method(self: Ceramic, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._perform(operation(self._session, *args, **kwargs))

    return _described(method)


def _async(
    operation: Callable[Concatenate[ClientSession, P], Steps[T]],
) -> Callable[Concatenate[AsyncCeramic, P], Coroutine[Any, Any, T]]:
    @wraps(operation)
    async def method(self: AsyncCeramic, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._perform(operation(self._session, *args, **kwargs))

    return _described(method)


_M = TypeVar("_M", bound=Callable[..., Any])


def _described(method: _M) -> _M:
    """Have `help` show an operation as the method that it becomes."""
    signature = inspect.signature(method)
    session, *rest = signature.parameters.values()
    result = str(signature.return_annotation).removeprefix("Steps[").removesuffix("]")
    parameters = [session.replace(name="self", annotation=session.empty), *rest]
    described = signature.replace(parameters=parameters, return_annotation=result)
    method.__signature__ = described  # type: ignore[attr-defined]  # read by inspect
    return method


class TooMuchWorkError(ClientError):
    """A stream, or a proposal to merge it, takes more work than its events pay for."""


class _Signing:
    """What both clients know about who signs."""

    _session: ClientSession

    @property
    def key(self) -> Key | None:
        """Signs what is written; replace it once its account has renewed its capability."""
        return self._session.key

    @key.setter
    def key(self, key: Key | None) -> None:
        self._session.key = key


class Ceramic(_Signing, Connection):
    """A client of one node.

        with Ceramic("http://127.0.0.1:5101", key=Key.load("my.key")) as ceramic:
            post = ceramic.create(model, {"title": "First"})

    A call raises a subclass of `ClientError` when it fails. A stream is named by its StreamID, also
    as text, or by a document; an event by its CID, also as text. Threads may share a client.

    Args:
        url: of the node's HTTP API; the node is of this project, or a ceramic-one node.
        key: signs what is written, unless a call names another one.
        token: of the API, if the node wants one.
        timeout: seconds that the node may take for one step of a request.
        transport: of httpx, for tests and proxies.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        key: Key | None = None,
        token: str | None = None,
        timeout: float = TIMEOUT,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        super().__init__(url, token=token, timeout=timeout, transport=transport)
        self._session = ClientSession(key)

    create_model = _blocking(writing.create_model)
    create = _blocking(writing.create)
    update = _blocking(writing.update)
    read = _blocking(operations.read)
    events = _blocking(operations.events)
    diverged = _blocking(merges.diverged)
    propose_merge = _blocking(merges.propose_merge)
    merge = _blocking(merges.merge)
    tangles = _blocking(lists.tangles)
    tangle = _blocking(lists.tangle)
    reply = _blocking(lists.reply)
    event = _blocking(operations.event)
    send = _blocking(operations.send)
    feed_token = _blocking(feed_entries.feed_token)
    feed = _blocking(feed_entries.feed)
    documents = _blocking(lists.documents)
    models = _blocking(lists.models)
    interests = _blocking(lists.interests)
    register_interest = _blocking(lists.register_interest)
    remove_interest = _blocking(lists.remove_interest)
    version = _blocking(operations.version)
    anchor = _blocking(lists.anchor)
    request_anchor = _blocking(lists.request_anchor)

    def tail(
        self,
        after: str | None = None,
        *,
        limit: int = feed_entries.PAGE_SIZE,
        with_events: bool = True,
    ) -> Generator[feed_entries.FeedPage]:
        """Read the feed page by page, and wait for what comes next, without end.

        Keep the token of a page once you have dealt with its events; arguments as for `feed`.
        """
        while True:
            started = time.monotonic()
            page = self.feed(
                after, limit=limit, with_events=with_events, wait=feed_entries.LONG_POLL
            )
            after = page.token
            if page.entries:
                yield page
            else:
                time.sleep(max(0.0, started + feed_entries.POLL_INTERVAL - time.monotonic()))

    def wait_until_anchored(
        self, event: CidRef, *, timeout: float = lists.ANCHOR_TIMEOUT
    ) -> lists.Anchor:
        """Wait until the time of an event is proven, and return the proof.

        Args:
            event: itself, or a later event that covers it, is anchored by some node.
            timeout: seconds to wait at most.

        Raises:
            NotFoundError: the node does not have it.
            TimeoutError: it took longer.
        """
        deadline = time.monotonic() + timeout
        while True:
            anchor = self.anchor(event)
            if anchor.time is not None:
                return anchor
            if time.monotonic() + lists.POLL_INTERVAL > deadline:
                raise TimeoutError(
                    f"the event was not anchored within {timeout:g} s: {anchor.state}"
                )
            time.sleep(lists.POLL_INTERVAL)

    def watch(self, stream: StreamRef) -> Generator[Document]:
        """Read a stream, and again whenever it has changed, without end.

        Raises:
            NotFoundError: the node does not have the stream.
        """
        token, before = self.feed_token(), self.read(stream)
        yield before
        for page in self.tail(token, with_events=False):
            if page.concerns(before.id) and (now := self.read(stream)) != before:
                before = now
                yield now

    def _perform(self, steps: Steps[T]) -> T:
        try:
            request = next(steps)
            while True:
                request = steps.send(self.exchange(request))
        except StopIteration as done:
            result: T = done.value
            return result
        except BudgetError as error:
            raise TooMuchWorkError(str(error)) from None


class AsyncCeramic(_Signing, AsyncConnection):
    """`Ceramic` for programs on asyncio or trio: the same methods, to be awaited.

        async with AsyncCeramic("http://127.0.0.1:5101", key=Key.load("my.key")) as ceramic:
            post = await ceramic.create(model, {"title": "First"})

    Tasks may share a client. Arguments and errors are those of `Ceramic`.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        key: Key | None = None,
        token: str | None = None,
        timeout: float = TIMEOUT,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        super().__init__(url, token=token, timeout=timeout, transport=transport)
        self._session = ClientSession(key)

    create_model = _async(writing.create_model)
    create = _async(writing.create)
    update = _async(writing.update)
    read = _async(operations.read)
    events = _async(operations.events)
    diverged = _async(merges.diverged)
    propose_merge = _async(merges.propose_merge)
    merge = _async(merges.merge)
    tangles = _async(lists.tangles)
    tangle = _async(lists.tangle)
    reply = _async(lists.reply)
    event = _async(operations.event)
    send = _async(operations.send)
    feed_token = _async(feed_entries.feed_token)
    feed = _async(feed_entries.feed)
    documents = _async(lists.documents)
    models = _async(lists.models)
    interests = _async(lists.interests)
    register_interest = _async(lists.register_interest)
    remove_interest = _async(lists.remove_interest)
    version = _async(operations.version)
    anchor = _async(lists.anchor)
    request_anchor = _async(lists.request_anchor)

    async def tail(
        self,
        after: str | None = None,
        *,
        limit: int = feed_entries.PAGE_SIZE,
        with_events: bool = True,
    ) -> AsyncGenerator[feed_entries.FeedPage]:
        """Read the feed page by page, and wait for what comes next, without end."""
        while True:
            started = anyio.current_time()
            page = await self.feed(
                after, limit=limit, with_events=with_events, wait=feed_entries.LONG_POLL
            )
            after = page.token
            if page.entries:
                yield page
            else:
                await anyio.sleep_until(started + feed_entries.POLL_INTERVAL)

    async def wait_until_anchored(self, event: CidRef) -> lists.Anchor:
        """Wait until the time of an event is proven, and return the proof.

        Bound it as anything else: `anyio.fail_after`, `trio.fail_after` or `asyncio.timeout`.

        Raises:
            NotFoundError: the node does not have it.
        """
        while (anchor := await self.anchor(event)).time is None:  # noqa: ASYNC110 - another process
            await anyio.sleep(lists.POLL_INTERVAL)
        return anchor

    async def watch(self, stream: StreamRef) -> AsyncGenerator[Document]:
        """Read a stream, and again whenever it has changed, without end."""
        token, before = await self.feed_token(), await self.read(stream)
        yield before
        async with aclosing(self.tail(token, with_events=False)) as pages:
            async for page in pages:
                if page.concerns(before.id) and (now := await self.read(stream)) != before:
                    before = now
                    yield now

    async def _perform(self, steps: Steps[T]) -> T:
        try:
            request = next(steps)
            while True:
                request = steps.send(await self.exchange(request))
        except StopIteration as done:
            result: T = done.value
            return result
        except BudgetError as error:
            raise TooMuchWorkError(str(error)) from None
