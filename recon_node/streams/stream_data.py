"""The data of a stream after one of its events, and at its tip: values, and their JSON.

How they are computed is in `recon_node.streams.state`. The names are those of ceramic-one:
`event_states` of its pipeline, `StreamState` of its API.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import orjson

from recon_node.ceramic import InitHeader, StreamId
from recon_node.ipld import CID
from recon_node.streams.document_schema import dag_json


@dataclass(slots=True)  # frozen, it would take three times as long to make
class StreamData:
    """Content and metadata of a stream at one of its events. Other events share parts of them, so
    they must not be changed."""

    content: Any
    """A JSON object; None if there is none yet."""
    metadata: Mapping[str, Any]
    weight: int = field(default=0, compare=False, repr=False)
    """Of the content, at most; see `recon_node.streams.json_patch`."""
    conforms: bool = field(default=True, compare=False, repr=False)
    """Whether the content was accepted; only that of a rejected init event was not."""
    _json: bytes | None = field(default=None, init=False, compare=False, repr=False)

    def to_json(self) -> bytes:
        """Return `data_json` of it, which is cached."""
        if self._json is None:
            self._json = data_json(dict(self.metadata), self.content)
        return self._json


def data_json(metadata: dict[str, Any], content: Any) -> bytes:
    """Return `{"metadata": ..., "content": ...}` as ceramic-one has it.

    Bytes and links are written as in DAG-JSON.
    """
    value = {"metadata": metadata, "content": content}
    try:
        return orjson.dumps(value, default=dag_json)
    except orjson.JSONEncodeError:  # an integer beyond 64 bits, or nested too deep for it
        return _ENCODER.encode(value).encode()


_ENCODER: Final = json.JSONEncoder(
    ensure_ascii=False, check_circular=False, separators=(",", ":"), default=dag_json
)


class EventState(NamedTuple):
    """A stream's data after one of its events."""

    event_cid: CID
    height: int
    data: StreamData
    validation_errors: tuple[str, ...]
    """Why the event was rejected, in plain English; empty when it was accepted."""


@dataclass(frozen=True, slots=True)
class StreamState:
    """A stream's data at its tip, and its controller and dimensions."""

    id: StreamId
    event_cid: CID
    """The tip of the accepted events, which the next event should name as its prev."""
    controller: str
    dimensions: Mapping[str, bytes]
    data: StreamData
    validation_errors: Mapping[CID, tuple[str, ...]]
    """Of the events that were rejected, in causal order."""


def stream_state(
    header: InitHeader, init: CID, state: EventState, rejected: Mapping[CID, tuple[str, ...]]
) -> StreamState:
    """Build the state of a stream."""
    return StreamState(
        id=StreamId(header.stream_type, init),
        event_cid=state.event_cid,
        controller=header.controller,
        dimensions=header.dimensions,
        data=state.data,
        validation_errors=rejected,
    )
