"""Nodes over real stores on loopback: they reconcile, spread what is new, and find each other."""

import json
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import trio
from libp2p.peer.id import ID
from nacl.signing import SigningKey
from p2p_support import (
    LOOPBACK,
    NETWORK,
    PATIENCE,
    Node,
    eventually,
    loopback_host,
    node,
    read_to_end,
    sessions,
    two_nodes,
)
from structlog.testing import capture_logs
from support.forging import forged
from support.time_events import time_event
from support.waiting import kept_port

from recon_node import __version__
from recon_node.ceramic import METAMODEL, Network, StreamId
from recon_node.ceramic.builder import data_event, init_event
from recon_node.ceramic.network import BOOTSTRAP, MAINNET, TESTNET_CLAY
from recon_node.p2p import (
    AGREED,
    ANOTHER_NETWORK,
    NO_COMMON_INTEREST,
    P2P,
    P2PError,
    PeerError,
    network_side,
    open_p2p,
)
from recon_node.p2p.network_side import ADDRESS_INTERVAL, recon_versions
from recon_node.p2p.peers import connections
from recon_node.p2p.peers.book import PeerBook
from recon_node.p2p.peers.connections import (
    ALONE_AFTER,
    ALONE_INTERVAL,
    ENOUGH_OTHERS,
    IDLE_LIMIT,
    IDLE_POLL,
    NO_PEERS,
    NOBODY_ANSWERS,
    let_go_of_idle,
    let_go_of_others,
    warn_when_alone,
)
from recon_node.p2p.settings import P2PSettings
from recon_node.p2p.sync.rings import MODEL_RING, PEER_RING
from recon_node.p2p.sync.sessions import MAX_REPORTS
from recon_node.p2p.transport import addresses
from recon_node.p2p.transport.addresses import is_dialable
from recon_node.p2p.transport.host import Host
from recon_node.recon import VERSIONS, KeyStore
from recon_node.store import Interest, open_store

QUICK = {"sync_interval": 0.5, "push_delay": 0.05}


def new_cars(count: int, model: StreamId = METAMODEL) -> list[bytes]:
    """Fresh events: the first of so many streams."""
    key = SigningKey.generate()
    return [init_event(key, model, {"number": number}).car for number in range(count)]


async def test_a_removed_peer_stays_away_until_it_is_added(tmp_path):
    """Whoever dials, and after a restart."""
    async with node(tmp_path / "b", **QUICK) as b:
        async with node(tmp_path / "a", **QUICK) as a:
            await a.p2p.connect(b.address)
            await eventually(lambda: b.p2p.peers() and b.p2p.peers()[0].connected)
            await a.p2p.remove(b.p2p.peer_id)
            assert a.p2p.removed == [b.p2p.peer_id]
            saved = json.loads((tmp_path / "a" / "peers.json").read_text())
            assert saved["removed"] == a.p2p.removed
            await eventually(lambda: not b.p2p.peers()[0].connected)
            with pytest.raises(PeerError):
                await b.p2p.connect(a.address)
            a.p2p.found(b.p2p.peer_id, [b.address])
            assert a.p2p.peers() == []
        async with node(tmp_path / "a", **QUICK) as a:
            assert (a.p2p.removed, a.p2p.peers()) == ([b.p2p.peer_id], [])
            with pytest.raises(PeerError):
                await b.p2p.connect(a.address)
            await a.p2p.connect(b.address)
            assert a.p2p.removed == []
            await eventually(lambda: a.p2p.peers() and a.p2p.peers()[0].connected)


