"""Sets with equal sums of hashes, which somebody has made: sessions find their difference.

To make them for real takes minutes, so the sums are weakened here as far as can be: all sets with
the same number of keys have the same fingerprint, in any range.
"""

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from peers import CASES, EVERYTHING, FetchesById, MakeSession, Peer, numbered, reconcile

from recon_node.recon import RemoteProtocolError, turn_of
from recon_node.recon.coded import coded_reply, estimates, messages, salted
from recon_node.recon.coded.coded_session import CodedSession
from recon_node.recon.coded.messages import END, Message, Mode
from recon_node.recon.keys import kept_sums
from recon_node.recon.keys.sha256a import COUNT_SHIFT

EITHER = pytest.mark.parametrize("version", [CodedSession, FetchesById])


@pytest.fixture(scope="module", autouse=True)
def steered() -> Iterator[None]:
    def of_count(lanes: int) -> bytes:
        return messages.fingerprint(lanes >> COUNT_SHIFT << COUNT_SHIFT)

    with pytest.MonkeyPatch.context() as patch:
        for module in (coded_reply, estimates):
            patch.setattr(module, "fingerprint", of_count)
        yield


def differing(number: int, total: int, version: MakeSession) -> tuple[Peer, Peer]:
    """Two peers of which each has as many keys that the other lacks, side by side."""
    common = numbered(0, total)
    pairs = [(b"%06d" % n, b"%06d~" % n) for n in range(1_000, 1_000 + number)]
    ours, theirs = ({pair[side] for pair in pairs} for side in (0, 1))
    common -= ours
    return Peer(common | ours, session=version), Peer(common | theirs, session=version)


@EITHER
@pytest.mark.parametrize("number", [1, 2_000])
def test_symbols_find_the_difference(number: int, version: MakeSession) -> None:
    you, they = differing(number, 10_000, version)
    everything = you.set | they.set
    asking, _, sent = reconcile(you, they)
    assert you.set == they.set == everything
    assert all(message.salt is None for message in sent)
    assert asking.side.rounds <= 4


@EITHER
@pytest.mark.parametrize("number", [1, 2_000])
def test_salted_fingerprints_find_it_where_symbols_do_not(number, version, monkeypatch):
    monkeypatch.setattr(kept_sums, "MAX_SKETCHES", 0)
    you, they = differing(number, 10_000, version)
    everything = you.set | they.set
    _, _, sent = reconcile(you, they)
    assert you.set == they.set == everything
    assert any(message.salt is not None for message in sent)


@EITHER
@settings(max_examples=CASES // 2)
@given(
    st.sets(st.binary(min_size=1, max_size=2), max_size=60),
    st.sets(st.binary(min_size=1, max_size=2), max_size=60),
    st.booleans(),
)
def test_any_two_sets_converge(version, a, b, sketched):
    with pytest.MonkeyPatch.context() as patch:
        if not sketched:
            patch.setattr(kept_sums, "MAX_SKETCHES", 0)
        you, they = Peer(a, session=version), Peer(b, session=version)
        reconcile(you, they)
        assert you.set == they.set == a | b


@EITHER
def test_refused_keys_are_left_out_of_salted_fingerprints(version, monkeypatch):
    monkeypatch.setattr(kept_sums, "MAX_SKETCHES", 0)
    you, they = differing(30, 5_000, version)
    refused = sorted(they.set - you.set)[:10]
    you.unobtainable = frozenset(refused)
    everything = you.set | they.set
    asking, _, _ = reconcile(you, they)
    assert they.set == everything
    assert you.set == everything - set(refused)
    assert asking.side.left_out == 10


# --- what a peer can do ---------------------------------------------------------------------------


def escalated() -> CodedSession:
    """A session in which the peer has closed wrongly until the answer was salted."""
    session = CodedSession(Peer(numbered(0, 3_000)).answers().side)
    digest = bytes(32)
    turn_of(session.receive(Message(EVERYTHING, digest=digest)))
    for _ in range(3):
        answer = turn_of(session.receive(Message(digest=digest)))
    assert answer[-1].salt is not None
    return session


def test_a_salt_where_none_is_due_ends_the_session() -> None:
    session = CodedSession(Peer(numbered(0, 3_000)).answers().side)
    gaps = messages.Gaps([END], [Mode.FINGERPRINT], [bytes(16)])
    with pytest.raises(RemoteProtocolError, match="none were due"):
        turn_of(session.receive(Message(EVERYTHING, gaps=gaps, salt=bytes(16))))


def test_salted_fingerprints_for_ever_end_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(salted, "HASHED_PER_STEP", 10)
    session = escalated()

    def ask_for_ever() -> None:
        for number in range(1_000):
            gaps = messages.Gaps([END], [Mode.FINGERPRINT], [number.to_bytes(16)])
            turn_of(session.receive(Message(gaps=gaps, salt=number.to_bytes(16))))

    with pytest.raises(RemoteProtocolError, match="again and again"):
        ask_for_ever()
    assert session._answers.salted.hashed < 20 * 3_000
