"""Ranges on `/ceramic/recon/1.2.0`: their bytes, as docs/wire.md has them, and their misuse."""

from __future__ import annotations

import hashlib
from itertools import pairwise

import pytest
from drawn_messages import DIGEST, KEYS, PRINT, RANGE, event_id
from peers import gaps_of

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
from recon_node.recon.coded.encoding import decode_message, encode_message
from recon_node.recon.coded.messages import (
    END,
    MAX_BOUND,
    MAX_WEIGHT,
    Body,
    Gaps,
    Message,
    MessageFlag,
    Say,
    fingerprint,
    weigh,
)
from recon_node.recon.keys.ranges import separator
from recon_node.recon.keys.sketch import LtHash


def test_a_message_byte_by_byte() -> None:
    cut = separator(KEYS[3], KEYS[4])
    shared = 5  # of cut and of KEYS[4] with the range's lower bound: ce0105ff01
    message = Message(RANGE, gaps_of((cut, Say.FINGERPRINT, PRINT), (END, Say.KEYS, (KEYS[4],))))
    lower, upper = RANGE
    assert cut[:shared] == lower[:shared] == upper[:shared] == bytes.fromhex("ce0105ff01")
    inside = len(cut) - 1  # KEYS[4] begins with cut
    assert KEYS[4].startswith(cut)
    assert encode_message(message) == b"".join(
        (
            b"\x00\x01",
            bytes((0, len(lower))) + lower,
            bytes((shared, len(upper) - shared)) + upper[shared:],
            bytes((4 * shared + 1, len(cut) - shared)) + cut[shared:] + PRINT,
            bytes((2, 0)) + b"\x01",
            bytes((inside + 1, len(KEYS[4]) - inside - 1)) + KEYS[4][inside + 1 :],
        )
    )
    assert encode_message(Message(verdict=MessageFlag.AGREED)) == b"\x00\x04"
    assert encode_message(Message(verdict=MessageFlag.REFUSED)) == b"\x00\x08"


def test_a_fingerprint_is_half_a_hash_of_sum_and_count() -> None:
    store = KeyStore([b"ape", b"bee"])
    from_outside = (Sha256a.of(b"ape") + Sha256a.of(b"bee")).digest + b"\x02"

    assert fingerprint(store.total) == hashlib.sha256(from_outside).digest()[:16]


@pytest.mark.parametrize(
    ("raw", "complaint"),
    [
        ("", "ends too early"),
        ("00", "ends too early"),
        ("00" + "40", "unknown flags"),
        ("00" + "20", "LEFT_OUT without"),
        ("00" + "28" + "01" + "00" * 32, "LEFT_OUT without"),
        ("00" + "24" + "00" + "00" * 32, "LEFT_OUT of 0 keys"),
        ("00" + "24" + "01" + "00" * 31, "ends too early"),
        ("00" + "2c" + "01" + "00" * 32, "with other flags"),
        ("00" + "0c", "with other flags"),
        ("00" + "05", "end within the varint"),
        ("00" + "040000", "gaps after AGREED"),
        ("00" + "02" + "00" * 31, "ends too early"),
        ("00" + "10", "GOES_ON at the end"),
        ("00" + "000100", "ends too early"),
        ("00" + "000000" + "0000", "bytes follow the last gap"),
        ("00" + "00" + "04" + "01" + "61", "shared|bound of"),
        ("00" + "00" + "0002" + "6262" + "0001" + "61", "out of order"),
        ("00" + "00" + "0002" + "6262" + "0401" + "62", "shares more"),
        ("00" + "00" + "0002" + "6262" + "0400", "prefix"),
        ("00" + "00" + "0200" + "01" + "0001" + "61", "no EventId"),
        ("00" + "00" + "00" + "ff7f" + "61", "bound of"),
        ("00" + "00" + "8000" + "0161", "minimal|shortest|varint"),
        ("00" + "00" + "0200" + "ffffffff0f", "ends too early|varint"),
    ],
)
def test_malformed_messages_are_refused(raw: str, complaint: str) -> None:
    with pytest.raises(RemoteProtocolError, match=complaint):
        decode_message(bytes.fromhex(raw))


