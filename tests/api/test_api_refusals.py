"""Bad input: each is answered with the right code and {message}, and changes nothing."""

import gzip
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from api_samples import ABSENT, INIT, MODEL, Api, Events, admit
from support.forging import forged

from recon_node.ceramic import StreamId, StreamType, parse_event
from recon_node.ipld import multibase
from recon_node.store import Store

BASE36 = "k2t6wz4ylx0qr6v7dvbczbxqy7pqjb0879qx930c1e27gacg3r8sllonqt4xx9"
METAMODEL = "kh4q0ozorrgaq2mezktnrmdwleo1d"
NOWHERE = StreamId(StreamType.MODEL_INSTANCE, ABSENT)
TOKENS = ("", "abc", "1.5", " 1", "1_0", "٣", "9223372036854775808")
VIEWS = ("", "/events", "/picture", "/merge", "/preview", f"/events/{INIT.cid}")

EVENTS: list[tuple[bytes, str]] = [
    (b"", "the body is empty"),
    (b"{", "not JSON"),
    (b"\xff\xfe", "not JSON"),
    (b"[" * 100_000, "nested too deeply"),
    (b"[]", "should be a JSON object"),
    (b"{}", "'data' is missing"),
    (b'{"data": 7}', "'data' should be text"),
    (b'{"data": null}', "'data' should be text"),
    (b'{"data": "\\ud800"}', "half a surrogate pair"),
    (b'{"data": ""}', "multibase"),
    (b'{"data": "?"}', "multibase"),
    (b'{"data": "mAAA=A"}', "multibase"),
    (b'{"data": "m"}', "CAR"),
    (b'{"data": "mAAAA"}', "CAR"),
]
"""Bodies of POST /ceramic/events; all are 400."""
READS: list[tuple[str, int, str]] = [
    ("", 404, "no such path"),
    ("events/xyz", 400, "Invalid Cid"),
    ("events/bagcq", 400, "Invalid Cid"),
    ("events/%00", 400, "Invalid Cid"),
    (f"events/{ABSENT}", 404, f"Event not found : {ABSENT}"),
    (f"events/{ABSENT}/blocks", 404, "Event not found"),
    ("feed/events?limit=-1", 400, "limit should be 0 or more"),
    ("feed/events?limit=ten", 400, "limit should be an integer"),
    ("feed/events?limit=10001&includeData=full", 400, "at most 10000"),
    ("feed/events?includeData=some", 400, "'none' or 'full'"),
    ("feed/events?details=1", 400, "details should be"),
    ("feed/events?wait=-1", 400, "wait should be"),
    ("feed/events?wait=nan", 400, "wait should be"),
    ("feed/events?resumeAt=1000", 410, "belongs to a log that no longer exists"),
    *((f"feed/events?resumeAt={quote(t)}", 400, f"Invalid resume token '{t}'. ") for t in TOKENS),
    ("feed/head?after=-1", 400, "after should be 0 or more"),
    ("feed/position", 400, "time"),
    ("feed/position?time=noon", 400, "time"),
    ("feed/position?time=-1", 400, "time"),
    ("feed/arrow?epoch=another", 410, "the log another no longer exists"),
    ("feed/arrow?after=62", 400, "after is 62, which is past 61"),
    ("feed/arrow?after=5&upto=4", 400, "after is 5, which is past 4"),
    ("feed/arrow?upto=62", 400, "upto is 62, but the feed ends at position 61"),
    ("feed/arrow?after=-1", 400, "after should be 0 or more"),
    ("feed/arrow?after=x", 400, "after should be an integer of at most 64 bits, not 'x'"),
    *(
        (f"feed/arrow?columns={names}", 400, "is not a column; there are position, event_id")
        for names in ("cars", "", "all,car", "car,")
    ),
    ("feed/arrow?controller=", 400, "controller cannot be empty"),
    ("feed/arrow?streamId=", 400, "streamId cannot be empty"),
    ("feed/arrow?streamId=k2", 400, "streamId: "),
    ("feed/arrow?streamId=did:key:z6Mk", 400, "streamId: "),
    ("feed/arrow?controllers=3/2", 400, "controllers: there is no shard 3/2"),
    *((f"streams/nonsense{view}", 400, "Invalid stream ID") for view in VIEWS),
    *((f"streams/{NOWHERE}{view}", 404, "not found") for view in VIEWS),
    *((f"streams/{StreamId(2, INIT.cid)}{view}", 404, str(INIT.stream_id())) for view in VIEWS),
    (f"streams/{ABSENT}", 400, "Invalid stream ID"),
    (f"streams/{ABSENT}/events", 404, "Stream not found"),
    (f"streams/{ABSENT}/picture", 404, "Stream not found"),
    (f"streams/{INIT.stream_id()}/events/{ABSENT}", 404, "no delivered event"),
    ("streams?model=nonsense", 400, "is not a StreamID"),
    ("streams?model=", 400, "model cannot be empty"),
    ("streams?sortKey=family", 400, "give `sortKey` and `sortValue` together"),
    ("streams?sortValue=blog", 400, "give `sortKey` and `sortValue` together"),
    (f"streams?model={MODEL}&sortKey=a&sortValue=b", 400, "not both"),
    ("streams?after=x", 400, "after should be an integer"),
    ("streams?limit=-1", 400, "limit should be 0 or more"),
    ("search?q=", 400, "empty"),
    ("search?q=%20", 400, "empty"),
    (f"search?q={'x' * 501}", 400, "long"),
    ("experimental/interests?peerId=0", 400, "peer"),
    (f"experimental/events/model/{METAMODEL}?offset=-1", 400, "offset should be 0 or more"),
    (f"experimental/events/model/{METAMODEL}?limit=many", 400, "limit should be an integer"),
    (f"experimental/events/model/{METAMODEL}?streamId=k2", 400, "controller is required"),
    (f"dag/{ABSENT}", 503, "DAG"),
    (f"dag/{ABSENT}.car", 503, "DAG"),
    (f"dag/{ABSENT}/replicas", 503, "DAG"),
    ("snapshots/sync", 503, "snapshots"),
]
"""What is asked for below /ceramic."""
OTHERS: list[tuple[str, str, int, str]] = [
    ("GET", "/nowhere", 404, "no such path: /nowhere"),
    ("POST", "/", 405, "/ does not take POST"),
    ("POST", "/ceramic/events/", 404, "no such path: /ceramic/events/"),
    ("PUT", "/ceramic/events", 405, "/ceramic/events does not take PUT"),
    ("GET", "/ceramic/events", 405, "does not take GET"),
    ("DELETE", "/ceramic/peers", 405, "does not take DELETE"),
    ("POST", "/ceramic/peers", 400, "give the peer's multiaddrs"),
    ("POST", "/ceramic/peers?addresses=", 400, "give the peer's multiaddrs"),
    ("POST", "/ceramic/peers?addresses=/ip4/127.0.0.1/tcp/1", 503, "without a network side"),
    ("POST", f"/ceramic/interests/model/{BASE36[1:]}", 400, "multibase"),
    ("POST", "/ceramic/interests/model/m", 400, "cannot be empty"),
    ("POST", f"/ceramic/interests/model/m{'A' * 4000}", 400, "too many for base36"),
    ("POST", "/ceramic/interests/model/zzz", 400, "model of an interest is given by its StreamID"),
    ("POST", f"/ceramic/interests/model/{NOWHERE}", 400, "of a document, not of a model"),
    ("POST", f"/ceramic/interests/model/{BASE36}?controller=", 400, "cannot be empty"),
    ("POST", f"/ceramic/interests/model/{BASE36}?streamId={BASE36}", 400, "controller is required"),
    ("POST", f"/ceramic/interests/model/{BASE36}?controller=d&streamId=mAAAA", 400, "StreamID"),
    ("DELETE", "/ceramic/interests", 400, ""),
    ("DELETE", "/ceramic/interests?sep=model", 400, "'sepValue' is missing"),
]
INTERESTS: list[tuple[bytes, int, str]] = [
    (b'{"sep": "model"}', 400, "'sepValue' is missing"),
    (b'{"sep": "model", "sepValue": "zzz"}', 400, "an interest is given by its StreamID"),
    (b'{"streamId": "%s"}' % str(NOWHERE).encode(), 400, f"controller=DID stream={NOWHERE}"),
    (b'{"sep": "%s"}' % (b"k" * 70_000), 413, "at most 65,536 are read here"),
]
"""Bodies of POST /ceramic/interests."""


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


async def test_identity_is_no_content_coding(api: Api, filled: Events) -> None:
    headers = {"Content-Encoding": " Identity"}
    answer = await api.post("/ceramic/events", json={"data": filled[0]["car"]}, headers=headers)
    assert answer.status_code == 204


async def test_bad_requests_are_refused_and_change_nothing(api, filled, store):
    await admit(store, INIT)
    event = multibase.decode(filled[0]["car"])
    damaged = multibase.encode(event[:-1] + bytes([event[-1] ^ 1]))
    badly_signed = multibase.encode(forged(parse_event(event), bytes(64)).car)
    requests = [
        *(("POST", "/ceramic/events", 400, words, body) for body, words in EVENTS),
        *(("GET", f"/ceramic/{path}", status, words, b"") for path, status, words in READS),
        *((*other, b"") for other in OTHERS),
        *(("POST", "/ceramic/interests", status, words, body) for body, status, words in INTERESTS),
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


async def test_a_wrong_method_is_told_the_right_ones(api: Api) -> None:
    answer = await api.patch("/ceramic/peers")
    assert answer.status_code == 405
    assert {"GET", "POST"} <= set(answer.headers["allow"].split(", "))
