"""Damage on the disk: events whose bytes in the log are not what was written.

Everything that leaves the log is checked on the way out, in the thread that reads it: each block
must match its CID, and the row must belong to the event. An event that fails is *damaged*: it is
never served, and a new copy replaces it at the same feed position. If the row itself is damaged,
only `recon-node store check --repair` helps.

Until then the event's key is not in the key store, so that Recon fetches the event from a peer like
one that is missing. An event is what its CID says, so any sound CAR of it will do, from a peer or a
client: nothing else of the event is checked again, and only its bytes change. Position, state and
key stay.

A *forgotten* event has no bytes either, because the operator wanted it so. It is read like a
damaged one, but its key stays in the key store, so that nobody is asked for it, and the feed has
its row.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Final, Protocol

import structlog
import trio

from recon_node.ceramic import EventId, EventKind, InvalidEventError, parse_event
from recon_node.ipld import CID, DAG_CBOR, DAG_JOSE, CarError, car
from recon_node.recon import KeyStore
from recon_node.store.errors import REPAIR, DamagedLogError
from recon_node.store.ring_keys import RingKeys

logger = structlog.get_logger(__name__)

FORGOTTEN: Final = b"\1forgotten"
"""What is stored in place of the CAR of a forgotten event; the header of no CAR has one byte."""

_KINDS: Final = frozenset(kind.value for kind in EventKind)
_EVENT_ID_PREFIX: Final = bytes.fromhex("ce0105")
"""The codes that every EventId starts with (CIP-124)."""
_MIN_STREAM_OFFSET: Final = 20
"""An EventId has at least this many bytes before those of its stream."""


@dataclass(frozen=True, slots=True)
class Damage:
    """A damaged event, with those of its names that can be read."""

    reason: str
    """What does not match."""
    event_id: EventId | None = None
    """None if the row itself is damaged, so that a new copy of the event does not help."""
    cid: CID | None = None
    position: int | None = None
    """Its feed position."""
    is_forgotten: bool = False
    """Whether the operator had the event forgotten: then it is not to come back."""

    def __str__(self) -> str:
        if self.is_forgotten:
            return f"the event {self.cid} is of a stream that this node has forgotten"
        name = "an event" if self.cid is None else f"the event {self.cid}"
        where = "" if self.position is None else f" at feed position {self.position}"
        remedy = REPAIR
        if self.event_id is not None:
            remedy = (
                "this node fetches it again from its peers, or accepts it from a client; if nobody "
                f"has it, {REPAIR}"
            )
        return f"{name}{where} is damaged in this node's log ({self.reason}): {remedy}"


class DamagedEventError(DamagedLogError):
    """Requested events are damaged in the log. This may pass: the node fetches them again.

    Attributes:
        found: the damaged events, at least one.
    """

    def __init__(self, *damages: Damage) -> None:
        super().__init__(str(damages[0]))
        self.found = damages

    @property
    def is_forgotten(self) -> bool:
        """Whether nothing is wrong but that the events were forgotten."""
        return all(damage.is_forgotten for damage in self.found)


def car_fault(stored: bytes, cid: bytes) -> str | None:
    """Return what is wrong with the CAR of the event `cid`; None if it is sound."""
    if is_plainly_sound(stored, cid):
        return None
    try:
        event = parse_event(stored)
    except InvalidEventError as error:
        return str(error)
    return None if event.cid == cid else f"its CAR holds the event {event.cid}"


def check_stored(
    car: bytes | CarError, event_id: object, cid: bytes, position: object
) -> bytes | Damage:
    """Return the CAR that was restored for the event `cid` if it is sound, else what is wrong."""
    if car == FORGOTTEN:
        return forgotten(event_id, cid, position)
    fault = str(car) if isinstance(car, CarError) else car_fault(car, cid)
    if fault is None and not isinstance(car, CarError):
        return car
    return name_damage(fault or "", event_id, cid, position)


def row_fault(
    event_id: object, cid: object, init: object, kind: object, whole: bytes
) -> str | None:
    """Return what is wrong with the row of an event whose CAR is sound; None if it fits.

    Of the EventId, only the event and the stream are compared: the other parts follow from the
    event's history, and `recon-node store check` checks them.
    """
    if not (isinstance(event_id, bytes) and isinstance(cid, bytes) and isinstance(init, bytes)):
        return "its row has no EventId"
    if not (event_id.startswith(_EVENT_ID_PREFIX) and event_id.endswith(cid)):
        return "its row has another EventId"
    if event_id.find(init[-4:], _MIN_STREAM_OFFSET, -len(cid)) < 0:
        return "its row has an EventId of another stream"
    if kind not in _KINDS:
        return "its row has no kind of event"
    if not (init == cid if kind == "init" else init in whole):
        return "its row is of another stream"
    return None


def name_damage(
    reason: str, event_id: object, cid: object, position: object, *, of_row: bool = False
) -> Damage:
    """A `Damage` with those of the names that can be read; `of_row`: the row itself is damaged."""
    key: EventId | None = None
    name: CID | None = None
    with suppress(ValueError):
        name = CID(cid) if isinstance(cid, bytes) else None
        key = EventId(event_id) if isinstance(event_id, bytes) else None
    if of_row or key is None or key.event_cid != name:
        key = None
    return Damage(reason, key, name, position if isinstance(position, int) else None)


def forgotten(event_id: object, cid: object, position: object) -> Damage:
    """A `Damage` of a forgotten event."""
    return replace(name_damage("it is forgotten", event_id, cid, position), is_forgotten=True)


class _Reader(Protocol):
    """What is needed of `LogReader`, which checks by this module what it reads."""

    on_damage: Callable[[Iterable[Damage]], None]

    async def cars_for_peers(self, event_ids: Sequence[EventId]) -> list[bytes | None]:
        """Return the CARs of some EventIds; None for those that are damaged."""
        ...


class DamageWatch:
    """The damaged events met since the store was opened. Used from trio's thread only.

    Args:
        keys: the EventIds held. Those of damaged events are taken out.
        reader: whose questions find damaged events, and which is asked for known ones again.

    Attributes:
        found_total: damaged events found so far.
        repaired_total: how many of them were repaired.
    """

    def __init__(self, keys: KeyStore, reader: _Reader) -> None:
        self._keys = keys
        self._ring_keys: RingKeys | None = None
        self._taken_from_ring: set[EventId] = set()
        self._reader = reader
        reader.on_damage = self.note
        self._damaged: dict[tuple[EventId | None, CID | None, int | None], Damage] = {}
        self._found = trio.lowlevel.ParkingLot()
        self.found_total = 0
        self.repaired_total = 0

    @property
    def count(self) -> int:
        """Known damaged events that are not repaired yet."""
        return len(self._damaged)

    @property
    def missing_keys(self) -> int:
        """Keys that are not in the key store because their events are damaged."""
        return len({key[0] for key in self._damaged if key[0] is not None})

    def cids(self) -> frozenset[CID]:
        """The events of which a sound copy is wanted."""
        return frozenset(key[0].event_cid for key in self._damaged if key[0] is not None)

    def note(self, damages: Iterable[Damage]) -> None:
        """Remember damaged events and log those that were not known."""
        for damage in damages:
            if damage.is_forgotten:
                continue
            name = (damage.event_id, damage.cid, damage.position)
            if name in self._damaged:
                continue
            self._damaged[name] = damage
            self.found_total += 1
            logger.error(
                "An event in the log is damaged",
                cid=None if damage.cid is None else str(damage.cid),
                position=damage.position,
                reason=str(damage),
            )
            if damage.event_id is not None:
                self._keys.discard(damage.event_id)
                self._take_from_ring(damage.event_id)
            self._found.unpark_all()

    def note_repaired(self, event_ids: Iterable[EventId]) -> None:
        """Note events whose copies in the log are sound again, and put their keys back."""
        for event_id in event_ids:
            for name in [name for name in self._damaged if name[0] == event_id]:
                del self._damaged[name]
                self.repaired_total += 1
                logger.info("A damaged event was repaired", cid=str(event_id.event_cid))
            self._keys.add(event_id)
            if self._ring_keys is not None and event_id in self._taken_from_ring:
                self._taken_from_ring.remove(event_id)
                self._ring_keys.put_back(event_id)

    def leave_out_of(self, ring_keys: RingKeys) -> None:
        """Take the keys of damaged events out of those of the model ring, too, from now on."""
        self._ring_keys = ring_keys
        for event_id, _, _ in self._damaged:
            if event_id is not None:
                self._take_from_ring(event_id)

    def _take_from_ring(self, event_id: EventId) -> None:
        if self._ring_keys is not None and self._ring_keys.discard(event_id):
            self._taken_from_ring.add(event_id)

    async def check_range(self, after: int, upto: int) -> None:
        """Read the known damaged events of the feed positions (after, upto] again.

        Raises:
            DamagedEventError: one of them is still damaged.
            StoreError: the disk failed.
        """
        event_ids = [damage.event_id for damage in self._between(after, upto) if damage.event_id]
        if event_ids:
            cars = await self._reader.cars_for_peers(event_ids)
            sound = zip(event_ids, cars, strict=True)
            self.note_repaired(event_id for event_id, car in sound if car is not None)
        if still_damaged := self._between(after, upto):
            raise DamagedEventError(*still_damaged)

    async def wait(self, after: int) -> int:
        """Wait until `found_total` is more than `after`, and return it."""
        while self.found_total <= after:
            await self._found.park()
        return self.found_total

    def _between(self, after: int, upto: int) -> list[Damage]:
        return [
            damage for damage in self._damaged.values() if after < (damage.position or 0) <= upto
        ]


_DIGEST: Final = slice(-32, None)
"""The sha2-256 digest of a CID; before it stand the CID's version, codec and hash code."""
_CODES: Final = slice(None, -32)
_MAX_ONE_BYTE_VARINT: Final = 127
_MAX_TWO_BYTE_VARINT: Final = 16383
_MAX_THREE_BYTE_VARINT: Final = 2097151