async def test_two_nodes_become_equal_and_stay_so(tmp_path, sdk_cars):
    quick = {**QUICK, "sync_interval": 1000}  # a starts no sync of its own at the same time
    async with two_nodes(tmp_path, sdk_cars, only_b={"verifiers": 1}, **quick) as (a, b):
        await eventually(lambda: b.holds_as_many_as(930))
        await eventually(lambda: b.p2p.transfers)
        first = b.p2p.transfers[0]
        assert (first.outcome, first.keys_received, first.events_received) == (AGREED, 930, 930)
        assert first.event_bytes_received > 500_000
        assert first.protocol == VERSIONS[0].id
        await eventually(lambda: a.p2p.transfers)
        [transfer] = a.p2p.transfers
        assert (transfer.role, transfer.events_sent, transfer.events_received) == (
            "responder",
            930,
            0,
        )

        a.p2p.sync_reports.extend([a.p2p.sync_reports[-1]] * MAX_REPORTS)  # nothing is new
        assert list(a.p2p.transfers) == [transfer]
        assert list(b.p2p.transfers) == [first]

        admitted = await a.store.admit_local(new_cars(50)) + await b.store.admit_local(new_cars(50))
        assert {verdict.status for verdict in admitted} == {"new"}
        await eventually(lambda: a.holds_as_many_as(1030) and b.holds_as_many_as(1030))
        assert a.ahash() == b.ahash()
        await eventually(lambda: a.p2p.counters.events_received == 50)
        await eventually(lambda: sum(transfer.events_sent for transfer in a.p2p.transfers) == 980)
        assert a.p2p.counters.events_refused == b.p2p.counters.events_refused == 0


async def test_badly_signed_events_are_not_relayed_until_a_valid_one_covers_them(tmp_path):
    """CIP-124: a node validates an event before it relays it. CIP-145: C over A counts."""
    key = SigningKey.generate()
    init = init_event(key, METAMODEL, {"n": 0})
    bad = [forged(data_event(key, init, [init.cid], [{"n": n}])) for n in range(200)]
    cover = data_event(key, init, [bad[0].cid], [])
    anchor = time_event(init, bad[1].cid)

    def offer(event, height):
        return event.event_id(NETWORK, init.header, height), event.car

    quick = {**QUICK, "ceramic_one": False}
    async with (
        node(tmp_path / "a", **quick) as a,
        node(tmp_path / "b", **quick) as b,
        node(tmp_path / "c", **quick) as c,
    ):
        await a.store.admit_remote([offer(init, 0), *(offer(event, 1) for event in bad)])
        await a.store.admit_remote([offer(anchor, 2)])
        assert (len(a.store.keys), a.store.waiting, a.store.withheld) == (1, 201, 201)
        assert a.store.keys.summarize().hash == KeyStore([offer(init, 0)[0]]).summarize().hash
        await b.p2p.connect(a.address)
        await c.p2p.connect(b.address)
        await eventually(lambda: len(b.store.keys) == len(c.store.keys) == 1)
        [admitted] = await a.store.admit_remote([offer(cover, 2)])
        assert admitted.status == "new"
        nodes = (a, b, c)
        await eventually(lambda: all(node.store.head == 3 for node in nodes))
        assert len({node.ahash() for node in nodes}) == 1
        assert [node.store.waiting for node in nodes] == [200, 0, 0]
        for peer in nodes:
            rows = await peer.store.reader.feed(0, 10)
            assert [row.event_cid for row in rows] == [init.cid, bad[0].cid, cover.cid]
            assert [row.fault is None for row in rows] == [True, False, True]
            assert peer.p2p.counters.events_refused == 0
    async with open_store(tmp_path / "a", NETWORK) as store:
        assert (len(store.keys), store.withheld, store.head) == (3, 200, 3)


async def test_two_nodes_that_sync_both_ways_at_once_move_each_event_once(tmp_path, sdk_cars):
    """Both sessions list the keys; the events come with one of them."""
    async with two_nodes(tmp_path, sdk_cars[:300]) as (a, b):
        a.p2p._syncer.request(b.p2p.peer_id)
        await eventually(lambda: b.holds_as_many_as(300))
        await eventually(lambda: {"initiator", "responder"} <= {r.role for r in b.p2p.sync_reports})
        assert set(b.outcomes()) == {AGREED}
        [fetched] = b.p2p.transfers
        assert (fetched.events_received, b.p2p.counters.events_received) == (300, 300)
        await eventually(lambda: sum(report.events_sent for report in a.p2p.sync_reports) == 300)
        assert a.p2p.counters.event_bytes_sent == fetched.event_bytes_received


