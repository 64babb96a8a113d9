"""GET, POST and DELETE of /ceramic/snapshots/sync: bring the running node up to date."""

from __future__ import annotations

import math
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from starlette.responses import Response

from recon_node.api.endpoint import Answer, Call, Services, endpoint
from recon_node.api.errors import ApiError, bad_request
from recon_node.api.models import Body, Parameters, Whole, read_small, reply
from recon_node.ceramic.auth.did import public_key
from recon_node.ceramic.errors import DidError

if TYPE_CHECKING:
    from recon_node.snapshot.snapshot_service import Snapshots
    from recon_node.snapshot.syncing import SnapshotSync

_SHOWN: Final = 20
"""Faults in an answer; all are counted."""


class SyncRequestBody(Parameters, frozen=True):
    """What to sync from."""

    urls: list[str]
    """Where the snapshots are, such as https://example.com/ceramic or s3://bucket/path; the newest
    one of each is read."""
    signers: list[str] | None = None
    """did:keys: read only snapshots that are signed by one of them. Without it, the node's setting
    `snapshot_signers` applies."""


class SourceBody(Body, frozen=True):
    """A source of a sync."""

    url: str
    """Where it is."""
    name: str | None
    """The snapshot's name there; null while it is not known."""
    error: str | None
    """Why it cannot be used, or no longer; null if it can."""
    requests: Whole
    """Requests to it so far."""
    received: Whole
    """Bytes received from it so far."""


class SyncBody(Body, frozen=True):
    """A sync from snapshots."""

    state: str
    """`running`, `done` or `cancelled`."""
    sources: list[SourceBody]
    """Where it reads."""
    total: Whole
    """Events of the snapshots."""
    done: Whole
    """Of these, those that are here, or were tried."""
    new: Whole
    """Events that the node did not have."""
    known: Whole
    """Events that came from elsewhere meanwhile."""
    refused: Whole
    """Events that were refused."""
    fault_count: Whole
    """Objects and events that cannot be used."""
    faults: list[str]
    """The first 20 of them, and why."""
    seconds: float | None
    """How long it took; null while it runs."""


@endpoint(
    "POST",
    "/ceramic/snapshots/sync",
    Answer("It has started.", SyncBody, status=202),
    body=SyncRequestBody,
    errors=(409, 503),
    own=True,
)
async def post_snapshot_sync(call: Call[Parameters]) -> Response:
    """Start to sync from snapshots. One sync runs at a time.

    The node reads the URLs with its own credentials and from its own file system, and admits what
    it lacks like events from peers.
    """
    body = read_small(call.body, SyncRequestBody, is_strict=True)
    if not body.urls:
        raise bad_request("'urls' is empty: name at least one snapshot")
    for did in body.signers or ():
        try:
            public_key(did)
        except DidError as error:
            raise bad_request(f"'signers': {error}") from None
    from recon_node.snapshot.snapshot_service import BusyError

    try:
        report = _side(call.services).start(body.urls, body.signers)
    except BusyError as error:
        advice = "wait for it, or cancel it (DELETE of this path)"
        raise ApiError(HTTPStatus.CONFLICT, f"{error}: {advice}") from None
    return reply(describe_sync(report), HTTPStatus.ACCEPTED)


@endpoint("GET", "/ceramic/snapshots/sync", errors=(404, 503), own=True)
async def get_snapshot_sync(call: Call[Parameters]) -> SyncBody:
    """Get the progress of the sync from snapshots, or the outcome of the latest one."""
    report = _side(call.services).latest
    if report is None:
        text = "this node has not synced from snapshots since it started"
        raise ApiError(HTTPStatus.NOT_FOUND, text)
    return describe_sync(report)


@endpoint(
    "DELETE",
    "/ceramic/snapshots/sync",
    Answer("It stops. Another sync will continue where it was.", status=204),
    errors=(404, 503),
    own=True,
)
async def delete_snapshot_sync(call: Call[Parameters]) -> Response:
    """Cancel the sync from snapshots that is running."""
    if not _side(call.services).cancel():
        raise ApiError(HTTPStatus.NOT_FOUND, "no sync from snapshots is running")
    return Response(status_code=HTTPStatus.NO_CONTENT)


def describe_sync(report: SnapshotSync) -> SyncBody:
    """Describe a sync by the names of the API."""
    synced = report.synced
    state = "running"
    if report.seconds is not None:
        state = "cancelled" if report.cancelled else "done"
    return SyncBody(
        state=state,
        sources=SourceBody.of_objects(report.sources),
        total=synced.total,
        done=synced.done,
        **{verdict: synced.counts[verdict] for verdict in ("new", "known", "refused")},
        fault_count=synced.fault_count,
        faults=list(map(str, synced.faults[:_SHOWN])),
        seconds=None if report.seconds is None else math.ceil(report.seconds * 10) / 10,
    )


def _side(services: Services) -> Snapshots:
    if services.snapshots is None:
        raise ApiError(HTTPStatus.SERVICE_UNAVAILABLE, "this node cannot sync from snapshots")
    return services.snapshots
