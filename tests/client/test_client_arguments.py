"""What callers pass by mistake: an error that says so, and nothing is sent."""

import math
import re
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count
from typing import Any, cast

import httpx
import pytest
from client_samples import KEY, OWN_NODE, POST, PROFILE, VOTE

from recon_node.ceramic.builder import data_event
from recon_node.client import (
    AsyncCeramic,
    Ceramic,
    ClientError,
    Event,
    InvalidArgumentError,
    InvalidContentError,
    MergeConflictError,
    ModelDefinition,
    NodeError,
)
from recon_node.store import Store

CYCLE: dict[str, Any] = {}
CYCLE["a"] = [CYCLE]
DEEP: Any = []
for _ in range(100_000):
    DEEP = [DEEP]


@pytest.mark.parametrize("client", [Ceramic, AsyncCeramic])
@pytest.mark.parametrize("proxy", ["ftp://127.0.0.1:9", "http://127.0.0.1:port"])
def test_a_proxy_that_cannot_be_used(monkeypatch, client, proxy) -> None:
    monkeypatch.setenv("ALL_PROXY", proxy)
    with pytest.raises(ClientError, match="ALL_PROXY cannot be used: set it to a URL"):
        client("http://127.0.0.1:5101")


@OWN_NODE
async def test_content_that_is_not_json(ceramic: AsyncCeramic, store: Store) -> None:
    model = await ceramic.create_model(POST)
    post = await ceramic.create(model, {"title": "a"})
    before = len(store.keys)
    content: Any
    for content, reason in (
        (CYCLE, "what is at /a/0 contains itself"),
        ({"a": DEEP}, "nested too deeply"),
        ({"a": [1, math.nan]}, "what is at /a/1 is nan, which JSON does not have"),
        ({"a": {"b/c": {1, 2}}}, "what is at /a/b~1c is of the type set: not JSON"),
        ({"a": {1: 2}}, "what is at /a has the key 1, which is not text"),
        ({"a": 2**64}, "what is at /a is an integer of more than 64 bits"),
        ({"a": ["\ud800"]}, "what is at /a/0 has half a surrogate pair: not text"),
        ({"a": {"\udfff": 2}}, r"what is at /a has the key '\udfff', which is not text"),
    ):
        for call in (
            ceramic.create(model, content),
            ceramic.update(post, content),
            ceramic.update(post, patch=[{"op": "add", "path": "/title", "value": content}]),
            ceramic.merge(post, content),
            ceramic.create_model(content),
        ):
            with pytest.raises(InvalidContentError) as caught:
                await call
            message = str(caught.value)
            assert reason in message or reason.replace("/a", "/value/a", 1) in message
    assert len(store.keys) == before


@OWN_NODE
async def test_a_model_that_could_not_be_used_is_not_created(ceramic, store):
    schema: Any
    for schema, reason in (
        ({"patternProperties": {"(?=a)": {}}}, "look-around in its 'patternProperties'"),
        ({"properties": {"a": {"pattern": "("}}}, "at /properties/a/pattern"),
        ({"properties": {"a": {"$ref": "https://e.org/a"}}}, "refers to 'https://e.org/a'"),
        ({"properties": {"a": {"$dynamicRef": "#a"}}}, "refers to '#a', which is not in it"),
        (
            {"properties": {"a": {"$dynamicRef": "#a"}, "b": {"$id": "https://e.org/b"}}},
            "'$dynamicRef' in it is not supported",
        ),
        ({"properties": {}, "required": ["a"]}, "it contradicts itself"),
        ({"type": "string"}, "it contradicts itself"),
    ):
        with pytest.raises(InvalidContentError, match=re.escape(reason)):
            await ceramic.create_model(ModelDefinition(name="Post", schema=schema))
    assert len(store.keys) == 0


