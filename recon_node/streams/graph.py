"""One stream as a directed acyclic graph: its events, their causal order and their heights.

Event `B` *covers* `A` if `A` is one of `B`'s prevs, or covered by one of them (CIP-145,
"Definitions"). A stream is *whole* if it has one init event and every prev of its events. Events
nearly always arrive in a causal order (every prev before its successors), which one pass confirms;
only otherwise are they sorted.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar


class SortableId(Hashable, Protocol):
    """An event id: it has equality, a hash, and a total order (for CIDs the binary one)."""

    def __lt__(self, other: Any, /) -> bool: ...


Id = TypeVar("Id", bound=SortableId)


class StreamShapeError(ValueError):
    """The events are not one whole stream: no init event or several, a missing prev, a cycle."""


class ForgottenError(LookupError):
    """A summary of a stream lacks what a question needs: read the whole stream."""


@dataclass(frozen=True, slots=True)
class StreamEvent(Generic[Id]):
    """An event of a stream, without its content.

    `time` is the block time (Unix seconds) that a time event proves; None if its anchor was not
    looked up yet, and for events of other kinds. `valid` is False for a data event with a wrong
    signature and for a time event with a wrong proof. `expires` is the last Unix second in which
    the CACAO holds by which a data event was signed: an event of a later time is invalid. `rank`
    decides between events of the same time, the lowest first; None stands for the id.
    """

    id: Id
    kind: Literal["init", "data", "time"]
    prev: tuple[Id, ...] = ()
    time: int | None = None
    valid: bool = True
    expires: int | None = None
    rank: bytes | None = None


def causal_order(events: Iterable[StreamEvent[Id]]) -> list[StreamEvent[Id]]:
    """Return the events of one stream, every prev before its successors; repeated ones once.

    The given order is kept if it is causal.

    Raises:
        StreamShapeError: the events are not one whole stream.
    """
    by_id = _by_id(events)
    return [by_id[id_] for id_ in _heights(by_id)]


def heights(events: Iterable[StreamEvent[Id]]) -> dict[Id, int]:
    """Return the height of every event, in the order of `causal_order`.

    It is 0 for the init event, else 1 + the largest height of its prevs.

    Raises:
        StreamShapeError: the events are not one whole stream.
    """
    return _heights(_by_id(events))


def heights_by_prevs(prevs: Mapping[Id, Sequence[Id]]) -> dict[Id, int]:
    """Compute `heights` from the prevs of every event; the init event is the one without prevs.

    Raises:
        StreamShapeError: the events are not one whole stream.
    """
    inits = [id_ for id_, below in prevs.items() if not below]
    if len(inits) != 1:
        found = "none" if not inits else ", ".join(sorted(map(show_id, inits)))
        raise StreamShapeError(f"a stream has exactly one init event; found: {found}")
    try:
        return _climb(prevs)
    except KeyError:  # the given order is not causal, or an event is missing
        return _climb({id_: prevs[id_] for id_ in _sorted(prevs)})


def heights_above(known: Mapping[Id, int], prevs: Mapping[Id, Sequence[Id]]) -> dict[Id, int]:
    """Return the heights of later events of a stream, from the known ones of earlier events.

    Args:
        known: of the events on which later ones may build.
        prevs: of the later events, in causal order.

    Raises:
        ForgottenError: a later event builds on an unknown one.
    """
    height: dict[Id, int] = {}
    for id_, below in prevs.items():
        try:
            height[id_] = 1 + max(height[p] if p in height else known[p] for p in below)
        except (KeyError, ValueError):
            raise ForgottenError(f"event {show_id(id_)} builds on one that is not known") from None
    return height


def _heights(by_id: Mapping[Id, StreamEvent[Id]]) -> dict[Id, int]:
    return heights_by_prevs({id_: event.prev for id_, event in by_id.items()})


def _by_id(events: Iterable[StreamEvent[Id]]) -> dict[Id, StreamEvent[Id]]:
    by_id: dict[Id, StreamEvent[Id]] = {}
    for event in events:
        known = by_id.setdefault(event.id, event)
        if known is not event and known != event:
            raise StreamShapeError(f"event {show_id(event.id)} was given twice, with differences")
        if bool(event.prev) == (event.kind == "init"):
            expected = "no prev" if event.kind == "init" else "at least one prev"
            raise StreamShapeError(f"{event.kind} event {show_id(event.id)} must have {expected}")
    return by_id


def _climb(prevs: Mapping[Id, Sequence[Id]]) -> dict[Id, int]:
    """The heights of events in causal order; raises `KeyError` if they are in another."""
    height: dict[Id, int] = {}
    for id_, below in prevs.items():
        if len(below) == 1:  # nearly always
            height[id_] = 1 + height[below[0]]
        else:
            height[id_] = 1 + max((height[prev] for prev in below), default=-1)
    return height


def _sorted(prevs: Mapping[Id, Sequence[Id]]) -> list[Id]:
    """Kahn's algorithm: an event follows when the last of its prevs has been placed."""
    waiting: dict[Id, int] = {}
    nexts: dict[Id, list[Id]] = {id_: [] for id_ in prevs}
    ready: list[Id] = []
    for id_, below in prevs.items():
        distinct = set(below)
        for prev in distinct:
            if prev not in nexts:
                raise StreamShapeError(
                    f"event {show_id(id_)} names prev {show_id(prev)}, which is missing"
                )
            nexts[prev].append(id_)
        waiting[id_] = len(distinct)
        if not distinct:
            ready.append(id_)
    for id_ in ready:  # grows while it is walked
        for successor in nexts[id_]:
            waiting[successor] -= 1
            if waiting[successor] == 0:
                ready.append(successor)
    if len(ready) < len(prevs):
        stuck = show_id(min(id_ for id_, left in waiting.items() if left))
        raise StreamShapeError(f"event {stuck} is part of a cycle, or covers one")
    return ready


def show_id(id_: object) -> str:
    """Return an id as text: a CID in base32, plain bytes in hex."""
    return id_.hex() if type(id_) is bytes else str(id_)
