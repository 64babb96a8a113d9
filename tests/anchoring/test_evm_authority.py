"""One transaction a tree, whatever the chain does and whenever the process is killed."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import trio
from eth_account import Account
from hypothesis import example, given, settings
from hypothesis import strategies as st
from simulated_chain import ADDRESS, CONTRACT, DEPTH, KEY, Crash, SimulatedChain, created_by

from recon_node.anchoring import authority, evm
from recon_node.anchoring.authority import Anchored, Pending
from recon_node.anchoring.evm import EvmAuthority
from recon_node.anchoring.journal import Journal
from recon_node.anchoring.machine import FeeLimits
from recon_node.anchoring.signer import Signer
from recon_node.ceramic.time_proof import anchor_call
from recon_node.chain.rpc_endpoint import EndpointError
from recon_node.ipld import CID, DAG_CBOR

ROOT = CID.of(DAG_CBOR, b"root")
DATA = anchor_call(ROOT)
LIMITS = FeeLimits(max_fee=1_000, patience=60.0, replacements=6)


class World:
    """A chain, a data directory, and the process that anchors."""

    def __init__(self, directory: Path, limits: FeeLimits = LIMITS) -> None:
        self.chain = SimulatedChain()
        self.directory = directory
        self.limits = limits
        self.clock_is_ahead = 0.0
        self.restart()

    def restart(self) -> None:
        self.journal = Journal(self.directory)
        self.authority = EvmAuthority(
            self.chain,
            Signer(Account.from_key(KEY)),
            self.journal,
            CONTRACT,
            self.limits,
            lambda: self.chain.time + self.clock_is_ahead,
            lambda: self.chain.time,
        )

    async def advance(self) -> Anchored | Pending | None:
        try:
            outcome = await self.authority.advance(ROOT)
        except Crash:
            self.journal.close()
            self.restart()
            return None
        finally:
            self.check()
        return outcome

    def check(self) -> None:
        assert len(self.chain.anchors(DATA)) <= 1, "two transactions for one tree"

    async def settle(self) -> Anchored:
        """Let everything be well again, and wait until the tree is anchored."""
        chain = self.chain
        chain.dead, chain.crash_after, chain.lose_answers, chain.base_fee = 0, None, False, 10
        chain.reverting, chain.wrong_nonce, chain.is_free = False, 0, False
        for _ in range(200):
            outcome = await self.advance()
            if isinstance(outcome, Anchored):
                return outcome
            chain.time += 15
            chain.mine()
            self.check()
        raise AssertionError(f"not anchored: {outcome}")


CHAIN_EVENTS: dict[str, Callable[[SimulatedChain, int], None]] = {
    "mine": lambda chain, _: chain.mine(),
    "empty": lambda chain, _: chain.mine(empty=True),
    "reorg": lambda chain, n: chain.reorganise(n, lose=False),
    "reorg and lose": lambda chain, n: chain.reorganise(n, lose=True),
    "drop": lambda chain, _: chain.pool.clear(),
    "foreign": lambda chain, _: chain.use_nonce(),
    "resurface": lambda chain, _: chain.resurface(),
    "dear": lambda chain, n: setattr(chain, "base_fee", 10 * 3**n),
    "dead": lambda chain, n: setattr(chain, "dead", 3 * n),
    "kill": lambda chain, n: setattr(chain, "crash_after", n),
    "lose answer": lambda chain, _: setattr(chain, "lose_answers", True),
    "revert": lambda chain, n: setattr(chain, "reverting", n % 2 == 0),
    "wrong nonce": lambda chain, n: setattr(chain, "wrong_nonce", 1000 * (n % 2)),
    "free": lambda chain, n: setattr(chain, "is_free", n % 2 == 1),
    "time": lambda chain, n: setattr(chain, "time", chain.time + 20 * n),
}
REPLACED_BY_FOREIGN = [(name, 0) for name in ("advance", "drop", "foreign", "mine", "advance")]
REPLACED_BY_FOREIGN += [("time", 4), ("advance", 0)]
steps = st.lists(
    st.tuples(st.sampled_from(["advance", *CHAIN_EVENTS]), st.integers(0, 12)), max_size=60
)


@given(steps)
@example([("advance", 0), ("mine", 0), ("advance", 0), ("reorg and lose", 3)])
@example([("kill", 7), ("advance", 0), ("kill", 8), ("advance", 0)])
@example([("wrong nonce", 1), ("advance", 0)])
@example([("free", 1), *[("advance", 0), ("mine", 0), ("time", 12)] * 9])
@example([("advance", 0), ("drop", 0), ("foreign", 0), ("mine", 0)] + [("advance", 0)] * 2)
@example([("foreign", 0), ("mine", 0), ("advance", 0), ("reorg and lose", 2), ("advance", 0)])
@example(
    [*REPLACED_BY_FOREIGN, ("reorg and lose", 1), ("resurface", 0), ("mine", 0), ("advance", 0)]
)
@settings(deadline=None)
def test_a_tree_has_one_transaction(events: list[tuple[str, int]]) -> None:
    async def play(directory: Path) -> None:
        world = World(directory)
        for name, number in events:
            if name == "advance":
                if isinstance(await world.advance(), Anchored):
                    break
            else:
                CHAIN_EVENTS[name](world.chain, number)
                world.check()
        anchored = await world.settle()
        [(transaction, block)] = world.chain.anchors(DATA, world.chain.final())
        assert anchored.tx_hash.hex() == transaction.tx_hash[2:]
        assert anchored.block_time == block.time
        assert len(world.journal.attempts(ROOT)) >= 1
        for _ in range(10):
            world.chain.mine()
            world.check()
        world.journal.close()

    with TemporaryDirectory() as directory:
        trio.run(partial(play, Path(directory)))


@pytest.mark.parametrize("has_waited", [True, False])
async def test_a_receipt_that_is_missing_for_a_moment_costs_no_second_call(tmp_path, has_waited):
    """However long the transaction has waited, for something else, to be final, and however the
    clock is set: two hours more on it were once two hours for which the endpoint had said so."""
    world = World(tmp_path)
    await world.advance()
    world.chain.mine()
    if has_waited:
        world.chain.time += 10 * LIMITS.patience
        outcome = await world.advance()
        assert isinstance(outcome, Pending)
        assert "not final" in outcome.reason
        world.chain.time += 10 * LIMITS.patience
    for _ in range(DEPTH):
        world.chain.mine()
    world.chain.lacks_receipts = True
    for world.clock_is_ahead in (0.0, 7200.0, -7200.0, 0.0):
        outcome = await world.advance()
        assert isinstance(outcome, Pending)
        assert "another transaction has used the nonce" in outcome.reason
    world.chain.lacks_receipts = False
    await world.settle()
    assert len(world.journal.attempts(ROOT)) == 1


async def test_a_stuck_transaction_is_replaced_up_to_the_limit(tmp_path: Path) -> None:
    world = World(tmp_path, FeeLimits(max_fee=100, patience=60.0, replacements=3))
    await world.advance()
    fees = []
    world.chain.base_fee = 1000
    for _ in range(8):
        world.chain.time += 61
        world.chain.mine()
        outcome = await world.advance()
        fees = [attempt.max_fee for attempt in world.journal.attempts(ROOT)]
    assert all(later >= earlier * 1.125 for earlier, later in pairwise(fees))
    assert len({attempt.nonce for attempt in world.journal.attempts(ROOT)}) == 1
    assert max(fees) <= 100
    assert 2 <= len(fees) <= 4
    world.chain.base_fee = 1000
    world.chain.time += 61
    outcome = await world.advance()
    assert isinstance(outcome, Pending)
    assert outcome.is_alarming
    assert "limit" in outcome.reason
    await world.settle()


async def test_nothing_is_signed_while_the_base_fee_is_above_the_limit(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.chain.base_fee = 2_000
    outcome = await world.advance()
    assert outcome == Pending("the base fee is 2e-06 gwei, and anchor_max_fee 1e-06", True)
    assert world.authority.account == authority.PayingAccount(ADDRESS, 10**22)
    assert world.journal.attempts(ROOT) == []
    await world.settle()


async def test_nothing_is_signed_while_the_account_is_too_poor(tmp_path: Path) -> None:
    """Replacements of what the chain refused for that offered ever more, for nothing."""
    world = World(tmp_path)
    world.chain.balance = 30_000 * 22 - 1
    outcome = await world.advance()
    assert isinstance(outcome, Pending)
    assert outcome.is_alarming
    assert "which may not be enough" in outcome.reason
    assert world.journal.attempts(ROOT) == []
    world.chain.balance += 1
    await world.settle()


async def test_money_that_comes_is_seen_while_nothing_is_anchored(tmp_path, autojump_clock) -> None:
    """Else the alarm that there is too little stays until the next tree."""
    world = World(tmp_path)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.authority.follow_balance)
        for world.chain.balance, world.chain.dead in ((5, 0), (6, 1), (7, 0)):
            await trio.sleep(61)
        assert world.authority.account.balance == 7
        nursery.cancel_scope.cancel()


async def test_a_block_may_be_final_by_another_endpoint(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.chain.lags = True
    assert (await world.settle()).tx_hash


async def test_one_of_two_endpoints_cannot_make_the_node_pay_again(tmp_path: Path) -> None:
    """It is the first, and says for hours that another transaction has the nonce."""
    world = World(tmp_path)
    await world.advance()
    world.chain.pool.clear()
    world.chain.use_nonce()
    for _ in range(DEPTH + 2):
        world.chain.mine()
    world.chain.others = [0]
    for _ in range(100):
        world.chain.time += LIMITS.patience
        assert isinstance(await world.advance(), Pending)
    assert len(world.journal.attempts(ROOT)) == 1
    world.chain.others = []
    await world.settle()


async def test_a_receipt_of_a_block_without_the_transaction_makes_no_time_events(tmp_path) -> None:
    """Nobody could have verified them, and the tree counted as done."""
    world = World(tmp_path)
    await world.advance()
    [attempt] = world.journal.attempts(ROOT)
    for _ in range(DEPTH + 2):
        world.chain.mine(empty=True)
    world.chain.lies = attempt.tx_hash
    outcome = await world.advance()
    assert isinstance(outcome, Pending)
    assert outcome.is_alarming
    assert "differ about the block 1, which one says has" in outcome.reason
    world.chain.lies = ""
    await world.settle()


async def test_an_endpoint_that_is_away_is_an_alarm(tmp_path: Path) -> None:
    """Nothing else shows it where no anchors are to be looked up."""
    world = World(tmp_path)
    world.chain.dead = 1
    assert await world.advance() == Pending("no usable answer: nobody is there", True)
    assert isinstance(await world.settle(), Anchored)


@pytest.mark.parametrize("error", [Crash(), EndpointError("the answer is lost")])
@pytest.mark.parametrize("number", range(12))
async def test_a_contract_is_paid_once(autojump_clock, error, number) -> None:
    """Whatever question the process is killed at, or the endpoint goes away, and the command is
    given again."""
    chain, signer = SimulatedChain(), Signer(Account.from_key(KEY))
    chain.use_nonce()
    chain.mine()
    answer = chain.ask

    async def ask(*question: Any) -> Any:
        nonlocal number
        number -= 1
        answered = await answer(*question)
        if number == -1:
            raise error
        return answered

    async def mine() -> None:
        while True:
            await trio.sleep(12)
            chain.mine()

    chain.ask = ask
    async with trio.open_nursery() as nursery:
        nursery.start_soon(mine)
        with suppress(Crash, EndpointError):
            await evm.deploy(chain, signer, 1_000)
        for _ in range(2):
            assert await evm.deploy(chain, signer, 1_000) == created_by(1)
        nursery.cancel_scope.cancel()
    assert [tx.data for tx, _ in chain.mined()] == [b"", evm.BYTECODE]


async def test_a_contract_that_refuses_costs_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.chain.reverting = True
    outcome = await world.advance()
    assert isinstance(outcome, Pending)
    assert outcome.is_alarming
    assert "refuses the call: execution reverted" in outcome.reason
    assert world.journal.attempts(ROOT) == []


@pytest.mark.parametrize("number", range(14))
async def test_killed_at_any_question(tmp_path: Path, number: int) -> None:
    world = World(tmp_path)
    world.chain.crash_after = number
    await world.advance()
    anchored = await world.settle()
    assert anchored.cost == 24_000 * 12
    assert len(world.journal.attempts(ROOT)) == 1