CALLS: list[tuple[Callable[[AsyncCeramic, Any], Awaitable[object]], str]] = [
    (lambda c, d: c.read("hello"), "StreamID"),
    (lambda c, d: c.read(5), "5 is not a StreamID, nor a document"),
    (lambda c, d: c.read(d, at="x"), "'x' is not a CID"),
    (lambda c, d: c.update(d, {}, at=5), "5 is not a CID"),
    (lambda c, d: c.update(d), "give what changes"),
    (lambda c, d: c.update(d, "abc"), "the content is a JSON object, not 'abc'"),
    (lambda c, d: c.update(d, patch={"op": "add"}), "a JSON Patch is a list of operations"),
    (lambda c, d: c.update(d, patch="[]"), "a JSON Patch is a list of operations, not '\\[\\]'"),
    (lambda c, d: c.update(d, patch=[1]), "an operation of a JSON Patch is a JSON object"),
    (lambda c, d: c.update(d, {}, patch=[]), "not both"),
    (lambda c, d: c.create(d.model, [("title", "x")]), "is a JSON object, not \\[\\("),
    (lambda c, d: c.create(d.model, {}, key="my.key"), "Key.load"),
    (lambda c, d: c.merge(d, "abc"), "the content is a JSON object"),
    (lambda c, d: c.merge(d, prefer="x"), "'x' is not a CID"),
    (lambda c, d: c.register_interest(), "either a model or a sort value"),
    (lambda c, d: c.remove_interest(), "either a model or a sort value"),
    (lambda c, d: c.register_interest("foo"), "StreamID"),
    (
        lambda c, d: c.create_model(ModelDefinition(name="x", schema=cast(Any, []))),
        "the schema of a model is a JSON object, not \\[\\]",
    ),
    (lambda c, d: c.documents(d.model, where={"n": 5}), "`where`: 'n' cannot be 5: fields are"),
    (lambda c, d: c.documents(d.model, where="n=5"), "names fields .*: not 'n=5'"),
    (lambda c, d: c.documents(d.model, where={"a=b": "c"}), "'a=b' is not the name of a field"),
    (lambda c, d: c.tangle(d, "\ud800"), "'\\?' is not text"),
]


@OWN_NODE
async def test_calls_that_cannot_mean_anything(ceramic: AsyncCeramic, store: Store) -> None:
    post = await ceramic.create(await ceramic.create_model(POST), {"title": "a"})
    before = len(store.keys)
    for call, reason in CALLS:
        with pytest.raises(InvalidArgumentError, match=reason) as caught:
            await call(ceramic, post)
        assert isinstance(caught.value, ClientError)
        assert isinstance(caught.value, ValueError)
    assert len(store.keys) == before


async def test_streams_and_events_are_named_in_several_ways(ceramic: AsyncCeramic) -> None:
    post = await ceramic.create(await ceramic.create_model(POST), {"title": "a"})
    later = await ceramic.update(post, {"title": "b"})
    assert (await ceramic.read(later, at=str(post.event))).content == {"title": "a"}
    assert (await ceramic.event(str(later.event))).cid == later.event
    branch = await ceramic.update(later, {"title": "c"}, at=str(post.event))
    merged = await ceramic.merge(post, prefer=str(branch.event))
    assert merged.content == {"title": "c"}
    lists = await ceramic.update(merged, {"tags": ("x", "y")})
    assert (await ceramic.read(post)).content == lists.content == {"tags": ["x", "y"]}


async def test_a_document_with_a_place_of_its_own_is_sent_whole_or_not_at_all(ceramic, store):
    profiles, votes = await ceramic.create_model(PROFILE), await ceramic.create_model(VOTE)
    before = len(store.keys)
    for content in ({}, {"yes": True}, None):
        with pytest.raises(InvalidContentError, match="the field 'post' is missing"):
            await ceramic.create(votes, content)
    with pytest.raises(InvalidContentError, match="should hold the StreamID of a document"):
        await ceramic.create(votes, {"post": "no StreamID"})
    with pytest.raises(InvalidContentError):
        await ceramic.create(profiles, {"name": 5})
    for model in (profiles, votes):
        for more in ({"unique": b"u"}, {"context": profiles}):
            with pytest.raises(InvalidArgumentError, match="not for models of the account"):
                await ceramic.create(model, {"name": "a"}, **more)
    assert len(store.keys) == before
    ada = await ceramic.create(profiles, {"name": "Ada"})
    with pytest.raises(InvalidContentError):
        await ceramic.create(profiles, {"name": 5})
    assert await ceramic.read(ada) == ada


