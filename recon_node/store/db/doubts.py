"""Proofs that the chain does not have, and what is left out of the model ring for them.

Anyone can make up a time event, and a ceramic-one node ends a session over one that it cannot
verify. So a proof is *doubted* once the chain did not have its transaction in `DOUBTED` lookups.
Its pending time events, and the pending events that build on these, leave the model ring until the
transaction is found. Any number of events may build on any number of doubted ones: those that were
walked through are in a temporary table of the writer, `left_out`, and are not walked through again
for the next proof. One lookup is not enough, because an endpoint may lag behind the chain, and
peers that have verified what we left out would send it again at every sync.

`not_found` has a row for each proof that was not found, and for each that awaits its lookup on a
chain that is not asked, until the proof is settled. Their events make room for others
(`evictable`).

Badly signed events are never in the ring, and hide what is below them: a ceramic-one node that gets
an event on top of one waits for that one, and never comes to the anchor.
"""

import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from recon_node.ceramic import EventId
from recon_node.ceramic.event_id import DEFAULT_SORT_KEY
from recon_node.ipld import CID
from recon_node.store.admission.records import State
from recon_node.store.db.sql import select_in, short_of

DOUBTED: Final = 2
"""Lookups in which the chain did not have a proof's transaction, after which it is doubted."""

_DOUBTED_EVENTS: Final = f"""
    WITH RECURSIVE doubted (id) AS (
        SELECT events.id
        FROM not_found CROSS JOIN anchors USING (proof) CROSS JOIN events ON events.id = event
        WHERE times >= {DOUBTED} AND position IS NULL AND state = {State.PENDING.value} AND %s
        UNION
        SELECT later.id
        FROM doubted
        CROSS JOIN events AS base ON base.id = doubted.id
        CROSS JOIN waits ON waits.cid = base.cid
        CROSS JOIN events AS later ON later.id = waits.event
        WHERE later.position IS NULL AND later.state = {State.PENDING.value}
            AND later.id NOT IN (SELECT id FROM faults) %s
    )
    SELECT id, event_id, sep_key = '{DEFAULT_SORT_KEY}'
    FROM doubted JOIN events USING (id) JOIN streams USING (init_cid)
    """
_LEFT_OUT: Final = "CREATE TEMP TABLE IF NOT EXISTS left_out (id INTEGER PRIMARY KEY)"
_NOT_LEFT_OUT: Final = "AND later.id NOT IN (SELECT id FROM left_out)"
_DOUBTED_BELOW: Final = f"""
    WITH RECURSIVE below (id) AS (
        SELECT id FROM events WHERE id IN (?)
        UNION
        SELECT base.id
        FROM below
        CROSS JOIN waits ON waits.event = below.id
        CROSS JOIN events AS base
            ON base.short_cid = {short_of("waits.cid")} AND base.cid = waits.cid
        WHERE base.position IS NULL AND base.state = {State.PENDING.value}
    )
    SELECT DISTINCT proof
    FROM below CROSS JOIN anchors ON event = below.id CROSS JOIN not_found USING (proof)
    WHERE times >= {DOUBTED}
    """


def _not_asked(chains: Collection[str]) -> str:
    marks = ", ".join("?" * len(chains))
    return f"SELECT proof, 0 FROM proofs WHERE due IS NOT NULL AND chain_id NOT IN ({marks})"


def are_noted(connection: sqlite3.Connection, chains: Collection[str]) -> bool:
    """Return whether `not_found` says which proofs are of chains that are not asked: of none, if no
    chain is asked at all."""
    stale = (
        "SELECT 1 FROM not_found CROSS JOIN proofs USING (proof) "
        f"WHERE times = 0 AND chain_id IN ({', '.join('?' * len(chains))})"
    )
    missing = f"{_not_asked(chains)} AND proof NOT IN (SELECT proof FROM not_found)"
    if not chains:
        stale, missing = "SELECT 1 FROM not_found WHERE times = 0", "SELECT 1 WHERE false"
    return all(
        connection.execute(f"{sql} LIMIT 1", [*chains]).fetchone() is None
        for sql in (stale, missing)
    )


