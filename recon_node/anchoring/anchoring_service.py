"""Anchoring in a running node: build trees, have them anchored, make their time events.

`open_anchoring` opens it by the settings.

One tree is under way at a time; what comes meanwhile goes into the next one. Everything that the
node must not forget is in the journal, so a task that fails begins again where the journal is.
"""

import time
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

import structlog
import trio

from recon_node.anchoring.authority import (
    Anchored,
    AuthorityError,
    DevelopmentClock,
    PayingAccount,
    Pending,
    TimeAuthority,
)
from recon_node.anchoring.evm import EvmAuthority
from recon_node.anchoring.feed_follower import AFTER_BUG, AFTER_FAULT, FeedFollower, in_thread
from recon_node.anchoring.journal import AnchorRequest, Journal, JournalError, RequestState, Tree
from recon_node.anchoring.machine import FeeLimits
from recon_node.anchoring.settings import AnchorSettings
from recon_node.anchoring.signer import Signer, load_signer
from recon_node.anchoring.tree import MerkleTree
from recon_node.ceramic import StreamId
from recon_node.ceramic.builder import proof_block, time_event_car
from recon_node.chain import ChainReport, ChainSettings
from recon_node.chain.rpc import RpcProvider, open_provider
from recon_node.fairness.slots import ASKER
from recon_node.ipld import CID, car
from recon_node.store import Store, StoreError

logger = structlog.get_logger(__name__)

_MADE_AT_ONCE: Final = 500
"""Time events that are made and admitted together."""
_UNDER_WAY: Final = (RequestState.WAITING, RequestState.IN_TREE)
_COLLECTING: Final = 12
"""A tree is not built before its first event has waited for this part of the interval."""
_WARNING_PAUSE: Final = 600.0
"""Seconds between two lines of an alarm whose figures change, such as the base fee."""


class FullError(Exception):
    """Too many requests wait."""


@dataclass(frozen=True, slots=True)
class AnchoringStatus:
    """How anchoring stands."""

    counts: Mapping[RequestState, int]
    """Requests by state, of the states that were asked for."""
    trees: int
    """That were anchored."""
    spent: int
    """On them, in wei."""
    under_way: Tree | None
    state: str
    """What the tree that is under way waits for; empty if there is none."""
    position: int
    """Of the feed, up to which events were selected."""
    due_at: float | None
    """When the next tree will be built, in Unix seconds; None if nothing waits."""


