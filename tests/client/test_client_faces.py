"""The blocking client and the one for asyncio and trio are one client with two faces."""

import inspect
import pickle
from typing import Any

import httpx
import pytest
from client_samples import POST

from recon_node.client import (
    AsyncCeramic,
    Ceramic,
    ClientError,
    InvalidContentError,
    MergeConflictError,
    NoKeyError,
    NotANodeError,
    NotFoundError,
    UnreachableError,
)


def methods(client: type) -> dict[str, Any]:
    functions = inspect.getmembers(client, inspect.isfunction)
    return {name: method for name, method in functions if not name.startswith("_")}


def test_both_faces_have_the_same_methods() -> None:
    blocking, awaited = methods(Ceramic), methods(AsyncCeramic)
    assert blocking.keys() - {"download"} == awaited.keys()
    operations = {name for name in awaited if hasattr(awaited[name], "__wrapped__")}
    assert operations >= {"create", "update", "read", "merge", "feed", "register_interest"}
    for name in operations:
        assert inspect.signature(blocking[name]) == inspect.signature(awaited[name])
        assert inspect.iscoroutinefunction(awaited[name])
        assert inspect.getdoc(blocking[name])


def test_help_shows_an_operation_as_a_method() -> None:
    shown = str(inspect.signature(Ceramic.read))
    assert shown == "(self, stream: 'StreamRef', *, at: 'CidRef | None' = None) -> 'Document'"


@pytest.mark.parametrize(
    "error",
    [
        NotFoundError(404, "it is not here"),
        NotANodeError(301),
        UnreachableError("http://node", "refused"),
        InvalidContentError(["one", "two"]),
        NoKeyError(),
    ],
)
def test_errors_can_be_sent_to_another_process(error: ClientError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


async def test_a_conflict_can_be_sent_to_another_process(ceramic: AsyncCeramic) -> None:
    post = await ceramic.create(await ceramic.create_model(POST), {"title": "a"})
    for title in ("b", "c"):
        await ceramic.update(post, {"title": title}, at=post.event)
    with pytest.raises(MergeConflictError) as caught:
        await ceramic.merge(post)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert str(copy) == str(caught.value)
    assert copy.proposal.conflicts == caught.value.proposal.conflicts


def test_any_request_of_the_api() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"path": request.url.path, **dict(request.url.params)})

    with Ceramic("node", token="secret", transport=httpx.MockTransport(answer)) as ceramic:
        listing = ceramic.request("GET", "/ceramic/models", params={"limit": 5})
        assert listing == {"path": "/ceramic/models", "limit": "5"}
        assert repr(ceramic) == "Ceramic('http://node')"
