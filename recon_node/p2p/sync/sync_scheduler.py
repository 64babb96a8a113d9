"""When to sync with whom: new events soon, everything from time to time, new peers at once.

One task at a time syncs with a peer, and one more about news: a few keys must not wait while very
many are fetched. A request that arrives meanwhile is not lost: another sync follows, because the
one under way may already have passed the range of a new key. `push` decides which peers new keys
are pushed to.

With a ceramic-one node, only the side that dialled starts sessions, as such nodes do: one a
second after the other, and after longer and longer pauses if they fail. `rings` has what they are
about.
"""

import math
import random
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple, TypeAlias, TypeVar

import structlog
import trio

from recon_node.fairness.pacing import Backoff, jittered
from recon_node.p2p.context import Context
from recon_node.p2p.errors import (
    BROKEN_PROTOCOL,
    MISBEHAVED,
    PEER_FAILURES,
    PeerError,
    describe_error,
)
from recon_node.p2p.peers.book import Peer
from recon_node.p2p.peers.connections import VISIT
from recon_node.p2p.peers.overlap import Overlap
from recon_node.p2p.sync.fetch import SNAPSHOTS_TURN
from recon_node.p2p.sync.push import Pusher
from recon_node.p2p.sync.reconciler import Reconciler
from recon_node.p2p.sync.rings import Rings
from recon_node.p2p.transport.addresses import peer_id_in
from recon_node.recon import KeyRange, intersect_ranges, merge_ranges, subtract_ranges
from recon_node.store import StoreError

logger = structlog.get_logger(__name__)

ASK_FOR_ALL_EVERY: Final = 60.0
"""Seconds after which a peer is asked for everything that interests us."""
SLOT_TIME: Final = 30.0
"""Seconds after which a sync no longer keeps others from starting."""
PUSH_SLOT_TIME: Final = 2.0
"""The same for a push, which is short: who does not answer it must not keep others waiting."""
MAX_DUE: Final = 64
"""Maximum ranges that are due for a sync with a peer before they count as one."""
MAX_SYNCS: Final = 64
"""Maximum peers that are synced with, or wait for a sync, before they are connected."""
MAX_DIALS: Final = 8
"""Maximum peers that are dialled at once. Connected peers do not wait for them, because anybody can
name peers that do not exist."""
DIAL_TIME: Final = 30.0
"""Seconds for which the addresses of one peer are tried."""
PEERS_TURN: Final = 10.0
"""Seconds for which our sync with a peer waits for one that the peer has started."""
NEWS_TURN: Final = 0.25
"""The same for a sync about news."""
NEWS_TIME: Final = 0.5
"""Seconds after which a sync about news no longer keeps later news waiting: where it looks for them
it has found very much else."""
NEWS_AT_ONCE: Final = 3
"""Maximum syncs about news with one peer."""
REPAIR_PAUSE: Final = 5.0
"""Seconds between two rounds that fetch damaged events: damage often comes in many at once."""

BETWEEN_RING_SYNCS: Final = Backoff(first=1.0, longest=600.0)
"""The pauses between syncs with a ceramic-one node, in seconds: the first after success, as its."""
BOOTSTRAP_BACKOFF: Final = Backoff(first=1.0, longest=60.0)
"""The waits between tries to reach a bootstrap peer."""
CONNECTION_POLL: Final = 1.0
"""Seconds between two looks whether a bootstrap peer is still connected."""

T = TypeVar("T")


class _Lane(NamedTuple):
    """Syncs with one peer, which follow one another."""

    peer_id: str
    news: int = 0
    """Which of the lanes for news it is; 0: it is for all else."""


_Kind: TypeAlias = tuple[bool, bool]
"""Of a sync: whether it is a push, and whether of news. Those of one kind share slots."""


