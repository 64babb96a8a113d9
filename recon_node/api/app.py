"""The HTTP API as an ASGI application: which path is answered by whom, and what surrounds it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from recon_node.api import metrics
from recon_node.api.errors import EXCEPTION_HANDLERS
from recon_node.api.middleware.guard import Guard
from recon_node.api.middleware.stack import Bound, Observe
from recon_node.api.routes import (
    arrow,
    dag,
    dag_replicas,
    events,
    experimental,
    feed,
    interests,
    node_info,
    pages,
    stream_events,
    streams,
)
from recon_node.api.services import Services

Endpoint = Callable[[Request], Awaitable[Response]]

ENDPOINTS: tuple[tuple[str, str, Endpoint], ...] = (
    ("POST", "/ceramic/events", events.post_event),
    ("GET", "/ceramic/events/{event_id}", events.get_event),
    ("GET", "/ceramic/feed/events", feed.get_events),
    ("GET", "/ceramic/feed/resumeToken", feed.get_resume_token),
    ("GET", "/ceramic/feed/head", feed.get_head),
    ("GET", "/ceramic/feed/arrow", arrow.get_arrow),
    ("POST", "/ceramic/interests", interests.post_interest),
    ("DELETE", "/ceramic/interests", interests.delete_interest),
    ("POST", "/ceramic/interests/{sort_key}/{sort_value}", interests.post_sort_value_interest),
    ("DELETE", "/ceramic/interests/{sort_key}/{sort_value}", interests.delete_sort_value_interest),
    ("GET", "/ceramic/version", node_info.version),
    ("POST", "/ceramic/version", node_info.version),
    ("GET", "/ceramic/liveness", node_info.get_liveness),
    ("GET", "/ceramic/config/network", node_info.get_network),
    ("GET", "/ceramic/peers", node_info.get_peers),
    ("POST", "/ceramic/peers", node_info.post_peers),
    ("GET", "/ceramic/recon", node_info.get_recon),
    ("GET", "/ceramic/streams/{stream_id}", streams.get_stream),
    ("GET", "/ceramic/streams/{stream_id}/events", stream_events.get_stream_events),
    ("GET", "/ceramic/dag/{cid}.car", dag.get_car),  # first, for the next one fits it, too
    ("GET", "/ceramic/dag/{cid}", dag.get_dag),
    ("GET", "/ceramic/dag/publish/{did}", dag.get_publication),
    ("GET", "/ceramic/dag/{cid}/replicas", dag_replicas.get_replicas),
    ("GET", "/ceramic/dag/{cid}/contained/{replica}", dag.get_contains),
    ("GET", "/ceramic/experimental/events/{sep}/{sep_value}", experimental.get_interest_events),
    ("GET", "/ceramic/experimental/interests", experimental.get_interests),
    ("GET", "/metrics", metrics.get_metrics),
    ("GET", "/openapi.json", pages.get_openapi),
    ("GET", "/docs", pages.get_docs),
    ("GET", "/", pages.get_status_page),
)
"""Method, path and handler."""


def create_app(services: Services) -> Starlette:
    """The node's HTTP API over the given services. It runs on trio only."""
    registry = metrics.make_registry(services)
    routes = make_routes()
    paths = {route.endpoint: route.path for route in routes}
    app = Starlette(
        routes=routes,
        middleware=[
            Middleware(Observe, metrics=metrics.HttpMetrics(registry, paths)),
            *_cors(services.access.cors_allow_origins),
            Middleware(Guard, access=services.access),
            Middleware(Bound, limits=services.limits),
        ],
        exception_handlers=EXCEPTION_HANDLERS,
    )
    app.router.redirect_slashes = False
    app.state.services = services
    app.state.registry = registry
    return app


def make_routes() -> list[Route]:
    """One route a path, for all of its methods: a wrong method is told all the right ones."""
    by_path: dict[str, dict[str, Endpoint]] = {}
    for method, path, endpoint in ENDPOINTS:
        by_path.setdefault(path, {})[method] = endpoint
    return [_route(path, endpoints) for path, endpoints in by_path.items()]


def _route(path: str, endpoints: dict[str, Endpoint]) -> Route:
    methods = [*endpoints, "OPTIONS"]

    async def dispatch(request: Request) -> Response:
        if request.method == "OPTIONS":  # answered 200, as a ceramic-one node does
            return Response(headers={"allow": ", ".join(methods)})
        return await endpoints["GET" if request.method == "HEAD" else request.method](request)

    return Route(path, dispatch, methods=methods)


def _cors(origins: Sequence[str]) -> list[Middleware]:
    if not origins:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=list(origins),
            allow_methods=["GET", "POST", "DELETE", "OPTIONS"],
            allow_headers=["content-type", "authorization"],
        )
    ]
