"""Looking up the proofs of time events on their chains.

A time event is *pending* until the time of its anchor is known. The store collects the proofs of
pending time events; thousands of events often share one proof and one transaction. For each chain
that has a provider, one task takes the proofs that are due, looks up their transactions, and tells
the store the outcome:

    anchored     the transaction has the proof's root, in a final block    delivered with its time
    invalid      the transaction has something else                        permanently refused
    unknown      the chain has no such transaction                         asked again, rarely
    unsure       the same, but an endpoint that may have it is left alone  asked again, soon
    unconfirmed  the transaction is not in a final block yet               asked again, soon
    unanswered   endpoints work, and none has a usable answer to this      asked again, rarely
    failed       no endpoint works, or they differ                         asked again, soon

The first two settle a proof. The store keeps them, so that no settled proof is looked up again.
After any other outcome the events stay pending, and the proof goes back into the queue, for longer
each time.

**Made-up time events** cost their makers nothing, because they need no signature. What they cost
the node is bounded by the rate of requests, not by their number: they wait in the log, as other
events do. A made-up proof passes through the queue once like any other; after that, each try
doubles the wait for the next one, up to a day. While more proofs are due than can be looked up at
once, the places are shared out among the controllers of the streams that they are about, and a
controller's between those that came to be due first and last. So a flood delays the real ones of
the streams that it is about, and no longer than it lasts. Of a controller's proofs, those whose
time event a signed event builds on come first. Chains do not wait for each other.
"""

from __future__ import annotations

import math
import random
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final

import structlog
import trio

from recon_node.base.latest import Latest
from recon_node.ceramic import InvalidEventError, check_transaction, expected_input
from recon_node.ceramic.time_proof import DEVELOPMENT_CHAIN, development_time_of
from recon_node.chain.rpc import RpcProvider, open_provider
from recon_node.chain.rpc_endpoint import (
    AnswerError,
    ChainError,
    ChainReport,
    CoolingError,
    DifferError,
    NoAnswerError,
)
from recon_node.chain.settings import ChainSettings
from recon_node.fairness.pacing import Backoff
from recon_node.ipld import CID
from recon_node.store import PendingProof, Store, StoreError

logger = structlog.get_logger(__name__)

_PAGE: Final = 32
"""Proofs that are looked up side by side."""
_CACHE_SIZE: Final = 1024
"""Transactions that are remembered with their blocks."""
_TRIES_TO_CONFIRM: Final = 100
"""Lookups after which an unconfirmed transaction counts as unknown: no block takes it any more. At
the pauses below, that is 15 hours."""
_TRIES_BEFORE_WARNING: Final = 12
"""Lookups after which it is worth a warning that a block is still not final: for an hour or two."""
_LONGEST_SLEEP: Final = 3600.0
"""Seconds after which the queue is looked at again in any case."""
_AFTER_STORE_ERROR: Final = 5.0
"""Seconds to wait after the disk failed."""
_LOG_PAUSE: Final = 60.0
"""Seconds between log lines about failed lookups: some endpoints repeat each question."""

_DELAYS: Final = {
    "unknown": Backoff(60.0, 86_400.0),
    "unconfirmed": Backoff(30.0, 600.0),
    "unanswered": Backoff(2.0, 3600.0),
    "failed": Backoff(2.0, 300.0),
    "unsure": Backoff(2.0, 86_400.0),
    "bug": Backoff(3600.0, 86_400.0),
}
"""When a proof is looked up again, by the outcome of the last lookup."""


