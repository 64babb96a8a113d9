"""The keys of the model ring: those of the events that a ceramic-one node would hold."""

from pathlib import Path

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_helpers import NETWORK, SETTINGS
from support import sdk_sample

from recon_node.ceramic import StreamId, parse_event
from recon_node.ceramic.heightless_event_id import HeightlessEventId
from recon_node.recon import KeyRange
from recon_node.store import Interest, StoreSettings, open_store
from recon_node.store.damage import Damage
from recon_node.store.ring_keys import RingKeys

EVENTS = 40


def sample() -> list[tuple[HeightlessEventId, bytes]]:
    return list(sdk_sample.ring_events(NETWORK, EVENTS).items())


async def test_a_node_without_the_ring_keeps_no_second_index(tmp_path):
    without = StoreSettings(verifiers=0, ceramic_one=False)
    async with open_store(tmp_path, NETWORK, settings=without) as store:
        await store.admit_local([car for _, car in sample()])
        assert store.ring_keys is None
    async with open_store(tmp_path, NETWORK, settings=SETTINGS) as store:
        assert len(await store.load_ring_keys()) == EVENTS


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(order=st.permutations(range(EVENTS)), batch=st.integers(1, EVENTS))
def test_from_the_ring_they_come_in_any_order_and_again_when_their_history_is_here(
    tmp_path_factory, order, batch
):
    trio.run(_offer_in_any_order, tmp_path_factory.mktemp("ring"), order, batch)


async def _offer_in_any_order(directory: Path, order: list[int], batch: int) -> None:
    events = sample()
    async with open_store(directory, NETWORK, settings=SETTINGS) as store:
        left = [events[at] for at in order]
        while left:
            aside = []
            for start in range(0, len(left), batch):
                part = left[start : start + batch]
                verdicts = await store.admit_from_ring(part)
                for value, verdict in zip(part, verdicts, strict=True):
                    assert verdict.status == "new" or verdict.cause == "history"
                    if verdict.status != "new":
                        aside.append(value)
            assert len(aside) < len(left)
            left = aside
        assert list(await store.load_ring_keys()) == sorted(key for key, _ in events)
        assert store.head == EVENTS
        cars = await store.reader.cars_by_cid([key.event_cid for key, _ in events])
        assert cars == [car for _, car in events]


@pytest.mark.parametrize("reads", ["before", "after"])
async def test_the_keys_are_loaded_while_the_log_changes(tmp_path, monkeypatch, reads):
    """The log is read before or after a commit that is published while it is read."""
    events = sample()
    async with open_store(tmp_path, NETWORK, settings=SETTINGS) as store:
        assert store.ring_keys is None
        await store.admit_local([car for _, car in events[:20]])
        began, changed, read = trio.Event(), trio.Event(), store.reader.ring_keys

        async def read_meanwhile() -> RingKeys:
            keys = None if reads == "after" else await read()
            began.set()
            await changed.wait()
            return keys or await read()

        monkeypatch.setattr(store.reader, "ring_keys", read_meanwhile)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.load_ring_keys)
            await began.wait()
            await store.admit_local([car for _, car in events[20:]])
            assert store.ring_keys is None
            changed.set()
        assert list(store.ring_keys) == sorted(key for key, _ in events)


async def test_what_is_damaged_is_left_out_when_the_keys_are_loaded(tmp_path):
    events = sample()
    [(key, _), *_] = events
    async with open_store(tmp_path, NETWORK, settings=SETTINGS) as store:
        [verdict, *_] = await store.admit_local([car for _, car in events])
        store.damage.note([Damage("a bit flipped", verdict.event_id, key.event_cid, 1)])
        assert key not in await store.load_ring_keys()
        store.damage.note_repaired([verdict.event_id])
        assert list(store.ring_keys) == sorted(key for key, _ in events)


async def test_what_comes_under_another_key_is_refused(tmp_path):
    [(key, car), (other, _), *_] = sample()
    header = parse_event(car).header
    wrong = HeightlessEventId.build(
        NETWORK, header.model, "did:key:z6Mk", parse_event(car).cid, parse_event(car).cid
    )
    async with open_store(tmp_path, NETWORK, settings=SETTINGS) as store:
        verdicts = await store.admit_from_ring([(other, car), (wrong, car), (key, b"no CAR")])
        assert [verdict.cause for verdict in verdicts] == ["car", "event", "car"]
        assert len(await store.load_ring_keys()) == 0
        [verdict] = await store.admit_from_ring([(key, car)])
        assert verdict.status == "new"
        [verdict] = await store.admit_from_ring([(key, car)])
        assert verdict.status == "known"


async def test_the_keys_are_saved_for_the_next_start_and_dropped_when_the_log_changes(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("recon_node.store.db.saved_keys.FEWEST", 1)
    events = sample()
    async with open_store(tmp_path, NETWORK, settings=SETTINGS) as store:
        await store.admit_local([car for _, car in events[:20]])
        await store.load_ring_keys()
    saved = tmp_path / "ring_keys.saved"
    assert saved.exists()
    with monkeypatch.context() as patch:
        patch.setattr("recon_node.store.ring_keys.RingKeys.fill", _must_not_be_called)
        async with open_store(tmp_path, NETWORK, settings=SETTINGS) as store:
            assert list(await store.load_ring_keys()) == sorted(key for key, _ in events[:20])
            await store.admit_local([car for _, car in events[20:]])
            assert list(await store.load_ring_keys()) == sorted(key for key, _ in events)
    # A node that has the ring switched off changes the log: what is saved is not its own any more.
    without = StoreSettings(verifiers=0, ceramic_one=False)
    async with open_store(tmp_path, NETWORK, settings=without) as store:
        await store.settle_proofs([])
    async with open_store(tmp_path, NETWORK, settings=SETTINGS) as store:
        assert list(await store.load_ring_keys()) == sorted(key for key, _ in events)


def _must_not_be_called(*_args: object) -> None:
    pytest.fail("the keys were made anew")


async def test_interests_are_ranges_of_the_ring(tmp_path):
    [(key, car), *_] = sample()
    header = parse_event(car).header
    model = header.model
    async with open_store(tmp_path, NETWORK, settings=SETTINGS) as store:
        [everything] = store.wanted.ring_ranges
        assert everything.covers(key)
        await store.wanted.add(Interest("family", "blog"))
        assert store.wanted.ring_ranges == []
        for interest in (
            Interest("model", str(model)),
            Interest("model", str(model), header.controller),
            Interest("model", str(model), header.controller, StreamId.parse(stream_of(car))),
        ):
            await store.wanted.add(interest)
            [of_model] = store.wanted.ring_ranges
            assert isinstance(of_model, KeyRange)
            assert of_model.covers(key)
            await store.wanted.remove(interest)


def stream_of(car: bytes) -> str:
    return str(parse_event(car).stream_id())
