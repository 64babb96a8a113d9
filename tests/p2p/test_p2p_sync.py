"""When syncs run: requests are not lost, slow peers keep nobody waiting, interests are heard.

The clock is virtual, so that minutes pass at once; sockets and disks do not go with that, and what
needs them is stood for by the least that the syncer sees of it.
"""

import sqlite3
from collections import Counter
from contextlib import closing
from types import SimpleNamespace
from unittest.mock import AsyncMock, Mock

import pytest
import trio
from p2p_support import LOOPBACK, eventually, node
from sync_doubles import OURS, Connected, Recorded, Wanting, scheduler

from recon_node.p2p.context import Context, Counters
from recon_node.p2p.errors import MISBEHAVED, CutShortError, PeerGoneError, PeerProtocolError
from recon_node.p2p.peers.book import PeerBook
from recon_node.p2p.peers.connections import VISIT
from recon_node.p2p.sync import reconciler
from recon_node.p2p.sync.reconciler import PeerMemory, Reconciler
from recon_node.p2p.sync.sync_scheduler import ASK_FOR_ALL_EVERY, MAX_SYNCS, REPAIR_PAUSE, SLOT_TIME
from recon_node.recon import KeyRange
from recon_node.store import DamagedEventError

OURS.sort()


@pytest.fixture
async def running(nursery):
    book, sessions = PeerBook(200), Recorded()
    syncer = scheduler(Context(Connected(), Wanting(), book, LOOPBACK, Counters()), sessions)
    nursery.start_soon(syncer.run)
    await trio.testing.wait_all_tasks_blocked()
    return syncer, book, sessions


async def test_a_request_during_a_sync_is_not_lost(running, autojump_clock):
    syncer, _, sessions = running
    sessions.seconds["a"] = 5
    for _ in range(3):
        syncer.request("a")
    await trio.sleep(2)
    assert len(sessions.asked) == 1
    syncer.request("a")
    await trio.sleep(60)
    assert [peer for peer, _ in sessions.asked] == ["a"] * 4  # both ranges, twice


async def test_slow_peers_do_not_keep_others_from_syncing(running, autojump_clock):
    syncer, book, sessions = running
    for number in range(LOOPBACK.sync_peers):
        sessions.seconds[f"slow {number}"] = 1000
        syncer.request(f"slow {number}")
    await trio.sleep(1)
    syncer.request("quick")
    await trio.sleep(SLOT_TIME - 2)
    assert "quick" not in {peer for peer, _ in sessions.asked}
    await trio.sleep(2)
    assert "quick" in {peer for peer, _ in sessions.asked}
    assert book.get("quick").last_sync is not None


async def near(syncer, book, sessions, *names: str) -> None:
    """Connect peers that do not state their interests, and let them stall, but for the quick."""
    for name in names:
        book.note_peer(name, ())
        sessions.seconds[name] = 0 if name.startswith("quick") else 1e6
    syncer._host.near += names
    await trio.sleep(2 * LOOPBACK.sync_interval)


async def test_a_crowd_at_one_address_that_stalls_keeps_nobody_from_syncing(
    running, autojump_clock, monkeypatch
):
    """Peers that do not state their interests have a sync in each round, all 150 of them."""
    syncer, book, sessions = running
    monkeypatch.setattr(syncer._host, "address_block", lambda peer_id: peer_id.split()[0])
    await near(syncer, book, sessions, *(f"crowd {number}" for number in range(150)))
    await near(syncer, book, sessions, "quick")
    assert "quick" in {peer for peer, _ in sessions.asked}


async def test_a_crowd_of_connected_peers_keeps_no_other_from_being_dialled(
    running, autojump_clock, monkeypatch
):
    syncer, book, sessions = running
    dialled = []
    await near(syncer, book, sessions, *(f"crowd {number}" for number in range(150)))
    monkeypatch.setattr(syncer._host, "connect", AsyncMock(side_effect=dialled.append))
    book.note_peer("fake", ["/ip4/10.0.0.1/tcp/1"])  # which is not connected
    syncer.request("fake")
    await trio.sleep(1)
    assert dialled == ["/ip4/10.0.0.1/tcp/1/p2p/fake"]