class SyncScheduler:
    """Keeps the store equal to the peers' stores, in what both sides are interested in.

    `wait_for_interests` waits until a connected peer has stated its interests, if it does.
    `is_needed` returns whether to keep a connection that the random order has led to. Without
    `rings`, this node does not speak 0.1.0.
    """

    def __init__(
        self,
        context: Context,
        reconciler: Reconciler,
        overlap: Overlap,
        wait_for_interests: Callable[[str], Awaitable[None]],
        is_needed: Callable[[str], bool],
        rings: Rings | None,
    ) -> None:
        settings = self._settings = context.settings
        self._host, self._store, self._book = context.host, context.store, context.book
        self._counters = context.counters
        self._reconciler = reconciler
        self._wait_for_interests = wait_for_interests
        self._is_needed = is_needed
        self._rings = rings
        self._overlap = overlap
        self._pusher = Pusher(
            context, overlap, self._near, reconciler.sources_of, reconciler.memory, self.request
        )
        self._limiters = defaultdict[_Kind, trio.CapacityLimiter](
            partial(trio.CapacityLimiter, settings.sync_peers)
        )
        """The slots for syncs of each kind."""
        self._limiters_by_block: dict[tuple[str, _Kind], trio.CapacityLimiter] = {}
        """How many of these slots each address block has."""
        self._dials = trio.CapacityLimiter(MAX_DIALS)
        self._running: dict[_Lane, trio.Event] = {}
        """The lanes in which a sync runs or is due; each event is set at the end."""
        self._due: dict[_Lane, list[KeyRange] | None] = {}
        """Which syncs are due, and about which ranges; None for all."""
        self._lasting: set[_Lane] = set()
        """Lanes for news whose sync takes long."""
        self._in_rings: set[str] = set()
        self._visits: set[str] = set()
        """Peers that are dialled for one sync."""
        self._nursery: trio.Nursery | None = None

    async def run(self) -> None:
        """Sync until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._sync_from_time_to_time)
            nursery.start_soon(self._pusher.run)
            nursery.start_soon(self._ask_for_new_interests)
            nursery.start_soon(self._replace_damaged)
            for address in self._settings.bootstrap:
                nursery.start_soon(self._keep_connected, address)

    def meet(self, peer_id: str) -> None:
        """Sync with a peer that has connected, if it is this node that dialled: one side does for
        both."""
        if not self._host.has_dialled(peer_id):
            return
        self.request(peer_id)
        if self._rings is not None and self._nursery is not None and peer_id not in self._in_rings:
            self._in_rings.add(peer_id)
            self._nursery.start_soon(self._keep_in_rings, peer_id, self._rings)

    def request(
        self, peer_id: str, ranges: Sequence[KeyRange] | None = None, *, of_news: bool = False
    ) -> None:
        """Request a sync with a peer, soon.

        It is about everything that both sides are interested in, or only what lies in `ranges`. If
        `of_news`, few keys are new there, and the sync does not wait for others.
        """
        lane = self._news_lane(peer_id) if of_news else _Lane(peer_id)
        if lane not in self._running:
            if self._nursery is None or not self._has_room(peer_id):
                return
            self._running[lane] = trio.Event()
            self._nursery.start_soon(self._sync_task, lane)
        due = self._due.get(lane, [])
        if ranges is None or due is None:
            self._due[lane] = None
        else:
            merged = merge_ranges([*due, *ranges])
            if len(merged) > MAX_DUE:  # a slow peer: they would go on growing in number
                merged = [KeyRange(merged[0].lower, merged[-1].upper)]
            self._due[lane] = merged

    def _has_room(self, peer_id: str) -> bool:
        """Return whether to sync with another peer, too. Crowds that are connected do not count:
        they would keep this node from all that it finds."""
        is_connected = self._host.is_connected
        if is_connected(peer_id):
            return True
        return sum(not is_connected(lane.peer_id) for lane in self._running) < MAX_SYNCS

    def _news_lane(self, peer_id: str) -> _Lane:
        lanes = [_Lane(peer_id, number) for number in range(1, NEWS_AT_ONCE + 1)]
        return next((lane for lane in lanes if lane not in self._lasting), lanes[-1])

    async def connect(self, peer_id: str) -> None:
        """Connect to a peer by the addresses in the book, the best first.

        Raises:
            PeerError: none of them works.
        """
        if self._host.is_connected(peer_id):
            return
        peer = self._book.get(peer_id)
        error = PeerError(f"no address is known for peer {peer_id}")
        async with self._dials:
            with trio.move_on_after(DIAL_TIME):
                for address in list(peer.addresses) if peer else ():
                    try:
                        await self._host.connect(address)
                    except PeerError as failure:
                        error = failure
                    else:
                        self._book.reached_at(peer_id, address)
                        return
        self._counters.dials_failed += 1
        raise error

    async def _sync_from_time_to_time(self) -> None:
        while True:
            near = [peer for peer in self._near() if self._overlap.ranges(peer.id)]
            connected = set(self._host.connected_peers())
            known = self._book.peers()
            far = [peer for peer in known if peer.addresses and peer.id not in connected]
            await self._overlap.weigh((*near, *far))
            count = self._settings.sync_peers
            reach_out = count if len(near) < count else 1
            # A session is how a peer that does not state its interests learns ours: it has one in
            # each round of syncs (CIP-124, "Interest Gossip"). Of the others, a few are drawn.
            silent = [peer for peer in near if not self._book.has_stated(peer.id)]
            stating = [peer for peer in near if self._book.has_stated(peer.id)]
            drawn = self._book.choose(count, stating)
            for peer in (*drawn, *self._book.choose(len(silent), silent)):
                self.request(peer.id)
            for peer in self._book.choose(reach_out, far):
                self.request(peer.id)
                if _Lane(peer.id) in self._running:
                    self._visits.add(peer.id)
            await trio.sleep(jittered(self._settings.sync_interval, random.random()))

    async def _ask_for_new_interests(self) -> None:
        """Sync at once when our interests change, and forget what was asked for before.

        With the peers that announce their interests, `interest_gossip` does it.
        """
        while True:
            await self._store.wanted.wait_for_change(self._store.wanted.all)
            for peer in self._book.peers():
                peer.asked_for_all_at = -math.inf
            near = [peer for peer in self._near() if not self._book.has_stated(peer.id)]
            for peer in self._book.choose(len(near), near):
                self.request(peer.id)

    async def _replace_damaged(self) -> None:
        """Fetch damaged events again: their keys have left the key store, so any sync does it."""
        seen = 0
        while True:
            seen = await self._store.damage.wait(seen)
            peers = [
                peer_id for peer_id in self._host.connected_peers() if self._overlap.ranges(peer_id)
            ]
            for peer_id in random.sample(peers, min(self._settings.sync_peers, len(peers))):
                self.request(peer_id)
            await trio.sleep(REPAIR_PAUSE)

    def _near(self) -> list[Peer]:
        """Return the peers that we are connected with."""
        able = filter(self._reconciler.can_sync_with, self._host.connected_peers())
        near = [peer for peer in map(self._book.get, able) if peer is not None]
        for peer in near:
            peer.address_block = self._host.address_block(peer.id)
        return near

    async def _sync_task(self, lane: _Lane) -> None:
        peer_id = lane.peer_id
        try:
            went_well, began = True, trio.current_time()
            while went_well and lane in self._due:
                await self._wait_for_others(lane)
                went_well = await self._try_to_connect(peer_id)
                if went_well:
                    await self._wait_for_interests(peer_id)
                    is_push = self._due[lane] is not None
                    async with self._slot_for(lane, is_push=is_push):
                        due = self._due.pop(lane)
                        async with self._giving_way(lane) if lane.news else nullcontext():
                            went_well = await self._try_to_sync(peer_id, due)
                is_over = not went_well or lane not in self._due
                if is_over and peer_id in self._visits and not lane.news:
                    await self._end_visit(peer_id, began)
        finally:
            if not lane.news:
                self._visits.discard(peer_id)
            self._running.pop(lane).set()
            self._due.pop(lane, None)

    async def _wait_for_others(self, lane: _Lane) -> None:
        """Wait for other syncs with a peer, which do the same work: two would do it twice."""
        with trio.move_on_after(NEWS_TURN if lane.news else PEERS_TURN):
            if lane.news and (ours := self._running.get(_Lane(lane.peer_id))) is not None:
                await ours.wait()
            await self._reconciler.slots.wait_until_unused(lane.peer_id)

    async def _end_visit(self, peer_id: str, began: float) -> None:
        """Let go of a peer that is not needed, unless both sides would miss it by now."""
        with trio.move_on_after(VISIT):
            await self._reconciler.slots.wait_until_unused(peer_id)
        if trio.current_time() - began >= VISIT or _Lane(peer_id) in self._due:
            return
        if self._reconciler.can_sync_with(peer_id) and not self._is_needed(peer_id):
            await self._host.disconnect(peer_id)

    @asynccontextmanager
    async def _slot_for(self, lane: _Lane, *, is_push: bool) -> AsyncIterator[None]:
        """Wait for a slot for a sync; the peers at one address never have all of a kind."""
        kind, blocks = (is_push, lane.news > 0), self._limiters_by_block
        block = self._host.address_block(lane.peer_id), kind
        most = max(1, self._settings.sync_peers - 1)
        limiter = blocks.setdefault(block, trio.CapacityLimiter(most))
        time = PUSH_SLOT_TIME if is_push else SLOT_TIME
        try:
            async with self._slot(limiter, time), self._slot(self._limiters[kind], time):
                yield
        finally:
            used = limiter.statistics()
            if not used.borrowed_tokens and not used.tasks_waiting:
                blocks.pop(block, None)

    @asynccontextmanager
    async def _giving_way(self, lane: _Lane) -> AsyncIterator[None]:
        """Have what becomes due synced in another lane if the block takes long."""

        async def give_way() -> None:
            await trio.sleep(NEWS_TIME)
            self._lasting.add(lane)
            if due := self._due.pop(lane, None):
                self.request(lane.peer_id, due, of_news=True)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(give_way)
            try:
                yield
            finally:
                self._lasting.discard(lane)
            nursery.cancel_scope.cancel()

    @asynccontextmanager
    async def _slot(self, limiter: trio.CapacityLimiter, time: float) -> AsyncIterator[None]:
        """Wait for one of the few slots for syncs; a slow sync gives its back after a time."""
        holder = object()
        await limiter.acquire_on_behalf_of(holder)

        async def give_back() -> None:
            try:
                await trio.sleep(time)
            finally:
                limiter.release_on_behalf_of(holder)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(give_back)
            yield
            nursery.cancel_scope.cancel()

    async def _try_to_connect(self, peer_id: str) -> bool:
        """Connect to a peer, and record a failure in the book; return whether it succeeded."""
        try:
            await self.connect(peer_id)
        except PeerError as error:
            self._note_failure(peer_id, error)
            return False
        return True

    async def _keep_connected(self, address: str) -> None:
        """Connect to a bootstrap peer, and again whenever the connection is gone."""
        peer_id = peer_id_in(address)
        if peer_id == self._host.peer_id:
            return  # all nodes of a network may have the same list
        failures = 0
        while True:
            try:
                known = self._host.is_connected(peer_id)
                await self._host.connect(address)
            except PeerError as error:
                self._counters.dials_failed += 1
                failures += 1
                wait = BOOTSTRAP_BACKOFF.wait(failures, random.random())
                logger.info(
                    "Cannot reach a bootstrap peer", reason=str(error), next_try_in=round(wait, 1)
                )
                await trio.sleep(wait)
                continue
            if not known:
                self._book.reached_at(peer_id, address)
            while self._host.is_connected(peer_id):  # noqa: ASYNC110 (there is no event for it)
                await trio.sleep(CONNECTION_POLL)
            if self._book.get(peer_id) is not None:
                failures = 0
            else:  # this node cannot sync with it
                failures += 1
                await trio.sleep(BOOTSTRAP_BACKOFF.wait(failures, random.random()))

    async def _keep_in_rings(self, peer_id: str, rings: Rings) -> None:
        """Sync with a peer that speaks 0.1.0 as long as it is connected."""
        spoken, is_one_of_ours = rings.spoken_with(peer_id)
        first = self._settings.sync_interval if is_one_of_ours else BETWEEN_RING_SYNCS.first
        pauses, failures = replace(BETWEEN_RING_SYNCS, first=first), 0
        try:
            while spoken and self._host.is_connected(peer_id):
                await self._store.filling.wait(SNAPSHOTS_TURN)
                interests = self._store.wanted.all
                is_complete = await self._attempt(peer_id, rings.sync(peer_id, spoken))
                failures = 1 if is_complete else failures + 1
                with trio.move_on_after(pauses.wait(failures, random.random())):
                    await self._store.wanted.wait_for_change(interests)
                    failures = 0  # there may be more to take now: sync at once
        finally:
            self._in_rings.discard(peer_id)

    async def _try_to_sync(self, peer_id: str, due: Sequence[KeyRange] | None) -> bool:
        """Sync with a peer, record the result in the book, and return whether it succeeded."""
        ranges = self._ranges_to_ask_for(peer_id, due)
        if filled := self._store.filling.ranges:  # the rest comes after the snapshot
            rest = subtract_ranges(subtract_ranges(ranges, filled), due or ())
            ranges = [*intersect_ranges(ranges, due or ()), *rest]
        if not ranges or not self._reconciler.can_sync_with(peer_id):
            return True
        not_supplied = await self._attempt(peer_id, self._reconcile(peer_id, ranges, due or ()))
        if not_supplied is None:
            return False
        latency = self._host.latency(peer_id)
        self._book.synced(peer_id, latency, time.time(), supplied=not_supplied == 0)
        return True

    async def _reconcile(
        self, peer_id: str, ranges: Sequence[KeyRange], news: Sequence[KeyRange]
    ) -> int:
        return sum(
            [await self._reconciler.reconcile(peer_id, key_range, news) for key_range in ranges]
        )

    async def _attempt(self, peer_id: str, sync: Awaitable[T]) -> T | None:
        """Return what a sync returns; None if it fails, which the book has then."""
        try:
            return await sync
        except PEER_FAILURES as error:
            self._note_failure(peer_id, error)
        except StoreError as error:
            logger.error("Cannot sync: the store is failing", peer=peer_id, reason=str(error))
        return None

    def _note_failure(self, peer_id: str, error: Exception) -> None:
        severity = MISBEHAVED if isinstance(error, BROKEN_PROTOCOL) else 1
        wait = self._book.failed(peer_id, severity=severity)
        # The rings have pauses of their own.
        when = {} if peer_id in self._in_rings else {"next_try_in": round(wait, 1)}
        logger.info(
            "Cannot sync with a peer now", peer=peer_id, reason=describe_error(error), **when
        )

    def _ranges_to_ask_for(
        self, peer_id: str, due: Sequence[KeyRange] | None
    ) -> Sequence[KeyRange]:
        """Return the part of what is due that both sides are interested in, as far as we know.

        If the peer does not state its interests, it is from time to time everything that interests
        us, with what is due first. The peer should learn our interests, and two sides that only ask
        for what the other asked for would keep narrowing each other down.
        """
        peer = self._book.note_peer(peer_id, ())
        now = trio.current_time()
        is_known = self._book.has_stated(peer_id)
        if is_known or now < peer.asked_for_all_at + ASK_FOR_ALL_EVERY:
            common = self._overlap.ranges(peer_id)
            return common if due is None else intersect_ranges(common, due)
        peer.asked_for_all_at = now
        ours = self._store.wanted.ranges
        if due is None:
            return ours
        return sorted(ours, key=lambda key_range: not intersect_ranges([key_range], due))
