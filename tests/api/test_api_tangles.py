"""GET /ceramic/tangles: threads of many authors, from a real store and its index."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from api_samples import Api, admit, api_of, read
from support.tangle_samples import (
    ALL,
    BOB,
    BOTH,
    CAROL,
    DAVE,
    DEFINITION,
    LEFT,
    LOOSE,
    MODEL,
    RIGHT,
    ROOT,
    THREAD,
    WRONG,
    ids,
)

from recon_node.api.endpoint import Services
from recon_node.api.routes.products import tangles
from recon_node.ceramic import StreamId
from recon_node.ceramic.auth.did import controller_of
from recon_node.ceramic.builder import data_event, init_event, model_event
from recon_node.ipld import CID
from recon_node.store import Store
from recon_node.tangles.index import open_tangles

TANGLE = f"tangles/{THREAD}/{ROOT.stream_id()}"


@asynccontextmanager
async def served(store: Store, data_dir: Path) -> AsyncIterator[Api]:
    async with open_tangles(store, data_dir) as index, api_of(store, tangles=index) as client:
        yield client


def delete_index(data_dir: Path) -> None:
    for file in data_dir.glob("tangles.sqlite3*"):
        file.unlink()


@pytest.mark.parametrize("late", [(), (LEFT,), (ROOT, MODEL)], ids=["none", "a reply", "the root"])
async def test_a_thread_of_four_authors(store, tmp_path, late):
    async with served(store, tmp_path) as api:
        await admit(store, *(event for event in reversed(ALL) if event not in late))
        await read(api, TANGLE, 404 if ROOT in late else 200)
        await admit(store, *late)
        names = await read(api, f"tangles/{ROOT.stream_id()}")
        assert names["tangles"] == [{"name": THREAD, "candidates": 6}]
        tangle = await read(api, TANGLE)
        assert [message["id"] for message in tangle["messages"]] == ids(ROOT, RIGHT, LEFT, BOTH)
        assert tangle["tips"] == ids(BOTH)
        assert tangle["messages"][3]["previous"] == sorted(ids(LEFT, RIGHT))
        assert tangle["messages"][1]["author"] == controller_of(CAROL)
        assert tangle["messages"][1]["content"]["text"] == "right"
        rules = {message["id"]: message["rule"] for message in tangle["excluded"]}
        assert rules == dict(zip(ids(WRONG, LOOSE), ("rejected", "missing_previous"), strict=True))
        reasons = {message["id"]: message["reason"] for message in tangle["excluded"]}
        assert "text" in reasons[ids(WRONG)[0]]
        bare = await read(api, TANGLE, content="false")
        assert {message["content"] for message in bare["messages"]} == {None}


async def test_later_events_of_a_document_do_not_move_it(store: Store, tmp_path: Path) -> None:
    patch = [{"op": "replace", "path": "/tangles", "value": {THREAD: {"root": None}}}]
    update = data_event(BOB, LEFT, [LEFT.cid], patch)
    async with served(store, tmp_path) as api:
        await admit(store, MODEL, ROOT, LEFT)
        before = await read(api, TANGLE)
        await admit(store, update)
        assert await read(api, TANGLE) == before


async def test_ties_by_receipt(store: Store, tmp_path: Path) -> None:
    async with served(store, tmp_path) as api:
        await admit(store, MODEL, ROOT, LEFT)
        await admit(store, RIGHT)
        tangle = await read(api, TANGLE, ties="received")
        assert [message["id"] for message in tangle["messages"]] == ids(ROOT, RIGHT, LEFT)
        assert all(message["received"] for message in tangle["messages"])
        await read(api, TANGLE, 400, ties="alphabet")


async def test_what_starts_no_tangle(store: Store, tmp_path: Path) -> None:
    async with served(store, tmp_path) as api:
        await admit(store, MODEL, ROOT, LEFT)
        message = (await read(api, f"tangles/{LEFT.stream_id()}", 404))["message"]
        assert "no document names a tangle with the root" in message
        message = (await read(api, f"tangles/{THREAD}/{LEFT.stream_id()}", 404))["message"]
        assert "is missing" in message
        message = (await read(api, f"tangles/{THREAD}/nothing", 400))["message"]
        assert message.startswith("'nothing' is not a StreamID")


async def test_an_index_that_was_deleted_is_made_again(store: Store, tmp_path: Path) -> None:
    await admit(store, MODEL, ROOT, LEFT)
    async with served(store, tmp_path) as api:
        before = await read(api, TANGLE)
    delete_index(tmp_path)
    async with served(store, tmp_path) as api:
        assert await read(api, TANGLE) == before


async def test_tangles_are_listed_in_pages(store: Store, tmp_path: Path) -> None:
    async with served(store, tmp_path) as api:
        await admit(store, *ALL)
        others = []
        for name in ("a.b", "thread"):
            content = {"text": "x", "tangles": {name: {"root": None, "previous": None}}}
            unique = name.encode()
            others.append(init_event(BOB, MODEL.stream_id(), content, unique=unique))
        await admit(store, *others)
        whole = await read(api, "tangles")
        expected = sorted(
            [(ROOT, THREAD, 6), (others[0], "a.b", 1), (others[1], "thread", 1)],
            key=lambda tangle: bytes(tangle[0].cid),
        )
        fields = ("root", "init", "name", "candidates")
        assert whole["next"] is None
        assert [tuple(tangle[name] for name in fields) for tangle in whole["tangles"]] == [
            (str(root.stream_id()), str(root.cid), name, count) for root, name, count in expected
        ]
        pages, after = [], {}
        while True:
            page = await read(api, "tangles", limit=1, **after)
            pages += page["tangles"]
            if page["next"] is None:
                break
            after = {"after": page["next"]}
        assert pages == whole["tangles"]
        assert await read(api, "tangles", limit=0) == {"tangles": [], "next": None}
        await read(api, "tangles", 400, after="x")


async def test_a_name_may_have_a_slash(store: Store, tmp_path: Path) -> None:
    """Sent as %2F, it was taken for the end of the name, and answered 404."""
    name = "a/b%2F%25"
    content = {"text": "x", "tangles": {name: {"root": None, "previous": None}}}
    root = init_event(BOB, MODEL.stream_id(), content, unique=b"slash")
    async with served(store, tmp_path) as api:
        await admit(store, MODEL, root)
        answer = await read(api, f"tangles/{quote(name, safe='')}/{root.stream_id()}")
    assert (answer["name"], answer["tips"]) == (name, ids(root))


async def test_a_root_that_is_not_here_has_no_stream_id(store: Store, tmp_path: Path) -> None:
    async with served(store, tmp_path) as api:
        await admit(store, *(event for event in ALL if event is not ROOT))
        [tangle] = (await read(api, "tangles"))["tangles"]
        assert (tangle["root"], tangle["init"]) == (None, str(ROOT.cid))


async def test_a_tangle_is_drawn_if_asked(store: Store, tmp_path: Path) -> None:
    async with served(store, tmp_path) as api:
        await admit(store, *ALL)
        assert "svg" not in await read(api, TANGLE)
        svg = (await read(api, TANGLE, drawn="true"))["svg"]
        assert svg.startswith("<svg")
        for event in (ROOT, LEFT, RIGHT, BOTH, WRONG):
            assert f"<title>{event.stream_id()}</title>" in svg


async def test_a_crowd_does_not_make_a_thread_unreadable(store, tmp_path, monkeypatch):
    """2,001 documents of a stranger, or a few large ones, once did so for good."""
    monkeypatch.setattr(tangles, "MAX_MESSAGES", 8)
    monkeypatch.setattr(tangles, "MAX_BYTES", 60_000)
    link = {THREAD: {"root": str(ROOT.stream_id()), "previous": [str(ROOT.stream_id())]}}
    crowd = [
        init_event(CAROL, MODEL.stream_id(), {"text": text, "tangles": link}, unique=unique)
        for text, count in (("x", 20), ("y" * 50_000, 3))
        for unique in (text[0].encode() + bytes([n]) for n in range(count))
    ]
    async with served(store, tmp_path) as api:
        await admit(store, *ALL)
        whole = await read(api, TANGLE)
        assert whole["truncated"] is False
        await admit(store, *crowd)
        later = init_event(DAVE, MODEL.stream_id(), {"text": "z", "tangles": link}, unique=b"z")
        await admit(store, later)
        cut = await read(api, TANGLE)
        assert cut["truncated"] is True
        shown = {message["id"] for message in cut["messages"]}
        assert str(ROOT.stream_id()) in shown
        assert str(later.stream_id()) in shown  # of another author
        assert len(shown) + len(cut["excluded"]) <= 8


@pytest.mark.parametrize("fault", ["large", "slow"])
async def test_a_model_that_cannot_be_read_keeps_only_its_messages_out(
    store, tmp_path, monkeypatch, fault
):
    """Models are read once, whatever StreamIDs name them, and within the bytes of the answer."""
    other = model_event(CAROL, {**DEFINITION, "name": "Other", "description": "x" * 200_000})
    link = {THREAD: {"root": str(ROOT.stream_id()), "previous": [str(ROOT.stream_id())]}}
    named = [other.stream_id(), StreamId(1000, other.cid), StreamId(1001, other.cid)]
    hostile = [
        init_event(CAROL, name, {"text": "x", "tangles": link}, unique=bytes([n]))
        for n, name in enumerate(named)
    ]
    if fault == "large":
        monkeypatch.setattr(tangles, "MAX_BYTES", 100_000)
    else:
        monkeypatch.setattr(tangles, "_SECONDS_EACH", -1.0)
    read_models: list[CID] = []
    real = tangles.read_delivered

    async def read_delivered(services: Services, init: CID, *rest: Any) -> Any:
        read_models.append(init)
        return await real(services, init, *rest)

    monkeypatch.setattr(tangles, "read_delivered", read_delivered)
    async with served(store, tmp_path) as api:
        await admit(store, *ALL, other, *hostile)
        answer = await read(api, TANGLE, 404 if fault == "slow" else 200)
    assert sorted(read_models) == sorted({MODEL.cid, other.cid})
    if fault == "large":
        reasons = {message["id"]: message["reason"] for message in answer["excluded"]}
        assert "too large" in reasons[str(hostile[0].stream_id())]
        assert str(ROOT.stream_id()) in {message["id"] for message in answer["messages"]}
