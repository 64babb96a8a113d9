"""Sessions of every protocol version: any two sets converge, whatever happens meanwhile."""

import random
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from peers import CASES, SESSIONS, MakeSession, Peer, fenced_session, numbered, reconcile, talk

from benchmarks.keys import event_ids
from recon_node.ceramic import IN_MEMORY, network_range
from recon_node.recon import (
    RECON_1_0,
    RECON_1_2,
    Failed,
    Fetch,
    FetchById,
    KeyRange,
    KeyStore,
    LocalProtocolError,
    RemoteProtocolError,
    SessionSettings,
    Side,
    intersect_ranges,
    turn_of,
)

KEY = st.binary(min_size=2, max_size=2)
KEYS = st.sets(KEY, max_size=60)
SETTINGS = st.builds(
    SessionSettings,
    fan_out=st.integers(2, 20),
    list_threshold=st.integers(0, 20),
    page_keys=st.integers(1, 30),
    message_bytes=st.sampled_from([64, 3_000, 1 << 20]),
    max_idle_rounds=st.just(500),
)
ROOMY = SETTINGS.map(
    lambda settings: replace(settings, message_bytes=max(3_000, settings.message_bytes))
)
every_version = pytest.mark.parametrize("version", SESSIONS)


@every_version
def test_equal_sets_agree_in_one_round(version: MakeSession) -> None:
    you, they = Peer(numbered(0, 500), session=version), Peer(numbered(0, 500), session=version)
    asking, _, sent = reconcile(you, they)
    assert len(sent) == 2
    assert asking.side.rounds == 1


@every_version
def test_what_was_answered_takes_no_memory(version: MakeSession) -> None:
    """Its bytes are charged to the peer until then, and not afterwards."""
    you, they = Peer(numbered(0, 500), session=version), Peer(numbered(250, 750), session=version)
    asking, answering = you.asks(), they.answers()
    heard = turn_of(asking.start())
    answers = they.take(answering, heard[0])
    heard += answers
    for message in answers:
        you.take(asking, message)
    for session in (asking, answering):
        kept = [item for value in vars(session).values() for item in (value, *_items(value))]
        assert not any(message_kept is message for message_kept in kept for message in heard)


def _items(value: object) -> list[object]:
    value = getattr(value, "messages", value)
    return list(value) if isinstance(value, list) else []


