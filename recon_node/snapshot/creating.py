"""Write a snapshot: what the newest one in the store lacks, then a new root object.

All calls block; run them in a thread.

With a snapshot to build on, only the leaves that differ are read, and only new events, the nodes on
their way to the root, and the root object are written. Everything goes into new packs; old packs
are never changed. So a snapshot costs what is new, but packs gather what later snapshots no longer
use. When that is more than what they use, or there are too many packs, the next snapshot starts
afresh: that costs no more than what was written since.

The store has a snapshot once its root object is there, which is written last. If a process dies
before, the packs that it wrote stay unused; the next one finds those that it would write again by
their names, and `collect` deletes the others.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from nacl.signing import SigningKey

from recon_node.base.steps import run_steps
from recon_node.ceramic import EventId
from recon_node.ceramic.auth.did import controller_of
from recon_node.ipld import CID, CarError
from recon_node.recon import KeyRange, covers
from recon_node.snapshot.event_source import EventSource
from recon_node.snapshot.objects import MissingObjectError, Objects, SnapshotError, SnapshotFault
from recon_node.snapshot.packs import (
    PACK_HEADER,
    PackExtent,
    PackWriter,
    encode_locator,
    event_body,
    located,
)
from recon_node.snapshot.root import (
    LATEST,
    MAX_RANGES,
    MAX_TOP_BYTES,
    RootError,
    RootObject,
    SnapshotFeed,
    SnapshotManifest,
    SnapshotPage,
    decode_root,
    encode_page,
    encode_root,
    page_name,
    ranges_to_write,
)
from recon_node.snapshot.snapshot_reader import SnapshotReader
from recon_node.snapshot.tree.build import NewNode, build
from recon_node.snapshot.tree.nodes import HIGHEST, LOWEST, InnerNode, LeafNode, Link, Root, decode
from recon_node.snapshot.tree.update import TreeChange, differing_leaves, update

_PAGE: Final = 1000
"""Events read at once."""

Progress = Callable[[str, int, int | None], None]
"""Called with the current step, how much of it is done, and of how much (None: unknown)."""


class DamagedBaseError(SnapshotError):
    """The newest snapshot cannot be built on; one that starts anew can be made."""


@dataclass(slots=True)
class Created:
    """A snapshot that was made, or is there already."""

    root: RootObject
    is_new: bool
    """False: nothing has changed since the newest one."""
    base: RootObject | None
    """The snapshot that it builds on."""
    events: int = 0
    """Events written."""
    nodes: int = 0
    packs: int = 0
    pages: int = 0
    """Pages of feed positions written."""
    left_out: list[str] = field(default_factory=list)
    """Events that the log has, but could not read."""


class SnapshotWriter:
    """Writes one snapshot.

    `put` writes the packs and pages, whose names follow from their bytes.
    """

    def __init__(
        self,
        source: EventSource,
        objects: Objects,
        key: SigningKey,
        progress: Progress,
        pack_bytes: int,
        base: RootObject | None,
        put: Callable[[str, bytes], None],
    ) -> None:
        self._source = source
        self._objects = objects
        self._put = put
        self._key = key
        self._progress = progress
        self._base = base
        self._packs = [] if base is None else list[tuple[CID, int] | None](base.manifest.packs)
        self._events = PackWriter(put, self._packs, pack_bytes, PACK_HEADER)
        self._nodes = PackWriter(put, self._packs, pack_bytes)
        self._event_extents: dict[bytes, PackExtent] = {}
        self._node_extents: dict[CID, PackExtent] = {}
        self._upper: dict[CID, tuple[bytes, bytes]] = {}
        self._made = Created(None, is_new=True, base=base)  # type: ignore[arg-type]
        self._live = 0

    def run(self, created: int) -> Created:
        """Write everything; the root object last."""
        base = self._base
        epoch, position = self._source.feed_end()  # before the keys: there may be more by then
        if base is None:
            tree = self._build()
        else:
            self._live = base.manifest.live
            tree, feed = self._update(base), base.manifest.feed
            has_feed = feed is None or (feed.epoch, feed.position) == (epoch, position)
            if tree == base.manifest.tree and has_feed:
                return Created(base, is_new=False, base=base)
        self._events.close()
        self._nodes.close()
        self._made.packs = len(self._packs) - (0 if base is None else len(base.manifest.packs))
        manifest = SnapshotManifest(
            network=self._source.network,
            interests=self._source.interests,
            ranges=self._source.ranges,
            created=created,
            tree=tree,
            extent=None if tree is None else self._node_extents[tree.link.cid],
            packs=[pack for pack in self._packs if pack is not None],
            live=self._live,
            feed=self._write_feed(epoch, position),
        )
        root, data = encode_root(manifest, self._key, self._top(tree))
        self._objects.put(root.name, data)
        self._objects.put(LATEST, data)
        self._made.root = root
        return self._made

    def _write_feed(self, epoch: str, position: int) -> SnapshotFeed | None:
        """Write the new feed positions; return None if the snapshot lacks some of the events."""
        base = None if self._base is None else self._base.manifest.feed
        if base is not None and (base.epoch != epoch or base.position > position):
            base = None
        left_out, ours = set(self._made.left_out), self._source.ranges
        pages, stretches = ranges_to_write(base, position)
        for after, upto in stretches:
            rows = self._source.feed_rows(after, upto)
            if len(rows) != upto - after or not all(covers(ours, key) for _, key, *_ in rows):
                return None
            lost = [row[0] for row in rows if str(EventId(row[1])) in left_out]
            if lost:
                rows = [row for row in rows if row[0] < min(lost)]
            if rows:
                cid, data = encode_page(rows)
                self._put(page_name(cid), data)
                self._made.pages += 1
                pages.append(SnapshotPage(cid, len(data), after, after + len(rows)))
            if lost:
                break
        return SnapshotFeed(epoch, pages[-1].upto if pages else 0, tuple(pages))

    def _build(self) -> Root | None:
        held = self._source.keys(KeyRange(LOWEST, HIGHEST))
        return run_steps(build(self._written(held, self._source.count())), self._add_node)

    def _update(self, base: RootObject) -> Root | None:
        tree = base.manifest.tree
        if tree is None:
            return self._build()
        faults: list[SnapshotFault] = []
        reader = SnapshotReader(self._objects, base, faults.append)
        try:
            return self._update_with(reader, tree)
        except SnapshotError as error:
            reasons = "; ".join(map(str, [error, *faults[:3]]))
            raise DamagedBaseError(
                f"the snapshot to build on is damaged ({reasons}): use --afresh, which writes "
                "everything again"
            ) from None

    def _update_with(self, reader: SnapshotReader, tree: Root) -> Root | None:
        blocks: dict[CID, bytes] = {}
        self._progress("comparing", 0, None)
        leaves = reader.answer(differing_leaves(tree.link, self._source.matches, blocks), blocks)
        changes: list[TreeChange] = []
        for done, (branch, leaf) in enumerate(leaves):
            known = set(leaf.keys)
            now = list(self._source.keys(branch.bounds))
            written = set(self._written((key for key in now if key not in known), None))
            keys = [key for key in now if key in known or key in written]
            changes.append(TreeChange(branch.link.lower, len(leaf.keys), keys))
            self._progress("writing events", done + 1, len(leaves))
        root, made = reader.answer(update(tree, changes, blocks), blocks)
        self._event_extents = reader.event_extents | self._event_extents
        for new in made:
            children = new.node.children if isinstance(new.node, InnerNode) else ()
            self._find((child.cid for child in children), reader)
            self._add_node(new)
        if root is not None:
            self._find([root.link.cid], reader)
        return root

    def _find(self, nodes: Iterable[CID], reader: SnapshotReader) -> None:
        """Note where nodes are that the base has."""
        for cid in nodes:
            if cid not in self._node_extents:
                self._node_extents[cid] = reader.extent_of(cid)

    def _written(self, keys: Iterable[bytes], total: int | None) -> Iterator[bytes]:
        """Write the events of some keys; yield the keys of those that are here."""
        source = iter(keys)
        while page := [EventId(key) for key in islice(source, _PAGE)]:
            for event_id, event in zip(page, self._source.cars(page), strict=True):
                try:
                    body = None if event is None else event_body(event_id.event_cid, event)
                except CarError as error:
                    raise SnapshotError(f"a bug: {error}") from error
                if body is None:
                    self._made.left_out.append(str(event_id))
                    continue
                self._event_extents[bytes(event_id)] = self._events.add(body)
                self._live += len(body)
                self._made.events += 1
                yield bytes(event_id)
            if total is not None:
                self._progress("writing events", self._made.events, total)

    def _add_node(self, new: NewNode) -> None:
        node = new.node
        if isinstance(node, LeafNode):
            locator = encode_locator(self._event_extents.pop(key) for key in node.keys)
        else:
            locator = encode_locator(self._node_extents[child.cid] for child in node.children)
            if node.children[0].level:
                self._upper[new.link.cid] = (new.block, locator)
        data = located(node, locator)
        self._node_extents[new.link.cid] = self._nodes.add(data)
        self._made.nodes += 1
        if self._base is None:
            self._live += len(data)

    def _top(self, tree: Root | None) -> dict[CID, tuple[bytes, bytes]]:
        """Return the upper levels of the tree, as many as the root object takes."""
        top: dict[CID, tuple[bytes, bytes]] = {}
        known = self._upper if self._base is None else {**self._base.top, **self._upper}
        level = [] if tree is None else [tree.link]
        size = 0
        while level and all(link.cid in known for link in level):
            parts = {link.cid: known[link.cid] for link in level}
            size += sum(len(block) + len(locator) for block, locator in parts.values())
            if size > MAX_TOP_BYTES:
                break
            top |= parts
            below: list[Link] = []
            for link in level:
                node = decode(known[link.cid][0], link.level, KeyRange(link.lower, HIGHEST))
                assert isinstance(node, InnerNode)
                below += node.children
            level = below if below[0].level else []
        return top


PACK_BYTES: Final = 8 * 1024 * 1024
"""Size at which a pack is written."""
_CLOCKS_DIFFER: Final = 86400.0
"""Seconds that a snapshot may be from the future."""
MAX_PACKS: Final = 256
"""Packs more than the events need, at which a snapshot starts anew."""


def create_snapshot(
    source: EventSource,
    objects: Objects,
    key: SigningKey,
    progress: Progress,
    *,
    pack_bytes: int = PACK_BYTES,
    afresh: bool = False,
) -> Created:
    """Write a snapshot of a source, and return it.

    It builds on one that `key` has signed, unless it is made `afresh`: then everything is written,
    even what the store has.

    Raises:
        DamagedBaseError: the snapshot to build on is damaged.
        SnapshotError: what is at `latest.car` is something else, or there are too many interests.
        ObjectError: the store does not take it.
    """
    if len(source.ranges) > MAX_RANGES:
        raise SnapshotError(
            f"the interests are {len(source.ranges):,} key ranges, and a snapshot has at most "
            f"{MAX_RANGES:,}: make one of fewer interests (--interest)"
        )
    now = time.time()
    latest = _latest(source, objects, now)
    base = None
    if latest is not None and not afresh and _can_build_on(latest, source, key, pack_bytes):
        base = latest
    # Snapshots are ordered by their time, so no two have the same.
    created = max(int(now), 0 if latest is None else latest.manifest.created + 1)
    # A damaged pack has the name of the one that takes its place, and often its size.
    put = objects.put if afresh else objects.put_missing
    return SnapshotWriter(source, objects, key, progress, pack_bytes, base, put).run(created)


def _latest(source: EventSource, objects: Objects, now: float) -> RootObject | None:
    """Return the newest snapshot."""
    try:
        root = decode_root(objects.get(LATEST))
    except MissingObjectError:
        return None
    except RootError as error:
        raise SnapshotError(
            f"{LATEST} in {objects.url} is not a root object ({error}): delete it, or choose "
            "another place"
        ) from None
    manifest = root.manifest
    if manifest.created > now + _CLOCKS_DIFFER:
        raise SnapshotError(
            f"{LATEST} in {objects.url} is of {manifest.created_text}, which is in the future: "
            "set the clock, or delete that snapshot, because newer ones would seem older"
        )
    if manifest.network != source.network:
        raise SnapshotError(
            f"{objects.url} has snapshots of the network {manifest.network.name}, but the events "
            f"are of {source.network.name}: choose another place"
        )
    return root


def _can_build_on(root: RootObject, source: EventSource, key: SigningKey, pack_bytes: int) -> bool:
    manifest = root.manifest
    if root.signer != controller_of(key) or tuple(manifest.ranges) != tuple(source.ranges):
        return False  # others may have left out something that their trees name
    size = sum(size for _, size in manifest.packs)
    too_many = len(manifest.packs) > MAX_PACKS + 2 * size // pack_bytes
    return not too_many and manifest.live * 2 >= size
