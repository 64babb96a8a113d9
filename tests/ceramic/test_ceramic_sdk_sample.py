"""930 events written by the Ceramic JavaScript SDK: all must be read, verified and named alike.

tests/data/sdk_sample.jsonl was made with @ceramic-sdk: 3 models, 260 documents, 667 data events,
some of them forks. A line has the event's CID and CAR, and what the SDK says about it.
"""

from functools import cache
from typing import Any

from support import sdk_sample

from recon_node.ceramic import METAMODEL, Event, EventKind, StreamType, signer, verify_signature
from recon_node.ipld import CID, car, multibase


def rows() -> list[tuple[dict[str, Any], Event]]:
    return list(zip(sdk_sample.lines(), sdk_sample.events(), strict=True))


@cache
def inits() -> dict[CID, Event]:
    return {event.cid: event for _, event in rows() if event.kind is EventKind.INIT}


def test_every_event_is_what_the_sdk_says() -> None:
    for row, event in rows():
        assert str(event.cid) == row["cid"]
        if "prev" in row:
            assert [str(prev) for prev in event.prevs] == [row["prev"]]
        if "stream" in row:
            header = inits()[event.init].header
            assert str(event.stream_id(header)) == row["stream"]
        if "model" in row:
            assert event.header.sort_key == "model"
            assert event.header.sort_value == str(event.header.model) == row["model"]
            assert event.header.controller == row["controller"]
        if row["kind"] == "model":
            assert event.header.model == METAMODEL
            assert event.stream_id().type == StreamType.MODEL


def test_documents_name_their_models() -> None:
    models = {str(event.stream_id()) for row, event in rows() if row["kind"] == "model"}
    assert {row["model"] for row, _ in rows() if row["kind"] == "init"} == models


def test_every_signature_is_the_controllers() -> None:
    for _, event in rows():
        header = inits()[event.init].header
        verify_signature(event, header.controller)
        verify_signature(event, None)
        assert signer(event) == header.controller


def test_every_car_is_kept_and_can_be_written_again() -> None:
    for row, event in rows():
        assert event.car == multibase.decode(row["car"])
        decoded = car.decode(event.car)
        assert car.encode(decoded.roots, decoded.blocks) == event.car
        assert multibase.encode(event.car) == row["car"]
