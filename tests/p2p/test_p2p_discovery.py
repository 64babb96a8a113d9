"""Discovery: nodes of one network find each other, and those with the same interests first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import pytest
import trio
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.kad_dht.pb.kademlia_pb2 import Message as KadMessage
from libp2p.peer.id import ID
from multiaddr import Multiaddr
from p2p_support import NETWORK, eventually, loopback_host

from recon_node.fairness.pacing import Backoff
from recon_node.p2p.peers import schedule
from recon_node.p2p.peers.dht import LibraryDht
from recon_node.p2p.peers.dht_server import MAX_ANSWER, protocol_of
from recon_node.p2p.peers.discovery import AT_LEISURE, GATHER, Discovery
from recon_node.p2p.transport.framing import FrameStream, PeerStream
from recon_node.p2p.transport.host import Host
from recon_node.store import Interest

INTERVAL = 5.0
"""Seconds between two announcements: what fails on a slow machine is tried again soon."""


class Wanted:
    """Interests that a test sets."""

    def __init__(self, *sort_values: str) -> None:
        self._changed = trio.Event()
        self.want(*sort_values)

    def want(self, *sort_values: str) -> None:
        self.all = tuple(Interest("family", sort_value) for sort_value in sort_values)
        self._changed.set()
        self._changed = trio.Event()

    async def wait_for_change(self, known: Sequence[Interest]) -> None:
        while self.all == tuple(known):
            await self._changed.wait()


class Member:
    """A host that takes part in discovery, and whom it has found, by sort value."""

    def __init__(self, host: Host, wanted: Wanted) -> None:
        self.host = host
        self.wanted = wanted
        self.found: dict[str | None, set[str]] = defaultdict(set)
        self.addresses: dict[str, tuple[str, ...]] = {}
        dht = partial(LibraryDht, host, NETWORK)
        self.service = Discovery(dht, NETWORK, wanted, INTERVAL, self._note)

    def _note(self, peer_id: str, addresses: Sequence[str], sort_value: str | None) -> None:
        self.found[sort_value].add(peer_id)
        self.addresses[peer_id] = tuple(addresses)

    def has_found(self, other: Member, sort_value: str | None = None) -> bool:
        return other.host.peer_id in self.found[sort_value]


@asynccontextmanager
async def member(*sort_values: str) -> AsyncIterator[Member]:
    """A host with these interests that announces itself and finds others."""
    async with loopback_host() as host, trio.open_nursery() as nursery:
        here = Member(host, Wanted(*sort_values))

        def join(peer_id: str, addresses: list[str]) -> None:
            if not nursery.cancel_scope.cancel_called:
                nursery.start_soon(here.service.join, peer_id)

        host.on_identified(join)
        nursery.start_soon(here.service.run)
        yield here
        nursery.cancel_scope.cancel()


def some_peer_id() -> ID:
    return ID.from_pubkey(create_new_key_pair().public_key)


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(schedule, "ROUNDS", Backoff(0.3, 60.0))
    monkeypatch.setattr(schedule, "RESTART_PAUSE", 0.1)


class NotedDht:
    """A DHT of two peers that notes how many rendezvous it is asked for and announced at."""

    peer_id = "here"
    records = ()
    run = staticmethod(trio.sleep_forever)

    def __init__(self):
        self.announced, self.asked = [], []
        self.connected = ("peer",)

    def near(self):
        return [*self.connected]

    async def admit(self, peer_id):
        """Not take it into the table, as if nobody could dial it."""

    async def closest(self, key):
        return ["peer", "another"]

    async def exchange(self, peer_id, announce, ask):
        self.announced.append((peer_id, len(announce)))
        self.asked.append((peer_id, len(ask)))
        return {}

    def provide(self, keys):
        pass

    def known_providers(self, key):
        return []


async def test_changes_one_after_another_are_announced_together(autojump_clock):
    """A client that has just started registers its interests one by one."""
    dht, wanted = NotedDht(), Wanted("first")
    announced = dht.announced
    service = Discovery(lambda: dht, NETWORK, wanted, 3600.0, lambda *_: None)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(service.run)
        await trio.sleep(0.5)
        assert sorted(announced) == sorted(dht.asked) == [("another", 2), ("peer", 2)]
        sort_values = ["first"]
        for number in range(9):
            sort_values.append(str(number))
            wanted.want(*sort_values)
            await trio.sleep(GATHER / 10)
        await trio.sleep(GATHER)
        assert sum(count for peer, count in announced if peer == "peer") == 2 + 9
        assert max(count for _, count in announced) >= 8, "the walks may begin with the others"
        nursery.cancel_scope.cancel()


async def test_the_first_peer_is_asked_even_if_nobody_else_can_dial_it(autojump_clock):
    dht = NotedDht()
    dht.connected = ()
    service = Discovery(lambda: dht, NETWORK, Wanted(), 3600.0, lambda *_: None)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(service.run)
        await trio.sleep(60)
        assert dht.announced == []
        dht.connected = ("peer",)
        await service.join("peer")
        await trio.sleep(1)
        assert ("peer", 1) in dht.announced
        nursery.cancel_scope.cancel()


async def test_what_a_connected_peer_shares_is_announced_at_leisure(autojump_clock):
    """Its events are on their way, and nobody should have to answer for the DHT meanwhile."""
    dht, wanted = NotedDht(), Wanted("first")
    service = Discovery(
        lambda: dht, NETWORK, wanted, 3600.0, lambda *_: None, has_some={"shared"}.__contains__
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(service.run)
        await trio.sleep(0.5)
        dht.announced.clear()
        wanted.want("first", "shared")
        await trio.sleep(AT_LEISURE * GATHER - 0.5)
        assert not any(count for _, count in dht.announced)
        await trio.sleep(1.0)
        assert ("peer", 1) in dht.announced
        dht.announced.clear()
        wanted.want("first", "shared", "not shared")
        await trio.sleep(GATHER + 0.5)
        assert ("peer", 1) in dht.announced
        nursery.cancel_scope.cancel()


async def test_those_with_one_interest_find_each_other_whoever_dies_or_joins(quick):
    """From one bootstrap node, after its death, and for the last to join."""
    death = trio.Event()

    async def live(task_status=trio.TASK_STATUS_IGNORED) -> None:
        async with member() as here:
            task_status.started(here)
            await death.wait()

    async with trio.open_nursery() as nursery, AsyncExitStack() as others:
        bootstrap = await nursery.start(live)
        interests = ["chess", "tea", "cats", "chess"]
        nodes = [await others.enter_async_context(member(interest)) for interest in interests]
        one, two, three, four = nodes
        gone = bootstrap.host.peer_id
        for node in nodes:
            await node.host.connect(bootstrap.host.addresses[0])
        await eventually(lambda: one.has_found(four, "chess") and four.has_found(one, "chess"))
        assert {len(node.found["chess"]) for node in (two, three, bootstrap)} == {0}
        await eventually(lambda: all(len(node.found[None]) == 4 for node in nodes))

        death.set()
        await eventually(lambda: not any(node.host.is_connected(gone) for node in nodes))
        for node in (two, three):
            node.wanted.want("go")
        await eventually(lambda: two.has_found(three, "go") and three.has_found(two, "go"))

        last = await others.enter_async_context(member("chess", "go"))
        await last.host.connect(two.host.addresses[0])
        await eventually(lambda: all(last.has_found(node, "chess") for node in (one, four)))
        await eventually(lambda: all(last.has_found(node, "go") for node in (two, three)))
        await eventually(lambda: one.has_found(last, "chess"))
        [network, *_] = reports = last.service.reports()
        assert [report.sort_value for report in reports] == [None, "chess", "go"]
        assert [report.found for report in reports[1:]] == [2, 2]
        assert network.told >= 1


async def test_a_peer_that_leads_astray_keeps_two_from_finding_each_other_no_longer(quick):
    """It names peers that do not answer as the closest, whatever it is asked."""
    silent = await trio.open_tcp_listeners(0, host="127.0.0.1")
    nowhere = Multiaddr(f"/ip4/127.0.0.1/tcp/{silent[0].socket.getsockname()[1]}")

    async def mislead(stream: PeerStream) -> None:
        frames = FrameStream(stream, MAX_ANSWER)
        while (data := await frames.receive(30)) is not None:
            request = KadMessage.FromString(data)
            answer = KadMessage(type=request.type, key=request.key)
            for _ in range(20):
                named = answer.closerPeers.add()
                named.id = some_peer_id().to_bytes()
                named.addrs.append(nowhere.to_bytes())
            await frames.send([answer.SerializeToString()], 5)

    async with member() as a, member() as b, member() as c, loopback_host() as liar:
        liar.handle(protocol_of(NETWORK), mislead)
        for node in (a, b, c):
            await liar.connect(node.host.addresses[0])
        await b.host.connect(a.host.addresses[0])
        await c.host.connect(a.host.addresses[0])
        await eventually(lambda: b.has_found(c) and c.has_found(b))
        assert b.addresses[c.host.peer_id] == tuple(c.host.addresses)
        assert not b.has_found(b)
    await silent[0].aclose()
