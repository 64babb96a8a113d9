"""Models, documents, the feed and interests through the client."""

from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
import trio
from client_samples import KEY, OWN_NODE, POST, PROFILE, VOTE
from support.forging import forged
from support.time_events import time_event

from recon_node.api.app import create_app
from recon_node.api.endpoint import Services
from recon_node.api.settings import Limits
from recon_node.ceramic import METAMODEL, StreamType, verify_signature
from recon_node.ceramic.builder import data_event, signed_event
from recon_node.client import (
    AsyncCeramic,
    InvalidContentError,
    Key,
    ModelDefinition,
    NodeError,
    NoKeyError,
    NotFoundError,
    RefusedEventError,
    Relation,
    StreamId,
    View,
)
from recon_node.ipld import dag_cbor
from recon_node.store import Store

KINDS: list[Any] = ["ed25519", "secp256k1", "p256"]


async def test_a_document_from_its_creation_to_its_last_update(ceramic: AsyncCeramic) -> None:
    model = await ceramic.create_model(POST)
    assert (model.id.type, model.model) == (StreamType.MODEL, METAMODEL)
    assert model.content == POST.to_json()
    first = await ceramic.create(model.id, {"title": "a", "tags": ["x", "y"]})
    assert (first.controller, first.model, first.event) == (KEY.did, model.id, first.id.cid)
    assert first.metadata == {"shouldIndex": True}
    second = await ceramic.update(first.id, {"title": "b", "tags": ["y"]})
    event = await ceramic.event(second.event)
    assert event.prevs == (first.event,)
    assert event.data == [
        {"op": "replace", "path": "/title", "value": "b"},
        {"op": "remove", "path": "/tags/0"},
    ]
    patch = [{"op": "add", "path": "/stars", "value": 3}]
    third = await ceramic.update(str(first.id), patch=patch, should_index=False)
    assert third.content == {"title": "b", "tags": ["y"], "stars": 3}
    assert third.metadata == {"shouldIndex": False}
    assert await ceramic.read(first.id) == third
    assert (await ceramic.read(f"ceramic://{first.id}", at=second.event)).content == second.content
    assert (await ceramic.read(first.id, at=first.event)).content == first.content
    events = [event.cid for event in await ceramic.events(first.id)]
    assert events == [first.event, second.event, third.event]
    assert await ceramic.update(first.id, third.content) == third  # nothing to write
    assert len(await ceramic.events(first.id)) == 3


@OWN_NODE
async def test_an_update_of_nearly_everything_sends_the_content(ceramic: AsyncCeramic) -> None:
    model = await ceramic.create_model(POST)
    first = await ceramic.create(model.id, {"title": "a", "tags": [f"x{n}" for n in range(50)]})
    content = {"title": "b", "tags": [f"y{n}" for n in range(50)]}
    second = await ceramic.update(first.id, content)
    event = await ceramic.event(second.event)
    assert event.data == [{"op": "replace", "path": "", "value": content}]
    assert (await ceramic.read(first.id)).content == content
    third = await ceramic.update(first.id, {**content, "title": "c"})
    change = [{"op": "replace", "path": "/title", "value": "c"}]
    assert (await ceramic.event(third.event)).data == change


async def test_documents_with_a_place_of_their_own(ceramic: AsyncCeramic) -> None:
    profiles, votes = await ceramic.create_model(PROFILE), await ceramic.create_model(VOTE)
    empty = await ceramic.create(profiles.id)
    assert empty.content is None
    ada = await ceramic.create(profiles.id, {"name": "Ada"})
    again = await ceramic.create(profiles.id, {"name": "Ada L."})
    assert ada.id == again.id == empty.id
    assert (await ceramic.read(ada.id)).content == {"name": "Ada L."}
    other = await ceramic.create(profiles.id, {"name": "Bob"}, key=Key.from_seed(b"\1" * 32))
    assert other.id != ada.id
    yes = await ceramic.create(votes.id, {"post": str(ada.id), "yes": True})
    no = await ceramic.create(votes.id, {"post": str(ada.id), "yes": False})
    elsewhere = await ceramic.create(votes.id, {"post": str(other.id), "yes": False})
    assert yes.id == no.id != elsewhere.id
    with pytest.raises(InvalidContentError, match="the field 'post' is immutable"):
        await ceramic.update(yes.id, {"post": str(other.id)})