class Anchoring:
    """The anchoring of a running node. Get one from `open_anchoring`.

    Attributes:
        settings: of the node.
        follower: of the feed.
        trees_done: since the start.
        known: the status when anything last changed, for the metrics, with the counts of requests
            that are not anchored yet; None at the start.
    """

    def __init__(
        self,
        settings: AnchorSettings,
        store: Store,
        journal: Journal,
        authority: TimeAuthority,
        now: Callable[[], float],
    ) -> None:
        self.settings = settings
        self._store = store
        self._journal = journal
        self._authority = authority
        self._now = now
        self.follower = FeedFollower(settings, store, journal, now, self._wake)
        self.trees_done = 0
        self.known: AnchoringStatus | None = None
        self._wanted_now = False
        self._moved = trio.Event()
        self._pending: Pending | None = None

    async def request(self, cid: CID, stream: StreamId) -> AnchorRequest:
        """Request an anchor of an event, or of the root of another node's tree.

        Args:
            cid: of it.
            stream: that it belongs to, as the other node says. An event that is here is anchored
                for its own stream: a ceramic-one node names one of its own for every root, and the
                root of its tree of one event is that event. Another CID is anchored for each
                stream that somebody names, as nothing here shows which of them is right.

        Raises:
            FullError: too many requests wait.
            JournalError: the disk failed.
        """
        request = await self.find(cid, stream)
        most = self.settings.max_requests
        if request is None and await in_thread(self._journal.are_waiting, most):
            raise FullError(f"{most} requests wait: try again later")
        init = await self._store.reader.stream_of(cid)
        headers = [] if init is None else await self._store.reader.stream_headers([init])
        own = init if headers else None
        arguments = (cid, own, str(stream), ASKER.get(), self._now())
        record = await in_thread(self._journal.request, *arguments)
        self._wake()
        return record

    async def find(self, cid: CID, stream: StreamId | None = None) -> AnchorRequest | None:
        """Return the request for a CID; if others say of which stream it is, that for this stream,
        or one that the address block named for which this task works, or any."""
        named = None if stream is None else str(stream)
        return await in_thread(self._journal.find, cid, ASKER.get(), named)

    async def witness(self, request: AnchorRequest) -> bytes | None:
        """Return the CAR of the time event of a request; None if it is not here (yet)."""
        if request.event is None:
            return None
        stored = await in_thread(self._journal.car, request)
        return stored or await self._store.reader.car(request.event)

    async def requests(self, states: Sequence[RequestState], limit: int) -> list[AnchorRequest]:
        """Return requests, the latest first."""
        return await in_thread(self._journal.requests, states, limit)

    async def tree(self, number: int) -> Tree | None:
        """Return a tree."""
        return await in_thread(self._journal.tree, number)

    async def latest_trees(self, limit: int) -> list[Tree]:
        """Return trees, the latest first."""
        return await in_thread(self._journal.latest_trees, limit)

    def anchor_now(self) -> None:
        """Build a tree of what waits without waiting longer, once no other one is under way."""
        self._wanted_now = True
        self._wake()

    async def status(self, states: Sequence[RequestState] = tuple(RequestState)) -> AnchoringStatus:
        """Return how anchoring stands, with the counts of requests in some states."""
        position = self.follower.position  # before the counts: these are of it, or later
        trees, spent = await in_thread(self._journal.spent)
        under_way = await in_thread(self._journal.unfinished_tree)
        return AnchoringStatus(
            counts=await in_thread(self._journal.counts, states),
            trees=trees,
            spent=spent,
            under_way=under_way,
            state="" if under_way is None or self._pending is None else self._pending.reason,
            position=position,
            due_at=await in_thread(self._due_at),
        )

    @property
    def account(self) -> PayingAccount | None:
        """What pays; None if nothing is paid."""
        return self._authority.account

    @property
    def alarm(self) -> str:
        """What somebody should do something about; empty if there is nothing."""
        if self._pending is not None and self._pending.is_alarming:
            return self._pending.reason
        account = self.account
        balance = None if account is None else account.balance
        least = self.settings.min_balance
        if account is None or balance is None or balance >= least * 10**18:
            return ""
        has = f"the account {account.address} has {balance / 1e18:.6g}"
        return f"{has}, less than anchor_min_balance ({least:g})"

    def _wake(self) -> None:
        self._moved.set()
        self._moved = trio.Event()

    async def make_trees(self) -> None:
        """Anchor tree after tree, without end."""
        while True:
            try:
                tree = await in_thread(self._journal.unfinished_tree)
                if tree is None:
                    self._pending = None
                    await self._wait_until_due()
                    await self._open_tree()
                else:
                    await self._finish(tree)
            except (StoreError, JournalError) as error:
                logger.error("Anchoring failed; trying again in a while", reason=str(error))
                self._pending = Pending(str(error), is_alarming=True)
                await trio.sleep(AFTER_FAULT)
            except Exception:
                logger.exception("A bug stopped anchoring; trying again in a while")
                self._pending = Pending("a bug: see the log", is_alarming=True)
                await trio.sleep(AFTER_BUG)

    def _due_at(self) -> float | None:
        """Return when a tree should be built; None while nothing waits."""
        oldest = self._journal.oldest_waiting()
        if oldest is None:
            return None
        interval = self.settings.interval
        last = next((tree.made_at for tree in self._journal.latest_trees(1)), 0.0)
        due, now = max(last + interval, oldest + interval / _COLLECTING), self._now()
        if self._wanted_now or self._journal.are_waiting(self.settings.batch):
            return min(due, now)
        return due if due < now + 2 * interval else now  # those times are of a clock that was ahead

    async def _wait_until_due(self) -> None:
        while True:
            self.known = await self.status(_UNDER_WAY)
            moved = self._moved
            due = await in_thread(self._due_at)
            if due is not None and due <= self._now():
                self._wanted_now = False
                return
            with trio.move_on_after(self.settings.interval if due is None else due - self._now()):
                await moved.wait()

    async def _open_tree(self) -> None:
        leaves = await in_thread(self._journal.waiting, self.settings.batch)
        if leaves:
            built = await in_thread(MerkleTree, leaves)
            opening = (built.root, built.leaves, self.settings.chain_id, self._now())
            await in_thread(self._journal.open_tree, *opening)
            logger.info("Anchoring a tree", events=len(built.leaves), root=str(built.root))

    async def _finish(self, tree: Tree) -> None:
        logged, next_warning = self._pending, 0.0
        while tree.tx_hash is None:
            outcome = await self._authority.advance(tree.root)
            if isinstance(outcome, Anchored):
                anchored = (outcome.tx_hash, outcome.block_time, outcome.cost)
                await in_thread(self._journal.note_anchored, tree.id, *anchored)
                tree = replace(tree, tx_hash=outcome.tx_hash)
                transaction = "0x" + outcome.tx_hash.hex()
                logger.info("Anchored a tree", events=tree.leaves, transaction=transaction)
            else:
                now = trio.current_time()
                is_still_alarm = logged is not None and logged.is_alarming and outcome.is_alarming
                is_other = logged is None or outcome.reason != logged.reason
                if is_other and not (is_still_alarm and now < next_warning):
                    write = logger.warning if outcome.is_alarming else logger.info
                    write("A tree waits for its anchor", reason=outcome.reason)
                    logged, next_warning = outcome, now + _WARNING_PAUSE
                self._pending = outcome
                self.known = await self.status(_UNDER_WAY)
                await trio.sleep(self.settings.pause)
        self._pending = None
        await self._make_events(tree, tree.tx_hash)
        await in_thread(self._journal.finish_tree, tree.id, self.settings.max_requests)
        self.trees_done += 1

    async def _make_events(self, tree: Tree, tx_hash: bytes) -> None:
        """Make, admit and note the time events of a tree that have not been made yet."""
        leaves = await in_thread(self._journal.leaves, tree.id)
        built = await in_thread(MerkleTree, leaves)
        del leaves  # of a million events, that is a lot of memory
        if built.root != tree.root:
            raise JournalError(f"the journal has lost leaves of the tree {tree.root}")
        proof = proof_block(tree.chain_id, tree.root, tx_hash)
        after: AnchorRequest | None = None
        while requests := await in_thread(self._journal.in_tree, tree.id, after, _MADE_AT_ONCE):
            after = requests[-1]
            part = [request for request in requests if request.state is RequestState.IN_TREE]
            if not part:
                continue
            made = await in_thread(_time_events, built, proof, part)
            own = [time_event for time_event in made if time_event.request.init is not None]
            verdicts = await self._store.admit_local([time_event.car for time_event in own])
            for time_event, verdict in zip(own, verdicts, strict=True):
                if verdict.status == "refused":
                    cid, reason = str(time_event.request.cid), verdict.reason
                    logger.error("A time event was refused by this node", cid=cid, reason=reason)
            done = [
                (request, cid, event if request.init is None else None)
                for request, cid, event in made
            ]
            done += [(old, old.event, None) for old in part if old.event is not None]
            await in_thread(self._journal.finish_requests, done)