async def test_only_what_both_are_interested_in_is_exchanged(tmp_path):
    """Until the interest is removed: then at once, without waiting for the next round."""
    wanted, unwanted = StreamId(2, METAMODEL.cid), StreamId(3, METAMODEL.cid)
    cars = new_cars(7, wanted) + new_cars(9, unwanted)
    slow = {"sync_interval": 1000}
    async with node(tmp_path / "a", cars, **slow) as a, node(tmp_path / "b", **slow) as b:
        interest = Interest("model", str(wanted))
        await b.store.wanted.add(interest)
        await b.p2p.connect(a.address)
        await eventually(lambda: b.holds_as_many_as(7) and AGREED in b.outcomes())
        a.p2p._syncer.request(b.p2p.peer_id)  # which asks for all, and is answered for a part
        await eventually(lambda: "initiator" in {report.role for report in a.p2p.sync_reports})
        assert len(b.store.keys) == 7
        await b.store.wanted.remove(interest)
        await eventually(lambda: b.holds_as_many_as(16))


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.id)
async def test_nodes_without_a_common_interest_say_so(tmp_path, version, monkeypatch):
    """Nodes that do not tell each other their interests, as older ones do not."""
    monkeypatch.setattr(network_side, "INTERESTS_PROTOCOL", "/ceramic/interests/not-spoken")
    only = {"versions": [version]}
    one, other = (Interest("model", str(StreamId(kind, METAMODEL.cid))) for kind in (2, 3))
    async with node(tmp_path / "a", **only) as a, node(tmp_path / "b", **only) as b:
        await a.store.wanted.add(one)
        await b.store.wanted.add(other)
        await b.p2p.connect(a.address)
        await eventually(lambda: a.outcomes() and b.outcomes())
        assert {*a.outcomes(), *b.outcomes()} == {NO_COMMON_INTEREST}
        assert sessions(a.p2p.counters, "failed") == 0


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.id)
async def test_what_lies_above_a_common_interest_is_not_a_failure(tmp_path, version, monkeypatch):
    """Asked for everything, the peer answers for its part, and then for none of the rest."""
    monkeypatch.setattr(network_side, "INTERESTS_PROTOCOL", "/ceramic/interests/not-spoken")
    only = {"versions": [version]}
    async with node(tmp_path / "a", **only) as a, node(tmp_path / "b", **only) as b:
        await a.store.wanted.add(Interest("model", str(METAMODEL)))
        await b.p2p.connect(a.address)
        await eventually(lambda: len(b.outcomes()) > 1)
        assert set(b.outcomes()) == {AGREED}


async def test_a_bootstrap_peer_that_comes_late_is_reached(tmp_path):
    async with node(tmp_path / "a") as a:
        address, late = a.address, a.p2p.peer_id
    listen = address.split("/p2p/")[0]
    with kept_port(int(address.split("/")[4])):
        async with node(tmp_path / "b", new_cars(2), bootstrap=(address,), **QUICK) as b:
            await eventually(lambda: b.p2p.counters.dials_failed)
            async with node(tmp_path / "a", listen=(listen,), **QUICK) as a:
                assert a.p2p.peer_id == late
                await eventually(lambda: a.holds_as_many_as(2))


async def test_what_a_person_asks_for_wrongly_is_explained(tmp_path):
    async with node(tmp_path / "a", dial_timeout=1) as a:
        with pytest.raises(PeerError, match="has no peer id"):
            await a.p2p.connect("/ip4/127.0.0.1/tcp/4101")
        with pytest.raises(PeerError, match="not a multiaddr"):
            await a.p2p.connect("localhost")
        with pytest.raises(PeerError, match="own address"):
            await a.p2p.connect(a.address)
        with pytest.raises(P2PError, match="Address already in use"):
            async with node(tmp_path / "b", listen=(a.address.split("/p2p/")[0],)):
                pass
        with pytest.raises(ValueError, match="lacks the peer id"):
            async with node(tmp_path / "c", bootstrap=("/ip4/127.0.0.1/tcp/4101",)):
                pass
        assert a.p2p.counters.dials_failed == 3


