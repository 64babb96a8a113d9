"""Read a snapshot: its root object, its nodes, its events. All calls block; use them in threads.

Everything that is read is checked against the CID for which it was read. What fails is a `Fault`,
and the rest goes on: a damaged object costs what is in it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from recon_node.ceramic import EventId, EventIdError
from recon_node.ipld import CID, IpldError
from recon_node.recon import KeyRange
from recon_node.snapshot.objects import MissingObjectError, ObjectError, Objects
from recon_node.snapshot.places import (
    LocatorError,
    Place,
    Range,
    check_event,
    decode_locator,
    event_car,
    ranges_of,
    split_located,
)
from recon_node.snapshot.root import LATEST, RootError, RootObject, decode_root, pack_name
from recon_node.snapshot.tree import Branch, Inner, Leaf, NodeFormatError, branches, open_node
from recon_node.snapshot.tree.nodes import HIGHEST, LOWEST, decode, level_of

K = TypeVar("K")
T = TypeVar("T")

CONCURRENT: Final = 16
"""Requests at once."""
NODE_GAP: Final = 64
EVENT_GAP: Final = 512
"""Bytes between two ranges that are read rather than asked for separately: a request has headers of
about so many."""
BULK_GAP: Final = 1024
BULK: Final = 200
"""When so many nodes are read at once, nodes in between that are no longer used are read, too."""
MAX_RANGE: Final = 4 * 1024 * 1024


class SnapshotError(Exception):
    """A snapshot cannot be read, written or trusted. The message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something of a snapshot that cannot be used."""

    what: str
    reason: str

    def __str__(self) -> str:
        return f"{self.what}: {self.reason}"


OnFault = Callable[[Fault], None]


def read_root(
    objects: Objects, name: str = LATEST, trusted: Iterable[str] | None = None
) -> RootObject:
    """Return a root object of a store.

    Args:
        objects: the store.
        name: of the root object; by default that of the newest snapshot.
        trusted: did:keys of whom it must be signed; None: by anyone.

    Raises:
        SnapshotError: it is missing, damaged, or signed by somebody else.
    """
    try:
        root = decode_root(objects.get(name))
    except MissingObjectError as error:
        raise SnapshotError(
            f"{error}: there is no snapshot there; `recon-node snapshot create` makes one"
        ) from None
    except ObjectError as error:
        raise SnapshotError(str(error)) from None
    except RootError as error:
        raise SnapshotError(f"{name} in {objects.url} is not usable: {error}") from None
    if trusted is not None and root.signer not in set(trusted):
        raise SnapshotError(
            f"the snapshot {name} in {objects.url} is signed by {root.signer}, which is not "
            "trusted: add it to the setting `snapshot_signers`, or give --signer"
        )
    return root


class SnapshotReader:
    """Reads the nodes and events of one snapshot.

    Args:
        objects: where it is.
        root: its root object.
        on_fault: told what cannot be used.
    """

    def __init__(self, objects: Objects, root: RootObject, on_fault: OnFault) -> None:
        self.objects = objects
        self.root = root
        self.manifest = root.manifest
        self._on_fault = on_fault
        self._places: dict[CID, Place] = {}
        self.event_places: dict[bytes, Place] = {}
        """Of the keys of leaves that `answer` has read."""
        if self.manifest.tree is not None and self.manifest.place is not None:
            self._places[self.manifest.tree.link.cid] = self.manifest.place

    def open(self, wanted: Sequence[Branch]) -> list[tuple[Branch, Leaf | Inner, list[Place]]]:
        """Read nodes, all at once; those that cannot be used are left out.

        The branches come from nodes that were read before; so does the tree's root.

        Returns:
            Each node, with the places of its events or children.
        """
        found = self._nodes([each.link.cid for each in wanted])
        opened: list[tuple[Branch, Leaf | Inner, list[Place]]] = []
        for each in wanted:
            if each.link.cid not in found:
                continue
            block, locator = found[each.link.cid]
            try:
                node = open_node(each, block)
                items = node.keys if isinstance(node, Leaf) else node.children
                places = decode_locator(locator, len(items))
            except (NodeFormatError, LocatorError) as error:
                self._on_fault(Fault(self._where(each.link.cid), str(error)))
                continue
            if isinstance(node, Inner):
                self._places.update(
                    zip((child.cid for child in node.children), places, strict=True)
                )
            opened.append((each, node, places))
        return opened

    def is_asked(self, wanted: Sequence[Branch]) -> bool:
        """Return whether the store must be asked for any of these nodes."""
        return any(each.link.cid not in self.root.top for each in wanted)

    def events(self, wanted: Sequence[tuple[bytes, Place]]) -> list[tuple[EventId, bytes]]:
        """Read events, all at once; return the CARs of those that match their EventIDs' CIDs."""
        data = self._read(dict(wanted), EVENT_GAP)
        found: list[tuple[EventId, bytes]] = []
        for key, place in wanted:
            if key not in data:
                continue
            try:
                event_id = EventId(key)
                check_event(data[key])
                found.append((event_id, event_car(event_id.event_cid, data[key])))
            except (EventIdError, IpldError) as error:
                self._on_fault(Fault(self._describe(place), f"damaged event: {error}"))
        return found

    def answer(self, steps: Generator[Sequence[CID], None, T], blocks: dict[CID, bytes]) -> T:
        """Run a generator of the tree, with the nodes that it asks for.

        Raises:
            SnapshotError: one of them cannot be read.
        """
        while True:
            try:
                wanted = next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
            except NodeFormatError as error:
                raise SnapshotError(
                    f"the snapshot in {self.objects.url} is broken: {error}"
                ) from None
            found = self._nodes(wanted)
            lost = [cid for cid in wanted if cid not in found]
            if lost:
                raise SnapshotError(f"the node {lost[0]} cannot be read from {self.objects.url}")
            for cid, (block, locator) in found.items():
                blocks[cid] = block
                self._note(cid, block, locator)

    def read_known(self, cids: Iterable[CID]) -> dict[CID, bytes]:
        """Return the blocks of those nodes whose parents were read, as `answer` does."""
        known = [cid for cid in cids if cid in self._places or cid in self.root.top]
        found = self._nodes(known)
        for cid, (block, locator) in found.items():
            self._note(cid, block, locator)
        return {cid: block for cid, (block, _) in found.items()}

    def note_place(self, cid: CID, place: Place) -> None:
        """Say where a node is whose parent was read by somebody else."""
        self._places[cid] = place

    def place_of(self, cid: CID) -> Place:
        """Return the place of a node whose parent was read."""
        return self._places[cid]

    def _note(self, cid: CID, block: bytes, locator: bytes) -> None:
        """Note where the items of a node are."""
        try:
            node = decode(block, level_of(block), KeyRange(LOWEST, HIGHEST))
            if isinstance(node, Leaf):
                places = decode_locator(locator, len(node.keys))
                self.event_places.update(zip(node.keys, places, strict=True))
            else:
                places = decode_locator(locator, len(node.children))
                self._places.update(
                    zip((child.cid for child in node.children), places, strict=True)
                )
        except (NodeFormatError, LocatorError) as error:
            raise SnapshotError(f"{self._where(cid)}: {error}") from None

    def _nodes(self, cids: Iterable[CID]) -> dict[CID, tuple[bytes, bytes]]:
        """Return the blocks and locators of nodes."""
        top = self.root.top
        found = {cid: top[cid] for cid in cids if cid in top}
        places = {cid: self._places[cid] for cid in cids if cid not in top}
        gap = NODE_GAP if len(places) < BULK else BULK_GAP
        for cid, data in self._read(places, gap).items():
            try:
                found[cid] = split_located(data, cid)
            except LocatorError as error:
                self._on_fault(Fault(self._where(cid), f"damaged node: {error}"))
        return found

    def _read(self, places: Mapping[K, Place], gap: int) -> dict[K, bytes]:
        """Read places, in as few requests as makes sense."""
        ranges = ranges_of(places.values(), gap, MAX_RANGE)
        read: dict[Place, bytes] = {}
        for found in in_parallel(self._read_range, ranges):
            read.update(found)
        return {item: read[place] for item, place in places.items() if place in read}

    def _read_range(self, each: Range) -> dict[Place, bytes]:
        try:
            cid, size = self.manifest.packs[each.pack]
            if each.end > size:
                raise ObjectError(f"{pack_name(cid)} in {self.objects.url} has {size} bytes only")
            data = self.objects.get_range(pack_name(cid), each.start, each.end - each.start)
        except (ObjectError, IndexError) as error:
            self._on_fault(Fault(f"bytes {each.start}-{each.end} of pack {each.pack}", str(error)))
            return {}
        return {
            place: data[place.offset - each.start : place.end - each.start] for place in each.wanted
        }

    def _where(self, cid: CID) -> str:
        place = self._places.get(cid)
        return f"the node {cid}" if place is None else self._describe(place)

    def _describe(self, place: Place) -> str:
        cid, _ = self.manifest.packs[place.pack]
        return f"{pack_name(cid)} in {self.objects.url}, byte {place.offset}"


def in_parallel(work: Callable[[K], T], items: Sequence[K]) -> list[T]:
    """Return what `work` returns for each item, in order, from `CONCURRENT` threads.

    Daemon threads: a store that does not answer must not keep a process from ending, as the
    threads of an executor would.
    """
    results: dict[int, T] = {}
    errors: list[BaseException] = []
    source, lock = iter(enumerate(items)), threading.Lock()

    def run() -> None:
        while not errors:
            with lock:
                at, item = next(source, (-1, None))
            if item is None:
                return
            try:
                results[at] = work(item)
            except BaseException as error:  # raised by the caller
                errors.append(error)

    threads = [
        threading.Thread(target=run, daemon=True, name="snapshot")
        for _ in range(min(CONCURRENT, len(items)))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [results[at] for at in range(len(items))]


def children_of(found: Iterable[tuple[Branch, Leaf | Inner, list[Place]]]) -> list[Branch]:
    """Return the children of the inner nodes among those that were read."""
    return [
        child
        for branch, node, _ in found
        if isinstance(node, Inner)
        for child in branches(node, branch.bounds)
    ]
