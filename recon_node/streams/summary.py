"""A summary of a stream: a small stream whose tip is always that of the whole one.

Theory of operation. Nearly all events of a long stream have no say in its tip any more, whatever
comes. A summary leaves them out, and `SummarizedTip` goes on from it as if it had all of them. What
it leaves out depends on where later events may build: on the *open* events, which are the latest
ones and the candidates for the tip. An event on any other one raises `ForgottenError`: the whole
stream must be read.

Events that are covered by the same open events and candidates are a *class*. All branches to come
hold either all data of a class or none of it, so the class is decided by its lowest data. A summary
keeps

- the open events and the candidates; the init event;
- the top of each class, which is a fork point or one of these, and its lowest data;
- the last data below the tops (for open events: also the last with a proven time), which become
  `data_tip` and `anchored_at`; all dominant data is among it;

and connects them as they cover each other. Every other event of a class is *folded* into its top:
it is pruned if and only if the top is. Events that no open event and no candidate covers are *dead*
and stay pruned. Of events that are pruned, the ids are kept.

Times are those of the whole stream, so no time event needs to be kept for the time that it proves.
A new proof, though, may change the validity of an event that was signed by a capability that
expires. If such an event could be among those left out (`lapses`, `revives`), or is an old one, the
summary is not enough, either. It never answers wrongly: it answers, or raises `ForgottenError`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final, Generic

from recon_node.streams.graph import ForgottenError, Id, StreamEvent
from recon_node.streams.segments import NEVER, Candidates, EventNode
from recon_node.streams.tip import StreamTip, covered_by, first_met

MAX_LINKS: Final = 1_000_000
"""Steps to connect what a summary keeps. Whoever writes a stream of tangled branches to exceed that
gets none."""


@dataclass(frozen=True, slots=True)
class KeptEvent(Generic[Id]):
    """An event in a summary.

    Attributes:
        event: its prevs are the next events below it that are kept; without the time it proves.
        height: in the whole stream.
        time: the earliest that is proven for it; None if none is.
        is_open: whether later events may build on it.
        folded: how many events are folded into it.
        pruned: their ids, if the event is pruned.
    """

    event: StreamEvent[Id]
    height: int
    time: int | None
    is_open: bool
    folded: int = 0
    pruned: tuple[Id, ...] = ()


@dataclass(frozen=True, slots=True)
class TipSummary(Generic[Id]):
    """A summary of a stream for `SummarizedTip`.

    Attributes:
        kept: events in causal order.
        count: how many events the stream has.
        dead: ids of events that are covered by none of the kept ones.
        lapses: a later proof of a time after this may invalidate an event that was left out.
        revives: a proof of this time or an earlier one may make such an event valid.
    """

    kept: tuple[KeptEvent[Id], ...] = ()
    count: int = 0
    dead: tuple[Id, ...] = ()
    lapses: int | None = None
    revives: int | None = None


class SummarizedTip(StreamTip[Id]):
    """`StreamTip` that goes on from a summary, and can be summarized; not for use with `now`.

    Events must be new. All methods raise `ForgottenError` if the summary is not enough; the object
    cannot be used afterwards.

    Args:
        summary: of the events before; None: there are none.
        lists_pruned: without, `Tip.pruned` is empty, and summaries are smaller.
    """

    __slots__ = ("_closed", "_lists_pruned", "_old", "_summary")

    def __init__(self, summary: TipSummary[Id] | None = None, *, lists_pruned: bool = True) -> None:
        super().__init__()
        self._summary: TipSummary[Id] = summary or TipSummary()
        self._lists_pruned = lists_pruned
        self._old: dict[Id, KeptEvent[Id]] = {}
        for kept in self._summary.kept:
            self._restore(kept)
        self._old = {kept.event.id: kept for kept in self._summary.kept}
        self._closed = {id_ for id_, kept in self._old.items() if not kept.is_open}

    def __len__(self) -> int:
        return self._summary.count - len(self._old) + len(self._nodes)

    def height(self, event: Id) -> int:
        """Return the height of a kept or new event."""
        return self._nodes[event].height

    def summarize(self, recent: int) -> TipSummary[Id]:
        """Return a summary of all events, in which the `recent` latest ones are open.

        Raises:
            StreamShapeError: the stream has no tip, but pruned events are to be listed.
        """
        branch = set(covered_by([self._select(None)])) if self._lists_pruned else set()
        if self._moved:
            self._rebuild()
        nodes = list(self._nodes.values())
        candidates = Candidates(self._graph.segments).nodes
        exits = {node for node in nodes[-recent:] if node.id not in self._closed}
        exits.update(candidates)
        living = set(covered_by(exits))
        alive = [node for node in nodes if node in living]
        tops = _classes(alive, exits)
        kept = self._to_keep(alive, exits, tops)
        below = _prevs_among(kept, alive)
        folds = {node: self._fold_of(node) for node in kept}
        for node in alive:
            if node not in kept:
                folds[tops[node]].add(node.id, self._fold_of(node))
        gone = [node for node in nodes if node not in kept]
        return TipSummary(
            tuple(
                KeptEvent(
                    replace(node.event, prev=tuple(each.id for each in below[node]), time=None),
                    node.height,
                    None if node.time == NEVER else int(node.time),
                    node in exits and node.id not in self._closed,
                    folds[node].count,
                    () if node in branch else self._known(folds[node]),
                )
                for node in alive
                if node in kept
            ),
            len(self),
            self._dead([node for node in gone if node not in living]),
            min(_given([self._summary.lapses, *map(_lapses, gone)]), default=None),
            max(_given([self._summary.revives, *map(_revives, gone)]), default=None),
        )

    def _restore(self, kept: KeptEvent[Id]) -> None:
        node = EventNode(kept.event, [self._nodes[prev] for prev in kept.event.prev])
        self._nodes[node.id] = node
        node.height = kept.height
        node.time = NEVER if kept.time is None else kept.time
        if kept.event.expires is not None:
            self._judge(node)
        if node.valid:
            self._graph.insert(node)

    def _prevs_of(self, event: StreamEvent[Id]) -> list[EventNode[Id]]:
        if self._old:
            for prev in event.prev:
                if prev in self._closed or prev not in self._nodes:
                    raise ForgottenError("an event builds on one that may be left out")
        return super()._prevs_of(event)

    def _anchor(self, node: EventNode[Id], time: float) -> None:
        lapses, revives = self._summary.lapses, self._summary.revives
        if (lapses is not None and time > lapses) or (revives is not None and time <= revives):
            raise ForgottenError("a proof may change the validity of events that are left out")
        super()._anchor(node, time)

    def _judge(self, node: EventNode[Id]) -> bool:
        has_changed = super()._judge(node)
        if has_changed and node.id in self._old:
            raise ForgottenError("a proof changes the validity of an old event")
        return has_changed

    def _select(self, now: int | None) -> EventNode[Id]:
        if now is not None:
            raise ForgottenError("a summary does not know what expires when")
        return super()._select(now)

    def _pruned(self, tip: EventNode[Id]) -> Iterable[Id]:
        if not self._lists_pruned or len(self) == tip.height + 1:
            return ()
        branch = set(covered_by([tip]))
        return self._dead([node for node in self._nodes.values() if node not in branch])

    def _dead(self, nodes: Iterable[EventNode[Id]]) -> tuple[Id, ...]:
        """The ids of pruned nodes, of those folded into them, and of those that were dead."""
        if not self._lists_pruned:
            return ()
        dead = [*self._summary.dead]
        for node in nodes:
            dead.append(node.id)
            dead.extend(self._known(self._fold_of(node)))
        return tuple(dead)

    def _known(self, fold: _Fold[Id]) -> tuple[Id, ...]:
        if not self._lists_pruned:
            return ()
        if len(fold.ids) != fold.count:
            raise ForgottenError("events are pruned whose ids are not kept")
        return tuple(fold.ids)

    def _fold_of(self, node: EventNode[Id]) -> _Fold[Id]:
        old = self._old.get(node.id)
        return _Fold(0, []) if old is None else _Fold(old.folded, list(old.pruned))

    def _to_keep(
        self,
        alive: Sequence[EventNode[Id]],
        exits: set[EventNode[Id]],
        tops: dict[EventNode[Id], EventNode[Id]],
    ) -> set[EventNode[Id]]:
        top = {node for node in alive if tops[node] is node}
        kept = {alive[0], *exits, *top, *_lowest_data(alive, tops)}
        kept |= first_met(top, lambda node: node.is_data)
        if alive[0].time < NEVER:  # a proof of any event is one of the init
            kept |= first_met(exits, lambda node: node.is_data and node.time < NEVER)
        return kept


@dataclass(slots=True)
class _Fold(Generic[Id]):
    """Events folded into another: how many, and their ids as far as they are known."""

    count: int
    ids: list[Id]

    def add(self, id_: Id, its: _Fold[Id]) -> None:
        """Fold another event, and what is folded into it."""
        self.count += 1 + its.count
        self.ids += [id_, *its.ids]


def _classes(
    alive: Sequence[EventNode[Id]], exits: set[EventNode[Id]]
) -> dict[EventNode[Id], EventNode[Id]]:
    """Return the top of each event's class: what all ways up from it lead through."""
    tops: dict[EventNode[Id], EventNode[Id]] = {}
    above: dict[EventNode[Id], EventNode[Id] | None] = {}  # None: ways to several
    for node in reversed(alive):
        joint = None if node in exits else above[node]
        top = tops[node] = joint or node
        for prev in node.prevs:
            above[prev] = top if above.get(prev, top) is top else None
    return tops


