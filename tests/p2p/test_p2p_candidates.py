"""Which of the peers that were found are dialled: those with the same interests first, and few."""

import random

import pytest
import trio
from trio.testing import MockClock

from recon_node.p2p.peers.book import PeerBook
from recon_node.p2p.peers.connections import (
    DIALLING,
    ENOUGH_IN_ALL,
    ENOUGH_OTHERS,
    ENOUGH_SHARING,
    FEWEST_SHARING,
    MOST_IN_USE,
    Candidates,
)
from recon_node.p2p.peers.dht_server import LIFETIME
from recon_node.p2p.transport.host import Host

MAX_CONNECTIONS = 200
ADDRESS = ["/ip4/192.0.2.7/tcp/4101"]


class Here:
    """A node with interests, and with no network to dial in."""

    elsewhere = Host.elsewhere

    def __init__(self) -> None:
        self.peer_id = "this node"
        self.addresses = ["/ip4/192.0.2.1/tcp/4101"]
        self.connected: list[str] = []
        self.dialled: list[str] = []
        self.known: dict[tuple[str, str | None], bool] = {}
        self.book = PeerBook(1000, random.Random(1))
        self.want("tea", "chess")
        known = lambda *question: self.known.get(question)  # noqa: E731
        self.candidates = Candidates(self, self.book, self, known, MAX_CONNECTIONS)

    def connected_peers(self) -> list[str]:
        return self.connected

    def want(self, *sort_values: str) -> None:
        self.sort_values = frozenset(sort_values)  # all that is read of them: they may be thousands

    async def wait_for_change(self, known: object) -> None:
        await trio.sleep_forever()  # `want` is called before, or while nobody waits

    def found(self, peer_id: str, addresses: list[str], sort_value: str | None = None) -> None:
        if self.candidates.found(peer_id, addresses, sort_value):
            self.dialled.append(peer_id)

    def find(self, kind: str, count: int, sort_value: str | None = None) -> None:
        for number in range(count):
            self.found(f"{kind} {number}", ADDRESS, sort_value)

    def dialled_of(self, kind: str) -> int:
        return sum(dial.startswith(f"{kind} ") for dial in self.dialled)


@pytest.fixture
async def here():
    """A node. Tests stop the clock beside it: what it has dialled counts for some seconds only."""
    return Here()


async def test_few_are_dialled_and_all_are_noted(here, mock_clock):
    here.find("other", 100)
    here.find("tea", 100, "tea")
    here.find("chess", 3, "chess")
    assert len(here.book) == 203
    assert here.dialled_of("other") == ENOUGH_OTHERS
    assert here.dialled_of("tea") == ENOUGH_SHARING
    assert here.dialled_of("chess") == 3  # a popular interest does not keep out a rare one


async def test_a_node_that_wants_everything_shares_the_interests_of_all(here, mock_clock):
    here.want()
    here.find("any", 100)
    assert here.dialled_of("any") == ENOUGH_SHARING


