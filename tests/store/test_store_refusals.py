"""Bad input gets a clear refusal and changes nothing."""

import sqlite3
from collections.abc import Callable

import pytest
from refused_events import LOCAL, MISSING, Case, Offer
from store_helpers import KEYS, NETWORK, World, check_feed, feed_of, offer

from recon_node.ceramic import Event, Network, network_range
from recon_node.ceramic.builder import data_event
from recon_node.store import Store


def at(event: Event, height: int = 2) -> Callable[[Case], Offer]:
    return lambda case: (case.key(event, height), event.car)


REMOTE: dict[str, tuple[Callable[[Case], Offer], str]] = {
    "garbage": (lambda case: (case.key(case.next), b"garbage"), "CAR"),
    "nothing": (lambda case: (case.key(case.next), b""), "empty"),
    "too large": (lambda case: (case.key(case.next), bytes(10_000_000)), "accepts at most"),
    "another event's CAR": (
        lambda case: (case.key(case.next), data_event(KEYS[0], case.init, [MISSING], 1).car),
        "but the CAR holds",
    ),
    "another network": (
        lambda case: (case.key(case.next, network=Network.local(8)), case.next.car),
        "the network local-8",
    ),
    "fencepost": (lambda case: (network_range(NETWORK)[0], case.next.car), "outside"),
    "wrong height": (lambda case: (case.key(case.next, 3), case.next.car), "height 3, not 2"),
    "height of an init event": (lambda case: (case.key(case.next, 0), case.next.car), "height 0"),
    "init event for another": (lambda case: offer(case.init_for_another()), "controller"),
    "under a second EventId": (
        lambda case: (case.key(case.first, 5), case.first.car),
        "EventId is",
    ),
}


class Snapshot:
    """Everything of a store that a refusal must not change."""

    @classmethod
    async def of(cls, store: Store) -> tuple[object, ...]:
        with sqlite3.connect(store._writer.log.path) as connection:
            tables = ("events", "cars", "waits", "streams", "interests", "meta")
            rows = [connection.execute(f"SELECT * FROM {table}").fetchall() for table in tables]
        connection.close()
        return (rows, await feed_of(store), store.keys.summarize(), store.head, store.waiting)


@pytest.mark.parametrize("name", LOCAL)
async def test_bad_local_events_change_nothing(store: Store, name: str) -> None:
    case = Case()
    make, message = LOCAL[name]
    await store.admit_local([case.init.car, case.first.car])
    before = await Snapshot.of(store)
    [verdict] = await store.admit_local([make(case)])
    assert (verdict.status, verdict.position) == ("refused", None)
    assert message in (verdict.reason or "")
    assert await Snapshot.of(store) == before
    assert store.totals["refused"] == 1


@pytest.mark.parametrize("name", REMOTE)
async def test_bad_events_of_peers_change_nothing(store: Store, name: str) -> None:
    case = Case()
    make, message = REMOTE[name]
    await store.admit_local([case.init.car, case.first.car])
    before = await Snapshot.of(store)
    event_id, car = make(case)
    [verdict] = await store.admit_remote([(event_id, car)])
    assert (verdict.status, verdict.event_id) == ("refused", event_id)
    assert message in (verdict.reason or "")
    assert await Snapshot.of(store) == before


async def test_bad_events_do_not_hurt_their_neighbours(store: Store) -> None:
    case = Case()
    world = World(1)
    good = [event.car for event in world.events.values()]
    bad = [make(case) for make, _ in LOCAL.values()]
    mixed = good + bad
    world.random.shuffle(bad)
    for index, event in enumerate(bad):
        mixed.insert(2 * index, event)
    verdicts = await store.admit_local(mixed)
    assert [v.status == "new" for v in verdicts] == [event in good for event in mixed]
    rows = await feed_of(store)
    check_feed(rows, world.events)
    assert len(rows) == len(good)
