"""Streams that diverged, merged through the client: in one node, and between three of them."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest
from client_samples import KEY, POST
from support.waiting import equal, wait_until

from recon_node.ceramic.builder import data_event
from recon_node.client import (
    AsyncCeramic,
    Ceramic,
    Document,
    Key,
    MergeConflictError,
    UnauthorizedError,
    UnreachableError,
)
from recon_node.testnet import Testnet


async def post_with(ceramic: AsyncCeramic, *contents: dict[str, object]) -> Document:
    """A post whose branches lead to these contents."""
    model = await ceramic.create_model(POST)
    post = await ceramic.create(model.id, {"title": "a", "stars": 1})
    for content in contents:
        await ceramic.update(post.id, content, at=post.event)
    return post


async def test_branches_that_touch_different_parts(ceramic: AsyncCeramic) -> None:
    post = await post_with(ceramic, {"title": "b", "stars": 1}, {"title": "a", "stars": 2})
    diverged = await ceramic.read(post.id)
    assert len(diverged.open_tips) == 2
    assert diverged.open_tips[0] == diverged.event
    assert await ceramic.diverged() == await ceramic.diverged(post.model) == [diverged]
    proposal = await ceramic.propose_merge(post.id)
    assert (proposal.content, proposal.conflicts) == ({"title": "b", "stars": 2}, ())
    merged = await ceramic.merge(post.id)
    assert (merged.content, merged.open_tips) == (proposal.content, ())
    assert (await ceramic.event(merged.event)).prevs == diverged.open_tips
    assert await ceramic.read(post.id) == merged == await ceramic.merge(post.id)
    assert await ceramic.diverged() == await ceramic.diverged(post.model) == []
    assert await ceramic.propose_merge(post.id) is None


async def test_a_conflict_is_shown_and_decided(ceramic: AsyncCeramic) -> None:
    post = await post_with(ceramic, {"title": "b", "stars": 1}, {"title": "c", "stars": 2})
    with pytest.raises(MergeConflictError, match="differ at /content/title: decide") as caught:
        await ceramic.merge(post.id)
    [conflict] = caught.value.proposal.conflicts
    assert sorted(conflict.values.values()) == ["b", "c"]
    assert len((await ceramic.read(post.id)).open_tips) == 2
    [winner] = [cid for cid, title in conflict.values.items() if title == "c"]
    merged = await ceramic.merge(post.id, prefer=winner)
    assert (merged.content, merged.open_tips) == ({"title": "c", "stars": 2}, ())


async def test_a_person_says_what_comes_of_it(ceramic: AsyncCeramic) -> None:
    post = await post_with(ceramic, {"title": "b"}, {"title": "c"}, {"title": "d"})
    merged = await ceramic.merge(post.id, {"title": "b, c and d"})
    assert (merged.content, merged.open_tips) == ({"title": "b, c and d"}, ())
    assert len((await ceramic.event(merged.event)).prevs) == 3


async def test_a_rejected_event_is_merged_away(ceramic: AsyncCeramic) -> None:
    post = await post_with(ceramic, {"title": "b"})
    wrong = data_event(KEY.private, post.id.cid, [post.event], [{"op": "remove", "path": "/x"}])
    await ceramic.send(wrong)
    read = await ceramic.read(post.id)
    assert (read.content, read.open_tips) == ({"title": "b"}, (read.event, wrong.cid))
    merged = await ceramic.merge(post.id)
    assert (merged.content, merged.open_tips) == ({"title": "b"}, ())


@pytest.fixture
def apart() -> Iterator[Testnet]:
    """Three nodes that do not know each other."""
    net = Testnet(3, flags=("--sync-interval", "1"))
    with ExitStack() as stack:
        stack.callback(net.stop)
        for node in net.nodes:
            node.launch()
        for node in net.nodes:
            node.wait_until_ready()
        yield net


def connect(net: Testnet) -> None:
    """Let the first node dial the others."""
    url = f"{net.nodes[0].api_url}/ceramic/peers"
    for other in net.nodes[1:]:
        answer = httpx.post(url, params={"addresses": other.addresses[0]}, timeout=60)
        assert answer.status_code == 204, answer.text


def test_three_writers_and_a_partition_end_converged(apart: Testnet) -> None:
    with ExitStack() as stack:
        writers = [
            stack.enter_context(Ceramic(node.api_url, key=KEY, timeout=60)) for node in apart.nodes
        ]
        first = writers[0]
        model = first.create_model(POST)
        post = first.create(model.id, {"title": "a", "stars": 1, "tags": ["x", "y", "z"]})
        for writer in writers[1:]:  # what they had before they fell apart
            for stream in (model.id, post.id):
                for event in first.events(stream):
                    writer.send(event)
        writers[0].update(post.id, {**post.content, "title": "b"})
        writers[1].update(post.id, {**post.content, "stars": 2})
        writers[1].update(post.id, {**post.content, "stars": 3})
        writers[2].update(post.id, {**post.content, "tags": ["x", "Y", "z"]})
        assert [writer.read(post.id).open_tips for writer in writers] == [(), (), ()]
        connect(apart)
        wait_until(lambda: equal(apart.nodes))
        states = [writer.read(post.id) for writer in writers]
        assert len(states[0].open_tips) == 3
        assert states == [states[0]] * 3
        assert [writer.diverged(model.id) for writer in writers] == [states[:1]] * 3
        merged = writers[2].merge(post.id)
        wait_until(lambda: equal(apart.nodes))
        assert [writer.read(post.id) for writer in writers] == [merged] * 3
        assert merged.content == {"title": "b", "stars": 3, "tags": ["x", "Y", "z"]}
        assert merged.open_tips == ()
        assert [writer.diverged() for writer in writers] == [[], [], []]
        check_tail(first, writers[1], model, post)


def check_tail(reader: Ceramic, writer: Ceramic, model: Document, post: Document) -> None:
    """What one node is written comes out of another one's feed."""
    token = reader.feed_token()
    event = writer.update(post.id, {"title": "last"}).event
    page = next(reader.tail(token))
    assert [entry.cid for entry in page.entries] == [event]
    writer.register_interest(model.id)
    assert reader.version() == writer.version()


def test_no_node_answers() -> None:
    with (
        Ceramic("127.0.0.1:1", key=Key.generate()) as ceramic,
        pytest.raises(UnreachableError, match=r"no node answers at http://127\.0\.0\.1:1"),
    ):
        ceramic.version()


def test_settings_that_cannot_be_right() -> None:
    with pytest.raises(UnreachableError, match="is not a URL"):
        Ceramic("http://node:port")
    with pytest.raises(UnauthorizedError, match="ASCII"):
        Ceramic(token="é")


async def test_no_node_answers_a_task() -> None:
    async with AsyncCeramic("http://127.0.0.1:1") as ceramic:
        with pytest.raises(UnreachableError, match="recon-node run"):
            await ceramic.version()


async def test_a_node_that_takes_too_long_for_a_task() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        async with AsyncCeramic(f"127.0.0.1:{port}", timeout=0.1) as ceramic:
            with pytest.raises(UnreachableError, match="timed out"):
                await ceramic.version()