@OWN_NODE
@pytest.mark.parametrize("kind", KINDS)
async def test_every_kind_of_key_signs(ceramic: AsyncCeramic, kind: Any) -> None:
    key = Key.generate(kind)
    model = await ceramic.create_model(POST, key=key)
    post = await ceramic.create(model.id, {"title": "a"}, key=key)
    post = await ceramic.update(post.id, {"title": "b"}, key=key)
    assert (post.controller, post.content) == (key.did, {"title": "b"})
    for event in await ceramic.events(post.id):
        verify_signature(event, key.did, model.id)
    with pytest.raises(RefusedEventError, match="but the stream's controller is"):
        await ceramic.update(post.id, {"title": "c"})


@OWN_NODE
async def test_a_model_with_everything(ceramic: AsyncCeramic) -> None:
    posts = await ceramic.create_model(POST)
    fields = {name: {"type": "string"} for name in ("text", "post", "by", "any")}
    text = {"properties": {"text": {"type": "string"}}}
    shape = ModelDefinition(name="Texts", schema=text, account_relation="none", interface=True)
    interface = await ceramic.create_model(shape)
    definition = ModelDefinition(
        name="Comment",
        description="on a post",
        schema={"properties": fields, "required": ["text"]},
        immutable_fields=["post"],
        implements=[interface],
        relations={
            "post": Relation.document(posts),
            "any": Relation.document(),
            "by": Relation.account(),
        },
        views={
            "the post": View.related("post", posts.id),
            "likes": View.count_referring(posts.id, "comment"),
            "answers": View.referring(posts.id, "comment"),
            "mine": View.set_referring(posts.id, "comment"),
        },
    )
    comments = await ceramic.create_model(definition)
    content = (await ceramic.read(comments.id)).content
    assert content["relations"] == {
        "post": {"type": "document", "model": str(posts.id)},
        "any": {"type": "document", "model": None},
        "by": {"type": "account"},
    }
    likes = {"type": "relationCountFrom", "model": str(posts.id), "property": "comment"}
    assert content["views"]["likes"] == likes
    with pytest.raises(InvalidContentError, match='"text" is a required property'):
        await ceramic.create(comments.id, {})
    with pytest.raises(InvalidContentError, match="an interface cannot have documents"):
        await ceramic.create(interface.id, {"text": "a"})


async def test_a_document_of_a_later_version_of_its_model(ceramic: AsyncCeramic) -> None:
    model = await ceramic.create_model(POST)
    post = await ceramic.create(model.id, {"title": "a"})
    wider = {**POST.to_json(), "schema": {**POST.to_json()["schema"], "properties": {}}}
    wider["schema"]["properties"] = {"title": {"type": "string", "maxLength": 100}}
    second = await ceramic.update(model.id, wider)
    long = {"title": "a" * 50}
    with pytest.raises(InvalidContentError, match="the model's schema"):
        await ceramic.update(post.id, long)
    updated = await ceramic.update(post.id, long, model_version=second.event)
    assert updated.metadata["modelVersion"] == str(second.event)
    assert (await ceramic.create(model.id, long, model_version=second.event)).content == long
    assert (await ceramic.read(post.id)).content == long


@OWN_NODE
async def test_nothing_is_sent_that_would_be_rejected(ceramic: AsyncCeramic, store: Store) -> None:
    model = await ceramic.create_model(POST)
    post = await ceramic.create(model.id, {"title": "a"})
    head = store.head
    with pytest.raises(InvalidContentError, match="is longer than 20 characters"):
        await ceramic.create(model.id, {"title": "a" * 21})
    with pytest.raises(InvalidContentError, match="there is no member 'b'"):
        await ceramic.update(post.id, patch=[{"op": "remove", "path": "/b"}])
    with pytest.raises(InvalidContentError, match="limit is 1000000"):
        await ceramic.create(model.id, {"title": "a" * 1_000_000})
    with pytest.raises(InvalidContentError) as caught:
        await ceramic.create_model({"version": "2.0", "name": "X"})
    assert caught.value.reasons == ("the model has no schema",)
    assert store.head == head


