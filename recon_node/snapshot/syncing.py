"""Bring a node up to date from snapshots: fetch what it lacks, and have it admitted.

The tree is opened level by level, where its hashes differ from those of the node's own keys. So
a sync takes a round trip for each level and one for the events, whatever is missing. From the level
above the leaves on, a few parts of the tree are under way at a time, and one admits its events
while the next one fetches: memory stays bounded, and an empty node reads at full speed.

Snapshots are read one after the other. Each fetches what the ones before could not deliver. A
source that cannot be used is named, and the others go on. A sync that was interrupted begins anew,
and finds what was admitted by then; what was under way, a few megabytes, is fetched again.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, TypeVar

import structlog
import trio

from recon_node.base.errors import unwrapped, without_passwords
from recon_node.ceramic import EventId, EventIdError
from recon_node.recon import KeyRange, covers, merge_ranges
from recon_node.snapshot.objects import Faults, ObjectError, Objects, SnapshotError, SnapshotFault
from recon_node.snapshot.packs import PackExtent
from recon_node.snapshot.root import LATEST, RootObject
from recon_node.snapshot.snapshot_reader import (
    SnapshotReader,
    children_of,
    event_batches,
    read_root,
)
from recon_node.snapshot.tree.nodes import LeafNode
from recon_node.snapshot.tree.update import Branch, matcher, whole
from recon_node.store import Store, StoreError

T = TypeVar("T")

_MAX_PARTS_UNDER_WAY: Final = 2
"""Parts under way at once."""
_LOOKED_UP_AT_ONCE: Final = 1000
"""Keys that are looked up at once."""


@dataclass(slots=True)
class Synced(Faults):
    """What a sync did."""

    total: int = 0
    """Events of the snapshots, in the node's ranges or not."""
    done: int = 0
    """Of these, those that are here, or were tried."""
    counts: Counter[str] = field(default_factory=Counter)
    """Events by verdict: "new", "known", "refused"."""
    waves: int = 0
    """Dependent round trips after the root object, in the deepest part."""


async def sync_snapshot(
    reader: SnapshotReader,
    target: Store,
    result: Synced,
    ranges: Sequence[KeyRange],
    on_progress: Callable[[], None] = lambda: None,
) -> None:
    """Fetch what a node lacks of a snapshot, and have it admitted.

    `result` is updated on the way, and the reader should note its faults there. The node wants
    `ranges`, ascending and apart.

    Raises:
        SnapshotError: the snapshot is of another network, or its store was given up.
        StoreError: the node's disk failed.
    """
    manifest = reader.manifest
    if manifest.network != target.network:
        raise SnapshotError(
            f"the snapshot in {reader.objects.url} is of the network {manifest.network.name}, but "
            f"the node is on {target.network.name} (its setting `network`, RECON_NODE_NETWORK)"
        )
    result.total += manifest.count
    if manifest.tree is not None:
        sync = _Sync(reader, target, result, ranges, on_progress)
        async with trio.open_nursery() as nursery:
            await sync.open(whole(manifest.tree.link), nursery)


async def in_thread(work: Callable[..., T], *arguments: object) -> T:
    """Make requests to an object store in a thread; a cancelled call does not wait for them."""
    return await trio.to_thread.run_sync(
        work,
        *arguments,
        abandon_on_cancel=True,  # type: ignore[call-arg]  # trio-typing's stubs are of trio 0.22
    )


