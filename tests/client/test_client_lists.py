"""What a node has and wants, and what its feed says of streams."""

from __future__ import annotations

import pickle
import warnings
from contextlib import aclosing

import httpx
import pytest
import trio
from client_samples import KEY, POST

from recon_node.api import Services, create_app
from recon_node.ceramic import METAMODEL, EventKind
from recon_node.client import (
    AsyncCeramic,
    Interest,
    InvalidArgumentError,
    Key,
    ListedDocument,
    ListedModel,
    NodeError,
    NotANodeError,
    NotFoundError,
    OutsideInterestsWarning,
)
from recon_node.store import Store

OTHER = Key.from_seed(bytes([1]) * 32)


def client_of(store: Store) -> AsyncCeramic:
    transport = httpx.ASGITransport(create_app(Services(store=store)))
    return AsyncCeramic("node", key=KEY, transport=transport)


@pytest.mark.parametrize("with_events", [True, False])
async def test_the_feed_says_of_which_stream_an_event_is(store: Store, with_events: bool) -> None:
    async with client_of(store) as ceramic:
        model = await ceramic.create_model(POST)
        post = await ceramic.create(model, {"title": "a"})
        await ceramic.update(post, {"title": "b"})
        page = await ceramic.feed(with_events=with_events)
    found = [(e.kind, e.init, e.stream, e.model, e.controller) for e in page.entries]
    assert found == [
        (EventKind.INIT, model.id.cid, model.id, METAMODEL, KEY.did),
        (EventKind.INIT, post.id.cid, post.id, model.id, KEY.did),
        (EventKind.DATA, post.id.cid, post.id, model.id, KEY.did),
    ]
    assert pickle.loads(pickle.dumps(page)) == page


async def test_documents_and_models_are_listed_page_by_page(store: Store) -> None:
    async with client_of(store) as ceramic:
        model = await ceramic.create_model(POST)
        posts = [await ceramic.create(model, {"title": title}) for title in "abc"]
        other = await ceramic.create(model, {"title": "d"}, key=OTHER)
        await ceramic.update(posts[0], {"title": "e"})
        first = await ceramic.documents(model, limit=3)
        last = await ceramic.documents(str(model.id), after=first.next, limit=3)
        assert [each.id for each in (*first.entries, *last.entries)] == [
            each.id for each in (other, *reversed(posts))
        ]
        assert (first.total, last.total, last.next) == (4, 4, None)
        assert last.entries == (ListedDocument(posts[0].id, KEY.did, model.id, 2),)
        [only] = (await ceramic.documents(model, controller=OTHER.did)).entries
        assert only.id == other.id
        [listed] = (await ceramic.models()).entries
        assert listed == ListedModel(model.id, KEY.did, "Post", 4, 5)


async def test_interests_are_listed_and_removed(store: Store) -> None:
    async with client_of(store) as ceramic:
        model = await ceramic.create_model(POST)
        assert await ceramic.interests() == ()
        await ceramic.register_interest(model)
        await ceramic.register_interest(sort_key="family", sort_value="blog", controller=KEY.did)
        blog = Interest("family", "blog", KEY.did)
        assert set(await ceramic.interests()) == {Interest("model", str(model.id)), blog}
        await ceramic.remove_interest(model)
        assert await ceramic.interests() == (blog,)
        with pytest.raises(NotFoundError, match="this node has no interest"):
            await ceramic.remove_interest(model)
        with pytest.raises(InvalidArgumentError, match="either a model or a sort value"):
            await ceramic.remove_interest()


async def test_who_writes_outside_of_the_interests_is_told_once_for_each_model(
    store: Store,
) -> None:
    async with client_of(store) as ceramic:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("default")
            model = await ceramic.create_model(POST)  # a node without interests wants everything
            assert found == []
            await ceramic.register_interest(METAMODEL)
            other = await ceramic.create_model({**POST.to_json(), "name": "Other"})
            assert found == []
            post = await ceramic.create(model, {"title": "a"})
            await ceramic.update(post, {"title": "b"})
            assert [each.category for each in found] == [OutsideInterestsWarning]
            assert f"no interest that covers model={model.id}: it keeps the event" in str(
                found[0].message
            )
            await ceramic.create(other, {"title": "a"})
            assert len(found) == 2
            await ceramic.register_interest(other)
            await ceramic.create(other, {"title": "b"})
            assert len(found) == 2


async def test_a_ceramic_one_node_has_no_lists() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/ceramic/experimental/interests":
            return httpx.Response(200, json={"interests": [{"data": "z6Mk"}]})
        return httpx.Response(404)

    async with AsyncCeramic("node", transport=httpx.MockTransport(answer)) as ceramic:
        with pytest.raises(NotANodeError):
            await ceramic.interests()
        with pytest.raises(NodeError, match="the node answered 404 Not Found"):
            await ceramic.models()


async def test_a_stream_is_watched(ceramic: AsyncCeramic) -> None:
    model = await ceramic.create_model(POST)
    post = await ceramic.create(model, {"title": "a"})
    with trio.fail_after(30):
        async with aclosing(ceramic.watch(post)) as states, trio.open_nursery() as nursery:
            assert await anext(states) == post

            async def write() -> None:
                await ceramic.create(model, {"title": "of another stream"})
                await ceramic.update(post, {"title": "b"})

            nursery.start_soon(write)
            assert (await anext(states)).content == {"title": "b"}


async def test_a_document_says_what_was_sent(ceramic: AsyncCeramic, store: Store) -> None:
    post = await ceramic.create(await ceramic.create_model(POST), {"title": "a"})
    assert post.sent == (post.event,)
    assert (await ceramic.update(post, {"title": "a"})).sent == ()
    assert (await ceramic.merge(post)).sent == ()
    branches = [await ceramic.update(post, {"title": t}, at=post.event) for t in ("b", "c")]
    assert [branch.sent for branch in branches] == [(branch.event,) for branch in branches]
    merged = await ceramic.merge(post, prefer=branches[0].event)
    assert merged.sent == (merged.event,)
    assert repr(merged).startswith(f"Document('{post.id}', event='{merged.event}', content={{")
