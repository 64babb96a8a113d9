"""Peers whose connection was lost are reached again soon, and those that are gone cost little."""

from random import Random

import pytest
import trio

from recon_node.p2p.errors import PeerError
from recon_node.p2p.peers.book import PeerBook
from recon_node.p2p.peers.connections import (
    CONNECTION_CHECK_INTERVAL,
    DIALLED_AT_ONCE,
    DIALLED_AT_ONCE_IF_BACK,
    GIVE_WAY,
    LOST_FOR,
    MAX_LOST,
    RECONNECT_BACKOFF,
    VISIT,
    LostPeers,
    keep_reconnecting,
)


class Network:
    """Some peers, of which those that are not cut off answer."""

    peer_id = "n"

    def __init__(self, *peers: str) -> None:
        self.book = PeerBook(1000)
        for peer in peers:
            self.book.note_peer(peer, [f"/ip4/10.0.0.1/tcp/1/p2p/{peer}"])
        self.connected = set(peers)
        self.cut_off: set[str] = set()
        self.sharing: dict[str, bool] = {}
        self.dials: list[tuple[float, str]] = []
        self.dialling = 0

    def connected_peers(self) -> list[str]:
        return sorted(self.connected)

    def shares(self, peer: str) -> bool | None:
        return self.sharing.get(peer)

    def cut(self, *peers: str) -> None:
        self.cut_off.update(peers)
        self.connected.difference_update(peers)

    async def connect(self, peer: str) -> None:
        self.dials.append((trio.current_time(), peer))
        self.dialling += 1
        try:
            await self.answer(peer)
        finally:
            self.dialling -= 1

    async def answer(self, peer: str) -> None:
        for wait in (1, 2, 4, 3):  # as TCP sends its SYN again; ten seconds in all
            if peer not in self.cut_off:
                self.connected.add(peer)
                return
            await trio.sleep(wait)
        raise PeerError("no answer")


@pytest.fixture
def watch(nursery):
    """Keeps reconnecting the peers of a network."""

    def start(network: Network) -> Network:
        watched = (network, network.book, network.shares, network.connect)
        nursery.start_soon(keep_reconnecting, *watched)
        return network

    return start


async def test_a_network_that_was_cut_in_two_is_joined_within_seconds(watch, autojump_clock):
    others = [f"other {n}" for n in range(20)]
    network = watch(Network("near", *others))
    await trio.sleep(60)
    assert network.dials == []
    network.cut(*others)
    await trio.sleep(60)
    assert network.connected == {"near"}
    network.cut_off.clear()
    await trio.sleep(10)
    assert network.connected == {"near", *others}


async def test_a_dial_into_the_silence_begins_again_once_another_peer_is_back(
    watch, autojump_clock
):
    """TCP would send its SYN again only after a while."""

    class Silent(Network):
        async def answer(self, peer: str) -> None:
            if peer in self.cut_off:
                await trio.sleep(10_000)
            self.connected.add(peer)

    network = watch(Silent("far", "near"))
    await trio.sleep(10)
    network.cut("far", "near")
    await trio.sleep(60)
    network.cut_off.clear()
    await trio.sleep(60)
    assert network.connected == set()
    assert len(network.dials) == 2
    network.connected.add("near")  # it has dialled us
    await trio.sleep(2 * CONNECTION_CHECK_INTERVAL + GIVE_WAY)
    assert network.connected == {"far", "near"}


async def test_a_single_peer_that_restarts_is_reached_within_seconds(watch, autojump_clock):
    network = watch(Network("a", "b"))
    await trio.sleep(10)
    network.cut("a")
    await trio.sleep(300)
    network.cut_off.clear()
    await trio.sleep(RECONNECT_BACKOFF.longest * 1.25 + CONNECTION_CHECK_INTERVAL)
    assert network.connected == {"a", "b"}


async def test_peers_that_are_gone_are_given_up_and_strangers_are_left_alone(watch, autojump_clock):
    network = watch(Network(*(f"peer {n}" for n in range(2 * MAX_LOST))))
    network.connected.add("stranger")
    await trio.sleep(10)
    network.cut(*network.connected)
    begun = trio.current_time()
    while trio.current_time() < begun + LOST_FOR + 10:
        assert network.dialling <= DIALLED_AT_ONCE
        await trio.sleep(1)
    tried = {peer for _, peer in network.dials}
    assert len(tried) <= MAX_LOST
    assert "stranger" not in tried
    network.dials.clear()
    await trio.sleep(LOST_FOR)
    assert network.dials == []


def test_who_is_due(rng):
    """Never more than allowed, nobody twice, and only those that were connected and are not."""
    lost, peers = LostPeers("peer 20", lambda peer: True, rng), [f"peer {n}" for n in range(40)]
    trying: set[str] = set()
    connected: set[str] = set()
    seen: set[str] = set()
    random = Random(rng.random())
    for step in range(2000):
        connected = {peer for peer in peers if random.random() < 0.9 or peer in connected}
        connected -= set(random.sample(peers, random.choice((0, 0, 0, 30))))
        due = lost.due(connected, trying, float(step))
        assert len(trying) + len(due) <= max(DIALLED_AT_ONCE_IF_BACK, len(trying))
        assert trying.isdisjoint(due)
        assert connected.isdisjoint(due)
        assert seen.issuperset(due)
        seen |= connected
        trying = {peer for peer in trying.union(due) if random.random() < 0.5} - connected


async def test_peers_that_share_no_interest_are_not_missed(watch, autojump_clock):
    network = watch(Network("unknown", "sharing", "other"))
    network.sharing.update(sharing=True, other=False)
    await trio.sleep(10)
    network.connected.clear()
    await trio.sleep(LOST_FOR)
    assert network.connected == {"unknown", "sharing"}


def test_a_visit_is_not_missed(rng):
    lost = LostPeers("a", lambda peer: True, rng)
    assert lost.due(["b", "c"], [], 0.0) == []
    assert lost.due(["c"], [], VISIT - 1) == []
    assert lost.due([], [], VISIT) == ["c"]
    assert lost.due([], [], LOST_FOR) == ["c"]
