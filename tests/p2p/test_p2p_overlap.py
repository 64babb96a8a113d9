"""What a node has in common with its peers, and how much it counts to say so, on a mock clock."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import trio
from p2p_support import NETWORK

from recon_node.ceramic import Shard
from recon_node.p2p.peers import overlap
from recon_node.p2p.peers.book import PeerBook
from recon_node.p2p.peers.overlap import COUNTED_AT_ONCE, WEIGHED_EVERY, Overlap
from recon_node.recon import KeyRange, KeyStore
from recon_node.store import Interest, format_interest
from recon_node.store.kept_interests import key_ranges

OURS = tuple(Interest("family", f"family {number}") for number in range(50))
EACH = [key_ranges(NETWORK, [interest])[0] for interest in OURS]
PEERS = [f"peer {number}" for number in range(40)]


class CountingKeys(KeyStore):
    """Keys that remember how often they were counted."""

    counted = 0

    def count(self, key_range: KeyRange) -> int:
        self.counted += 1
        return super().count(key_range)


def key(key_range: KeyRange, number: int) -> bytes:
    return key_range.lower + b"\x7f" + number.to_bytes(4, "big")


def node_with_peers(
    stated: list[list[KeyRange]], ours: Sequence[Interest] = OURS
) -> tuple[Overlap, CountingKeys]:
    """A node that has two keys of each of its interests, and peers that state theirs."""
    keys = CountingKeys(key(sort_value, number) for sort_value in EACH for number in range(2))
    wanted = SimpleNamespace(all=tuple(ours), ranges=key_ranges(NETWORK, ours))
    store: Any = SimpleNamespace(keys=keys, wanted=wanted, network=NETWORK)
    book = PeerBook(len(stated))
    for peer_id, ranges in zip(PEERS, stated, strict=False):
        book.note_peer(peer_id, [f"/ip4/192.0.2.1/tcp/1/p2p/{peer_id}"])
        book.states(peer_id, ranges)
    return Overlap(store, book), keys


async def test_a_peer_is_described_by_what_it_shares(autojump_clock):
    shared = key_ranges(NETWORK, OURS[5:8])
    elsewhere = key_ranges(NETWORK, [Interest("family", "another")])
    overlaps, _ = node_with_peers([shared, elsewhere, key_ranges(NETWORK, OURS)])
    assert overlaps.describe(PEERS[0]) == (tuple(map(format_interest, OURS[5:8])), 3 / 50)
    assert overlaps.describe(PEERS[1]) == ((), 0.0)
    assert overlaps.describe(PEERS[2]) == (
        tuple(map(format_interest, OURS[: overlap.MAX_NAMED])),
        1.0,
    )
    assert overlaps.describe("a stranger") is None


async def test_another_shard_of_a_sort_value_is_not_shared(autojump_clock):
    """Or a node would stop looking for peers with its shard at those with others."""
    shards = [Interest("family", "large", controllers=Shard.of(n, 4)) for n in range(1, 5)]
    fifth = Interest("family", "large", controllers=Shard.of(2, 5))
    whole = Interest("family", "large")
    theirs = [key_ranges(NETWORK, [shard]) for shard in (*shards, fifth, whole)]
    overlap, _ = node_with_peers(theirs, ours=shards[:1])
    shares = [overlap.shares(peer, "large") for peer in PEERS[: len(theirs)]]
    assert shares == [True, False, False, False, True, True]
    assert shares == [overlap.shares(peer) for peer in PEERS[: len(theirs)]]


async def test_ranges_that_many_peers_want_are_counted_once_in_a_while(autojump_clock):
    overlap, keys = node_with_peers([key_ranges(NETWORK, OURS[n : n + 10]) for n in range(40)])
    for _ in range(3):
        for peer_id in PEERS:
            overlap.describe(peer_id)
    assert keys.counted == len(OURS)
    keys.add(key(EACH[0], 2))
    assert overlap.describe(PEERS[0]) == (tuple(map(format_interest, OURS[:10])), 20 / 100)
    await trio.sleep(WEIGHED_EVERY)
    assert overlap.describe(PEERS[0]) == (tuple(map(format_interest, OURS[:10])), 21 / 101)


async def test_shares_in_ranges_that_differ_are_renewed_bit_by_bit(autojump_clock):
    stated = [
        [KeyRange(key(sort_value, 0) + bytes([n]), sort_value.upper) for sort_value in sorted(EACH)]
        for n in range(len(PEERS))
    ]
    overlap, keys = node_with_peers(stated)
    assert {description[1] for description in map(overlap.describe, PEERS) if description} == {0.5}
    keys.counted = 0
    for sort_value in EACH:
        keys.add(key(sort_value, 2))
    await trio.sleep(WEIGHED_EVERY)
    renewed = []
    for _ in range(10):
        before = keys.counted
        descriptions = [overlap.describe(peer_id) for peer_id in PEERS]
        assert keys.counted - before <= COUNTED_AT_ONCE + 2 * len(EACH)
        renewed.append(sum(description[1] == 2 / 3 for description in descriptions if description))
        await trio.sleep(1)
    assert 0 < renewed[0] < len(PEERS)
    assert renewed[-1] == len(PEERS), "each peer's turn comes"
