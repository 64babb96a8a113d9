"""Packs: files of some megabytes with the events of many leaves, or with many nodes.

A pack of events is a CARv1. An event's blocks stand in it one after the other, as in the event's
own CAR, whose header is left out. So the place of an event (pack, offset, size) is a range of
bytes, and a reader that lacks a few events asks for a few ranges. In a pack of nodes, each is
followed by its locator. Both are named by the CID of their bytes.

The tree does not say where things are: then it would depend on how it came to be. A *locator* says
it, of the events of a leaf's keys or of the children of an inner node. Nobody signs locators, and
nobody has to: what stands at a place is checked against the CID that is wanted.

    node       packed node (`tree.packed`) | locator | bytes of the locator, u24, big-endian
    locator    for each item: size << 2 | kind, a varint; kind 0: then pack and offset, varints
               kind 1: right behind the item before; kind 2: then how many bytes behind it, a varint

Packs are numbered in the order in which the root object lists them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from recon_node.ipld import CID, CarError, VarintError, car, varint
from recon_node.ipld.cid import IDENTITY, RAW
from recon_node.recon import Sha256a
from recon_node.snapshot.tree import Node, NodeFormatError, pack, unpack

_TRAILER_SIZE: Final = 3
_EXPLICIT, _BEHIND, _AFTER_GAP = range(3)
_KIND_BITS: Final = 2
_KINDS: Final = 3


PACK_HEADER: Final = car.encode([CID(bytes((1, RAW, IDENTITY, 0)))], {})
"""How a pack of events starts: a CAR must name a root, so this names an empty one."""


class LocatorError(ValueError):
    """What should be a node with its locator is something else."""


class Place(NamedTuple):
    """Where something is: a range of bytes in a pack."""

    pack: int
    offset: int
    size: int

    @property
    def end(self) -> int:
        """The offset behind it."""
        return self.offset + self.size


def encode_locator(places: Iterable[Place]) -> bytes:
    """Return the locator of some items, in order."""
    parts: list[bytes] = []
    before = Place(-1, 0, 0)
    for place in places:
        gap = place.offset - before.end
        head = place.size << _KIND_BITS
        if place.pack != before.pack or gap < 0:
            parts += (
                varint.encode(head | _EXPLICIT),
                varint.encode(place.pack),
                varint.encode(place.offset),
            )
        elif gap == 0:
            parts.append(varint.encode(head | _BEHIND))
        else:
            parts += (varint.encode(head | _AFTER_GAP), varint.encode(gap))
        before = place
    return b"".join(parts)


def decode_locator(data: bytes, count: int) -> list[Place]:
    """Return the places of `count` items.

    Raises:
        LocatorError: it is not the locator of so many.
    """
    places: list[Place] = []
    before, at = Place(-1, 0, 0), 0
    try:
        for _ in range(count):
            head, at = varint.decode(data, at)
            kind, pack, offset = head & _KINDS, before.pack, before.end
            if kind == _EXPLICIT:
                pack, at = varint.decode(data, at)
                offset, at = varint.decode(data, at)
            elif kind == _AFTER_GAP:
                gap, at = varint.decode(data, at)
                offset += gap
            before = Place(pack, offset, head >> _KIND_BITS)
            places.append(before)
    except VarintError as error:
        raise LocatorError(f"its locator is broken: {error}") from None
    if at != len(data) or any(place.pack < 0 for place in places):
        raise LocatorError("its locator belongs to another node")
    return places


def located(node: Node, locator: bytes) -> bytes:
    """Return what stands at a node's place."""
    return pack(node) + locator + len(locator).to_bytes(_TRAILER_SIZE, "big")


def split_located(data: bytes, cid: CID, total: Sha256a | None) -> tuple[bytes, bytes]:
    """Return the block and the locator of a node from the bytes at its place.

    Args:
        data: the bytes.
        cid: of the node.
        total: its Ahash, as its parent has it; not needed for a leaf.

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
    """Fills packs, one after the other.

    Args:
        target: bytes after which a pack is full.
        header: with which each of them starts.
    """

    def __init__(self, target: int, header: bytes = b"") -> None:
        self._target = target
        self._header = header
        self._parts: list[bytes] = []
        self._size = 0

    @property
    def is_full(self) -> bool:
        """Whether it should be taken."""
        return self._size >= self._target

    def add(self, data: bytes) -> tuple[int, int]:
        """Append bytes; return their offset and size."""
        if not self._parts:
            self._parts.append(self._header)
            self._size = len(self._header)
        self._parts.append(data)
        offset, self._size = self._size, self._size + len(data)
        return offset, len(data)

    def take(self) -> tuple[CID, bytes] | None:
        """Return the pack, and start the next; None if it is empty."""
        data = b"".join(self._parts)
        self._parts.clear()
        self._size = 0
        return (CID.of(RAW, data), data) if data else None


class Range(NamedTuple):
    """Bytes of a pack that are read at once, and the wanted places in them, ascending."""

    pack: int
    start: int
    end: int
    wanted: Sequence[Place]


def ranges_of(places: Iterable[Place], gap: int, most: int) -> list[Range]:
    """Join places into ranges.

    Args:
        places: in any order.
        gap: bytes between two places that are read with them rather than asked for separately.
        most: bytes of a range, unless a single place is larger.
    """
    found: list[Range] = []
    for place in sorted(set(places)):
        last = found[-1] if found else None
        if (
            last is not None
            and last.pack == place.pack
            and place.offset <= last.end + gap
            and place.end - last.start <= most
        ):
            end = max(last.end, place.end)
            found[-1] = Range(last.pack, last.start, end, [*last.wanted, place])
        else:
            found.append(Range(place.pack, place.offset, place.end, [place]))
    return found
