"""`AsyncCeramic`, the client for programs on asyncio or trio."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Any, Self

import anyio
import httpx

from recon_node.ceramic import Event
from recon_node.client.definitions import ModelDefinition
from recon_node.client.errors import TooMuchWorkError, UnreachableError
from recon_node.client.exchange import (
    DEFAULT_URL,
    Answer,
    Request,
    Steps,
    T,
    add_interest,
    fetch_event,
    fetch_version,
    send_event,
)
from recon_node.client.feed import (
    LONG_POLL,
    PAGE_SIZE,
    POLL_INTERVAL,
    FeedPage,
    fetch_page,
    fetch_token,
)
from recon_node.client.given import to_cid, to_cid_or_none
from recon_node.client.keys import Key
from recon_node.client.merging import fetch_diverged, fetch_proposal, merge
from recon_node.client.reading import (
    CidRef,
    Document,
    StreamRef,
    fetch_document,
    fetch_stream,
)
from recon_node.client.session import TIMEOUT, Session, answer_of, options_of, unreachable
from recon_node.client.writing import (
    Change,
    Patch,
    create_document,
    create_model,
    update,
)
from recon_node.streams import MergeProposal
from recon_node.streams.budget import BudgetError


class AsyncCeramic:
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
        self._session = Session(url, key, timeout)
        self._http = httpx.AsyncClient(**options_of(url, token, timeout), transport=transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def create_model(
        self, definition: ModelDefinition | Mapping[str, Any], *, key: Key | None = None
    ) -> Document:
        """Create a model."""
        return await self.perform(create_model(self._session.key_or(key), definition))

    async def create(
        self,
        model: StreamRef,
        content: Mapping[str, Any] | None = None,
        *,
        key: Key | None = None,
        unique: bytes | None = None,
        context: StreamRef | None = None,
        should_index: bool | None = None,
        model_version: CidRef | None = None,
    ) -> Document:
        """Create a document."""
        return await self.perform(
            create_document(
                self._session.key_or(key),
                model,
                content,
                self._session.models,
                unique=unique,
                context=context,
                should_index=should_index,
                model_version=model_version,
            )
        )

    async def update(
        self,
        stream: StreamRef,
        content: Mapping[str, Any] | None = None,
        *,
        patch: Patch | None = None,
        at: CidRef | None = None,
        key: Key | None = None,
        should_index: bool | None = None,
        model_version: CidRef | None = None,
    ) -> Document:
        """Change a document, or the definition of a model; return it as it is then."""
        change = Change.given(content, patch, should_index, model_version)
        chosen, models = self._session.key_or(key), self._session.models
        return await self.perform(update(chosen, stream, change, models, at=at))

    async def read(self, stream: StreamRef, *, at: CidRef | None = None) -> Document:
        """Read a stream at its tip, or at any of its events."""
        models = self._session.models
        return await self.perform(fetch_document(stream, models, to_cid_or_none(at)))

    async def events(self, stream: StreamRef) -> tuple[Event, ...]:
        """Read the events of a stream, in causal order: every event after its prevs."""
        return (await self.perform(fetch_stream(stream, self._session.models))).events

    async def diverged(self, model: StreamRef | None = None) -> list[Document]:
        """Find the streams that have diverged: those of a model, or all in the node's feed."""
        return await self.perform(fetch_diverged(model, self._session.models))

    async def propose_merge(
        self,
        stream: StreamRef,
        content: Mapping[str, Any] | None = None,
        *,
        prefer: CidRef | None = None,
    ) -> MergeProposal | None:
        """Say how a diverged stream would be merged; None if it has not diverged."""
        models = self._session.models
        return await self.perform(fetch_proposal(stream, models, content=content, prefer=prefer))

    async def merge(
        self,
        stream: StreamRef,
        content: Mapping[str, Any] | None = None,
        *,
        prefer: CidRef | None = None,
        key: Key | None = None,
    ) -> Document:
        """Merge a stream that has diverged; nothing is sent if it has not."""
        chosen, models = self._session.key_or(key), self._session.models
        return await self.perform(merge(chosen, stream, models, content=content, prefer=prefer))

    async def event(self, cid: CidRef) -> Event:
        """Fetch an event."""
        return await self.perform(fetch_event(to_cid(cid)))

    async def send(self, event: Event) -> None:
        """Send an event that was made elsewhere. Sending it again does no harm."""
        await self.perform(send_event(event))

    async def feed_token(self) -> str:
        """Return a resume token for the end of the node's feed: for what comes from now on."""
        return await self.perform(fetch_token())

    async def feed(
        self, after: str | None = None, *, limit: int = PAGE_SIZE, with_events: bool = True
    ) -> FeedPage:
        """Read a page of the node's feed."""
        return await self.perform(fetch_page(after, limit, with_events=with_events))

    async def tail(
        self, after: str | None = None, *, limit: int = PAGE_SIZE, with_events: bool = True
    ) -> AsyncIterator[FeedPage]:
        """Read the feed page by page, and wait for what comes next, without end."""
        while True:
            started = anyio.current_time()
            page = await self.perform(
                fetch_page(after, limit, with_events=with_events, wait=LONG_POLL)
            )
            after = page.token
            if page.entries:
                yield page
            else:
                await anyio.sleep_until(started + POLL_INTERVAL)

    async def register_interest(
        self,
        model: StreamRef | None = None,
        *,
        sort_key: str = "model",
        sort_value: str | None = None,
        controller: str | None = None,
        stream: StreamRef | None = None,
    ) -> None:
        """Make the node fetch, from its peers, the events of a model, or of any sort value."""
        value = Session.sort_value(model, sort_value)
        await self.perform(add_interest(sort_key, value, controller, Session.stream(stream)))

    async def version(self) -> str:
        """Return the version of the node."""
        return await self.perform(fetch_version())

    async def perform(self, steps: Steps[T]) -> T:
        """Carry out an operation of `recon_node.client.exchange` and its neighbours."""
        try:
            request = next(steps)
            while True:
                request = steps.send(await self._ask(request))
        except StopIteration as done:
            result: T = done.value
            return result
        except BudgetError as error:
            raise TooMuchWorkError(str(error)) from None

    async def _ask(self, request: Request) -> Answer:
        try:
            return answer_of(await self._http.request(**self._session.arguments(request)))
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise UnreachableError(unreachable(self._session.url, error)) from None
