"""Releases: many events wait for one event or anchor, and move in small steps, whatever happens."""

from contextlib import closing
from itertools import chain
from pathlib import Path
from random import Random

import pytest
import trio
from bare_log import QUICK, BareLog
from store_helpers import KEYS, NETWORK, World, edit, feed_of
from structlog.testing import capture_logs
from support.forging import forged
from support.time_events import time_event

from recon_node.ceramic import Event
from recon_node.ceramic.builder import data_event
from recon_node.fairness.pacing import Backoff
from recon_node.store import StoreSettings, intake, open_store
from recon_node.store.admission.ladder import Ladder
from recon_node.store.admission.records import Inquiry, Record
from recon_node.store.db import releases, sql
from recon_node.store.db.log import Committed, EventLog
from recon_node.store.db.settling import commit_releases
from recon_node.store.intake import Intake
from recon_node.store.maintenance import check_log


def many_waiting(size: int, seed: int = 0) -> tuple[World, Event, list[Event]]:
    """A stream, and events right above its init event, some of them behind an anchor."""
    world = World(seed, streams=1, events=0)
    [init] = world.events.values()
    rng = Random(seed)
    events = []
    for n in range(size):
        if rng.random() < 0.5:
            anchor = time_event(init.cid, init.cid, tx_hash=n.to_bytes(32))
            events.append(world.add(anchor))
        else:
            events.append(world.extend(init.cid, [init.cid], n))
    return world, init, events


def test_a_transaction_looks_at_a_bounded_number_of_waiting_events(tmp_path, monkeypatch):
    monkeypatch.setattr(releases, "MAX_WAITERS", 16)
    world, init, events = many_waiting(200)
    log = BareLog(tmp_path)
    log.offer([world.offer(event) for event in events])
    assert log.marks.waiting == 200
    assert not log.marks.has_releases
    log.offer([world.offer(init)])
    steps = [log.marks.waiting]
    while log.marks.has_releases:
        commit_releases(log)
        steps.append(log.marks.waiting)
    assert steps == [*range(184, 0, -16), 0]
    data = [event for event in events if event.proof is None]
    assert log.marks.head == 1 + len(data)
    log.close()


def test_what_is_offered_under_wrong_event_ids_releases_nothing(tmp_path: Path) -> None:
    """However many wait for it: each offer would have all of them loaded."""
    world, init, _ = many_waiting(0)
    late = world.extend(init.cid, [init.cid], "late")
    waiting = [world.extend(init.cid, [late.cid], n) for n in range(300)]
    with closing(BareLog(tmp_path)) as log:
        log.offer([world.offer(event) for event in (init, *waiting)])
        asked: list[str] = []
        log.connection.set_trace_callback(asked.append)
        for height in range(3, 9):
            [verdict] = log.offer([world.offer(late, height=height)])
            assert verdict.status == "refused"
            assert not log.marks.has_releases
        log.connection.set_trace_callback(None)
        assert not any("event FROM waits" in sql for sql in asked)
        log.admit([world.offer(late)])
        assert (log.marks.waiting, log.marks.head) == (0, 302)


def test_what_is_refused_for_want_of_room_releases_nothing(tmp_path, monkeypatch):
    """However many badly signed events wait for it: each offer would have all of them loaded."""
    monkeypatch.setattr(releases, "MAX_WAITERS", 4)
    world, init, _ = many_waiting(0)
    anchors = [time_event(init.cid, init.cid, tx_hash=bytes([n] * 32)) for n in range(21)]
    bad = [forged(data_event(KEYS[0], init.cid, [anchors[-1].cid], n)) for n in range(10)]
    for event in (*anchors, *bad):
        world.add(event)
    few = StoreSettings(synchronous="normal", max_waiting=20)
    with closing(BareLog(tmp_path, few)) as log:
        log.offer([world.offer(event) for event in (init, *anchors[:-1], *bad)])
        [verdict] = log.offer([world.offer(anchors[-1])])
        assert (verdict.status, verdict.cause) == ("refused", "waiting")
        assert not log.marks.has_releases


