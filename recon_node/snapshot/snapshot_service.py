"""Snapshots of a running node: syncs from sources, and its own snapshots on a schedule.

Syncs come from the settings, when the node starts, and from its API; one runs at a time. What fails
is logged and shown; neither an object store nor its network nor a bug here can stop the node.
"""

import math
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import product
from typing import Final

import structlog
import trio
from nacl.signing import SigningKey

from recon_node.base.timing import Durations
from recon_node.ceramic.auth.did import controller_of
from recon_node.snapshot.creating import Created, DamagedBaseError, create_snapshot
from recon_node.snapshot.event_source import StoreSource
from recon_node.snapshot.objects import ObjectError, Objects, SnapshotError
from recon_node.snapshot.settings import SnapshotSettings
from recon_node.snapshot.snapshot_reader import read_root
from recon_node.snapshot.syncing import SnapshotSync, SourceReport, in_thread, sync_all
from recon_node.snapshot.upkeep import collect
from recon_node.store import Store, StoreError

logger = structlog.get_logger(__name__)

MIN_AGE: Final = timedelta(days=1)
"""Unused packs that are younger are not deleted: another node may be about to use them."""
_LOGGED_FAULTS: Final = 5
_OPERATIONS: Final = ("create", "sync")
_OUTCOMES: Final = ("ok", "failed")
_BOUNDS: Final = (0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
"""Of the histograms, in seconds."""


class BusyError(Exception):
    """A sync is under way already."""


class Snapshots:
    """The snapshots of a running node.

    Attributes:
        latest: the sync that is under way, or else the latest one; None: there was none.
        durations: how long everything took, by operation (create, sync) and outcome (ok, failed).
        created_at: when the last snapshot was made, in Unix seconds; 0 if none was since the start.
    """

    def __init__(
        self, settings: SnapshotSettings, store: Store, key: SigningKey, nursery: trio.Nursery
    ) -> None:
        self._settings = settings
        self._store = store
        self._key = key
        self._scope: trio.CancelScope | None = None
        self._nursery = nursery
        self.latest: SnapshotSync | None = None
        self.durations: dict[tuple[str, ...], Durations] = {
            labels: Durations(_BOUNDS) for labels in product(_OPERATIONS, _OUTCOMES)
        }
        self.created_at = 0.0

    def start(self, urls: Sequence[str], signers: Sequence[str] | None = None) -> SnapshotSync:
        """Start a sync from some URLs.

        Snapshots of `signers` are read; None: of those in the settings.

        Raises:
            BusyError: another one is under way.
        """
        if self._scope is not None:
            raise BusyError("another sync from snapshots is under way")
        self.latest = report = SnapshotSync([SourceReport(url) for url in urls])
        self._scope = trio.CancelScope()
        self._store.filling.begin(self._store.wanted.ranges)
        chosen = self._settings.signers if signers is None else tuple(signers)
        self._nursery.start_soon(self._sync, report, chosen, self._scope)
        return report

    def cancel(self) -> bool:
        """Stop the sync that is under way; return whether there was one. It can be continued."""
        if self._scope is None:
            return False
        self._scope.cancel()
        return True

    async def _sync(
        self, report: SnapshotSync, signers: Sequence[str], scope: trio.CancelScope
    ) -> None:
        started = trio.current_time()
        logger.info("Syncing from snapshots", urls=[source.url for source in report.sources])
        try:
            with scope:
                await sync_all(report, self._store, signers)
        except StoreError as error:
            reason = str(error)
            logger.warning("Cannot sync from snapshots; peers have the events too", reason=reason)
            for source_report in report.sources:
                source_report.error = source_report.error or reason
        finally:
            self._scope = None
            self._store.filling.end()
        _log_sync(report)
        if not report.cancelled:
            self._took("sync", trio.current_time() - started, ok=report.is_whole)

    def _took(self, operation: str, seconds: float, *, ok: bool) -> None:
        self.durations[operation, "ok" if ok else "failed"].observe(seconds)

    async def create_regularly(self, every: float) -> None:
        """Make a snapshot each time this many seconds have passed, without end.

        The first one is due when the latest of this node is as old, so restarts delay none.
        """
        await trio.sleep(max(0.0, every - await in_thread(self._age)))
        while True:
            started = trio.current_time()
            is_made = await self._try_to_create()
            self._took("create", trio.current_time() - started, ok=is_made)
            await trio.sleep(every)

    def _age(self) -> float:
        """Return how many seconds ago this node made the newest snapshot there; infinite if not."""
        try:
            root = read_root(Objects.open(self._settings.url), trusted=[controller_of(self._key)])
        except (SnapshotError, ObjectError):
            return math.inf  # if anything is wrong, making the next one reports it
        return max(0.0, time.time() - root.manifest.created)  # clocks are set back

    async def _try_to_create(self) -> bool:
        """Make a snapshot; return whether that worked."""
        try:
            done = await in_thread(self._create)
        except (SnapshotError, ObjectError, StoreError) as error:
            logger.error("No snapshot was made; trying again next time", reason=str(error))
            return False
        except Exception:
            logger.exception("A bug kept a snapshot from being made; trying again next time")
            return False
        self.created_at = time.time()
        logger.info(
            "Made a snapshot" if done.is_new else "A snapshot was due, but nothing is new",
            url=self._settings.url,
            name=done.root.name,
            events=done.root.manifest.count,
            new=done.events,
        )
        return True

    def _create(self) -> Created:
        objects = Objects.open(self._settings.url, make=True)
        source = StoreSource(self._store)
        make = partial(create_snapshot, source, objects, self._key, lambda *step: None)
        try:
            created = make()
        except DamagedBaseError as error:
            logger.warning("Making a whole new snapshot", reason=str(error))
            created = make(afresh=True)
        collect(objects, self._settings.keep, MIN_AGE, datetime.now(UTC))
        return created


@asynccontextmanager
async def open_snapshots(
    settings: SnapshotSettings, store: Store, key: SigningKey
) -> AsyncIterator[Snapshots]:
    """Start what the settings ask for; on leaving, cancel what is under way."""
    async with trio.open_nursery() as nursery:
        snapshots = Snapshots(settings, store, key, nursery)
        if settings.sources:
            snapshots.start(settings.sources)
        if settings.url and settings.every is not None:
            nursery.start_soon(snapshots.create_regularly, settings.every)
        yield snapshots
        nursery.cancel_scope.cancel()


def _log_sync(report: SnapshotSync) -> None:
    synced = report.synced
    for source in report.sources:
        if source.error is not None:
            logger.warning("Cannot use a snapshot", url=source.url, reason=source.error)
    for fault in synced.faults[:_LOGGED_FAULTS]:
        logger.warning("A part of a snapshot cannot be used", reason=str(fault))
    logger.info(
        "Sync from snapshots cancelled" if report.cancelled else "Synced from snapshots",
        new=synced.counts["new"],
        faults=synced.fault_count,
        requests=sum(source.requests for source in report.sources),
        bytes=sum(source.received for source in report.sources),
    )
