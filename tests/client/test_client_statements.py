"""A stranger copies an owner's events: nothing that the owner reads or writes goes back."""

import pytest
from client_samples import POST
from support.forging import other_form

from recon_node.ceramic import Event
from recon_node.client import Key


@pytest.mark.parametrize("kind", ["secp256k1", "p256"])
async def test_an_update_builds_on_the_newest_content(ceramic, store, kind):
    owner = Key.generate(kind)
    model = await ceramic.create_model(POST)
    post = await ceramic.create(model.id, {"title": "v0"}, key=owner)
    events: list[Event] = []
    for number in range(1, 6):
        post = await ceramic.update(post.id, {"title": f"v{number}"}, key=owner)
        events.append(await ceramic.event(post.event))
    copies = [other_form(event) for event in events]
    verdicts = await store.admit_local([copy.car for copy in copies])
    assert [verdict.status for verdict in verdicts] == ["new"] * 5
    read = await ceramic.read(post.id)
    assert (read.content, read.open_tips, read.event) == ({"title": "v5"}, (), post.event)
    at_copy = await ceramic.read(post.id, at=copies[1].cid)
    assert (at_copy.content, at_copy.event) == ({"title": "v2"}, events[1].cid)
    written = await ceramic.update(post.id, {"title": "v5", "stars": 1}, key=owner)
    assert (written.content, written.open_tips) == ({"title": "v5", "stars": 1}, ())
    assert (await ceramic.event(written.event)).prevs == (post.event,)
