"""What was signed, once: copies of one statement are one event for all that decides.

Theory of operation. An event's CID covers its signature, and one statement can have many valid
signatures. From an ECDSA signature (r, s) anybody can make (r, n - s), and a signer can sign the
same payload again. Nobody signs a time event at all: one transaction proves the time of one event
by as many events as there are paths to it in the Merkle tree. If each copy counted, then a stranger
without any key could fork a stream, and have an old state win by the lowest CID.

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

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Final

from recon_node.ceramic import Event, EventKind
from recon_node.ceramic.auth.did import has_low_s
from recon_node.ipld import CID

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
    statements = _Grouping(badly_signed)
    for event in events:
        statements.add(event)
    return statements.finish(keep_first)


class _Grouping:
    """Numbers the statements in the order in which they come."""

    def __init__(self, badly_signed: Container[CID]) -> None:
        self._badly_signed = badly_signed
        self._number: dict[Hashable, int] = {}
        self._number_of: dict[CID, int] = {}
        self._groups: list[list[Event]] = []

    def add(self, event: Event) -> None:
        number = self._number.setdefault(self._statement(event), len(self._groups))
        if number == len(self._groups):
            self._groups.append([])
        self._groups[number].append(event)
        self._number_of[event.cid] = number

    def finish(self, keep_first: bool) -> Statements:
        ranks: dict[CID, bytes] = {}
        copies: dict[CID, CID] = {}
        shown: list[Event] = []
        by_number: list[bytes] = []
        for group in self._groups:
            event = group[0]
            if len(group) > 1:
                event = event if keep_first else min(group, key=_preference)
                copies |= {copy.cid: event.cid for copy in group if copy is not event}
            by_number.append(self._rank(group, by_number))
            ranks[event.cid] = by_number[-1]
            shown.append(event)
        if copies:
            shown = [_naming_shown(event, copies) for event in shown]
        return Statements(tuple(shown), ranks, copies)

    def _statement(self, event: Event) -> Hashable:
        if event.kind is EventKind.TIME:
            prev = event.prevs[0]
            return _anchor(event), self._number_of.get(prev, prev)
        if event.envelope is None or event.cid in self._badly_signed:
            return event.cid
        return event.envelope.payload, event.envelope.protected

    def _rank(self, group: Sequence[Event], ranks: Sequence[bytes]) -> bytes:
        event = group[0]
        if event.kind is EventKind.TIME:
            prev = event.prevs[0]
            number = self._number_of.get(prev, len(ranks))
            below = ranks[number] if number < len(ranks) else prev
            return sha256(_anchor(event) + below).digest()
        envelope = event.envelope
        if envelope is None or envelope.header["alg"] == _DETERMINISTIC:
            return min(copy.cid[-_DIGEST:] for copy in group)
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
