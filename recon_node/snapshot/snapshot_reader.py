"""Read a snapshot: its root object, its nodes, its events. All calls block; use them in threads.

Everything that is read is checked against the CID for which it was read, as soon as it arrives.
What fails is a `SnapshotFault`, and the rest goes on: a damaged object costs what is in it. A store
that fails again and again is given up.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Final, TypeVar

from recon_node.base.chunks import in_chunks
from recon_node.base.steps import run_steps
from recon_node.ceramic import MAX_CAR_SIZE, EventId, EventIdError
from recon_node.ipld import CID
from recon_node.recon import KeyRange, Sha256a
from recon_node.snapshot.objects import (
    MissingObjectError,
    ObjectError,
    Objects,
    OnFault,
    SnapshotError,
    SnapshotFault,
)
from recon_node.snapshot.packs import (
    LocatorError,
    PackExtent,
    PackReader,
    check_event,
    decode_locator,
    event_car,
    split_located,
)
from recon_node.snapshot.root import LATEST, RootError, RootObject, decode_root
from recon_node.snapshot.tree.nodes import (
    HIGHEST,
    LOWEST,
    InnerNode,
    LeafNode,
    Link,
    NodeFormatError,
    decode,
    level_of,
)
from recon_node.snapshot.tree.update import Branch, branches, open_node

T = TypeVar("T")

Opened = tuple[Branch, LeafNode | InnerNode, list[PackExtent]]
"""A node that was read, with the extents of its events or children."""

NODE_GAP: Final = 64
EVENT_GAP: Final = 512
"""Bytes between two ranges that are read rather than asked for separately: a request has headers of
about this many."""
BULK_GAP: Final = 1024
_NODES_AT_ONCE: Final = 256
"""Nodes that are opened at once."""
_PART_BYTES: Final = 2 * 1024 * 1024
"""Bytes of nodes, or of events, that are read at once, or those of a larger event. The keys of
a node that somebody packed as densely as possible take 30 times its bytes."""
_LEAST_EVENT: Final = 256
"""Bytes as which an event counts, at least: its size is what a snapshot says."""
_MAX_AHEAD: Final = 200_000
"""Nodes of which the parents were read: they take 160 MB. Of an honest tree of a billion events
there are 20,000, of one that somebody made to be wide 60,000 on each of 40 levels."""
BULK: Final = 200
"""When this many nodes are read at once, nodes in between that are no longer used are read, too."""
MAX_NODE: Final = 4 * 1024 * 1024
"""Bytes of a node. A long search for keys can make a leaf of 100,000."""


def read_root(
    objects: Objects, name: str = LATEST, trusted: Iterable[str] | None = None
) -> RootObject:
    """Return a root object of a store, by default that of the newest snapshot.

    It must be signed by one of the did:keys in `trusted`; None: by anyone.

    Raises:
        SnapshotError: it is missing, damaged, or signed by somebody else.
    """
    try:
        return decode_root(objects.get(name), None if trusted is None else set(trusted))
    except MissingObjectError as error:
        raise SnapshotError(
            f"{error}: no snapshot exists there yet; `recon-node snapshot create` makes one"
        ) from None
    except ObjectError as error:
        raise SnapshotError(str(error)) from None
    except RootError as error:
        raise SnapshotError(f"{name} in {objects.url} is not usable: {error}") from None


class SnapshotReader:
    """Reads the nodes and events of one snapshot."""

    def __init__(self, objects: Objects, root: RootObject, on_fault: OnFault) -> None:
        self.objects = objects
        self.root = root
        self.manifest = root.manifest
        self._on_fault = on_fault
        self._packs = PackReader(objects, root.manifest.packs, on_fault)
        self._extents: dict[CID, tuple[PackExtent, Sha256a]] = {}
        """Of nodes whose parents were read, with their Ahashes."""
        self.event_extents: dict[bytes, PackExtent] = {}
        """Of the keys of leaves that `answer` has read."""
        tree = self.manifest.tree
        if tree is not None and self.manifest.extent is not None:
            self._extents[tree.link.cid] = (self.manifest.extent, tree.link.hash)

    def walk(self, start: Sequence[Branch]) -> Iterator[list[Opened]]:
        """Read sub-trees, a part of a level at a time, depth first; see `open` and `divide`."""
        parts = self.divide(start, 0)
        while parts:
            opened = self.open(parts.pop())
            yield opened
            self.forget(branch for branch, _, _ in opened)
            parts += self.divide(children_of(opened), sum(map(len, parts)))

    def divide(self, below: Sequence[Branch], ahead: int) -> list[list[Branch]]:
        """Divide nodes into parts that can be opened at once, the last one first.

        `ahead` further ones are to be opened afterwards.

        Raises:
            SnapshotError: all of them take too much memory.
        """
        if ahead + len(below) > _MAX_AHEAD:
            raise SnapshotError(
                f"the snapshot in {self.objects.url} was made to fill the memory: more than "
                f"{_MAX_AHEAD:,} nodes of its tree would have to be read at once"
            )
        return [*in_chunks(below, self.size_of, _PART_BYTES, _NODES_AT_ONCE)][::-1]

    def open(self, wanted: Sequence[Branch]) -> list[Opened]:
        """Read nodes, all at once; those that cannot be used are left out.

        The branches come from nodes that were read before; so does the tree's root.

        Raises:
            SnapshotError: the store was given up.
        """
        nodes = self._nodes([branch.link.cid for branch in wanted])
        opened: list[Opened] = []
        for branch in wanted:
            if branch.link.cid not in nodes:
                continue
            block, locator = nodes[branch.link.cid]
            try:
                node = open_node(branch, block)
                items = node.keys if isinstance(node, LeafNode) else node.children
                extents = decode_locator(locator, len(items))
            except (NodeFormatError, LocatorError) as error:
                self._on_fault(SnapshotFault(self._where(branch.link.cid), str(error)))
                continue
            if isinstance(node, InnerNode):
                self._note_children(node, extents)
            opened.append((branch, node, extents))
        return opened

    def forget(self, wanted: Iterable[Branch]) -> None:
        """Say that some nodes are not needed (again), so that memory does not grow with a tree."""
        for branch in wanted:
            self._extents.pop(branch.link.cid, None)

    def size_of(self, branch: Branch) -> int:
        """Return the bytes of a node in its pack; 0 if they are here already."""
        noted = self._extents.get(branch.link.cid)
        return 0 if noted is None or branch.link.cid in self.root.top else noted[0].size

    def is_asked(self, wanted: Sequence[Branch]) -> bool:
        """Return whether the store must be asked for any of these nodes."""
        return any(branch.link.cid not in self.root.top for branch in wanted)

    def events(self, wanted: Sequence[tuple[bytes, PackExtent]]) -> list[tuple[EventId, bytes]]:
        """Read events, all at once; return the CARs of those that match their EventIds' CIDs.

        Raises:
            SnapshotError: the store was given up.
        """
        event_ids: dict[bytes, EventId] = {}
        for key, extent in wanted:
            try:
                event_ids[key] = EventId(key)
            except EventIdError as error:
                self._on_fault(SnapshotFault(self._packs.describe(extent), f"damaged key: {error}"))

        def check(key: bytes, data: bytes) -> bytes:
            cid = event_ids[key].event_cid
            check_event(cid, data)
            return event_car(cid, data)

        extents = {key: extent for key, extent in wanted if key in event_ids}
        cars = self._packs.read(extents, EVENT_GAP, MAX_CAR_SIZE, check)
        return [(event_ids[key], cars[key]) for key in extents if key in cars]

    def answer(self, steps: Generator[Sequence[CID], None, T], blocks: dict[CID, bytes]) -> T:
        """Run a generator of the tree, with the nodes that it asks for.

        Raises:
            SnapshotError: one of them cannot be read.
        """

        def read(wanted: Sequence[CID]) -> None:
            nodes = self._nodes(wanted)
            lost = [cid for cid in wanted if cid not in nodes]
            if lost:
                raise SnapshotError(f"the node {lost[0]} cannot be read from {self.objects.url}")
            for cid, (block, locator) in nodes.items():
                blocks[cid] = block
                self._note(cid, block, locator)

        try:
            return run_steps(steps, read)
        except NodeFormatError as error:
            raise SnapshotError(f"the snapshot in {self.objects.url} is broken: {error}") from None

    def note_extent(self, link: Link, extent: PackExtent) -> None:
        """Say where a node is whose parent was read by somebody else."""
        self._extents[link.cid] = (extent, link.hash)

    def extent_of(self, cid: CID) -> PackExtent:
        """Return the extent of a node whose parent was read."""
        return self._extents[cid][0]

    def _note(self, cid: CID, block: bytes, locator: bytes) -> None:
        """Note where the items of a node are."""
        try:
            node = decode(block, level_of(block), KeyRange(LOWEST, HIGHEST))
            if isinstance(node, LeafNode):
                extents = decode_locator(locator, len(node.keys))
                self.event_extents.update(zip(node.keys, extents, strict=True))
            else:
                self._note_children(node, decode_locator(locator, len(node.children)))
        except (NodeFormatError, LocatorError) as error:
            raise SnapshotError(f"{self._where(cid)}: {error}") from None

    def _note_children(self, node: InnerNode, extents: Sequence[PackExtent]) -> None:
        for child, extent in zip(node.children, extents, strict=True):
            self._extents[child.cid] = (extent, child.hash)

    def _nodes(self, cids: Iterable[CID]) -> dict[CID, tuple[bytes, bytes]]:
        """Return the blocks and locators of nodes."""
        top = self.root.top
        nodes = {cid: top[cid] for cid in cids if cid in top}
        asked: dict[CID, tuple[PackExtent, Sha256a]] = {}
        for cid in cids:
            if cid in top:
                continue
            if (noted := self._extents.get(cid)) is None:  # it was taken, and forgotten
                self._on_fault(SnapshotFault(f"the node {cid}", "two nodes of the tree name it"))
            else:
                asked[cid] = noted

        def check(cid: CID, data: bytes) -> tuple[bytes, bytes]:
            return split_located(data, cid, asked[cid][1])

        extents = {cid: extent for cid, (extent, _) in asked.items()}
        gap = NODE_GAP if len(extents) < BULK else BULK_GAP
        return nodes | self._packs.read(extents, gap, MAX_NODE, check)

    def _where(self, cid: CID) -> str:
        noted = self._extents.get(cid)
        return f"the node {cid}" if noted is None else self._packs.describe(noted[0])


def children_of(opened: Iterable[Opened]) -> list[Branch]:
    """Return the children of the inner nodes among those that were read."""
    return [
        child
        for branch, node, _ in opened
        if isinstance(node, InnerNode)
        for child in branches(node, branch.bounds)
    ]


def event_batches(
    wanted: Iterable[tuple[bytes, PackExtent]],
) -> Iterator[list[tuple[bytes, PackExtent]]]:
    """Divide events into batches that can be read at once."""
    return in_chunks(wanted, lambda item: max(_LEAST_EVENT, item[1].size), _PART_BYTES)
