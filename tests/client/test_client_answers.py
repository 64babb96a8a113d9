"""What a server answers may be anything: the client reads it, or raises a `ClientError`."""

from inspect import isawaitable
from operator import methodcaller
from typing import Any, NamedTuple

import httpx
import pytest
from client_samples import KEY, POST
from support import vectors
from support.odd_answers import variants

from recon_node.ceramic import METAMODEL
from recon_node.ceramic.builder import data_event, init_event
from recon_node.client import AsyncCeramic, Ceramic, ClientError, NodeError, NotANodeError
from recon_node.ipld import multibase

Answers = dict[str, Any]

MODEL_EVENT = init_event(KEY.private, METAMODEL, POST.to_json())
MODEL = MODEL_EVENT.stream_id()
INIT = init_event(KEY.private, MODEL, {"title": "a"}, unique=b"u")
DATA = data_event(KEY.private, INIT, [INIT.cid], [])
NAMES = {
    "did": KEY.did,
    "metamodel": METAMODEL,
    "model": MODEL,
    "post": INIT.stream_id(),
    "reply": init_event(KEY.private, MODEL, {"title": "b"}, unique=b"v").stream_id(),
    "init": INIT.cid,
    "data": DATA.cid,
    "model_cid": MODEL.cid,
    "model_car": multibase.encode(MODEL_EVENT.car),
    "init_car": multibase.encode(INIT.car),
    "data_car": multibase.encode(DATA.car),
}


CASES = vectors.load("client_answers", **NAMES)
"""Operations: their arguments, and what they are answered by path: only what they read of it."""

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


def operation(name: str) -> tuple[methodcaller, Answers]:
    """An operation of a client, and what it is answered."""
    return methodcaller(name, *CASES[name]["arguments"]), CASES[name]["answers"]


async def outcome(call: methodcaller, client: Ceramic | AsyncCeramic) -> Any:
    """What an operation returns, or its error; any other error fails the test."""
    try:
        result = call(client)
        return (await result) if isawaitable(result) else result
    except ClientError as error:
        return Failure(type(error), str(error))


@pytest.mark.parametrize("name", CASES)
async def test_an_answer_is_read_or_is_an_error_of_the_client(name: str) -> None:
    call, answers = operation(name)
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


@pytest.mark.parametrize(("name", "answer"), vectors.load("no_answers_of_nodes", **NAMES))
async def test_what_no_node_answers_is_named_as_such(name: str, answer: Any) -> None:
    call, answers = operation(name)
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
    transport = httpx.MockTransport(Server(CASES["read"]["answers"]))
    with Ceramic("node", transport=transport) as ceramic, pytest.raises(KeyError):
        ceramic.read(NAMES["post"])
