"""Finding peers through the DHT of the network: those on it, and those with the same interests.

Every node announces itself at its rendezvous and looks up the other nodes there (CIP-124, "Peer
discovery"); `schedule` says which ones and when, `dht` does it. Two tasks do the same work side
by side. One exchanges with connected peers, and is quick. The other walks to the closest peers of
the whole DHT, which takes longer: the walk leads through peers that anybody may have named, and
some of them do not answer or do not exist.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog
import trio

from recon_node.base.latest import Latest
from recon_node.ceramic import Network
from recon_node.p2p.errors import PeerError
from recon_node.p2p.peers.dht import CLOSEST, FoundProvider, LibraryDht
from recon_node.p2p.peers.dht_server import LIFETIME
from recon_node.p2p.peers.schedule import MAX_QUICK, ROUNDS, Rendezvous, Schedule, all_rendezvous
from recon_node.store import Interest
from recon_node.store.kept_interests import Interests

logger = structlog.get_logger(__name__)

MAX_NEAR: Final = 20
"""Maximum connected peers with which it exchanges in one round; of more, a random choice."""
ASKED: Final = 5
"""How many peers are asked about a rendezvous in each round after the first: an answer is fifty
times as long as an announcement."""
STILL_NEWS: Final = 0.5
"""A peer gets the announcement at a rendezvous again after this part of the interval."""
NEWS_AGAIN: Final = 5.0
"""Seconds for which a peer that was found is not passed on again: twenty peers may name it."""
MAX_COUNTED: Final = 1000
"""Maximum peers that are counted as having an announcement at a rendezvous, or as found there."""
WALKS: Final = 2
"""Walks at the same time. More would exceed the streams that a server grants to one peer."""
WALKED: Final = 8
"""Maximum rendezvous that are walked to in one round."""
EXCHANGES: Final = 10
"""Peers that get an announcement or a question at the same time, by each of the two tasks."""
GATHER: Final = 1.0
"""Seconds for which changes of the interests are gathered: they come one by one from a client that
has just started. Connected peers get each at once (`interest_gossip`)."""
AT_LEISURE: Final = 5
"""Changes are gathered for this many times `GATHER` while a connected peer shares each new
interest: its events are on their way then, and come sooner without questions for the DHT."""
ROUND_PAUSE: Final = 0.1
"""The least seconds between two rounds."""
FEW_PEERS: Final = 8
"""With fewer connections, every peer that joins starts the first rounds again. In a large network
peers come and go all the time."""


@dataclass(slots=True)
class _Outcome:
    """What came of a rendezvous so far. The times are trio's, the last one excepted."""

    announced_to: Latest[str, float] = field(default_factory=lambda: Latest(MAX_COUNTED))
    found: Latest[str, float] = field(default_factory=lambda: Latest(MAX_COUNTED))
    announced_at: float | None = None


