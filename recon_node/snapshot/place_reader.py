"""Read places in the packs of a snapshot, in few requests, and check what stands there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final, TypeVar

from recon_node.ipld import CID, IpldError
from recon_node.snapshot.faults import Fault, OnFault, SnapshotError
from recon_node.snapshot.kept import Kept
from recon_node.snapshot.objects import (
    MissingObjectError,
    ObjectError,
    Objects,
    UnavailableError,
)
from recon_node.snapshot.parallel import in_parallel
from recon_node.snapshot.places import LocatorError, Place, Range, ranges_of
from recon_node.snapshot.root import pack_name

K = TypeVar("K")
T = TypeVar("T")

MAX_RANGE: Final = 1024 * 1024
"""Bytes read at once, unless a single place is larger."""
_GIVEN_UP: Final = 16
"""Failures in a row after which a store is given up."""


class PlaceReader:
    """Reads places in the packs of one snapshot.

    Args:
        objects: where the packs are.
        packs: their CIDs and sizes.
        on_fault: told what cannot be used.
        kept: is asked first, and gets what was read.
    """

    def __init__(
        self,
        objects: Objects,
        packs: Sequence[tuple[CID, int]],
        on_fault: OnFault,
        kept: Kept,
    ) -> None:
        self._objects = objects
        self._packs = packs
        self._on_fault = on_fault
        self._kept = kept
        self._failures = 0

    def read(
        self,
        names: Mapping[K, bytes],
        places: Mapping[K, Place],
        gap: int,
        largest: int,
        check: Callable[[K, bytes], T],
    ) -> dict[K, T]:
        """Return what is kept or stands at some places, checked; leave out what is wrong.

        Args:
            names: what each item is kept as.
            places: where each item is.
            gap: bytes between two places that are read rather than asked for separately.
            largest: bytes of an item.
            check: returns the item of some bytes; raises `LocatorError` or `IpldError`.

        Raises:
            SnapshotError: the store was given up.
        """
        found: dict[K, T] = {}
        kept = self._kept.get(list(names.values()))
        missing: dict[Place, K] = {}
        for item, place in places.items():
            data = kept.get(names[item])
            with suppress(LocatorError, IpldError):
                if data is not None:
                    found[item] = check(item, data)
                    continue
            if place.size > largest:
                reason = f"it has {place.size:,} bytes; {largest:,} is the limit"
            elif place in missing:
                reason = "another item has the same place"
            else:
                missing[place] = item
                continue
            self._on_fault(Fault(self.describe(place), reason))

        def read(each: Range) -> list[tuple[K, T]]:
            got: list[tuple[K, T]] = []
            right: list[tuple[bytes, bytes]] = []
            for place, data in self._read_range(each):
                item = missing[place]
                try:
                    got.append((item, check(item, data)))
                    right.append((names[item], data))
                except (LocatorError, IpldError) as error:
                    self._on_fault(Fault(self.describe(place), f"damaged: {error}"))
            self._kept.put(right)
            return got

        for part in in_parallel(read, ranges_of(missing, gap, MAX_RANGE)):
            found.update(part)
        return found

    def _read_range(self, each: Range) -> list[tuple[Place, bytes]]:
        try:
            cid, size = self._packs[each.pack]
            if each.end > size:
                raise MissingObjectError(
                    f"{pack_name(cid)} in {self._objects.url} has only {size} bytes"
                )
            data = self._objects.get_range(pack_name(cid), each.start, each.end - each.start)
        except (ObjectError, IndexError) as error:
            self._on_fault(Fault(f"bytes {each.start}-{each.end} of pack {each.pack}", str(error)))
            self._count_failure(error)
            return []
        self._failures = 0
        return [
            (place, data[place.offset - each.start : place.end - each.start])
            for place in each.wanted
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

    def describe(self, place: Place) -> str:
        """Return where a place is, for people."""
        if not 0 <= place.pack < len(self._packs):
            return f"byte {place.offset} of pack {place.pack} in {self._objects.url}"
        cid, _ = self._packs[place.pack]
        return f"{pack_name(cid)} in {self._objects.url}, byte {place.offset}"
