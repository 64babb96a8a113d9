"""Which events are sent when, and what is reported about them; to real nodes and to others."""

import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path

import httpx
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from support import sdk_sample
from trio.testing import MockClock

from recon_node.api.app import create_app
from recon_node.api.endpoint import Services
from recon_node.api.listener import open_listener
from recon_node.api.server import serve
from recon_node.api.settings import Limits
from recon_node.base.connection import MAX_PAUSE, Answer, AsyncConnection, NodeError, NotANodeError
from recon_node.ceramic import Network
from recon_node.cli.streams import sending as module
from recon_node.cli.streams.event_file import Item, read_items
from recon_node.cli.streams.sending import (
    BUSY_RETRIES,
    MAX_REFUSALS,
    RefusedItem,
    SendingOutcome,
    Window,
    WindowEntry,
    send_event,
    send_items,
)
from recon_node.ipld import CID, DAG_CBOR, multibase
from recon_node.store import Store, open_store


def cid(number: int) -> CID:
    return CID.of(DAG_CBOR, number.to_bytes(4, "big"))


def item(line: int, number: int, parents: frozenset[int] = frozenset()) -> Item:
    return Item(line, 100, f"event {number}", cid(number), frozenset(map(cid, parents)))


@st.composite
def inputs(draw: st.DrawFn) -> list[Item]:
    """A DAG of events, some of whose parents are not in it, in any order, with some twice."""
    count = draw(st.integers(1, 40))
    parents = [draw(st.frozensets(st.integers(-2, n - 1), max_size=3)) for n in range(count)]
    order = draw(st.permutations(range(count)))
    order += draw(st.lists(st.sampled_from(order), max_size=5))
    return [
        item(line, n, frozenset(p if p >= 0 else 1000 - p for p in parents[n]))
        for line, n in enumerate(order, 1)
    ]


def drive(window: Window, items: list[Item], rng: random.Random) -> Iterator[WindowEntry]:
    """Read, take and acknowledge in any order that the window allows; yields what is taken.

    Holds each batch to the rules: a parent that the window has seen was acknowledged before, or is
    further ahead in the batch. While more may be read, batches are whole and all parents were seen.
    """
    rest, seen, acknowledged = iter(items), set[CID](), set[CID]()
    under_way: list[list[WindowEntry]] = []
    while not window.is_done or under_way:
        if not window.is_full and not window.ended and rng.random() < 0.7:
            following = next(rest, None)
            window.ended = following is None
            if following is not None:
                window.add(following)
                seen.add(following.cid or cid(0))
        may_read_more = not (window.is_full or window.ended)
        batch = window.take()
        assert len(batch) in (0, module.BATCH_EVENTS) or not may_read_more
        ahead = set(acknowledged)
        for entry in batch:
            assert {parent for parent in entry.item.parents if parent in seen} <= ahead
            assert entry.item.parents <= seen or not may_read_more
            ahead.add(entry.item.cid or cid(0))
            yield entry
        if batch:
            under_way.append(batch)
        idle = not batch and not under_way
        assert window.is_done or not (idle and (window.ended or window.is_full)), "it is stuck"
        if under_way and (rng.random() < 0.5 or window.ended):
            done = under_way.pop(rng.randrange(len(under_way)))
            window.acknowledge(done)
            acknowledged |= {entry.item.cid or cid(0) for entry in done}


@given(
    items=inputs(),
    limits=st.sampled_from([(1000, 500), (1000, 3), (50, 1), (8, 4), (1, 1)]),
    rng=st.randoms(use_true_random=False),
)
def test_each_event_is_taken_after_everything_it_depends_on(items, limits, rng):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LOOKAHEAD", limits[0])
        patch.setattr(module, "BATCH_EVENTS", limits[1])
        window = Window()
        taken = [entry.item for entry in drive(window, items, rng)]
    assert sorted(item.line for item in taken) == [item.line for item in items]
    assert (window._by_cid, window._children, window._waiting_bytes) == ({}, {}, 0)


def test_an_input_in_order_is_taken_in_order() -> None:
    window = Window()

    def read(lines: range) -> None:
        for line in lines:
            window.add(item(line, line, frozenset({line - 1}) if line % 10 else frozenset()))

    read(range(1, 509))
    assert window.take() == []  # no whole batch: 1 to 9 build on an event that might come yet
    read(range(509, 1201))
    first = window.take()
    assert [entry.item.line for entry in first] == list(range(10, 510))
    second = window.take()
    assert [entry.item.line for entry in second] == list(range(510, 1010))
    assert window.take() == []
    window.acknowledge(first)
    window.acknowledge(second)
    read(range(1201, 1301))
    assert window.take() == []  # of 291 events
    window.ended = True
    assert [entry.item.line for entry in window.take()] == [*range(1, 10), *range(1010, 1301)]
    assert window.is_done


def test_events_whose_parents_were_sent_before_need_not_wait_for_the_end_of_the_input() -> None:
    window = Window()
    for start in range(1, 2001, 500):
        for line in range(start, start + 500):
            window.add(item(line, line, frozenset({1, line - 1}) if line > 1 else frozenset()))
        batch = window.take()
        assert [entry.item.line for entry in batch] == list(range(start, start + 500))
        window.acknowledge(batch)


def test_a_batch_is_bounded_by_size_and_takes_at_least_one() -> None:
    window = Window()
    for line in range(1, 4):
        window.add(Item(line, module.BATCH_BYTES, "", cid(line)))
    assert not window.is_full
    window.add(Item(4, module.LOOKAHEAD_BYTES, "", cid(4)))
    assert window.is_full
    window.ended = True
    assert [len(window.take()) for _ in range(5)] == [1, 1, 1, 1, 0]
    assert window.is_done
    assert not window.is_full


