"""The peer book: who is chosen, who is left alone for how long, and what outlives a restart."""

import json
import math
from collections import Counter
from pathlib import Path
from random import Random

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from recon_node.base.files import draft_of
from recon_node.fairness.pacing import SPREAD
from recon_node.fairness.slots import LATELY
from recon_node.p2p import network_side
from recon_node.p2p.errors import MISBEHAVED
from recon_node.p2p.network_side import PEERS_FILE, load_peers, save_peers
from recon_node.p2p.peers import book as peer_book
from recon_node.p2p.peers.book import (
    AFTER_FAILURE,
    HOPELESS_FAILURES,
    INTEREST_LIFETIME,
    MAX_ADDRESSES,
    MISLED_HALF_LIFE,
    PeerBook,
)
from recon_node.recon import KeyRange


def book_of(*peer_ids: str, capacity: int = 100, rng=None) -> PeerBook:
    book = PeerBook(capacity, rng)
    for peer_id in peer_ids:
        book.note_peer(peer_id, [f"/ip4/10.0.0.1/tcp/1/p2p/{peer_id}"])
    return book


def names_in(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()]


async def test_a_failing_peer_is_left_alone_longer_each_time(autojump_clock):
    book = book_of("a", "b")
    waits = [book.failed("a") for _ in range(15)]
    bases = [min(AFTER_FAILURE.longest, 2.0**n) for n in range(15)]
    assert all(0.75 * base <= wait <= 1.25 * base for wait, base in zip(waits, bases, strict=True))
    book.note_peer("nowhere", [])
    assert [peer.id for peer in book.choose(5)] == ["b"]
    await trio.sleep(waits[-1] + 1)
    assert {peer.id for peer in book.choose(5)} == {"a", "b"}
    book.failed("a", severity=4)
    book.synced("a", 0.01, 1e9)
    assert {peer.id for peer in book.choose(5)} == {"a", "b"}


async def test_peers_are_chosen_by_overlap_latency_and_conduct():
    """The formula itself is tested with `draw`; here, that the book knows what goes into it."""
    book = book_of("all, near", "all, far", "half, near", "failing", "behind", rng=Random(1))
    for name in ("all, near", "half, near", "failing", "behind"):
        book.synced(name, 0.01, 1e9)
    book.synced("all, far", 0.1, 1e9)
    book.get("half, near").overlap = 0.5
    book.failed("failing", severity=3)
    book.get("failing").not_before = 0.0
    book.differed("behind", keys=50, of=100)
    expected = {"all, near": 100, "all, far": 10, "half, near": 50, "failing": 25, "behind": 150}
    draws = 4_000
    chosen = Counter(book.choose(1)[0].id for _ in range(draws))
    for name, weight in expected.items():
        share = weight / sum(expected.values())
        deviation = math.sqrt(draws * share * (1 - share))
        assert abs(chosen[name] - draws * share) < 4 * deviation, name


async def test_what_is_held_against_a_peer_fades(autojump_clock):
    book = book_of("a", "b")
    book.failed("a", severity=MISBEHAVED)
    book.differed("a", keys=7, of=3)
    assert (book.get("a").failures, book.get("a").candidate(trio.current_time()).behind) == (4, 1)
    book.synced("a", 0.1, 1e9)  # a success clears failures in a row, not that it misled us
    assert book.get("a").failures == 0
    assert book.get("a").candidate(trio.current_time()).failures == MISBEHAVED
    book.synced("b", 0.1, 1e9, supplied=False)
    assert (book.get("b").failures, book.get("b").misled.value) == (1, 1)
    await trio.sleep(MISLED_HALF_LIFE)
    after = book.get("a").candidate(trio.current_time())
    assert after.failures == pytest.approx(MISBEHAVED / 2)
    assert after.behind < 0.02
    await trio.sleep(24 * 3600)
    assert book.get("a").candidate(trio.current_time()).failures < 0.01
    assert book.get("b").failures == 0


