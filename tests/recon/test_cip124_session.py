"""Sessions on `/ceramic/recon/1.0.0`: the specification's traces, and what a peer may not do."""

import random
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from peers import EVERYTHING, HIGHEST, LOWEST, Peer, fenced_session, numbered, reconcile, write

from recon_node.recon import (
    ZERO,
    KeyRange,
    KeyStore,
    RemoteProtocolError,
    SessionSettings,
    Sha256a,
    Side,
    merge_ranges,
)
from recon_node.recon.actions import Failed, Fetch, turn_of
from recon_node.recon.cip124.cip124_codec import Cip124Message

WORDS = ("ape", "bee", "cat", "doe", "eel", "fox", "gnu", "hog")
NAMES = {
    Sha256a.of(*(word.encode() for word in words)): f"h({','.join(words)})" if words else "0"
    for size in range(len(WORDS) + 1)
    for words in combinations(WORDS, size)
}
TRACE_SETTINGS = SessionSettings(fan_out=2, list_threshold=0)


def words(*names: str) -> list[bytes]:
    return [name.encode() for name in names]


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


def test_a_push_names_the_new_key_between_two_hashes() -> None:
    """CIP-124, "Abstract": (first, h, new, h, last). Who has the rest answers with the whole."""
    you = Peer(words("bee", "cat", "doe", "eel", "fox", "gnu"), TRACE_SETTINGS)
    they = Peer(words("bee", "cat", "eel", "fox", "gnu"), TRACE_SETTINGS)
    you.news = (KeyRange(b"d", b"e"),)
    _, _, sent = reconcile(you, they, KeyRange(b"ape", b"hog"))
    assert [write(message, NAMES) for message in sent] == [
        "(ape, h(bee,cat), doe, h(eel,fox,gnu), hog)",
        "(ape, h(bee,cat,doe,eel,fox,gnu), hog)",
        "(ape, h(bee,cat,doe,eel,fox,gnu), hog)",
    ]
    assert you.set == they.set


FEW = st.binary(min_size=1, max_size=2)


@given(
    st.sets(FEW, max_size=40),
    st.sets(FEW, max_size=40),
    st.lists(st.tuples(FEW, FEW), max_size=30),
    st.sets(FEW),
)
def test_any_two_sets_converge_whatever_is_new(yours, theirs, news, refused):
    """Also where the receiver does not take what is listed first."""
    you = Peer(yours, session=fenced_session)
    they = Peer(theirs, session=fenced_session, unobtainable=frozenset(refused))
    you.news = tuple(merge_ranges(KeyRange(*sorted(bounds)) for bounds in news))
    _, _, sent = reconcile(you, they)
    assert len(sent[0].bounds) <= 18
    assert set(sent[0].bounds[1:-1]) <= yours
    assert you.set == yours | theirs
    assert they.set == theirs | (yours - refused)


def test_pages_bound_every_message() -> None:
    you = Peer(numbered(0, 5_000), SessionSettings(page_keys=100))
    they = Peer(set())
    _, _, sent = reconcile(you, they)
    assert they.set == you.set
    assert max(len(message.bounds) for message in sent) <= 103


def test_rounds_follow_from_the_size_of_a_message() -> None:
    """Messages alternate, so what does not fit in one takes another round: docs/wire.md."""
    rng = random.Random(7)
    shared = {rng.randbytes(8) for _ in range(20_000)}
    yours = shared | {rng.randbytes(8) for _ in range(250)}
    mine = shared | {rng.randbytes(8) for _ in range(250)}
    rounds = []
    for message_bytes in (4_000, 1 << 20):
        settings = SessionSettings(message_bytes=message_bytes, page_keys=10_000)
        you, they = (Peer(keys, settings, session=fenced_session) for keys in (yours, mine))
        asking, _, sent = reconcile(you, they)
        assert you.set == they.set == yours | mine
        sizes = [sum(map(len, message.bounds)) + 36 * len(message.hashes) for message in sent]
        assert max(sizes) < message_bytes
        rounds.append(asking.side.rounds)
    assert rounds[0] > 20
    assert rounds[1] <= 6


def message(*bounds: bytes, hashes: int | None = None) -> Cip124Message:
    return Cip124Message(bounds, (ZERO,) * (len(bounds) - 1 if hashes is None else hashes))


def receive_checked(session: Any, message: Cip124Message) -> None:
    """Take a message as one that was decoded."""
    message.check()
    turn_of(session.receive(message))


MISMATCHES = [Cip124Message((LOWEST, HIGHEST), (Sha256a.of(b"%d" % n),)) for n in range(68)]


