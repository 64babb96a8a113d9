"""The HTTP API as an ASGI application: its endpoints, and the middleware around them."""

from functools import cache
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import unquote

import msgspec
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import compile_path
from starlette.types import ASGIApp, Receive, Scope, Send

from recon_node.api.endpoint import Answer, Call, Endpoint, Services, endpoint
from recon_node.api.errors import EXPECTED_ERRORS, ApiError, answer_error
from recon_node.api.metrics import Metrics
from recon_node.api.metrics.collector import NodeCollector
from recon_node.api.middleware import Bound, Guard, Observe
from recon_node.api.models import NO_PARAMETERS, Parameters, reply
from recon_node.api.openapi import describe
from recon_node.api.routes import (
    arrow,
    events,
    feed,
    interests,
    kubo,
    listings,
    node_info,
    pages,
    stream_events,
    streams,
    undelivered,
)
from recon_node.api.routes.products import anchor_service, anchors, dag, snapshots, tangles
from recon_node.api.settings import usual_need


@cache
def openapi_document() -> dict[str, Any]:
    """Return the OpenAPI document of this API. Made once, when it is first asked for."""
    return describe(ENDPOINTS)


@cache
def _openapi_content() -> pages.Content:
    return pages.Content(msgspec.json.encode(openapi_document()), "application/json")


@endpoint(
    "GET",
    "/openapi.json",
    Answer("OpenAPI.", dict[str, Any]),
    pages.NOT_MODIFIED,
    own=True,
    need="open",
)
async def get_openapi(call: Call[Parameters]) -> Response:
    """Read this document."""
    return await pages.serve_page(call, _openapi_content)


_MODULES: Final = (
    *(events, listings, streams, stream_events, undelivered, feed, arrow, interests),
    *(dag, tangles, anchors, anchor_service, snapshots, node_info, kubo, pages),
)
_OF_MODULES: Final = (value for module in _MODULES for value in vars(module).values())
ENDPOINTS: Final = (
    *dict.fromkeys(value for value in _OF_MODULES if isinstance(value, Endpoint)),
    get_openapi,
    *pages.SWAGGER_UI,
)
"""All of them, in the order in which paths are matched: that of their modules."""


def create_app(services: Services) -> ASGIApp:
    """The node's HTTP API over the given services. It runs on trio only."""
    metrics = Metrics(NodeCollector(services))
    needs = {e.path: e.need for e in ENDPOINTS if e.need != usual_need(e.method)}
    app: ASGIApp = _Router(services, metrics)
    app = Bound(app, services.limits, services.always_admit)
    app = Guard(app, services.access, needs)
    if services.access.cors_allow_origins:
        app = CORSMiddleware(
            app,
            allow_origins=list(services.access.cors_allow_origins),
            allow_methods=["GET", "POST", "DELETE", "OPTIONS"],
            allow_headers=["content-type", "authorization"],
            expose_headers=["recon-warning"],
        )
    return Observe(app, metrics)


class _Router:
    """Finds the endpoint of a request, and has it answer.

    Starlette's router tries one pattern after the other, which takes as long as all the rest of a
    small request. Here, paths without parameters are looked up.
    """

    def __init__(self, services: Services, metrics: Metrics) -> None:
        self._services = services
        self._metrics = metrics
        by_path: dict[str, dict[str, Endpoint]] = {}
        for entry in ENDPOINTS:
            by_path.setdefault(entry.path, {})[entry.method] = entry
        self._exact = {path: by_method for path, by_method in by_path.items() if "{" not in path}
        self._patterns = [
            (compile_path(path)[0], path, by_method)
            for path, by_method in by_path.items()
            if "{" in path
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request = Request(scope, receive, send)
        try:
            response = await self._answer(request)
        except EXPECTED_ERRORS as error:
            response = answer_error(request, error)
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        by_method, method = self._find(request.scope), request.scope["method"]
        if method == "OPTIONS":  # answered 200, as a ceramic-one node does
            return Response(headers={"allow": ", ".join([*by_method, "OPTIONS"])})
        entry = by_method.get("GET" if method == "HEAD" else method)
        if entry is None:
            allowed = [*by_method, *(["HEAD"] if "GET" in by_method else []), "OPTIONS"]
            raise HTTPException(
                HTTPStatus.METHOD_NOT_ALLOWED, headers={"allow": ", ".join(allowed)}
            )
        body = request.scope["body"]
        if method == "POST" and body:
            _check_encoding(request.scope)
        parameters = NO_PARAMETERS
        if entry.parameters is not Parameters:
            is_strict = entry.own and entry.path.startswith("/ceramic/")
            parameters = entry.parameters.read_from(request, is_strict=is_strict)
        answer = await entry.handle(Call(request, self._services, self._metrics, parameters, body))
        return answer if isinstance(answer, Response) else reply(answer)

    def _find(self, scope: Scope) -> dict[str, Endpoint]:
        """Return the endpoints of a path by their methods, and note what its parts are.

        Raises:
            HTTPException: there are none.
        """
        path = scope["path"]
        exact = self._exact.get(path)
        if exact is not None:
            scope["template"] = path
            return exact
        # A parameter may have a slash in it, as %2F: then the path is decoded part by part.
        is_encoded = b"%2f" in scope["raw_path"].lower()
        if is_encoded:
            path = scope["raw_path"].decode("latin-1")
        for pattern, template, by_method in self._patterns:
            match = pattern.match(path)
            if match is not None:
                scope["template"], parts = template, match.groupdict()
                if is_encoded:
                    parts = {name: unquote(part) for name, part in parts.items()}
                scope["path_params"] = parts
                return by_method
        raise HTTPException(HTTPStatus.NOT_FOUND)


def _check_encoding(scope: Scope) -> None:
    """Raise `ApiError` if a body comes in a content coding (RFC 9110, section 8.4): none is read,
    since a few bytes can stand for very many."""
    for name, value in scope["headers"]:
        if name == b"content-encoding" and value.strip().lower() not in (b"", b"identity"):
            raise ApiError(
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
                f"the body has the Content-Encoding {value[:50].decode('latin-1')!r}: send it as "
                "it is, without that header",
                {"accept-encoding": "identity"},
            )
