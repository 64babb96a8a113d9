"""Ranges on `/ceramic/recon/1.2.0`: how gaps may be cut, and what a peer may not do with them."""

import hashlib
from collections.abc import Sequence
from itertools import pairwise

import pytest
from peers import gaps_of

from recon_node.ceramic import IN_MEMORY, EventId, network_range
from recon_node.ipld import CID, DAG_CBOR
from recon_node.recon import (
    Failed,
    Fetch,
    KeyRange,
    KeyStore,
    RemoteProtocolError,
    Sha256a,
    Side,
    turn_of,
)
from recon_node.recon.coded.coded_session import CodedSession
from recon_node.recon.coded.messages import (
    END,
    Body,
    Conclusion,
    Gaps,
    Message,
    Mode,
    decode_message,
    encode_message,
    fingerprint,
)
from recon_node.recon.keys.key_hashes import LtHash
from recon_node.recon.keys.ordered_keys import separator

RANGE = KeyRange(*network_range(IN_MEMORY))
DIGEST = bytes(range(32))
PRINT = DIGEST[:16]


def event_id(number: int) -> EventId:
    cid = CID.of(DAG_CBOR, b"%d" % number)
    return EventId.build(IN_MEMORY, "sort value", f"did:key:{number % 7}", cid, number % 3, cid)


KEYS = sorted(map(event_id, range(60)))
CUTS = [separator(a, b) for a, b in pairwise(KEYS)]


def test_a_fingerprint_is_half_a_hash_of_sum_and_count() -> None:
    from_outside = (Sha256a.of(b"ape") + Sha256a.of(b"bee")).digest + b"\x02"
    assert (
        fingerprint(KeyStore([b"ape", b"bee"]).lanes_of_all)
        == hashlib.sha256(from_outside).digest()[:16]
    )


def just_below(key: bytes) -> bytes:
    """Return a string below a key (of at most 256 bytes) and above all keys that are below it."""
    stem, last = key[:-1], key[-1]
    return stem + bytes((last - 1,)) + b"\xff" * 256 if last else stem


def test_a_bound_may_be_a_key_of_the_gap_above_it() -> None:
    """As another implementation may cut its gaps; ours never does."""
    store = KeyStore(KEYS)
    session = CodedSession(Side.responder(store, [RANGE]))
    parts = [KeyRange(RANGE.lower, KEYS[7]), KeyRange(just_below(KEYS[7]), RANGE.upper)]
    assert [store.summarize(part).count for part in parts] == [7, len(KEYS) - 7]
    below, above = (fingerprint(store.lanes(part)) for part in parts)
    asked = Message(
        RANGE, gaps_of((KEYS[7], Mode.FINGERPRINT, below), (END, Mode.FINGERPRINT, above))
    )
    answer = turn_of(session.receive(decode_message(encode_message(asked))))
    assert answer == [Message(digest=LtHash.of(*KEYS).digest())]

    listed = Message(RANGE, gaps_of((KEYS[7], Mode.SKIP, b""), (END, Mode.KEYS, tuple(KEYS[7:]))))
    assert decode_message(encode_message(listed)) == listed
    session = CodedSession(Side.responder(KeyStore(KEYS[:7]), [RANGE]))
    assert next(session.receive(listed)) == Fetch(KEYS[7:])


def heavy(number: int, *more: tuple[bytes, Mode, Body]) -> Gaps:
    """30,000 gaps with bounds of 256 bytes: 9.6 MB written out, in three bytes each."""
    bound = RANGE.lower[:5] + bytes([number]) * 251
    return gaps_of(*[(bound, Mode.SKIP, b"")] * 30_000, *more)


def one_gap(upper: bytes, mode: Mode, body: Body) -> Message:
    """A message with one gap."""
    return Message(gaps=gaps_of((upper, mode, body)))


def agreed(upper: bytes, *, continues: bool = False) -> Message:
    return Message(gaps=gaps_of((upper, Mode.SKIP, b"")), continues=continues)


OPENING = Message(RANGE, digest=DIGEST)
FEW = KeyRange(RANGE.lower, KEYS[10])
MISMATCHES = [one_gap(END, Mode.FINGERPRINT, number.to_bytes(16, "big")) for number in range(66)]


@pytest.mark.parametrize(
    ("messages", "complaint"),
    [
        ([Message(digest=DIGEST)], "what range"),
        ([OPENING, OPENING], "changed the range"),
        ([Message(conclusion=Conclusion.AGREED)], "AGREED where it answers nothing"),
        ([OPENING, Message(conclusion=Conclusion.REFUSED)], "REFUSED where it answers nothing"),
        ([OPENING, agreed(b"\xff")], "gap that ends outside"),
        ([OPENING, agreed(CUTS[9], continues=True), agreed(CUTS[5])], "gap that ends outside"),
        ([Message(FEW, gaps_of((END, Mode.KEYS, (KEYS[20],))))], "key outside the range"),
        (
            [OPENING, agreed(CUTS[9], continues=True), one_gap(CUTS[20], Mode.KEYS, (KEYS[9],))],
            "key below its gap",
        ),
        ([OPENING, *(agreed(cut, continues=True) for cut in CUTS[:16])], "more than 16 messages"),
        ([OPENING, *MISMATCHES], "no progress in 65 rounds"),
        ([OPENING, *[one_gap(END, Mode.KEYS, ())] * 66], "no progress in 65 rounds"),
    ],
)
def test_what_a_peer_may_not_do(messages: Sequence[Message], complaint: str) -> None:
    session = CodedSession(Side.responder(KeyStore(KEYS[:30]), [RANGE]))
    *before, last = messages
    for message in before:
        assert bool(turn_of(session.receive(message))) is not message.continues
    with pytest.raises(RemoteProtocolError, match=complaint):
        turn_of(session.receive(last))


def test_listing_keys_that_cannot_be_had() -> None:
    session = CodedSession(Side.responder(KeyStore(), [RANGE]))
    keys = tuple(sorted({event_id(n) for n in range(1_001)}))
    actions = session.receive(Message(RANGE, gaps_of((END, Mode.KEYS, keys))))
    with pytest.raises(RemoteProtocolError, match="1001 keys"):
        turn_of(actions, lambda action: Failed(keys))


def test_a_digest_that_is_never_right_ends_the_session() -> None:
    session = CodedSession(Side.responder(KeyStore(KEYS[:30]), [RANGE]))
    answers = turn_of(session.receive(OPENING))
    while not session.side.done:
        answers += turn_of(session.receive(Message(digest=DIGEST)))
        assert len(answers) < 20
    assert answers[-1].conclusion is Conclusion.AGREED


def test_a_turn_that_swells_in_memory_is_refused_and_earlier_turns_do_not_count() -> None:
    session = CodedSession(Side.responder(KeyStore(KEYS), [RANGE]))
    turn_of(session.receive(OPENING))
    for number in range(1, 4):
        turn_of(session.receive(Message(gaps=heavy(number, (END, Mode.FINGERPRINT, PRINT)))))
    for number in range(1, 11):
        turn_of(session.receive(Message(gaps=heavy(number), continues=True)))
    with pytest.raises(RemoteProtocolError, match=r"a turn of [\d,]+ bytes, written out"):
        turn_of(session.receive(Message(gaps=heavy(11), continues=True)))
