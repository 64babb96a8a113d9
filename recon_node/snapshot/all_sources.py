"""Sync a node from the newest snapshots at some URLs, one after the other.

Each fetches what the ones before could not deliver. A source that cannot be used is named, and the
others go on. What was fetched and checked is kept in
the node's data directory (see `kept`) until a sync has found nothing wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import structlog
import trio

from recon_node.exception_groups import unwrapped
from recon_node.snapshot.faults import SnapshotError
from recon_node.snapshot.kept import KeptFile
from recon_node.snapshot.objects import ObjectError, Objects
from recon_node.snapshot.reading import SnapshotReader, read_root
from recon_node.snapshot.root import RootObject
from recon_node.snapshot.syncing import Synced, in_thread, sync_snapshot
from recon_node.store import Store, StoreError

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class SourceReport:
    """One source of a sync."""

    url: str
    name: str | None = None
    """Of the snapshot; None: its root object has not been read."""
    error: str | None = None
    """Why it cannot be used, or no longer."""
    objects: Objects | None = field(default=None, repr=False)

    @property
    def requests(self) -> int:
        """Requests so far."""
        return 0 if self.objects is None else self.objects.traffic.requests

    @property
    def received(self) -> int:
        """Bytes so far."""
        return 0 if self.objects is None else self.objects.traffic.received


@dataclass(slots=True)
class SnapshotSync:
    """A sync from some sources, under way or over."""

    sources: list[SourceReport]
    synced: Synced = field(default_factory=Synced)
    started: float = field(default_factory=time.monotonic)
    seconds: float | None = None
    """How long it took; None: it is under way."""
    cancelled: bool = False
    """Whether it ended before it was done."""

    @property
    def is_whole(self) -> bool:
        """Whether it is over and nothing was wrong."""
        return self.seconds is not None and not self.has_failed

    @property
    def has_failed(self) -> bool:
        """Whether it has not done, or not yet, all that it was to do."""
        faults = self.synced.fault_count > 0 or any(each.error for each in self.sources)
        return self.cancelled or faults


async def sync_all(
    report: SnapshotSync,
    store: Store,
    signers: Collection[str],
    data_dir: Path,
    on_progress: Callable[[], None] = lambda: None,
) -> None:
    """Sync a store from the sources of a report, which is updated on the way.

    Args:
        report: a new one.
        store: of the node.
        signers: did:keys of whom the snapshots must be signed; none: by anyone.
        data_dir: of the node.
        on_progress: called whenever the report has changed.

    Raises:
        StoreError: the node's disk failed.
    """
    kept: KeptFile | None = None
    report.cancelled = True
    try:
        kept = await in_thread(partial(KeptFile, data_dir))
        roots = await _read_roots(report.sources, signers)
        await in_thread(partial(kept.forget_other_roots, [root.cid for _, root in roots]))
        for source, root in roots:
            await _sync_one(source, root, store, report.synced, kept, on_progress)
        report.cancelled = False
    finally:
        if kept is not None:
            with trio.CancelScope(shield=True):
                close = partial(kept.close, is_done=not report.has_failed)
                await trio.to_thread.run_sync(close)
        # Last, without a checkpoint behind it: who sees this may start another sync.
        report.seconds = time.monotonic() - report.started


async def _read_roots(
    sources: Sequence[SourceReport], signers: Collection[str]
) -> list[tuple[SourceReport, RootObject]]:
    """Return the root objects of the sources that have one, in order."""
    roots: list[tuple[SourceReport, RootObject]] = []

    def read(source: SourceReport) -> RootObject:
        source.objects = Objects.open(source.url)
        return read_root(source.objects, trusted=signers or None)

    for source in sources:
        with _ending_only(source):
            root = await in_thread(partial(read, source))
            source.name = root.name
            roots.append((source, root))
    return roots


@contextmanager
def _ending_only(source: SourceReport) -> Iterator[None]:
    """Let whatever goes wrong with a source end only that one: what it holds is somebody else's."""
    try:
        with unwrapped(SnapshotError, StoreError):
            yield
    except (SnapshotError, ObjectError) as error:
        source.error = str(error)
    except StoreError:
        raise
    except Exception as error:
        log.exception("A snapshot could not be read: a bug in this node", url=source.url)
        source.error = f"this node failed to read it: {error!r}"


async def _sync_one(
    source: SourceReport,
    root: RootObject,
    store: Store,
    result: Synced,
    kept: KeptFile,
    on_progress: Callable[[], None],
) -> None:
    assert source.objects is not None
    reader = SnapshotReader(source.objects, root, result.note, kept)
    with _ending_only(source):
        await sync_snapshot(reader, store, result, store.wanted.ranges, kept.drop, on_progress)
