"""A stream as a picture: its events, its tip, what is pruned, and why, in plain words.

Event ids must sort as CIP-145 demands: a `CID` does; its text does not.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal

from recon_node.draw.layout import NodeShape, Picture, PictureNode, Tone, newest_first
from recon_node.streams.graph import EventShape, StreamShapeError, causal_order
from recon_node.streams.merging import expired_branches, open_tips
from recon_node.streams.tip import Decision, Rule, Tip, earliest_times, select_tip

Progress = Literal["delivered", "pending", "waiting"]
"""How far an event has come at a node."""

_SHAPES: Final = {"init": NodeShape.ROOT, "data": NodeShape.DATA, "time": NodeShape.TIME}
_NAME: Final = 8
"""Characters of a CID that are shown: the last ones, since the first are the same in all CIDs."""
_MAX_NAMED: Final = 10
"""Events that a note names. A stream may have hundreds of branches."""
_ORDINARY: Final = frozenset({"pruned", "pending", "waiting"})
"""Marks of events that may be folded in a long run."""


@dataclass(frozen=True, slots=True)
class HeldEvent:
    """An event of a stream at a node.

    Only delivered events count for the tip. `chain_id` is that of a time event's anchor (CAIP-2).
    """

    shape: EventShape[Any]
    height: int
    state: Progress = "delivered"
    chain_id: str | None = None


@dataclass(frozen=True, slots=True)
class StreamPicture:
    """A stream's picture, its tip (if any), and the prevs of an event that would merge it."""

    picture: Picture
    tip: Tip[Any] | None
    merge: tuple[Any, ...]


def stream_picture(
    title: str, events: Iterable[HeldEvent], now: int | None = None, *, full: bool = False
) -> StreamPicture:
    """Draw the events of one stream.

    Events are in any order, and some of their prevs may be missing. Capabilities have expired by
    the Unix time `now`. `full` shows whole CIDs.

    Raises:
        StreamShapeError: the delivered events are not one whole stream.
        ValueError: the events have a cycle.
    """
    by_id: dict[Hashable, HeldEvent] = {event.shape.id: event for event in events}
    missing = _missing(by_id.values(), full)
    bare = [*missing, *(PictureNode(event.shape.id, event.shape.prevs) for event in by_id.values())]
    newest = [by_id[node.id] for node in newest_first(bare) if node.id in by_id]
    delivered = [event.shape for event in reversed(newest) if event.state == "delivered"]
    tip, trouble = _select(delivered, now)
    judge = _Judge(newest, tip, now, full)
    nodes = (*missing, *map(judge.node, reversed(newest)))
    summary = _summary(len(newest), len(delivered), tip, trouble)
    if tip is None:
        return StreamPicture(Picture(title, summary, nodes), None, ())
    expired = expired_branches(delivered, tip, earliest_times(reversed(delivered)))
    merge = open_tips(delivered, tip, tip, expired)
    notes = tuple(_notes(judge, tip, delivered, merge))
    return StreamPicture(Picture(title, summary, nodes, notes), tip, merge)


def _summary(held: int, delivered: int, tip: Tip[Any] | None, trouble: str) -> str:
    parts = ["1 event" if held == 1 else f"{held} events"]
    if delivered < held:
        parts.append(f"{held - delivered} of them not delivered yet")
    if tip is None:
        return ", ".join((*parts, f"no tip: {trouble}"))
    parts.append("diverged" if tip.diverged else "converged")
    parts.append(f"{len(tip.pruned)} pruned" if tip.pruned else "nothing pruned")
    return ", ".join(parts)


def _notes(
    judge: _Judge, tip: Tip[Any], delivered: Sequence[EventShape[Any]], merge: Sequence[Any]
) -> Iterator[str]:
    """How the tip was chosen, what an expired capability has to do with it, and how to merge."""
    yield from map(judge.why, tip.reasons)
    if not tip.reasons:
        yield "There is one candidate: no fork had to be decided."
    lasting, _ = _select([shape._replace(expires=None) for shape in delivered], None)
    if lasting is not None and lasting.event != tip.event:
        name = judge.name(lasting.event)
        yield f"A capability has expired: if it held, {name} would be the tip."
    if merge:
        yield (
            "A data event with these prevs would merge it (`recon-node stream merge`):\n"
            + "\n".join(_first(map(str, merge)))
        )


