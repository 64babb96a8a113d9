"""One stream as a directed acyclic graph: its statements, their causal order and their heights.

Event `B` *covers* `A` if `A` is one of `B`'s prevs, or covered by one of them (CIP-145,
"Definitions"). A stream is *whole* if it has one init event and every prev of its events. Events
nearly always arrive in a causal order (every prev before its successors), which one pass confirms;
only otherwise are they sorted.

Copies of one statement count as one event. An event's CID covers its signature, and one statement
can have many valid signatures. From an ECDSA signature (r, s) anybody can make (r, n - s), and a
signer can sign the same payload again. Nobody signs a time event at all: one transaction proves the
time of one event by as many events as there are paths to it in the Merkle tree. If each copy
counted, then a stranger without any key could fork a stream, and have an old state win by the
lowest CID.

So events of a stream are first reduced to their *statements*:

- The statement of a signed event is its protected header, which names the signer, and the CID of
  its payload. A badly signed event is not a copy of anything: nobody stated it.
- The statement of a time event is the transaction that proves its time and the statement of its
  prev.
- The statement of an unsigned init event is itself.

A prev that names one copy names the statement. All that follows (tips, heights, states, merges)
sees one event for each statement: the *shown* copy. It is the canonical spelling (an ECDSA
signature with s in the lower half) where that is here, else the copy with the lowest CID. So nodes
that hold the same copies show the same one; where only some copies are here, another CID may be
shown for the same statement until the sets are equal.

The order of statements in ties (CIP-145, rule 5: "the lowest CID") must not depend on which copies
are here, either. A signature by EdDSA is determined by key and message, so the event's CID belongs
to the statement, and it decides, as on the whole network. ECDSA signatures are not: there, the CID
of the payload decides.
"""

from collections.abc import Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Final, Generic, Literal, NamedTuple, Protocol, TypeVar

from recon_node.ceramic import Event, validity_of
from recon_node.ceramic.auth.did import has_low_s
from recon_node.ipld import CID


class SortableId(Hashable, Protocol):
    """An event id: it has equality, a hash, and a total order (for CIDs the binary one)."""

    def __lt__(self, other: Any, /) -> bool: ...


Id = TypeVar("Id", bound=SortableId)


class StreamShapeError(ValueError):
    """The events are not one whole stream: no init event or several, a missing prev, a cycle."""


class NoTipError(StreamShapeError):
    """The events are one whole stream, but no data event is valid, nor the init."""


class ForgottenError(LookupError):
    """A summary of a stream lacks what a question needs: read the whole stream."""


class EventShape(NamedTuple, Generic[Id]):
    """An event of a stream, without its content.

    `time` is the block time (Unix seconds) that a time event proves; None if its anchor was not
    looked up yet, and for events of other kinds. `valid` is False for a data event with a wrong
    signature and for a time event with a wrong proof. `expires` is the last Unix second in which
    the CACAO holds by which a data event was signed: an event of a later time is invalid. `rank`
    decides between events of the same time, the lowest first; None stands for the id.
    """

    id: Id
    kind: Literal["init", "data", "time"]
    prevs: tuple[Id, ...] = ()
    time: int | None = None
    valid: bool = True
    expires: int | None = None
    rank: bytes | None = None


def shape_of(
    event: Event, time: int | None = None, valid: bool = True, rank: bytes | None = None
) -> EventShape[CID]:
    """Convert an event for `select_tip`.

    Args:
        event: a delivered one.
        time: the block time (Unix seconds) that a time event proves, if it was looked up.
        valid: whether its signature is right. If not, its capability may be anything, and is not
            looked at.
        rank: its order in ties.
    """
    expires = validity_of(event).expires if valid and event.capability is not None else None
    kind: Any = event.kind._value_  # `.value` takes ten times as long
    return EventShape(event.cid, kind, event.prevs, time, valid, expires, rank)


def causal_order(events: Iterable[EventShape[Id]]) -> list[EventShape[Id]]:
    """Return the events of one stream, every prev before its successors; repeated ones once.

    The given order is kept if it is causal.

    Raises:
        StreamShapeError: the events are not one whole stream.
    """
    by_id = _by_id(events)
    return [by_id[id_] for id_ in heights({id_: event.prevs for id_, event in by_id.items()})]


def heights(prevs: Mapping[Id, Sequence[Id]]) -> dict[Id, int]:
    """Return the height of every event from the prevs of each, in a causal order.

    It is 0 for the init event, which has no prevs, else 1 + the largest height of its prevs.

    Raises:
        StreamShapeError: the events are not one whole stream.
    """
    inits = [id_ for id_, below in prevs.items() if not below]
    if len(inits) != 1:
        names = "none" if not inits else ", ".join(sorted(map(show_id, inits)))
        raise StreamShapeError(f"a stream has exactly one init event; found: {names}")
    try:
        return _climb(prevs)
    except KeyError:  # the given order is not causal, or an event is missing
        return _climb({id_: prevs[id_] for id_ in _sorted(prevs)})