async def test_what_is_not_there(ceramic: AsyncCeramic) -> None:
    model = await ceramic.create_model(POST)
    missing = StreamId(StreamType.MODEL, (await ceramic.create(model.id, {})).event)
    nowhere = StreamId.parse("kjzl6hvfrbw6c5i55ks5m4hhyuh0jylw4g7x0asndu97i7luts4dfzvm35oev65")
    for call in (ceramic.read(nowhere), ceramic.create(nowhere), ceramic.update(nowhere, {})):
        with pytest.raises(NotFoundError, match="compare the id"):
            await call
    with pytest.raises(NotFoundError, match="does not start"):
        await ceramic.read(missing)
    with pytest.raises(NotFoundError, match="there is no event"):
        await ceramic.read(model.id, at=nowhere.cid)
    with pytest.raises(NotFoundError):
        await ceramic.event(nowhere.cid)
    post = await ceramic.create(model.id, {})
    with pytest.raises(NotFoundError, match="is not a model"):
        await ceramic.create(post.id, {})


@OWN_NODE
async def test_without_a_key_one_can_only_read(ceramic: AsyncCeramic) -> None:
    assert await ceramic.version()
    model = await ceramic.create_model(POST)
    ceramic._session.key = None
    assert (await ceramic.read(model.id)).content["name"] == "Post"
    with pytest.raises(NoKeyError, match=r"Key\.generate"):
        await ceramic.create(model.id, {})


async def test_an_event_that_was_made_elsewhere(ceramic: AsyncCeramic) -> None:
    model = await ceramic.create_model(POST)
    post = await ceramic.create(model.id, {"title": "a"})
    [init] = await ceramic.events(post.id)
    event = data_event(KEY.private, init, [init.cid], [{"op": "remove", "path": "/x"}])
    for _ in range(2):
        await ceramic.send(event)
    read = await ceramic.read(post.id)
    assert (read.event, read.content) == (init.cid, {"title": "a"})
    assert list(read.rejected) == [event.cid]
    assert "there is no member 'x'" in (await ceramic.read(post.id, at=event.cid)).errors[0]
    orphan = data_event(KEY.private, init, [post.model.cid], [])  # type: ignore[union-attr]
    with pytest.raises(RefusedEventError, match="which is of another stream"):
        await ceramic.send(orphan)


async def test_a_badly_signed_event_counts_for_what_it_covers(ceramic, store):
    model = await ceramic.create_model(POST)
    post = await ceramic.create(model.id, {"title": "a"})
    [init] = await ceramic.events(post.id)
    patch = [{"op": "replace", "path": "/title", "value": "forged"}]
    bad = forged(data_event(KEY.private, init, [init.cid], patch))
    with pytest.raises(RefusedEventError, match="is wrong"):
        await ceramic.send(bad)
    await store.admit_remote([(bad.event_id(store.network, init.header, 1), bad.car)])
    read = await ceramic.read(post.id)
    assert (read.event, read.content, read.rejected) == (init.cid, {"title": "a"}, {})
    patch = [{"op": "add", "path": "/stars", "value": 1}]
    merge = data_event(KEY.private, init, [bad.cid], patch)
    await ceramic.send(merge)
    read = await ceramic.read(post.id)
    assert (read.event, read.content) == (merge.cid, {"title": "a", "stars": 1})
    assert list(read.rejected) == [bad.cid]
    assert "is wrong" in read.rejected[bad.cid][0]
    assert await ceramic.propose_merge(post.id) is None
    entries = (await ceramic.feed(None)).entries
    assert [entry.cid for entry in entries if entry.fault] == [bad.cid]


