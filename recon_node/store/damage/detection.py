"""Damage on the disk: events whose bytes in the log are not what was written.

Whatever leaves the log is checked on the way out, in the thread that reads it: each block must
match its CID, and the row must be that of the event. An event that fails is *damaged*: it is never
served. Its key leaves the key store, so that Recon fetches the event from a peer as one that is not
here; the copy that comes, from a peer or a client, takes the place of the damaged one, at the same
feed position (see `damage.mending`). Where the row itself is damaged, only `recon-node
store check --repair` helps.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import Final

import structlog

from recon_node.ceramic import EventId, EventKind, InvalidEventError, parse_event
from recon_node.ipld import CID, DAG_CBOR, DAG_JOSE, car
from recon_node.store.errors import REPAIR, DamagedLogError

logger = structlog.get_logger(__name__)

_KINDS: Final = frozenset(kind.value for kind in EventKind)
_DIGEST: Final = 32
_EVENT_ID_HEAD: Final = bytes.fromhex("ce0105")
_BEFORE_STREAM: Final = 20
"""Bytes of an EventId that stand before those of its stream, at the least."""


@dataclass(frozen=True, slots=True)
class Damage:
    """A damaged event, as far as it can be named."""

    reason: str
    """What does not match."""
    event_id: EventId | None = None
    """None where the row itself is damaged: a new copy of the event does not help."""
    cid: CID | None = None
    position: int | None = None
    """Its feed position."""

    def __str__(self) -> str:
        name = "an event" if self.cid is None else f"the event {self.cid}"
        where = "" if self.position is None else f" at feed position {self.position}"
        help_ = (
            REPAIR
            if self.event_id is None
            else "this node fetches it again from its peers, or takes it from a client; if nobody "
            f"has it, {REPAIR}"
        )
        return f"{name}{where} is damaged in this node's log ({self.reason}): {help_}"


class DamagedEventError(DamagedLogError):
    """Events that were asked for are damaged in the log. It may pass: they are fetched again.

    Attributes:
        found: the damaged events, at least one.
    """

    def __init__(self, *found: Damage) -> None:
        super().__init__(str(found[0]))
        self.found = found


class DamageList:
    """The damaged events that were met since the store was opened, and were not mended yet."""

    def __init__(self) -> None:
        self._by_key: dict[tuple[EventId | None, CID | None, int | None], Damage] = {}
        self.mended_total = 0

    def __len__(self) -> int:
        return len(self._by_key)

    def note(self, damage: Damage) -> bool:
        """Remember a damaged event and tell the operator; False when it was known."""
        key = (damage.event_id, damage.cid, damage.position)
        if key in self._by_key:
            return False
        self._by_key[key] = damage
        logger.error(
            "An event in the log is damaged",
            cid=None if damage.cid is None else str(damage.cid),
            position=damage.position,
            reason=str(damage),
        )
        return True

    def mended(self, event_id: EventId) -> None:
        """Forget an event whose copy in the log is whole again."""
        for key in [key for key in self._by_key if key[0] == event_id]:
            del self._by_key[key]
            self.mended_total += 1
            logger.info("A damaged event was mended", cid=str(event_id.event_cid))

    def cids(self) -> frozenset[CID]:
        """The events of which a new copy helps."""
        return frozenset(key[0].event_cid for key in self._by_key if key[0] is not None)

    @property
    def named(self) -> int:
        """How many EventIds these are."""
        return len({key[0] for key in self._by_key if key[0] is not None})

    def between(self, after: int, upto: int) -> list[Damage]:
        """Those of the feed positions (after, upto]."""
        found = self._by_key.values()
        return [each for each in found if after < (each.position or 0) <= upto]


def car_fault(stored: bytes, cid: bytes) -> str | None:
    """What is wrong with the CAR of the event `cid`, None when nothing is."""
    if is_plainly_sound(stored, cid):
        return None
    try:
        event = parse_event(stored)
    except InvalidEventError as error:
        return str(error)
    return None if event.cid == cid else f"its CAR holds the event {event.cid}"


def row_fault(
    event_id: object, cid: object, init: object, kind: object, whole: bytes
) -> str | None:
    """What is wrong with the row of an event whose CAR is sound, None when nothing is.

    Of the EventId that it is this event's, in its stream: the other parts follow from what the
    event builds on, and `recon-node store check` looks at them.
    """
    if not (isinstance(event_id, bytes) and isinstance(cid, bytes) and isinstance(init, bytes)):
        return "its row has no EventId"
    if not (event_id.startswith(_EVENT_ID_HEAD) and event_id.endswith(cid)):
        return "its row has another EventId"
    if event_id.find(init[-4:], _BEFORE_STREAM, -len(cid)) < 0:
        return "its row has an EventId of another stream"
    if kind not in _KINDS:
        return "its row has no kind of event"
    if not (init == cid if kind == "init" else init in whole):
        return "its row is of another stream"
    return None


def name_damage(
    reason: str, event_id: object, cid: object, position: object, *, of_row: bool = False
) -> Damage:
    """A `Damage` with those of the names that can be read."""
    key: EventId | None = None
    name: CID | None = None
    try:
        name = CID(cid) if isinstance(cid, bytes) else None
        key = EventId(event_id) if isinstance(event_id, bytes) else None
    except ValueError:
        key = None
    if of_row or key is None or key.event_cid != name:
        key = None
    return Damage(reason, key, name, position if isinstance(position, int) else None)


def _header_parts(codec: int) -> tuple[bytes, bytes, int]:
    """What stands before and after the root in the header of an event's CAR; the root's length."""
    root = CID.of(codec, b"")
    header = car.encode([root], {})
    at = header.index(root)
    return header[:at], header[at + len(root) :], len(root)


_HEADERS: Final = {
    length: (before, after, len(before) + length + len(after))
    for before, after, length in map(_header_parts, (DAG_JOSE, DAG_CBOR))
}
"""By the length of the root's CID: what stands around it in the header, and the header's size."""
_CID_HEADS: Final = frozenset(CID.of(codec, b"")[:-_DIGEST] for codec in (DAG_CBOR, DAG_JOSE))


def is_plainly_sound(stored: bytes, cid: bytes) -> bool:
    """Tell at once of nearly all CARs that they are sound; of others this is not known then.

    Every byte counts: the header is the one that follows from the CID, each block matches its CID,
    and each CID but the root is one that a block names. Without objects and calls that can be
    saved: this is done for every event that is read.
    """
    try:
        before, after, at = _HEADERS[len(cid)]
        if stored[:at] != before + cid + after:
            return False
        end, has_root = len(stored), False
        while at < end:
            size, start = stored[at], at + 1
            if size > 127:
                size, start = size & 127 | stored[start] << 7, start + 1
                if size > 16383:
                    return False
            block = start + (36 if stored[start + 1] == DAG_CBOR else 37)
            name, at = stored[start:block], start + size
            if sha256(stored[block:at]).digest() != name[-32:] or name[:-32] not in _CID_HEADS:
                return False
            if name == cid:
                has_root = True
            elif stored.count(name) < 2:
                return False
    except LookupError:
        return False
    return has_root and at == end