def heights_above(known: Mapping[Id, int], prevs: Mapping[Id, Sequence[Id]]) -> dict[Id, int]:
    """Return the heights of later events of a stream, from the known ones of earlier events.

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


def _by_id(events: Iterable[EventShape[Id]]) -> dict[Id, EventShape[Id]]:
    by_id: dict[Id, EventShape[Id]] = {}
    for event in events:
        known = by_id.setdefault(event.id, event)
        if known is not event and known != event:
            raise StreamShapeError(f"event {show_id(event.id)} was given twice, with differences")
        if bool(event.prevs) == (event.kind == "init"):
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


def with_whole_history(prevs: Mapping[Id, Sequence[Id]]) -> list[Id]:
    """Return the events whose history is among them, every prev before its successors.

    Kahn's algorithm: an event follows when the last of its prevs has been placed.
    """
    waiting: dict[Id, int] = {}
    nexts: dict[Id, list[Id]] = {}
    for id_, below in prevs.items():
        distinct = set(below)
        waiting[id_] = len(distinct)
        for prev in distinct:
            nexts.setdefault(prev, []).append(id_)
    ready = [id_ for id_, count in waiting.items() if not count]
    for id_ in ready:  # grows while it is walked
        for successor in nexts.get(id_, ()):
            waiting[successor] -= 1
            if not waiting[successor]:
                ready.append(successor)
    return ready


def _sorted(prevs: Mapping[Id, Sequence[Id]]) -> list[Id]:
    ready = with_whole_history(prevs)
    if len(ready) == len(prevs):
        return ready
    for id_, below in prevs.items():
        for prev in below:
            if prev not in prevs:
                raise StreamShapeError(
                    f"event {show_id(id_)} names prev {show_id(prev)}, which is missing"
                )
    stuck = show_id(min(prevs.keys() - ready))
    raise StreamShapeError(f"event {stuck} is part of a cycle, or covers one")


def show_id(id_: object) -> str:
    """Return an id as text: a CID in base32, plain bytes in hex."""
    return id_.hex() if type(id_) is bytes else str(id_)


_DETERMINISTIC: Final = "EdDSA"
_DIGEST: Final = 32
"""Bytes at the end of a CID: events and their payloads are named by their SHA-256."""


@dataclass(frozen=True, slots=True)
class Statements:
    """The statements of a stream's events.

    Attributes:
        events: the shown copy of each statement, in the order in which the statements came. Their
            `prevs` name shown copies.
        ranks: the order of statements in ties, by the CID of the shown copy.
        copies: the copies that are not shown, and which one is shown instead.
    """

    events: tuple[Event, ...]
    ranks: Mapping[CID, bytes]
    copies: Mapping[CID, CID]

    def shown(self, cid: CID) -> CID:
        """Return the copy that is shown for an event."""
        return self.copies.get(cid, cid)


def statements_of(
    events: Iterable[Event], badly_signed: Container[CID] = (), *, keep_first: bool = False
) -> Statements:
    """Reduce events of one stream to their statements.

    Args:
        events: each once. A time event that comes before its prev counts as a statement of its own,
            unless other events have its proof and name the same copy of its prev.
        badly_signed: CIDs of the events whose signature is wrong.
        keep_first: show the copy that came first, for tables whose rows never change.
    """
    groups: list[list[Event]] = []
    number_of: dict[CID, int] = {}
    known: dict[Hashable, int] = {}
    for event in events:
        number = known.setdefault(_statement(event, number_of, badly_signed), len(groups))
        if number == len(groups):
            groups.append([])
        groups[number].append(event)
        number_of[event.cid] = number
    copies: dict[CID, CID] = {}
    shown: list[Event] = []
    ranks: list[bytes] = []
    for group in groups:
        event = group[0]
        if len(group) > 1:
            event = event if keep_first else min(group, key=_preference)
            copies |= {copy.cid: event.cid for copy in group if copy is not event}
        ranks.append(_rank(group, number_of, ranks))
        shown.append(event)
    by_cid = {event.cid: rank for event, rank in zip(shown, ranks, strict=True)}
    if copies:
        shown = [_naming_shown(event, copies) for event in shown]
    return Statements(tuple(shown), by_cid, copies)


def _statement(
    event: Event, number_of: Mapping[CID, int], badly_signed: Container[CID]
) -> Hashable:
    """What an event states; of a time event, by the number of its prev's statement."""
    if event.proof is not None:
        prev = event.prevs[0]
        return _anchor(event), number_of.get(prev, prev)
    if event.envelope is None or event.cid in badly_signed:
        return event.cid
    return event.envelope.payload, event.envelope.protected


def _rank(group: Sequence[Event], number_of: Mapping[CID, int], ranks: Sequence[bytes]) -> bytes:
    """The order in ties of the copies in a group; `ranks` are those of the groups before it."""
    event = group[0]
    if event.proof is not None:
        prev = event.prevs[0]
        number = number_of.get(prev, len(ranks))
        below = ranks[number] if number < len(ranks) else prev
        return sha256(_anchor(event) + below).digest()
    envelope = event.envelope
    if envelope is None or envelope.header["alg"] == _DETERMINISTIC:
        if len(group) == 1:  # nearly always
            return event.cid[-_DIGEST:]
        return min([copy.cid[-_DIGEST:] for copy in group])
    return envelope.payload[-_DIGEST:]


def _anchor(event: Event) -> bytes:
    """Name the transaction that a time event is proven by, however its proof spells it."""
    assert event.proof is not None
    return event.proof.chain_id.encode() + event.proof.tx_hash.digest


def _preference(event: Event) -> tuple[bool, CID]:
    envelope = event.envelope
    is_canonical = envelope is None or has_low_s(envelope.header["alg"], envelope.signature)
    return not is_canonical, event.cid


def _naming_shown(event: Event, copies: Mapping[CID, CID]) -> Event:
    if copies.keys().isdisjoint(event.prevs):
        return event
    return replace(event, prevs=tuple(dict.fromkeys(copies.get(p, p) for p in event.prevs)))
