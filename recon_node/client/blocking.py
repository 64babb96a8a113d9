"""`Ceramic`, the client for ordinary programs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Self

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


class Ceramic:
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
        self._session = Session(url, key, timeout)
        self._http = httpx.Client(**options_of(url, token, timeout), transport=transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def create_model(
        self, definition: ModelDefinition | Mapping[str, Any], *, key: Key | None = None
    ) -> Document:
        """Create a model.

        Raises:
            InvalidContentError: the definition breaks a rule.
        """
        return self.perform(create_model(self._session.key_or(key), definition))

    def create(
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
        """Create a document.

        Of a `single` or `set` model, the key's controller has one document (for the fields of a
        `set`), whose StreamID follows from these. If it exists, its content becomes `content`.

        Args:
            model: of which.
            content: a JSON object.
            key: the document belongs to its did:key.
            unique: of a `list` model, keeps two documents apart; random by default.
            context: a stream that the document belongs to, for applications.
            should_index: whether indexers should show the document; by default they do.
            model_version: which of the model's events to check the content by; by default its
                first one.

        Raises:
            NotFoundError: the node does not have the model.
            InvalidContentError: the content breaks a rule of the model.
        """
        return self.perform(
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

    def update(
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
        """Change a document, or the definition of a model; return it as it is then.

        Nothing is sent if nothing changes.

        Args:
            stream: which.
            content: what the whole content becomes.
            patch: or the change alone, as JSON Patch (RFC 6902).
            at: the event to build on, by default the tip. Another one makes the stream diverge.
            key: of the stream's controller.
            should_index: whether indexers should show the document.
            model_version: which of the model's events to check the content by from now on.

        Raises:
            NotFoundError: the node does not have the stream.
            InvalidContentError: the content breaks a rule, or the patch does not apply.
        """
        change = Change.given(content, patch, should_index, model_version)
        chosen, models = self._session.key_or(key), self._session.models
        return self.perform(update(chosen, stream, change, models, at=at))

    def read(self, stream: StreamRef, *, at: CidRef | None = None) -> Document:
        """Read a stream at its tip, or at any of its events.

        Raises:
            NotFoundError: the node does not have the stream, or it has no such event.
        """
        models = self._session.models
        return self.perform(fetch_document(stream, models, to_cid_or_none(at)))

    def events(self, stream: StreamRef) -> tuple[Event, ...]:
        """Read the events of a stream, in causal order: every event after its prevs.

        Raises:
            NotFoundError: the node does not have the stream.
        """
        return self.perform(fetch_stream(stream, self._session.models)).events

    def diverged(self, model: StreamRef | None = None) -> list[Document]:
        """Find the streams that have diverged: those of a model, or all in the node's feed.

        Their `open_tips` are what a merge would cover.
        """
        return self.perform(fetch_diverged(model, self._session.models))

    def propose_merge(
        self,
        stream: StreamRef,
        content: Mapping[str, Any] | None = None,
        *,
        prefer: CidRef | None = None,
    ) -> MergeProposal | None:
        """Say how `merge` would merge a diverged stream; None if it has not diverged.

        Arguments as for `merge`.

        Raises:
            InvalidArgumentError: `prefer` is not one of the tips.
            NotFoundError: the node does not have the stream.
        """
        models = self._session.models
        return self.perform(fetch_proposal(stream, models, content=content, prefer=prefer))

    def merge(
        self,
        stream: StreamRef,
        content: Mapping[str, Any] | None = None,
        *,
        prefer: CidRef | None = None,
        key: Key | None = None,
    ) -> Document:
        """Merge a stream that has diverged; nothing is sent if it has not.

        Args:
            stream: which.
            content: what the merge leads to, by default what the branches lead to together.
            prefer: one of the open tips, whose values win where the branches conflict.
            key: of the stream's controller.

        Raises:
            MergeConflictError: the branches conflict, and neither `content` nor `prefer` decides.
            InvalidArgumentError: `prefer` is not one of the tips.
            InvalidContentError: the merged content breaks a rule of the model.
            RefusedEventError: the node does not know CIP-145, as ceramic-one does not.
        """
        chosen, models = self._session.key_or(key), self._session.models
        return self.perform(merge(chosen, stream, models, content=content, prefer=prefer))

    def event(self, cid: CidRef) -> Event:
        """Fetch an event.

        Raises:
            NotFoundError: the node does not have it.
        """
        return self.perform(fetch_event(to_cid(cid)))

    def send(self, event: Event) -> None:
        """Send an event that was made elsewhere. Sending it again does no harm.

        Raises:
            RefusedEventError: the node does not accept it.
        """
        self.perform(send_event(event))

    def feed_token(self) -> str:
        """Return a resume token for the end of the node's feed: for what comes from now on."""
        return self.perform(fetch_token())

    def feed(
        self, after: str | None = None, *, limit: int = PAGE_SIZE, with_events: bool = True
    ) -> FeedPage:
        """Read a page of the node's feed.

        Args:
            after: a resume token; by default, from the start.
            limit: events at most, up to 10,000.
            with_events: whether to fetch the events, or only their CIDs.

        Raises:
            NodeError: the token does not belong to this node's feed.
        """
        return self.perform(fetch_page(after, limit, with_events=with_events))

    def tail(
        self, after: str | None = None, *, limit: int = PAGE_SIZE, with_events: bool = True
    ) -> Iterator[FeedPage]:
        """Read the feed page by page, and wait for what comes next, without end.

        Keep the token of a page once you have dealt with its events; arguments as for `feed`.
        """
        while True:
            started = time.monotonic()
            page = self.perform(fetch_page(after, limit, with_events=with_events, wait=LONG_POLL))
            after = page.token
            if page.entries:
                yield page
            else:
                time.sleep(max(0.0, started + POLL_INTERVAL - time.monotonic()))

    def register_interest(
        self,
        model: StreamRef | None = None,
        *,
        sort_key: str = "model",
        sort_value: str | None = None,
        controller: str | None = None,
        stream: StreamRef | None = None,
    ) -> None:
        """Make the node fetch, from its peers, the events of a model, or of any sort value.

        Args:
            model: whose documents; None if `sort_value` says it.
            sort_key: the field of the events' headers that sorts them.
            sort_value: its value.
            controller: a DID, whose streams only.
            stream: which one only; needs `controller`.

        Raises:
            NodeError: the node does not accept the interest.
        """
        value = Session.sort_value(model, sort_value)
        self.perform(add_interest(sort_key, value, controller, Session.stream(stream)))

    def version(self) -> str:
        """Return the version of the node."""
        return self.perform(fetch_version())

    def perform(self, steps: Steps[T]) -> T:
        """Carry out an operation of `recon_node.client.exchange` and its neighbours."""
        try:
            request = next(steps)
            while True:
                request = steps.send(self._ask(request))
        except StopIteration as done:
            result: T = done.value
            return result
        except BudgetError as error:
            raise TooMuchWorkError(str(error)) from None

    def _ask(self, request: Request) -> Answer:
        try:
            return answer_of(self._http.request(**self._session.arguments(request)))
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise UnreachableError(unreachable(self._session.url, error)) from None
