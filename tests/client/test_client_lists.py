"""What a node has and wants, and what its feed says of streams."""

import pickle
import warnings
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import httpx
import pytest
import trio
from client_samples import KEY, POST

from recon_node.api.app import create_app
from recon_node.api.endpoint import Services
from recon_node.api.settings import Limits
from recon_node.ceramic import METAMODEL, EventKind
from recon_node.client import (
    AsyncCeramic,
    Document,
    FirstInterestWarning,
    Interest,
    InvalidArgumentError,
    Key,
    ListedDocument,
    ListedModel,
    ModelDefinition,
    NodeError,
    NotANodeError,
    NotFoundError,
    OutsideInterestsWarning,
    Relation,
    StreamId,
)
from recon_node.store import Store
from recon_node.store.reading import stream_lists

OTHER = Key.from_seed(bytes([1]) * 32)
KEYS = (KEY, OTHER)


def client_of(store: Store, **limits: int) -> AsyncCeramic:
    app = create_app(Services(store=store, limits=Limits(**limits)))
    transport = httpx.ASGITransport(app)
    return AsyncCeramic("node", key=KEY, transport=transport)


@pytest.mark.parametrize("with_events", [True, False])
async def test_the_feed_says_of_which_stream_an_event_is(store: Store, with_events: bool) -> None:
    async with client_of(store) as ceramic:
        model = await ceramic.create_model(POST)
        post = await ceramic.create(model, {"title": "a"})
        await ceramic.update(post, {"title": "b"})
        page = await ceramic.feed(with_events=with_events)
    rows = [(e.kind, e.init, e.stream, e.model, e.controller) for e in page.entries]
    assert rows == [
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
        assert [entry.id for entry in (*first.entries, *last.entries)] == [
            post.id for post in (other, *reversed(posts))
        ]
        assert (first.total, last.total, last.next) == (4, 4, None)
        assert last.entries == (ListedDocument(posts[0].id, KEY.did, model.id, 2),)
        [only] = (await ceramic.documents(model, controller=OTHER.did)).entries
        assert only.id == other.id
        [listed] = (await ceramic.models()).entries
        assert listed == ListedModel(model.id, KEY.did, "Post", 4, 5)


TEXT = {"type": "string"}
FIELDS = {"post": TEXT, "text": TEXT, "who": TEXT, "stars": {"type": "integer"}}
COMMENT = ModelDefinition(
    name="Comment",
    schema={"properties": FIELDS},
    relations={"post": Relation.document(), "who": Relation.account()},
)
LIKE = replace(COMMENT, name="Like", account_relation="set", set_fields=["post"])


async def found_by(
    ceramic: AsyncCeramic, model: Document, limit: int, **where: Document | str
) -> list[StreamId]:
    """All documents that are listed, page by page."""
    ids: list[StreamId] = []
    after: int | None = None
    while True:
        page = await ceramic.documents(model, where=where, after=after, limit=limit)
        assert len(page.entries) <= limit
        assert page.entries or page.next is None
        ids += [entry.id for entry in page.entries]
        if (after := page.next) is None:
            return ids


async def test_documents_by_what_they_relate_to(store, monkeypatch):
    """Each page looks at a few of them only; what counts is the content at the tip."""
    monkeypatch.setattr(stream_lists, "_MAX_SCANNED", 3)
    async with client_of(store) as ceramic:
        post = await ceramic.create(await ceramic.create_model(POST), {"title": "a"})
        other = await ceramic.create(post.model or "", {"title": "b"})
        comments, likes = [await ceramic.create_model(model) for model in (COMMENT, LIKE)]
        about, of = {"post": str(post.id)}, {"post": str(other.id)}
        made = [await ceramic.create(comments, content) for content in (about, of) * 4]
        made += [
            await ceramic.create(comments, content, key=OTHER)
            for content in ({**about, "who": KEY.did}, {"text": str(post.id)}, {"stars": 1}, None)
        ]
        await ceramic.update(made[0], of)
        await ceramic.update(made[1], about)
        await ceramic.update(made[2], patch=[{"op": "move", "from": "/post", "path": "/text"}])
        await ceramic.update(made[-1], about, key=OTHER)
        both = [
            await ceramic.create(likes, content, key=key) for content in (about, of) for key in KEYS
        ]
        contents = {
            document.id: (await ceramic.read(document)).content or {} for document in (*made, *both)
        }

        def right(documents: list[Document], **where: str) -> list[StreamId]:
            latest = [(document.id, contents[document.id]) for document in reversed(documents)]
            return [id_ for id_, content in latest if where.items() <= content.items()]

        for limit in (1, 2, 100):
            for wanted in (post, other):
                text = str(wanted.id)
                assert await found_by(ceramic, comments, limit, post=wanted) == right(
                    made, post=text
                )
                assert await found_by(ceramic, likes, limit, post=text) == right(both, post=text)
            assert await found_by(ceramic, comments, limit, who=KEY.did) == [made[8].id]
            assert await found_by(ceramic, comments, limit, who=KEY.did, post=other) == []
        [mine] = (
            await ceramic.documents(comments, controller=OTHER.did, where={"who": KEY.did})
        ).entries
        assert mine.id == made[8].id
        with pytest.raises(InvalidArgumentError, match="fields are compared with text"):
            await ceramic.documents(comments, where={"stars": 1})  # type: ignore[dict-item]


async def test_documents_that_their_author_has_hidden(store: Store) -> None:
    async with client_of(store) as ceramic:
        model = await ceramic.create_model(POST)
        shown, hidden, born = [
            await ceramic.create(model, {"title": "a"}, should_index=should_index)
            for should_index in (True, None, False)
        ]
        await ceramic.update(hidden, should_index=False)

        async def listed(**wanted: Any) -> list[StreamId]:
            return [entry.id for entry in (await ceramic.documents(model, **wanted)).entries]

        assert await listed() == [born.id, hidden.id, shown.id]
        assert await listed(indexed=True) == [shown.id]
        assert await listed(indexed=True, where={"title": "a"}) == [shown.id]
        await ceramic.update(born, should_index=True)
        assert await listed(indexed=True) == [born.id, shown.id]


async def test_what_is_wrong_with_where(store: Store) -> None:
    async with client_of(store) as ceramic:
        model = str((await ceramic.create_model(POST)).id)
        for where, words in (
            (["post"], "'post' is not of the form FIELD=TEXT"),
            (["=a"], "'=a' is not of the form"),
            (["a="], "'a=' is not of the form"),
            (["a=b", "a=c"], "up to 4 fields, each once"),
            ([f"{name}=b" for name in "abcde"], "up to 4 fields"),
        ):
            params = {"model": model, "where": where}
            with pytest.raises(NodeError, match=words):
                await ceramic.request("GET", "/ceramic/streams", params=params)
        with pytest.raises(NodeError, match="give their `model`"):
            await ceramic.request("GET", "/ceramic/streams", params={"where": ["a=b"]})


async def test_a_document_that_cannot_be_computed_is_left_out(store: Store) -> None:
    """A stranger's cannot keep others from being listed."""
    async with client_of(store, stream_bytes=30_000) as ceramic:
        comments = await ceramic.create_model(COMMENT)
        one = await ceramic.create(comments, {"who": KEY.did})
        for size in (40_000, 100_000):
            text = "x" * size
            await ceramic.create(comments, {"who": KEY.did, "text": text}, key=OTHER)
        page = await ceramic.documents(comments, where={"who": KEY.did})
        assert [entry.id for entry in page.entries] == [one.id]


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


async def test_a_writer_outside_of_the_interests_is_warned_once_for_each_model(store):
    async with client_of(store) as ceramic:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            model = await ceramic.create_model(POST)  # a node without interests wants everything
            assert caught == []
            await ceramic.register_interest(METAMODEL)
            other = await ceramic.create_model({**POST.to_json(), "name": "Other"})
            assert [warning.category for warning in caught] == [FirstInterestWarning]
            assert caught[0].filename == __file__
            caught.clear()
            post = await ceramic.create(model, {"title": "a"})
            await ceramic.update(post, {"title": "b"})
            assert [warning.category for warning in caught] == [OutsideInterestsWarning]
            assert f"no interest that covers model={model.id}: it keeps the event" in str(
                caught[0].message
            )
            await ceramic.create(other, {"title": "a"})
            assert len(caught) == 2
            await ceramic.register_interest(other)
            await ceramic.create(other, {"title": "b"})
            assert len(caught) == 2


async def test_only_the_first_interest_narrows_what_is_synced(store: Store) -> None:
    async with client_of(store) as ceramic:
        model = await ceramic.create_model(POST)
        for _ in range(2):
            with pytest.warns(FirstInterestWarning, match="synced everything on its network until"):
                await ceramic.register_interest(METAMODEL)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                await ceramic.register_interest(METAMODEL)
                await ceramic.register_interest(model)
            await ceramic.remove_interest(model)
            await ceramic.remove_interest(METAMODEL)


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
