"""The summary of a stream for `LongStream`: what later events need, and its encoding.

The encoding is DAG-CBOR behind its SHA-256, so that damage does not go unnoticed. Content is kept
as JSON, because DAG-CBOR forgets the order of an object's members, which `StreamData.to_json`
shows. Bytes and links in it are written as in DAG-JSON; content for which that is ambiguous is left
out.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from recon_node.ceramic import CeramicError, InitHeader
from recon_node.ipld import CID, IpldError, dag_cbor
from recon_node.streams.document_schema import dag_json
from recon_node.streams.graph import ForgottenError, StreamEvent
from recon_node.streams.state import EventState
from recon_node.streams.stream_data import StreamData
from recon_node.streams.summary import KeptEvent, TipSummary

_FORMAT: Final = 2
_DIGEST: Final = hashlib.sha256().digest_size
_KINDS: Final[tuple[Literal["init", "data", "time"], ...]] = ("init", "data", "time")
# How an object's member "/" begins in JSON without spaces. Text in a value has `\"` instead.
_SLASH: Final = '"/":'
_REJECTED: Final = ("the event was rejected",)


@dataclass(frozen=True, slots=True)
class PackedState:
    """The state after an event. `data` is JSON: its metadata and content."""

    height: int
    is_rejected: bool
    weight: int
    data: bytes


@dataclass(frozen=True, slots=True)
class StreamSummary:
    """A summary of the earlier events of a stream.

    Attributes:
        init: the CID of its init event.
        position: the feed position up to which it has all events.
        header: the fields of the init event's header.
        pending: how many time events have no known time.
        versions: the versions of its model that it names.
        tips: its shape.
        accepted: its shape with rejected events as invalid; None if no event was rejected.
        states: after those events on which later ones may build; None if they were not computed.
    """

    init: CID
    position: int
    header: Mapping[str, Any]
    pending: int
    versions: frozenset[CID]
    tips: TipSummary[CID]
    accepted: TipSummary[CID] | None
    states: Mapping[CID, PackedState] | None

    @property
    def count(self) -> int:
        """How many events the stream has."""
        return self.tips.count

    @property
    def init_header(self) -> InitHeader:
        """The header of its init event."""
        return InitHeader.from_fields(self.header)

    def encode(self) -> bytes:
        """Return it as bytes."""
        datas: dict[bytes, int] = {}
        states = None
        if self.states is not None:
            states = [
                [cid, s.height, s.is_rejected, s.weight, datas.setdefault(s.data, len(datas))]
                for cid, s in self.states.items()
            ]
        body = dag_cbor.encode(
            [
                _FORMAT,
                self.init,
                self.position,
                dict(self.header),
                self.pending,
                sorted(self.versions),
                _shape_to_list(self.tips),
                None if self.accepted is None else _shape_to_list(self.accepted),
                states,
                list(datas),
            ]
        )
        return hashlib.sha256(body).digest() + body

    @classmethod
    def decode(cls, data: bytes) -> StreamSummary:
        """Read what `encode` wrote.

        Raises:
            ForgottenError: it is damaged, or was written by another version.
        """
        digest, body = data[:_DIGEST], data[_DIGEST:]
        if hashlib.sha256(body).digest() != digest:
            raise ForgottenError("a summary is damaged")
        try:
            version, init, position, header, pending, versions, *rest = dag_cbor.decode(body)
            tips, accepted, states, datas = rest
            InitHeader.from_fields(header)
            found = cls(
                init,
                position,
                header,
                pending,
                frozenset(versions),
                _shape_of_list(tips),
                None if accepted is None else _shape_of_list(accepted),
                None if states is None else _states_of_list(states, datas),
            )
        except (IpldError, CeramicError, ValueError, TypeError, LookupError) as error:
            raise ForgottenError("a summary was written by another version") from error
        if version != _FORMAT:
            raise ForgottenError("a summary was written by another version")
        return found


def pack_state(state: EventState, most: int) -> PackedState | None:
    """Pack a state; None if that takes more than `most` bytes, or is ambiguous."""
    data = state.data
    if data.weight > most or not data.conforms:  # about the bytes of its JSON
        return None
    tags = 0

    def tag(value: Any) -> Any:
        nonlocal tags
        tags += 1
        return dag_json(value)

    value = [dict(data.metadata), data.content]
    text = json.dumps(value, separators=(",", ":"), check_circular=False, default=tag)
    if text.count(_SLASH) != tags:  # an object has a member "/" of its own
        return None
    return PackedState(state.height, bool(state.validation_errors), data.weight, text.encode())


def unpack_state(cid: CID, packed: PackedState) -> EventState:
    """Return the state after an event, but not why it was rejected if it was."""
    text = packed.data.decode()
    metadata, content = json.loads(text, object_hook=_untag if _SLASH in text else None)
    data = StreamData(content, metadata, packed.weight)
    return EventState(cid, packed.height, data, _REJECTED if packed.is_rejected else ())


def _untag(value: dict[str, Any]) -> Any:
    """The reverse of `dag_json`."""
    if "/" not in value:
        return value
    tagged = value["/"]
    if isinstance(tagged, str):
        return CID.parse(tagged)
    text = tagged["bytes"]
    return base64.b64decode(text + "=" * (-len(text) % 4))


def _shape_to_list(shape: TipSummary[CID]) -> list[Any]:
    number = {kept.event.id: i for i, kept in enumerate(shape.kept)}
    kept = [
        [
            each.event.id,
            _KINDS.index(each.event.kind),
            [number[prev] for prev in each.event.prev],
            each.event.valid,
            each.event.expires,
            each.height,
            each.time,
            each.is_open,
            each.folded,
            list(each.pruned),
            each.event.rank,
        ]
        for each in shape.kept
    ]
    return [kept, shape.count, list(shape.dead), shape.lapses, shape.revives]


def _shape_of_list(value: Any) -> TipSummary[CID]:
    rows, count, dead, lapses, revives = value
    ids = [row[0] for row in rows]
    kept = []
    for id_, kind, prev, valid, expires, height, time, is_open, folded, pruned, rank in rows:
        prevs = tuple([ids[i] for i in prev])
        event = StreamEvent(id_, _KINDS[kind], prevs, None, valid, expires, rank)
        kept.append(KeptEvent(event, height, time, is_open, folded, tuple(pruned)))
    return TipSummary(tuple(kept), count, tuple(dead), lapses, revives)


def _states_of_list(rows: Iterable[Any], datas: list[bytes]) -> dict[CID, PackedState]:
    return {
        cid: PackedState(height, is_rejected, weight, datas[i])
        for cid, height, is_rejected, weight, i in rows
    }