def _lowest_data(
    alive: Sequence[EventNode[Id]], tops: dict[EventNode[Id], EventNode[Id]]
) -> list[EventNode[Id]]:
    """Return the data of each class that covers no other data of the class."""
    lowest = []
    has_data: set[EventNode[Id]] = set()
    for node in alive:
        if any(prev in has_data and tops[prev] is tops[node] for prev in node.prevs):
            has_data.add(node)
        elif node.is_data:
            has_data.add(node)
            lowest.append(node)
    return lowest


def _prevs_among(
    kept: set[EventNode[Id]], alive: Sequence[EventNode[Id]]
) -> dict[EventNode[Id], Sequence[EventNode[Id]]]:
    """Return the next nodes below each that are kept."""
    below: dict[EventNode[Id], Sequence[EventNode[Id]]] = {}
    links = 0
    for node in alive:
        parts = [(prev,) if prev in kept else below[prev] for prev in node.prevs]
        if len(parts) == 1:  # nearly always
            below[node] = parts[0]
            continue
        below[node] = tuple(dict.fromkeys(chain.from_iterable(parts)))
        links += len(below[node])
        if links > MAX_LINKS:
            raise ForgottenError("the stream has too many branches to be summarized")
    return below


def _lapses(node: EventNode[Id]) -> int | None:
    """The time of a proof after which a node would be invalid."""
    return node.event.expires if node.valid and node.time == NEVER else None


def _revives(node: EventNode[Id]) -> int | None:
    """The latest time of a proof by which an invalid node would be valid."""
    return node.event.expires if node.event.valid and not node.valid else None


def _given(values: Iterable[int | None]) -> Iterable[int]:
    return (value for value in values if value is not None)
