"""Which events get time events: the tips of the chosen streams, each exactly one."""

import sqlite3
from collections import Counter
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
import structlog.testing
import trio
from nacl.signing import SigningKey
from support.waiting import eventually

from recon_node.anchoring import anchoring_service
from recon_node.anchoring.anchoring_service import Anchoring, FullError
from recon_node.anchoring.authority import Pending
from recon_node.anchoring.journal import FILE_NAME, Journal, JournalError, RequestState
from recon_node.anchoring.settings import AnchorSettings
from recon_node.ceramic import Event, EventKind, Network, StreamId, StreamType, parse_event
from recon_node.ceramic.auth.did import controller_of
from recon_node.ceramic.builder import (
    data_event,
    deterministic_init_event,
    init_event,
    proof_block,
    time_event_car,
)
from recon_node.ceramic.time_proof import DEVELOPMENT_CHAIN, transaction_of
from recon_node.dag.dag_events import shard_event
from recon_node.fairness.slots import working_for
from recon_node.ipld import CID, DAG_CBOR, RAW, car
from recon_node.store import Store

KEYS = [SigningKey(bytes([number]) * 32) for number in range(1, 4)]
MODEL = StreamId(StreamType.MODEL, CID.of(DAG_CBOR, b"model"))
OTHER = StreamId(StreamType.MODEL, CID.of(DAG_CBOR, b"other model"))


async def write(store: Store, *events: Event) -> None:
    for verdict in await store.admit_local([event.car for event in events]):
        assert verdict.status == "new", verdict.reason


async def receive(store: Store, event: Event, init: Event, height: int) -> None:
    """Admit an event as a peer's."""
    [verdict] = await store.admit_remote(
        [(event.event_id(Network.local(7), init.header, height), event.car)]
    )
    assert verdict.status == "new", verdict.reason


async def settled(store: Store, anchoring: Anchoring) -> dict[CID, Event]:
    """All delivered events, once nothing is left to be anchored."""
    with trio.fail_after(60):
        while True:  # the counts are on the disk
            head = store.head
            status = await anchoring.status()
            counts = status.counts
            is_busy = counts[RequestState.WAITING] + counts[RequestState.IN_TREE]
            if status.position == head and not is_busy and not store.proofs_pending:
                rows = await store.reader.feed(0, 1_000_000)
                return {row.event_cid: parse_event(row.car) for row in rows}
            await trio.sleep(0.01)


def anchored(events: Iterable[Event]) -> Counter[CID]:
    return Counter(event.prevs[0] for event in events if event.kind is EventKind.TIME)


async def test_tips_of_own_streams_are_anchored_once(opened) -> None:
    own, foreign = init_event(KEYS[0], MODEL, {"n": 0}), init_event(KEYS[1], MODEL, {"n": 0})
    one = data_event(KEYS[0], own, [own.cid], [])
    left = data_event(KEYS[0], own, [one.cid], [{"op": "add", "path": "/a", "value": 1}])
    right = data_event(KEYS[0], own, [one.cid], [{"op": "add", "path": "/b", "value": 1}])
    async with opened(interval=3600) as (store, anchoring):
        await receive(store, foreign, foreign, 0)
        await write(store, own, one, left, right)
        await eventually(lambda: anchoring.follower.position >= store.head)
        anchoring.anchor_now()
        events = await settled(store, anchoring)
        assert anchored(events.values()) == {left.cid: 1, right.cid: 1}
        [tree] = await anchoring.latest_trees(9)
        assert (tree.leaves, tree.is_done, tree.cost) == (2, True, 0)
        times = {event.proof.root for event in events.values() if event.proof is not None}
        assert times == {tree.root}
        result = await anchoring.find(left.cid)
        assert (result.state, result.init) == (RequestState.ANCHORED, own.cid)
        witness = await anchoring.witness(result)
        assert witness is not None
        assert parse_event(witness).prevs == (left.cid,)


async def test_trees_go_on_when_the_clock_is_set_back_by_years(opened) -> None:
    first, second = init_event(KEYS[0], MODEL, {"n": 0}), init_event(KEYS[0], MODEL, {"n": 1})
    times = [2_000_000_000.0, 1_700_000_000.0]
    async with opened(interval=3600, now=lambda: times[0]) as (store, anchoring):
        await write(store, first)
        await eventually(lambda: anchoring.follower.position >= store.head)
        anchoring.anchor_now()
        await settled(store, anchoring)
        del times[0]
        await write(store, second)
        events = await settled(store, anchoring)
        assert anchored(events.values()) == {first.cid: 1, second.cid: 1}


