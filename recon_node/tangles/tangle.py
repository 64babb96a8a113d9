"""Tangles: messages of many authors, each naming the tips that its author knew (SIP "Tangles").

Theory of operation. A message may belong to any number of tangles; for each it names the *root*
message and the immediately *previous* messages (`Backlinks`). The candidates of a tangle are its
root and the messages that name it. Membership is a fixed point: the root is a member, and so is a
message that names at least one previous message if all of those are members. A message with an
incomplete or cyclic history is excluded, and becomes a member when what it lacks arrives: the
tangle depends on the set of messages alone.

Order: every message after its whole history; among those that could come next, the lowest
(timestamp, id). By the timestamp that the author asserts, the order is the same at all nodes. The
time of *receipt* differs between nodes, so an order by it is that of one node.

All functions cost O((messages + links) · log messages).
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from heapq import heapify, heappop, heappush
from typing import Generic

from recon_node.streams.graph import Id


class TangleError(ValueError):
    """The messages cannot form a tangle."""


class TangleRule(Enum):
    """The rule that keeps a candidate out of a tangle."""

    EMPTY_PREVIOUS = "a message other than the root must name at least one previous message"
    MISSING_PREVIOUS = "all previous messages must be here"
    PREVIOUS_OUTSIDE = "all previous messages must belong to the tangle"
    CYCLE = "the links back from a message must not form a cycle"
    REJECTED = "the model of a message must accept it"


@dataclass(frozen=True, slots=True)
class Backlinks(Generic[Id]):
    """What a message says about one tangle (`content.tangles[name]`): both None in its root."""

    root: Id | None
    previous: tuple[Id, ...] | None


@dataclass(frozen=True, slots=True)
class TangleMessage(Generic[Id]):
    """A message without its content; `timestamp` breaks ties."""

    id: Id
    timestamp: float = 0
    tangles: Mapping[str, Backlinks[Id]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Exclusion(Generic[Id]):
    """Why a candidate is excluded: the rule, and the previous messages that break it."""

    rule: TangleRule
    previous: tuple[Id, ...] = ()

    def __str__(self) -> str:
        culprits = ", ".join(map(str, self.previous))
        return f"{self.rule.value}: {culprits}" if culprits else self.rule.value


@dataclass(frozen=True, slots=True)
class Tangle(Generic[Id]):
    """The members of a tangle and their links.

    `order` has all members, each after its history. `previous` are the links between members,
    ascending. `excluded` has the other candidates, and why.
    """

    order: tuple[Id, ...]
    previous: Mapping[Id, tuple[Id, ...]]
    excluded: Mapping[Id, Exclusion[Id]]

    def __len__(self) -> int:
        return len(self.order)

    @property
    def tips(self) -> tuple[Id, ...]:
        """The members that no member links back to, ascending: `previous` of the next message."""
        return tuple(sorted(set(self.order).difference(*self.previous.values())))


def tangle_of(messages: Iterable[TangleMessage[Id]], name: str, root: Id) -> Tangle[Id]:
    """Extract the tangle `name` with that root from any set of messages.

    Raises:
        TangleError: the root is missing, or is not a root; a message links to itself, or is given
            twice.
    """
    candidates: dict[Id, tuple[Id, ...] | None] = {}
    timestamps: dict[Id, float] = {}
    for message in messages:
        links = message.tangles.get(name)
        if links is None or root not in (links.root, message.id):
            continue
        if message.id in candidates:
            raise TangleError(f"the message {message.id} was given twice")
        if message.id == root and links.root is not None:
            raise TangleError(f"{root} is not a root: in {name!r} it names the root {links.root}")
        previous = links.previous
        candidates[message.id] = previous if message.id == root else previous or ()
        timestamps[message.id] = message.timestamp
    if root not in candidates:
        raise TangleError(
            f"the root {root} of the tangle {name!r} is missing, or is not a message of that tangle"
        )
    if candidates[root] is not None:
        raise TangleError(f"{root} is not a root: in {name!r} it names previous messages")
    return weave(candidates, timestamps)


def weave(
    candidates: Mapping[Id, tuple[Id, ...] | None], timestamps: Mapping[Id, float] | None = None
) -> Tangle[Id]:
    """Build the tangle of candidates by their links; those without links (None) are roots.

    Raises:
        TangleError: no candidate is a root, or one links to itself.
    """
    links = {
        id_: None if previous is None else tuple(sorted(set(previous)))
        for id_, previous in candidates.items()
    }
    for id_, previous in links.items():
        if previous and id_ in previous:
            rule = TangleRule.CYCLE.value
            raise TangleError(f"the message {id_} names itself as previous: {rule}")
    if links and all(previous is not None for previous in links.values()):
        raise TangleError("no message is a root (one without root and previous)")
    order = _order(links, timestamps or {})
    members = {id_: links[id_] or () for id_ in order}
    return Tangle(tuple(order), members, _exclusions(links, set(order)))


def _order(links: Mapping[Id, tuple[Id, ...] | None], timestamps: Mapping[Id, float]) -> list[Id]:
    """Kahn's algorithm; candidates that never become free are not members."""
    waiting = {id_: len(previous) for id_, previous in links.items() if previous}
    following: defaultdict[Id, list[Id]] = defaultdict(list)
    for id_, previous in links.items():
        for base in previous or ():
            following[base].append(id_)
    free = [(timestamps.get(id_, 0), id_) for id_, base in links.items() if base is None]
    heapify(free)
    order: list[Id] = []
    while free:
        _, member = heappop(free)
        order.append(member)
        for id_ in following[member]:
            waiting[id_] -= 1
            if not waiting[id_]:
                heappush(free, (timestamps.get(id_, 0), id_))
    return order


def _exclusions(
    links: Mapping[Id, tuple[Id, ...] | None], members: set[Id]
) -> dict[Id, Exclusion[Id]]:
    """Why the other candidates are excluded."""
    outside = {
        id_: tuple(base for base in previous or () if base in links and base not in members)
        for id_, previous in links.items()
        if id_ not in members
    }
    straight = set(_order({id_: bases or None for id_, bases in outside.items()}, {}))
    exclusions: dict[Id, Exclusion[Id]] = {}
    for id_ in sorted(outside):
        previous = links[id_] or ()
        missing = tuple(base for base in previous if base not in links)
        turning = tuple(base for base in outside[id_] if base not in straight)
        if not previous:
            exclusions[id_] = Exclusion(TangleRule.EMPTY_PREVIOUS)
        elif missing:
            exclusions[id_] = Exclusion(TangleRule.MISSING_PREVIOUS, missing)
        elif turning:
            exclusions[id_] = Exclusion(TangleRule.CYCLE, turning)
        else:
            exclusions[id_] = Exclusion(TangleRule.PREVIOUS_OUTSIDE, outside[id_])
    return exclusions
