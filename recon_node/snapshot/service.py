"""Snapshots of a running node: sync from its sources once, and make its own on a schedule.

A snapshot that fails is logged and tried again at its next time: neither an object store nor its
network can stop the node.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

import structlog
import trio
from nacl.signing import SigningKey

from recon_node.snapshot.creating import Created, DamagedBaseError, create_snapshot
from recon_node.snapshot.objects import ObjectError, Objects
from recon_node.snapshot.reading import SnapshotError, SnapshotReader, read_root
from recon_node.snapshot.settings import SnapshotSettings
from recon_node.snapshot.sources import StoreSource
from recon_node.snapshot.syncing import Synced, in_thread, sync_snapshot
from recon_node.snapshot.upkeep import collect
from recon_node.store import Store, StoreError

log = structlog.get_logger(__name__)

MIN_AGE: Final = timedelta(days=1)
"""Unused packs that are younger are not deleted: another node may be about to use them."""
_LOGGED_FAULTS: Final = 5


async def run_snapshots(settings: SnapshotSettings, store: Store, key: SigningKey) -> None:
    """Do what the settings ask for. Returns when there is nothing (more) to do.

    Args:
        settings: of the node.
        store: of the node.
        key: signs its snapshots.
    """
    for url in settings.sources:
        await _sync(url, settings.signers or None, store)
    if settings.url and settings.every is not None:
        while True:
            await trio.sleep(settings.every)
            await _create(settings, store, key)


async def sync_from(
    url: str,
    store: Store,
    signers: tuple[str, ...] | None,
    result: Synced,
    on_progress: Callable[[], None] = lambda: None,
) -> Objects:
    """Sync a store from the newest snapshot at a URL; return the object store, for its counts.

    Raises:
        SnapshotError: there is no snapshot that can be used.
        ObjectError: the URL names no object store.
        StoreError: the node's disk failed.
    """
    objects = await in_thread(partial(Objects.open, url))
    root = await in_thread(partial(read_root, objects, trusted=signers))
    reader = SnapshotReader(objects, root, result.note)
    await sync_snapshot(reader, store, result, store.wanted.ranges, on_progress)
    return objects


async def _sync(url: str, signers: tuple[str, ...] | None, store: Store) -> None:
    result = Synced()
    log.info("Syncing from a snapshot", url=url)
    try:
        objects = await sync_from(url, store, signers, result)
    except (SnapshotError, ObjectError, StoreError) as error:
        log.warning("Cannot sync from a snapshot; peers have the events too", reason=str(error))
        return
    for fault in result.faults[:_LOGGED_FAULTS]:
        log.warning("A part of a snapshot cannot be used", reason=str(fault))
    log.info(
        "Synced from a snapshot",
        url=url,
        new=result.counts["new"],
        faults=result.fault_count,
        requests=objects.traffic.requests,
        bytes=objects.traffic.received,
    )


async def _create(settings: SnapshotSettings, store: Store, key: SigningKey) -> None:
    def create() -> Created:
        objects = Objects.open(settings.url)
        make = partial(create_snapshot, StoreSource(store), objects, key, lambda *step: None)
        try:
            created = make()
        except DamagedBaseError as error:
            log.warning("Making a whole new snapshot", reason=str(error))
            created = make(afresh=True)
        collect(objects, settings.keep, MIN_AGE, datetime.now(UTC))
        return created

    try:
        done = await in_thread(create)
    except (SnapshotError, ObjectError, StoreError) as error:
        log.error("No snapshot was made; trying again next time", reason=str(error))
        return
    log.info(
        "Made a snapshot" if done.is_new else "A snapshot was due, but nothing is new",
        url=settings.url,
        name=done.root.name,
        events=done.root.manifest.count,
        new=done.events,
    )