async def test_a_time_event_from_elsewhere_is_enough(opened) -> None:
    init = init_event(KEYS[0], MODEL, {"n": 0})
    later = data_event(KEYS[0], init, [init.cid], [])
    proof = proof_block(DEVELOPMENT_CHAIN, init.cid, transaction_of(5))
    async with opened(interval=3600) as (store, anchoring):
        await write(store, init)
        # A page of the feed with both events would leave no request at all.
        await eventually(lambda: anchoring.follower.position >= 1)
        await store.admit_local([time_event_car(init.cid, init.cid, proof, "", {})])
        await eventually(lambda: anchoring.follower.position >= 2)
        assert (await anchoring.status()).counts[RequestState.COVERED] == 1
        await write(store, later)
        anchoring.anchor_now()
        await eventually(lambda: anchoring.follower.position >= 3)
        anchoring.anchor_now()
        events = await settled(store, anchoring)
        assert anchored(events.values()) == {init.cid: 1, later.cid: 1}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"streams": ("all",)}, {0, 1, 2}),
        ({"streams": (controller_of(KEYS[0]),)}, {0, 2}),
        ({"streams": (str(OTHER),)}, {2}),
        ({"streams": ("none",)}, set()),
        ({"unsigned": True}, {0, 1, 2, 3}),
        ({"streams": ("all",), "dags": True}, {0, 1, 2, 4}),
    ],
)
async def test_streams_are_chosen(opened, settings, expected) -> None:
    root = CID.of(RAW, b"a file")
    inits = [
        init_event(KEYS[0], MODEL, {}),
        init_event(KEYS[1], MODEL, {}),
        init_event(KEYS[0], OTHER, {}),
        deterministic_init_event(controller_of(KEYS[0]), OTHER),
        shard_event(KEYS[0], root, car.encode([root], {root: b"a file"})),
    ]
    async with opened(**settings) as (store, anchoring):
        await write(store, *inits)
        events = await settled(store, anchoring)
        assert anchored(events.values()) == {inits[number].cid: 1 for number in expected}


async def test_everything_is_covered_and_nothing_twice(opened, rng) -> None:
    """Writers and restarts at random: no tip is without a time event, no event has two."""
    streams = [[init_event(key, MODEL, {}, unique=bytes([at]))] for at, key in enumerate(KEYS)]
    known: list[Event] = [stream[0] for stream in streams]
    for _ in range(4):
        async with opened(batch=rng.choice([2, 1000])) as (store, anchoring):
            if not store.head:
                await write(store, *known)
            for _ in range(rng.randrange(1, 8)):
                at = rng.randrange(len(streams))
                prevs = rng.sample(streams[at], min(len(streams[at]), rng.choice([1, 1, 2])))
                patch = [{"op": "add", "path": "/n", "value": rng.random()}]
                cids = [prev.cid for prev in prevs]
                event = data_event(KEYS[at], streams[at][0], cids, patch)
                await write(store, event)
                streams[at].append(event)
                known.append(event)
                await trio.sleep(rng.random() / 30)
            if rng.random() < 0.5:
                await settled(store, anchoring)
    async with opened() as (store, anchoring):
        events = await settled(store, anchoring)
        assert set(events) >= {event.cid for event in known}
        made = anchored(events.values())
        assert set(made.values()) == {1}
        covered = {prev for event in known for prev in event.prevs}
        assert {event.cid for event in known} - covered <= set(made)


async def test_requests_are_bounded(opened) -> None:
    async with opened(streams=("none",), max_requests=1, interval=3600) as (_, anchoring):
        for number in range(2):
            with suppress(FullError):
                await anchoring.request(CID.of(DAG_CBOR, bytes([number])), MODEL)
        with pytest.raises(FullError, match="1 requests wait"):
            await anchoring.request(CID.of(DAG_CBOR, b"third"), MODEL)
        await anchoring.request(CID.of(DAG_CBOR, bytes([0])), MODEL)


async def test_what_is_kept_for_others_is_bounded(opened) -> None:
    roots = [CID.of(DAG_CBOR, bytes([number])) for number in range(3)]
    async with opened(streams=("none",), max_requests=1) as (_, anchoring):
        for number, root in enumerate(roots, 1):
            await anchoring.request(root, MODEL)
            await eventually(lambda number=number: anchoring.trees_done == number)
        results = [await anchoring.find(root) for root in roots]
        assert [request is not None for request in results] == [False, False, True]


