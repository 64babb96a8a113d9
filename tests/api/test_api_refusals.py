"""Bad input: each is answered with the right code and {message}, and changes nothing."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from support.forging import forged

from recon_node.ceramic import parse_event
from recon_node.ipld import multibase
from recon_node.store import Store

Events = list[dict[str, str]]
EVENTS = "/ceramic/events"
INTERESTS = "/ceramic/interests"
MODEL = "k2t6wz4ylx0qr6v7dvbczbxqy7pqjb0879qx930c1e27gacg3r8sllonqt4xx9"


def state(store: Store) -> tuple[Any, ...]:
    return store.head, len(store.keys), store.keys.summarize().hash, store.wanted.all


async def check_refused(
    api: httpx.AsyncClient, store: Store, request: httpx.Request, status: int, words: str
) -> None:
    before = state(store)
    answer = await api.send(request)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert set(body) == {"message"}
    assert words in body["message"]
    assert "Traceback" not in body["message"]
    assert state(store) == before


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "words"),
    [
        ("POST", EVENTS, b"", 400, "the body is empty"),
        ("POST", EVENTS, b"{", 400, "not JSON"),
        ("POST", EVENTS, b"\xff\xfe", 400, "not JSON"),
        ("POST", EVENTS, b"[" * 100_000, 400, "nested too deeply"),
        ("POST", EVENTS, b"[]", 400, "should be a JSON object"),
        ("POST", EVENTS, b"{}", 400, "'data' is missing"),
        ("POST", EVENTS, b'{"data": 7}', 400, "'data' should be text"),
        ("POST", EVENTS, b'{"data": null}', 400, "'data' should be text"),
        ("POST", EVENTS, b'{"data": "\\ud800"}', 400, "half a surrogate pair"),
        ("POST", EVENTS, b'{"data": ""}', 400, "multibase"),
        ("POST", EVENTS, b'{"data": "?"}', 400, "multibase"),
        ("POST", EVENTS, b'{"data": "mAAA=A"}', 400, "multibase"),
        ("POST", EVENTS, b'{"data": "m"}', 400, "CAR"),
        ("POST", EVENTS, b'{"data": "mAAAA"}', 400, "CAR"),
        ("PUT", EVENTS, b"{}", 405, "/ceramic/events does not take PUT"),
        ("GET", EVENTS, b"", 405, "does not take GET"),
        ("DELETE", "/ceramic/peers", b"", 405, "does not take DELETE"),
        ("GET", "/nowhere", b"", 404, "no such path: /nowhere"),
        ("POST", "/", b"", 405, "/ does not take POST"),
        ("GET", "/ceramic", b"", 404, "no such path"),
        ("POST", "/ceramic/events/", b"{}", 404, "no such path: /ceramic/events/"),
        ("GET", "/ceramic/events/xyz", b"", 400, "Invalid Cid"),
        ("GET", "/ceramic/events/bagcq", b"", 400, "Invalid Cid"),
        ("GET", "/ceramic/events/%00", b"", 400, "Invalid Cid"),
        ("GET", "/ceramic/feed/events?limit=-1", b"", 400, "limit should be 0 or more"),
        ("GET", "/ceramic/feed/events?limit=ten", b"", 400, "limit should be an integer"),
        ("GET", "/ceramic/feed/events?limit=10001&includeData=full", b"", 400, "at most 10000"),
        ("GET", "/ceramic/feed/events?includeData=some", b"", 400, "'none' or 'full'"),
        ("GET", "/ceramic/feed/events?wait=-1", b"", 400, "wait should be"),
        ("GET", "/ceramic/feed/events?wait=nan", b"", 400, "wait should be"),
        ("GET", "/ceramic/feed/head?after=-1", b"", 400, "after should be 0 or more"),
        ("POST", "/ceramic/peers", b"", 400, "give the peer's multiaddrs"),
        ("POST", "/ceramic/peers?addresses=", b"", 400, "give the peer's multiaddrs"),
        (
            "POST",
            "/ceramic/peers?addresses=/ip4/127.0.0.1/tcp/1",
            b"",
            503,
            "without a network side",
        ),
        ("POST", INTERESTS, b'{"sep": "model"}', 400, "'sepValue' is missing"),
        ("POST", f"{INTERESTS}/model/{MODEL[1:]}", b"", 400, "multibase"),
        ("POST", f"{INTERESTS}/model/m", b"", 400, "cannot be empty"),
        ("POST", f"{INTERESTS}/model/m{'A' * 4000}", b"", 400, "too many for base36"),
        ("POST", f"{INTERESTS}/model/{MODEL}?controller=", b"", 400, "cannot be empty"),
        (
            "POST",
            f"{INTERESTS}/model/{MODEL}?streamId={MODEL}",
            b"",
            400,
            "controller is required if stream_id is specified",
        ),
        (
            "POST",
            f"{INTERESTS}/model/{MODEL}?controller=did:key:z6&streamId=mAAAA",
            b"",
            400,
            "StreamID",
        ),
    ],
)
async def test_bad_requests(
    api: httpx.AsyncClient,
    filled: Events,
    store: Store,
    method: str,
    path: str,
    body: bytes,
    status: int,
    words: str,
) -> None:
    request = api.build_request(method, path, content=body)
    await check_refused(api, store, request, status, words)


async def test_a_block_that_does_not_match_its_cid(
    api: httpx.AsyncClient, sample: Events, store: Store
) -> None:
    data = bytearray(multibase.decode(sample[0]["car"]))
    data[-1] ^= 1
    request = api.build_request("POST", EVENTS, json={"data": multibase.encode(bytes(data))})
    await check_refused(api, store, request, 400, "")


async def test_a_wrong_signature(api: httpx.AsyncClient, sample: Events, store: Store) -> None:
    """Every block matches its CID."""
    event = forged(parse_event(multibase.decode(sample[0]["car"])), bytes(64))
    request = api.build_request("POST", EVENTS, json={"data": multibase.encode(event.car)})
    await check_refused(api, store, request, 400, "signature")


async def test_a_wrong_method_is_told_the_right_ones(api: httpx.AsyncClient) -> None:
    answer = await api.patch("/ceramic/peers")
    assert answer.status_code == 405
    assert {"GET", "POST"} <= set(answer.headers["allow"].split(", "))


async def test_a_body_beyond_the_limit(api: httpx.AsyncClient, store: Store) -> None:
    body = json.dumps({"data": "m" + "A" * (5 << 20)})
    request = api.build_request("POST", EVENTS, content=body)
    await check_refused(api, store, request, 413, "longer than 4194304 bytes")
