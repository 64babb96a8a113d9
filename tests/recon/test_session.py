"""The session: the specification's traces, and convergence of any two sets whatever happens."""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import combinations, repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st
from peers import EVERYTHING, HIGHEST, LOWEST, FencedSession, Peer, is_fencepost, reconcile, write

from recon_node.recon import (
    ZERO,
    KeyRange,
    LocalProtocolError,
    Message,
    RemoteProtocolError,
    Session,
    SessionSettings,
    Sha256a,
    intersect_ranges,
)

WORDS = ("ape", "bee", "cat", "doe", "eel", "fox", "gnu", "hog")
NAMES = {
    Sha256a.of(*(word.encode() for word in words)): f"h({','.join(words)})" if words else "0"
    for size in range(len(WORDS) + 1)
    for words in combinations(WORDS, size)
}
TRACE_SETTINGS = SessionSettings(fan_out=2, list_threshold=0)

KEYS = st.sets(st.binary(min_size=1, max_size=2), max_size=60)
SETTINGS = st.builds(
    SessionSettings,
    fan_out=st.integers(2, 20),
    list_threshold=st.integers(0, 20),
    page_keys=st.integers(1, 30),
    message_bytes=st.sampled_from([64, 3_000, 1 << 20]),
    max_idle_rounds=st.just(500),
)
BOUND = st.binary(max_size=2)


def words(*names: str) -> list[bytes]:
    return [name.encode() for name in names]


def numbered(start: int, end: int) -> set[bytes]:
    return {b"%06d" % n for n in range(start, end)}


def test_the_trace_of_cip_124() -> None:
    """The full example of CIP-124 (Recon), "Interactive Sync Algorithm", message by message."""
    you = Peer(words("ape", "eel", "fox", "gnu"), TRACE_SETTINGS)
    they = Peer(words("bee", "cat", "doe", "eel", "fox", "hog"), TRACE_SETTINGS)
    first_to_last = KeyRange(b"ape", b"gnu")
    _, _, sent = reconcile(you, they, first_to_last)
    assert [write(message, NAMES) for message in sent] == [
        "(ape, h(eel,fox), gnu)",
        "(ape, h(bee,cat), doe, h(eel,fox), gnu, 0, hog)",
        "(ape, 0, doe, h(eel,fox,gnu), hog)",
        "(ape, 0, bee, 0, cat, h(doe,eel,fox,gnu), hog)",
        "(ape, h(bee,cat,doe,eel,fox,gnu), hog)",
        "(ape, h(bee,cat,doe,eel,fox,gnu), hog)",
    ]
    assert you.set == they.set == set(words(*WORDS))


def test_the_ring_trace_of_the_first_draft() -> None:
    """The ring example of CIP-124's first draft (Stream Sets Synchronization).

    A ring from ape round to ape is the range from ape to the end of the order. The draft does not
    merge matching neighbours, which the CIP that replaced it does: its "doe, 0, eel, h(fox), gnu,
    0, hog" is therefore "doe, h(eel,fox,gnu), hog" here.
    """
    ring = KeyRange(b"ape", HIGHEST)
    you = Peer(words("ape", "eel", "fox", "gnu"), TRACE_SETTINGS)
    they = Peer(words("bee", "cat", "doe", "eel", "fox", "hog"), TRACE_SETTINGS)
    they.interests = (KeyRange(b"ape", HIGHEST),)
    _, _, sent = reconcile(you, they, ring)
    written = [write(message, NAMES).replace("END", "ape") for message in sent]
    assert written == [
        "(ape, h(eel,fox,gnu), ape)",
        "(ape, h(bee,cat,doe), eel, h(fox,hog), ape)",
        "(ape, 0, eel, h(fox), gnu, 0, ape)",
        "(ape, 0, bee, 0, cat, 0, doe, h(eel,fox,gnu), hog, 0, ape)",
        "(ape, h(bee,cat,doe,eel,fox,gnu,hog), ape)",
        "(ape, h(bee,cat,doe,eel,fox,gnu,hog), ape)",
    ]
    assert you.set == they.set == set(words(*WORDS))


def test_equal_sets_agree_in_one_round() -> None:
    you, they = Peer(numbered(0, 500)), Peer(numbered(0, 500))
    asking, answering, sent = reconcile(you, they)
    assert len(sent) == 2
    assert asking.done
    assert answering.done
    assert asking.rounds == 1


