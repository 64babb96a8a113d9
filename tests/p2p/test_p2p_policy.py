"""Write policies against the junk-event attack of CIP-124 ("Security Considerations").

Anybody can create events, each with a controller of its own, all over a stream set. A node that
refuses them still gets the rest, from peers that hold the junk as well, and blames nobody.
"""

import hashlib

import pytest
from nacl.signing import SigningKey
from p2p_support import eventually, node, sessions, two_nodes
from support.time_events import time_event

from recon_node.ceramic import StreamId, StreamType
from recon_node.ceramic.auth.did import controller_of
from recon_node.ceramic.builder import data_event, deterministic_init_event, init_event
from recon_node.fairness.pacing import Backoff
from recon_node.ipld import CID, DAG_CBOR
from recon_node.p2p import AGREED
from recon_node.p2p.sync import fetch, sync_scheduler
from recon_node.p2p.sync.reconciler import MAX_UNWANTED_REMEMBERED, UNWANTED_FOR, PeerMemory
from recon_node.p2p.sync.rings import MODEL_RING
from recon_node.recon import RECON_1_2, VERSIONS, KeyStore, SessionSettings
from recon_node.recon.session import Side
from recon_node.store import Policy, PolicySettings
from recon_node.store import store as disk_reserve

MODEL = StreamId(StreamType.MODEL, CID.of(DAG_CBOR, b"model"))
MEMBER = SigningKey(bytes(range(32)))
QUIET = {"sync_interval": 3600}
JUNK = 60
FEW = SessionSettings(max_not_supplied=JUNK // 3)
"""As many events that cannot be had are the peer's fault; that is how attackers are recognized."""


def members_events(count: int, first: int = 0) -> list[bytes]:
    """The events of one stream of the member, and of several others."""
    inits = [init_event(MEMBER, MODEL, None, unique=b"%d" % n) for n in range(first, first + count)]
    change = data_event(MEMBER, inits[0], [inits[0].cid], {})
    return [*(init.car for init in inits), change.car]


def junk(count: int) -> list[bytes]:
    """Streams with controllers that nobody knows, all over the stream set."""
    keys = (SigningKey(hashlib.sha256(b"%d" % n).digest()) for n in range(count))
    return [init_event(key, MODEL, None).car for key in keys]


MEMBERS = {"policy": Policy.of(PolicySettings(allow_controllers=(controller_of(MEMBER),)))}


async def test_junk_is_neither_fetched_nor_listed_twice_and_the_rest_goes_on(tmp_path, version):
    good = members_events(20)
    options = {**QUIET, "versions": [version], "recon": FEW}
    async with two_nodes(tmp_path, [*junk(JUNK), *good], only_b=MEMBERS, **options) as (a, b):
        await eventually(lambda: b.holds_as_many_as(len(good)))
        await eventually(lambda: b.outcomes() and a.outcomes())
        assert set(b.outcomes()) == {f"{AGREED} but for {JUNK} keys left out here"}
        assert set(a.outcomes()) == {f"{AGREED} but for {JUNK} keys left out by the peer"}
        assert b.p2p.counters.keys_unwanted == JUNK
        assert b.p2p.counters.events_received == len(good)
        assert b.p2p.counters.event_bytes_received < 2 * sum(map(len, good))
        assert (a.failures(b.p2p.peer_id), b.failures(a.p2p.peer_id)) == (0, 0)
        # The next sessions are about what is new, whichever side starts them.
        first = b.p2p.counters.recon_bytes_received
        more = members_events(3, first=100)
        await a.store.admit_local(more)
        await eventually(lambda: b.holds_as_many_as(len([*good, *more])))
        await eventually(lambda: len(b.outcomes()) > 1)
        last = members_events(3, first=200)
        await b.store.admit_local(last)
        await eventually(lambda: a.store.head == JUNK + len([*good, *more, *last]))
        if version is RECON_1_2:  # in 1.0.0, a side cannot tell the other what it left out
            assert b.p2p.counters.keys_unwanted == JUNK
            assert b.p2p.counters.recon_bytes_received - first < first / 3
        assert (a.failures(b.p2p.peer_id), b.failures(a.p2p.peer_id)) == (0, 0)
        assert sessions(b.p2p.counters, "failed") == sessions(a.p2p.counters, "failed") == 0


async def test_unsigned_events_in_a_members_name_go_no_further(tmp_path, version):
    """Whoever has them is not to blame, and they count as soon as the member builds on them."""
    did = controller_of(MEMBER)
    inits = [deterministic_init_event(did, MODEL, unique=b"%d" % n) for n in range(JUNK)]
    made_up = [time_event(init, init.cid, tx_hash=bytes(32)) for init in inits[:10]]
    good = members_events(20)
    options = {"sync_interval": 0.1, "versions": [version], "recon": FEW, "ceramic_one": False}
    cars = [*good, *(init.car for init in (*inits, *made_up))]
    async with (
        node(tmp_path / "a", cars, **options) as a,
        node(tmp_path / "b", **MEMBERS, **options) as b,
        node(tmp_path / "c", **options) as c,
    ):
        await c.p2p.connect(b.address)
        await b.p2p.connect(a.address)
        await eventually(lambda: c.store.head == len(good))
        await eventually(lambda: b.store.withheld == JUNK + 10)
        signed = data_event(MEMBER, inits[0], [made_up[0].cid], {})
        await a.store.admit_local([signed.car])
        await eventually(lambda: len(b.store.keys) == len(c.store.keys) == len(good) + 3)
        assert (b.store.withheld, c.store.withheld) == (JUNK - 1 + 9, 0)
        assert b.failures(a.p2p.peer_id) == sessions(b.p2p.counters, "failed") == 0
        if version is RECON_1_2:  # in 1.0.0, a cannot tell why b has enough
            assert a.failures(b.p2p.peer_id) == sessions(a.p2p.counters, "failed") == 0


async def test_what_finds_no_room_is_nobodys_fault(tmp_path, version):
    crowd = [init_event(MEMBER, MODEL, None, unique=b"crowd %d" % n) for n in range(3 * JUNK)]
    made_up = [time_event(event, event.cid).car for event in crowd]
    options = {"sync_interval": 0.1, "versions": [version], "recon": FEW, "ceramic_one": False}
    cars = [*(event.car for event in crowd), *made_up]
    async with two_nodes(tmp_path, cars, only_b={"max_waiting": JUNK}, **options) as (a, b):
        await eventually(lambda: len(b.store.keys) == len(crowd) + JUNK)
        late = members_events(3)
        await a.store.admit_local(late)
        await eventually(lambda: b.store.head == len(crowd) + len(late))
        await eventually(lambda: len(b.outcomes()) > 2)
        assert b.failures(a.p2p.peer_id) == sessions(b.p2p.counters, "failed") == 0
        if version is RECON_1_2:  # in 1.0.0, a cannot tell why b has enough
            assert a.failures(b.p2p.peer_id) == sessions(a.p2p.counters, "failed") == 0


async def test_junk_on_the_ring_of_ceramic_one_nodes(tmp_path, monkeypatch):
    """Values come unasked there. They are dropped, if possible unread, and the session goes on."""
    monkeypatch.setattr(sync_scheduler, "BETWEEN_RING_SYNCS", Backoff(first=0.05, longest=0.2))
    good = members_events(20)
    async with two_nodes(tmp_path, [*junk(30), *good], only_b=MEMBERS, versions=()) as (a, b):
        await eventually(lambda: b.holds_as_many_as(len(good)))
        more = members_events(2, first=100)
        await a.store.admit_local(more)
        await eventually(lambda: b.holds_as_many_as(len([*good, *more])))
        reports = [report for report in b.p2p.sync_reports if report.protocol == MODEL_RING]
        assert {report.outcome for report in reports} == {AGREED}
        assert reports[0].keys_left_out == 30
        assert (a.failures(b.p2p.peer_id), b.failures(a.p2p.peer_id)) == (0, 0)


async def test_a_peer_with_more_junk_than_a_session_may_hold_is_not_banned(tmp_path, monkeypatch):
    monkeypatch.setattr(fetch, "MAX_UNWANTED_IN_SESSION", 50)
    async with two_nodes(tmp_path, junk(JUNK), only_b=MEMBERS, **QUIET) as (a, b):
        await eventually(b.outcomes)
        refusal = "more than 50 events that this node or its write policy refuses"
        assert refusal in b.outcomes()[0]
        await eventually(lambda: b.failures(a.p2p.peer_id) == 1)


async def test_keys_that_are_left_out_from_the_start_are_not_looked_at():
    """Of 65,536 keys, that took 36 ms whenever their peer opened a stream."""

    class Key(bytes):
        def __hash__(self) -> int:
            looks.append(self)
            return super().__hash__()

        def __lt__(self, other: bytes) -> bool:
            looks.append(self)
            return super().__lt__(other)

    looks: list[Key] = []
    memory, keys = PeerMemory(), [Key(b"%d" % n) for n in range(10)]
    memory.note_unwanted("a", keys)
    looks.clear()
    side = Side.responder(KeyStore(), [])
    side.begin_without(memory.unwanted_of("a"))
    memory.note_unwanted("a", [])  # the session has found no others
    assert looks == []
    side.leave_out_unwanted([b"3", b"x"])
    assert side.left_out_keys == [*keys, b"x"]
    assert memory.unwanted_of("a") == keys


async def test_remembered_keys_are_bounded_and_forgotten(mock_clock):
    keys = [b"%06d" % n for n in range(MAX_UNWANTED_REMEMBERED + 1)]
    memory = PeerMemory()
    memory.note_unwanted("a", keys[:10])
    memory.note_unwanted("b", keys[:5])
    memory.note_unwanted("a", keys[5:15])
    assert [memory.unwanted_of(peer) for peer in "abc"] == [keys[:15], keys[:5], []]
    memory.note_unwanted("d", keys)
    assert len(memory.unwanted_of("d")) == MAX_UNWANTED_REMEMBERED
    assert memory.unwanted_of("a") == memory.unwanted_of("b") == []
    mock_clock.jump(UNWANTED_FOR - 1)
    memory.note_unwanted("e", keys[:3])
    assert memory.unwanted_of("d") == []
    mock_clock.jump(UNWANTED_FOR - 1)
    memory.note_unwanted("e", keys[3:5])
    assert memory.unwanted_of("e") == keys[:5]
    mock_clock.jump(1)
    assert memory.unwanted_of("e") == []


@pytest.mark.parametrize(
    "versions", [VERSIONS, pytest.param((), marks=pytest.mark.long)], ids=["recon", "ring"]
)
async def test_a_node_without_room_still_gives_and_takes_again_later(
    versions, tmp_path, monkeypatch
):
    monkeypatch.setattr(disk_reserve, "DISK_CHECK_INTERVAL", 0.0)
    quick = {"sync_interval": 0.2, "versions": versions, "ceramic_one": not versions}
    ours, theirs, late = (members_events(10, first) for first in (0, 100, 200))
    async with (
        node(tmp_path / "short", ours, **quick) as short,
        node(tmp_path / "peer", theirs, **quick) as peer,
    ):
        free = short.store.disk.keep - 1
        monkeypatch.setattr(short.store.disk, "_free", lambda: free)
        await peer.p2p.connect(short.address)
        if versions:
            await eventually(lambda: len(peer.store.keys) == len([*ours, *theirs]))
        before = len(short.p2p.sync_reports)
        await eventually(lambda: len(short.p2p.sync_reports) > before)
        assert len(short.store.keys) == len(ours)
        own = await short.store.admit_local(late)
        assert {verdict.status for verdict in own} == {"new"}, "the node's own clients can write"
        free = 2 * short.store.disk.keep
        await eventually(lambda: len(short.store.keys) == len([*ours, *theirs, *late]))
        await eventually(lambda: short.ahash() == peer.ahash())
