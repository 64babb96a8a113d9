"""Interests: the same ranges of keys, however sort value and stream were written.

The sort value in base58 and base36 is the pair that ceramic-one's own tests use (rust-ceramic,
api/src/tests.rs, register_interest_sort_value_controller).
"""

import json
from typing import Any

import pytest
from api_samples import KEY, Api
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
from recon_node.ceramic.auth.did import controller_of
from recon_node.ceramic.builder import signed_event
from recon_node.ipld import multibase
from recon_node.store import Interest, Store, parse_interest

BASE36 = "k2t6wz4ylx0qr6v7dvbczbxqy7pqjb0879qx930c1e27gacg3r8sllonqt4xx9"
BASE58 = "z3KWHw5Efh2qLou2FEdz3wB8ZvLgURJP94HeijLVurxtF1Ntv6fkg2G"
DID = "did:key:z6MknuhURV1TKy8SU1aDpHkVWDMS7GirNKfpWzZmCHWSvBAk"
STREAM = "k2t6wz4ylx0qs435j9oi1s6469uekyk6qkxfcb21ikm5ag2g1cook14ole90aw"


def ranges(store: Store) -> list[tuple[bytes, bytes]]:
    return [(key_range.lower, key_range.upper) for key_range in store.wanted.ranges]


async def ask(api: Api, method: str, sort_value: str, by_path: bool, **more: str) -> int:
    """The status of a request about an interest in a model, in either of its forms."""
    if by_path:
        path = f"/ceramic/interests/model/{sort_value}"
        return (await api.request(method, path, params=more)).status_code
    named = {"sep": "model", "sepValue": sort_value, **more}
    nulls = dict.fromkeys(("controller", "streamId"))
    form: dict[str, Any] = {"json": nulls | named} if method == "POST" else {"params": named}
    return (await api.request(method, "/ceramic/interests", **form)).status_code


@pytest.mark.parametrize("by_path", [True, False])
async def test_interests_are_added_and_removed_in_any_multibase(api, store, by_path):
    everything, network = ranges(store), store.network
    stream = StreamId.parse(STREAM)
    of_controller: dict[str, str] = {"controller": DID}
    of_stream = of_controller | {"streamId": multibase.encode(stream.to_bytes(), "base64url")}
    for sort_value in (BASE36, BASE58):
        for more, added in (
            (of_stream, stream_range(network, BASE36, DID, stream.cid)),
            (of_controller, controller_range(network, BASE36, DID)),
            ({}, sort_value_range(network, BASE36)),
        ):
            for _ in range(2):  # the second time, it is known already
                assert await ask(api, "POST", sort_value, by_path, **more) == 204
            assert ranges(store) == [added]
        for more, left in (
            ({}, [controller_range(network, BASE36, DID)]),
            (of_controller, [stream_range(network, BASE36, DID, stream.cid)]),
            (of_stream, everything),
        ):
            for status in (204, 404):
                assert await ask(api, "DELETE", sort_value, by_path, **more) == status
                assert ranges(store) == left
    assert await listed(api) == []


async def test_an_event_outside_of_them_is_kept_with_a_warning(api, store, sample):
    """Its stream is named by the interest that would cover it, in a header or in its verdict."""
    answer = await api.post("/ceramic/events", json={"data": sample[0]["car"]})
    assert "recon-warning" not in answer.headers
    await store.wanted.add(Interest("family", "blog"))
    with capture_logs() as logged:
        answer = await api.post("/ceramic/events", json={"data": sample[0]["car"]})
        assert (answer.status_code, answer.content) == (204, b"")
        header = parse_event(multibase.decode(sample[0]["car"])).header
        model = f"model={header.model}"
        assert f"covers {model}: it keeps" in answer.headers["recon-warning"]
        name, value = "fam\nily", "b\n\u20ac"
        named = {"controllers": [controller_of(KEY)], "sep": name, name: value}
        evil = signed_event(KEY, {"header": named, "data": None})
        lines = [{"data": sample[0]["car"]}, {"data": "x"}, {"data": multibase.encode(evil.car)}]
        body = "\n".join(map(json.dumps, lines))
        ndjson = {"content-type": "application/x-ndjson"}
        verdicts = (await api.post("/ceramic/events", content=body, headers=ndjson)).json()
    assert [verdict["status"] for verdict in verdicts] == ["known", "refused", "new"]
    assert verdicts[0]["warning"] == answer.headers["recon-warning"]
    assert "covers fam\\nily=b\\n\\u20ac: it keeps" in verdicts[2]["warning"]
    wanted_by = [line["wanted_by"] for line in logged if "wanted_by" in line]
    assert wanted_by == [model, "fam\\nily=b\\n\\u20ac"]


async def listed(api: Api) -> list[dict[str, Any]]:
    """The interests, as both of their lists have them."""
    interests = (await api.get("/ceramic/experimental/interests")).json()["interests"]
    for interest in interests:
        del interest["data"]
    assert (await api.get("/ceramic/recon")).json()["interests"] == interests
    return list(interests)


async def test_the_stream_id_of_a_document_is_that_stream_alone(api, store, filled):
    inits = [parse_event(multibase.decode(event["car"])) for event in filled]
    init = next(event for event in inits if event.header and event.header.model != METAMODEL)
    stream = StreamId(StreamType.MODEL_INSTANCE, init.cid)
    interest = Interest("model", init.header.sort_value, init.header.controller, stream)

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


async def test_an_interest_in_a_stream_that_is_not_here_is_named_in_full(api, store):
    stream = str(StreamId(StreamType.MODEL_INSTANCE, METAMODEL.cid))
    named = {"sep": "model", "sepValue": BASE36, "controller": DID, "streamId": stream}
    assert (await api.post("/ceramic/interests", json=named)).status_code == 204
    assert len(store.wanted.all) == 1


async def test_configured_interests_stay(api: Api, store: Store) -> None:
    await store.wanted.configure([parse_interest(f"model={BASE36}")])
    await api.post(f"/ceramic/interests/model/{BASE36}")  # and in the log, too
    assert [interest["configured"] for interest in await listed(api)] == [True]
    refused = await api.delete(f"/ceramic/interests/model/{BASE36}")
    assert refused.status_code == 400
    assert "remove it from `interests` there" in refused.json()["message"]
    assert ranges(store) == [sort_value_range(store.network, BASE36)]
