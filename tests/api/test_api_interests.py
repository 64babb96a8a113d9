"""Interests: the same ranges of keys, however sort value and stream were written.

The sort value in base58 and base36 is the pair that ceramic-one's own tests use (rust-ceramic,
api/src/tests.rs, register_interest_sort_value_controller).
"""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from nacl.signing import SigningKey
from structlog.testing import capture_logs

from recon_node.ceramic import (
    METAMODEL,
    StreamId,
    StreamType,
    controller_range,
    parse_event,
    sort_value_range,
    stream_range,
)
from recon_node.ceramic.builder import controller_of, signed_event
from recon_node.ipld import multibase
from recon_node.store import Interest, Store, parse_interest

BASE36 = "k2t6wz4ylx0qr6v7dvbczbxqy7pqjb0879qx930c1e27gacg3r8sllonqt4xx9"
BASE58 = "z3KWHw5Efh2qLou2FEdz3wB8ZvLgURJP94HeijLVurxtF1Ntv6fkg2G"
DID = "did:key:z6MknuhURV1TKy8SU1aDpHkVWDMS7GirNKfpWzZmCHWSvBAk"
STREAM = "k2t6wz4ylx0qs435j9oi1s6469uekyk6qkxfcb21ikm5ag2g1cook14ole90aw"


def ranges(store: Store) -> list[tuple[bytes, bytes]]:
    return [(key_range.lower, key_range.upper) for key_range in store.wanted.ranges]


@pytest.mark.parametrize("sort_value", [BASE36, BASE58])
@pytest.mark.parametrize("by_path", [True, False])
async def test_a_sort_value_in_any_multibase(
    api: httpx.AsyncClient, store: Store, sort_value: str, by_path: bool
) -> None:
    if by_path:
        answer = await api.post(f"/ceramic/interests/model/{sort_value}")
    else:
        answer = await api.post("/ceramic/interests", json={"sep": "model", "sepValue": sort_value})
    assert (answer.status_code, answer.content) == (204, b"")
    assert ranges(store) == [sort_value_range(store.network, BASE36)]


@pytest.mark.parametrize("by_path", [True, False])
async def test_controller_and_stream(api: httpx.AsyncClient, store: Store, by_path: bool) -> None:
    stream = StreamId.parse(STREAM)
    more: dict[str, Any] = {
        "controller": DID,
        "streamId": multibase.encode(stream.to_bytes(), "base64url"),
    }
    if by_path:
        answer = await api.post(f"/ceramic/interests/model/{BASE36}", params=more)
    else:
        body = {"sep": "model", "sepValue": BASE36, **more}
        answer = await api.post("/ceramic/interests", json=body)
    assert answer.status_code == 204
    assert ranges(store) == [stream_range(store.network, BASE36, DID, stream.cid)]


async def test_controller_alone_and_nulls(api: httpx.AsyncClient, store: Store) -> None:
    body = {"sep": "model", "sepValue": BASE36, "controller": DID, "streamId": None}
    for _ in range(2):  # the second time, it is known already
        assert (await api.post("/ceramic/interests", json=body)).status_code == 204
    assert ranges(store) == [controller_range(store.network, BASE36, DID)]
    assert len(store.wanted.all) == 1


async def test_an_event_outside_of_them_is_kept_with_a_warning(
    api: httpx.AsyncClient, store: Store, sample: list[dict[str, str]]
) -> None:
    """Its stream is named by the interest that would cover it, in a header or in its verdict."""
    answer = await api.post("/ceramic/events", json={"data": sample[0]["car"]})
    assert "recon-warning" not in answer.headers
    await store.wanted.add(Interest("family", "blog"))
    with capture_logs() as logged:
        answer = await api.post("/ceramic/events", json={"data": sample[0]["car"]})
        assert (answer.status_code, answer.content) == (204, b"")
        header = parse_event(multibase.decode(sample[0]["car"])).header
        assert header is not None
        model = f"model={header.model}"
        assert f"covers {model}: it keeps" in answer.headers["recon-warning"]
        key, name, value = SigningKey(bytes(32)), "fam\nily", "b\n\u20ac"
        named = {"controllers": [controller_of(key)], "sep": name, name: value}
        evil = signed_event(key, {"header": named, "data": None})
        lines = [{"data": sample[0]["car"]}, {"data": "x"}, {"data": multibase.encode(evil.car)}]
        body = "\n".join(map(json.dumps, lines))
        ndjson = {"content-type": "application/x-ndjson"}
        found = (await api.post("/ceramic/events", content=body, headers=ndjson)).json()
    assert [each["status"] for each in found] == ["known", "refused", "new"]
    assert found[0]["warning"] == answer.headers["recon-warning"]
    assert "covers fam\\nily=b\\n\\u20ac: it keeps" in found[2]["warning"]
    assert [each["wanted_by"] for each in logged if "wanted_by" in each] == [
        model,
        "fam\\nily=b\\n\\u20ac",
    ]


