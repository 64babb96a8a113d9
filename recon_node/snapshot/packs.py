"""Packs: files of some megabytes with the events of many leaves, or with many nodes.

A pack of events is a CARv1. An event's blocks stand in it one after the other, as in the event's
own CAR, whose header is left out. So the extent of an event (pack, offset, size) is a range of
bytes, and a reader that lacks a few events asks for a few ranges. In a pack of nodes, each is
followed by its locator. Both are named by the CID of their bytes.

The tree does not say where things are: then it would depend on how it came to be. A *locator* says
it, of the events of a leaf's keys or of the children of an inner node. Nobody signs locators, and
nobody has to: what stands at an extent is checked against the CID that is wanted.

    node       packed node (`tree.nodes`) | locator | bytes of the locator, u24, big-endian
    locator    for each item: size << 2 | kind, a varint; kind 0: then pack and offset, varints
               kind 1: right behind the item before; kind 2: then how many bytes behind it, a varint

Packs are numbered in the order in which the root object lists them.

Extents are read in few requests, several at once, from threads that a process need not wait for
when it ends; and what stands there is checked.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from recon_node.ipld import CID, CarError, IpldError, VarintError, car, decode_varint, encode_varint
from recon_node.ipld.cid import IDENTITY, RAW
from recon_node.recon import Sha256a
from recon_node.snapshot.objects import (
    MissingObjectError,
    ObjectError,
    Objects,
    OnFault,
    SnapshotError,
    SnapshotFault,
    UnavailableError,
)
from recon_node.snapshot.tree.nodes import Node, NodeFormatError, pack, unpack

PACKS: Final = "packs"
K = TypeVar("K")
T = TypeVar("T")

CONCURRENT: Final = 16
"""Requests at once."""


def pack_name(cid: CID) -> str:
    """Return the name of a pack."""
    return f"{PACKS}/{cid}.car"


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


_TRAILER_SIZE: Final = 3
_EXPLICIT, _BEHIND, _AFTER_GAP = range(3)
_KIND_BITS: Final = 2
_KINDS: Final = 3


PACK_HEADER: Final = car.encode([CID(bytes((1, RAW, IDENTITY, 0)))], {})
"""How a pack of events starts: a CAR must name a root, so this names an empty one."""


class LocatorError(ValueError):
    """What should be a node with its locator is something else."""


class PackExtent(NamedTuple):
    """Where something is: a range of bytes in a pack."""

    pack: int
    offset: int
    size: int

    @property
    def end(self) -> int:
        """The offset behind it."""
        return self.offset + self.size


def encode_locator(extents: Iterable[PackExtent]) -> bytes:
    """Return the locator of some items, in order."""
    parts: list[bytes] = []
    before = PackExtent(-1, 0, 0)
    for extent in extents:
        gap = extent.offset - before.end
        head = extent.size << _KIND_BITS
        if extent.pack != before.pack or gap < 0:
            numbers = [head | _EXPLICIT, extent.pack, extent.offset]
        else:
            numbers = [head | _AFTER_GAP, gap] if gap else [head | _BEHIND]
        parts += map(encode_varint, numbers)
        before = extent
    return b"".join(parts)


def decode_locator(data: bytes, count: int) -> list[PackExtent]:
    """Return the extents of `count` items.

    Raises:
        LocatorError: it is not the locator of this many.
    """
    extents: list[PackExtent] = []
    before, at = PackExtent(-1, 0, 0), 0
    try:
        for _ in range(count):
            head, at = decode_varint(data, at)
            kind, pack, offset = head & _KINDS, before.pack, before.end
            if kind == _EXPLICIT:
                pack, at = decode_varint(data, at)
                offset, at = decode_varint(data, at)
            elif kind == _AFTER_GAP:
                gap, at = decode_varint(data, at)
                offset += gap
            before = PackExtent(pack, offset, head >> _KIND_BITS)
            extents.append(before)
    except VarintError as error:
        raise LocatorError(f"its locator is broken: {error}") from None
    if at != len(data) or any(extent.pack < 0 for extent in extents):
        raise LocatorError("its locator belongs to another node")
    return extents


def located(node: Node, locator: bytes) -> bytes:
    """Return what stands at a node's extent."""
    return pack(node) + locator + len(locator).to_bytes(_TRAILER_SIZE, "big")


def split_located(data: bytes, cid: CID, total: Sha256a | None) -> tuple[bytes, bytes]:
    """Return the block and the locator of a node from the bytes of its extent.

    `total` is its Ahash, as its parent has it; not needed for a leaf.

    Raises:
        LocatorError: there is something else.
    """
    end = len(data) - _TRAILER_SIZE
    start = end - int.from_bytes(data[max(0, end) :], "big")
    if start < 0:
        raise LocatorError(f"these bytes are not the node {cid}")
    try:
        block = unpack(data[:start], total)
    except NodeFormatError as error:
        raise LocatorError(f"these bytes are not the node {cid}: {error}") from None
    if not cid.matches(block):
        raise LocatorError(f"these bytes do not match the CID {cid}")
    return block, data[start:end]


def check_event(cid: CID, body: bytes) -> None:
    """Check each block of an event's body against its CID, and that the event's is among them.

    Raises:
        CarError: one does not match or is missing, or this is not a sequence of blocks.
    """
    if cid not in car.decode(PACK_HEADER + body).blocks:
        raise CarError(f"these are not the blocks of {cid}")


def event_car(cid: CID, body: bytes) -> bytes:
    """Return an event's own CAR."""
    return car.encode([cid], {}) + body


def event_body(cid: CID, event: bytes) -> bytes:
    """Return the body of an event's CAR.

    Raises:
        CarError: it does not have the event as its only root.
    """
    header = car.encode([cid], {})
    if not event.startswith(header):
        raise CarError(f"the CAR of {cid} does not have it as its root")
    return event[len(header) :]