def test_lists_refuse_fenceposts_repeats_and_keys_beyond_their_gap() -> None:
    cut = separator(KEYS[3], KEYS[4])
    for keys, complaint in (
        ((RANGE.lower,), "fencepost"),
        ((KEYS[1], KEYS[1]), "out of order, or repeated"),
        ((KEYS[2], KEYS[1]), "out of order, or repeated"),
        ((KEYS[4],), "outside its gap"),
    ):
        message = Message(None, gaps_of((cut, Say.KEYS, keys)))
        with pytest.raises(RemoteProtocolError, match=complaint):
            decode_message(encode_message(message))


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
        RANGE, gaps_of((KEYS[7], Say.FINGERPRINT, below), (END, Say.FINGERPRINT, above))
    )
    answer = turn_of(session.receive(decode_message(encode_message(asked))))
    assert answer == [Message(closing=LtHash.of(*KEYS).digest())]

    listed = Message(RANGE, gaps_of((KEYS[7], Say.AGREED, b""), (END, Say.KEYS, tuple(KEYS[7:]))))
    assert decode_message(encode_message(listed)) == listed
    session = CodedSession(Side.responder(KeyStore(KEYS[:7]), [RANGE]))
    assert next(session.receive(listed)) == Fetch(KEYS[7:])


class TestRemoteProtocolErrors:
    """What a peer may not do in a session."""

    def responder(self) -> CodedSession:
        return CodedSession(Side.responder(KeyStore(KEYS[:30]), [RANGE]))

    def opened(self) -> CodedSession:
        session = self.responder()
        turn_of(session.receive(Message(RANGE, closing=DIGEST)))
        return session

    def test_no_range(self) -> None:
        with pytest.raises(RemoteProtocolError, match="what range"):
            turn_of(self.responder().receive(Message(closing=DIGEST)))

    def test_another_range_later(self) -> None:
        with pytest.raises(RemoteProtocolError, match="changed the range"):
            turn_of(self.opened().receive(Message(RANGE, closing=DIGEST)))

    def test_a_verdict_on_nothing(self) -> None:
        with pytest.raises(RemoteProtocolError, match="AGREED to nothing"):
            turn_of(self.responder().receive(Message(verdict=MessageFlag.AGREED)))
        with pytest.raises(RemoteProtocolError, match="REFUSED to nothing"):
            turn_of(self.opened().receive(Message(verdict=MessageFlag.REFUSED)))

    def test_a_gap_beyond_the_range(self) -> None:
        with pytest.raises(RemoteProtocolError, match="gap ends outside"):
            turn_of(self.opened().receive(Message(gaps=gaps_of((b"\xff", Say.AGREED, b"")))))

    def test_a_key_beyond_the_range(self) -> None:
        few = KeyRange(RANGE.lower, KEYS[10])
        session = CodedSession(Side.responder(KeyStore(), [RANGE]))
        keys = (KEYS[20],)
        with pytest.raises(RemoteProtocolError, match="key outside the range"):
            turn_of(session.receive(Message(few, gaps_of((END, Say.KEYS, keys)))))

    def test_a_key_below_its_gap(self) -> None:
        session = self.opened()
        cuts = [separator(a, b) for a, b in pairwise(KEYS)]
        turn_of(session.receive(Message(gaps=gaps_of((cuts[9], Say.AGREED, b"")), goes_on=True)))
        with pytest.raises(RemoteProtocolError, match="key below its gap"):
            turn_of(session.receive(Message(gaps=gaps_of((cuts[20], Say.KEYS, (KEYS[9],))))))

    def test_a_mismatch_for_ever(self) -> None:
        session = self.opened()

        def mismatch() -> None:
            for number in range(1_000):
                digest = number.to_bytes(16, "big")
                turn_of(session.receive(Message(gaps=gaps_of((END, Say.FINGERPRINT, digest)))))

        with pytest.raises(RemoteProtocolError, match="no progress in 65 rounds"):
            mismatch()

    def test_asking_for_the_same_keys_for_ever(self) -> None:
        session = self.opened()

        def ask() -> None:
            for _ in range(1_000):
                turn_of(session.receive(Message(gaps=gaps_of((END, Say.KEYS, ())))))

        with pytest.raises(RemoteProtocolError, match="no progress in 65 rounds"):
            ask()

    def test_listing_keys_that_cannot_be_had(self) -> None:
        session = CodedSession(Side.responder(KeyStore(), [RANGE]))
        keys = tuple(sorted({event_id(n) for n in range(1_001)}))
        actions = session.receive(Message(RANGE, gaps_of((END, Say.KEYS, keys))))
        with pytest.raises(RemoteProtocolError, match="1001 keys"):
            turn_of(actions, lambda action: Failed(keys))

    def test_a_turn_that_goes_back(self) -> None:
        session = self.opened()
        cuts = [separator(a, b) for a, b in pairwise(KEYS)]
        turn_of(session.receive(Message(gaps=gaps_of((cuts[9], Say.AGREED, b"")), goes_on=True)))
        assert not session.side.answer_due
        with pytest.raises(RemoteProtocolError, match="gap ends outside"):
            turn_of(session.receive(Message(gaps=gaps_of((cuts[5], Say.AGREED, b"")))))

    def test_a_turn_without_end(self) -> None:
        session = self.opened()
        cuts = [separator(a, b) for a, b in pairwise(KEYS)]
        for cut in cuts[:15]:
            turn_of(session.receive(Message(gaps=gaps_of((cut, Say.AGREED, b"")), goes_on=True)))
        with pytest.raises(RemoteProtocolError, match="more than 16 messages"):
            turn_of(
                session.receive(Message(gaps=gaps_of((cuts[15], Say.AGREED, b"")), goes_on=True))
            )

    def test_a_closing_that_is_never_right(self) -> None:
        session = self.opened()
        answers = []
        while not session.side.done:
            answers += turn_of(session.receive(Message(closing=DIGEST)))
            assert len(answers) < 20
        assert answers[-1].verdict is MessageFlag.AGREED