@given(KEYS, KEYS, SETTINGS, SETTINGS)
def test_any_two_sets_converge(
    a: set[bytes], b: set[bytes], a_settings: SessionSettings, b_settings: SessionSettings
) -> None:
    you, they = Peer(a, a_settings), Peer(b, b_settings)
    asking, answering, _ = reconcile(you, they)
    assert you.set == they.set == a | b
    assert asking.done
    assert answering.done


@given(st.integers(0, 2**32), st.integers(0, 3_000), st.integers(0, 300), SETTINGS)
def test_large_sets_with_few_differences_converge(
    seed: int, common: int, differing: int, settings: SessionSettings
) -> None:
    rng = random.Random(seed)
    shared = {rng.randbytes(6) for _ in range(common)}
    you = Peer(shared | {rng.randbytes(6) for _ in range(differing)}, settings)
    they = Peer(shared | {rng.randbytes(6) for _ in range(differing // 2)})
    union = you.set | they.set
    reconcile(you, they)
    assert you.set == they.set == union


@given(KEYS, KEYS, SETTINGS, st.lists(st.tuples(st.integers(1, 12), st.booleans(), BOUND)))
def test_what_comes_in_meanwhile_does_no_harm(
    a: set[bytes],
    b: set[bytes],
    settings: SessionSettings,
    arrivals: list[tuple[int, bool, bytes]],
) -> None:
    """Each side ends with all that both had at the start; the next session tells what came in."""
    you, they = Peer(a, settings), Peer(b)

    def arrive(messages: int) -> None:
        for at, mine, key in arrivals:
            if at == messages and key:
                (you if mine else they).store.add(key)

    reconcile(you, they, between=arrive)
    assert a | b <= you.set
    assert a | b <= they.set
    reconcile(you, they)
    assert you.set == they.set


@given(KEYS, KEYS, SETTINGS, SETTINGS, st.data())
def test_keys_without_events_do_not_stop_the_others(
    a: set[bytes],
    b: set[bytes],
    a_settings: SessionSettings,
    b_settings: SessionSettings,
    data: st.DataObject,
) -> None:
    some = st.sets(st.sampled_from(sorted(a | b or {b"none"})), max_size=8).map(frozenset)
    lost_to_you = data.draw(some) - a
    lost_to_them = data.draw(some) - b
    you, they = Peer(a, a_settings, lost_to_you), Peer(b, b_settings, lost_to_them)
    asking, answering, _ = reconcile(you, they)
    assert you.set == (a | b) - lost_to_you
    assert they.set == (a | b) - lost_to_them
    assert asking.done
    assert answering.done
    assert asking.given_up == len(lost_to_you & b)


RANGES = st.lists(
    st.builds(KeyRange, st.binary(max_size=1), st.binary(min_size=1, max_size=2)), max_size=4
)


@given(KEYS, KEYS, RANGES, RANGES, SETTINGS)
def test_only_what_interests_both_is_reconciled(
    a: set[bytes],
    b: set[bytes],
    yours: list[KeyRange],
    theirs: list[KeyRange],
    settings: SessionSettings,
) -> None:
    """All sessions of an initiator, one for each overlap, give the common interests and no more."""

    you, they = Peer(a, settings), Peer(b)
    todo = [each for each in yours if not each.is_empty]
    while todo:
        asking = FencedSession.initiator(you.store, todo.pop(), settings)
        answering = FencedSession.responder(they.store, theirs)
        message: Message | None = asking.start()
        while message is not None:
            message = they.turn(answering, message)
            if message is not None:
                message = you.turn(asking, message)
        assert asking.done
        if asking.remaining is not None:
            todo.append(asking.remaining)
    common = intersect_ranges(yours, theirs)
    shared = {key for key in a | b if any(each.covers(key) for each in common)}
    assert you.set == a | shared
    assert they.set == b | shared


def test_pages_bound_every_message() -> None:
    you = Peer(numbered(0, 5_000), SessionSettings(page_keys=100))
    they = Peer(set())
    _, _, sent = reconcile(you, they)
    assert they.set == you.set
    assert max(len(message.bounds) for message in sent) <= 103


def test_a_message_never_outgrows_its_size() -> None:
    settings = SessionSettings(message_bytes=8_000, page_keys=10_000)
    rng = random.Random(7)
    shared = {rng.randbytes(8) for _ in range(5_000)}
    you = Peer(shared | {rng.randbytes(8) for _ in range(2_000)}, settings)
    they = Peer(shared | {rng.randbytes(8) for _ in range(2_000)}, settings)
    _, _, sent = reconcile(you, they)
    assert you.set == they.set
    sizes = [sum(map(len, each.bounds)) + 36 * len(each.hashes) for each in sent]
    assert max(sizes) < 8_000


def test_rounds_grow_with_the_logarithm() -> None:
    you, they = Peer(numbered(0, 100_000)), Peer(numbered(0, 100_000))
    they.store.add(b"050000+")
    _, _, sent = reconcile(you, they)
    assert you.set == they.set
    assert len(sent) <= 12


class TestRemoteProtocolErrors:
    """What a peer may not do, and that the error says so."""

    def responder(self) -> Session:
        return Peer(numbered(0, 100)).answers()

    def receive(self, message: Message) -> list[bytes]:
        return self.responder().receive(message)

    def keep_sending(self, hashes: Iterable[Sha256a]) -> None:
        session = self.responder()

        def send_all() -> None:
            for ahash in hashes:
                session.receive(Message((LOWEST, HIGHEST), (ahash,)))
                session.respond()

        with pytest.raises(RemoteProtocolError, match="no progress"):
            send_all()

    def test_bounds_out_of_order(self) -> None:
        with pytest.raises(RemoteProtocolError, match="out of order at bound 2"):
            self.receive(Message((LOWEST, b"b", b"a", HIGHEST), (ZERO, ZERO, ZERO)))

    def test_a_repeated_key(self) -> None:
        with pytest.raises(RemoteProtocolError, match="repeated key at bound 2"):
            self.receive(Message((LOWEST, b"b", b"b", HIGHEST), (ZERO, ZERO, ZERO)))

    def test_hashes_that_do_not_fit_the_bounds(self) -> None:
        with pytest.raises(RemoteProtocolError, match="2 bounds and 2 hashes"):
            self.receive(Message((LOWEST, HIGHEST), (ZERO, ZERO)))

    def test_an_empty_range(self) -> None:
        with pytest.raises(RemoteProtocolError, match="ended the range"):
            self.receive(Message((LOWEST, LOWEST), (ZERO,)))

    def test_a_range_beyond_the_session(self) -> None:
        session = FencedSession.responder(Peer(numbered(0, 9)).store, [EVERYTHING])
        session.receive(Message((LOWEST, b"5"), (ZERO,)))
        session.respond()
        with pytest.raises(RemoteProtocolError, match="not within"):
            session.receive(Message((LOWEST, HIGHEST), (ZERO,)))

    def test_an_answer_beyond_what_was_asked(self) -> None:
        session = FencedSession.initiator(Peer(numbered(0, 9)).store, KeyRange(b"1", b"5"))
        session.start()
        with pytest.raises(RemoteProtocolError, match="not within"):
            session.receive(Message((b"1", HIGHEST), (ZERO,)))

    def test_a_mismatch_for_ever(self) -> None:
        hashes = (Sha256a.of(b"%d" % n) for n in range(1_000))
        self.keep_sending(hashes)

    def test_asking_for_the_same_keys_for_ever(self) -> None:
        hashes = repeat(ZERO, 1_000)
        self.keep_sending(hashes)

    def test_listing_keys_that_cannot_be_had(self) -> None:
        session = self.responder()
        keys = sorted(numbered(1_000, 2_001))
        new = session.receive(Message((LOWEST, *keys, HIGHEST), (ZERO,) * (len(keys) + 1)))
        assert new == keys
        with pytest.raises(RemoteProtocolError, match="1001 keys"):
            session.give_up(new)


def test_turns_out_of_order_are_our_own_fault() -> None:
    peer = Peer(numbered(0, 9))
    session = peer.asks()
    with pytest.raises(LocalProtocolError, match="receive"):
        session.receive(Message((LOWEST, HIGHEST), (ZERO,)))
    session.start()
    with pytest.raises(LocalProtocolError, match="start"):
        session.start()
    with pytest.raises(LocalProtocolError, match="respond"):
        session.respond()
    with pytest.raises(LocalProtocolError, match="range"):
        Session.initiator(peer.store, KeyRange(b"b", b"b"))


@given(KEYS, st.lists(BOUND, min_size=2, max_size=6), st.data())
def test_any_message_gets_an_answer_or_a_typed_error(
    keys: set[bytes], bounds: list[bytes], data: st.DataObject
) -> None:
    hashes = st.lists(
        st.sampled_from([ZERO, Sha256a.of(b"x"), Sha256a.of(*keys)]),
        min_size=len(bounds) - 1,
        max_size=len(bounds) - 1,
    )
    peer = Peer(keys)
    session = peer.answers()
    try:
        reply = peer.turn(session, Message(tuple(bounds), tuple(data.draw(hashes))))
    except RemoteProtocolError:
        return
    assert reply is not None
    reply.check()
    assert is_fencepost(EVERYTHING.lower)