class _Judge:
    """What the picture says about each event."""

    def __init__(
        self, newest: Sequence[HeldEvent], tip: Tip[Any] | None, now: int | None, full: bool
    ) -> None:
        self._tip = tip
        self._now = now
        self._full = full
        self._time = earliest_times(event.shape for event in newest)
        self._pruned = frozenset(tip.pruned if tip else ())
        self._decided = {
            named
            for decision in (tip.reasons if tip else ())
            for named in (decision.winner, *decision.rivals)
        }

    def node(self, event: HeldEvent) -> PictureNode:
        marks = self._marks(event)
        return PictureNode(
            id=event.shape.id,
            prev=tuple(dict.fromkeys(event.shape.prevs)),
            shape=_SHAPES[event.shape.kind],
            tone=self._tone(event, marks),
            name=self.name(event.shape.id),
            details=(event.shape.kind, str(event.height), self._when(event)),
            marks=marks,
            keep=not _ORDINARY.issuperset(marks) or event.shape.id in self._decided,
        )

    def name(self, id_: Hashable) -> str:
        return _name(id_, self._full)

    def why(self, decision: Decision[Any]) -> str:
        winner = f"{self._named(decision.winner)} wins over "
        winner += " and ".join(_first(map(self._named, decision.rivals)))
        if decision.rule is Rule.EARLIEST_TIME:
            return f"{winner}: after a fork, the data that was anchored first (CIP-145, rule 4)."
        if decision.rule is Rule.LOWEST_CID:
            return f"{winner}: no time decides between them, so the lowest CID (CIP-145, rule 5)."
        if decision.rule is Rule.EARLIEST_ANCHOR:
            return f"{winner}: the same data on each branch, so the earliest anchor."
        return f"The branch of {self._named(decision.winner)} holds all data that the others hold."

    def _named(self, id_: Hashable) -> str:
        return f"{self.name(id_)} ({_anchored(self._time.get(id_))})"

    def _marks(self, event: HeldEvent) -> tuple[str, ...]:
        id_ = event.shape.id
        marks: list[str] = []
        if self._tip is not None:
            notes = {
                "TIP": id_ == self._tip.event,
                "data tip": id_ in self._tip.data_tip,
                "anchored": id_ in self._tip.anchored_at,
                "candidate": id_ in self._tip.candidates and id_ != self._tip.event,
                "pruned": id_ in self._pruned,
            }
            marks += [mark for mark, holds in notes.items() if holds]
        if event.state != "delivered":
            marks.append(event.state)
        if not event.shape.valid:
            marks.append("invalid")
        elif self._has_expired(event.shape):
            marks.append("expired")
        return tuple(marks)

    def _has_expired(self, shape: EventShape[Any]) -> bool:
        time = self._time.get(shape.id, self._now)
        return shape.expires is not None and time is not None and time > shape.expires

    def _tone(self, event: HeldEvent, marks: Sequence[str]) -> Tone:
        if "TIP" in marks:
            return Tone.TIP
        if "invalid" in marks or "expired" in marks:
            return Tone.WRONG
        if event.state != "delivered":
            return Tone.WAITING
        return Tone.PRUNED if "pruned" in marks else Tone.KEPT

    def _when(self, event: HeldEvent) -> str:
        if event.shape.kind != "time":
            return _anchored(self._time.get(event.shape.id))
        if event.shape.time is None:
            return f"anchor on {event.chain_id} not looked up" if event.chain_id else "not proven"
        return _utc(event.shape.time)


def _select(shapes: Sequence[EventShape[Any]], now: int | None) -> tuple[Tip[Any] | None, str]:
    """The tip, and the reason if there is none."""
    if shapes:
        causal_order(shapes)  # raises `StreamShapeError`
    try:
        return select_tip(shapes, now), ""
    except StreamShapeError as error:
        return None, str(error)


def _missing(held: Iterable[HeldEvent], full: bool) -> list[PictureNode]:
    """The nodes of prevs that are not held."""
    shapes = [event.shape for event in held]
    there = {shape.id for shape in shapes}
    absent = {prev for shape in shapes for prev in shape.prevs} - there
    return [
        PictureNode(
            id=missing,
            shape=NodeShape.MISSING,
            tone=Tone.WAITING,
            name=_name(missing, full),
            marks=("not here",),
            keep=True,
        )
        for missing in sorted(absent)
    ]


def _first(names: Iterable[str]) -> list[str]:
    """The names; of many, the first ones, and how many more there are."""
    every = list(names)
    more = len(every) - _MAX_NAMED
    return every if more <= 0 else [*every[:_MAX_NAMED], f"{more} more"]


def _name(id_: Hashable, full: bool) -> str:
    text = str(id_)
    return text if full or len(text) <= _NAME + 2 else f"…{text[-_NAME:]}"


def _anchored(time: int | None) -> str:
    return "not anchored" if time is None else f"anchored {_utc(time)}"


def _utc(time: int) -> str:
    """Unix seconds as text; the number itself if it is outside the calendar."""
    try:
        return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return f"{time} s"
