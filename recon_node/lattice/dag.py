"""One stream as a directed acyclic graph: events in causal order, prevs, nexts and heights.

Event `B` *covers* `A` when `A` is among `B`'s prevs, or among the events that `B`'s prevs cover
(CIP-145, "Definitions"). Inside, an event is its number in a causal order (every prev before its
successors), so that one pass upwards hands facts from ancestors to descendants and one pass
downwards the other way. A set of events, or of branches, is an int used as a bit set.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar


class Identifier(Hashable, Protocol):
    """What an event id must offer: equality, a hash, a total order (for CIDs the binary one)."""

    def __lt__(self, other: Any, /) -> bool: ...


Id = TypeVar("Id", bound=Identifier)


class StreamShapeError(ValueError):
    """The events are not one whole stream: no init or several, a prev not there, a cycle."""


@dataclass(frozen=True, slots=True)
class StreamEvent(Generic[Id]):
    """An event of a stream, as far as its shape goes.

    `time` is the block time (seconds) that a time event proves; None when it is not known (its
    anchor was not looked up yet) and for events of other kinds. `valid` is False for a data event
    with a wrong signature, and for a time event whose proof is wrong. `expires` (Unix seconds) is
    the last second in which the CACAO holds that a data event was signed by: the event is invalid
    when its time is after that.
    """

    id: Id
    kind: Literal["init", "data", "time"]
    prev: tuple[Id, ...] = ()
    time: int | None = None
    valid: bool = True
    expires: int | None = None


class StreamDag(Generic[Id]):
    """The events of one stream in causal order; `prevs` and `nexts` hold numbers in that order.

    The same event given twice counts once. Raises `StreamShapeError` when the events are not one
    whole stream.
    """

    __slots__ = ("events", "height", "nexts", "prevs")

    def __init__(self, events: Iterable[StreamEvent[Id]]) -> None:
        by_id = _by_id(events)
        self.events: list[StreamEvent[Id]] = _causal_order(by_id)
        number = {event.id: i for i, event in enumerate(self.events)}
        self.prevs: list[list[int]] = [
            [number[prev] for prev in dict.fromkeys(event.prev)] for event in self.events
        ]
        self.nexts: list[list[int]] = [[] for _ in self.events]
        for i, prevs in enumerate(self.prevs):
            for prev in prevs:
                self.nexts[prev].append(i)
        self.height: list[int] = []
        for prevs in self.prevs:
            self.height.append(1 + max((self.height[prev] for prev in prevs), default=-1))

    def __len__(self) -> int:
        return len(self.events)


def heights(events: Iterable[StreamEvent[Id]]) -> dict[Id, int]:
    """The height of every event: 0 for the init, else 1 + the largest height of its prevs.

    Raises `StreamShapeError` when the events are not one whole stream.
    """
    dag = StreamDag(events)
    return {event.id: height for event, height in zip(dag.events, dag.height, strict=True)}


def _by_id(events: Iterable[StreamEvent[Id]]) -> dict[Id, StreamEvent[Id]]:
    by_id: dict[Id, StreamEvent[Id]] = {}
    inits: list[Id] = []
    for event in events:
        if event.id in by_id:
            if by_id[event.id] != event:
                raise StreamShapeError(f"event {show(event.id)} was given twice, with differences")
            continue
        by_id[event.id] = event
        if event.kind == "init":
            inits.append(event.id)
        if bool(event.prev) == (event.kind == "init"):
            expected = "no prev" if event.kind == "init" else "at least one prev"
            raise StreamShapeError(f"{event.kind} event {show(event.id)} must have {expected}")
    if len(inits) != 1:
        found = "none" if not inits else ", ".join(sorted(map(show, inits)))
        raise StreamShapeError(f"a stream has exactly one init event; found: {found}")
    return by_id


def _causal_order(by_id: dict[Id, StreamEvent[Id]]) -> list[StreamEvent[Id]]:
    """Kahn's algorithm: an event follows when the last of its prevs has been placed."""
    waiting: dict[Id, int] = {}
    nexts: dict[Id, list[Id]] = {id_: [] for id_ in by_id}
    ready: list[Id] = []
    for event in by_id.values():
        prevs = set(event.prev)
        for prev in prevs:
            if prev not in nexts:
                raise StreamShapeError(
                    f"event {show(event.id)} names prev {show(prev)}, which is not there"
                )
            nexts[prev].append(event.id)
        waiting[event.id] = len(prevs)
        if not prevs:
            ready.append(event.id)
    for id_ in ready:  # grows while it is walked
        for successor in nexts[id_]:
            waiting[successor] -= 1
            if waiting[successor] == 0:
                ready.append(successor)
    if len(ready) < len(by_id):
        stuck = show(min(id_ for id_, prevs in waiting.items() if prevs))
        raise StreamShapeError(f"event {stuck} is part of a cycle, or covers one")
    return [by_id[id_] for id_ in ready]


def show(id_: object) -> str:
    """An id for a message: a CID prints as its base32 text, plain bytes as hex."""
    return id_.hex() if type(id_) is bytes else str(id_)