async def test_a_capability_that_cannot_be_checked_hides_no_wrong_signature(ceramic, store):
    model = await ceramic.create_model(POST)
    post = await ceramic.create(model.id, {"title": "a"})
    [init] = await ceramic.events(post.id)
    patch = [{"op": "replace", "path": "/title", "value": "forged"}]
    payload = {"id": init.cid, "prev": init.cid, "data": patch}
    chain = dag_cbor.encode({"h": {"t": "eip4361"}, "p": {"prf": []}, "s": {}})
    bad = forged(signed_event(KEY.private, payload, capability=chain))
    [verdict] = await store.admit_remote([(bad.event_id(store.network, init.header, 1), bad.car)])
    assert (verdict.status, verdict.position) == ("new", None)
    assert (await ceramic.read(post.id)).event == init.cid


async def test_the_feed_goes_on_at_its_token(ceramic: AsyncCeramic) -> None:
    model = await ceramic.create_model(POST)
    posts = [await ceramic.create(model.id, {"stars": n}) for n in range(5)]
    page = await ceramic.feed(limit=4)
    assert [entry.cid for entry in page.entries] == [model.event, *(p.event for p in posts[:3])]
    assert [entry.event.data for entry in page.entries[1:] if entry.event] == [
        {"stars": n} for n in range(3)
    ]
    assert [entry.position for entry in page.entries] == [1, 2, 3, 4]
    now = datetime.now(UTC)
    assert all(entry.delivered_at and entry.delivered_at <= now for entry in page.entries)
    rest = await ceramic.feed(page.token, with_events=False)
    assert [(entry.cid, entry.event) for entry in rest.entries] == [
        (post.event, None) for post in posts[3:]
    ]
    assert rest.token == await ceramic.feed_token()
    assert (await ceramic.feed(rest.token)).entries == ()
    with pytest.raises(NodeError):
        await ceramic.feed("no token")


async def test_the_feed_is_followed_as_it_grows(ceramic: AsyncCeramic) -> None:
    model = await ceramic.create_model(POST)
    seen: list[Any] = []
    token = await ceramic.feed_token()

    async def follow() -> None:
        nonlocal token
        async for page in ceramic.tail(token):
            seen.extend(entry.cid for entry in page.entries)
            token = page.token
            if len(seen) == 3:
                return

    written = []
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            for number in range(3):
                written.append((await ceramic.create(model.id, {"stars": number})).event)
    assert (seen, token) == (written, await ceramic.feed_token())


async def test_interests(ceramic: AsyncCeramic, store: Store) -> None:
    model = await ceramic.create_model(POST)
    post = await ceramic.create(model.id, {})
    await ceramic.register_interest(METAMODEL)
    await ceramic.register_interest(model.id, controller=KEY.did, stream=post.id)
    await ceramic.register_interest(sort_key="family", sort_value="blog")
    assert {(interest.sort_key, interest.sort_value) for interest in store.wanted.all} == {
        ("model", str(METAMODEL)),
        ("model", str(model.id)),
        ("family", "blog"),
    }


async def test_an_anchor_that_is_not_looked_up_yet_does_not_count(ceramic: AsyncCeramic) -> None:
    model = await ceramic.create_model(POST)
    post = await ceramic.create(model.id, {"title": "a"})
    await ceramic.send(time_event(post.id.cid, post.event))
    assert (await ceramic.read(post.id)).content == {"title": "a"}
    assert (await ceramic.update(post.id, {"title": "b"})).content == {"title": "b"}


async def test_no_flood_of_waiting_events_makes_a_pending_one_count(store: Store) -> None:
    app = create_app(Services(store=store, limits=Limits(stream_listed=4)))
    async with AsyncCeramic("node", key=KEY, transport=httpx.ASGITransport(app)) as ceramic:
        model = await ceramic.create_model(POST)
        post = await ceramic.create(model.id, {"title": "a"})
        [init] = await ceramic.events(post.id)
        second = await ceramic.update(post.id, {"title": "b"})
        anchor = time_event(init, second.event)
        patch = [{"op": "replace", "path": "/title", "value": "c"}]
        pending = data_event(KEY.private, init, [anchor.cid], patch)
        await ceramic.send(anchor)
        await ceramic.send(pending)
        for n in range(6):
            bad = forged(data_event(KEY.private, init, [init.cid], [n]))
            await store.admit_remote([(bad.event_id(store.network, init.header, 1), bad.car)])
        assert (await ceramic.read(post.id)).event == second.event