@dataclass
class _Sync:
    reader: SnapshotReader
    target: Store
    result: Synced
    ranges: Sequence[KeyRange]
    on_progress: Callable[[], None]

    def __post_init__(self) -> None:
        self._slots = trio.Semaphore(_MAX_PARTS_UNDER_WAY)
        # The snapshot has only keys in its own ranges: others of the node's must not count.
        self._matches = matcher(self.target.keys, self.reader.manifest.ranges)

    async def open(self, top: Branch, nursery: trio.Nursery) -> None:
        """Open the nodes of a tree that differ, depth first."""
        parts = [(part, 0) for part in self.reader.divide(await self._differing([top]), 0)]
        while parts:
            part, wave = parts.pop()  # and the round trips that had to come before
            if part[0].link.level == 0:
                await self._slots.acquire()
                nursery.start_soon(self._take_leaves, part, wave)
                continue
            children = await in_thread(lambda part: children_of(self.reader.open(part)), part)
            wave += self.reader.is_asked(part)
            self.reader.forget(part)
            below = await self._differing(children)
            ahead = sum(len(part) for part, _ in parts)
            parts += [(part, wave) for part in self.reader.divide(below, ahead)]

    async def _differing(self, level: Sequence[Branch]) -> list[Branch]:
        """Return the branches that have other keys than the node, in what the node wants."""
        differing: list[Branch] = []
        for branch in level:
            if not any(wanted.intersect(branch.bounds) for wanted in self.ranges):
                self.reader.forget([branch])
            elif self._matches(branch.bounds, branch.link.hash):
                self.reader.forget([branch])
                self.result.done += self.target.keys.count(branch.bounds)
            else:
                differing.append(branch)
            await trio.lowlevel.checkpoint()
        self.on_progress()
        return differing

    async def _take_leaves(self, part: Sequence[Branch], wave: int) -> None:
        """Fetch the missing events of some leaves, and have them admitted."""
        try:
            wanted: list[tuple[bytes, PackExtent]] = []
            for _, leaf, extents in await in_thread(self.reader.open, part):
                assert isinstance(leaf, LeafNode)
                missing = await self._missing(leaf.keys, extents)
                self.result.done += len(leaf.keys) - len(missing)
                wanted += missing
            waves = wave + self.reader.is_asked(part) + bool(wanted)
            self.result.waves = max(self.result.waves, waves)
            for batch in event_batches(wanted):
                await self._take_events(batch)
            self.reader.forget(part)
        finally:
            self._slots.release()

    async def _take_events(self, wanted: Sequence[tuple[bytes, PackExtent]]) -> None:
        """Fetch some events, and have them admitted."""
        events = await in_thread(self.reader.events, wanted)
        self.target.filling.note(events)
        verdicts = await self.target.admit_remote(events)
        for (event_id, _), verdict in zip(events, verdicts, strict=True):
            self.result.counts[verdict.status] += 1
            if verdict.status == "refused":
                self.result.note(SnapshotFault(f"event {event_id}", f"refused: {verdict.reason}"))
        self.result.done += len(wanted)
        self.on_progress()

    async def _missing(
        self, keys: Sequence[bytes], extents: Sequence[PackExtent]
    ) -> list[tuple[bytes, PackExtent]]:
        """Return the keys that the node lacks and wants."""
        held = self.target.keys
        missing: list[tuple[bytes, PackExtent]] = []
        for start in range(0, len(keys), _LOOKED_UP_AT_ONCE):
            part = slice(start, start + _LOOKED_UP_AT_ONCE)
            missing += (
                (key, extent)
                for key, extent in zip(keys[part], extents[part], strict=True)
                if key not in held and covers(self.ranges, key) and not self._is_ruled_out(key)
            )
            await trio.lowlevel.checkpoint()
        return missing

    def _is_ruled_out(self, key: bytes) -> bool:
        try:
            return self.target.is_ruled_out(EventId(key))
        except EventIdError:
            return False  # it is reported when its event is read


logger = structlog.get_logger(__name__)


@dataclass(slots=True)
class SourceReport:
    """One source of a sync."""

    address: str = field(repr=False)
    """Its URL, perhaps with a password."""
    name: str | None = None
    """Of the snapshot; None: its root object has not been read."""
    error: str | None = None
    """Why it cannot be used, or no longer."""
    objects: Objects | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        """Where it is, for people."""
        return without_passwords(self.address)

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
    """Whether it was stopped before its end; True while it is under way."""

    @property
    def is_whole(self) -> bool:
        """Whether it is over and nothing was wrong."""
        return self.seconds is not None and not self.has_failed

    @property
    def has_failed(self) -> bool:
        """Whether it has not done, or not yet, all that it was to do."""
        faults = self.synced.fault_count > 0 or any(source.error for source in self.sources)
        return self.cancelled or faults


async def sync_all(
    report: SnapshotSync,
    store: Store,
    signers: Collection[str],
    on_progress: Callable[[], None] = lambda: None,
) -> None:
    """Sync a store from the sources of a report, which is updated on the way.

    Snapshots must be signed by one of the did:keys in `signers`; none: by anyone.

    Raises:
        StoreError: the node's disk failed.
    """
    report.cancelled = True
    try:
        roots = await _read_roots(report.sources, signers)
        ranges = merge_ranges(key_range for *_, root in roots for key_range in root.manifest.ranges)
        store.filling.narrow(ranges)
        for source, objects, root in roots:
            reader = SnapshotReader(objects, root, report.synced.note)
            with _ending_only(source):
                await sync_snapshot(reader, store, report.synced, store.wanted.ranges, on_progress)
        report.cancelled = False
    except StoreError:
        report.cancelled = False
        raise
    finally:
        # Last, without a checkpoint behind it: who sees this may start another sync.
        report.seconds = time.monotonic() - report.started


async def _read_roots(
    sources: Sequence[SourceReport], signers: Collection[str]
) -> list[tuple[SourceReport, Objects, RootObject]]:
    """Return the root objects of the sources that have one, in order."""
    roots: list[tuple[SourceReport, Objects, RootObject]] = []
    for source in sources:
        with _ending_only(source):
            source.objects = objects = await in_thread(Objects.open, source.address)
            root = await in_thread(read_root, objects, LATEST, signers or None)
            source.name = root.name
            roots.append((source, objects, root))
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
        logger.exception("A snapshot could not be read: a bug in this node", url=source.url)
        source.error = f"this node failed to read it: {error!r}"
