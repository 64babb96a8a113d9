"""Errors that a client sees, each with its status code of gRPC."""

from __future__ import annotations

from typing import Final, Literal

Code = Literal[
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "UNIMPLEMENTED",
    "UNAUTHENTICATED",
    "RESOURCE_EXHAUSTED",
    "DEADLINE_EXCEEDED",
    "UNAVAILABLE",
    "FAILED_PRECONDITION",
    "INTERNAL",
]

# Longer messages would not fit into the trailers of an HTTP/2 response.
_MAX_TEXT: Final = 2_000


class RequestError(Exception):
    """A request that fails; the message says why."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text[:_MAX_TEXT])
        self.code: Code = code
        self.text = text[:_MAX_TEXT]


def invalid(text: str) -> RequestError:
    """Return the error for a request that can never succeed."""
    return RequestError("INVALID_ARGUMENT", text)
