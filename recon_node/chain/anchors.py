"""What becomes of the proofs of time events.

A time event is *pending* until the time of its anchor is known. The store collects the proofs of
pending time events; one proof, and one transaction, often serves thousands of events. For each
chain that has a provider, one task takes the proofs that are due, in the order in which they fell
due, looks their transactions up, and tells the store:

    anchored     the transaction holds the proof's root, its block is final   block time; delivered
    invalid      the transaction holds something else                         refused for good
    unknown      the chain has no such transaction                            asked again, rarely
    unconfirmed  it is in no block yet, or in one that could be replaced       asked again, soon
    failed       no usable answer                                             asked again, soon

Only the first two settle a proof; the store keeps them, so that it is never looked up again. All
else leaves its events pending, however long that takes, and puts the proof back in the queue, later
each time.

**Made-up time events** cost their makers nothing: they need no signature. So what they cost here is
bounded by what is asked per second, not by how many there are: they wait in the log, as other
events do. A made-up proof takes its place in the queue once, like any other, and after that it is
the one whose tries grow rare: each try doubles the time to the next, up to a day. No time event is
refused because there are many, so that no flood can keep a real one out; it can delay it, by the
length of the queue. Chains do not wait for each other.
"""

from __future__ import annotations

import random
import time
from collections import OrderedDict, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final

import structlog
import trio

from recon_node.ceramic import (
    ChainAnswerError,
    InvalidEventError,
    check_transaction,
    expected_input,
)
from recon_node.chain.errors import ChainError, CoolingError, NoAnswerError
from recon_node.chain.reports import ChainReport
from recon_node.chain.rpc import Block, Provider, RpcProvider, Transaction, open_provider
from recon_node.chain.settings import ChainSettings
from recon_node.store import PendingProof, Store, StoreError

logger = structlog.get_logger(__name__)

_PAGE: Final = 32
_CACHE_SIZE: Final = 1024
_CACHED_INPUT: Final = 200
_LONGEST_SLEEP: Final = 3600.0
_AFTER_STORE_ERROR: Final = 5.0

# Seconds to the second try, and the most between two.
_DELAYS: Final = {
    "unknown": (60.0, 86_400.0),
    "unconfirmed": (30.0, 600.0),
    "failed": (2.0, 300.0),
    "bug": (3600.0, 86_400.0),
}