@every_version
@settings(max_examples=settings().max_examples // 4)
@given(st.integers(0, 2**32), st.integers(0, 3_000), st.integers(0, 300), SETTINGS)
def test_large_sets_with_few_differences_converge(version, seed, common, differing, bounds):
    rng = random.Random(seed)
    shared = {rng.randbytes(6) for _ in range(common)}
    mine, yours = (
        shared | {rng.randbytes(6) for _ in range(count)} for count in (differing, differing // 2)
    )
    you, they = Peer(mine, bounds, session=version), Peer(yours, session=version)
    union = you.set | they.set
    reconcile(you, they)
    assert you.set == they.set == union


@every_version
@settings(max_examples=CASES)
@given(KEYS, KEYS, SETTINGS, SETTINGS, st.lists(st.tuples(st.integers(1, 12), st.booleans(), KEY)))
def test_any_two_sets_converge(version, a, b, a_settings, b_settings, arrivals):
    """Each side ends with all that both had at the start; the next session tells what came in
    meanwhile."""
    you, they = Peer(a, a_settings, session=version), Peer(b, b_settings, session=version)

    def arrive(messages: int) -> None:
        for at, mine, key in arrivals:
            if at == messages:
                (you if mine else they).store.add(key)
                arrived.add(key)

    arrived: set[bytes] = set()
    reconcile(you, they, between=arrive)
    assert a | b <= you.set
    assert a | b <= they.set
    reconcile(you, they)
    assert you.set == they.set == a | b | arrived


@every_version
@settings(max_examples=CASES)
@given(KEYS, KEYS, ROOMY, ROOMY, st.data())
def test_keys_without_events_do_not_stop_the_others(version, a, b, a_settings, b_settings, data):
    subset = st.sets(st.sampled_from(sorted(a | b or {b"none"}))).map(frozenset)
    lost_to_you = data.draw(subset) - a
    lost_to_them = data.draw(subset) - b
    you, they = (
        Peer(a, a_settings, lost_to_you, session=version, checked=True),
        Peer(b, b_settings, lost_to_them, session=version, checked=True),
    )
    asking, answering, _ = reconcile(you, they, max_messages=1_000)
    assert you.set == (a | b) - lost_to_you
    assert they.set == (a | b) - lost_to_them
    assert asking.side.left_out == len(lost_to_you & b)
    assert answering.side.left_out == len(lost_to_them & a)
    if version is not fenced_session:
        assert asking.side.left_out_by_peer == answering.side.left_out
        assert answering.side.left_out_by_peer == asking.side.left_out


def some_of(keys: set[bytes]) -> st.SearchStrategy[frozenset[bytes]]:
    """Any number of some keys, and often all of them."""
    subset = st.sets(st.sampled_from(sorted(keys))) if keys else st.just(keys)
    return (st.just(keys) | subset).map(frozenset)


@every_version
@settings(max_examples=CASES)
@given(KEYS, KEYS, ROOMY, ROOMY, st.data())
def test_any_number_of_refused_events_keeps_no_others_apart(
    version, a, b, a_settings, b_settings, data
):
    """In whatever ranges they lie: sessions end well, and ask for nothing a second time."""
    refused_by_you, refused_by_them = data.draw(some_of(b - a)), data.draw(some_of(a - b))
    a_settings, b_settings = (
        replace(settings, max_not_supplied=0) for settings in (a_settings, b_settings)
    )
    you = Peer(a, a_settings, session=version, refuses=refused_by_you, checked=True)
    they = Peer(b, b_settings, session=version, refuses=refused_by_them, checked=True)
    for initiator, responder in ((you, they), (they, you), (you, they)):
        reconcile(initiator, responder, max_messages=1_000)
        assert you.set == (a | b) - refused_by_you
        assert they.set == (a | b) - refused_by_them
        assert sorted(you.asked_for) == sorted(b - a)
        assert sorted(they.asked_for) == sorted(a - b)


@every_version
def test_very_many_refused_events_take_no_more_rounds(version: MakeSession) -> None:
    """More than may be given up; they interleave, and are all that the sides differ in."""
    shared = numbered(0, 1_200)
    yours, theirs = ({b"%06d%c" % (n, side) for n in range(1_200)} for side in b"-+")
    you = Peer(shared | yours, session=version, refuses=frozenset(theirs))
    they = Peer(shared | theirs, session=version, refuses=frozenset(yours))
    for initiator, responder in ((you, they), (they, you)):
        asking, answering, sent = reconcile(initiator, responder)
        assert (asking.side.left_out, answering.side.left_out) == (1_200, 1_200)
        assert len(sent) <= 12
    assert (len(you.asked_for), len(they.asked_for)) == (1_200, 1_200)
    late = {b"%06d?" % n for n in range(0, 1_200, 100)}
    they.store.load(late)
    reconcile(you, they)
    assert you.set == shared | yours | late


RANGES = st.lists(
    st.builds(KeyRange, st.binary(max_size=1), st.binary(min_size=1, max_size=2)), max_size=4
)


@every_version
@given(KEYS, KEYS, RANGES, RANGES, SETTINGS)
def test_only_what_interests_both_is_reconciled(version, a, b, yours, theirs, settings):
    """All sessions of an initiator, one for each overlap, give the common interests and no more."""

    you, they = Peer(a, settings, session=version), Peer(b, session=version)
    todo = [key_range for key_range in yours if not key_range.is_empty]
    while todo:
        asking = version(Side.initiator(you.store, todo.pop(), settings))
        answering = version(Side.responder(they.store, theirs))
        talk(turn_of(asking.start()), [(they, answering), (you, asking)])
        assert asking.side.done
        if asking.side.remaining is not None:
            todo.append(asking.side.remaining)
    common = intersect_ranges(yours, theirs)
    shared = {key for key in a | b if any(key_range.covers(key) for key_range in common)}
    assert you.set == a | shared
    assert they.set == b | shared


@every_version
def test_rounds_grow_with_the_logarithm(version: MakeSession) -> None:
    you, they = (
        Peer(numbered(0, 10_000), session=version),
        Peer(numbered(0, 10_000), session=version),
    )
    they.store.add(b"005000+")
    _, _, sent = reconcile(you, they)
    assert you.set == they.set
    assert len(sent) <= 12


@every_version
def test_turns_out_of_order_are_our_own_fault(version: MakeSession) -> None:
    peer = Peer(numbered(0, 9), session=version)
    session = peer.asks()
    with pytest.raises(LocalProtocolError, match="respond"):
        session.side.respond()
    turn_of(session.start())
    with pytest.raises(LocalProtocolError, match="start"):
        turn_of(session.start())
    with pytest.raises(LocalProtocolError, match="respond"):
        session.side.respond()
    with pytest.raises(LocalProtocolError, match="range"):
        version(Side.initiator(peer.store, KeyRange(b"b", b"b")))


@every_version
def test_a_message_out_of_turn_is_the_peers_fault(version: MakeSession) -> None:
    peer = Peer(numbered(0, 9), session=version)
    (opening,) = turn_of(peer.asks().start())
    with pytest.raises(RemoteProtocolError, match="spoke first"):
        turn_of(peer.asks().receive(opening))
    answering = peer.answers()
    answering.side.receive()
    with pytest.raises(RemoteProtocolError, match="before its turn was answered"):
        turn_of(answering.receive(opening))


@every_version
def test_a_message_after_the_end_is_the_peers_fault(version: MakeSession) -> None:
    you, they = Peer(numbered(0, 9), session=version), Peer(numbered(0, 9), session=version)
    *sessions, sent = reconcile(you, they)
    for session in sessions:
        for message in sent:
            with pytest.raises(RemoteProtocolError, match="after the end of the session"):
                turn_of(session.receive(message))


MIB = 1 << 20
RANGE = KeyRange(*network_range(IN_MEMORY))


def fetch_into(store: KeyStore, action: Fetch | FetchById) -> Failed | None:
    if isinstance(action, FetchById):
        return None
    for key in action.keys:
        store.add(key)
    return Failed()


@pytest.mark.long
@pytest.mark.parametrize(
    ("protocol", "message_bytes", "most_rounds", "most_bytes"),
    [
        (RECON_1_0, MIB, 20, 20_000_000),
        (RECON_1_0, 8 * MIB, 6, 20_000_000),
        (RECON_1_2, MIB, 5, 6_000_000),
    ],
)
def test_a_million_keys(protocol, message_bytes, most_rounds, most_bytes):
    everything = event_ids(1_000_000, seed=1)
    differing = random.Random(1).sample(everything, 10_000)
    ours, theirs = set(everything), set(everything)
    ours.difference_update(differing[::2])
    theirs.difference_update(differing[1::2])
    a, b = KeyStore(ours), KeyStore(theirs)
    settings = SessionSettings(message_bytes=message_bytes)
    asking = protocol.session(Side.initiator(a, RANGE, settings))
    sides = [(protocol.session(Side.responder(b, [RANGE], settings)), b), (asking, a)]
    turn, sent = turn_of(asking.start()), 0
    while turn:
        session, store = sides[0]
        sides.reverse()
        for message in turn:
            frame = protocol.encode(message)
            assert len(frame) <= message_bytes
            sent += len(frame)
            answer = turn_of(session.receive(protocol.decode(frame)), partial(fetch_into, store))
        turn = answer
    assert len(a) == len(b) == len(everything)
    assert a.summarize() == b.summarize()
    assert asking.side.rounds <= most_rounds
    assert sent <= most_bytes