@dataclass(frozen=True, slots=True)
class _Found:
    """A transaction in a final block."""

    data: bytes
    block: int
    time: int
    """Unix seconds."""


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The outcome of a lookup; `value` is the block time of "anchored", the reason of "invalid",
    and the block of "unconfirmed" if there is one."""

    kind: str
    value: int | str = ""


@asynccontextmanager
async def open_anchors(
    settings: ChainSettings,
    store: Store,
    *,
    now: Callable[[], float] = time.time,
    jitter: Callable[[], float] = random.random,
) -> AsyncIterator[Sequence[ChainReport]]:
    """Look up the anchors of the store's time events while the context is open.

    Yields what is asked, for each chain that has a provider. `now` returns Unix time in seconds,
    for dates that outlive the process, and `jitter` a random number from 0 to 1.

    Raises:
        ChainError: an endpoint serves another chain than the one it is set for.
        StoreError: the disk failed.
    """
    reports = [ChainReport(chain_id) for chain_id in settings.providers]
    async with AsyncExitStack() as stack:
        providers = [
            await stack.enter_async_context(open_provider(settings, report, jitter))
            for report in reports
        ]
        if not providers and not settings.development_time:
            logger.info("No chain_rpc is set: time events stay pending")
        await _check_providers(providers, settings.start_patience)
        clock = [DEVELOPMENT_CHAIN] if settings.development_time else []
        await store.note_chains([*settings.providers, *clock])
        async with trio.open_nursery() as nursery:
            for provider, report in zip(providers, reports, strict=True):
                nursery.start_soon(_Follower(provider, report, store, now, jitter).run)
            if settings.development_time:
                nursery.start_soon(_follow_clock, store)
            yield reports
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


async def _follow_clock(store: Store) -> None:
    """Settle the proofs of the development clock, which state their times themselves."""
    while True:
        seen = store.proof_arrivals
        try:
            verdicts: list[tuple[CID, int | str]] = []
            for proof in await store.reader.pending_proofs(_PAGE, DEVELOPMENT_CHAIN):
                try:
                    verdicts.append((proof.cid, development_time_of(proof.proof)))
                except InvalidEventError as error:
                    verdicts.append((proof.cid, str(error)))
            if verdicts:
                await store.settle_proofs(verdicts)
            else:
                await store.wait_for_proofs(seen)
        except StoreError as error:
            logger.error("Cannot store the times of the clock", reason=str(error))
            await trio.sleep(_AFTER_STORE_ERROR)


class _Follower:
    """Looks up the proofs of one chain."""

    def __init__(
        self,
        provider: RpcProvider,
        report: ChainReport,
        store: Store,
        now: Callable[[], float],
        jitter: Callable[[], float],
    ) -> None:
        self._provider = provider
        self._report = report
        self._store = store
        self._now = now
        self._jitter = jitter
        self._found = Latest[str, _Found](_CACHE_SIZE)
        self._next_log = -math.inf

    async def run(self) -> None:
        """Look up the proofs that are due, until cancelled."""
        ahead = self._now() - trio.current_time()
        while True:
            seen = self._store.proof_arrivals
            before, ahead = ahead, self._now() - trio.current_time()
            try:
                if ahead < before - _LONGEST_SLEEP:  # the clock was set back
                    await self._store.forget_far_dues(self._now())
                page = (_PAGE, self._provider.chain_id)
                proofs = await self._store.reader.pending_proofs(*page)
                now = self._now()
                due = [proof for proof in proofs if proof.due <= now]
                if len(due) == _PAGE:
                    due = await self._store.reader.pending_proofs(*page, shared_before=now)
                if due:
                    await self._look_up(due)
                else:
                    wait = proofs[0].due - self._now() if proofs else _LONGEST_SLEEP
                    with trio.move_on_after(min(wait, _LONGEST_SLEEP)):
                        await self._store.wait_for_proofs(seen)
            except CoolingError as error:
                await trio.sleep_until(error.until)
            except StoreError as error:
                logger.error("Cannot store the outcomes of lookups", reason=str(error))
                await trio.sleep(_AFTER_STORE_ERROR)

    async def _look_up(self, proofs: Sequence[PendingProof]) -> None:
        """Look up some proofs side by side and report the outcomes to the store.

        Raises `CoolingError` if some could not be looked up and are still due.
        """
        outcomes: dict[PendingProof, _Outcome] = {}
        cooling: list[CoolingError] = []
        by_transaction: defaultdict[str, list[PendingProof]] = defaultdict(list)
        for proof in proofs:
            try:
                expected_input(proof.proof)
                by_transaction[proof.proof.transaction_hash].append(proof)
            except InvalidEventError as error:  # whatever the transaction says
                outcomes[proof] = _Outcome("invalid", str(error))

        async def look_up(tx_hash: str, wanting: Sequence[PendingProof]) -> None:
            try:
                outcome = await self._find(tx_hash)
                outcomes.update((proof, self._judge(proof, outcome)) for proof in wanting)
            except CoolingError as error:
                cooling.append(error)
            except NoAnswerError as error:
                is_news = isinstance(error, DifferError)
                self._log(logger.warning if is_news else logger.info, str(error))
                kind = "unanswered" if isinstance(error, AnswerError) else "failed"
                outcomes.update(dict.fromkeys(wanting, _Outcome(kind)))
            except Exception:
                logger.exception("A bug made a lookup fail", transaction=tx_hash)
                outcomes.update(dict.fromkeys(wanting, _Outcome("bug")))

        async with trio.open_nursery() as nursery:
            for tx_hash, wanting in by_transaction.items():
                nursery.start_soon(look_up, tx_hash, wanting)
        await self._report_outcomes(outcomes)
        if cooling:
            raise cooling[0]

    async def _find(self, tx_hash: str) -> _Found | _Outcome:
        """Return a transaction and its block if that is final, otherwise the outcome."""
        known = self._found.use(tx_hash)
        if known is not None:
            return known
        began = trio.current_time()
        transaction = await self._provider.transaction(tx_hash)
        if transaction is None:
            return _Outcome("unknown" if self._provider.left_out_at < began else "unsure")
        time = await self._provider.time_of(transaction)
        if time is None:
            is_mined = transaction.block_hash is not None
            return _Outcome("unconfirmed", transaction.number if is_mined else "")
        found = _Found(bytes.fromhex(transaction.input[2:]), transaction.number, time)
        self._found[tx_hash] = found
        return found

    def _judge(self, proof: PendingProof, outcome: _Found | _Outcome) -> _Outcome:
        if isinstance(outcome, _Outcome):
            return outcome
        try:
            check_transaction(proof.proof, outcome.data, outcome.block)
        except InvalidEventError as error:
            return _Outcome("invalid", str(error))
        return _Outcome("anchored", outcome.time)

    def _log(self, write: Callable[..., object], reason: str) -> None:
        now = trio.current_time()
        if now >= self._next_log:
            self._next_log = now + _LOG_PAUSE
            write("A lookup failed", chain=self._provider.chain_id, reason=reason)

    async def _report_outcomes(self, outcomes: dict[PendingProof, _Outcome]) -> None:
        """Report the outcomes to the store, and count them."""
        settled: list[tuple[CID, int | str]] = []
        postponed, not_found = [], []
        for proof, outcome in outcomes.items():
            if outcome.kind in ("anchored", "invalid"):
                settled.append((proof.cid, outcome.value))
            else:
                wait = _DELAYS[outcome.kind].wait(proof.tries + 1, self._jitter())
                postponed.append((proof.cid, self._now() + wait))
                is_stuck = outcome.kind == "unconfirmed" and proof.tries >= _TRIES_TO_CONFIRM
                if outcome.kind == "unknown" or is_stuck:
                    not_found.append(proof.cid)
                if outcome.value and proof.tries >= _TRIES_BEFORE_WARNING:
                    self._log(
                        logger.warning,
                        f"the block {outcome.value}, which has an anchor, is still not final: if "
                        "that lasts, replace the endpoint in chain_rpc whose `finalized` block "
                        "does not move, or set chain_confirmations to a number of blocks",
                    )
        if settled:
            await self._store.settle_proofs(settled)
        if postponed:
            await self._store.postpone_proofs(postponed, not_found)
        for proof, outcome in outcomes.items():
            kind = outcome.kind if outcome.kind in self._report.lookups else "failed"
            self._report.lookups[kind] += 1
            logger.debug("Looked up an anchor", proof=str(proof.cid), outcome=kind)
