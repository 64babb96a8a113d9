"""What surrounds every request: counting it, limiting its time and size, and the last safety net.

From the outside in:

`Observe` counts and times the request. It logs an unexpected exception and answers 500 without
details. If the answer has begun already, the connection ends without the closing chunk, so that the
client sees a broken answer, not a short one.

`Bound` admits at most `Limits.requests` requests at once (503 beyond that), gives up on one that
makes no progress for `Limits.stall` seconds (503), and reads the whole body before a handler runs,
at most `Limits.body` bytes of it (413). It reads the whole body on purpose: if a handler answered
without reading it, hypercorn's bounded queue of body chunks would stay full, and its connection
stuck.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from typing import Any

import structlog
import trio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from recon_node.api.errors import error_response
from recon_node.api.metrics import Metrics
from recon_node.api.services import Limits

log = structlog.get_logger(__name__)

PIECE = 64 * 1024
"""Bytes of an answer that are passed to the connection at a time."""

LARGE_PIECE = 256 * 1024
"""The same, for a quick client: each piece costs the node as much as 100 rows of a feed. The time
allowed for a piece grows with its size."""

QUICK = 1.0
"""Seconds in which a client must take a large message to count as quick."""

DISCARD_SECONDS = 5.0
"""How long an unwanted body is still read, and discarded, before it is answered 413, 401 or the
like: a client that is still sending would not see the answer."""


class Observe:
    """Counts requests, and answers 500 after an unexpected exception. See the module's docstring.

    Args:
        paths: the path template of each routed function.
    """

    def __init__(
        self, app: ASGIApp, metrics: Metrics, paths: Mapping[Callable[..., Any], str]
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        status: int | None = None

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = int(message["status"])
            await send(message)

        self._metrics.in_progress += 1
        try:
            await self._app(scope, receive, watch)
        except Exception:
            log.exception("A request failed", method=scope["method"], path=scope["path"])
            if status is None:
                response = error_response(
                    scope["path"],
                    HTTPStatus.INTERNAL_SERVER_ERROR,
                    "internal error: the node's log has the details",
                )
                await response(scope, receive, watch)
        finally:
            seconds = time.perf_counter() - started
            self._metrics.in_progress -= 1
            path = self._paths.get(scope.get("endpoint"), "other")  # type: ignore[arg-type]
            self._metrics.record(scope["method"], path, status, seconds)
            log.debug(
                "Answered a request",
                method=scope["method"],
                path=scope["path"],
                status=status,
                ms=round(seconds * 1000, 1),
            )


class Bound:
    """Keeps requests within the node's `Limits`. See the module's docstring."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self._app = app
        self._limits = limits
        self._under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if self._under_way >= self._limits.requests:
            await refuse(
                (scope, receive, send),
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"{self._limits.requests} requests are already being handled: try again",
            )
            return
        self._under_way += 1
        try:
            await self._run(scope, receive, send)
        finally:
            self._under_way -= 1

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        answering = False
        size = PIECE
        with trio.move_on_after(self._limits.stall) as progress:

            async def watch(message: Message) -> None:
                nonlocal answering, size
                answering = True
                begun = trio.current_time()
                for piece in _pieces(message, size):
                    larger = max(0, len(piece.get("body", b"")) / PIECE - 1)
                    progress.deadline += larger * self._limits.stall
                    await send(piece)
                    progress.deadline = trio.current_time() + self._limits.stall
                if len(message.get("body", b"")) >= PIECE:
                    size = LARGE_PIECE if trio.current_time() - begun < QUICK else PIECE

            try:
                body = await _read_body(receive, self._limits.body)
            except _ClientGoneError:
                return
            except _BodyTooLongError:
                await refuse(
                    (scope, receive, watch),
                    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                    f"the body is longer than {self._limits.body} bytes",
                )
                return
            await self._app(scope, _replay(body, receive), watch)
        if progress.cancelled_caught and not answering:
            await refuse(
                (scope, receive, send),
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"no progress for {self._limits.stall:g} seconds: gave up",
            )


def _pieces(message: Message, size: int) -> Iterator[Message]:
    """Cut a large body into pieces, each of which counts as progress: a client may be slow, and
    every layer below copies what it is given."""
    body = message.get("body", b"")
    for start in range(0, len(body) - size, size):
        yield {**message, "body": body[start : start + size], "more_body": True}
    if len(body) > size:
        message = {**message, "body": body[(len(body) - 1) // size * size :]}
    yield message


class _ClientGoneError(Exception):
    """The client hung up before its whole body was here."""


class _BodyTooLongError(Exception):
    """The body is longer than allowed."""


async def _read_body(receive: Receive, limit: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _ClientGoneError
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            if message.get("more_body", False):
                await discard_body(receive)
            raise _BodyTooLongError
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)


async def discard_body(receive: Receive) -> None:
    """Read and discard until the client has sent everything, hung up or taken too long."""
    more = True
    with trio.move_on_after(DISCARD_SECONDS):
        while more:
            more = (await receive()).get("more_body", False)


async def refuse(
    asgi: tuple[Scope, Receive, Send],
    status: int,
    message: str,
    headers: Mapping[str, str] | None = None,
) -> None:
    """Answer an error and close the connection; discard what the client still sends."""
    scope, receive, send = asgi
    response = error_response(
        scope["path"], status, message, {"connection": "close", **(headers or {})}
    )

    async def discard() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    async with trio.open_nursery() as nursery:
        nursery.start_soon(discard)
        await response(scope, receive, send)
        nursery.cancel_scope.cancel()


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that returns `body` once, and then what follows it: the disconnect."""
    given = False

    async def replayed() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed
