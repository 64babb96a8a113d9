"""The rounds of pushes after the first: to other peers, as long as some may lack the key."""

import pytest
import trio
from p2p_support import LOOPBACK
from test_p2p_push import COPIES, LATER_ROUNDS, key_in, says
from test_p2p_push import pushing as pushing  # a fixture
from test_p2p_sync import OURS

from recon_node.p2p.sync.peer_memory import AGREED_FOR, MAX_AGREEMENTS, PeerMemory
from recon_node.p2p.sync.push import MAX_AGAIN, ROUNDS
from recon_node.recon import KeyRange

MANY = [f"peer {number}" for number in range(8, 30)]
KEY = key_in(OURS[0])


@pytest.fixture
def crowd(pushing):
    """Many more peers than are pushed to, all of which want everything."""
    store, book, sessions = pushing
    sessions.syncer._host.near += MANY
    for peer in sessions.syncer._host.near:
        book.heard_of(peer, ())
        book.synced(peer, 0.01, 0.0)
        says(book, peer, *OURS)
    return store, book, sessions


def asked(sessions) -> list[str]:
    return [peer for peer, _ in sessions.asked]


async def test_each_round_goes_to_others(crowd, autojump_clock):
    store, _, sessions = crowd
    store.arrivals.add([KEY])
    await trio.sleep(LOOPBACK.push_delay + 0.1)
    assert len(asked(sessions)) == COPIES
    await trio.sleep(LATER_ROUNDS)
    assert len(asked(sessions)) == len(set(asked(sessions))) == ROUNDS * COPIES


async def test_later_rounds_leave_out_who_told_us_meanwhile(crowd, autojump_clock):
    store, _, sessions = crowd
    store.arrivals.add([KEY])
    await trio.sleep(LOOPBACK.push_delay + 0.1)
    others = [peer for peer in sessions.syncer._host.near if peer not in asked(sessions)]
    sessions.told[KEY] = others[1:]
    await trio.sleep(LATER_ROUNDS)
    assert asked(sessions)[COPIES:] == others[:1]


async def test_later_rounds_leave_out_who_agreed_with_us_since_the_key_came(crowd, autojump_clock):
    store, _, sessions = crowd
    store.arrivals.add([KEY])
    await trio.sleep(LOOPBACK.push_delay + 0.1)
    now = trio.current_time()
    others = [peer for peer in sessions.syncer._host.near if peer not in asked(sessions)]
    early, elsewhere, *rest = others
    sessions.memory.note_agreement(early, OURS[0], now - 1)
    sessions.memory.note_agreement(elsewhere, OURS[1], now)
    for peer in rest:
        sessions.memory.note_agreement(peer, OURS[0], now)
    await trio.sleep(LATER_ROUNDS)
    assert sorted(asked(sessions)[COPIES:]) == sorted([early, elsewhere])


async def test_of_very_many_keys_there_is_one_round(crowd, autojump_clock):
    store, _, sessions = crowd
    store.arrivals.add([key_in(OURS[0], number) for number in range(MAX_AGAIN + 1)])
    await trio.sleep(LOOPBACK.push_delay + LATER_ROUNDS)
    assert len(asked(sessions)) == COPIES


async def test_agreements_count_if_they_cover_the_key_and_began_after_it_came(autojump_clock):
    memory = PeerMemory()
    memory.note_agreement("before", OURS[0], 1.0)
    memory.note_agreement("after", OURS[0], 3.0)
    memory.note_agreement("elsewhere", OURS[1], 3.0)
    assert memory.holders(KEY, 2.0) == {"after"}
    assert memory.holders(KEY, 0.0) == {"before", "after"}
    assert memory.holders(OURS[0].lower, 0.0) == set()


async def test_agreements_are_forgotten(autojump_clock):
    memory = PeerMemory()
    for number in range(2 * MAX_AGREEMENTS):
        memory.note_agreement(f"peer {number}", KeyRange(b"a", b"c"), trio.current_time())
    assert len(memory.holders(b"b", 0.0)) == MAX_AGREEMENTS
    await trio.sleep(AGREED_FOR + 1)
    memory.note_agreement("new", KeyRange(b"a", b"c"), trio.current_time())
    assert memory.holders(b"b", 0.0) == {"new"}