def test_releases_take_turns(tmp_path, monkeypatch):
    """However many wait for an event of one stream, those of another do not wait for them."""
    monkeypatch.setattr(releases, "MAX_WAITERS", 4)
    world = World(3, streams=2, events=0)
    inits = list(world.events.values())
    waiting = [world.extend(init.cid, [init.cid], n) for init in inits for n in range(40)]
    log = BareLog(tmp_path)
    log.offer([world.offer(event) for event in waiting])
    for init in inits:
        log.offer([world.offer(init)])
    for _ in range(6):
        commit_releases(log)
    sql = "SELECT count(position) FROM events WHERE kind = 'data' GROUP BY init_cid"
    moved = [number for (number,) in log.connection.execute(sql)]
    assert sum(moved) == 8 * 4
    assert abs(moved[0] - moved[1]) <= 4
    log.finish_releases()
    assert log.marks.head == 82
    log.close()


async def test_the_events_of_an_anchor_move_on_when_nothing_else_comes(tmp_path, monkeypatch):
    monkeypatch.setattr(releases, "MAX_WAITERS", 16)
    world = World(1, streams=40, events=0)
    anchors = [world.add(time_event(cid, cid)) for cid in list(world.events)]
    proofs = {anchor.payload["proof"] for anchor in anchors}
    async with open_store(tmp_path, NETWORK, settings=QUICK) as store:
        await store.admit_remote(world.offers())
        await store.settle_proofs([(proof, 7) for proof in proofs])
        with trio.fail_after(60):
            await store.wait_for_feed(79)


def streams_of_seven(world, count):
    """The init events of some streams, and the six events that build on each, by its CID."""
    inits = [world.start(KEYS[0], bytes([n])) for n in range(count)]
    return inits, {
        init.cid: [world.extend(init.cid, [init.cid], n) for n in range(6)] for init in inits
    }


async def test_a_release_over_which_the_node_fails_holds_up_no_other_event(tmp_path, monkeypatch):
    monkeypatch.setattr(releases, "MAX_WAITERS", 4)
    monkeypatch.setattr(intake, "_PAUSES", Backoff(0.01, 0.01))
    world = World(0, streams=0, events=0)
    inits, waiting = streams_of_seven(world, 8)
    broken = waiting[inits[0].cid][-1]
    move = Ladder._move_held

    def fail(self: Ladder, record: Record) -> Inquiry[bool]:
        if record.cid == broken.cid:
            raise KeyError("a bug")
        return (yield from move(self, record))

    async with open_store(tmp_path, NETWORK, settings=QUICK) as store:
        await store.admit_remote([*map(world.offer, chain(*waiting.values()))])
        monkeypatch.setattr(Ladder, "_move_held", fail)
        with trio.fail_after(60):
            for init in inits:
                await store.admit_remote([world.offer(init)])
            await store.wait_for_feed(8 * 7 - 3)
            assert (await store.admit_local([world.start(KEYS[1], b"own").car]))[0].position
        assert store.waiting == 2
    monkeypatch.undo()
    async with open_store(tmp_path, NETWORK, settings=QUICK) as store:
        with trio.fail_after(60):
            await store.wait_for_feed(8 * 7)


async def test_a_damaged_release_holds_up_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr(releases, "MAX_WAITERS", 4)
    monkeypatch.setattr(intake, "_PAUSES", Backoff(0.01, 0.01))
    world = World(0, streams=0, events=0)
    inits, waiting = streams_of_seven(world, 2)
    async with open_store(tmp_path, NETWORK, settings=QUICK) as store:
        await store.admit_remote([*map(world.offer, chain(*waiting.values()))])
    edit(tmp_path, "INSERT INTO releases VALUES (x'01', 0)")
    async with open_store(tmp_path, NETWORK, settings=QUICK) as store:
        with trio.fail_after(60), capture_logs() as logs:
            await store.admit_remote([*map(world.offer, inits)])
            await store.wait_for_feed(2 * 7 - 1)
    assert "check --repair" in logs[0]["reason"]
    assert [fault.where for fault in check_log(tmp_path).faults] == ["releases"]


