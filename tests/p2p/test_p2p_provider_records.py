"""Provider records: bounded, expiring, and shared fairly by address, against a plain model."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from recon_node.p2p.peers.dht_server import LIFETIME, MAX_ADDRESSES, ProviderRecords

PER_KEY, IN_ALL = 4, 10
KEYS = [b"a", b"b", b"c", b"d"]

announcements = st.lists(
    st.tuples(
        st.sampled_from(KEYS),
        st.sampled_from([f"peer {number}" for number in range(8)]),
        st.sampled_from(["192.0.2.1", "192.0.2.2", "2001:db8::1", "2001:db8::2"]),
        st.sampled_from([0.0, 1.0, LIFETIME / 3]),
    ),
    max_size=60,
)


@given(announcements)
def test_records_are_bounded_fresh_and_the_newest_is_there(steps):
    records = ProviderRecords(PER_KEY, IN_ALL)
    now = 0.0
    announced = {}
    for key, peer, source, pause in steps:
        now += pause
        records.add(key, peer, [b"address"], source, now)
        announced[key, peer] = now
        held = {(key, p.peer_id) for key in KEYS for p in records.providers(key, now)}
        assert (key, peer) in held
        assert len(records) == len(held) <= IN_ALL
        assert all(now < announced[place] + LIFETIME for place in held)
        assert max(Counter(key for key, _ in held).values()) <= PER_KEY
        assert records.keys == len({key for key, _ in held})
    records.expire(now + LIFETIME)
    assert (len(records), records.keys, list(records.all_providers())) == (0, 0, [])


@given(announcements)
def test_a_peer_is_forgotten_in_all_keys(steps):
    records = ProviderRecords(PER_KEY, IN_ALL)
    for key, peer, source, _ in steps:
        records.add(key, peer, [], source, 0.0)
    peers = {provider.peer_id for provider in records.all_providers()}
    assert len(list(records.all_providers())) == len(peers)
    for peer in peers:
        records.forget(peer)
        assert peer not in {provider.peer_id for provider in records.all_providers()}
    assert len(records) == records.keys == 0


def test_a_flood_for_one_key_replaces_only_the_floods_own_records():
    records = ProviderRecords()
    honest = [f"honest {number}" for number in range(50)]
    for number, peer in enumerate(honest):
        records.add(b"key", peer, [], f"192.0.2.{number}", 0.0)
    for number in range(1000):
        records.add(b"key", f"sybil {number}", [], "198.51.100.1", 1.0)
    assert set(honest) <= {provider.peer_id for provider in records.providers(b"key", 2.0)}
    records.add(b"key", "late", [], "192.0.2.77", 2.0)  # there is room for others, too
    assert {*honest, "late"} <= {provider.peer_id for provider in records.providers(b"key", 2.0)}


def test_a_flood_of_keys_replaces_only_the_floods_own_records():
    records = ProviderRecords(max_records=100)
    for number in range(1000):  # one IPv6 network counts as one address
        records.add(b"%d" % number, "flood", [], f"2001:db8::{number:x}", 0.0)
    for number in range(49):
        records.add(b"key", f"honest {number}", [], f"192.0.2.{number}", 1.0)
    for number in range(1000):
        records.add(b"%d" % number, "flood", [], f"2001:db8::{number:x}", 2.0)
    assert len(records.providers(b"key", 3.0)) == 49
    assert len(records) == 100


def test_few_addresses_of_a_provider_are_kept():
    records = ProviderRecords()
    records.add(b"key", "peer", [b"%d" % number for number in range(100)], "192.0.2.1", 0.0)
    [kept] = records.providers(b"key", 0.0)
    assert kept.addresses == tuple(b"%d" % number for number in range(MAX_ADDRESSES))
