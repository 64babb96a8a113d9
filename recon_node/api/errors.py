"""Every answer that is not a success is JSON `{"message": ...}`, as a ceramic-one node's are;
below `/api/v0`, it is `{"Message": ..., "Code": 0, "Type": "error"}`, as kubo's are.

Handlers raise `ApiError` or let errors of the store and its indexes pass; the router raises
Starlette's own errors (404, 405). An unexpected exception is left to `middleware.Observe`,
which logs it and answers 500 without details.
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

import structlog
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from recon_node.feed_index import FeedIndexError
from recon_node.store.damage import DamagedEventError
from recon_node.store.errors import DiskFullError, StoreError
from recon_node.streams.json_values import BudgetError

KUBO_PATH: Final = "/api/v0/"
"""What begins the paths of kubo's API."""
ANCHOR_PATH: Final = "/api/v0/requests"
"""What begins the paths of the anchor service, where errors are `error`."""
DAMAGE_RETRY: Final = 10
"""Seconds after which a client should ask again for an event that was damaged."""

_TOO_MUCH: Final = "this cannot be computed: {}; the events of the stream are in the feed"

logger = structlog.get_logger(__name__)


class ApiError(Exception):
    """A request that is answered with an HTTP error.

    `message` says in plain English what was wrong and what to do.
    """

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = headers

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.status, self.message, self.headers)


def bad_request(message: str) -> ApiError:
    """An `ApiError` with status 400."""
    return ApiError(HTTPStatus.BAD_REQUEST, message)


def error_response(
    path: str, status: int, message: str, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """Answer a request for a path with an error, in the shape of that path's errors."""
    body: dict[str, str | int] = {"message": message}
    if path.startswith(ANCHOR_PATH):
        body = {"message": message, "error": message}
    elif path.startswith(KUBO_PATH):
        body = {"Message": message, "Code": 0, "Type": "error"}
    return JSONResponse(body, status_code=int(status), headers=headers)


async def refuse(
    asgi: tuple[Scope, Receive, Send],
    status: int,
    message: str,
    headers: Mapping[str, str] | None = None,
) -> None:
    """Answer an error and close the connection, whatever the client still sends."""
    scope, receive, send = asgi
    response = error_response(
        scope["path"], status, message, {"connection": "close", **(headers or {})}
    )
    await response(scope, receive, send)


def answer_error(request: Request, error: Exception) -> Response:
    """Answer what a handler or the router raised; the error is one of `EXPECTED_ERRORS`."""
    path = request.url.path
    match error:
        case ApiError():
            return error_response(path, error.status, error.message, error.headers)
        case HTTPException(status_code=HTTPStatus.NOT_FOUND):
            return error_response(path, error.status_code, f"no such path: {path}")
        case HTTPException(status_code=HTTPStatus.METHOD_NOT_ALLOWED):
            allowed = (error.headers or {}).get("allow")
            message = f"{path} does not take {request.method}, only {allowed}"
            return error_response(path, error.status_code, message, error.headers)
        case HTTPException():
            return error_response(path, error.status_code, error.detail, error.headers)
        case DiskFullError():  # the store has logged it, once
            return error_response(
                path, HTTPStatus.INSUFFICIENT_STORAGE, f"nothing was written: {error}"
            )
        case DamagedEventError(is_forgotten=True):
            return error_response(path, HTTPStatus.GONE, f"{error}: it has no content here")
        case DamagedEventError():  # the node fetches it again, and the store has logged it
            headers = {"Retry-After": str(DAMAGE_RETRY)}
            return error_response(path, HTTPStatus.SERVICE_UNAVAILABLE, str(error), headers)
        case FeedIndexError():
            return error_response(path, HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        case BudgetError():
            return error_response(path, HTTPStatus.BAD_REQUEST, _TOO_MUCH.format(error))
        case _:
            logger.error("The store failed", path=path, reason=str(error))
            message = f"the event log failed: {error}"
            return error_response(path, HTTPStatus.INTERNAL_SERVER_ERROR, message)


EXPECTED_ERRORS: Final = (ApiError, HTTPException, StoreError, FeedIndexError, BudgetError)
