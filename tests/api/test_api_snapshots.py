"""/ceramic/snapshots/sync: a running node syncs from snapshots, one sync at a time."""

import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from api_samples import Api, Events, api_of
from nacl.signing import SigningKey

from recon_node.ceramic import Network
from recon_node.ceramic.auth.did import controller_of
from recon_node.ipld import multibase
from recon_node.snapshot.creating import create_snapshot
from recon_node.snapshot.event_source import LogSource
from recon_node.snapshot.objects import Objects
from recon_node.snapshot.settings import SnapshotSettings
from recon_node.snapshot.snapshot_service import open_snapshots
from recon_node.store import Store, StoreSettings, open_store

KEY = SigningKey(b"k" * 32)
PATH = "/ceramic/snapshots/sync"
EVENTS = 60


@pytest.fixture
async def url(tmp_path: Path, sample: Events) -> str:
    """A snapshot of another node's events."""
    cars = [multibase.decode(event["car"]) for event in sample[:EVENTS]]
    settings = StoreSettings(verifiers=0)
    async with open_store(tmp_path / "other", Network.local(7), settings=settings) as other:
        await other.admit_local(cars)

    def write() -> None:
        with LogSource(tmp_path / "other") as source:
            objects = Objects.open(str(tmp_path / "snapshots"), make=True)
            create_snapshot(source, objects, KEY, lambda *step: None)

    await trio.to_thread.run_sync(write)
    return str(tmp_path / "snapshots")


@pytest.fixture
async def snapshots_api(store: Store, tmp_path: Path) -> AsyncIterator[Api]:
    async with (
        open_snapshots(SnapshotSettings(), store, KEY) as snapshots,
        api_of(store, snapshots=snapshots) as client,
    ):
        yield client


async def over(api: Api) -> dict[str, object]:
    with trio.fail_after(60):
        while True:
            status: dict[str, object] = (await api.get(PATH)).json()
            if status["state"] != "running":
                return status
            await trio.sleep(0.01)


async def test_a_running_node_syncs(snapshots_api: Api, store: Store, url: str) -> None:
    assert (await snapshots_api.get(PATH)).status_code == 404
    assert (await snapshots_api.delete(PATH)).status_code == 404
    answer = await snapshots_api.post(PATH, json={"urls": [url, "/nowhere"]})
    assert answer.status_code == 202, answer.text
    assert answer.json()["state"] == "running"
    status = await over(snapshots_api)
    assert (status["state"], status["new"], len(store.keys)) == ("done", EVENTS, EVENTS)
    good, bad = status["sources"]  # type: ignore[misc]
    assert good["error"] is None
    assert good["received"] > 0
    assert "does not exist" in bad["error"]
    trusted = {"urls": [url], "signers": [controller_of(SigningKey(b"x" * 32))]}
    assert (await snapshots_api.post(PATH, json=trusted)).status_code == 202
    [source] = (await over(snapshots_api))["sources"]  # type: ignore[misc]
    assert "not trusted" in source["error"]


async def test_one_sync_at_a_time_which_can_be_cancelled_and_continued(
    snapshots_api, store, url, monkeypatch
):
    started, go_on = threading.Event(), threading.Event()
    get_range = Objects.get_range

    def wait(self: Objects, name: str, start: int, size: int) -> bytes:
        started.set()
        go_on.wait(60)
        return get_range(self, name, start, size)

    monkeypatch.setattr(Objects, "get_range", wait)
    body = {"urls": [url]}
    assert (await snapshots_api.post(PATH, json=body)).status_code == 202
    busy = await snapshots_api.post(PATH, json=body)
    assert busy.status_code == 409
    assert "under way" in busy.json()["message"]
    with trio.fail_after(60):
        while not started.is_set():  # noqa: ASYNC110 - a thread sets it
            await trio.sleep(0.01)
    assert (await snapshots_api.delete(PATH)).status_code == 204
    assert (await over(snapshots_api))["state"] == "cancelled"
    assert len(store.keys) == 0
    go_on.set()
    assert (await snapshots_api.post(PATH, json=body)).status_code == 202
    assert (await over(snapshots_api))["new"] == EVENTS


async def test_requests_that_are_refused(snapshots_api: Api) -> None:
    body: dict[str, object]
    for body in ({}, {"urls": []}, {"urls": "x"}, {"urls": ["x"], "signers": ["did:web:x"]}):
        assert (await snapshots_api.post(PATH, json=body)).status_code == 400, body
