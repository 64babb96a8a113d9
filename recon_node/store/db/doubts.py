"""Pending events that are left out of the model ring: their anchor is probably made up.

Anyone can make up a time event, and a ceramic-one node ends a session over one that it cannot
verify. So a proof is *doubted* once the chain did not have its transaction in `DOUBTED` lookups.
Its pending time events, and the pending events that build on these, leave the ring until the
transaction is found. One lookup is not enough, because an endpoint may lag behind the chain, and
peers that have verified what we left out would send it again at every sync.

Badly signed events are never in the ring, and hide what is below them: a ceramic-one node that gets
an event on top of one waits for that one, and never comes to the anchor.

`not_found` has a row for each proof that was not found, until the proof is settled. Nothing here
begins or ends a transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Final

from recon_node.ceramic import EventId
from recon_node.ceramic.header import DEFAULT_SORT_KEY
from recon_node.ipld import CID
from recon_node.store.admission.records import State
from recon_node.store.db.sql import select_in

DOUBTED: Final = 2
"""Lookups in which the chain did not have a proof's transaction, after which it is doubted."""

MIGRATION: Final = """
    CREATE TABLE not_found (
        proof BLOB PRIMARY KEY,
        times INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    """

_SELECT: Final = f"""
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
            AND later.id NOT IN (SELECT id FROM faults)
    )
    SELECT event_id FROM doubted JOIN events USING (id) JOIN streams USING (init_cid)
    WHERE sep_key = '{DEFAULT_SORT_KEY}'
    """


def doubted_among(connection: sqlite3.Connection, proofs: Sequence[CID]) -> set[CID]:
    """Return those of some proofs that are doubted."""
    sql = f"SELECT proof FROM not_found WHERE proof IN (?) AND times >= {DOUBTED}"
    return {CID(proof) for (proof,) in select_in(connection, sql, proofs)}


def doubted_events(connection: sqlite3.Connection) -> set[EventId]:
    """Return all events of the ring's streams that are left out of it."""
    return {EventId(event_id) for (event_id,) in connection.execute(_SELECT % "true")}


def doubt(connection: sqlite3.Connection, not_found: Iterable[CID]) -> set[EventId]:
    """Note that the chain does not have the transactions of some proofs that await their lookup.

    Returns:
        The events that are left out for it.
    """
    sql = (
        "INSERT INTO not_found (proof, times) "
        "SELECT proof, 1 FROM proofs WHERE proof = ? AND due IS NOT NULL "
        "ON CONFLICT (proof) DO UPDATE SET times = times + 1 RETURNING times"
    )
    doubted = [
        proof for proof in not_found if connection.execute(sql, (proof,)).fetchall() == [(DOUBTED,)]
    ]
    rows = select_in(connection, _SELECT % "proof IN (?)", doubted)
    return {EventId(event_id) for (event_id,) in rows}


def forget(connection: sqlite3.Connection, settled: Iterable[CID]) -> None:
    """Forget what was noted of proofs that are settled."""
    connection.executemany("DELETE FROM not_found WHERE proof = ?", [(proof,) for proof in settled])
