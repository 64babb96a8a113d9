"""The feed as JSON: paging, tokens, limits and long polls."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import trio
import trio.testing
from api_samples import Api, Events, api_of

from recon_node.api.endpoint import Services
from recon_node.api.settings import Limits
from recon_node.ceramic import parse_event
from recon_node.ipld import multibase
from recon_node.store import Store

FEED = "/ceramic/feed/events"


async def read_all(api: Api, **params: Any) -> tuple[list[Any], list[int], str]:
    """Follow the tokens to the end: all events, the size of each page and the last token."""
    events: list[Any] = []
    sizes: list[int] = []
    token = "0"
    while True:
        page = (await api.get(FEED, params={"resumeAt": token, **params})).json()
        if not page["events"]:
            assert page["resumeToken"] == token
            return events, sizes, token
        events += page["events"]
        sizes.append(len(page["events"]))
        token = page["resumeToken"]


async def test_pages_join_to_the_whole_feed_in_order(api, filled, store):
    """Data comes only when asked for."""
    full = [{"id": event["cid"], "data": event["car"]} for event in filled]
    bare = [{"id": event["cid"]} for event in filled]
    for params, expected in (({}, bare), ({"includeData": "none"}, bare)):
        assert await read_all(api, limit=7, **params) == (expected, [7] * 8 + [4], str(store.head))
    events, _, _ = await read_all(api, includeData="full")
    assert events == full


async def test_a_hundred_events_by_default(api, sample, store):
    await store.admit_local([multibase.decode(event["car"]) for event in sample[:130]])
    page = (await api.get(FEED)).json()
    assert (len(page["events"]), page["resumeToken"]) == (100, "100")
    assert len((await api.get(FEED, params={"limit": 10_000_000})).json()["events"]) == 130
    assert (await api.get(FEED, params={"limit": 0})).json() == {"events": [], "resumeToken": "0"}


async def test_large_events_make_shorter_pages_and_none_is_lost(services, filled):
    async with api_of(services, limits=Limits(feed_bytes=3_000)) as api:
        events, sizes, _ = await read_all(api, includeData="full")
    assert [event["data"] for event in events] == [event["car"] for event in filled]
    lengths = iter([len(multibase.decode(event["car"])) for event in filled])
    pages = [list(islice(lengths, size)) for size in sizes]
    assert all(sum(page[:-1]) < 3_000 for page in pages)
    assert all(sum(page) >= 3_000 for page in pages[:-1])


async def test_tokens(api: Api, filled: Events, store: Store) -> None:
    now = (await api.get("/ceramic/feed/resumeToken")).json()
    assert now == {"resumeToken": str(len(filled))}
    before = await api.get(FEED, params={"resumeAt": "-5", "limit": 1})
    assert before.json() == {"events": [{"id": filled[0]["cid"]}], "resumeToken": "1"}
    head = (await api.get("/ceramic/feed/head")).json()
    assert head == {"epoch": store.epoch, "low": 0, "head": len(filled)}


async def test_a_token_just_given_is_never_beyond_the_end(api, store, sample, filled, monkeypatch):
    """Between the commit of a batch and the news of it on trio's thread, anyone may read."""
    transaction = store._writer.log.transaction
    committed, go_on = threading.Event(), threading.Event()

    @contextmanager
    def commit_and_dawdle() -> Iterator[Any]:
        with transaction() as marks:
            yield marks
        committed.set()
        assert go_on.wait(60)

    monkeypatch.setattr(store._writer.log, "transaction", commit_and_dawdle)
    async with trio.open_nursery() as nursery:
        cars = [multibase.decode(event["car"]) for event in sample[60:64]]
        nursery.start_soon(store.admit_local, cars)
        try:
            await trio.to_thread.run_sync(committed.wait)
            for start in (0, len(filled)):
                page = (await api.get(FEED, params={"resumeAt": start})).json()
                again = await api.get(FEED, params={"resumeAt": page["resumeToken"]})
                assert again.status_code == 200, again.text
                assert page["resumeToken"] == str(len(filled))
            columns = await store.reader.feed_columns(0, 1000, 1000, 1 << 30)
            assert columns.positions[-1] == len(filled)
            inits = {parse_event(multibase.decode(event["car"])).init for event in sample[:64]}
            rows = [row for init in inits for row in await store.reader.signed_events(init)]
            assert max(row.position for row in rows) == len(filled)
        finally:
            go_on.set()
    page = (await api.get(FEED, params={"resumeAt": len(filled)})).json()
    assert page["resumeToken"] == str(len(filled) + 4)


async def test_a_long_poll_is_answered_when_an_event_comes(api, sample, store):
    answers = []

    async def poll(path: str, params: dict[str, int]) -> None:
        answers.append((await api.get(path, params=params)).json())

    with trio.fail_after(25):  # less than the poll
        async with trio.open_nursery() as nursery:
            nursery.start_soon(poll, FEED, {"resumeAt": 0, "wait": 30})
            nursery.start_soon(poll, "/ceramic/feed/head", {"after": 0, "wait": 30})
            await trio.testing.wait_all_tasks_blocked()
            assert answers == []
            await store.admit_local([multibase.decode(sample[0]["car"])])
    assert {"events": [{"id": sample[0]["cid"]}], "resumeToken": "1"} in answers
    assert {"epoch": store.epoch, "low": 0, "head": 1} in answers
    with trio.fail_after(25):  # the news is here already
        await poll(FEED, {"resumeAt": 0, "wait": 30})
    assert len(answers[-1]["events"]) == 1


async def test_a_long_poll_ends_after_its_time_or_at_shutdown(api: Api, services: Services) -> None:
    with trio.fail_after(25):  # less than the poll
        answer = await api.get(FEED, params={"wait": 0.01})
        assert answer.json() == {"events": [], "resumeToken": "0"}
        async with trio.open_nursery() as nursery:

            async def close() -> None:
                await trio.testing.wait_all_tasks_blocked()
                services.closing.set()

            nursery.start_soon(close)
            answer = await api.get(FEED, params={"wait": 30})
    assert answer.json() == {"events": [], "resumeToken": "0"}


async def test_a_time_has_a_position_and_each_event_the_time_of_its_delivery(api, sample, store):
    def set_clock(now: float) -> None:
        store._writer.log.now = lambda: now

    for now, part in ((1_000.0, sample[:3]), (2_000.0, sample[3:5])):
        set_clock(now)
        await store.admit_local([multibase.decode(event["car"]) for event in part])
    page = (await api.get(FEED, params={"details": "true"})).json()["events"]
    assert [event["deliveredAt"] for event in page] == [1_000_000] * 3 + [2_000_000] * 2
    for time, position, final in (
        ("1000000", 0, True),
        ("1970-01-01T00:16:40.001Z", 3, True),
        ("1970-01-01T01:33:20+01:00", 3, True),
        ("1970-01-01T00:33:20.0001", 5, False),
        ("3000-01-01", 5, False),
    ):
        answer = await api.get("/ceramic/feed/position", params={"time": time})
        assert answer.json() == {"epoch": store.epoch, "position": position, "final": final}, time