async def test_a_silent_peer_that_fails_is_left_alone(running, autojump_clock):
    syncer, book, sessions = running
    sessions.error["quick to fail"] = PeerProtocolError("nonsense")
    await near(syncer, book, sessions, "quick to fail")
    await trio.sleep(20 * LOOPBACK.sync_interval)
    assert 1 <= len(sessions.asked) <= 10


async def test_a_peer_that_breaks_the_protocol_is_left_alone_longer(running, autojump_clock):
    syncer, book, sessions = running
    sessions.error = {"lost": PeerGoneError("gone"), "bad": PeerProtocolError("nonsense")}
    for peer in sessions.error:
        syncer.request(peer)
    await trio.testing.wait_all_tasks_blocked()
    assert book.get("lost").failures == 1
    assert book.get("bad").failures == MISBEHAVED


async def test_what_does_not_interest_a_peer_is_asked_for_rarely(running, autojump_clock):
    syncer, book, sessions = running

    async def ranges_asked_for() -> list[KeyRange]:
        sessions.asked.clear()
        syncer.request("a")
        await trio.testing.wait_all_tasks_blocked()
        return [key_range for _, key_range in sessions.asked]

    assert await ranges_asked_for() == OURS  # nothing is known of its interests
    book.asked_for("a", OURS[1])
    assert await ranges_asked_for() == [OURS[1]]
    await trio.sleep(ASK_FOR_ALL_EVERY + 1)
    assert await ranges_asked_for() == OURS
    assert await ranges_asked_for() == [OURS[1]]


async def test_peers_are_synced_with_from_time_to_time(running, autojump_clock):
    _, book, sessions = running
    book.note_peer("a", ["/ip4/127.0.0.1/tcp/1"])
    await trio.sleep(LOOPBACK.sync_interval * 10)
    assert 8 <= len(sessions.asked) / len(OURS) <= 14


async def test_every_range_is_announced_to_every_peer_that_does_not_state_its_interests(
    nursery, autojump_clock
):
    """Twice as many as are drawn in a round (CIP-124: "for every range ... to all peers")."""
    host, book, sessions = Connected(), PeerBook(200), Recorded()
    names = [f"peer {number}" for number in range(2 * LOOPBACK.sync_peers)]
    for name in names:
        book.note_peer(name, ["/ip4/127.0.0.1/tcp/1"])
    host.near += names
    nursery.start_soon(
        scheduler(Context(host, Wanting(), book, LOOPBACK, Counters()), sessions).run
    )
    rounds = 10
    await trio.sleep(LOOPBACK.sync_interval * rounds)
    asked = Counter(sessions.asked)
    for name in names:
        for key_range in OURS:
            assert 0.7 * rounds <= asked[name, key_range] <= 1.5 * rounds


async def test_a_new_interest_is_asked_for_at_once(nursery, autojump_clock):
    host, store, book, sessions = Connected(), Wanting(), PeerBook(200), Recorded()
    context = Context(host, store, book, LOOPBACK, Counters())
    nursery.start_soon(scheduler(context, sessions).run)
    await trio.testing.wait_all_tasks_blocked()
    for name in ("near", "far"):
        book.note_peer(name, ["/ip4/127.0.0.1/tcp/1"])
    host.near.append("near")
    book.asked_for("near", OURS[1])  # before, it was known not to want the rest
    book.get("near").asked_for_all_at = trio.current_time()
    store.wants_more.set()
    await trio.testing.wait_all_tasks_blocked()
    assert sessions.asked == [("near", key_range) for key_range in OURS]


