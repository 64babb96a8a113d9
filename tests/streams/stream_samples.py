"""What the tests of streams are written with: a model, patches, and a writer of events."""

import copy
from collections.abc import Iterator, Sequence
from typing import Any

from hypothesis import strategies as st
from nacl.signing import SigningKey
from support import vectors
from support.time_events import time_event

from recon_node.ceramic import Event, StreamId, StreamType
from recon_node.ceramic.builder import data_event, init_event, signed_event
from recon_node.ipld import CID, DAG_CBOR
from recon_node.streams import (
    EventShape,
    MergeProposal,
    Stream,
    StreamStates,
    Tip,
    accepted_tip,
    json_diff,
    json_equal,
    select_tip,
    shape_of,
)
from recon_node.streams.json_values import Budget

KEY = SigningKey(bytes(32))
STRANGER = SigningKey(b"\x01" * 32)
MODEL = StreamId(StreamType.MODEL, CID.of(DAG_CBOR, b"model"))
FAULT = "the signature is wrong"
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.text('\x01"\\\n\u00e4\U0001f600', max_size=20)
    | st.binary(max_size=50)
    | st.binary(max_size=9).map(lambda block: CID.of(DAG_CBOR, block))
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=12,
)


def add(path: str, value: Any) -> dict[str, Any]:
    """An operation of JSON Patch."""
    return {"op": "add", "path": path, "value": value}


def put(name: str, value: Any) -> list[dict[str, Any]]:
    """A patch of one member."""
    return [add(f"/{name}", value)]


REJECTED = [{"op": "remove", "path": "/nothing"}]
"""A patch that no content of these tests takes."""


class Writer:
    """A stream, and what a node says of its events."""

    def __init__(self, content: Any = None, model: StreamId = MODEL) -> None:
        self.init = init_event(KEY, model, content or {}, unique=b"u")
        self.events = [self.init]
        self.times: dict[CID, int] = {}
        self.faults: dict[CID, str] = {}

    def add(self, event: Event) -> Event:
        if event.cid not in {event.cid for event in self.events}:
            self.events.append(event)
        return event

    def data(self, patch: Any, *prevs: Event, **header: Any) -> Event:
        cids = [prev.cid for prev in prevs]
        return self.add(data_event(KEY, self.init, cids, patch, **header))

    def forged(self, patch: Any, *prevs: Event) -> Event:
        cids = [prev.cid for prev in prevs]
        event = self.add(data_event(STRANGER, self.init, cids, patch))
        self.faults[event.cid] = FAULT
        return event

    def anchor(self, prev: Event, time: int | None) -> Event:
        tx_hash = len(self.events).to_bytes(32)
        event = self.add(time_event(self.init, prev.cid, tx_hash=tx_hash))
        if time is not None:
            self.times[event.cid] = time
        return event

    def write(self, content: Any, *prevs: Event, **header: Any) -> Event:
        """Lead from the first prev's content to another one."""
        before = self.states().at(prevs[0].cid).data.content
        return self.data(json_diff(before, content, Budget.of_merge()), *prevs, **header)

    def shapes(self, events: Sequence[Event]) -> list[EventShape[CID]]:
        return [
            shape_of(event, time=self.times.get(event.cid), valid=event.cid not in self.faults)
            for event in events
        ]

    def states(self) -> StreamStates:
        return StreamStates(self.events, faults=self.faults)

    def tip(self) -> Tip[CID]:
        return select_tip(self.shapes(self.events))

    def state_tip(self) -> Tip[CID]:
        return accepted_tip(self.shapes(self.events), self.states().rejected)

    def stream(self) -> Stream:
        return Stream.of(self.events, self.times, self.faults)

    def propose_merge(self) -> MergeProposal:
        return self.stream().propose_merge()

    def merged(self) -> Any:
        """Merge the stream as proposed; return the content."""
        proposal = self.propose_merge()
        event = self.add(signed_event(KEY, proposal.payload()))
        assert self.stream().propose_merge() is None
        state = self.states().at(event.cid)
        assert not state.validation_errors
        assert json_equal(state.data.content, proposal.content)
        return state.data.content


PUBLIC_MODELS: list[dict[str, Any]] = vectors.load("public_models")["models"]
"""The schemas of 88 models from public repositories. For each, a complete document, the least one,
and changes of the complete one: `[path, 1, value, verdict]` sets a member, `[path, 0, null,
verdict]` removes it; the verdict is that of ajv 8 for draft 2020-12 with formats off. A value
`{"repeat": [text, n]}` stands for a long text."""


def documents(model: dict[str, Any]) -> Iterator[tuple[Any, bool]]:
    for name in ("complete", "least"):
        document, verdict = model[name]
        yield document, bool(verdict)
    for path, is_set, value, verdict in model["changes"]:
        yield changed(model["complete"][0], path, is_set, value), bool(verdict)


def changed(document: Any, path: list[str | int], is_set: int, value: Any) -> Any:
    token, *below = path
    document = copy.copy(document)
    if below:
        document[token] = changed(document[token], below, is_set, value)
    elif not is_set:
        del document[token]
    elif isinstance(value, dict) and "repeat" in value:
        text, times = value["repeat"]
        document[token] = text * times
    else:
        document[token] = value
    return document
