"""What a server answers may be anything: the client reads it, or raises a `ClientError`."""

from collections.abc import Callable
from inspect import isawaitable
from typing import Any, NamedTuple

import httpx
import pytest
from client_samples import KEY, POST

from recon_node.ceramic import METAMODEL, StreamId
from recon_node.ceramic.builder import data_event, init_event
from recon_node.client import AsyncCeramic, Ceramic, ClientError, NodeError, NotANodeError
from recon_node.ipld import multibase
from tests.support.odd_answers import variants

Call = Callable[[Any], Any]
Answers = dict[str, Any]

MODEL_EVENT = init_event(KEY.private, METAMODEL, POST.to_json())
MODEL = MODEL_EVENT.stream_id()
INIT = init_event(KEY.private, MODEL, {"title": "a"}, unique=b"u")
DATA = data_event(KEY.private, INIT, [INIT.cid], [])
POST_ID = INIT.stream_id()
INIT_TEXT = multibase.encode(INIT.car)
REPLY = init_event(KEY.private, MODEL, {"title": "b"}, unique=b"v").stream_id()

LISTED = {"id": str(POST_ID), "controller": KEY.did, "events": 1}
ENTRY = {"id": str(INIT.cid), "position": 1, "kind": "init", "init": str(INIT.cid)}
ENTRY |= {"deliveredAt": 1000, "fault": None, "stream": str(POST_ID), "model": str(MODEL)}
MESSAGE = {"id": str(POST_ID), "author": KEY.did, "model": str(MODEL), "timestamp": 1.5}
TIME = {"state": "anchored", "time": 1, "time_event": str(INIT.cid), "chain_id": "eip155:1"}
INTEREST = {"sep": "model", "sepValue": str(MODEL), "streamId": str(POST_ID), "configured": True}


def _stream(stream: StreamId, *events: Any) -> Answers:
    """What a node answers about a stream."""
    listed = [{"data": multibase.encode(event.car)} for event in events]
    by_model = METAMODEL if stream == MODEL else MODEL
    path = f"/ceramic/experimental/events/model/{by_model}?streamId={stream}"
    return {
        f"/ceramic/events/{stream.cid}": listed[0],
        path: {"events": listed, "resumeOffset": len(listed), "isComplete": True},
    }


CASES: dict[str, tuple[Call, Answers]] = {
    "version": (lambda node: node.version(), {"/ceramic/version": {"version": "1"}}),
    "event": (
        lambda node: node.event(INIT.cid),
        {f"/ceramic/events/{INIT.cid}": {"data": multibase.encode(INIT.car)}},
    ),
    "read": (
        lambda node: node.read(POST_ID),
        _stream(MODEL, MODEL_EVENT) | _stream(POST_ID, INIT, DATA),
    ),
    "feed_token": (
        lambda node: node.feed_token(),
        {"/ceramic/feed/resumeToken": {"resumeToken": "7"}},
    ),
    "feed": (
        lambda node: node.feed(),
        {
            "/ceramic/feed/events": {
                "events": [ENTRY, {"id": str(DATA.cid), "data": multibase.encode(DATA.car)}],
                "resumeToken": "7",
            }
        },
    ),
    "documents": (
        lambda node: node.documents(MODEL),
        {
            "/ceramic/streams": {
                "streams": [{**LISTED, "sort_key": "model", "sort_value": str(MODEL)}],
                "total": 1,
                "next": None,
            }
        },
    ),
    "models": (
        lambda node: node.models(),
        {
            "/ceramic/models": {
                "models": [{**LISTED, "name": "Post", "streams": 1}],
                "total": 1,
                "next": 5,
            }
        },
    ),
    "interests": (
        lambda node: node.interests(),
        {
            "/ceramic/experimental/interests": {
                "interests": [{**INTEREST, "controller": KEY.did, "controllers": "00..3f"}]
            }
        },
    ),
    "anchor": (
        lambda node: node.anchor(INIT.cid),
        {f"/ceramic/anchors/events/{INIT.cid}": {**TIME, "tx_hash": "0x0", "explorer": None}},
    ),
    "request_anchor": (
        lambda node: node.request_anchor(POST_ID),
        {f"/api/v0/streams/{POST_ID}/anchor": {"cid": str(INIT.cid)}},
    ),
    "tangles": (
        lambda node: node.tangles(POST_ID),
        {f"/ceramic/tangles/{POST_ID}": {"tangles": [{"name": "thread", "candidates": 2}]}},
    ),
    "tangle": (
        lambda node: node.tangle(POST_ID, "thread"),
        {
            f"/ceramic/tangles/thread/{POST_ID}": {
                "messages": [
                    {**MESSAGE, "previous": [], "content": {}},
                    {**MESSAGE, "id": str(REPLY), "previous": [str(POST_ID)], "content": None},
                ],
                "tips": [str(REPLY)],
                "excluded": [{"id": str(MODEL), "reason": "it is older than the root"}],
            }
        },
    ),
}
"""Operations, and what they are answered by path: only what they read of it."""

