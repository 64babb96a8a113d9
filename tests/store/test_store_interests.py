"""Interests: what they name, how they are kept, and what they keep out."""

from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from store_helpers import KEYS, MODEL, NETWORK, OTHER_MODEL, World, controller

from recon_node.ceramic import (
    METAMODEL,
    Shard,
    StreamId,
    StreamType,
    network_range,
    sort_value_range,
)
from recon_node.ipld import multibase
from recon_node.recon import KeyRange, covers, merge_ranges
from recon_node.store import (
    Interest,
    InvalidInterestError,
    Store,
    format_interest,
    kept_interests,
    open_store,
    parse_interest,
)
from recon_node.store.kept_interests import key_ranges, ring_ranges


@pytest.fixture(scope="module")
def world() -> World:
    """Four streams: of two models by two controllers each."""
    world = World(0, streams=0, events=0)
    for model in (MODEL, OTHER_MODEL):
        for key in KEYS[:2]:
            init = world.start(key, b"u", model)
            world.extend(init.cid, [init.cid], "data")
    return world


def test_streams_are_found_by_the_value_whatever_the_sort_key():
    named, mistyped = (
        key_ranges(NETWORK, [Interest(key, str(MODEL))]) for key in ("model", "modle")
    )
    assert named == mistyped
    assert ring_ranges(NETWORK, [Interest("modle", str(MODEL))]) == []


def interests_of(world: World) -> list[Interest]:
    """For each stream: its sort value; with its controller; the stream itself."""
    interests = []
    for init, header in world.headers.items():
        stream_id = world.events[init].stream_id()
        interests += [
            Interest("model", header.sort_value),
            Interest("model", header.sort_value, header.controller),
            Interest("model", header.sort_value, header.controller, stream_id),
            *(Interest("model", header.sort_value, None, None, Shard.of(n, 3)) for n in (1, 2, 3)),
        ]
    return interests


def wanted(interest: Interest, world: World) -> set[bytes]:
    """The oracle: which keys an interest names, by the events' headers."""
    return {
        world.event_id(event)
        for event in world.events.values()
        if world.headers[event.init].sort_value == interest.sort_value
        and interest.controller in (None, world.headers[event.init].controller)
        and (interest.stream_id is None or interest.stream_id.cid == event.init)
        and (
            interest.controllers is None
            or interest.controllers.covers(world.headers[event.init].controller)
        )
    }


async def test_without_interests_the_network_is_wanted(store: Store) -> None:
    assert store.wanted.all == ()
    assert store.wanted.ranges == [KeyRange(*network_range(NETWORK))]


@given(picks=st.sets(st.integers(0, 23), min_size=1))
def test_interests_cover_the_keys_that_they_name(world: World, picks: set[int]) -> None:
    chosen = [interests_of(world)[pick] for pick in picks]
    ranges = key_ranges(NETWORK, chosen)
    assert ranges == merge_ranges(ranges)
    expected = set().union(*(wanted(interest, world) for interest in chosen))
    assert {key for key, _ in world.offers() if covers(ranges, key)} == expected


@given(st.lists(st.tuples(st.binary(max_size=2), st.binary(max_size=2))), st.binary(max_size=2))
def test_covers_finds_the_range(bounds: list[tuple[bytes, bytes]], key: bytes) -> None:
    ranges = merge_ranges(KeyRange(*pair) for pair in bounds)
    assert covers(ranges, key) == any(key_range.covers(key) for key_range in ranges)


async def test_another_interest_takes_no_look_at_those_before(store, world, monkeypatch):
    """The 1,950th took 0.19 s of CPU time."""
    for number, interest in enumerate(dict.fromkeys(interests_of(world)[::-1]), 1):
        with monkeypatch.context() as patched:
            count = Mock(side_effect=key_ranges)
            patched.setattr(kept_interests, "key_ranges", count)
            await store.wanted.add(interest)
        assert [*count.call_args.args[1]] == [interest]
        assert store.wanted.ranges == key_ranges(NETWORK, store.wanted.all)
        assert store.wanted.ring_ranges == ring_ranges(NETWORK, store.wanted.all)
        assert len(store.wanted.all) == number


async def test_interests_are_kept_once(tmp_path: Path, world: World) -> None:
    interests = interests_of(world)[:6]
    async with open_store(tmp_path, NETWORK) as store:
        assert [await store.wanted.add(interest) for interest in interests] == [True] * 6
        assert [await store.wanted.add(interest) for interest in interests] == [False] * 6
        ranges = store.wanted.ranges
        assert ranges == [KeyRange(*sort_value_range(NETWORK, interests[0].sort_value))]
    async with open_store(tmp_path, NETWORK) as store:
        assert store.wanted.all == tuple(interests)
        assert store.wanted.ranges == ranges


async def test_peers_events_outside_the_interests_are_refused(store: Store, world: World) -> None:
    interest = interests_of(world)[0]
    await store.wanted.add(interest)
    verdicts = await store.admit_remote(world.offers())
    accepted = {v.event_id for v in verdicts if v.status == "new"}
    assert accepted == wanted(interest, world)
    assert len(accepted) == 4
    refused = [v for v in verdicts if v.status == "refused"]
    assert all("outside this node's interests" in (v.reason or "") for v in refused)
    assert not any(store.is_ruled_out(v.event_id) for v in refused if v.event_id)
    local = await store.admit_local([event.car for event in world.events.values()])
    assert sorted(v.status for v in local) == ["known"] * 4 + ["new"] * 4


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Interest("", "value"), "sort key"),
        (lambda: Interest("model", ""), "sort value"),
        (lambda: Interest("model", "value", ""), "must be a DID"),
        (lambda: Interest("model", "value", None, MODEL), "must name its controller"),
        (lambda: Interest("model", "value", "did:key:z", None, Shard.of(1, 2)), "not both"),
    ],
)
def test_an_interest_that_is_not_a_range_is_refused(make, message):
    with pytest.raises(InvalidInterestError, match=message):
        make()