class _Made(NamedTuple):
    """A time event that was made."""

    request: AnchorRequest
    cid: CID
    car: bytes


def _time_events(
    tree: MerkleTree, proof: tuple[CID, bytes], requests: Sequence[AnchorRequest]
) -> list[_Made]:
    """Make the time events of some requests, but of those that have one from elsewhere."""
    made = []
    for request in requests:
        if request.event is None:
            init = request.init or StreamId.parse(request.stream or "").cid
            path, nodes = tree.proof(bisect_left(tree.leaves, str(request.cid), key=str))
            event = time_event_car(init, request.cid, proof, path, nodes)
            made.append(_Made(request, car.decode(event).roots[0], event))
    return made


@asynccontextmanager
async def open_anchoring(
    settings: AnchorSettings,
    chain: ChainSettings,
    store: Store,
    data_dir: Path,
    *,
    now: Callable[[], float] = time.time,
) -> AsyncIterator[Anchoring | None]:
    """Anchor while the context is open; None if the settings say off.

    The caller has locked `data_dir`.

    Raises:
        AuthorityError: the settings cannot be used.
        JournalError: the journal cannot be used.
    """
    if settings.authority == "off":
        yield None
        return
    journal = await in_thread(Journal, data_dir)
    try:
        async with _open_authority(settings, chain, journal, now) as authority:
            await in_thread(_check_unfinished, journal, settings.chain_id, authority)
            anchoring = Anchoring(settings, store, journal, authority, now)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(anchoring.follower.run)
                nursery.start_soon(anchoring.make_trees)
                if isinstance(authority, EvmAuthority):
                    nursery.start_soon(authority.follow_balance)
                yield anchoring
                nursery.cancel_scope.cancel()
    finally:
        journal.close()


@asynccontextmanager
async def _open_authority(
    settings: AnchorSettings, chain: ChainSettings, journal: Journal, now: Callable[[], float]
) -> AsyncIterator[TimeAuthority]:
    if settings.authority == "development":
        _check_needs(settings, chain)
        yield DevelopmentClock(now)
        return
    async with open_payer(settings, chain) as (provider, signer):
        limits = FeeLimits(settings.max_fee_wei, settings.replace_after, settings.replacements)
        yield EvmAuthority(provider, signer, journal, settings.contract, limits, now)


@asynccontextmanager
async def open_payer(
    settings: AnchorSettings, chain: ChainSettings
) -> AsyncIterator[tuple[RpcProvider, Signer]]:
    """Open what is asked about the chain of the settings, and the key of the account that pays.

    Raises:
        AuthorityError: the settings cannot be used.
    """
    settings = replace(settings, authority="evm")  # to deploy a contract, it need not be set
    _check_needs(settings, chain)
    assert settings.key_file is not None
    signer = await in_thread(load_signer, settings.key_file, settings.password_file)
    async with open_provider(chain, ChainReport(settings.chain)) as provider:
        yield provider, signer


def _check_needs(settings: AnchorSettings, chain: ChainSettings) -> None:
    if need := settings.unmet_need(chain.providers, chain.development_time):
        raise AuthorityError(need)


def _check_unfinished(journal: Journal, chain_id: str, authority: TimeAuthority) -> None:
    """Make sure that the tree under way is of this authority: else it could be anchored twice."""
    tree = journal.unfinished_tree()
    if tree is None or tree.tx_hash is not None:
        return
    signers = journal.accounts(tree.root)
    account = None if authority.account is None else authority.account.address
    if not signers:
        journal.move_tree(tree.id, chain_id)
    elif tree.chain_id != chain_id or signers != {account}:
        raise AuthorityError(
            f"a tree is under way on {tree.chain_id}, with a transaction by {', '.join(signers)}: "
            "let it finish with that chain and key before you change them"
        )
