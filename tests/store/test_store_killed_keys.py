"""The saved keys and their sums after kill -9: brought up to date, and exactly those of the log."""

from __future__ import annotations

import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from bad_worlds import KEYS, BadWorld
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_helpers import NETWORK, World, edit
from structlog.testing import capture_logs
from support import forking

from recon_node.base.files import move_into_place
from recon_node.base.steps import run_steps
from recon_node.ceramic import network_range
from recon_node.ceramic.auth.did import controller_of
from recon_node.recon import KeyRange, KeyStore, KeyView
from recon_node.recon.keys import kept_sums
from recon_node.store import Policy, Store, StoreSettings, open_store
from recon_node.store.db import saved_keys
from recon_node.store.db.log import EventLog

CHILD = Path(__file__).with_name("store_child.py")
QUICK = StoreSettings(verifiers=0, synchronous="normal", ceramic_one=False)
WHOLE = KeyRange(*map(bytes, network_range(NETWORK)))
RANGES = [WHOLE, KeyRange(WHOLE.lower, sorted(key for key, _ in World(1).offers())[20])]
NAMED = Policy(allow_controllers=frozenset(["did:web:x", *map(controller_of, KEYS)]))


@contextmanager
def few(*, used: bool = True, saving: bool = False) -> Iterator[None]:
    """Few keys are worth a file and a sum.

    Args:
        used: saved ones are used after any changes.
        saving: a start saves keys that have changed by a tenth or more.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(saved_keys, "FEWEST", 1)
        patch.setattr(kept_sums, "_QUICKLY_HASHED", -1)
        if used:
            patch.setattr(saved_keys, "_MOST_CHANGES", 1e9)
        if not saving:
            patch.setattr(saved_keys, "_MANY_CHANGES", 1e9)
        yield


def made_anew(directory: Path, *, guarded: bool = False) -> list[bytes]:
    """The keys of a log as it is, without saved ones."""
    with tempfile.TemporaryDirectory() as other:
        with closing(sqlite3.connect(directory / "events.sqlite3")) as log:
            log.execute("VACUUM INTO ?", (f"{other}/events.sqlite3",))
        with closing(EventLog(Path(other), NETWORK, QUICK, guarded=guarded)) as log:
            return list(log.load_keys())


def make_sums(keys: KeyView) -> None:
    for key_range in RANGES:
        run_steps(keys.sums.sketch(key_range))
        run_steps(keys.sums.lthash(key_range))


def assert_right(store: Store, keys: list[bytes]) -> None:
    """The keys are these, and what is kept of sums is what would be made of them."""
    assert list(store.keys) == keys
    anew = KeyStore(keys)
    assert store.keys.summarize() == anew.summarize()
    make_sums(store.keys)
    make_sums(anew)
    kept, right = store.keys.sums.kept, anew.sums.kept
    assert {name: made.sum.packed() for name, made in kept.items()} == {
        name: made.sum.packed() for name, made in right.items()
    }


@settings(max_examples=settings().max_examples // 3, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32), guarded=st.booleans())
async def test_any_changes_after_the_keys_were_saved(seed: int, guarded: bool) -> None:
    """Events that wait, come late, are refused, withheld or settled; killed, or closed in order."""
    world = BadWorld(seed)
    rng, policy = world.random, NAMED if guarded else Policy()
    offers = [claim for event in world.events.values() for claim in world.claims(event)]
    rng.shuffle(offers)
    batches = [offers[: len(offers) // 2], *(offers[n::3] for n in range(3)), []]
    with (
        tempfile.TemporaryDirectory() as folder,
        few(used=rng.random() < 0.8, saving=rng.random() < 0.5),
        capture_logs() as logs,
    ):
        directory, keys = Path(folder, "0"), list[bytes]()
        for run, batch in enumerate(batches):
            async with open_store(directory, NETWORK, settings=QUICK, policy=policy) as store:
                assert_right(store, keys)
                await store.admit_remote(batch)
                due = [proof.cid for proof in await store.reader.pending_proofs(1_000)]
                due = [cid for cid in due if rng.random() < 0.4]
                right = 1_700_000_000
                await store.settle_proofs([(c, right if c[-1] % 2 else "wrong") for c in due])
                killed = Path(folder, str(run + 1))
                shutil.copytree(directory, killed)
            directory = killed if run and rng.random() < 0.8 else directory
            keys = made_anew(directory, guarded=guarded)
    assert not [log for log in logs if "are not used" in log["event"]]


async def test_a_process_is_killed_at_any_time(tmp_path: Path, rng: random.Random) -> None:
    """What it had written is added to what was saved before."""
    with few():
        for lines in (1, rng.randrange(2, 300)):
            async with open_store(tmp_path, NETWORK, settings=QUICK) as store:
                await store.admit_remote(World(rng.randrange(2**32)).offers())
                make_sums(store.keys)
            saved = (tmp_path / "keys.saved").read_bytes()
            command = [sys.executable, str(CHILD), str(tmp_path), str(rng.randrange(2**32))]
            with forking.Popen(command, stdout=subprocess.PIPE, text=True) as child:
                for _ in range(lines):
                    child.stdout.readline()
                child.kill()
            assert child.returncode == -9
            assert (tmp_path / "keys.saved").read_bytes() == saved
            keys = made_anew(tmp_path)
            with capture_logs() as logs:
                async with open_store(tmp_path, NETWORK, settings=QUICK) as store:
                    assert_right(store, keys)
            assert [log for log in logs if "brought up to date" in log["event"]]
            assert (tmp_path / "keys.saved").read_bytes() != saved


async def test_a_process_is_killed_while_keys_and_sums_are_saved(tmp_path, monkeypatch):
    moments: list[Path] = []

    def as_it_is() -> None:
        moments.append(tmp_path / str(len(moments)))
        shutil.copytree(tmp_path / "log", moments[-1])

    def move(draft: Path, path: Path) -> None:
        as_it_is()
        move_into_place(draft, path)
        as_it_is()

    with few():
        for seed in (1, 2):
            async with open_store(tmp_path / "log", NETWORK, settings=QUICK) as store:
                await store.admit_remote(World(seed).offers())
                make_sums(store.keys)
                monkeypatch.setattr(saved_keys, "move_into_place", move)
            monkeypatch.undo()
        assert len(moments) == 8
        for moment in moments:
            keys = made_anew(moment)
            async with open_store(moment, NETWORK, settings=QUICK) as store:
                assert_right(store, keys)


async def saved(directory: Path, seed: int) -> list[bytes]:
    """Fill a log, and close it with its sums."""
    async with open_store(directory, NETWORK, settings=QUICK) as store:
        await store.admit_remote(World(seed).offers())
        make_sums(store.keys)
        return list(store.keys)


@contextmanager
def no_sum_is_made() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("recon_node.recon.keys.kept_sums.groups", None)
        yield


async def test_sums_are_there_after_a_start(tmp_path: Path) -> None:
    with few():
        keys = await saved(tmp_path, 1)
        for _ in range(2):
            async with open_store(tmp_path, NETWORK, settings=QUICK) as store:
                with no_sum_is_made():
                    make_sums(store.keys)
                assert_right(store, keys)


async def test_sums_that_were_made_without_a_change_are_saved(tmp_path: Path) -> None:
    with few():
        async with open_store(tmp_path, NETWORK, settings=QUICK) as store:
            await store.admit_remote(World(1).offers())
        written = (tmp_path / "keys.saved").stat().st_mtime_ns
        assert not (tmp_path / "sums.saved").exists()
        async with open_store(tmp_path, NETWORK, settings=QUICK) as store:
            make_sums(store.keys)
        assert (tmp_path / "keys.saved").stat().st_mtime_ns == written
        async with open_store(tmp_path, NETWORK, settings=QUICK) as store:
            with no_sum_is_made():
                make_sums(store.keys)


async def test_sums_of_others_or_damaged_ones_are_not_used(tmp_path: Path) -> None:
    with few():
        keys = await saved(tmp_path / "log", 1)
        await saved(tmp_path / "other", 2)
        sound = (tmp_path / "log" / "sums.saved").read_bytes()
        of_others = (tmp_path / "other" / "sums.saved").read_bytes()
        flipped = [
            sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1 :]
            for at in (0, 20, 40, 1_000, len(sound) // 2, len(sound) - 40, len(sound) - 1)
        ]
        for data in (of_others, b"", sound[:30], sound[:-1], *flipped):
            (tmp_path / "log" / "sums.saved").write_bytes(data)
            with capture_logs() as logs:
                async with open_store(tmp_path / "log", NETWORK, settings=QUICK) as store:
                    assert not store.keys.sums.packed()
                    assert_right(store, keys)
            assert [log for log in logs if log["event"] == "The saved sums are not used"]


async def test_an_earlier_version_has_used_the_directory(tmp_path: Path) -> None:
    """It saves neither sums nor what its keys lack later, and removes one token only."""
    with few():
        await saved(tmp_path, 1)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(saved_keys, "_packed", lambda _: iter(()))
            keys = await saved(tmp_path, 2)
        async with open_store(tmp_path, NETWORK, settings=QUICK) as store:
            assert_right(store, keys)
        edit(tmp_path, "DELETE FROM meta WHERE name = 'saved_keys'")
        async with open_store(tmp_path, NETWORK, settings=QUICK) as store:
            assert_right(store, keys)


async def test_keys_that_do_not_add_up_are_not_used(tmp_path: Path) -> None:
    """Somebody has edited the log: what is in it counts."""
    with few():
        keys = await saved(tmp_path, 1)
        edit(tmp_path, "DELETE FROM meta WHERE name = 'saved_keys'")
        edit(tmp_path, "DELETE FROM events WHERE position = (SELECT max(position) FROM events)")
        with capture_logs() as logs:
            async with open_store(tmp_path, NETWORK, settings=QUICK) as store:
                assert len(store.keys) == len(keys) - 1
        assert any("with all changes since" in log.get("reason", "") for log in logs)


@pytest.mark.parametrize("guarded", [False, True])
async def test_a_write_policy_comes_or_goes(tmp_path: Path, guarded: bool) -> None:
    """Then other events are withheld, though the log is as it was."""
    world = World(3)
    offers = [offer for offer in world.offers() if offer[0].height]
    before, after = (NAMED, Policy()) if guarded else (Policy(), NAMED)
    with few():
        async with open_store(tmp_path, NETWORK, settings=QUICK, policy=before) as store:
            await store.admit_remote(offers)
            make_sums(store.keys)
            assert bool(store.keys) is not guarded
        for policy in (after, after, before):
            keys = made_anew(tmp_path, guarded=policy is NAMED)
            assert bool(keys) is (policy is not NAMED)
            async with open_store(tmp_path, NETWORK, settings=QUICK, policy=policy) as store:
                assert_right(store, keys)
