"""The HTTP API as an ASGI application: its endpoints, and the middleware around them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from recon_node.api.endpoint import Answer, Call, Endpoint, endpoint
from recon_node.api.errors import EXCEPTION_HANDLERS
from recon_node.api.metrics import Metrics
from recon_node.api.middleware.guard import Guard, usual_need
from recon_node.api.middleware.stack import Bound, Observe
from recon_node.api.models import Parameters, reply
from recon_node.api.openapi import describe
from recon_node.api.routes import (
    anchor_service,
    anchors,
    arrow,
    dag,
    events,
    experimental,
    feed,
    feed_hash,
    interests,
    kubo,
    listings,
    node_info,
    pages,
    search,
    snapshots,
    stream_events,
    streams,
    tangles,
    undelivered,
)
from recon_node.api.services import Services


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


ENDPOINTS: tuple[Endpoint, ...] = (
    events.post_event,
    events.get_event,
    events.get_event_blocks,
    listings.get_streams,
    listings.get_models,
    search.get_search,
    streams.get_stream,
    stream_events.get_stream_events,
    stream_events.get_event_state,
    stream_events.get_stream_picture,
    undelivered.get_undelivered,
    undelivered.get_waiting,
    undelivered.get_pending,
    undelivered.get_refused,
    undelivered.get_unprocessed,
    streams.get_stream_preview,
    streams.get_stream_merge,
    feed.get_events,
    feed.get_resume_token,
    feed.get_head,
    feed.get_position,
    arrow.get_arrow,
    arrow.post_arrow,
    feed_hash.get_feed_hash,
    interests.post_interest,
    interests.delete_interest,
    interests.post_sort_value_interest,
    interests.delete_sort_value_interest,
    dag.get_dags,
    dag.get_publishes,
    dag.get_car,  # first, because the next one's path matches these paths, too
    dag.get_dag,
    dag.get_publication,
    dag.get_entry,
    dag.get_replicas,
    dag.get_contains,
    tangles.get_tangles,
    tangles.get_tangle_names,
    tangles.get_tangle,
    anchors.get_anchors,
    anchors.post_anchors_now,
    anchors.get_anchor_requests,
    anchors.get_event_anchor,
    anchors.post_stream_anchor,
    anchor_service.post_request,
    anchor_service.get_request,
    anchor_service.get_supported_chains,
    snapshots.get_snapshot_sync,
    snapshots.post_snapshot_sync,
    snapshots.delete_snapshot_sync,
    node_info.get_version,
    node_info.post_version,
    node_info.get_liveness,
    node_info.get_network,
    node_info.get_peers,
    node_info.post_peers,
    node_info.get_recon,
    node_info.get_samples,
    node_info.get_syncs,
    node_info.get_metrics,
    experimental.get_interest_events,
    experimental.get_interests,
    kubo.post_id,
    kubo.post_kubo_version,
    kubo.post_swarm_peers,
    kubo.post_swarm_connect,
    kubo.post_block_get,
    kubo.post_block_stat,
    kubo.post_dag_get,
    kubo.post_dag_resolve,
    kubo.post_pin_add,
    kubo.post_pin_rm,
    get_openapi,
    pages.get_docs,
    *pages.SWAGGER_UI,
    pages.get_static,
    pages.get_page,
)
"""All of them, in the order in which paths are matched."""


def create_app(services: Services) -> Starlette:
    """The node's HTTP API over the given services. It runs on trio only."""
    by_path: dict[str, list[Endpoint]] = {}
    for each in ENDPOINTS:
        by_path.setdefault(each.path, []).append(each)
    metrics = Metrics(services)
    routes = [_route(path, each, services, metrics) for path, each in by_path.items()]
    paths = {route.endpoint: route.path for route in routes}
    needs = {e.path: e.need for e in ENDPOINTS if e.need != usual_need(e.method)}
    app = Starlette(
        routes=routes,
        middleware=[
            Middleware(Observe, metrics=metrics, paths=paths),
            *_cors(services.access.cors_allow_origins),
            Middleware(Guard, access=services.access, needs=needs),
            Middleware(Bound, limits=services.limits, always_admit=services.always_admit),
        ],
        exception_handlers=EXCEPTION_HANDLERS,
    )
    app.router.redirect_slashes = False
    return app


def _route(path: str, endpoints: Sequence[Endpoint], services: Services, metrics: Metrics) -> Route:
    """Make one route for all methods of a path, so that a 405 lists all of them in Allow."""
    by_method: dict[str, Endpoint] = {each.method: each for each in endpoints}
    methods = [*by_method, "OPTIONS"]

    async def dispatch(request: Request) -> Response:
        if request.method == "OPTIONS":  # answered 200, as a ceramic-one node does
            return Response(headers={"allow": ", ".join(methods)})
        found = by_method["GET" if request.method == "HEAD" else request.method]
        parameters = found.parameters.read_from(request)
        answer = await found.handle(Call(request, services, metrics, parameters))
        return answer if isinstance(answer, Response) else reply(answer)

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
