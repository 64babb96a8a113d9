"""GET /ceramic/streams/{stream_id}/picture: a stream as a drawing, and why its tip is its tip."""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import partial
from http import HTTPStatus
from typing import Annotated

from msgspec import field
from starlette.responses import Response

from recon_node.api.endpoint import Call, endpoint
from recon_node.api.errors import ApiError
from recon_node.api.models import Body, FlagParameter, WholeParameter, reply
from recon_node.api.routes.stream_events import Held, StreamOrInitPath, compute_held
from recon_node.ceramic import StreamId
from recon_node.draw.layout import fold_runs, lay_out
from recon_node.draw.svg import draw_svg
from recon_node.streams import StreamShapeError
from recon_node.streams.picture import StreamPicture, stream_picture


class PictureParameters(StreamOrInitPath, frozen=True):
    """Which stream, and how to draw it."""

    everything: FlagParameter = field(default=False, name="all")
    """Whether to draw long runs without forks in full; they are folded by default."""
    limit: WholeParameter = 200
    """Maximum number of rows, from the newest event: 200 by default, at most 2,000."""


class TipDecisionBody(Body, frozen=True):
    """How a fork was decided."""

    rule: str
    """earliest time (rule 4 of CIP-145), lowest CID (rule 5), only data, or earliest anchor."""
    winner: str
    """The CID of the event that won."""
    rivals: list[str]
    """Those of the events that lost."""


class StreamPictureBody(Body, frozen=True):
    """A stream as a drawing."""

    id: str
    """The StreamID."""
    summary: str
    """How many events there are, and whether the stream has diverged."""
    notes: list[str]
    """Why the tip is the tip, in sentences."""
    tip: str | None
    """The CID of the tip, null if there is none."""
    candidates: list[str]
    """The CIDs of the events that could have become the tip."""
    pruned: list[str]
    """Those of the events that the tip does not cover; the first 1,000."""
    diverged: bool
    """Whether there is a fork that no event has merged."""
    decisions: list[TipDecisionBody]
    """How the forks were decided, in this order."""
    merge: list[str]
    """What an event would name as its prevs to merge the stream; empty unless it has diverged."""
    svg: str
    """The drawing. Each event is a group of the class `node` whose title is the event's CID."""


MAX_ROWS = 2000
MAX_PRUNED = 1000


@endpoint("GET", "/ceramic/streams/{stream_id}/picture", errors=(404,), own=True)
async def get_stream_picture(
    call: Call[PictureParameters],
) -> Annotated[Response, StreamPictureBody]:
    """Draw a stream, and explain its tip."""
    rows = min(call.parameters.limit, MAX_ROWS)
    draw = partial(_draw, call.parameters.everything, rows)
    return await compute_held(call.services, *call.parameters.stream_id, draw)


def _draw(everything: bool, rows: int, held: Held) -> Response:
    stream_id, events = held.stream_id, held.to_draw()
    try:
        drawn = stream_picture(f"Stream {stream_id}", events, int(time.time()))
    except (StreamShapeError, ValueError) as error:
        raise ApiError(HTTPStatus.NOT_FOUND, f"the events here are not a stream: {error}") from None
    picture = drawn.picture
    nodes = picture.nodes if everything else fold_runs(picture.nodes, picture.unit)
    svg = draw_svg(picture, lay_out(nodes, rows))
    return reply(_describe(stream_id, drawn, svg))


def _describe(stream_id: StreamId, drawn: StreamPicture, svg: str) -> StreamPictureBody:
    tip = drawn.tip
    return StreamPictureBody(
        id=str(stream_id),
        svg=svg,
        summary=drawn.picture.summary,
        notes=list(drawn.picture.notes),
        tip=None if tip is None else str(tip.event),
        candidates=_texts(tip.candidates if tip else ()),
        pruned=_texts(tip.pruned[:MAX_PRUNED] if tip else ()),
        diverged=tip is not None and tip.diverged,
        decisions=[
            TipDecisionBody(each.rule.value, str(each.winner), _texts(each.rivals))
            for each in (tip.reasons if tip else ())
        ],
        merge=_texts(drawn.merge),
    )


def _texts(ids: Iterable[object]) -> list[str]:
    return [str(each) for each in ids]