def _header_parts(codec: int) -> tuple[bytes, bytes, int]:
    """The header of an event's CAR before and after the root, and the length of the root."""
    root = CID.of(codec, b"")
    header = car.encode([root], {})
    at = header.index(root)
    return header[:at], header[at + len(root) :], len(root)


_HEADERS: Final = {
    length: (before, after, len(before) + length + len(after))
    for before, after, length in map(_header_parts, (DAG_JOSE, DAG_CBOR))
}
"""By the length of the root's CID: the header before and after it, and the header's size."""
_CID_HEADS: Final = frozenset(CID.of(codec, b"")[_CODES] for codec in (DAG_CBOR, DAG_JOSE))


def is_plainly_sound(stored: bytes, cid: bytes) -> bool:
    """Return True for nearly all sound CARs; on False, `car_fault` has to parse the CAR.

    Every byte is checked: the header is the one that follows from the CID, each block matches its
    CID, and some block names each CID but the root. Written without avoidable objects and calls,
    because it runs for every event that is read.
    """
    try:
        before, after, at = _HEADERS[len(cid)]
        if stored[:at] != before + cid + after:
            return False
        end, has_root = len(stored), False
        while at < end:
            size, start = stored[at], at + 1
            if size > _MAX_ONE_BYTE_VARINT:
                size, start = size & 127 | stored[start] << 7, start + 1
                if size > _MAX_TWO_BYTE_VARINT:
                    size = size & _MAX_TWO_BYTE_VARINT | stored[start] << 14
                    start += 1
                    if not _MAX_TWO_BYTE_VARINT < size <= _MAX_THREE_BYTE_VARINT:
                        return False
            block = start + (36 if stored[start + 1] == DAG_CBOR else 37)  # DAG-JOSE: two bytes
            name, at = stored[start:block], start + size
            if sha256(stored[block:at]).digest() != name[_DIGEST] or name[_CODES] not in _CID_HEADS:
                return False
            if name == cid:
                has_root = True
            elif stored.count(name) < 2:
                return False
    except LookupError:
        return False
    return has_root and at == end