async def listed(api: httpx.AsyncClient) -> list[dict[str, Any]]:
    """The interests, as both of their lists have them."""
    found = (await api.get("/ceramic/experimental/interests")).json()["interests"]
    for each in found:
        del each["data"]
    assert (await api.get("/ceramic/recon")).json()["interests"] == found
    return list(found)


async def test_the_stream_id_of_a_document_is_that_stream_alone(
    api: httpx.AsyncClient, store: Store, filled: list[dict[str, str]]
) -> None:
    inits = [parse_event(multibase.decode(event["car"])) for event in filled]
    init = next(event for event in inits if event.header and event.header.model != METAMODEL)
    assert init.header is not None
    stream = StreamId(StreamType.MODEL_INSTANCE, init.cid)
    interest = Interest("model", init.header.sep_value, init.header.controller, stream)

    as_model = await api.post(f"/ceramic/interests/model/{stream}")
    assert as_model.status_code == 400
    assert "the StreamID of a document, not of a model" in as_model.json()["message"]
    assert store.wanted.all == ()

    answer = await api.post("/ceramic/interests", json={"streamId": str(stream)})
    assert answer.status_code == 204
    assert store.wanted.all == (interest,)
    assert await listed(api) == [
        {
            "sep": "model",
            "sepValue": interest.sort_value,
            "controller": interest.controller,
            "streamId": str(stream),
            "configured": False,
        }
    ]
    gone = await api.delete("/ceramic/interests", params={"streamId": str(stream)})
    assert (gone.status_code, store.wanted.all) == (204, ())


async def test_a_model_that_is_no_stream_id_is_no_dead_end(
    api: httpx.AsyncClient, store: Store
) -> None:
    for answer in (
        await api.post("/ceramic/interests/model/zzz"),
        await api.post("/ceramic/interests", json={"sep": "model", "sepValue": "zzz"}),
    ):
        assert answer.status_code == 400
        assert "the model of an interest is given by its StreamID" in answer.json()["message"]
    assert store.wanted.all == ()


async def test_a_stream_that_is_not_here_is_no_dead_end(
    api: httpx.AsyncClient, store: Store
) -> None:
    stream = str(StreamId(StreamType.MODEL_INSTANCE, METAMODEL.cid))
    answer = await api.post("/ceramic/interests", json={"streamId": stream})
    assert answer.status_code == 400
    assert "does not have the stream" in answer.json()["message"]
    assert f"model=STREAM_ID controller=DID stream={stream}" in answer.json()["message"]
    named = {"sep": "model", "sepValue": BASE36, "controller": DID, "streamId": stream}
    assert (await api.post("/ceramic/interests", json=named)).status_code == 204
    assert len(store.wanted.all) == 1


@pytest.mark.parametrize("by_path", [True, False])
async def test_interests_are_removed(api: httpx.AsyncClient, store: Store, by_path: bool) -> None:
    everything = ranges(store)
    await api.post(f"/ceramic/interests/model/{BASE36}")
    await api.post(f"/ceramic/interests/model/{BASE36}", params={"controller": DID})
    for more in ({}, {"controller": DID}):
        for status in (204, 404):
            if by_path:
                answer = await api.delete(f"/ceramic/interests/model/{BASE58}", params=more)
            else:
                params = {"sep": "model", "sepValue": BASE58, **more}
                answer = await api.delete("/ceramic/interests", params=params)
            assert answer.status_code == status
            assert ranges(store) == (
                everything if more else [controller_range(store.network, BASE36, DID)]
            )
    assert await listed(api) == []


async def test_configured_interests_stay(api: httpx.AsyncClient, store: Store) -> None:
    await store.wanted.configure([parse_interest(f"model={BASE36}")])
    await api.post(f"/ceramic/interests/model/{BASE36}")  # and in the log, too
    assert [each["configured"] for each in await listed(api)] == [True]
    refused = await api.delete(f"/ceramic/interests/model/{BASE36}")
    assert refused.status_code == 400
    assert "remove it from `interests` there" in refused.json()["message"]
    assert ranges(store) == [sort_value_range(store.network, BASE36)]


async def test_what_a_removal_lacks_is_said(api: httpx.AsyncClient) -> None:
    answer = await api.delete("/ceramic/interests", params={"sep": "model"})
    assert (answer.status_code, answer.json()["message"]) == (400, "'sepValue' is missing")
    assert (await api.delete("/ceramic/interests")).status_code == 400


async def test_a_body_that_is_long_is_refused(api: httpx.AsyncClient) -> None:
    body = {"sep": "model", "sepValue": "k" * 70_000}
    answer = await api.post("/ceramic/interests", json=body)
    assert answer.status_code == 413
    assert "at most 65,536 are read here" in answer.json()["message"]