DOCUMENT = StreamId(StreamType.MODEL_INSTANCE, MODEL.cid)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (str(MODEL), Interest("model", str(MODEL))),
        (str(METAMODEL), Interest("model", str(METAMODEL))),
        (str(DOCUMENT), DOCUMENT),
        (f"stream={MODEL}", MODEL),
        (f"model={MODEL}", Interest("model", str(MODEL))),
        (f" controller=did:key:z  model={MODEL} ", Interest("model", str(MODEL), "did:key:z")),
        (
            f"model={MODEL} controller=did:key:z stream={DOCUMENT}",
            Interest("model", str(MODEL), "did:key:z", DOCUMENT),
        ),
        ("dag=zBH5Y", Interest("dag", multibase.encode(multibase.decode("zBH5Y"), "base36"))),
    ],
)
def test_the_notation(text: str, wanted: Interest | StreamId) -> None:
    assert parse_interest(text) == wanted
    if isinstance(wanted, Interest):
        assert parse_interest(format_interest(wanted)) == wanted


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "exactly one sort key"),
        ("hello", "'hello' is not a StreamID"),
        ("model=hello", "'hello' is not a StreamID"),
        (str(StreamId(StreamType.CAIP10_LINK, MODEL.cid)), "of stream type 1"),
        (f"{MODEL} controller=did:key:z", "is not NAME=VALUE"),
        (f"model={MODEL} model={MODEL}", "two fields 'model'"),
        ("controller=did:key:z", "a controller alone is not a range"),
        (f"model={MODEL} stream={DOCUMENT}", "must name its controller"),
        (f"model={MODEL} dag=zBH5Y", "exactly one sort key"),
        ("model=", "is not NAME=VALUE"),
    ],
)
def test_what_is_not_an_interest(text: str, message: str) -> None:
    with pytest.raises(InvalidInterestError, match=message):
        parse_interest(text)


async def test_a_removal_outlives_a_restart(tmp_path: Path, world: World) -> None:
    kept, removed = interests_of(world)[0], interests_of(world)[1]
    async with open_store(tmp_path, NETWORK) as store:
        for interest in (kept, removed):
            await store.wanted.add(interest)
        assert await store.wanted.remove(removed)
        assert not await store.wanted.remove(removed)
        assert store.wanted.all == (kept,)
    async with open_store(tmp_path, NETWORK) as store:
        assert store.wanted.all == (kept,)


async def test_waiters_wake_at_each_change(store, world, nursery):
    interest = interests_of(world)[0]
    heard: list[tuple[Interest, ...]] = []

    async def listen(store: Store) -> None:
        while True:
            await store.wanted.wait_for_change(store.wanted.all)
            heard.append(store.wanted.all)

    nursery.start_soon(listen, store)
    for change in (
        partial(store.wanted.add, interest),
        partial(store.wanted.remove, interest),
        partial(store.wanted.configure, [interest]),
    ):
        await trio.testing.wait_all_tasks_blocked()
        await change()
    await trio.testing.wait_all_tasks_blocked()
    assert heard == [(interest,), (), (interest,)]
    nursery.cancel_scope.cancel()


async def test_the_log_keeps_none_of_the_settings(tmp_path: Path, world: World) -> None:
    configured, added = interests_of(world)[0], interests_of(world)[-3]
    async with open_store(tmp_path, NETWORK) as store:
        await store.wanted.add(added)
        await store.wanted.configure([configured])
        assert store.wanted.all == (configured, added)
        assert store.wanted.ranges == key_ranges(NETWORK, [configured, added])
    async with open_store(tmp_path, NETWORK) as store:
        assert store.wanted.all == (added,)


async def test_a_stream_under_another_model_or_controller_is_not_a_dead_end(store, world):
    """If the stream is here, its init event says what would match."""
    init = next(iter(world.headers))
    stream, held = world.events[init].stream_id(), world.headers[init]
    right = Interest("model", held.sort_value, held.controller, stream)
    others = (
        Interest("model", str(OTHER_MODEL), held.controller, stream),
        Interest("model", held.sort_value, controller(2), stream),
        Interest("family", held.sort_value, held.controller, stream),
    )
    for wrong in others:
        assert await store.wanted.complete(wrong) == wrong  # nobody can know yet
    await store.admit_local([world.events[init].car])
    assert await store.wanted.complete(right) == right
    for wrong in others:
        with pytest.raises(InvalidInterestError, match="no event can match") as caught:
            await store.wanted.complete(wrong)
        assert repr(format_interest(right)) in str(caught.value)


@pytest.mark.parametrize("text", ["z6MkEC1", "did:", "did:key:", "alice", "did:key:z6Mk/path"])
async def test_a_controller_that_is_not_a_did_is_refused(store: Store, text: str) -> None:
    with pytest.raises(InvalidInterestError, match="is not a DID"):
        await store.wanted.complete(Interest("model", str(MODEL), text))