async def test_peers_that_do_not_exist_keep_nobody_waiting(running, autojump_clock):
    """And no more of them are dialled at once than there may be syncs."""
    syncer, book, sessions = running
    for number in range(2 * MAX_SYNCS):
        addresses = [f"/ip4/10.0.0.{last}/tcp/1" for last in range(8)]
        book.note_peer(f"fake {number}", addresses)
        syncer.request(f"fake {number}")
    await trio.sleep(1)
    assert len(syncer._running) == MAX_SYNCS
    syncer.request("quick")
    await trio.sleep(1)
    assert {peer for peer, _ in sessions.asked} == {"quick"}
    await trio.sleep(1000)
    assert sum(peer.failures > 0 for peer in book.peers()) >= MAX_SYNCS


async def test_connected_peers_have_their_turn_however_many_others_are_known(
    running, autojump_clock, monkeypatch
):
    syncer, book, sessions = running
    for number in range(90):
        book.note_peer(f"fake {number}", ["/ip4/10.0.0.1/tcp/1"])
    book.note_peer("a", ["/ip4/10.0.0.1/tcp/1"])
    monkeypatch.setattr(syncer._host, "connected_peers", lambda: ["a"])
    await trio.sleep(LOOPBACK.sync_interval * 10)
    assert 8 <= len(sessions.asked) / len(OURS) <= 14


async def test_much_damage_makes_few_syncs(running, autojump_clock):
    syncer, _, _ = running
    syncer._host.near = [f"peer {n}" for n in range(10)]
    asked = []
    syncer.request = lambda peer_id, ranges=None: asked.append(peer_id)
    for _ in range(100):
        syncer._store.damage.find()
        await trio.sleep(REPAIR_PAUSE / 100)
    await trio.sleep(2 * REPAIR_PAUSE)
    assert len(asked) == 6, "three peers at once, and for everything found during the pause"


async def test_a_peer_that_speaks_no_version_of_recon_is_connected_to_and_no_more(
    running, autojump_clock
):
    syncer, book, sessions = running
    book.note_peer("ceramic-one", ["/ip4/192.0.2.1/tcp/4101"])
    sessions.unable.add("ceramic-one")
    syncer.request("ceramic-one")
    await trio.sleep(60)
    assert [peer for peer, _ in sessions.asked if peer == "ceramic-one"] == []
    assert book.get("ceramic-one").failures == 0


class Visited(Connected):
    """A host that reaches everyone, at once."""

    def is_connected(self, peer_id):
        return peer_id in self.near

    async def connect(self, address):
        await trio.lowlevel.checkpoint()
        self.near.append(address.rpartition("/")[2])

    async def disconnect(self, peer_id):
        self.near.remove(peer_id)


async def visiting(nursery, far: int, needed: frozenset[str], seconds: float = 1.0):
    """Return the host and the sessions of a node whose peers are all far, and the peers."""
    book, sessions, host = PeerBook(200), Recorded(), Visited()
    peers = [f"peer{number}" for number in range(far)]
    for peer in peers:
        book.note_peer(peer, [f"/ip4/192.0.2.1/tcp/4101/p2p/{peer}"])
        sessions.seconds[peer] = seconds
    context = Context(host, Wanting(), book, LOOPBACK, Counters())
    syncer = scheduler(context, sessions, is_needed=needed.__contains__)
    nursery.start_soon(syncer.run)
    return host, sessions, syncer


async def test_peers_that_are_not_needed_are_let_go_after_a_sync(nursery, autojump_clock):
    host, sessions, _ = await visiting(nursery, 6, frozenset({"peer3"}))
    await trio.sleep(100 * LOOPBACK.sync_interval)
    assert {peer for peer, _ in sessions.asked} == {f"peer{number}" for number in range(6)}
    await trio.sleep(VISIT)
    assert "peer3" in host.near
    assert len(host.near) <= 1 + LOOPBACK.sync_peers  # some may be on a visit just now


