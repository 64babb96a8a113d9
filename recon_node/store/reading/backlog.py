"""What the feed does not have, and why: events that wait, that are pending, or that were refused.

`events_undelivered` has the first two in order of arrival. What an event builds on is in `waits`
until it is delivered; each of these that is not delivered itself is a reason why it is not. A time
event may also lack the lookup of its anchor (`proofs`).
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from recon_node.ceramic import EventId, EventKind, StreamId
from recon_node.ipld import CID
from recon_node.store.admission.records import State
from recon_node.store.db.rows import FAULT
from recon_node.store.db.sql import select_in, select_named
from recon_node.store.reading import Reader
from recon_node.store.reading.stream_lists import stream_ids

_LATEST: Final = 2**63 - 1
_PAGE: Final = (
    f"SELECT id, event_id, cid, init_cid, kind, {FAULT} FROM events INDEXED BY undelivered "
    "WHERE position IS NULL AND state = ? AND id < ? ORDER BY id DESC LIMIT ?"
)
_PROOFS: Final = (
    "SELECT anchors.event, proof, chain_id, tx_hash, tries, due, ifnull(times, 0) "
    "FROM anchors CROSS JOIN proofs USING (proof) LEFT JOIN not_found USING (proof) "
    "WHERE anchors.event IN (?) AND block_time IS NULL AND refusal IS NULL"
)

Hindrance = Literal["missing", "waiting", "pending"]


@dataclass(frozen=True, slots=True)
class Lookup:
    """The lookup of an anchor that has not succeeded yet."""

    proof: CID
    chain_id: str
    """The chain (CAIP-2)."""
    tx_hash: CID
    tries: int
    """Lookups that did not succeed."""
    not_found: int
    """Those of them in which the chain did not have the transaction."""
    due: float | None
    """When it is to be looked up (again), in Unix seconds; None while the event waits."""


@dataclass(frozen=True, slots=True)
class Undelivered:
    """An event that is here, but not in the feed."""

    row: int
    """Its position in the list: later events have greater ones."""
    cid: CID
    event_id: EventId
    kind: EventKind
    init: CID
    stream: StreamId | None
    """None while its init event is not here."""
    builds_on: Sequence[tuple[CID, Hindrance]]
    """Those of its prevs, and of its init event, that are not delivered either."""
    lookup: Lookup | None
    """Of its own anchor, if that is not settled."""
    fault: str | None
    """What is wrong with its signature, if anything is: then it waits until a valid data event
    covers it."""


@dataclass(frozen=True, slots=True)
class RefusedEvent:
    """An EventId that was refused, and is remembered as such."""

    row: int
    cid: CID
    event_id: EventId
    inherent: bool
    """Whether the event is wrong under any EventId."""
    reason: str


@dataclass(frozen=True, slots=True)
class Hindrances:
    """How much is not delivered, and what most of it lacks."""

    waiting: int
    pending: int
    refused: int
    """Those that are remembered."""
    proofs: Sequence[tuple[str, int, float]]
    """By chain: how many proofs await their lookup, and when the next of them is due."""


def read_waiting(reader: Reader, before: int | None, limit: int) -> list[Undelivered]:
    """Return events that may not be delivered yet, the latest first.

    Their history is not complete here, or something in it is badly signed and not covered.
    """
    return _read(reader, (State.ORPHAN, State.WAITING, State.UNCOVERED), before, limit)


def read_pending(reader: Reader, before: int | None, limit: int) -> list[Undelivered]:
    """Return events that lack the lookup of an anchor, or build on such ones, the latest first."""
    return _read(reader, (State.PENDING,), before, limit)


def read_refused(reader: Reader, before: int | None, limit: int) -> list[RefusedEvent]:
    """Return EventIds that were refused, the latest first."""
    rows = reader.connection.execute(
        "SELECT id, cid, event_id, inherent, reason FROM refused WHERE id < ? "
        "ORDER BY id DESC LIMIT ?",
        (_LATEST if before is None else before, limit),
    )
    return [
        RefusedEvent(row, CID(cid), EventId(event_id), bool(inherent), reason)
        for row, cid, event_id, inherent, reason in rows
    ]


def read_progress(reader: Reader, cids: Sequence[CID]) -> dict[CID, tuple[State, str | None]]:
    """Return the states of some events, and what is wrong with their signatures, of those that are
    here."""
    sql = f"SELECT cid, max(state), {FAULT} FROM events WHERE short_cid IN (?) GROUP BY cid"
    rows = select_named(reader.connection, sql, list(dict.fromkeys(cids)))
    return {CID(cid): (State(state), fault) for cid, state, fault in rows}


def count_hindrances(reader: Reader) -> Hindrances:
    """Return how much is not delivered."""
    execute = reader.connection.execute
    counts: dict[int, int] = dict(
        execute(
            "SELECT state, count(*) FROM events INDEXED BY undelivered "
            "WHERE position IS NULL GROUP BY state"
        ).fetchall()
    )
    (refused,) = execute("SELECT count(*) FROM refused").fetchone()
    proofs = execute(
        "SELECT chain_id, count(*), min(due) FROM proofs INDEXED BY proofs_due "
        "WHERE due IS NOT NULL GROUP BY chain_id"
    ).fetchall()
    return Hindrances(
        waiting=sum(count for state, count in counts.items() if state < State.PENDING),
        pending=counts.get(State.PENDING, 0),
        refused=refused,
        proofs=proofs,
    )


def _read(
    reader: Reader, states: Sequence[State], before: int | None, limit: int
) -> list[Undelivered]:
    last = _LATEST if before is None else before
    rows: list[tuple[Any, ...]] = []
    for state in states:
        rows += reader.connection.execute(_PAGE, (state, last, limit))
    rows = sorted(rows, reverse=True)[:limit]
    ids = [row[0] for row in rows]
    streams = stream_ids(reader, (CID(row[3]) for row in rows))
    builds_on = _hindrances(reader, ids)
    lookups = {
        row: Lookup(CID(proof), chain_id, CID(tx_hash), tries, not_found, due)
        for row, proof, chain_id, tx_hash, tries, due, not_found in select_in(
            reader.connection, _PROOFS, ids
        )
    }
    return [
        Undelivered(
            row=row,
            cid=CID(cid),
            event_id=EventId(event_id),
            kind=EventKind(kind),
            init=CID(init),
            stream=streams.get(CID(init)),
            builds_on=builds_on.get(row, ()),
            lookup=lookups.get(row),
            fault=fault,
        )
        for row, event_id, cid, init, kind, fault in rows
    ]


def _hindrances(reader: Reader, rows: Sequence[int]) -> dict[int, list[tuple[CID, Hindrance]]]:
    """Return what each of some events builds on that is not delivered, and what that lacks."""
    sql = "SELECT event, cid FROM waits WHERE event IN (?)"
    waits = list(select_in(reader.connection, sql, rows))
    states = read_progress(reader, [CID(cid) for _, cid in waits])
    hindrances: defaultdict[int, list[tuple[CID, Hindrance]]] = defaultdict(list)
    for row, cid in waits:
        state, _ = states.get(CID(cid), (None, None))
        if state is None:
            hindrances[row].append((CID(cid), "missing"))
        elif state is not State.DELIVERED:
            hindrances[row].append((CID(cid), "pending" if state is State.PENDING else "waiting"))
    return hindrances