@pytest.mark.parametrize(
    ("messages", "complaint"),
    [
        ([message(LOWEST, b"b", b"a", HIGHEST)], "out of order at bound 2"),
        ([message(LOWEST, b"b", b"b", HIGHEST)], "repeated key at bound 2"),
        ([message(LOWEST, HIGHEST, hashes=2)], "2 bounds and 2 hashes"),
        ([message(LOWEST, LOWEST)], "ended the range"),
        ([message(LOWEST, b"5"), message(LOWEST, HIGHEST)], "not within"),
        (MISMATCHES, "no progress"),
    ],
)
def test_what_a_peer_may_not_do(messages: list[Cip124Message], complaint: str) -> None:
    session = fenced_session(Side.responder(KeyStore(numbered(0, 100)), [EVERYTHING]))
    *before, last = messages
    for key in before:
        assert turn_of(session.receive(key))
    with pytest.raises(RemoteProtocolError, match=complaint):
        receive_checked(session, last)


def test_an_answer_beyond_what_was_asked() -> None:
    session = fenced_session(Side.initiator(KeyStore(numbered(0, 9)), KeyRange(b"1", b"5")))
    turn_of(session.start())
    with pytest.raises(RemoteProtocolError, match="not within"):
        turn_of(session.receive(message(b"1", HIGHEST)))


def test_asking_for_the_same_keys_again_leaves_them_out() -> None:
    session = Peer(numbered(0, 100)).answers()
    for has_ended in (False, True):
        turn_of(session.receive(message(LOWEST, HIGHEST)))
        assert session.side.done is has_ended
    assert session.side.left_out_by_peer == 100


def test_listing_keys_that_cannot_be_had() -> None:
    keys = sorted(numbered(1_000, 2_001))
    actions = Peer(()).answers().receive(message(LOWEST, *keys, HIGHEST))
    assert next(actions) == Fetch(keys)
    with pytest.raises(RemoteProtocolError, match="1001 keys"):
        actions.send(Failed(keys))


@given(
    st.sets(st.binary(min_size=1, max_size=2), max_size=60),
    st.lists(st.binary(max_size=2), min_size=2, max_size=6),
    st.data(),
)
def test_any_message_gets_an_answer_or_a_typed_error(keys, bounds, data):
    hashes = st.lists(
        st.sampled_from([ZERO, Sha256a.of(b"x"), Sha256a.of(*keys)]),
        min_size=len(bounds) - 1,
        max_size=len(bounds) - 1,
    )
    peer = Peer(keys)
    session = peer.answers()
    asked = Cip124Message(tuple(bounds), tuple(data.draw(hashes)))
    try:
        asked.check()
        (reply,) = peer.take(session, asked)
    except RemoteProtocolError:
        return
    reply.check()


def test_keys_for_which_there_was_no_room_do_not_count_as_refused() -> None:
    """Or pages of keys would be listed wherever a message was full."""
    everything = numbered(0, 10_000)
    differing = random.Random(1).sample(sorted(everything), 300)

    def bounds_told(message_bytes: int) -> int:
        chosen = SessionSettings(message_bytes=message_bytes)
        you, they = (
            Peer(everything - set(differing[part::2]), chosen, session=fenced_session)
            for part in (0, 1)
        )
        _, _, sent = reconcile(you, they)
        assert you.set == they.set == everything
        return sum(len(message.bounds) for message in sent)

    assert bounds_told(12_000) < 1.5 * bounds_told(1 << 20)


def test_a_peer_that_repeats_itself_may_still_have_keys_to_tell() -> None:
    """Its one pivot is refused. It lists other keys only when it has told that one twice in vain,
    not counting the message by which it learned keys: so it says the same three times before."""
    settings = SessionSettings(fan_out=2, page_keys=1, list_threshold=0)
    ours = {b"\x00\x01", b"\x00\x02", b"\x01\x00", b"\x02\x01"}
    theirs = {b"\x00\x00", b"\x01\x01", b"\x02\x00", b"\x03\x00"}
    refused, refused_by_them = {b"\x00\x00", b"\x02\x00"}, {b"\x00\x01", b"\x02\x01"}
    you = Peer(
        ours, replace(settings, list_threshold=4), frozenset(refused), session=fenced_session
    )
    they = Peer(theirs, settings, frozenset(refused_by_them), session=fenced_session)
    asking, answering, _ = reconcile(you, they)
    assert you.set == (ours | theirs) - refused
    assert they.set == (ours | theirs) - refused_by_them
    assert (asking.side.left_out, answering.side.left_out) == (2, 2)
