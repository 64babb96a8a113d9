"""The ledger of what peers make the node hold: who goes, and that the sum stays below the limit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from recon_node.p2p.transport.guarded_connection import (
    REFUSED_FOR,
    WARN_EVERY,
    MemoryAccount,
    MemoryBudget,
    OverBudgetError,
)


def held_by(budget: MemoryBudget, peer: str) -> int:
    """Bytes held for a peer, except what it had when it was cut off."""
    holder = budget._holders.get(peer)
    return 0 if holder is None else holder.held


class Crowd:
    """Peers with a connection each; one that is cut off closes it when `let_go` is called."""

    def __init__(self, limit: int) -> None:
        self.now = 0.0
        self.reported: list[str] = []
        self.budget = MemoryBudget(limit, lambda: self.now, self.reported.append)
        self.accounts: dict[str, MemoryAccount] = {}
        self.leaving: list[str] = []

    def join(self, peer: str, address: str = "192.0.2.1") -> MemoryAccount:
        account = self.budget.account(peer, address, lambda: self.leaving.append(peer))
        self.accounts[peer] = account
        return account

    def let_go(self) -> None:
        for peer in set(self.leaving):
            if account := self.accounts.pop(peer, None):
                account.close()
        self.leaving.clear()


def test_what_is_held_is_counted_by_kind_and_peer():
    budget = MemoryBudget(100)
    connection, stream = budget.account("a"), budget.account("a")
    connection.hold("unread", 10)
    stream.hold("frames", 20)
    stream.hold("frames", 5)
    assert budget.held == held_by(budget, "a") == 15
    assert budget.by_kind == {"unread": 10, "frames": 5}
    stream.close()
    stream.hold("frames", 50)  # a task that ends after its stream
    assert budget.held == 10
    connection.close()
    assert budget.held == held_by(budget, "a") == 0


def test_the_greediest_peer_is_cut_off_and_not_the_one_that_asks():
    crowd = Crowd(100)
    crowd.join("greedy").hold("turns", 70)
    modest = crowd.join("modest")
    modest.hold("frames", 29)
    assert not crowd.leaving
    modest.hold("frames", 40)
    assert crowd.leaving == ["greedy"]
    assert crowd.budget.cut_off == 1


def test_the_greediest_peer_gets_an_error_and_is_reported():
    crowd = Crowd(100)
    crowd.join("modest").hold("frames", 30)
    greedy = crowd.join("greedy")
    with pytest.raises(OverBudgetError):
        greedy.hold("unread", 71)
    assert crowd.leaving == crowd.reported == ["greedy"]
    assert crowd.budget.held == 30


def test_many_peers_at_one_address_count_together():
    crowd = Crowd(100)
    honest = crowd.join("honest", "198.51.100.7")
    honest.hold("turns", 30)
    for number in range(20):
        crowd.join(f"made up {number}").hold("unread", 4)
        crowd.let_go()
    assert crowd.budget.cut_off == 3
    assert "honest" in crowd.accounts
    honest.hold("turns", 40)
    crowd.let_go()
    assert "honest" in crowd.accounts


def test_a_peer_that_was_cut_off_is_refused_for_a_while_and_then_starts_again():
    crowd = Crowd(100)
    old = crowd.join("greedy")
    old.hold("frames", 20)  # never closed: a stream that nobody looks after, say
    with pytest.raises(OverBudgetError):
        old.hold("unread", 101)
    crowd.now = REFUSED_FOR - 1
    again = crowd.budget.account("greedy", "192.0.2.1")
    with pytest.raises(OverBudgetError, match="for another 1 s"):
        again.hold("connections", 1)
    crowd.now = REFUSED_FOR
    again.hold("connections", 50)
    with pytest.raises(OverBudgetError):
        old.hold("unread", 1)
    assert (held_by(crowd.budget, "greedy"), crowd.budget.held) == (50, 70)
    old.close()
    assert (held_by(crowd.budget, "greedy"), crowd.budget.held) == (50, 50)
    again.close()
    assert crowd.budget.held == 0


def test_the_log_warns_of_an_address_once_a_minute():
    crowd = Crowd(100)

    def warnings_of(peer: str, address: str) -> int:
        with capture_logs() as logs, pytest.raises(OverBudgetError):
            crowd.join(peer, address).hold("unread", 101)
        crowd.let_go()
        return sum(entry["log_level"] == "warning" for entry in logs)

    assert warnings_of("one", "192.0.2.1") == 1
    assert warnings_of("two", "192.0.2.1") == 0
    assert warnings_of("three", "192.0.2.2") == 1
    assert warnings_of("four", "") == warnings_of("five", "") == 1
    crowd.now = WARN_EVERY
    assert warnings_of("six", "192.0.2.1") == 1
    assert crowd.budget.cut_off == 6


def test_while_those_cut_off_let_go_the_sum_has_an_end_all_the_same():
    crowd = Crowd(100)
    crowd.join("greedy").hold("turns", 60)
    crowd.join("modest").hold("turns", 45)
    assert crowd.leaving == ["greedy"]
    late = crowd.join("late")
    with pytest.raises(OverBudgetError, match="all peers together"):
        late.hold("turns", 30)
    assert crowd.budget.held == 105
    crowd.let_go()
    late.hold("turns", 30)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3), st.integers(0, 25)), max_size=60))
def test_the_sum_is_below_the_limit_and_modest_addresses_stay(charges):
    crowd = Crowd(100)
    for peer, address, size in charges:
        name = f"{address}/{peer}"
        try:
            (crowd.accounts.get(name) or crowd.join(name, f"192.0.2.{address}")).hold("x", size)
        except OverBudgetError:
            assert name in crowd.leaving
        for leaver in crowd.leaving:  # four addresses: one that holds less than a quarter is safe
            there = [peer for peer in crowd.accounts if peer[0] == leaver[0]]
            assert sum(crowd.accounts[peer]._holder.held for peer in there) + size >= 25
        crowd.let_go()
        crowd.now += REFUSED_FOR
        assert crowd.budget.held <= 100
    for account in crowd.accounts.values():
        account.close()
    assert crowd.budget.held == 0
    assert not any(crowd.budget.by_kind.values())
