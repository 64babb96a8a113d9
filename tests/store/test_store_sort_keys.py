"""Streams that are sorted by another field than `model`, and those without a model."""

from pathlib import Path
from typing import Any

import pytest
from capabilities import ACCOUNT, SESSION, capability
from store_helpers import KEYS, MODEL, NETWORK, feed_of, offer

from recon_node.ceramic import Event, EventId, StreamId, StreamType, parse_event, sort_value_range
from recon_node.ceramic.auth.did import controller_of
from recon_node.ceramic.builder import data_event, signed_event
from recon_node.ipld import CID, DAG_CBOR
from recon_node.store import Interest, InvalidInterestError, StoreSettings, open_store

SCHEMA = CID.of(DAG_CBOR, b"schema")
HEADERS: dict[str, tuple[dict[str, Any], str]] = {
    "family": ({"sep": "family", "family": "blog"}, "blog"),
    "schema": ({"sep": "schema", "schema": SCHEMA}, str(SCHEMA)),
    "tags": ({"sep": "tags", "tags": ["one"]}, "one"),
    "with a model": ({"sep": "family", "family": "blog", "model": MODEL.to_bytes()}, "blog"),
    "none": ({}, ""),
    "a tile document": ({"family": "blog", "schema": "ceramic://k3y", "unique": "dGVz"}, ""),
}


def stream(name: str) -> tuple[Event, Event]:
    fields, _ = HEADERS[name]
    header = {"controllers": [controller_of(KEYS[0])], **fields}
    init = signed_event(KEYS[0], {"header": header, "data": {"a": 1}})
    patch = [{"op": "replace", "path": "/a", "value": 2}]
    return init, data_event(KEYS[0], init, [init.cid], patch)


@pytest.mark.parametrize("verifiers", [0, 1])
async def test_they_go_from_node_to_node(tmp_path: Path, verifiers: int) -> None:
    """Under the EventIds that CIP-124 gives them."""
    streams = {name: stream(name) for name in HEADERS}
    events = [event for pair in streams.values() for event in pair]
    settings = StoreSettings(verifiers=verifiers)
    async with (
        open_store(tmp_path / "a", NETWORK, settings=settings) as a,
        open_store(tmp_path / "b", NETWORK, settings=settings) as b,
    ):
        many = [event.car for event in events] * 2  # enough for a verifier process
        assert {verdict.status for verdict in await a.admit_local(many)} == {"new", "known"}
        for name, pair in streams.items():
            lower, upper = sort_value_range(NETWORK, HEADERS[name][1])
            cids = {EventId(key).event_cid for key in a.keys if lower < key < upper}
            assert cids >= {event.cid for event in pair}
        keys = [EventId(key) for key in a.keys]
        cars = await a.reader.cars(keys)
        offers = [(key, car) for key, car in zip(keys, cars, strict=True) if car is not None]
        assert {verdict.status for verdict in await b.admit_remote([*reversed(offers)])} == {"new"}
        assert {row.event_cid for row in await feed_of(b)} == {event.cid for event in events}


async def test_an_event_under_another_sort_value_is_refused(tmp_path: Path) -> None:
    """It must be that of the event's own header."""
    async with open_store(tmp_path, NETWORK, settings=StoreSettings(verifiers=0)) as store:
        for name in ("family", "tags", "with a model", "none"):
            init, _ = stream(name)
            for wrong in (str(MODEL), "blogs", "family", "k"):
                key = EventId.build(NETWORK, wrong, controller_of(KEYS[0]), init.cid, 0, init.cid)
                [verdict] = await store.admit_remote([(key, init.car)])
                assert verdict.status == "refused"
                assert "by the stream's sort value and controller" in str(verdict.reason)


async def test_an_interest_in_a_sort_value_takes_its_streams_only(tmp_path: Path) -> None:
    async with open_store(tmp_path, NETWORK, settings=StoreSettings(verifiers=0)) as store:
        await store.wanted.add(Interest("family", "blog"))
        for name, (fields, value) in HEADERS.items():
            init, _ = stream(name)
            assert init.header.sort_value == value
            [verdict] = await store.admit_remote([offer(init)])
            assert (verdict.status == "new") == (fields.get("sep") == "family")
        init, _ = stream("schema")
        await store.admit_local([init.car])
        interest = await store.wanted.complete(StreamId(StreamType.TILE, init.cid))
        assert (interest.sort_key, interest.sort_value) == ("schema", str(SCHEMA))
        init, _ = stream("none")
        await store.admit_local([init.car])
        with pytest.raises(InvalidInterestError, match="has no sort key"):
            await store.wanted.complete(StreamId(StreamType.TILE, init.cid))


async def test_a_capability_for_a_model_opens_no_stream_without_one(tmp_path: Path) -> None:
    header: dict[str, Any] = {"controllers": [ACCOUNT], "sep": "family", "family": "blog"}
    payload = {"header": header, "data": {}}
    init = signed_event(SESSION, payload, capability=capability(MODEL))
    async with open_store(tmp_path, NETWORK, settings=StoreSettings(verifiers=0)) as store:
        [verdict] = await store.admit_local([init.car])
        assert "which is not this stream" in str(verdict.reason)
        header["controllers"] = [controller_of(KEYS[0])]
        own = signed_event(KEYS[0], payload)
        await store.admit_local([own.car])
        change = signed_event(
            SESSION, {"id": own.cid, "prev": own.cid, "data": []}, capability=capability(MODEL)
        )
        [verdict] = await store.admit_local([change.car])
        assert verdict.status == "refused"
    assert parse_event(own.car).stream_id().type == StreamType.TILE


async def test_init_events_are_found_by_sort_key_and_by_what_their_cars_have(
    tmp_path: Path,
) -> None:
    async with open_store(tmp_path, NETWORK, settings=StoreSettings(verifiers=0)) as store:
        first, change = stream("with a model")
        second, _ = stream("family")
        await store.admit_local([first.car, change.car, second.car])
        for marker, sought in ((b"", [first, second]), (MODEL.to_bytes(), [first]), (b"?!", [])):
            rows = await store.reader.sort_key("family", marker, 0, store.head, 10, 10_000)
            assert [row.event_cid for row in rows] == [event.cid for event in sought]
