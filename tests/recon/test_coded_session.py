"""Sessions on 1.2.0: which way they go, what that costs, and what a hostile peer can do."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from peers import EVERYTHING, FetchesById, Peer, gaps_of, numbered, reconcile, talk

from recon_node.recon import (
    Failed,
    Fetch,
    FetchById,
    KeyRange,
    KeyStore,
    RemoteProtocolError,
    SessionSettings,
    Side,
    turn_of,
)
from recon_node.recon.coded import RECON_1_2, coded_answers, estimates
from recon_node.recon.coded.coded_session import CodedSession
from recon_node.recon.coded.messages import (
    END,
    Conclusion,
    Estimate,
    Gaps,
    Listed,
    Message,
    Mode,
)
from recon_node.recon.keys import kept_sums, key_hashes
from recon_node.recon.keys.key_hashes import NO_IDS, Ids
from recon_node.recon.keys.sketch import MAX_SYMBOLS, Symbols


def sides(common: int, differing: set[int], session: Any = FetchesById) -> tuple[Peer, Peer]:
    """Two peers with some keys in common; of those that differ, every other one is on one side."""
    shared = numbered(0, common) - {b"%06d" % n for n in differing}
    ordered = sorted(b"%06d" % n for n in differing)
    return (
        Peer(shared | set(ordered[::2]), session=session),
        Peer(shared | set(ordered[1::2]), session=session),
    )


def size_of(sent: list[Message]) -> int:
    return sum(len(RECON_1_2.encode(message)) for message in sent)


def listed_in_full(sent: list[Message]) -> int:
    return sum(len(message.gaps.keys()) for message in sent)


def converge(you: Peer, they: Peer, key_range: KeyRange = EVERYTHING) -> tuple[int, list[Message]]:
    """Run a session after which both hold all keys; return its rounds and messages."""
    union = you.set | they.set
    asking, _, sent = reconcile(you, they, key_range)
    assert you.set == they.set == union
    return asking.side.rounds, sent


# --- the way that a session goes -----------------------------------------------------------------


def test_one_difference_takes_two_rounds_and_no_key() -> None:
    rounds, sent = converge(*sides(5_000, {1_234}))
    assert (rounds, listed_in_full(sent)) == (2, 0)
    assert size_of(sent) < 600


def test_scattered_differences_are_decoded() -> None:
    rounds, sent = converge(*sides(20_000, set(range(0, 20_000, 50))))
    assert rounds == 2
    assert [len(message.symbols or ()) > 8 for message in sent] == [
        False,
        False,
        True,
        False,
        False,
    ]
    assert size_of(sent) < 400 * 35


def test_differences_close_together_go_by_ranges() -> None:
    rounds, sent = converge(*sides(20_000, set(range(7_000, 7_900))))
    assert rounds <= 4
    assert all(message.symbols is None or message.estimate for message in sent)
    assert size_of(sent) < 900 * 27


def test_few_keys_are_listed_at_once() -> None:
    rounds, sent = converge(*sides(20, {3, 5, 7}))
    assert rounds <= 2
    assert all(message.symbols is None for message in sent)


@pytest.mark.parametrize("here", [1, 16])
@pytest.mark.parametrize("there", [0, 1, 1_000])
def test_what_a_push_is_about_arrives_in_one_round_trip(here: int, there: int) -> None:
    """The responder may hold any number of other keys, which the range does not reach."""
    new = {b"5%05d" % n for n in range(here)}
    you = Peer(new | numbered(0, 10), session=FetchesById)
    they = Peer(numbered(0, there), session=FetchesById)
    asking, _, sent = reconcile(you, they, KeyRange(b"5", b"6"))
    assert new <= they.set
    assert asking.side.rounds == 1
    assert size_of(sent) < 70 + 8 * here


def test_both_sides_have_news_of_a_few_keys() -> None:
    rounds, sent = converge(*sides(16, {3, 4, 5, 6, 7}))
    assert (rounds, len(sent), listed_in_full(sent)) == (1, 3, 0)


def test_only_a_handful_of_keys_is_listed_before_it_is_asked_for() -> None:
    for keys in (16, 17):
        you, they = sides(keys, set())
        _, _, (opening, _) = reconcile(you, they)
        assert len(opening.listed) == (keys == 16)


def test_what_is_listed_beyond_the_interest_is_not_fetched() -> None:
    you = Peer({b"1", b"3", b"5", b"7", b"9"}, session=FetchesById)
    they = Peer({b"5"}, interests=(KeyRange(b"2", b"8"),), session=FetchesById)
    asking, answering, _ = reconcile(you, they)  # a fetch asserts that its keys are in the range
    assert they.set == {b"3", b"5", b"7"}
    assert asking.side.remaining == KeyRange(b"8", EVERYTHING.upper)
    assert answering.side.left_out_keys == []


def test_an_opening_may_list_a_part_of_the_range_only() -> None:
    you, they = sides(40, {1, 3, 25, 27})
    session, other = they.answers(), you.asks()
    (opening,) = turn_of(other.start())
    part = Gaps([b"000010"], [Mode.KEYS], [(b"000001",)])
    talk([replace(opening, gaps=part)], [(they, session), (you, other)])
    assert session.side.done
    assert other.side.done
    assert you.set == they.set == numbered(0, 40)


@pytest.mark.parametrize("empty", ["initiator", "responder"])
def test_a_whole_set_is_listed_by_ids_in_pages(empty: str) -> None:
    pages = SessionSettings(page_ids=4096)
    full, none = (Peer(keys, pages, session=FetchesById) for keys in (numbered(0, 10_000), ()))
    rounds, sent = converge(*((none, full) if empty == "initiator" else (full, none)))
    assert rounds <= 5
    assert listed_in_full(sent) == 0
    assert size_of(sent) < 10_000 * 9 + 1_000


def test_more_differences_than_symbols_go_by_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coded_answers, "MAX_SYMBOLS", 100)
    monkeypatch.setattr(estimates, "MAX_SYMBOLS", 100)
    _, sent = converge(*sides(5_000, set(range(0, 5_000, 7))))
    assert all(len(message.symbols or ()) <= 8 for message in sent)


def test_too_few_symbols_are_answered_with_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimates, "symbols_for", lambda number: number + 1)
    rounds, sent = converge(*sides(20_000, set(range(0, 20_000, 100))))
    numbers = [len(message.symbols) for message in sent if message.symbols is not None]
    assert numbers[0] == 8 < numbers[1] < numbers[2] <= 2 * numbers[1]
    assert rounds <= 7


def test_no_sketch_goes_by_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_sums, "MAX_SKETCHES", 0)
    _, sent = converge(*sides(5_000, {1, 2_000, 4_000}))
    assert all(message.symbols is None for message in sent)


def test_a_long_range_that_is_not_an_interest_of_ours_is_not_sketched(monkeypatch):
    monkeypatch.setattr(coded_answers, "_MAX_SKETCHED", 1_000)
    _, sent = converge(*sides(5_000, {1_500, 2_000, 4_000}), KeyRange(b"001000", b"004500"))
    assert sent[1].estimate is None


@pytest.mark.parametrize(
    ("common", "differing", "lister"), [(5_000, {1, 2_000, 4_000}, 1), (10, {2}, 0)]
)
def test_what_is_not_delivered_by_id_is_asked_for_in_full(common, differing, lister):
    """Whether symbols told of it, or a list."""
    both = sides(common, differing)
    both[lister].not_supplied = frozenset([b"002000", b"000002"])
    _, sent = converge(*both)
    assert listed_in_full(sent) == 1


def test_a_peer_that_delivers_nothing_it_names_is_cut_off() -> None:
    you, they = sides(5_000, set(range(0, 5_000, 10)))
    you.settings = replace(you.settings, max_not_supplied=100)
    they.not_supplied = frozenset(they.set)
    with pytest.raises(RemoteProtocolError, match="250 ids for which it delivered no event"):
        reconcile(you, they)


def narrow_ids(monkeypatch: pytest.MonkeyPatch, bits: int) -> None:
    """Make many keys have the same id, as an attacker would with much work."""

    def ids_of(digests: bytes) -> Ids:
        mask = np.uint64(2**bits - 1)
        return np.ascontiguousarray(np.frombuffer(digests, "<u8")[::4] & mask)

    monkeypatch.setattr("recon_node.recon.keys.lookups.ids_of", ids_of)
    monkeypatch.setattr("recon_node.recon.keys.kept_sums.ids_of", ids_of)
    assert key_hashes.ids_of is not ids_of


@given(st.sets(st.integers(0, 400), max_size=60), st.integers(0, 12), st.integers(1, 8))
def test_keys_with_equal_ids_are_reconciled_all_the_same(differing, bits, threshold):
    with pytest.MonkeyPatch.context() as monkeypatch:
        narrow_ids(monkeypatch, bits)
        you, they = sides(400, differing, CodedSession)
        you.settings = they.settings = SessionSettings(list_threshold=threshold)
        converge(you, they)


# --- what a peer can do ---------------------------------------------------------------------------


def opened() -> tuple[CodedSession, Message]:
    """A session that was opened, and an honest answer to that: an estimate."""
    you, they = sides(1_000, set(range(0, 1_000, 9)), CodedSession)
    asking, answering = you.asks(), they.answers()
    (answer,) = turn_of(answering.receive(*turn_of(asking.start())))
    assert answer.estimate is not None
    return asking, answer


def symbols(number: int) -> Symbols:
    rng = np.random.default_rng(number)
    return Symbols(
        rng.integers(0, 2**64, number, np.uint64),
        rng.integers(0, 2**32, number, np.uint32),
        rng.integers(0, 2**8, number, np.uint8),
    )


BAD_ANSWERS: dict[str, Callable[[Message], Message]] = {
    "symbols beside gaps": lambda good: replace(good, gaps=gaps_of((END, Mode.SKIP, b""))),
    "symbols beside a digest": lambda good: replace(good, digest=bytes(32)),
    "an estimate without symbols": lambda good: replace(good, symbols=None),
    "symbols without an estimate": lambda good: replace(good, estimate=None),
    "parts outside the range": lambda good: replace(
        good, estimate=Estimate(bytes(96), (EVERYTHING.upper + b"x",), (b"1234", b"1234"))
    ),
}


@pytest.mark.parametrize("bad", BAD_ANSWERS.values(), ids=BAD_ANSWERS)
def test_symbols_where_none_are_due_end_the_session(bad: Callable[[Message], Message]) -> None:
    asking, answer = opened()
    with pytest.raises(RemoteProtocolError):
        turn_of(asking.receive(bad(answer)))


def test_symbols_that_were_not_asked_for_end_the_session() -> None:
    answering = Peer(numbered(0, 100), session=CodedSession).answers()
    with pytest.raises(RemoteProtocolError):
        turn_of(answering.receive(Message(symbols=symbols(9))))


def test_symbols_of_no_set_are_answered_within_bounds() -> None:
    """First with more of our own, then by ranges: the peer gains nothing, and time is bounded."""
    you, they = sides(1_000, set(range(0, 1_000, 9)), CodedSession)
    asking, answering = you.asks(), they.answers()
    turn_of(answering.receive(*turn_of(asking.start())))
    for number, is_answered_by_symbols in ((500, True), (2_000, False)):
        (answer,) = turn_of(answering.receive(Message(symbols=symbols(number))))
        assert (answer.symbols is not None) is is_answered_by_symbols


def repeat(
    session: CodedSession, message: Message, fetch: Callable[[Fetch | FetchById], Failed]
) -> None:
    for _ in range(100):
        turn_of(session.receive(message), fetch)


def test_a_peer_that_estimates_for_ever_is_cut_off() -> None:
    asking, answer = opened()
    with pytest.raises(RemoteProtocolError):
        repeat(asking, answer, lambda action: Failed())


def test_ids_of_nothing_that_repeat_for_ever_are_cut_off() -> None:
    asking, _ = opened()
    asking.side.settings = replace(asking.side.settings, max_idle_rounds=20)
    lists = [Listed(np.arange(1, 50, dtype=np.uint64), NO_IDS)]
    message = Message(gaps=gaps_of((END, Mode.LACKING, ())), listed=lists)
    failed = Failed(ids=[n.to_bytes(8, "little") for n in range(1, 50)])
    with pytest.raises(RemoteProtocolError):
        repeat(asking, message, lambda action: failed)


def test_an_id_that_is_in_many_lists_is_asked_for_once_and_is_no_progress() -> None:
    asking, _ = opened()
    asking.side.settings = replace(asking.side.settings, max_idle_rounds=20)
    bounds = [asking.side.keys.nth(EVERYTHING, rank) for rank in range(1, 50)]
    gaps = gaps_of(*((bound, Mode.LACKING, ()) for bound in (*bounds, END)))
    same = np.array([7], np.uint64)
    message = Message(gaps=gaps, listed=[Listed(same, NO_IDS)] * 50)
    asked = list[list[bytes]]()

    def fetch(action: Fetch | FetchById) -> Failed:
        assert isinstance(action, FetchById)
        asked.append(action.sought.ids)
        return Failed(ids=action.sought.ids)

    with pytest.raises(RemoteProtocolError, match="progress"):
        repeat(asking, message, fetch)
    assert asked == [[same.tobytes()]] * len(asked)


def test_an_estimate_of_anything_is_answered() -> None:
    rng = np.random.default_rng(5)
    for _ in range(12):
        asking, answer = opened()
        wrong = replace(
            answer,
            count=int(rng.integers(0, 2**60)),
            estimate=answer.estimate._replace(table=rng.bytes(96)),
            symbols=symbols(8),
        )
        (reply, *_) = turn_of(asking.receive(wrong))
        assert reply.symbols is None or len(reply.symbols) <= MAX_SYMBOLS


class CountingStore(KeyStore):
    """Counts how often it is asked for a key."""

    __slots__ = ("asked",)

    def __contains__(self, key: object) -> bool:
        self.asked = getattr(self, "asked", 0) + 1
        return super().__contains__(key)


def test_keys_left_out_from_the_start_are_looked_up_once_and_paid() -> None:
    """There may be 65,536 of them in each session, which anybody starts with some bytes."""
    refused, keys = [b"z%05d" % number for number in range(3_000)], numbered(0, 20)
    store = CountingStore(keys)
    answering = CodedSession(Side.responder(store, [EVERYTHING]))
    answering.side.leave_out_unwanted(refused)
    asking = CodedSession(Side.initiator(KeyStore([*keys, *refused]), EVERYTHING))
    (opening,) = turn_of(asking.start())
    (answer,) = turn_of(answering.receive(opening))
    assert answer.conclusion is Conclusion.AGREED
    assert answering.side.left_out == answer.left_out.number == len(refused)
    assert store.asked <= len(refused) + 2 * len(keys)
    assert store.session_cost == kept_sums.HASH_COST * len(refused)
    store.add(refused[7])
    assert answering.side.left_out == len(refused) - 1