async def test_a_long_visit_is_not_cut_short_nor_is_a_connection_that_was_asked_for(
    nursery, autojump_clock
):
    host, _, syncer = await visiting(nursery, 1, frozenset(), seconds=VISIT)
    await trio.sleep(10 * VISIT)
    assert host.near == ["peer0"]
    host, _, syncer = await visiting(nursery, 0, frozenset())
    syncer._book.note_peer("named", ["/ip4/192.0.2.1/tcp/4101/p2p/named"])
    await trio.testing.wait_all_tasks_blocked()
    syncer.request("named")
    await trio.sleep(0.1)
    await trio.sleep(LOOPBACK.sync_interval)
    assert host.near == ["named"]


async def test_a_request_while_a_visit_ends_is_not_lost(nursery, autojump_clock):
    host, sessions, syncer = await visiting(nursery, 1, frozenset(), seconds=0.5)
    sessions.seconds_of_peers = 1  # for which our sync waits, and then the end of the visit
    await trio.sleep(2.5)
    assert (host.near, len(sessions.asked)) == (["peer0"], len(OURS))
    syncer.request("peer0")
    await trio.sleep(2.5)
    assert (host.near, len(sessions.asked)) == (["peer0"], 2 * len(OURS))


async def test_a_range_that_a_peer_cuts_into_many_parts_is_done_in_several_syncs(monkeypatch):
    """It has that many interests, and is not to blame for it."""
    monkeypatch.setattr(reconciler, "MAX_SESSIONS_PER_RANGE", 4)
    asked = []

    async def initiate(peer_id, protocols, begin):
        [rest, _] = begin.args
        asked.append(rest.lower)
        above = bytes([rest.lower[0] + 1])
        remaining = KeyRange(above, rest.upper) if above < rest.upper else None
        side = SimpleNamespace(key_range=KeyRange(rest.lower, above), remaining=remaining)
        return SimpleNamespace(side=side, tally=SimpleNamespace(not_supplied=0))

    doubles = {"_sessions": SimpleNamespace(initiate=initiate), "book": Mock(), "_begin": Mock()}
    ours = SimpleNamespace(versions={}, memory=PeerMemory(), **doubles)
    for syncs in range(2):
        for _ in range(2):
            with pytest.raises(CutShortError, match="more than 4 parts"):
                await Reconciler.reconcile(ours, "peer", KeyRange(b"a", b"k"))
        assert await Reconciler.reconcile(ours, "peer", KeyRange(b"a", b"k")) == 0
        assert asked == [bytes([letter]) for letter in b"abcdefghij"] * (syncs + 1)


async def test_a_damaged_event_comes_again_from_a_peer(tmp_path, sdk_cars):
    cars = sdk_cars[:40]
    # No sync comes from time to time: the damage alone is the reason for one.
    async with (
        node(tmp_path / "a", cars, sync_interval=3600) as a,
        node(tmp_path / "b", sync_interval=3600) as b,
    ):
        await b.p2p.connect(a.address)
        await eventually(lambda: b.holds_as_many_as(40))
        agreed = b.ahash()
        [row] = await b.store.reader.feed(8, 1)
        with closing(sqlite3.connect(tmp_path / "b" / "events.sqlite3")) as connection:
            of_event = "id = (SELECT id FROM events WHERE position = 9)"
            connection.execute(f"UPDATE cars SET car = zeroblob(length(car)) WHERE {of_event}")
            connection.commit()
        with pytest.raises(DamagedEventError):
            await b.store.reader.car(row.event_cid)
        await eventually(lambda: b.store.damage.repaired_total == 1)
        assert await b.store.reader.car(row.event_cid) == row.car
        assert await b.store.reader.feed(8, 1) == [row]
        assert (b.ahash(), b.store.damage.count) == (agreed, 0)
        assert b.failures(a.p2p.peer_id) == 0
