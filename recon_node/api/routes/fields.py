"""Documents of a model by what their fields hold: those that refer to another one, for example.

Theory of operation. What a document holds is computed from its events, and no index has it. So the
log is asked for documents in whose events the texts occur at all, and only these are computed
(`recon_node.api.evaluation`), to see whether the texts are in their fields at the tip. A page ends
after some documents, bytes or seconds, whatever was found; the following page goes on from there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import Final

from recon_node.api.endpoint import Services
from recon_node.api.errors import ApiError, bad_request
from recon_node.api.routes.streams import compute
from recon_node.store import ListedStream, StreamFilter, StreamPage
from recon_node.store.damage import DamagedEventError
from recon_node.streams import Stream, StreamShapeError
from recon_node.streams.budget import BudgetError

_MAX_FIELDS: Final = 4
_MAX_FIELD: Final = 1000
"""Characters of a field's name and its text."""
_MAX_COMPUTED: Final = 100
"""Documents that are computed for a page, at most."""
_MAX_SECONDS: Final = 10.0
"""Time to compute them, but for the last one."""
_NOT_COMPUTED: Final = (
    HTTPStatus.NOT_FOUND,
    HTTPStatus.GONE,
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.UNPROCESSABLE_ENTITY,
)
"""The answers for a document that is rejected, forgotten, too large, or set aside."""


async def streams_where(
    services: Services,
    wanted: StreamFilter,
    where: Sequence[str],
    indexed: bool,
    before: int | None,
    limit: int,
) -> StreamPage:
    """Return the latest documents that match a filter and in which fields hold these texts.

    `indexed` leaves out documents that indexers should not show.

    Raises:
        ApiError: 400, `where` is not of that form; 503, documents take long to compute, and others
            do, too.
    """
    fields = _read_fields(where)
    limit, max_bytes = min(limit, _MAX_COMPUTED), 2 * services.limits.stream_bytes
    page = await services.store.reader.streams_with(
        wanted, fields.values(), before, limit, max_bytes
    )
    deadline = time.monotonic() + _MAX_SECONDS
    matching: list[ListedStream] = []
    for stream in page.streams:
        if await _is_match(services, stream, partial(_holds, fields, indexed)):
            matching.append(stream)
        if time.monotonic() > deadline and stream is not page.streams[-1]:
            return replace(page, streams=matching, next=stream.row)
    return replace(page, streams=matching)


def _read_fields(where: Sequence[str]) -> dict[str, str]:
    fields: dict[str, str] = {}
    for condition in where:
        field, _, text = condition.partition("=")
        if not field or not text or len(condition) > _MAX_FIELD:
            raise bad_request(f"where: {condition[:100]!r} is not of the form FIELD=TEXT")
        fields[field] = text
    if len(where) > _MAX_FIELDS or len(fields) < len(where):
        raise bad_request(f"where: give up to {_MAX_FIELDS} fields, each once")
    return fields


async def _is_match(
    services: Services, listed: ListedStream, holds: Callable[[Stream], bool]
) -> bool:
    id_ = listed.id
    try:
        return await compute(services, str(id_), id_.cid, id_, holds)
    except ApiError as error:
        if error.status in _NOT_COMPUTED:
            return False
        raise
    except (BudgetError, DamagedEventError):
        return False


def _holds(fields: Mapping[str, str], indexed: bool, stream: Stream) -> bool:
    try:
        data = stream.state().data
    except StreamShapeError:
        return False
    if indexed and not data.metadata["shouldIndex"]:
        return False
    content = data.content if isinstance(data.content, dict) else {}
    return all(content.get(field) == text for field, text in fields.items())