async def test_an_event_is_anchored_for_its_own_stream(opened) -> None:
    """Whoever asks first, and whatever they say."""
    one, two = init_event(KEYS[0], MODEL, {"n": 0}), init_event(KEYS[1], MODEL, {"n": 0})
    late = data_event(KEYS[0], one, [one.cid], [])
    ids = [StreamId(StreamType.MODEL_INSTANCE, init.cid) for init in (one, two)]
    async with opened(streams=("none",), interval=3600) as (store, anchoring):
        assert (await anchoring.request(late.cid, ids[1])).init is None
        await write(store, one, two, late)
        for stream in reversed(ids):
            request = await anchoring.request(late.cid, stream)
            assert (request.init, request.stream) == (one.cid, str(stream))
        anchoring.anchor_now()
        events = await settled(store, anchoring)
        [time] = [event for event in events.values() if event.prevs == (late.cid,)]
        assert time.init == one.cid


async def test_a_cid_that_is_not_here_is_anchored_for_every_stream_that_is_named(opened) -> None:
    """By one leaf; each network gets the answer for the stream that it named."""
    root = CID.of(DAG_CBOR, b"the root of another node's tree")
    asked = {"192.0.2.1": OTHER, "192.0.2.2": MODEL}
    async with opened(streams=("none",), interval=3600) as (store, anchoring):
        for asker, stream in asked.items():
            with working_for(asker):
                request = await anchoring.request(root, stream)
            assert (request.stream, request.init) == (str(stream), None)
            assert request.state is RequestState.WAITING
        anchoring.anchor_now()
        await eventually(lambda: bool(anchoring.trees_done))
        for asker, stream in asked.items():
            with working_for(asker):
                results = [await anchoring.find(root), await anchoring.request(root, stream)]
            results.append(await anchoring.find(root, stream))
            for result in results:
                witness = await anchoring.witness(result)
                assert witness is not None
                event = parse_event(witness)
                assert (event.cid, event.init, event.prevs) == (result.event, stream.cid, (root,))
        [tree] = await anchoring.latest_trees(9)
        assert (tree.leaves, store.head) == (1, 0)


def test_a_journal_with_one_request_for_each_cid_is_read(tmp_path: Path) -> None:
    Journal(tmp_path).close()
    own, other = (CID.of(DAG_CBOR, bytes([number])) for number in range(2))
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as database:
        database.executescript(
            """
            DROP TABLE requests;
            CREATE TABLE requests (
                cid BLOB PRIMARY KEY, init BLOB, stream TEXT, state INTEGER NOT NULL,
                tree INTEGER, made_at REAL NOT NULL, event BLOB, car BLOB
            ) STRICT, WITHOUT ROWID;
            CREATE INDEX requests_by_state ON requests (state, made_at);
            CREATE INDEX requests_by_tree ON requests (tree) WHERE tree IS NOT NULL;
            PRAGMA user_version = 0;
            """
        )
        row = "INSERT INTO requests VALUES (?, ?, ?, 1, 4, 5.0, NULL, ?)"
        database.execute(row, (own, MODEL.cid, None, None))
        database.execute(row, (other, None, str(MODEL), b"its time event"))
        database.commit()
    with closing(Journal(tmp_path)) as journal:
        requests = {request.cid: request for request in journal.in_tree(4, None, 9)}
        assert [(requests[cid].of, requests[cid].init) for cid in (own, other)] == [
            ("", MODEL.cid),
            (str(MODEL), None),
        ]
        assert journal.car(requests[other]) == b"its time event"


async def test_a_refused_time_event_stops_no_tree(opened) -> None:
    one, two = init_event(KEYS[0], MODEL, {"n": 0}), init_event(KEYS[1], MODEL, {"n": 0})
    async with opened(streams=("none",)) as (store, anchoring):
        await write(store, one, two)
        anchoring._journal.request(one.cid, two.cid, str(MODEL), "", 0.0)  # as earlier versions did
        anchoring.anchor_now()
        await eventually(lambda: anchoring.trees_done == 1)
        assert store.head == 2