def note_chains(connection: sqlite3.Connection, chains: Collection[str]) -> None:
    """Have `not_found` say so."""
    connection.execute("DELETE FROM not_found WHERE times = 0")
    if chains:
        sql = f"INSERT OR IGNORE INTO not_found (proof, times) {_not_asked(chains)}"
        connection.execute(sql, [*chains])


def note_not_asked(
    connection: sqlite3.Connection, chains: Collection[str], proofs: Iterable[CID]
) -> None:
    """Have `not_found` say so of some proofs that await their lookup from now on."""
    if chains:
        sql = f"INSERT OR IGNORE INTO not_found (proof, times) {_not_asked(chains)} AND proof = ?"
        connection.executemany(sql, [(*chains, proof) for proof in proofs])


def doubted_among(connection: sqlite3.Connection, proofs: Sequence[CID]) -> set[CID]:
    """Return those of some proofs that are doubted."""
    sql = f"SELECT proof FROM not_found WHERE proof IN (?) AND times >= {DOUBTED}"
    return {CID(proof) for (proof,) in select_in(connection, sql, proofs)}


def doubted_events(connection: sqlite3.Connection) -> set[EventId]:
    """Return all events of the ring's streams that are left out of it."""
    rows = connection.execute(_DOUBTED_EVENTS % ("true", ""))
    return {EventId(event_id) for _, event_id, is_of_ring in rows if is_of_ring}


def doubted_by(connection: sqlite3.Connection, doubted: Collection[CID]) -> dict[int, EventId]:
    """Return the events of the ring's streams that are left out of it for some doubted proofs, by
    their rows."""
    rows = select_in(connection, _DOUBTED_EVENTS % ("proof IN (?)", ""), list(doubted))
    return {row: EventId(event_id) for row, event_id, is_of_ring in rows if is_of_ring}


def forget_doubts(
    connection: sqlite3.Connection, settled: Iterable[CID], before: Mapping[int, EventId]
) -> set[EventId]:
    """Forget what was noted of proofs that are settled.

    Returns:
        Those of `doubted_by` for which no other proof is doubted. There may be a million doubted
        events, so only what is below these ones is looked at.
    """
    connection.executemany("DELETE FROM not_found WHERE proof = ?", [(proof,) for proof in settled])
    others = {CID(proof) for (proof,) in select_in(connection, _DOUBTED_BELOW, list(before))}
    still = doubted_by(connection, others) if others else {}
    trusted = {row: event_id for row, event_id in before.items() if row not in still}
    connection.execute(_LEFT_OUT)
    connection.executemany("DELETE FROM left_out WHERE id = ?", [(row,) for row in trusted])
    return set(trusted.values())


def doubt(connection: sqlite3.Connection, not_found: Iterable[CID]) -> set[EventId]:
    """Note that the chain does not have the transactions of some proofs that await their lookup.

    Returns:
        The events that are left out for it, and were not before.
    """
    sql = (
        "INSERT INTO not_found (proof, times) "
        "SELECT proof, 1 FROM proofs WHERE proof = ? AND due IS NOT NULL "
        "ON CONFLICT (proof) DO UPDATE SET times = times + 1 RETURNING times"
    )
    doubted = [
        proof for proof in not_found if connection.execute(sql, (proof,)).fetchall() == [(DOUBTED,)]
    ]
    connection.execute(_LEFT_OUT)
    rows = [*select_in(connection, _DOUBTED_EVENTS % ("proof IN (?)", _NOT_LEFT_OUT), doubted)]
    connection.executemany("INSERT OR IGNORE INTO left_out VALUES (?)", [row[:1] for row in rows])
    return {EventId(event_id) for _, event_id, is_of_ring in rows if is_of_ring}
