"""GET /ceramic/unprocessed: streams that this node has set aside, and why."""

from __future__ import annotations

from recon_node import __version__
from recon_node.api.endpoint import Call, endpoint
from recon_node.api.models import Body, Parameters, Whole


class UnprocessedStreamBody(Body, frozen=True):
    """A stream that is set aside."""

    init: str
    """The CID of its init event."""
    events: Whole
    """How many events it had; with more, it is tried again."""
    reason: str
    """Why, in plain English."""
    since: float
    """Unix seconds."""
    version: str
    """Of this node."""


class UnprocessedBody(Body, frozen=True):
    """Streams that are set aside."""

    streams: list[UnprocessedStreamBody]
    """The latest last; at most 1,000 since the start."""


@endpoint("GET", "/ceramic/unprocessed", own=True)
async def get_unprocessed(call: Call[Parameters]) -> UnprocessedBody:
    """List the streams of which nothing is computed."""
    return UnprocessedBody(
        streams=[
            UnprocessedStreamBody(
                init=str(each.init),
                events=each.events,
                reason=each.reason,
                since=each.since,
                version=__version__,
            )
            for each in call.services.evaluation.aside
        ]
    )
