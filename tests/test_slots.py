"""Slots go to who earns them, and a rate to each block: the policy, without connections."""

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recon_node.fairness.slots import (
    EARNED_SHARE,
    LATELY,
    REST,
    AllowList,
    Slot,
    Slots,
    TokenBucket,
    TokenBuckets,
    address_block_of,
    address_blocks_of,
)


@dataclass
class Crowd:
    """Takes slots for addresses; remembers who had to give way."""

    limit: int
    allowed: AllowList = field(default_factory=AllowList)
    reserve: int = 0
    grace: float = 0.0
    now: float = 0.0
    losers: list[Slot] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.slots = Slots(
            self.limit, lambda: self.now, self.allowed, reserve=self.reserve, grace=self.grace
        )
        self.held: list[Slot] = []

    def come(
        self, address: str, *, busy: bool = False, size: int = 1, vital: bool = False
    ) -> Slot | None:
        taken: list[Slot] = []

        def give_way() -> None:
            self.losers.append(taken[0])
            self.held.remove(taken[0])

        slot = self.slots.take(address, give_way, busy=busy, size=size, vital=vital)
        if slot is not None:
            taken.append(slot)
            self.held.append(slot)
        self.now += 0.01
        return slot

    def of(self, address: str) -> int:
        return sum(peer.address == address for peer in self.held)


def test_what_counts_as_one_network() -> None:
    for address, *blocks in (
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1::/48", "2001:db8:1::/56"),
        ("fe80::1%eth0", "fe80::/48", "fe80::/56"),
        ("", ""),
        ("unknown", "unknown"),
    ):
        assert address_blocks_of(address) == tuple(blocks)
        assert address_block_of(address) == blocks[-1]


def test_of_busy_slots_those_of_the_largest_network_give_way_the_latest_first() -> None:
    crowd = Crowd(4)
    assert all(crowd.come("192.0.2.1", busy=True) for _ in range(4))
    first, second, third, fourth = crowd.held
    assert not crowd.come("192.0.2.1", busy=True)
    assert crowd.come("192.0.2.2", busy=True)
    assert crowd.come("192.0.2.2", busy=True)
    assert not crowd.come("192.0.2.2", busy=True)
    assert crowd.losers == [fourth, third]
    second.leave()
    crowd.held.remove(second)
    assert crowd.come("192.0.2.3", busy=True)
    assert first in crowd.held


def test_any_newcomer_gets_the_slot_that_has_been_idle_longest() -> None:
    """As 150 addresses with an idle connection each must not shut out another one."""
    crowd = Crowd(150)
    for number in range(150):
        assert crowd.come(f"10.0.0.{number}")
    oldest, second = crowd.held[:2]
    oldest.use(busy=False)
    assert crowd.come("192.0.2.1")
    assert crowd.losers == [second]


def test_a_network_that_lost_a_slot_takes_none_from_others_for_some_time() -> None:
    crowd = Crowd(2)
    crowd.come("192.0.2.1")
    crowd.come("192.0.2.2")
    assert crowd.come("192.0.2.3")
    assert not crowd.come("192.0.2.1")
    crowd.now += REST
    assert crowd.come("192.0.2.1")
    assert [loser.address for loser in crowd.losers] == ["192.0.2.1", "192.0.2.2"]


def test_a_customer_with_many_ipv6_networks_shares_as_one() -> None:
    crowd = Crowd(4)
    for number in range(4):  # one /48 with four /56
        assert crowd.come(f"2001:db8:1:{number:x}00::1", busy=True)
    assert crowd.come("2001:db8:2::1", busy=True)
    assert crowd.come("192.0.2.1", busy=True)
    assert not crowd.come("2001:db8:1:500::1", busy=True)
    crowd = Crowd(4)
    for _ in range(3):  # within it, the /56 with the most gives way
        crowd.come("2001:db8:1::1", busy=True)
    crowd.come("2001:db8:1:100::1", busy=True)
    assert crowd.come("2001:db8:1:200::1", busy=True)
    assert [loser.address for loser in crowd.losers] == ["2001:db8:1::1"]


def test_who_delivered_lately_keeps_its_slot_up_to_a_share_of_them() -> None:
    crowd = Crowd(8)
    for number in range(8):
        crowd.come(f"10.0.0.{number}")
    for number in range(8):
        crowd.now += 1
        crowd.slots.earn(f"10.0.0.{number}")
    for number in range(8):
        assert crowd.come(f"192.0.2.{number}")
    lost = [loser.address for loser in crowd.losers]
    assert lost[:2] == ["10.0.0.0", "10.0.0.1"]
    assert crowd.of("10.0.0.0") == 0
    assert all(crowd.of(f"10.0.0.{number}") for number in range(2, 8))
    crowd.now += LATELY
    assert crowd.come("198.51.100.1")
    assert crowd.losers[-1].address in {f"10.0.0.{number}" for number in range(2, 8)}


