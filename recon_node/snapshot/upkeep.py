"""Look after the snapshots of a store: list, verify, read as IPLD, and delete what is not needed.

All calls block; use them in threads.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain
from typing import Final, NoReturn

from recon_node.ipld import CID, DAG_CBOR
from recon_node.snapshot.objects import Faults, ObjectError, Objects, SnapshotError, SnapshotFault
from recon_node.snapshot.packs import PACKS, pack_name
from recon_node.snapshot.root import (
    FEEDS,
    ROOTS,
    PageError,
    RootError,
    RootObject,
    decode_root,
    page_name,
    read_page,
)
from recon_node.snapshot.snapshot_reader import SnapshotReader, event_batches, read_root
from recon_node.snapshot.tree.nodes import LeafNode
from recon_node.snapshot.tree.update import Branch, whole

_OURS: Final = re.compile(rf"{PACKS}/[a-z2-7]+\.car|{FEEDS}/[a-z2-7]+\.parquet")
"""Names of packs and pages. A link in a directory may lead to any other file."""
_ROOT: Final = re.compile(rf"{ROOTS}/[0-9]{{8}}T[0-9]{{6}}Z-[a-z2-7]+\.car")
"""Names of root objects. Programs leave others there: `roots/` itself, or `.DS_Store`."""


@dataclass(slots=True)
class Verified(Faults):
    """What was found sound, and what was not."""

    events: int = 0
    nodes: int = 0


@dataclass(slots=True)
class Collected:
    """What was deleted."""

    roots: int = 0
    packs: int = 0
    size: int = 0
    """Bytes of the packs."""


def list_roots(objects: Objects) -> tuple[list[RootObject], list[SnapshotFault]]:
    """Return the snapshots of a store, oldest first, and the root objects that cannot be used.

    Raises:
        ObjectError: the store cannot list its objects.
    """
    roots: list[RootObject] = []
    faults: list[SnapshotFault] = []
    for listed in objects.list(ROOTS):
        if not _ROOT.fullmatch(listed.name):
            continue
        try:
            roots.append(decode_root(objects.get(listed.name)))
        except (RootError, ObjectError) as error:
            faults.append(SnapshotFault(listed.name, str(error)))
    return roots, faults


def verify_snapshot(
    objects: Objects, root: RootObject, progress: Callable[[int, int], None]
) -> Verified:
    """Read a whole snapshot, and check every node, event and page of feed positions.

    Signatures of events are not checked: a node that syncs does that. `progress` is called with the
    events checked so far, and their number.

    Raises:
        SnapshotError: the store was given up, or the snapshot was made to fill the memory.
    """
    result = Verified()
    reader = SnapshotReader(objects, root, result.note)
    for opened in reader.walk(_top_of(root)):
        result.nodes += len(opened)
        leaves = ((node, extents) for _, node, extents in opened if isinstance(node, LeafNode))
        pairs = (zip(leaf.keys, extents, strict=True) for leaf, extents in leaves)
        for batch in event_batches(chain.from_iterable(pairs)):
            result.events += len(reader.events(batch))
            progress(result.events, root.manifest.count)
    for page in root.manifest.feed.pages if root.manifest.feed is not None else ():
        try:
            read_page(objects, page)
        except (ObjectError, PageError) as error:
            result.note(SnapshotFault(page_name(page.cid), str(error)))
    return result


def tree_blocks(objects: Objects, root: RootObject) -> Iterator[tuple[CID, bytes]]:
    """Yield the DAG-CBOR blocks of a snapshot's manifest and of its tree, each before those that it
    links to.

    Raises:
        SnapshotError: a node is missing or damaged.
    """

    def refuse(fault: SnapshotFault) -> NoReturn:
        raise SnapshotError(str(fault))

    manifest = root.manifest.encode()
    yield CID.of(DAG_CBOR, manifest), manifest
    for opened in SnapshotReader(objects, root, refuse).walk(_top_of(root)):
        yield from ((branch.link.cid, node.encode()) for branch, node, _ in opened)


def _top_of(root: RootObject) -> list[Branch]:
    tree = root.manifest.tree
    return [] if tree is None else [whole(tree.link)]


def collect(objects: Objects, keep: int, min_age: timedelta, now: datetime) -> Collected:
    """Delete all snapshots but the newest `keep`, and packs that no remaining snapshot names.

    Packs younger than `min_age` stay: they may belong to a snapshot that is being written. `now`
    has a time zone.

    Raises:
        SnapshotError: a root object cannot be read, so nobody knows which packs it needs.
        ObjectError: the store refuses.
    """
    if keep < 1:
        raise ValueError("keep at least one snapshot")
    roots, faults = list_roots(objects)
    if faults:
        raise SnapshotError(
            f"nothing was deleted, because a root object cannot be read ({faults[0]}): delete it "
            "first if its snapshot is not needed"
        )
    roots.sort(key=lambda root: root.manifest.created)
    result = Collected()
    kept = [*roots[-keep:], read_root(objects)]
    needed = {pack_name(cid) for root in kept for cid, _ in root.manifest.packs}
    feeds = [root.manifest.feed for root in kept if root.manifest.feed is not None]
    needed |= {page_name(page.cid) for feed in feeds for page in feed.pages}
    for root in roots[:-keep]:
        objects.delete([root.name])
        result.roots += 1
    for pack in (*objects.list(PACKS), *objects.list(FEEDS)):
        is_ours = _OURS.fullmatch(pack.name) is not None
        if is_ours and pack.name not in needed and now - pack.modified >= min_age:
            objects.delete([pack.name])
            result.packs += 1
            result.size += pack.size
    return result
