"""What both clients share: settings, and the way between their requests and httpx."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

import httpx

from recon_node.ceramic import StreamId
from recon_node.client.errors import (
    InvalidArgumentError,
    NoKeyError,
    UnauthorizedError,
    UnreachableError,
)
from recon_node.client.exchange import Answer, Request
from recon_node.client.given import to_stream_id
from recon_node.client.keys import Key
from recon_node.client.reading import ModelCache, StreamRef

TIMEOUT: Final = 30.0
"""Seconds that a node may take for one step of a request."""


class Session:
    """A client's settings, and the models that it knows."""

    def __init__(self, url: str, key: Key | None, timeout: float) -> None:
        self.url = with_scheme(url)
        self.models = ModelCache()
        self._key = key
        self._timeout = timeout

    def key_or(self, key: Key | None) -> Key:
        """Return the key of a call, or else the client's.

        Raises:
            NoKeyError: there is neither.
            InvalidArgumentError: it is something else.
        """
        chosen = key or self._key
        if chosen is None:
            raise NoKeyError
        if not isinstance(chosen, Key):
            raise InvalidArgumentError("`key` is a Key: Key.load(FILE) reads one from a file")
        return chosen

    def arguments(self, request: Request) -> dict[str, Any]:
        """Return the arguments of httpx for a request."""
        return {
            "method": request.method,
            "url": request.path,
            "params": dict(request.params),
            "json": request.json,
            "timeout": self._timeout + request.wait,
        }

    @staticmethod
    def stream(stream: StreamRef | None) -> StreamId | None:
        """Return a StreamID that may be given as text, or None."""
        return None if stream is None else to_stream_id(stream)

    @staticmethod
    def sort_value(model: StreamRef | None, sort_value: str | None) -> str:
        """Return the sort value of an interest.

        Raises:
            InvalidArgumentError: neither is given, or both.
        """
        if (model is None) is (sort_value is None):
            raise InvalidArgumentError("an interest needs either a model or a sort value")
        return str(sort_value) if model is None else str(to_stream_id(model))


def with_scheme(url: str) -> str:
    """Return a URL, whose scheme is http unless it says otherwise."""
    return url if "://" in url else f"http://{url}"


def options_of(url: str, token: str | None, timeout: float) -> dict[str, Any]:
    """Return the arguments of a client of httpx.

    Raises:
        UnreachableError: not a URL.
        UnauthorizedError: a token that cannot be one.
    """
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    if token is not None and not (token.isascii() and token.isprintable()):
        raise UnauthorizedError(HTTPStatus.UNAUTHORIZED, "a token is ASCII text in one line")
    try:
        httpx.URL(with_scheme(url))
    except httpx.InvalidURL as error:
        raise UnreachableError(f"{url!r} is not a URL: {error}") from None
    return {"base_url": with_scheme(url), "headers": headers, "timeout": timeout}


def answer_of(response: httpx.Response) -> Answer:
    """Return what a node answered."""
    try:
        decoded = response.json() if response.content else None
    except ValueError:
        decoded = None
    return Answer(response.status_code, response.text, decoded)


def unreachable(url: str, error: Exception) -> str:
    """Return the message for a node that does not answer."""
    reason = str(error) or type(error).__name__
    return f"no node answers at {url} ({reason}): start one with `recon-node run`, or check the URL"
