"""Slots for computations go round among those who ask."""

import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from recon_node.fairness.slots import ASKER, working_for
from recon_node.fairness.turns import InTurn, Turns


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), min_size=1, max_size=30),
    st.integers(1, 3),
)
def test_whoever_waits_longest_is_next(asks: list[tuple[str, bool]], slots: int) -> None:
    """Of n askers that wait, each gets one of n slots; also where some give up."""
    served: list[str] = []
    running = 0

    async def ask(asker: str, gives_up: bool) -> None:
        nonlocal running
        ASKER.set(asker)
        with trio.move_on_after(0.5 if gives_up else 1e9):
            async with turns.taken():
                running += 1
                assert running <= slots
                served.append(asker)
                await trio.sleep(1)
                running -= 1

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(slots):
                await turns.take()
            for asker, gives_up in asks:
                nursery.start_soon(ask, asker, gives_up)
            await trio.sleep(0.75)
            left = [asker for asker, gives_up in asks if not gives_up]
            assert turns.waiting == len(left)
            for _ in range(slots):
                turns.leave()
        # While several wait, none is served twice before each other one was served.
        counts = {asker: left.count(asker) for asker in set(left)}
        assert sorted(served) == sorted(left)
        while served and slots == 1:  # several slots are left in one moment
            turn = [asker for asker in counts if counts[asker]]
            assert sorted(served[: len(turn)]) == sorted(turn)
            del served[: len(turn)]
            for asker in turn:
                counts[asker] -= 1
        for _ in range(slots):
            assert turns.take_at_once()
        assert not turns.take_at_once()
        assert turns.waiting == turns.waiting_as_this == 0

    turns = Turns(slots)
    trio.run(main, clock=MockClock(autojump_threshold=0))


@given(st.lists(st.tuples(st.sampled_from("AB"), st.sampled_from("xyz")), max_size=30))
def test_networks_take_turns_and_their_peers_take_turns_within_them(asks):
    """Against the plain rule, in three loops."""
    items = InTurn[tuple[str, str, int]]()
    for number, (asker, peer) in enumerate(asks):
        with working_for(asker, peer):
            items.put((asker, peer, number))
    assert len(items) == len(asks)
    assert items.askers == len(set(asks))
    peers = {
        asker: [peer for owner, peer in dict.fromkeys(asks) if owner == asker] for asker in "AB"
    }
    left = {pair: [(*pair, n) for n, ask in enumerate(asks) if ask == pair] for pair in set(asks)}
    turn, expected = list(dict(asks)), []
    while turn:
        asker = turn.pop(0)
        peer = peers[asker].pop(0)
        expected.append(left[asker, peer].pop(0))
        if left[asker, peer]:
            peers[asker].append(peer)
        if peers[asker]:
            turn.append(asker)
    assert [items.pop() for _ in asks] == expected
    assert not items