async def test_after_a_fault_that_is_over_releases_go_together_again(tmp_path, monkeypatch):
    """And if it comes back, it is logged again."""
    monkeypatch.setattr(releases, "MAX_WAITERS", 4)
    monkeypatch.setattr(intake, "_PAUSES", Backoff(0.01, 0.01))
    world = World(0, streams=0, events=0)
    inits, waiting = streams_of_seven(world, 2)
    move, faults, modes = Ladder._move_held, [KeyError("a bug")], []

    def fail(self: Ladder, record: Record) -> Inquiry[bool]:
        if record.cid in last and faults:
            raise faults.pop()
        return (yield from move(self, record))

    def step(log: EventLog, *, alone: bool = False) -> Committed:
        modes.append(alone)
        return commit_releases(log, alone=alone)

    last = {events[-1].cid for events in waiting.values()}
    monkeypatch.setattr(intake, "commit_releases", step)
    async with open_store(tmp_path, NETWORK, settings=QUICK) as store:
        await store.admit_remote([*map(world.offer, chain(*waiting.values()))])
        monkeypatch.setattr(Ladder, "_move_held", fail)
        with trio.fail_after(60), capture_logs() as logs:
            for head, init in zip((7, 14), inits, strict=True):
                modes.clear()
                await store.admit_remote([world.offer(init)])
                await store.wait_for_feed(head - 1)
                assert modes == [False, True]
                faults.append(KeyError("a bug"))
    errors = [entry for entry in logs if entry["log_level"] == "error"]
    assert len(errors) == 2


async def not_ahead(_intake: Intake, _batch: object) -> None:
    """Verify nothing."""


@pytest.mark.parametrize("seed", range(2))
async def test_others_are_admitted_in_between_and_a_restart_continues(tmp_path, monkeypatch, seed):
    monkeypatch.setattr(releases, "MAX_WAITERS", 2)
    # The rules verify the stranger's event then; a check ahead could take as long as the release.
    monkeypatch.setattr(Intake, "_verify", not_ahead)
    world, init, events = many_waiting(150, seed)
    stranger = world.start(KEYS[3], b"another stream")
    last = world.extend(
        init.cid, [event.cid for event in events[:100] if not event.proof], "on top"
    )
    offers = [world.offer(event) for event in (*events, last)]
    async with open_store(tmp_path, NETWORK, settings=QUICK) as store:
        await store.admit_remote(offers)
        await store.admit_remote([world.offer(init)])
        [verdict] = await store.admit_remote([world.offer(stranger)])
        assert verdict.position is not None
        assert store.waiting > 0  # the release is still under way
    expected = {e.cid for e in world.events.values() if e.proof is None}
    with trio.fail_after(60):
        async with open_store(tmp_path, NETWORK, settings=QUICK) as store:
            await store.wait_for_feed(len(expected) - 1)
            while store.waiting:  # noqa: ASYNC110 - time events, which get no position yet
                await trio.sleep(0.01)
            assert {row.event_cid for row in await feed_of(store)} == expected


@pytest.mark.parametrize("seed", range(4))
def test_no_event_is_left_waiting_whose_history_is_here(tmp_path, monkeypatch, seed):
    """Each waits for several events of a batch, which are looked up in parts."""
    monkeypatch.setattr(releases, "MAX_WAITERS", 16)
    monkeypatch.setattr(sql, "_VALUES_PER_STATEMENT", 5)
    world = World(seed, streams=20, events=400)
    offers = world.offers()
    Random(seed).shuffle(offers)
    log = BareLog(tmp_path)
    for start in range(0, len(offers), 40):
        log.offer(offers[start : start + 40])
    log.finish_releases()
    assert (log.marks.waiting, log.marks.head) == (0, len(offers))
    log.close()