@given(st.lists(st.tuples(st.integers(1, 1000), st.floats(0, 1e5)), min_size=1, max_size=30))
def test_no_peer_is_left_alone_forever(failures):
    """Whatever it does, and however often: at most twelve and a half minutes."""

    async def fail() -> None:
        book = book_of("a")
        for severity, pause in failures:
            await trio.sleep(pause)
            assert book.failed("a", severity=severity) <= AFTER_FAILURE.longest * (1 + SPREAD)
        wait = book.get("a").not_before - trio.current_time()
        await trio.sleep(wait)
        assert [peer.id for peer in book.choose(1)] == ["a"]

    trio.run(fail, clock=trio.testing.MockClock(autojump_threshold=0))


async def test_a_peer_that_is_gone_for_good_becomes_hopeless(autojump_clock):
    book = book_of("a")
    for _ in range(2 * HOPELESS_FAILURES):
        await trio.sleep(book.failed("a"))
    assert book.get("a").failures >= HOPELESS_FAILURES
    assert book.to_json() == []


async def test_what_a_peer_answers_for_is_what_interests_it(autojump_clock):
    book = book_of("a", "b")
    book.answered("a", KeyRange(b"a", b"z"), KeyRange(b"c", b"e"))
    assert book.interests("a") == [KeyRange(b"c", b"e")]
    assert book.declined("a") == [KeyRange(b"a", b"c")]
    book.answered("b", KeyRange(b"a", b"z"), None)
    assert (book.interests("b"), book.declined("b")) == ([], [KeyRange(b"a", b"z")])
    book.asked_for("b", KeyRange(b"x", b"y"))  # it has changed its mind
    assert (book.interests("b"), book.declined("b")) == ([KeyRange(b"x", b"y")], [])
    book.answered("b", KeyRange(b"a", b"xx"), None)  # and again
    assert book.interests("b") == [KeyRange(b"xx", b"y")]
    await trio.sleep(INTEREST_LIFETIME + 1)
    assert book.interests("a") == book.declined("a") == []


async def test_a_full_book_forgets_the_least_useful():
    book = book_of("a", "b", "c", capacity=3)
    book.synced("a", 0.1, 2e9)
    book.synced("c", 0.1, 1e9)
    book.failed("c")  # out of reach for now, but it has been there
    for newcomer in "def":
        book.note_peer(newcomer, ["/ip4/10.0.0.1/tcp/1"])
        assert {peer.id for peer in book.peers()} == {"a", "c", newcomer}
    book.failed("c", severity=HOPELESS_FAILURES)
    book.note_peer("g", ["/ip4/10.0.0.1/tcp/1"])
    assert {peer.id for peer in book.peers()} == {"a", "f", "g"}


async def test_hearsay_does_not_displace_what_a_peer_says_of_itself():
    book = PeerBook(10)
    hearsay = [f"/ip4/10.0.0.{number}/tcp/1/p2p/a" for number in range(2 * MAX_ADDRESSES)]
    book.note_peer("a", hearsay)
    book.note_peer("a", ["/ip4/10.1.0.1/tcp/1"], first_hand=True)
    book.note_peer("a", reversed(hearsay))
    assert book.get("a").addresses == [
        hearsay[0],
        "/ip4/10.1.0.1/tcp/1/p2p/a",
        *hearsay[1 : MAX_ADDRESSES - 1],
    ]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 12)), max_size=40))
def test_addresses_are_few_and_the_one_that_worked_comes_first(steps):
    book = PeerBook(10)
    for worked, number in steps:
        address = f"/ip4/10.0.0.{number}/tcp/1/p2p/a"
        if worked:
            book.reached_at("a", address)
            assert book.get("a").addresses[0] == address
        else:
            front = book.note_peer("a", ()).addresses[:1]
            book.note_peer("a", [address.removesuffix("/p2p/a")])
            assert book.get("a").addresses[:1] == front or not front
        addresses = book.get("a").addresses
        assert len(addresses) == len(set(addresses)) <= MAX_ADDRESSES