@pytest.mark.parametrize("interests", [1, 16, 40])
async def test_many_interests_share_the_connections(here, mock_clock, interests):
    sort_values = [str(number) for number in range(interests)]
    here.want(*sort_values)
    for sort_value in sort_values:
        here.find(f"found at {sort_value}", ENOUGH_SHARING + 1, sort_value)
    expected = min(ENOUGH_SHARING, max(FEWEST_SHARING, ENOUGH_IN_ALL // interests))
    assert len(here.dialled) == min(expected * interests, MAX_CONNECTIONS // MOST_IN_USE)
    assert here.dialled_of("found at 0") == expected


async def test_those_who_share_an_interest_are_dialled_however_many_others_are_connected(
    here, mock_clock
):
    here.connected += [f"other {number}" for number in range(90)]
    here.find("more", 10)
    assert here.dialled == []
    here.find("tea", 1, "tea")
    assert here.dialled == ["tea 0"]


async def test_what_a_peer_says_of_its_interests_counts_more_than_where_it_was_found(
    here, mock_clock
):
    here.connected += [f"tea {number}" for number in range(ENOUGH_SHARING)]
    here.find("tea", ENOUGH_SHARING, "tea")
    here.find("late", 1, "tea")
    assert here.dialled == []
    here.known["tea 3", "tea"] = False
    here.find("late", 1, "tea")
    assert here.dialled == ["late 0"]


async def test_who_wants_another_shard_is_not_dialled_again(here, mock_clock):
    here.known |= {(f"tea {number}", "tea"): number >= 8 for number in range(20)}
    here.find("tea", 20, "tea")
    assert here.dialled == [f"tea {number}" for number in range(8, 8 + ENOUGH_SHARING)]
    here.find("tea", 1)
    assert here.dialled[-1] == "tea 0"  # as one of the network


async def test_peers_of_an_earlier_interest_do_not_count_for_a_new_one(here, mock_clock):
    here.find("tea", 100, "tea")
    here.want("go")
    here.find("go", 1, "go")
    assert here.dialled[-1] == "go 0"
    assert not here.candidates.shares("tea 0", None)


async def test_a_peer_is_dialled_again_when_found_again_but_not_all_the_time(here, autojump_clock):
    here.find("sharing", 1, "tea")
    here.find("sharing", 1, "tea")
    assert here.dialled == ["sharing 0"]
    await trio.sleep(DIALLING + 1)
    here.find("sharing", 1, "tea")
    assert here.dialled == ["sharing 0"] * 2
    await trio.sleep(DIALLING + 1)
    wait = here.book.failed("sharing 0", severity=6)
    here.find("sharing", 1, "tea")
    assert here.dialled == ["sharing 0"] * 2
    await trio.sleep(wait + 1)
    here.connected.append("sharing 0")
    here.find("sharing", 1, "tea")
    assert here.dialled == ["sharing 0"] * 2


async def test_where_a_peer_was_found_counts_for_a_while(here, autojump_clock: MockClock):
    here.find("sharing", 1, "tea")
    assert here.candidates.shares("sharing 0", "tea")
    await trio.sleep(LIFETIME + 1)
    assert not here.candidates.shares("sharing 0", "tea")


async def test_who_cannot_be_reached_is_not_noted(here, mock_clock):
    for addresses in ([], ["/ip4/0.0.0.0/tcp/4101"], ["/ip4/127.0.0.1/tcp/4101"], ["nonsense"]):
        here.found("peer", addresses)
    assert len(here.book) == 0
    here.addresses = ["/ip4/127.0.0.1/tcp/4101"]
    here.found("peer", ["/ip4/127.0.0.1/tcp/4102"])
    assert here.dialled == ["peer"]


async def test_who_is_needed(here, mock_clock):
    here.connected += [f"tea {number}" for number in range(ENOUGH_SHARING)]
    here.find("tea", ENOUGH_SHARING, "tea")
    assert here.candidates.has_enough("tea")
    assert not here.candidates.has_enough("chess")
    assert here.candidates.has_enough(None)
    assert here.candidates.has_some("tea")
    assert not here.candidates.has_some("chess")
    assert here.candidates.is_needed("tea 0")  # without it there would be one too few
    here.connected += ["late", "both", "neither"]
    here.known.update({("late", "tea"): True, ("both", "tea"): True, ("both", "chess"): True})
    here.known["neither", "tea"] = here.known["neither", "chess"] = False
    assert not here.candidates.is_needed("late")
    assert here.candidates.is_needed("both")
    assert not here.candidates.is_needed("neither")


async def test_a_node_that_wants_everything_needs_some_of_all(here, mock_clock):
    here.want()
    here.connected += [f"any {number}" for number in range(ENOUGH_SHARING)]
    assert here.candidates.is_needed("any 0")
    here.connected += ["any more"]
    assert not here.candidates.is_needed("any 0")