class PackWriter:
    """Fills packs, one after the other, and writes them by `put` when they have `target` bytes.

    A pack begins with `header`. It has a place in `packs` from its first item on, and is there when
    it is written.
    """

    def __init__(
        self,
        put: Callable[[str, bytes], None],
        packs: list[tuple[CID, int] | None],
        target: int,
        header: bytes = b"",
    ) -> None:
        self._put = put
        self._packs = packs
        self._target = target
        self._header = header
        self._number = 0
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, data: bytes) -> PackExtent:
        """Append bytes; return where they are."""
        if self._size >= self._target:
            self.close()
        if not self._parts:
            self._number = len(self._packs)
            self._packs.append(None)
            self._parts.append(self._header)
            self._size = len(self._header)
        self._parts.append(data)
        extent = PackExtent(self._number, self._size, len(data))
        self._size = extent.end
        return extent

    def close(self) -> None:
        """Write the pack that is being filled, if any."""
        if not self._parts:
            return
        data = b"".join(self._parts)
        cid = CID.of(RAW, data)
        self._put(pack_name(cid), data)
        self._packs[self._number] = (cid, len(data))
        self._parts.clear()
        self._size = 0


class Range(NamedTuple):
    """Bytes of a pack that are read at once, and the wanted extents in them, ascending."""

    pack: int
    start: int
    end: int
    wanted: Sequence[PackExtent]


def ranges_of(extents: Iterable[PackExtent], gap: int, most: int) -> list[Range]:
    """Join extents into ranges.

    `gap` bytes between two extents are read with them rather than asked for separately. A range has
    at most `most` bytes, unless a single extent is larger.
    """
    ranges: list[Range] = []
    for extent in sorted(set(extents)):
        last = ranges[-1] if ranges else Range(-1, 0, 0, ())
        is_near = last.pack == extent.pack and extent.offset <= last.end + gap
        if is_near and extent.end - last.start <= most:
            end = max(last.end, extent.end)
            ranges[-1] = Range(last.pack, last.start, end, [*last.wanted, extent])
        else:
            ranges.append(Range(extent.pack, extent.offset, extent.end, [extent]))
    return ranges


MAX_RANGE: Final = 1024 * 1024
"""Bytes read at once, unless a single extent is larger."""
_GIVEN_UP: Final = 16
"""Failures in a row after which a store is given up."""


class PackReader:
    """Reads extents in the packs of one snapshot."""

    def __init__(
        self, objects: Objects, packs: Sequence[tuple[CID, int]], on_fault: OnFault
    ) -> None:
        self._objects = objects
        self._packs = packs
        self._on_fault = on_fault
        self._failures = 0

    def read(
        self,
        extents: Mapping[K, PackExtent],
        gap: int,
        largest: int,
        check: Callable[[K, bytes], T],
    ) -> dict[K, T]:
        """Return what stands at some extents, checked; leave out what is wrong.

        Args:
            extents: where each item is.
            gap: bytes between two extents that are read rather than asked for separately.
            largest: bytes of an item.
            check: returns the item of some bytes; raises `LocatorError` or `IpldError`.

        Raises:
            SnapshotError: the store was given up.
        """
        checked: dict[K, T] = {}
        missing: dict[PackExtent, K] = {}
        for item, extent in extents.items():
            if extent.size > largest:
                reason = f"it has {extent.size:,} bytes; {largest:,} is the limit"
            elif extent in missing:
                reason = "another item has the same extent"
            else:
                missing[extent] = item
                continue
            self._on_fault(SnapshotFault(self.describe(extent), reason))

        def read(range_: Range) -> list[tuple[K, T]]:
            pairs: list[tuple[K, T]] = []
            for extent, data in self._read_range(range_):
                item = missing[extent]
                try:
                    pairs.append((item, check(item, data)))
                except (LocatorError, IpldError) as error:
                    self._on_fault(SnapshotFault(self.describe(extent), f"damaged: {error}"))
            return pairs

        for part in in_parallel(read, ranges_of(missing, gap, MAX_RANGE)):
            checked.update(part)
        return checked

    def _read_range(self, range_: Range) -> list[tuple[PackExtent, bytes]]:
        try:
            cid, size = self._packs[range_.pack]
            name = pack_name(cid)
            if range_.end > size:
                raise MissingObjectError(f"{name} in {self._objects.url} has only {size} bytes")
            data = self._objects.get_range(name, range_.start, range_.end - range_.start)
        except (ObjectError, IndexError) as error:
            what = f"bytes {range_.start}-{range_.end} of pack {range_.pack}"
            self._on_fault(SnapshotFault(what, str(error)))
            self._count_failure(error)
            return []
        self._failures = 0
        return [
            (extent, data[extent.offset - range_.start : extent.end - range_.start])
            for extent in range_.wanted
        ]

    def _count_failure(self, error: Exception) -> None:
        """Give the store up after many failures in a row; a missing object is quick to notice."""
        if not isinstance(error, UnavailableError):
            return
        self._failures += 1
        if self._failures >= _GIVEN_UP:
            raise SnapshotError(
                f"{self._objects.url} has failed {self._failures} times in a row and was given up; "
                f"the last error: {error}"
            )

    def describe(self, extent: PackExtent) -> str:
        """Return where an extent is, for people."""
        if not 0 <= extent.pack < len(self._packs):
            return f"byte {extent.offset} of pack {extent.pack} in {self._objects.url}"
        cid, _ = self._packs[extent.pack]
        return f"{pack_name(cid)} in {self._objects.url}, byte {extent.offset}"