async def test_interests_are_what_a_peer_asked_for_lately(autojump_clock):
    book = book_of("a")
    assert book.interests("a") == book.interests("unknown") == []
    book.asked_for("a", KeyRange(b"a", b"c"))
    await trio.sleep(INTEREST_LIFETIME / 2)
    book.asked_for("a", KeyRange(b"b", b"d"))
    book.asked_for("a", KeyRange(b"x", b"z"))
    assert book.interests("a") == [KeyRange(b"a", b"d"), KeyRange(b"x", b"z")]
    await trio.sleep(INTEREST_LIFETIME / 2 + 1)
    assert book.interests("a") == [KeyRange(b"b", b"d"), KeyRange(b"x", b"z")]


async def test_the_book_outlives_a_restart(tmp_path: Path):
    book = book_of("a", "b")
    book.synced("a", 0.25, 1e9)
    async with trio.open_nursery() as nursery:
        with draft_of(tmp_path / PEERS_FILE):  # the last save waits for one that is under way
            nursery.start_soon(save_peers, book, tmp_path)
            await trio.sleep(0.1)
            assert not (tmp_path / PEERS_FILE).exists()
    again = PeerBook(100)
    await load_peers(again, tmp_path)
    assert again.to_json() == book.to_json()
    assert again.get("a").last_sync == 1e9
    assert names_in(tmp_path) == [PEERS_FILE]
    await save_peers(book, tmp_path / "not there")
    assert names_in(tmp_path) == [PEERS_FILE]


@pytest.mark.parametrize(
    "content",
    [
        *("", "{", "[]", "{}", "7", '{"peers": 3}', '{"peers": [{"id": 1}]}', '{"peers": [[]]}'),
        '{"peers": [{"id": "0", "addresses": [], "latency": null, "last_sync": null}]}',
        *('{"peers": {"a": null}}', '{"peers":' + "[" * 100_000, "\0" * 100),
        " " * 200_000,
    ],
    ids=lambda content: content[:20],
)
async def test_a_damaged_book_is_put_aside(tmp_path: Path, content, monkeypatch):
    """One that is too large as well: the next save would replace it."""
    monkeypatch.setattr(network_side, "_MAX_PEERS", 150_000)
    (tmp_path / PEERS_FILE).write_text(content)
    book = PeerBook(100)
    await load_peers(book, tmp_path)
    assert names_in(tmp_path) == ["peers.broken"]
    await save_peers(book, tmp_path)
    assert json.loads((tmp_path / PEERS_FILE).read_text())["peers"] == book.to_json()


async def test_what_peers_ask_for_is_bounded(autojump_clock, monkeypatch) -> None:
    monkeypatch.setattr(peer_book, "MAX_OBSERVING", 12)
    monkeypatch.setattr(peer_book, "MAX_OBSERVED", 16)
    book = PeerBook(capacity=1000)
    for number in range(20):
        for at in range(20):
            book.asked_for(f"peer {number}", KeyRange(b"%d" % at, b"%d~" % at))
            book.answered(f"peer {number}", KeyRange(b"x%d" % at, b"x%d~" % at), None)
    kept = [peer for peer in book.peers() if peer.interests or peer.declined]
    assert len(kept) == 12
    assert {len(peer.interests) for peer in kept} == {16}
    assert {len(peer.declined) for peer in kept} == {16}
    assert kept[-1].id == "peer 19"


async def test_a_peer_that_has_delivered_comes_first(autojump_clock):
    book = book_of(*(f"peer {number}" for number in range(200)), capacity=1000)
    book.supplied("peer 7")
    for _ in range(20):
        assert book.choose(3)[0].id == "peer 7"
    await trio.sleep(LATELY)
    assert len({book.choose(1)[0].id for _ in range(50)}) > 10