def heavy(number: int, *more: tuple[bytes, Say, Body]) -> Gaps:
    """30,000 gaps with bounds of 256 bytes: 9.6 MB written out, in three bytes each."""
    gaps = Gaps()
    for _ in range(30_000):
        gaps.append(RANGE.lower[:5] + bytes([number]) * 251, Say.AGREED)
    for gap in more:
        gaps.append(*gap)
    return gaps


def test_a_turn_that_swells_in_memory_is_refused() -> None:
    session = CodedSession(Side.responder(KeyStore(), [RANGE]))
    turn_of(session.receive(Message(RANGE, heavy(1), goes_on=True)))
    for number in range(2, 11):
        turn_of(session.receive(Message(gaps=heavy(number), goes_on=True)))
    with pytest.raises(RemoteProtocolError, match=r"a turn of [\d,]+ bytes, written out"):
        turn_of(session.receive(Message(gaps=heavy(11), goes_on=True)))


def test_what_earlier_turns_had_does_not_count() -> None:
    session = CodedSession(Side.responder(KeyStore(KEYS), [RANGE]))
    turn_of(session.receive(Message(RANGE, closing=DIGEST)))
    for number in range(1, 20):
        turn_of(session.receive(Message(gaps=heavy(number, (END, Say.FINGERPRINT, PRINT)))))
    assert not session.side.done


def test_a_message_that_swells_in_memory_is_refused_while_it_is_read() -> None:
    def swelling(bounds: int) -> bytes:
        gaps = Gaps()
        for number in range(bounds):
            gaps.append(b"\x80" * (MAX_BOUND - 3) + number.to_bytes(3, "big"), Say.AGREED)
        return encode_message(Message(gaps=gaps))

    most = MAX_WEIGHT * (1 << 20) // (MAX_BOUND + 64)
    assert len(swelling(most)) < 1 << 18
    assert weigh(decode_message(swelling(most))) >= MAX_WEIGHT * (1 << 20) - MAX_BOUND
    with pytest.raises(RemoteProtocolError, match="too much memory"):
        decode_message(swelling(most + 2))