async def logged_reasons(opened, monkeypatch, answers: list[Pending]) -> list[str]:
    """Return why a tree waits, as the log says it, with answers of an authority."""
    async with opened(streams=("none",), interval=3600, pause=0.001) as (_, anchoring):
        advance = anchoring._authority.advance
        lies = AsyncMock(side_effect=[*answers, await advance(CID.of(DAG_CBOR, b"root"))])
        monkeypatch.setattr(anchoring._authority, "advance", lies)
        await anchoring.request(CID.of(DAG_CBOR, b"the root of another node's tree"), MODEL)
        with structlog.testing.capture_logs() as logs:
            anchoring.anchor_now()
            await eventually(lambda: anchoring.trees_done == 1)
    assert [line["transaction"][:2] for line in logs if "transaction" in line] == ["0x"]
    return [line["reason"] for line in logs if "waits" in line["event"]]


async def test_an_alarm_whose_figures_change_does_not_fill_the_log(opened, monkeypatch) -> None:
    """For as long as the chain asks for more than the node pays, which may be weeks."""
    answers = [Pending("sent"), *(Pending(f"{fee} gwei", True) for fee in range(9)), Pending("ok")]
    reasons = await logged_reasons(opened, monkeypatch, answers)
    assert reasons == ["sent", "0 gwei", "ok"]


async def test_another_alarm_that_lasts_is_logged_later(opened, monkeypatch) -> None:
    monkeypatch.setattr(anchoring_service, "_WARNING_PAUSE", 0.01)
    answers = [Pending("no endpoint", True), *[Pending("the contract", True)] * 50]
    reasons = await logged_reasons(opened, monkeypatch, answers)
    assert reasons == ["no endpoint", "the contract"]


@pytest.mark.parametrize("error", [TypeError("a bug"), JournalError("the disk is full")])
async def test_the_alarm_about_a_fault_ends_with_it(opened, monkeypatch, error) -> None:
    async with opened(streams=("none",), interval=3600) as (_, anchoring):
        await anchoring.request(CID.of(DAG_CBOR, b"the root of another node's tree"), MODEL)
        for name in ("AFTER_BUG", "AFTER_FAULT"):
            monkeypatch.setattr(anchoring_service, name, 0.01)
        alarms, finish = [], Journal.finish_requests

        def finish_requests(*arguments: Any) -> None:
            alarms.append(anchoring.alarm)
            finish(*arguments)

        monkeypatch.setattr(Journal, "finish_requests", finish_requests)
        with monkeypatch.context() as broken:
            broken.setattr(Journal, "finish_requests", Mock(side_effect=error))
            anchoring.anchor_now()
            await eventually(lambda: str(error) in anchoring.alarm)
        await eventually(lambda: anchoring.trees_done == 1)
        assert (alarms, anchoring.alarm) == ([""], "")


def test_waiting_requests_are_counted(tmp_path: Path) -> None:
    with closing(Journal(tmp_path)) as journal:
        for number in range(3):
            journal.request(CID.of(DAG_CBOR, bytes([number])), None, str(MODEL), "", 0.0)
            assert [journal.are_waiting(count) for count in (number + 1, number + 2)] == [
                True,
                False,
            ]
        assert journal.counts([RequestState.WAITING]) == {RequestState.WAITING: 3}


@pytest.mark.parametrize(("asker", "stream"), [("", "stream 7"), ("2001:db8::", None), ("", None)])
def test_a_request_is_found_among_many_for_its_cid(tmp_path, asker, stream) -> None:
    """Whoever may request can name any number of streams with one CID."""
    cid, steps = CID.of(DAG_CBOR, b"root"), 0

    def step() -> None:
        nonlocal steps
        steps += 1

    with closing(Journal(tmp_path)) as journal:
        for number in range(500):
            network = "2001:db8::" if number == 7 else "192.0.2.1"
            journal.request(cid, None, f"stream {number}", network, 0.0)
        journal._connection.set_progress_handler(step, 10)
        found = journal.find(cid, asker, stream)
    assert found is not None
    assert steps < 50
    assert found.of == "stream 7" or not (asker or stream)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"chain": "gnosis"}, "is not an EVM chain"),
        ({"contract": "0x12"}, "is not an address"),
        ({"contract": "0x231055a0852D67C7107Ad0d0DFeab60278fE6AdC"}, "misspelled"),
        ({"interval": "soon"}, "is not a time"),
        ({"streams": ("mine",)}, "mine"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        AnchorSettings(**settings)