class Discovery:
    """Announces this node and finds others.

    Args:
        open_dht: makes this node's DHT, and makes it again after a failure.
        network: whose nodes to find.
        wanted: what this node is interested in.
        announce_interval: seconds between two announcements at a rendezvous, in the long run.
        on_found: takes the peer id and multiaddrs of each peer that is found, as often as it is,
            and the sort value at whose rendezvous it was; None: at that of the network.
        rng: where chance comes from.
        has_enough: returns whether enough peers are connected of those that are found at a
            rendezvous, which ends its first rounds.
        has_some: returns whether a connected peer is interested in a sort value, which puts off the
            first round at its rendezvous.
    """

    def __init__(
        self,
        open_dht: Callable[[], LibraryDht],
        network: Network,
        wanted: Interests,
        announce_interval: float,
        on_found: Callable[[str, Sequence[str], str | None], None],
        rng: random.Random | None = None,
        has_enough: Callable[[str | None], bool] = lambda sort_value: False,
        has_some: Callable[[str], bool] = lambda sort_value: False,
    ) -> None:
        self._open_dht = open_dht
        self._network = network
        self._wanted = wanted
        self._on_found = on_found
        self._has_enough = has_enough
        self._has_some = has_some
        self._random = rng or random.Random()
        self._around = Schedule(announce_interval, self._random.random)
        self._further = Schedule(announce_interval, self._random.random)
        self._rendezvous: dict[bytes, Rendezvous] = {}
        self._outcomes: dict[bytes, _Outcome] = {}
        self._interval = announce_interval
        self._addresses_since = -math.inf
        """Since when this node has its addresses: earlier announcements do not count."""
        self._changed = trio.Event()
        self._dht = open_dht()
        self._follow(wanted.all)

    async def run(self) -> None:
        """Announce this node and look for peers until cancelled; restart the DHT when it fails."""
        while True:
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._dht.run)
                    nursery.start_soon(self._follow_interests)
                    nursery.start_soon(self._in_turn, self._around, self._look_around)
                    nursery.start_soon(self._in_turn, self._further, self._look_further, WALKED)
            except Exception as error:
                logger.error("Peer discovery failed; restarting it", error=repr(error))
            await trio.sleep(ROUNDS.longest)
            self._dht = self._open_dht()
            self._dht.provide(self._rendezvous)

    async def join(self, peer_id: str) -> None:
        """Take a connected peer that has identified itself into the DHT, and look around.

        The library does not do so for a mere connection.
        """
        await self._dht.admit(peer_id)
        near = self._dht.near()
        if peer_id in near and len(near) <= FEW_PEERS:
            self._start_over()

    def look_now(self) -> None:
        """Announce this node to everyone again, as its addresses have changed, and look around."""
        self._addresses_since = trio.current_time()
        self._start_over()

    def _start_over(self) -> None:
        now = trio.current_time()
        self._around.restart(now)
        self._further.restart(now)
        self._wake()

    def reports(self) -> list[RendezvousReport]:
        """Return what came of each rendezvous, the network's first."""
        horizon = trio.current_time() - LIFETIME

        def recent(times: dict[str, float]) -> int:
            return sum(at > horizon for at in times.values())

        return [
            RendezvousReport(
                sort_value=rendezvous.sort_value,
                key=key.hex(),
                announced_at=(outcome := self._outcomes[key]).announced_at,
                told=recent(outcome.announced_to),
                found=recent(outcome.found),
            )
            for key, rendezvous in self._rendezvous.items()
        ]

    @property
    def records_kept(self) -> int:
        """The number of provider records that this node keeps for others."""
        return len(self._dht.records)

    async def _follow_interests(self) -> None:
        while True:
            known = self._wanted.all
            self._follow(known)
            await self._wanted.wait_for_change(known)
            for _ in range(AT_LEISURE):
                await trio.sleep(GATHER)
                of = {interest.sort_value for interest in known}
                new = {interest.sort_value for interest in self._wanted.all} - of
                if not new or not all(map(self._has_some, new)):
                    break

    def _follow(self, interests: Sequence[Interest]) -> None:
        points = all_rendezvous(self._network, interests)
        self._rendezvous = {rendezvous.key: rendezvous for rendezvous in points}
        self._outcomes = {key: self._outcomes.get(key, _Outcome()) for key in self._rendezvous}
        now = trio.current_time()
        self._around.change(self._rendezvous, now)
        self._further.change(self._rendezvous, now)
        self._dht.provide(self._rendezvous)
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def _in_turn(
        self,
        schedule: Schedule,
        work: Callable[[list[bytes]], Awaitable[None]],
        at_most: int = MAX_QUICK,
    ) -> None:
        """Work on each rendezvous when it is due. Without peers, wait for the first one."""
        while True:
            changed = self._changed
            until = math.inf
            if self._dht.near():
                now = trio.current_time()
                schedule.settle(now, self._is_settled)
                keys = schedule.take(now, at_most)
                if keys:
                    await work(keys)
                await trio.sleep(ROUND_PAUSE)
                until = schedule.next_at
            with trio.move_on_at(until):
                await changed.wait()

    def _is_settled(self, key: bytes) -> bool:
        """Return whether this node has announced itself at a rendezvous, and found enough there."""
        if self._outcomes[key].announced_at is None:
            return False
        return self._has_enough(self._rendezvous[key].sort_value)

    async def _look_around(self, keys: list[bytes]) -> None:
        """Announce this node to connected peers, and ask them for others."""
        near = self._dht.near()
        peers = self._random.sample(near, min(len(near), MAX_NEAR))
        for key in keys:
            self._report(key, self._dht.known_providers(key))
            await trio.lowlevel.checkpoint()  # there may be many, with many addresses each
        await self._announce(dict.fromkeys(peers, keys), self._around)

    async def _look_further(self, keys: list[bytes]) -> None:
        """Do the same with the closest peers of the whole DHT that are not connected."""
        first, *others = keys
        closest = {first: await self._dht.closest(first)}
        if len(closest[first]) < CLOSEST:  # there are no others, so they are the closest to all
            closest.update(dict.fromkeys(others, closest[first]))
        else:
            limiter = trio.CapacityLimiter(WALKS)

            async def walk(key: bytes) -> None:
                async with limiter:
                    closest[key] = await self._dht.closest(key)

            async with trio.open_nursery() as nursery:
                for key in others:
                    nursery.start_soon(walk, key)
        near = self._dht.near()
        looked_around = set(near) if len(near) <= MAX_NEAR else set()  # they get it anyway
        targets: dict[str, list[bytes]] = {}
        for key, peers in closest.items():
            for peer in peers:
                if peer not in looked_around:
                    targets.setdefault(peer, []).append(key)
        await self._announce(targets, self._further)

    async def _announce(self, targets: dict[str, list[bytes]], schedule: Schedule) -> None:
        """Announce this node to peers at the given rendezvous, but those that have it of late.

        Ask some of them for others; in the first round, all.
        """
        due = {peer: (self._news_for(peer, keys), list[bytes]()) for peer, keys in targets.items()}
        for key in {key: None for keys in targets.values() for key in keys}:
            peers = [peer for peer, keys in targets.items() if key in keys]
            if not schedule.is_first_round(key):
                peers = self._random.sample(peers, min(len(peers), ASKED))
            for peer in peers:
                due[peer][1].append(key)
        limiter = trio.CapacityLimiter(EXCHANGES)

        async def exchange(peer: str, announce: list[bytes], ask: list[bytes]) -> None:
            async with limiter:
                await self._exchange(peer, announce, ask)

        async with trio.open_nursery() as nursery:
            for peer, (announce, ask) in due.items():
                if announce or ask:
                    nursery.start_soon(exchange, peer, announce, ask)

    def _news_for(self, peer_id: str, keys: Iterable[bytes]) -> list[bytes]:
        """Return the rendezvous at which this node has not announced itself to a peer lately."""
        lately = max(self._addresses_since, trio.current_time() - self._interval * STILL_NEWS)
        outcomes = ((key, self._outcomes[key]) for key in keys if key in self._outcomes)
        return [
            key
            for key, outcome in outcomes
            if outcome.announced_to.get(peer_id, -math.inf) <= lately
        ]

    async def _exchange(self, peer_id: str, announce: list[bytes], ask: list[bytes]) -> None:
        try:
            answers = await self._dht.exchange(peer_id, announce, ask)
        except PeerError as error:
            logger.debug("A peer of the DHT does not answer", peer=peer_id, reason=str(error))
            return
        for key in announce:
            if (outcome := self._outcomes.get(key)) is not None:  # else no longer of interest
                outcome.announced_at = time.time()
                _note(outcome.announced_to, [peer_id])
        for key, providers in answers.items():
            self._report(key, providers)

    def _report(self, key: bytes, providers: Sequence[FoundProvider]) -> None:
        """Pass on peers that were found at a rendezvous."""
        rendezvous = self._rendezvous.get(key)
        if rendezvous is None:  # no longer of interest
            return
        known, now = self._outcomes[key].found, trio.current_time()
        news = [
            provider
            for provider in providers
            if provider.peer_id != self._dht.peer_id
            and known.get(provider.peer_id, -math.inf) + NEWS_AGAIN <= now
        ]
        _note(known, [provider.peer_id for provider in news])
        for provider in news:
            self._on_found(provider.peer_id, provider.addresses, rendezvous.sort_value)


def _note(times: dict[str, float], peers: Iterable[str]) -> None:
    """Note that something has happened to peers now."""
    for peer in peers:
        times[peer] = trio.current_time()


@dataclass(frozen=True, slots=True)
class RendezvousReport:
    """What came of announcing this node at a rendezvous, and of looking there."""

    sort_value: str | None
    """Of the interests that it is for; None: it is that of the network."""
    key: str
    """The key in the DHT, a multihash in hexadecimal."""
    announced_at: float | None
    """When a peer last took an announcement, in seconds since 1970."""
    told: int
    """Peers that took one in the last hour, and so have a record of this node."""
    found: int
    """Other nodes that were found there in the last hour."""