async def test_only_an_address_that_was_dialled_counts(tmp_path):
    """A connection that there is says nothing of another address."""
    async with node(tmp_path / "a") as a, node(tmp_path / "b") as b:
        await a.p2p.connect(b.address)
        (known,) = a.p2p.peers()
        end = f"/p2p/{b.p2p.peer_id}"
        for wrong in ("/ip4/127.0.0.1/tcp/1", "/ip4/127.0.0.1/udp/1/quic-v1", "/ip4/0.0.0.0/tcp/1"):
            with pytest.raises(PeerError, match=r"cannot connect to|cannot be dialled"):
                await a.p2p.connect(wrong + end)
        await a.p2p.connect(b.address)  # once more, at the right one
        assert [peer.addresses for peer in a.p2p.peers()] == [known.addresses]
        assert known.addresses == (b.address,)
        assert a.p2p.counters.dials_failed == 3
        await eventually(lambda: len(a.p2p._host._live(ID.from_string(b.p2p.peer_id))) == 1)


@pytest.mark.parametrize("only", [{"ceramic_one": False}, {"versions": ()}])
async def test_a_sync_that_the_peer_began_is_its_last_sync_as_well(tmp_path, sdk_cars, only):
    quiet = {"sync_interval": 3600, "push_delay": 3600, **only}
    async with (
        node(tmp_path / "a", sdk_cars[:20], **quiet) as visited,
        node(tmp_path / "b", **quiet) as visitor,
    ):
        before = time.time()
        await visitor.p2p.connect(visited.address)
        for one in (visitor, visited):
            await eventually(lambda one=one: any(peer.last_sync for peer in one.p2p.peers()))
            (peer,) = one.p2p.peers()
            assert before <= peer.last_sync <= time.time()
        if "versions" not in only:
            assert {report.role for report in visited.p2p.sync_reports} == {"responder"}


async def test_a_peer_that_speaks_no_recon_is_not_kept(tmp_path):
    async with node(tmp_path / "a") as a, loopback_host() as stranger:
        with pytest.raises(PeerError, match="does not speak Recon"):
            await a.p2p.connect(stranger.addresses[0])
        assert a.p2p.peers() == []
        await eventually(lambda: not stranger.connected_peers())
        await stranger.connect(a.address)  # nor when it comes by itself
        await eventually(lambda: a.p2p._host.known_protocols(stranger.peer_id))
        assert a.p2p.peers() == []


async def test_a_peer_whose_dht_is_of_another_network_is_refused(tmp_path):
    async with node(tmp_path / "a") as a, loopback_host() as other:
        for protocol in (VERSIONS[0].id, "/ceramic/local-62/kad/1.0.0"):
            other.handle(protocol, read_to_end)
        with pytest.raises(PeerError, match=r"on another network \(local-62\), .* on local-7"):
            await a.p2p.connect(other.addresses[0])
        assert a.p2p.peers() == []
        await eventually(lambda: not other.connected_peers())


async def test_identify_names_this_program(tmp_path):
    async with node(tmp_path / "a") as a, loopback_host() as peer:
        await peer.connect(a.address)
        stream = await peer.open_stream(a.p2p.peer_id, "/ipfs/id/1.0.0")
        with trio.fail_after(PATIENCE):
            answer = b"".join([chunk async for chunk in until_end(stream)])
        assert f"recon-node/{__version__}".encode() in answer
        assert b"ipfs/0.1.0" in answer
        assert b"py-libp2p" not in answer


async def until_end(stream):
    while chunk := await stream.receive_some(4096):
        yield chunk


@pytest.fixture
def alone(nursery):
    """A node without peers that says so: those it is connected with, its book, and what it logs."""
    near, book = [], PeerBook(10)
    host = SimpleNamespace(connected_peers=lambda: near)
    with capture_logs() as logs:
        nursery.start_soon(warn_when_alone, host, book, LOOPBACK)
        yield near, book, logs


async def test_a_node_that_is_alone_says_so_and_again(alone, autojump_clock):
    near, book, logs = alone
    await trio.sleep(ALONE_AFTER - 1)
    assert not logs
    await trio.sleep(2)
    assert [line["event"] for line in logs] == [NO_PEERS]
    await trio.sleep(ALONE_INTERVAL - 2)
    assert len(logs) == 1
    await trio.sleep(2)
    assert len(logs) == 2
    near.append("a peer of another network")
    await trio.sleep(ALONE_INTERVAL)
    assert len(logs) == 3
    near.append("peer")
    book.note_peer("peer", [])
    await trio.sleep(5 * ALONE_INTERVAL)
    assert len(logs) == 3


