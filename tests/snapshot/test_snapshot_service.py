"""What a running node does by itself: sync from its sources, make snapshots on a schedule."""

import time
from pathlib import Path

import pytest
import trio
from pydantic import ValidationError
from snapshot_support import KEY, NETWORK, QUICK, events, make_log
from trio.testing import MockClock

from recon_node.api.routes.products.snapshots import describe_sync
from recon_node.snapshot import snapshot_service
from recon_node.snapshot.creating import create_snapshot
from recon_node.snapshot.event_source import LogSource
from recon_node.snapshot.objects import Objects
from recon_node.snapshot.settings import SnapshotSettings, parse_period
from recon_node.snapshot.snapshot_service import open_snapshots
from recon_node.snapshot.upkeep import list_roots
from recon_node.store import StoreError, open_store


def test_a_node_makes_snapshots_and_another_starts_from_them(tmp_path: Path) -> None:
    made = events(40, seed=6)
    url = str(tmp_path / "snapshots")
    settings = SnapshotSettings(url=url, every=60.0, keep=2)
    objects = Objects.open(url, make=True)

    async def counts() -> list[int]:
        roots, _ = await trio.to_thread.run_sync(list_roots, objects)
        return [root.manifest.count for root in roots]

    async def run_node() -> None:
        async with (
            open_store(tmp_path / "a", NETWORK, settings=QUICK) as store,
            open_snapshots(settings, store, KEY) as snapshots,
        ):
            for n in range(3):
                await store.admit_local([event.car for event in made[n * 10 : n * 10 + 10]])
                while 10 * n + 10 not in await counts():  # noqa: ASYNC110
                    await trio.sleep(20)
            while await counts() != [20, 30]:  # noqa: ASYNC110 - the third one pushes out the first
                await trio.sleep(20)
            await trio.sleep(60)
            assert snapshots.durations["create", "ok"].count >= 3
            assert snapshots.created_at > 0

    trio.run(run_node, clock=MockClock(autojump_threshold=0.01))

    async def run_other() -> None:
        sources = SnapshotSettings(sources=(str(tmp_path / "none"), url))
        async with open_store(tmp_path / "b", NETWORK, settings=QUICK) as store:
            async with open_snapshots(sources, store, KEY) as snapshots:
                assert snapshots.latest is not None
                while not snapshots.durations["sync", "failed"].count:  # noqa: ASYNC110
                    await trio.sleep(0.01)
            assert len(store.keys) == 30
            failed, good = snapshots.latest.sources
            assert "does not exist" in str(failed.error)
            assert good.error is None
            assert sum(duration.count for duration in snapshots.durations.values()) == 1
            assert snapshots.created_at == 0

    trio.run(run_other)


@pytest.mark.parametrize(("age", "wait"), [(None, 0.0), (40.0, 20.0), (90.0, 0.0), (-1000.0, 60.0)])
def test_restarts_delay_no_snapshot(age, wait, tmp_path, monkeypatch):
    make_log(tmp_path / "node", events(5, seed=7))
    url = str(tmp_path / "snapshots")
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    if age is not None:
        with monkeypatch.context() as before, LogSource(tmp_path / "node") as source:
            before.setattr(time, "time", lambda: now - age)
            create_snapshot(source, Objects.open(url, make=True), KEY, lambda *step: None)

    async def main() -> None:
        async with (
            open_store(tmp_path / "node", NETWORK, settings=QUICK) as store,
            open_snapshots(SnapshotSettings(url=url, every=60.0), store, KEY) as snapshots,
        ):
            started = trio.current_time()
            while not snapshots.durations["create", "ok"].count:  # noqa: ASYNC110
                await trio.sleep(1)
            assert trio.current_time() - started == pytest.approx(wait, abs=3)

    trio.run(main, clock=MockClock(autojump_threshold=0.05))


def test_a_place_that_cannot_be_written_does_not_stop_the_node(tmp_path: Path) -> None:
    make_log(tmp_path, events(5, seed=7))
    (tmp_path / "file").write_text("in the way")
    url = str(tmp_path / "file" / "below")
    settings = SnapshotSettings(url=url, every=60.0)

    async def main() -> None:
        async with (
            open_store(tmp_path, NETWORK, settings=QUICK) as store,
            open_snapshots(settings, store, KEY) as snapshots,
        ):
            while snapshots.durations["create", "failed"].count < 3:  # noqa: ASYNC110
                await trio.sleep(20)
            assert snapshots.durations["create", "ok"].count == snapshots.created_at == 0

    trio.run(main, clock=MockClock(autojump_threshold=0.01))


def test_a_bug_in_making_a_snapshot_does_not_stop_the_node(tmp_path: Path, monkeypatch) -> None:
    make_log(tmp_path / "node", events(5, seed=7))
    settings = SnapshotSettings(url=str(tmp_path / "snapshots"), every=60.0)
    monkeypatch.setattr(snapshot_service, "create_snapshot", None)

    async def main() -> None:
        async with (
            open_store(tmp_path / "node", NETWORK, settings=QUICK) as store,
            open_snapshots(settings, store, KEY) as snapshots,
        ):
            while snapshots.durations["create", "failed"].count < 2:  # noqa: ASYNC110
                await trio.sleep(20)

    trio.run(main, clock=MockClock(autojump_threshold=0.01))


def test_a_sync_that_the_disk_ends_has_failed_and_was_not_cancelled(tmp_path, monkeypatch):
    make_log(tmp_path / "a", events(5, seed=7))
    url = str(tmp_path / "snapshots")
    with LogSource(tmp_path / "a") as source:
        create_snapshot(source, Objects.open(url, make=True), KEY, lambda *step: None)

    async def fail(*events: object) -> None:
        raise StoreError("the disk is full")

    async def main() -> None:
        async with open_store(tmp_path / "b", NETWORK, settings=QUICK) as store:
            monkeypatch.setattr(store, "admit_remote", fail)
            async with open_snapshots(SnapshotSettings(), store, KEY) as snapshots:
                report = snapshots.start([url])
                while report.seconds is None:  # noqa: ASYNC110
                    await trio.sleep(0.01)
                assert describe_sync(report).state == "done"
                assert [source.error for source in report.sources] == ["the disk is full"]
                assert snapshots.durations["sync", "failed"].count == 1

    trio.run(main)


@pytest.mark.parametrize(
    ("text", "seconds"), [("6h", 21600.0), ("90m", 5400.0), ("1d", 86400.0), (60, 60.0), ("", None)]
)
def test_periods(text: object, seconds: float | None) -> None:
    assert parse_period(text) == seconds


@pytest.mark.parametrize("text", ["6", "six hours", "1s", "0d", True, "-1h"])
def test_what_is_not_a_period(text: object) -> None:
    with pytest.raises(ValueError, match=r"not a time|once a minute"):
        parse_period(text)


def test_signers_are_checked() -> None:
    with pytest.raises(ValidationError, match="did:key"):
        SnapshotSettings(signers=("did:web:example.com",))