_Found = tuple[Transaction, Block]


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What a lookup led to; `value` is the block time of "anchored", else why."""

    kind: str
    value: int | str


class Anchors:
    """The chain side of a node. Made by `open_anchors`."""

    def __init__(self) -> None:
        self._followers: list[_Follower] = []

    @property
    def reports(self) -> Sequence[ChainReport]:
        """What was asked so far, for each chain that has a provider."""
        return [follower.report for follower in self._followers]


@asynccontextmanager
async def open_anchors(
    settings: ChainSettings,
    store: Store,
    *,
    now: Callable[[], float] = time.time,
    jitter: Callable[[], float] = random.random,
) -> AsyncIterator[Anchors]:
    """Look up the anchors of the store's time events for as long as the context is open.

    Args:
        now: Unix time, for what outlives the process.
        jitter: a number in [0, 1) at each call.

    Raises:
        ChainError: an endpoint is of another chain than the one that it is set for.
    """
    anchors = Anchors()
    async with AsyncExitStack() as stack:
        providers = []
        for chain_id in settings.providers:
            report = ChainReport(chain_id)
            provider = await stack.enter_async_context(
                open_provider(chain_id, settings, report, jitter)
            )
            providers.append(provider)
            anchors._followers.append(_Follower(provider, report, store, now, jitter))
        if not providers:
            logger.info("No chain_rpc is set: time events stay pending")
        await _check_providers(providers, settings.start_patience)
        async with trio.open_nursery() as nursery:
            for follower in anchors._followers:
                nursery.start_soon(follower.run)
            yield anchors
            nursery.cancel_scope.cancel()


async def _check_providers(providers: Iterable[RpcProvider], patience: float) -> None:
    faults: list[ChainError] = []

    async def check(provider: RpcProvider) -> None:
        try:
            await provider.check()
        except ChainError as error:
            faults.append(error)

    with trio.move_on_after(patience):
        async with trio.open_nursery() as nursery:
            for provider in providers:
                nursery.start_soon(check, provider)
    if faults:
        raise ChainError("; ".join(map(str, faults)))


class _Follower:
    """Looks up the proofs of one chain."""

    def __init__(
        self,
        provider: Provider,
        report: ChainReport,
        store: Store,
        now: Callable[[], float],
        jitter: Callable[[], float],
    ) -> None:
        self._provider = provider
        self.report = report
        self._store = store
        self._now = now
        self._jitter = jitter
        self._found: OrderedDict[str, _Found] = OrderedDict()
        self._last_fault = ""

    async def run(self) -> None:
        """Take what is due, for ever."""
        while True:
            seen = self._store.proof_arrivals
            try:
                proofs = await self._store.pending_proofs(_PAGE, self._provider.chain_id)
                due = [proof for proof in proofs if proof.due <= self._now()]
                if due:
                    await self._look_up(due)
                else:
                    wait = proofs[0].due - self._now() if proofs else _LONGEST_SLEEP
                    with trio.move_on_after(min(wait, _LONGEST_SLEEP)):
                        await self._store.wait_for_proofs(seen)
            except CoolingError as error:
                wake = min(error.until, trio.current_time() + _LONGEST_SLEEP)
                await trio.sleep_until(wake)
            except StoreError as error:
                logger.error("Anchors cannot be kept", reason=str(error))
                await trio.sleep(_AFTER_STORE_ERROR)

    async def _look_up(self, proofs: Sequence[PendingProof]) -> None:
        """Look up some proofs at once and tell the store; what nobody was asked stays due.

        Raises:
            CoolingError: some were not asked, as no endpoint works.
            StoreError: the disk failed.
        """
        outcomes: dict[PendingProof, _Outcome] = {}
        cooling: list[CoolingError] = []
        by_transaction: defaultdict[str, list[PendingProof]] = defaultdict(list)
        for proof in proofs:
            try:
                expected_input(proof.proof)
                by_transaction[proof.proof.transaction_hash].append(proof)
            except InvalidEventError as error:  # no transaction could bear it out
                outcomes[proof] = _Outcome("invalid", str(error))

        async def look_up(tx_hash: str, wanting: Sequence[PendingProof]) -> None:
            try:
                found = await self._find(tx_hash)
                outcomes.update((proof, self._judge(proof, found)) for proof in wanting)
            except CoolingError as error:
                cooling.append(error)
            except NoAnswerError as error:
                outcomes.update(dict.fromkeys(wanting, self._failed(error)))
            except Exception as error:
                logger.exception("a lookup could not be made", transaction=tx_hash)
                outcomes.update(dict.fromkeys(wanting, _Outcome("bug", repr(error))))

        async with trio.open_nursery() as nursery:
            for tx_hash, wanting in by_transaction.items():
                nursery.start_soon(look_up, tx_hash, wanting)
        await self._tell(outcomes)
        if cooling:
            raise cooling[0]

    async def _find(self, tx_hash: str) -> _Found | _Outcome:
        """The transaction and its block, once that is final."""
        found = self._found.get(tx_hash)
        if found is not None:
            self._found.move_to_end(tx_hash)
            return found
        transaction = await self._provider.transaction(tx_hash)
        if transaction is None:
            return _Outcome("unknown", f"the chain has no transaction {tx_hash}")
        block_hash, number = transaction["blockHash"], transaction["blockNumber"]
        if block_hash is None or number is None:
            return _Outcome("unconfirmed", f"the transaction {tx_hash} is in no block yet")
        if int(number, 16) > await self._provider.final_block():
            return _Outcome("unconfirmed", f"the block {block_hash} is not final yet")
        block = await self._provider.block(block_hash)
        if block is None or int(block["number"], 16) != int(number, 16):
            return _Outcome("failed", f"the block {block_hash} is not to be had")
        if len(transaction["input"]) <= _CACHED_INPUT:
            self._found[tx_hash] = transaction, block
            if len(self._found) > _CACHE_SIZE:
                self._found.popitem(last=False)
        return transaction, block

    def _judge(self, proof: PendingProof, found: _Found | _Outcome) -> _Outcome:
        if isinstance(found, _Outcome):
            return found
        try:
            return _Outcome("anchored", check_transaction(proof.proof, *found))
        except InvalidEventError as error:
            return _Outcome("invalid", str(error))
        except ChainAnswerError as error:
            return self._failed(error)

    def _failed(self, error: Exception) -> _Outcome:
        reason = str(error)
        if reason != self._last_fault:
            self._last_fault = reason
            logger.info("A lookup failed", chain=self._provider.chain_id, reason=reason)
        return _Outcome("failed", reason)

    async def _tell(self, outcomes: dict[PendingProof, _Outcome]) -> None:
        """Hand the outcomes to the store."""
        settled: list[tuple[PendingProof, int | str]] = []
        postponed = []
        for proof, outcome in outcomes.items():
            if outcome.kind in ("anchored", "invalid"):
                settled.append((proof, outcome.value))
            else:
                postponed.append((proof.cid, self._now() + self._delay(outcome.kind, proof.tries)))
        if settled:
            await self._store.settle_proofs([(proof.cid, value) for proof, value in settled])
        if postponed:
            await self._store.postpone_proofs(postponed)
        for proof, outcome in outcomes.items():
            kind = outcome.kind if outcome.kind in self.report.lookups else "failed"
            self.report.lookups[kind] += 1
            logger.debug("Looked up an anchor", proof=str(proof.cid), outcome=kind)

    def _delay(self, kind: str, tries: int) -> float:
        first, most = _DELAYS[kind]
        return min(first * 2.0 ** min(tries, 30), most) * (0.75 + self._jitter() / 2)