async def test_a_node_that_another_one_dials_soon_is_not_alone(alone, autojump_clock):
    """As the first node of a private network; a peer that is known has time to answer."""
    near, book, logs = alone
    await trio.sleep(ALONE_AFTER - 1)
    near.append("peer")
    book.note_peer("peer", [])
    await trio.sleep(5 * ALONE_INTERVAL)
    assert not logs
    near.clear()
    await trio.sleep(ALONE_INTERVAL)
    assert [(line["event"], line["known_peers"]) for line in logs] == [(NOBODY_ANSWERS, 1)]


async def test_idle_connections_with_strangers_are_closed(nursery, autojump_clock):
    """One with a peer of the book stays, and one on which a stream is open."""
    near, busy, closed, book = ["a node", "busy", "stranger"], {"busy"}, [], PeerBook(10)
    book.note_peer("a node", [])

    async def disconnect(peer_id: str) -> None:
        near.remove(peer_id)
        closed.append(peer_id)

    host = SimpleNamespace(
        connected_peers=lambda: near, has_streams=busy.__contains__, disconnect=disconnect
    )
    nursery.start_soon(let_go_of_idle, host, book)
    await trio.sleep(IDLE_LIMIT)
    assert closed == []
    await trio.sleep(2 * IDLE_POLL)
    assert closed == ["stranger"]
    busy.clear()
    await trio.sleep(IDLE_LIMIT / 2)
    busy.add("busy")  # it asks again in time
    await trio.sleep(5 * IDLE_LIMIT)
    busy.clear()
    await trio.sleep(IDLE_LIMIT + 2 * IDLE_POLL)
    assert (closed, near) == (["stranger", "busy"], ["a node"])


async def test_few_connections_with_peers_that_share_no_interest_stay(nursery, autojump_clock):
    """Those that were there first; and all that are kept, share an interest, or dialled us."""
    kinds = {"kept": False, "caller": False, "sharing": True, "unknown": None}
    near = [*kinds, *(f"first {number}" for number in range(ENOUGH_OTHERS))]
    closed = []

    async def disconnect(peer_id: str) -> None:
        near.remove(peer_id)
        closed.append(peer_id)

    host = SimpleNamespace(
        connected_peers=lambda: near,
        has_dialled=lambda peer: peer != "caller",
        disconnect=disconnect,
    )
    nursery.start_soon(let_go_of_others, host, lambda peer: kinds.get(peer, False), {"kept"})
    await trio.sleep(5 * IDLE_LIMIT)
    assert closed == []
    near.extend(["walked past", "also walked past"])
    await trio.sleep(IDLE_LIMIT)
    assert closed == []
    await trio.sleep(2 * IDLE_POLL)
    assert sorted(closed) == ["also walked past", "walked past"]
    await trio.sleep(5 * IDLE_LIMIT)
    assert len(near) == len(kinds) + ENOUGH_OTHERS


async def test_a_stranger_is_let_go_of(tmp_path, monkeypatch):
    monkeypatch.setattr(connections, "IDLE_POLL", 0.05)
    async with node(tmp_path / "a") as a, loopback_host() as stranger:
        await stranger.connect(a.address)
        stream = await stranger.open_stream(a.p2p.peer_id, "/ipfs/ping/1.0.0")
        await eventually(lambda: a.p2p._host.has_streams(stranger.peer_id))
        monkeypatch.setattr(connections, "IDLE_LIMIT", 0.3)
        await trio.sleep(1)
        await stream.send_all(bytes(32))
        assert len(await stream.receive_some(100)) == 32, "the answer to a ping"
        await stream.aclose()
        await eventually(lambda: not stranger.is_connected(a.p2p.peer_id))


async def test_another_address_is_announced(nursery, autojump_clock):
    addresses, looks = ["one"], []
    p2p = SimpleNamespace(addresses=addresses, _discovery=SimpleNamespace())
    p2p._discovery.look_now = lambda: looks.append(p2p.addresses)
    nursery.start_soon(P2P._watch_addresses, p2p)
    await trio.sleep(2 * ADDRESS_INTERVAL)
    assert looks == []
    p2p.addresses = ["one", "other"]
    await trio.sleep(5 * ADDRESS_INTERVAL)
    assert looks == [["one", "other"]]


