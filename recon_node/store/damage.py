"""Damage on the disk: events whose bytes in the log are not what was written.

Everything that leaves the log is checked on the way out, in the thread that reads it: each block
must match its CID, and the row must belong to the event. An event that fails is *damaged*: it is
never served, and a new copy replaces it at the same feed position (see `damage_watch`). If the row
itself is damaged, only `recon-node store check --repair` helps.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from recon_node.ceramic import EventId, EventKind, InvalidEventError, parse_event
from recon_node.ceramic.plain_car import is_plainly_sound
from recon_node.ipld import CID, CarError
from recon_node.store.errors import REPAIR, DamagedLogError

_KINDS: Final = frozenset(kind.value for kind in EventKind)
_EVENT_ID_PREFIX: Final = bytes.fromhex("ce0105")
"""The codes that every EventId starts with (CIP-124)."""
_MIN_STREAM_OFFSET: Final = 20
"""An EventId has at least so many bytes before those of its stream."""


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

    def __str__(self) -> str:
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

    def __init__(self, *found: Damage) -> None:
        super().__init__(str(found[0]))
        self.found = found


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
