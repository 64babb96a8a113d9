"""Nodes that got the same events, in whatever order, say the same of each stream."""

from pathlib import Path
from random import Random
from typing import Any

import pytest
from api_samples import KEY, api_of
from test_api_streams import DEFINITION

from recon_node.ceramic import Event, EventId, Network, StreamId
from recon_node.ceramic.builder import init_event, model_event, signed_event
from recon_node.ipld import CID
from recon_node.store import StoreSettings, open_store

NETWORK = Network.local(7)
Offer = tuple[EventId, bytes]


def definition(max_length: int) -> dict[str, Any]:
    text = {"type": "string", "maxLength": max_length}
    properties = {"text": text, "author": {"type": "string"}}
    return {**DEFINITION, "schema": {**DEFINITION["schema"], "properties": properties}}


def put(
    init: Event, prevs: list[Event], path: str, value: Any, version: CID | None = None
) -> Event:
    links = [prev.cid for prev in prevs]
    patch = [{"op": "add", "path": path, "value": value}]
    payload = {"id": init.cid, "prev": links if len(links) > 1 else links[0], "data": patch}
    more = {} if version is None else {"header": {"modelVersion": version}}
    return signed_event(KEY, payload | more)


def world(random: Random) -> tuple[list[Offer], list[StreamId]]:
    """A model of three versions (one is refused), and documents with forks, merges and rejected
    events, of all of them."""
    model = model_event(KEY, definition(10))
    longer = put(model, [model], "/schema", definition(20)["schema"])
    refused = put(model, [longer], "/interface", True)
    events, inits = [model, longer, refused], [model]
    versions = [model.cid, longer.cid, refused.cid]
    for n in range(5):
        content = {"author": "me", "text": "x" * random.choice([3, 3, 15])}
        init = init_event(KEY, model.stream_id(), content, unique=bytes([n]))
        mine = [init]
        for _ in range(8):
            prevs = random.sample(mine, min(len(mine), random.choice([1, 1, 1, 2])))
            version = random.choice([*versions, *[None] * 6])
            path = random.choice(["/text", "/text", "/text", "/author"])
            text = random.choice("abc") * random.choice([1, 5, 15, 25])
            mine.append(put(init, prevs, path, text, version))
        events += mine
        inits.append(init)
    inits.append(init_event(KEY, model.stream_id(), {"text": "x" * 25}, unique=b"too long"))
    events.append(inits[-1])
    return offers_of(events), [init.stream_id() for init in inits]


def offers_of(events: list[Event]) -> list[Offer]:
    """The events as a peer sends them; each comes after its prevs."""
    headers = {event.cid: event.header for event in events}
    heights: dict[CID, int] = {}
    offers = []
    for event in events:
        header = headers[event.init]
        height = 1 + max((heights[prev] for prev in event.prevs), default=-1)
        heights[event.cid] = height
        offers.append((event.event_id(NETWORK, header, height), event.car))
    return offers


async def answers(directory: Path, offers: list[Offer], ids: list[StreamId], size: int) -> Any:
    """What a node says of the streams that is given the events, `size` at a time. It is asked in
    between, too: nothing that it remembers may last."""
    async with open_store(directory, NETWORK, settings=StoreSettings(verifiers=0)) as store:
        async with api_of(store) as client:
            answers_of = []
            for at in range(0, len(offers), size):
                await store.admit_remote(offers[at : at + size])
                answers_of = [await client.get(f"/ceramic/streams/{id_}") for id_ in ids]
        assert (store.head, store.waiting) == (len(set(offers)), 0)
    return [(answer.status_code, comparable(answer.json())) for answer in answers_of]


def comparable(state: dict[str, Any]) -> dict[str, Any]:
    errors = state.get("validation_errors", ())
    return {**state, "validation_errors": sorted(errors, key=lambda error: str(error["event_cid"]))}


@pytest.mark.parametrize("seed", range(3))
async def test_the_order_of_arrival_changes_nothing(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    offers, ids = world(random)
    expected = await answers(tmp_path / "0", offers, ids, len(offers))
    assert {status for status, _ in expected} == {200, 404}
    assert any(state["validation_errors"] for _, state in expected)
    for n in (1, 2):
        shuffled = random.sample(offers, len(offers))
        assert await answers(tmp_path / str(n), shuffled, ids, 12) == expected
    last = offers[3:] + offers[:3]  # the model after all of its documents
    assert await answers(tmp_path / "3", last, ids, len(offers) - 3) == expected