PUBLIC = BOOTSTRAP[TESTNET_CLAY]
EVERYWHERE = P2PSettings()


@pytest.mark.parametrize(
    ("settings", "network", "expected"),
    [
        (EVERYWHERE, TESTNET_CLAY, PUBLIC),
        (EVERYWHERE, MAINNET, BOOTSTRAP[MAINNET]),
        (EVERYWHERE, Network.parse("dev-unstable"), ()),
        (EVERYWHERE, Network.local(7), ()),
        (replace(EVERYWHERE, bootstrap=PUBLIC[:1]), TESTNET_CLAY, None),
        (replace(EVERYWHERE, public_bootstrap=False), TESTNET_CLAY, ()),
        (LOOPBACK, TESTNET_CLAY, ()),
    ],
)
def test_public_networks_are_joined_by_their_bootstrap_nodes(settings, network, expected):
    joining = settings.joining(network)
    assert joining.bootstrap == (settings.bootstrap if expected is None else expected)
    assert all(map(is_dialable, joining.bootstrap))


@pytest.mark.parametrize("network", [Network.local(7), TESTNET_CLAY], ids=str)
async def test_a_local_node_never_asks_the_dns(tmp_path, monkeypatch, network, autojump_clock):
    """Neither on a local network, nor on loopback, nor without the rings that such nodes speak."""
    asked = []
    monkeypatch.setattr(addresses, "resolve", asked.append)
    monkeypatch.setattr(trio.socket, "getaddrinfo", asked.append)
    monkeypatch.setattr(Host, "connect", asked.append)
    async with (
        open_store(tmp_path, network) as store,
        open_p2p(replace(LOOPBACK, discovery=False), store, tmp_path) as p2p,
    ):
        await trio.sleep(600)
        assert p2p.peers() == []
    assert asked == []


def test_versions_of_recon_are_listed_highest_first():
    protocols = [
        "/ipfs/id/1.0.0",
        MODEL_RING,
        PEER_RING,
        *[version.id for version in VERSIONS[::-1]],
    ]
    protocols += ["/ceramic/recon/1.10.0", "/ceramic/recon/nonsense", "/x/ceramic/recon/3.0.0"]
    assert recon_versions(protocols) == (
        "recon/1.10.0", "recon/1.2.0", "recon/1.0.0", "recon/0.1.0",
    )  # fmt: skip


async def test_a_node_stops_within_seconds_in_the_middle_of_a_sync(tmp_path, sdk_cars):
    async with node(tmp_path / "a", sdk_cars, **QUICK) as a, trio.open_nursery() as nursery:
        started = trio.Event()

        async def run_until_cancelled() -> None:
            async with node(tmp_path / "b", **QUICK) as b:
                await b.p2p.connect(a.address)
                await eventually(lambda: len(b.store.keys) > 0)
                started.set()
                await trio.sleep_forever()

        nursery.start_soon(run_until_cancelled)
        await started.wait()
        before = trio.current_time()
        nursery.cancel_scope.cancel()
    assert trio.current_time() - before < LOOPBACK.idle_timeout, "no session's time has run out"


OTHER = Network.local(8)


async def test_a_peer_of_another_network_is_not_a_success(tmp_path):
    """The one that was dialled tells the other at once, before its own time for a sync has come."""
    settings = replace(LOOPBACK, discovery=False)
    with capture_logs() as logs:
        async with (
            node(tmp_path / "here") as here,
            open_store(tmp_path / "there", OTHER) as store,
            open_p2p(settings, store, tmp_path / "there") as p2p,
        ):
            there = Node(store, p2p)
            await here.p2p.connect(there.address)
            for side, network in ((here, OTHER), (there, NETWORK)):
                expected = f"{ANOTHER_NETWORK} ({network.name}): nothing in common"
                await eventually(lambda side=side, text=expected: text in side.outcomes())
    warnings = [line for line in logs if "another Ceramic network" in line["event"]]
    reported = {(line["peer"], line["its_network"]) for line in warnings}
    assert reported == {(there.p2p.peer_id, OTHER.name), (here.p2p.peer_id, NETWORK.name)}
    assert len(warnings) == 2
