"""Bad input: each is answered with the right code and {message}, and changes nothing."""

import gzip
from typing import Any

import msgspec
import pytest
from api_samples import ABSENT, INIT, MODEL, Api, Events, admit
from support import vectors
from support.forging import forged

from recon_node.ceramic import StreamId, StreamType, parse_event
from recon_node.ipld import multibase
from recon_node.store import Store

REFUSALS: list[list[Any]] = vectors.load(
    "api_refusals",
    absent=ABSENT,
    nowhere=StreamId(StreamType.MODEL_INSTANCE, ABSENT),
    event=INIT.cid,
    stream=INIT.stream_id(),
    other_type=StreamId(2, INIT.cid),
    model=MODEL,
)
"""Requests that are refused: method, path, status, words of the message, and the body if any."""
LARGE: list[tuple[str, str, int, str, bytes]] = [
    ("POST", "/ceramic/events", 400, "not JSON", b"\xff\xff"),
    ("POST", "/ceramic/events", 400, "nested too deeply", b"[" * 100_000),
    ("POST", "/ceramic/interests", 413, "at most 65,536 are", b'{"sep": "%s"}' % (b"k" * 70_000)),
    ("POST", f"/ceramic/interests/model/m{'A' * 4000}", 400, "too many for base36", b""),
    ("GET", f"/ceramic/search?q={'x' * 501}", 400, "long", b""),
]


@pytest.mark.parametrize("path", ["/ceramic/events", "/ceramic/interests", "/api/v0/requests"])
@pytest.mark.parametrize("coding", ["gzip", "GZip, identity", "br", "x-unknown", "\u00e9" * 100])
async def test_a_body_in_a_content_coding_is_refused_with_what_to_do(api, filled, path, coding):
    """RFC 9110, sections 15.5.16 and 12.5.3. It was taken for JSON, and answered 400."""
    body = gzip.compress(msgspec.json.encode({"data": filled[0]["car"]}))
    headers = [(b"Content-Encoding", coding.encode("latin-1"))]
    answer = await api.post(path, content=body, headers=headers)
    assert answer.status_code == 415
    assert answer.headers["accept-encoding"] == "identity"
    assert "without that header" in answer.json()["message"]


async def test_identity_is_not_content_coding(api: Api, filled: Events) -> None:
    headers = {"Content-Encoding": " Identity"}
    answer = await api.post("/ceramic/events", json={"data": filled[0]["car"]}, headers=headers)
    assert answer.status_code == 204


async def test_bad_requests_are_refused_and_change_nothing(api, filled, store):
    await admit(store, INIT)
    event = multibase.decode(filled[0]["car"])
    damaged = multibase.encode(event[:-1] + bytes([event[-1] ^ 1]))
    badly_signed = multibase.encode(forged(parse_event(event), bytes(64)).car)
    requests = [
        *((*refusal[:4], "".join(refusal[4:]).encode()) for refusal in REFUSALS),
        *LARGE,
        ("POST", "/ceramic/events", 400, "CID", f'{{"data": "{damaged}"}}'.encode()),
        ("POST", "/ceramic/events", 400, "signature", f'{{"data": "{badly_signed}"}}'.encode()),
    ]
    before = state(store)
    for method, path, status, words, body in requests:
        answer = await api.request(method, path, content=body)
        request = (method, path, body[:99])
        assert answer.status_code == status, (request, answer.text)
        assert answer.headers["content-type"] == "application/json"
        assert set(answer.json()) == {"message"}
        assert words in answer.json()["message"], (request, answer.text)
        assert "Traceback" not in answer.json()["message"]
        assert state(store) == before, request


def state(store: Store) -> tuple[Any, ...]:
    return store.head, len(store.keys), store.keys.summarize().hash, store.wanted.all


async def test_a_wrong_method_is_answered_with_the_right_ones(api: Api) -> None:
    answer = await api.patch("/ceramic/peers")
    assert answer.status_code == 405
    assert {"GET", "POST"} <= set(answer.headers["allow"].split(", "))


async def test_requests_that_ceramic_one_has_ignore_what_they_do_not_know(api: Api) -> None:
    for path in ("/ceramic/feed/events?limt=5", "/ceramic/experimental/interests?x=1", "/?v=1"):
        assert (await api.get(path)).status_code == 200