def test_who_is_on_the_allow_list_always_gets_in_and_stays() -> None:
    crowd = Crowd(2, AllowList(["192.0.2.0/24", "2001:db8::7", "12D3KooWPeer"]))
    assert "12D3KooWPeer" in crowd.allowed
    assert "12D3KooWOther" not in crowd.allowed
    assert "::ffff:192.0.2.9" in crowd.allowed
    crowd.come("10.0.0.1", busy=True)
    later = crowd.come("10.0.0.2", busy=True)
    assert crowd.come("192.0.2.9", busy=True)
    assert crowd.losers == [later]
    remaining = crowd.held[0]
    remaining.keep()
    assert not crowd.come("10.0.0.3")
    assert not crowd.come("2001:db8::7")
    with pytest.raises(ValueError, match="not an address or a network"):
        AllowList(["192.0.2.7/24"])


def test_what_is_vital_has_a_reserve() -> None:
    crowd = Crowd(1, reserve=1)
    assert crowd.come("10.0.0.1", busy=True)
    assert not crowd.come("10.0.0.1", busy=True)
    assert crowd.come("10.0.0.1", busy=True, vital=True)
    assert not crowd.come("10.0.0.1", busy=True, vital=True)


def test_slots_of_a_size_are_taken_from_stalled_ones() -> None:
    crowd = Crowd(10, grace=1)
    stalled, moving = crowd.come("10.0.0.1", size=5), crowd.come("10.0.0.1", size=5)
    assert stalled
    assert moving
    assert not crowd.come("10.0.0.1", size=1), "both have just been used"
    crowd.now += 1
    moving.use(busy=False)
    assert crowd.come("10.0.0.1", size=5)
    assert crowd.losers == [stalled]
    assert not crowd.come("10.0.0.1", size=100)
    assert crowd.slots.taken == 10


COMERS = st.lists(
    st.tuples(
        st.sampled_from("abcdefgh"), st.booleans(), st.sampled_from(["come", "earn", "wait"])
    ),
    max_size=40,
)


@given(st.integers(1, 8), COMERS)
def test_nobody_who_has_less_than_a_fair_share_of_busy_slots_loses_one(limit, comers):
    """By counts that are made here anew, not by those of the policy."""
    crowd = Crowd(limit, AllowList(["h"]))
    earned: dict[str, float] = {}
    lost: dict[str, float] = {}
    for address, busy, what in comers:
        if what == "wait":
            crowd.now += REST
            continue
        if what == "earn":
            crowd.slots.earn(address)
            earned[address] = crowd.now
            continue
        before, held = Counter(peer.address for peer in crowd.held), list(crowd.held)
        at = crowd.now
        addresses = (peer.address for peer in held if peer.address in earned)
        merits = sorted(addresses, key=earned.get, reverse=True)  # the same of equal ones stay
        protected = Counter(merits[: int(limit * EARNED_SHARE)])
        crowd.losers.clear()
        slot = crowd.come(address, busy=busy)
        assert len(crowd.held) <= limit
        assert crowd.slots.taken == len(crowd.held) == len(crowd.slots)
        if slot is None:
            assert len(held) == limit, "a free slot is for everybody"
            assert not crowd.losers
            open_to_all = [
                peer
                for peer in held
                if not peer.is_busy and peer.address != "h" and not protected[peer.address]
            ]
            is_resting = at < lost.get(address, -REST) + REST
            assert is_resting or not open_to_all, "an idle slot is for any newcomer"
        for loser in crowd.losers:
            assert len(held) == limit
            assert loser.address != "h"
            assert crowd.of(loser.address) >= protected[loser.address]
            if loser.is_busy and address != "h":
                assert before[loser.address] > before[address] + 1
            lost[loser.address] = at


@given(
    burst=st.floats(1, 1000),
    rate=st.floats(0.5, 100),
    uses=st.lists(st.tuples(st.floats(0, 3), st.floats(0, 200)), max_size=60),
)
def test_no_more_passes_than_one_burst_and_the_rate(burst, rate, uses):
    bucket = TokenBucket(burst, rate, 0.0)
    now = passed = 0.0
    for gap, tokens in uses:
        now += gap
        if not bucket.seconds_until(tokens, now):
            bucket.spend(tokens, now)
            passed += tokens
    assert passed <= burst + rate * now + 1e-6


def test_waits_as_long_as_computed_give_the_whole_rate() -> None:
    bucket, now = TokenBucket(6, 3, 0.0), 0.0
    for _ in range(60):
        now += bucket.seconds_until(1, now)
        bucket.spend(1, now)
    assert now == pytest.approx((60 - 6) / 3)


def test_a_bucket_can_be_overdrawn_and_given_back() -> None:
    bucket = TokenBucket(10, 2, 0.0)
    bucket.spend(16, 0.0)
    assert (bucket.left(0.0), bucket.seconds_until(0, 0.0)) == (-6, 3)
    bucket.spend(-100, 1.0)
    assert bucket.left(1.0) == 10  # no more than fits


def test_the_latest_keys_have_buckets() -> None:
    buckets = TokenBuckets[str](1, 0.001, limit=3)
    buckets.of("first", 0.0).spend(1, 0.0)
    assert buckets.of("first", 0.0).left(0.0) == 0
    for key in "abc":
        buckets.of(key, 0.0).spend(1, 0.0)
    assert buckets.of("c", 0.0).left(0.0) == 0
    assert buckets.of("first", 0.0).left(0.0) == 1  # forgotten
