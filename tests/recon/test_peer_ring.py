"""The peer ring: publishing, expiry, and its bounds under a flood of made-up nodes."""

from random import Random

from nacl.signing import SigningKey

from recon_node.recon.ring import peer_ring
from recon_node.recon.ring.peer_ring import (
    LIFETIME,
    MAX_ENTRIES_PER_NODE,
    MAX_LIFETIME,
    EntryVerdict,
    PeerEntry,
    PeerRing,
    parse_entry,
    sign_entry,
)

NOW = 1_800_000_000
HERE = ("/ip4/192.0.2.1/tcp/4101",)
THERE = ("/ip4/192.0.2.2/tcp/4101",)


def key(number: int) -> SigningKey:
    return SigningKey(number.to_bytes(32))


def ring(number: int = 0, known: frozenset[str] = frozenset()) -> PeerRing:
    return PeerRing(
        key(number), pick=Random(7).randrange, was_connected=lambda peer_id: peer_id in known
    )


def entry_of(number: int, expiry: int = NOW + LIFETIME) -> bytes:
    return sign_entry(key(number), expiry, THERE)


def peer_id(number: int) -> str:
    return PeerEntry(bytes(key(number).verify_key), 0, ()).peer_id


def keys_of(one: PeerRing, now: int = NOW) -> list[bytes]:
    return list(one.ring.keys(*peer_ring.unexpired(now)))


def test_the_own_entry_is_published_at_start_and_at_half_its_lifetime():
    one = ring()
    assert one.refresh(NOW, HERE) == LIFETIME // 2
    [first] = keys_of(one)
    assert parse_entry(first).addresses == HERE
    assert one.refresh(NOW + LIFETIME // 2 - 10, HERE) == 10
    assert keys_of(one) == [first]
    one.refresh(NOW + LIFETIME // 2, HERE)
    assert len(one) == 2
    assert keys_of(one, NOW + LIFETIME + 1)[0] != first


def test_new_addresses_are_published_at_once():
    one = ring()
    one.refresh(NOW, HERE)
    one.refresh(NOW + 5, THERE)
    assert [parse_entry(entry).addresses for entry in keys_of(one)] == [HERE, THERE]
    assert one.others() == []


def test_a_machine_may_have_more_addresses_than_an_entry():
    """As one with many container networks has; it published none, and the node did not start."""
    one = ring()
    many = tuple(f"/ip4/172.{n}.255.254/tcp/4101/p2p/{peer_id(0)}" for n in range(100, 200))
    assert one.refresh(NOW, many) == one.refresh(NOW, many) == LIFETIME // 2
    [entry] = keys_of(one)
    published = parse_entry(entry).addresses
    assert len(published) >= 20
    assert published == many[: len(published)]
    assert one.refresh(NOW, ("/dns4/x/tcp/1",) * 1000) == LIFETIME // 2


def test_entries_from_a_clock_that_was_ahead_are_dropped():
    """Nobody else would take them: the sides would differ, and this node be unknown, for long."""
    one, ahead = ring(), NOW + 365 * LIFETIME
    one.refresh(ahead, HERE)
    one.admit(entry_of(1, ahead + 100), ahead)
    one.admit(entry_of(2, NOW + MAX_LIFETIME), NOW)
    assert one.refresh(NOW, HERE) == LIFETIME // 2
    assert sorted(parse_entry(entry).expiry - NOW for entry in keys_of(one)) == [
        LIFETIME,
        MAX_LIFETIME,
    ]


def test_expired_entries_are_dropped_and_not_taken_again():
    one = ring()
    one.refresh(NOW, HERE)
    short = entry_of(1, NOW + 100)
    assert one.admit(short, NOW) is EntryVerdict.ADDED
    assert one.admit(short, NOW) is EntryVerdict.KNOWN
    one.refresh(NOW + 101, HERE)
    assert len(one) == 1
    assert one.admit(short, NOW + 101) is EntryVerdict.EXPIRED


def test_the_latest_entry_of_each_other_node_counts():
    one = ring()
    one.refresh(NOW, HERE)
    for number, expiry in [(1, NOW + 10), (2, NOW + 10), (1, NOW + 20)]:
        one.admit(entry_of(number, expiry), NOW)
    assert {(entry.peer_id, entry.expiry) for entry in one.others()} == {
        (peer_id(1), NOW + 20),
        (peer_id(2), NOW + 10),
    }


def test_what_is_invalid_or_lasts_too_long_is_refused():
    one = ring()
    assert one.admit(b"01800000000.a.b.c", NOW) is EntryVerdict.INVALID
    assert one.admit(entry_of(1, NOW + MAX_LIFETIME + 1), NOW) is EntryVerdict.EXPIRED
    assert len(one) == 0


def test_a_node_has_a_bounded_number_of_entries():
    one = ring()
    verdicts = [one.admit(entry_of(1, NOW + n), NOW) for n in range(MAX_ENTRIES_PER_NODE + 1)]
    assert verdicts == [EntryVerdict.ADDED] * MAX_ENTRIES_PER_NODE + [EntryVerdict.NO_ROOM]


def test_a_flood_of_made_up_nodes_displaces_neither_us_nor_the_nodes_that_we_met(monkeypatch):
    monkeypatch.setattr(peer_ring, "MAX_ENTRIES", 20)
    known = frozenset(peer_id(number) for number in (1, 2))
    one = ring(known=known)
    one.refresh(NOW, HERE)
    for number in (1, 2):
        one.admit(entry_of(number), NOW)
    for number in range(100, 200):
        assert one.admit(entry_of(number), NOW) is EntryVerdict.ADDED
    assert len(one) == 20
    assert {entry.peer_id for entry in one.others()} >= known
    assert one.refresh(NOW, HERE) == LIFETIME // 2, "our own entry is still there"
    # A real node that comes late still gets in.
    assert one.admit(entry_of(3), NOW) is EntryVerdict.ADDED


def test_a_ring_full_of_nodes_that_we_met_refuses_more(monkeypatch):
    monkeypatch.setattr(peer_ring, "MAX_ENTRIES", 10)
    known = frozenset(peer_id(number) for number in range(1, 10))
    one = ring(known=known)
    one.refresh(NOW, HERE)
    for number in range(1, 10):
        one.admit(entry_of(number), NOW)
    assert one.admit(entry_of(50), NOW) is EntryVerdict.NO_ROOM