def test_the_first_refused_events_are_listed_in_order() -> None:
    outcome = SendingOutcome()
    lines = random.Random(5).sample(range(1, 5001), 5000)
    for line in lines:
        outcome.note(item(line, line), "refused", f"reason {line}")
    assert outcome.counts["refused"] == outcome.counts.total() == 5000
    assert [refusal.line for refusal in outcome.refusals] == list(range(1, MAX_REFUSALS + 1))
    assert outcome.refusals[6].reason == "reason 7"
    assert len(outcome._refusals) <= 2 * MAX_REFUSALS


NETWORK = Network.local(11)


@asynccontextmanager
async def node_of(
    directory: Path, wrap: Callable[[ASGIApp], ASGIApp] = lambda app: app, **limits: int
) -> AsyncIterator[tuple[AsyncConnection, Store]]:
    """A node's real API on a free port, over a real store."""
    listener = await open_listener("127.0.0.1", 0)
    closing = trio.Event()
    async with open_store(directory / "node", NETWORK) as store, trio.open_nursery() as nursery:
        app = create_app(Services(store=store, limits=Limits(**limits)))
        nursery.start_soon(serve, wrap(app), listener, closing)
        async with AsyncConnection(listener.url) as node:
            yield node, store
        closing.set()


def sample_items(count: int) -> list[Item]:
    with sdk_sample.FILE.open("rb") as file:
        return list(islice(read_items(file), count))


async def send(node: AsyncConnection, items: list[Item]) -> SendingOutcome:
    outcome = SendingOutcome()
    done: list[Item] = []
    await send_items(node, items, outcome, on_done=lambda item, _: done.append(item))
    assert sorted(item.line for item in done) == sorted(item.line for item in items)
    return outcome


async def test_many_events_need_few_requests_and_have_verdicts_of_their_own(tmp_path: Path) -> None:
    items = sample_items(100)
    async with node_of(tmp_path) as (node, store):
        outcome = await send(node, items[::-1])
        assert (
            outcome.counts["new"],
            outcome.counts["known"],
            outcome.counts["refused"],
            store.head,
        ) == (100, 0, 0, 100)
        assert store.batch_durations["ok"].count <= 5
        outcome = await send(node, items)
        assert (
            outcome.counts["new"],
            outcome.counts["known"],
            outcome.counts["refused"],
            store.head,
        ) == (0, 100, 0, 100)


async def test_a_batch_that_is_too_long_for_the_node_goes_in_parts(tmp_path: Path) -> None:
    items = sample_items(40)
    bound = max(len(item.data) for item in items) + 2000
    long = Item(41, 9000, multibase.encode(bytes(bound)))
    async with node_of(tmp_path, body=bound) as (node, store):
        outcome = await send(node, [*items, long])
        assert (outcome.counts["new"], outcome.counts["refused"], store.head) == (40, 1, 40)
        assert outcome.refusals == [RefusedItem(41, None, f"the body is longer than {bound} bytes")]


async def test_a_node_that_takes_one_event_a_request_gets_them_so(tmp_path: Path) -> None:
    requests: list[bytes] = []

    def wrap(app: ASGIApp) -> ASGIApp:
        async def ceramic_one(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                kind = dict(scope["headers"])[b"content-type"]
                requests.append(kind)
                if kind != b"application/json":
                    await JSONResponse({"message": "no"}, 400)(scope, receive, send)
                    return
            await app(scope, receive, send)

        return ceramic_one

    async with node_of(tmp_path, wrap) as (node, store):
        outcome = await send(node, sample_items(30))
        assert (outcome.counts["new"], outcome.counts["refused"], store.head) == (30, 0, 30)
    assert requests.count(b"application/json") == 30


@pytest.mark.parametrize(
    ("asked", "pause"), [("7", 7.0), ("9" * 400, MAX_PAUSE), ("-1", 0.0), ("soon", 0.0)]
)
def test_a_server_cannot_ask_for_a_pause_without_end(asked: str, pause: float) -> None:
    """It may be a proxy; the command would sit there without a word."""
    response = httpx.Response(503, headers={"retry-after": asked})
    assert Answer.of(response, b"").retry_after == pause


async def test_no_pause_follows_the_last_attempt(autojump_clock: MockClock) -> None:
    busy = httpx.ASGITransport(JSONResponse({"message": "busy"}, 503, {"retry-after": "60"}))
    begun = trio.current_time()
    async with AsyncConnection(transport=busy) as node:
        with pytest.raises(NodeError, match="busy"):
            await send_event(node, "m")
    assert trio.current_time() - begun == pytest.approx(60 * (BUSY_RETRIES - 1), abs=1)


ANSWERS = [
    (JSONResponse({"message": "the disk is full"}, 507), NodeError, "the disk is full"),
    (JSONResponse({"hello": "world"}), NotANodeError, "not a"),
]


@pytest.mark.parametrize(("answer", "error", "words"), ANSWERS)
async def test_an_answer_that_is_not_about_an_event_ends_it(tmp_path, answer, error, words):
    outcome = SendingOutcome()
    async with node_of(tmp_path, lambda _: answer) as (node, _):
        with pytest.RaisesGroup(pytest.RaisesExc(error, match=words), flatten_subgroups=True):
            await send_items(node, sample_items(3), outcome, workers=1, on_done=lambda *_: None)
    assert outcome.counts.total() == 0