@pytest.fixture
def four_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An event merges up to four branches, not 256."""
    monkeypatch.setattr("recon_node.streams.merging.MAX_PREVS", 4)


@pytest.mark.usefixtures("four_at_once")
async def test_a_preferred_tip_wins_however_many_there_are(ceramic, store):
    post = await ceramic.create(await ceramic.create_model(POST), {"title": "a"})
    for number in range(7):
        await ceramic.update(post, {"title": str(number)}, at=post.event)
    tips = (await ceramic.read(post)).open_tips
    assert len(tips) == 7
    before = len(store.keys)
    with pytest.raises(InvalidArgumentError, match=r"is not one of the tips: (\w+, ){6}\w+"):
        await ceramic.merge(post, prefer=post.event)
    assert len(store.keys) == before
    wanted = (await ceramic.read(post, at=tips[-1])).content
    merged = await ceramic.merge(post, prefer=tips[-1])
    assert (merged.content, merged.open_tips) == (wanted, ())
    assert len(store.keys) == before + 2


@pytest.mark.usefixtures("four_at_once")
async def test_a_conflict_in_the_second_of_two_merges_leaves_nothing_half_done(ceramic, store):
    post = await ceramic.create(await ceramic.create_model(POST), {"title": "a", "stars": 0})
    (init,) = await ceramic.events(post)

    def branch(title: str, number: int) -> Event:
        """One of many branches to the same content."""
        values = (("stars", number), ("stars", 0), ("title", title))
        patch = [{"op": "replace", "path": f"/{name}", "value": value} for name, value in values]
        return data_event(KEY.private, init, [init.cid], patch)

    agreeing = [branch("b", number) for number in range(5)]
    highest = max(event.cid for event in agreeing)
    last = next(event for event in map(partial(branch, "c"), count()) if event.cid > highest)
    await store.admit_local([event.car for event in (*agreeing, last)])
    before = len(store.keys)
    with pytest.raises(MergeConflictError):
        await ceramic.merge(post)
    assert len(store.keys) == before
    assert (await ceramic.merge(post, prefer=last.cid)).content == {"title": "c", "stars": 0}
    assert len(store.keys) == before + 2


async def test_a_proposal_follows_what_was_decided(ceramic: AsyncCeramic) -> None:
    post = await ceramic.create(await ceramic.create_model(POST), {"title": "a"})
    one, two = [await ceramic.update(post, {"title": t}, at=post.event) for t in ("b", "c")]
    for fork in (one, two):
        proposal = await ceramic.propose_merge(post, prefer=fork.event)
        assert (proposal.content, proposal.conflicts) == (fork.content, ())
    proposal = await ceramic.propose_merge(post, {"title": "d"})
    assert (proposal.content, proposal.conflicts) == ({"title": "d"}, ())


ANSWERS = [
    httpx.Response(200, html="<p>"),
    httpx.Response(200, json=[]),
    httpx.Response(301, headers={"location": "http://a"}),
]


@pytest.mark.parametrize("answer", ANSWERS)
def test_an_interest_at_something_that_is_not_a_node(answer: httpx.Response) -> None:
    transport = httpx.MockTransport(lambda request: answer)
    with Ceramic(transport=transport) as ceramic, pytest.raises(NodeError, match="not a Ceramic"):
        ceramic.register_interest(sort_value="a")


@pytest.mark.parametrize("events", [5, [{}], [5], [{"id": "zz", "data": ""}]])
def test_a_feed_that_is_none(events: Any) -> None:
    answer = httpx.Response(200, json={"events": events, "resumeToken": "1"})
    transport = httpx.MockTransport(lambda request: answer)
    with Ceramic(transport=transport) as ceramic, pytest.raises(NodeError, match="not a Ceramic"):
        ceramic.feed()
