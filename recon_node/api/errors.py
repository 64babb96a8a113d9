"""Every answer that is not a success is JSON ``{"message": ...}``, as a ceramic-one node's are.

Handlers raise `ApiError`; the routing layer raises Starlette's own errors (404, 405). Both become
the same body here. What nobody foresaw is left to `middleware.observe`, which logs it and answers
500 without a word about the inside.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

import structlog
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from recon_node.store.damage.detection import DamagedEventError
from recon_node.store.errors import DiskFullError, StoreError

DAMAGE_RETRY = 10
"""Seconds after which a client should ask again for an event that was damaged."""

log = structlog.get_logger(__name__)


class ApiError(Exception):
    """A request that is answered with an HTTP error.

    Args:
        status: the HTTP status code, 400 to 599.
        message: what was wrong and what to do, for people; the body's ``message``.
        headers: further headers of the answer.
    """

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = headers


def bad_request(message: str) -> ApiError:
    """An `ApiError` with status 400."""
    return ApiError(HTTPStatus.BAD_REQUEST, message)


def error_response(
    status: int, message: str, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """The one shape of every error: ``{"message": ...}``."""
    return JSONResponse({"message": message}, status_code=int(status), headers=headers)


async def answer_api_error(request: Request, error: Exception) -> Response:
    """Answer an `ApiError`."""
    assert isinstance(error, ApiError)
    return error_response(error.status, error.message, error.headers)


async def answer_http_exception(request: Request, error: Exception) -> Response:
    """Answer what the router raises: an unknown path or a wrong method."""
    assert isinstance(error, HTTPException)
    path = request.url.path
    message = {
        404: f"no such path: {path}",
        405: f"{path} does not take {request.method}",
    }.get(error.status_code, error.detail)
    return error_response(error.status_code, message, error.headers)


async def answer_disk_full(request: Request, error: Exception) -> Response:
    """Answer that there is no room for this now: 507. The store has told the operator, once."""
    return error_response(HTTPStatus.INSUFFICIENT_STORAGE, f"nothing was written: {error}")


async def answer_damaged_event(request: Request, error: Exception) -> Response:
    """Answer that what was asked for is damaged in the log: 503, since the node fetches it again.
    The store has told the operator, once for each event."""
    headers = {"Retry-After": str(DAMAGE_RETRY)}
    return error_response(HTTPStatus.SERVICE_UNAVAILABLE, str(error), headers)


async def answer_store_error(request: Request, error: Exception) -> Response:
    """Answer another failure of the event log: 500, and a log line for the operator."""
    log.error("The store failed", path=request.url.path, reason=str(error))
    return error_response(HTTPStatus.INTERNAL_SERVER_ERROR, f"the event log failed: {error}")


EXCEPTION_HANDLERS = {
    ApiError: answer_api_error,
    HTTPException: answer_http_exception,
    DiskFullError: answer_disk_full,
    DamagedEventError: answer_damaged_event,
    StoreError: answer_store_error,
}