FREE = {"content", "time_event"}
"""What may be any JSON, or be read as nothing."""


class Server:
    """Answers by path, whatever it was told to."""

    def __init__(self, answers: Answers) -> None:
        self.answers = answers

    def __call__(self, request: httpx.Request) -> httpx.Response:
        stream = request.url.params.get("streamId")
        path = request.url.path if stream is None else f"{request.url.path}?streamId={stream}"
        if path not in self.answers:
            return httpx.Response(404)
        return httpx.Response(200, json=self.answers[path])


class Failure(NamedTuple):
    """An error of the client."""

    kind: type[ClientError]
    message: str


async def outcome(call: Call, client: Ceramic | AsyncCeramic) -> Any:
    """What an operation returns, or its error; any other error fails the test."""
    try:
        result = call(client)
        return (await result) if isawaitable(result) else result
    except ClientError as error:
        return Failure(type(error), str(error))


@pytest.mark.parametrize("name", CASES)
async def test_an_answer_is_read_or_is_an_error_of_the_client(name: str) -> None:
    call, answers = CASES[name]
    server = Server(answers)
    transport = httpx.MockTransport(server)
    wrong = set()
    with Ceramic("node", transport=transport) as blocking:
        async with AsyncCeramic("node", transport=transport) as awaited:
            assert call(blocking) == await call(awaited)
            for path, answer in answers.items():
                for where, variant in variants(answer):
                    server.answers = {**answers, path: variant}
                    for client in (blocking, awaited):  # they know no models yet
                        client._session.models.clear()
                    result = await outcome(call, blocking)
                    assert result == await outcome(call, awaited), (where, variant)
                    if isinstance(result, Failure) and issubclass(result.kind, NodeError):
                        wrong.add(where)
    paths = {where for answer in answers.values() for where, _ in variants(answer)}
    assert {where for where in paths - wrong if not FREE & set(where)} == set()


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("documents", {"streams": [{}], "total": 1, "next": None}),
        ("models", {"models": 5, "total": 1, "next": None}),
        ("models", {"models": [], "total": "many", "next": None}),
        ("documents", {"streams": [], "total": 1, "next": 7}),
        ("read", {"data": INIT_TEXT, "events": [], "resumeOffset": 0, "isComplete": False}),
        ("anchor", {**TIME, "time": "yesterday"}),
        ("anchor", {**TIME, "time_event": "not a CID"}),
        ("request_anchor", {"cid": "not a CID"}),
        ("tangle", {"messages": [], "tips": [], "excluded": []}),
        ("tangles", {"tangles": [{"name": "thread"}]}),
        ("feed", {"events": [{**ENTRY, "deliveredAt": 2**70}], "resumeToken": "7"}),
    ],
)
async def test_what_no_node_answers_is_named_as_such(name: str, answer: Any) -> None:
    call, answers = CASES[name]
    transport = httpx.MockTransport(Server(dict.fromkeys(answers, answer)))
    with Ceramic("node", transport=transport) as blocking, pytest.raises(NotANodeError):
        call(blocking)
    async with AsyncCeramic("node", transport=transport) as awaited:
        with pytest.raises(NotANodeError):
            await call(awaited)


def test_a_mistake_of_the_client_is_not_one_of_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyError("a mistake")

    monkeypatch.setattr("recon_node.client.operations.with_whole_history", broken)
    transport = httpx.MockTransport(Server(CASES["read"][1]))
    with Ceramic("node", transport=transport) as ceramic, pytest.raises(KeyError):
        ceramic.read(POST_ID)
