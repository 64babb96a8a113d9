"""The rules and the ladder, on a log of their own: what they decide depends on the events, not on
their order."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from unittest.mock import patch

from bad_worlds import BadWorld, shuffled
from bare_log import QUICK, BareLog
from hypothesis import given, settings
from hypothesis import strategies as st
from store_helpers import World

from recon_node.store import StoreSettings
from recon_node.store.admission import ladder, records
from recon_node.store.admission.ladder import Ladder
from recon_node.store.db import releases
from recon_node.store.db.doubts import doubted_events
from recon_node.store.db.settling import commit_proofs, postpone_proofs
from recon_node.verification import Refusal

SEEDS = st.integers(0, 2**32)
FEW = settings(max_examples=settings().max_examples // 4)


@contextmanager
def opened(settings: StoreSettings = QUICK, *, guarded: bool = False) -> Iterator[BareLog]:
    with (
        TemporaryDirectory() as directory,
        closing(BareLog(Path(directory), settings, guarded=guarded)) as log,
    ):
        yield log


def settle_some(log: BareLog, random: Random, share: float) -> None:
    """Look up a share of the pending proofs; half of the transactions say something else."""
    right, wrong = 1_700_000_000, Refusal("wrong", inherent=True)
    for proof in log.unsettled:
        if random.random() < share:
            log.settle(proof, right if log.guarded or proof[-1] % 2 else wrong)


@FEW
@given(seed=SEEDS, most=st.integers(0, 5))
def test_what_finds_no_room_leaves_no_trace(seed: int, most: int) -> None:
    world = World(seed, streams=2, events=20)
    offers = world.offers()
    with opened(StoreSettings(synchronous="normal", max_waiting=most)) as log:
        for batch in shuffled(offers, world.random):
            log.admit(batch)
            assert all(share.events <= most for share in log.marks.shares.values())
        assert not log.load_refused()
        for offer in offers:  # history first
            log.admit([offer])
        assert len(log.feed) == len(world.events)


def test_a_batch_in_order_asks_for_a_fixed_number_of_things() -> None:
    """Whatever its size: the log is asked for all of it at once."""
    numbers = []
    for events in (20, 60):
        world, asked = World(1, events=events), list[str]()
        with opened() as log:
            log.connection.set_trace_callback(asked.append)
            log.offer(world.offers())
            numbers.append(sum(sql.startswith("SELECT") for sql in asked))
            assert len(log.feed) == len(world.events)
    assert numbers[0] == numbers[1]


def outcome(seed: int, own: float, *, guarded: bool) -> tuple[object, ...]:
    """What becomes of events of peers, and of the node's own clients, history first or not."""
    world, random, verdicts = BadWorld(seed), Random(seed), []
    claims = [claim for event in world.events.values() for claim in world.claims(event)]
    with opened(guarded=guarded) as log:
        for batch in [*shuffled(claims, world.random), claims]:
            named = [(None if random.random() < own else key, car) for key, car in batch]
            verdicts += log.admit(named)
            settle_some(log, random, 0.3)
        return verdicts, log.keys, log.feed, log.marks, log.load_refused()


@FEW
@given(seed=SEEDS, guarded=st.booleans(), own=st.sampled_from([0.0, 0.5, 1.0]))
def test_the_short_way_leads_where_the_long_one_does(seed: int, guarded: bool, own: float) -> None:
    with patch.object(Ladder, "deliver", return_value=None):
        long = outcome(seed, own, guarded=guarded)
    assert outcome(seed, own, guarded=guarded) == long


@FEW
@given(seed=SEEDS, guarded=st.booleans(), own=st.sampled_from([0.0, 0.5, 1.0]))
def test_what_is_remembered_is_what_the_log_has(seed: int, guarded: bool, own: float) -> None:
    with patch.object(records, "MAX_KEPT", 0):
        loaded = outcome(seed, own, guarded=guarded)
    with patch.object(records, "MAX_RECENT", 8):
        few = outcome(seed, own, guarded=guarded)
    assert outcome(seed, own, guarded=guarded) == few == loaded


def test_what_an_event_builds_on_is_remembered() -> None:
    world, asked = World(1, streams=1, events=5), list[str]()
    *first, last = world.offers()
    with opened() as log:
        for offer in first:
            log.offer([offer])
        log.connection.set_trace_callback(asked.append)
        log.offer([last])
        [looked_up] = [sql for sql in asked if "short_cid IN" in sql]
        assert looked_up.upper().count("X'") == 1, "only itself"
        assert len(log.feed) == len(world.events)


@FEW
@given(seed=SEEDS, guarded=st.booleans(), room=st.sampled_from([1, 2, 5, 256]))
def test_what_watches_another_event_need_not_be_looked_at(seed, guarded, room):
    """Each outcome is that of a ladder that looks at all that waits for what has moved, wherever
    transactions end, and whatever each event watches; also in a log of an earlier version."""
    world = BadWorld(seed)
    claims = [claim for event in world.events.values() for claim in world.claims(event)]
    batches = shuffled(claims, world.random)
    ends = []
    for is_watching in (True, False):
        random = Random(seed)
        with (
            opened(guarded=guarded) as log,
            patch.object(releases, "MAX_WAITERS", room),
            random_watches(random) if is_watching else patch.object(Ladder, "_watch"),
        ):
            for batch in batches:
                log.admit(batch)
                if random.random() < 0.1:
                    log.connection.execute("UPDATE waits SET watched = 1")
                settle_some(log, Random(seed), 0.3)
            refused = sorted(log.load_refused())
            ends.append((log.keys, sorted(log.feed), log.marks.waiting, refused))
    assert ends[0] == ends[1]


@FEW
@given(seed=SEEDS)
def test_what_is_trusted_again_is_what_was_doubted_and_is_no_longer(seed: int) -> None:
    """By a comparison of all doubted events, before and after."""
    world = World(seed, events=60, time_events=True)
    random = world.random
    with opened() as log:
        for batch in shuffled(world.offers(), random):
            log.admit(batch)
        doubted = set[object]()
        for _ in range(9):
            absent = [proof for proof in log.unsettled if random.random() < 0.3]
            doubted |= set(postpone_proofs(log, [(proof, 0) for proof in absent], absent).doubted)
        assert doubted == doubted_events(log.connection)
        for proof in random.sample(log.unsettled, len(log.unsettled)):
            before = doubted_events(log.connection)
            verdict = random.choice([1_700_000_000, Refusal("wrong", inherent=True)])
            asked: list[str] = []
            log.connection.set_trace_callback(asked.append)
            committed = commit_proofs(log, [(proof, verdict)])
            log.connection.set_trace_callback(None)
            assert not any("AND true" in sql for sql in asked), "a million may be doubted"
            held = {*log.keys}
            trusted = before - doubted_events(log.connection)
            assert held.intersection(committed.trusted) == held & trusted
            log.finish_releases()


@contextmanager
def random_watches(random: Random) -> Iterator[None]:
    with patch.object(ladder, "hash", lambda _: random.random(), create=True):
        yield
