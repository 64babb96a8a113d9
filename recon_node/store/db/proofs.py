"""The proofs of time events in the log: which await a lookup, and what it led to.

`anchors` says which proof each time event has; `proofs` has one row for each distinct proof: a
proof is looked up once, however many events it serves, and the outcome is kept permanently. A proof
that awaits its lookup has a time at which it is due (`due`, Unix seconds). That is when the first
of its events was fully checked, so that proofs are looked up in that order, and those that have to
be looked up again queue behind earlier ones. Once settled, it has the time of its block
(`block_time`), or the reason why its events are refused (`refusal`).

Anyone can make up a time event, and a ceramic-one node ends a session over one that it cannot
verify. So a proof is *doubted* once the chain did not have its transaction in `DOUBTED` lookups.
Its pending time events, and the pending events that build on these, leave the model ring until the
transaction is found. Any number of events may build on any number of doubted ones: those that were
walked through are in a temporary table of the writer, `left_out`, and are not walked through again
for the next proof. One lookup is not enough, because an endpoint may lag behind the chain, and
peers that have verified what we left out would send it again at every sync. `not_found` has a row
for each proof that was not found, and for each that awaits its lookup on a chain that is not asked,
until the proof is settled. Their events make room for others (`Evictable`).

Badly signed events are never in the ring, and hide what is below them: a ceramic-one node that gets
an event on top of one waits for that one, and never comes to the anchor.

Nothing here begins or ends a transaction.

Nobody signs a time event, and one transaction can prove the time of one event by any number of
them, of up to 1 MB each. So whatever is computed of a stream must not depend on how many there are,
or on how large they are. `anchors` has all that a stream needs of each: its `prev`, and its
`statement`, a hash of the transaction and of what that prev states (see
`recon_node.streams.graph`). Copies of one statement have the same one. Like the height, it is
known once the history is: until then it is null.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import chain
from typing import Final

import structlog

from recon_node.ceramic import EventId, EventKind, InvalidEventError, TimeProof, parse_event
from recon_node.ceramic.event_id import DEFAULT_SORT_KEY
from recon_node.ipld import CID, CarError
from recon_node.store.admission.records import ProofVerdict, Record, State
from recon_node.store.db.blocks import BlockReader
from recon_node.store.db.sql import (
    MAX_REASON,
    MIGRATED_AT_ONCE,
    read_in_pieces,
    select_in,
    short,
    short_of,
)
from recon_node.verification import Refusal

logger = structlog.get_logger(__name__)

_TABLES: Final = (
    """
    CREATE TABLE proofs (
        proof      BLOB PRIMARY KEY,  -- its CID
        chain_id   TEXT NOT NULL,
        root       BLOB NOT NULL,
        tx_hash    BLOB NOT NULL,
        tx_type    TEXT NOT NULL,
        tries      INTEGER NOT NULL DEFAULT 0,
        due        REAL,
        block_time INTEGER,
        refusal    TEXT
    ) STRICT
    """,
    "CREATE INDEX proofs_due ON proofs (chain_id, due) WHERE due IS NOT NULL",
    """
    CREATE TABLE anchors (
        event INTEGER PRIMARY KEY,  -- events.id
        proof BLOB NOT NULL
    ) STRICT
    """,
    "CREATE INDEX anchors_by_proof ON anchors (proof)",
)

_LONGEST_DELAY: Final = 2 * 86_400.0
"""Seconds; no lookup is postponed by more."""

_AHEAD: Final = 86_400.0
"""Seconds by which a proof is put before those on whose events no valid one builds."""

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


def count_pending(connection: sqlite3.Connection) -> int:
    """Return how many proofs await their lookup."""
    sql = "SELECT count(*) FROM proofs WHERE due IS NOT NULL"
    count: int = connection.execute(sql).fetchone()[0]
    return count


def proof_verdicts(
    connection: sqlite3.Connection, proofs: Sequence[CID]
) -> dict[CID, ProofVerdict | None]:
    """Return what the lookups of some proofs led to, None for those that were not looked up."""
    sql = "SELECT proof, block_time, refusal FROM proofs WHERE proof IN (?)"
    verdicts: dict[CID, ProofVerdict | None] = dict.fromkeys(proofs)
    for proof, block_time, refusal in select_in(connection, sql, proofs):
        known = block_time if refusal is None else Refusal(refusal, inherent=True)
        verdicts[CID(proof)] = known
    return verdicts


def insert_proofs(connection: sqlite3.Connection, records: Iterable[Record]) -> None:
    """Write the proofs of new time events."""
    for record in records:
        if record.proof is not None and record.event is not None:
            _insert(connection, record.row, record.proof, record.event.proof)
            connection.execute(
                "UPDATE anchors SET prev = ? WHERE event = ?", (record.event.prevs[0], record.row)
            )


def await_lookup(
    connection: sqlite3.Connection,
    records: Iterable[Record],
    now: float,
    chains: Collection[str] | None,
) -> int:
    """Queue the proofs of those of the time events that are fully checked by now.

    `chains` are those that are asked (CAIP-2); None if it is not known which.

    Returns:
        The number of proofs that were not in the queue before.
    """
    checked = dict.fromkeys(
        record.proof
        for record in records
        if record.kind is EventKind.TIME
        and record.refusal is None
        and (record.state is State.PENDING or record.is_unproven)
    )
    if not checked:
        return 0
    added = connection.executemany(
        "UPDATE proofs SET due = ? "
        "WHERE proof = ? AND due IS NULL AND block_time IS NULL AND refusal IS NULL",
        [(now, proof) for proof in checked],
    ).rowcount
    if chains:
        sql = f"INSERT OR IGNORE INTO not_found (proof, times) {_not_asked(chains)} AND proof = ?"
        connection.executemany(sql, [(*chains, proof) for proof in checked])
    return added


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


def look_up_first(connection: sqlite3.Connection, records: Iterable[Record], now: float) -> None:
    """Move the proofs of time events to the front of the queue if valid data events build on them:
    those are signed by the stream's writers, who do not build on made-up time events."""
    covered = {
        cid
        for record in records
        if record.kind is EventKind.DATA and record.fault is None and record.state is State.PENDING
        for cid in record.builds_on
    }
    connection.executemany(
        "UPDATE proofs SET due = ?1 - ?2 WHERE due > ?1 - ?2 / 2 AND tries = 0 AND proof IN "
        "(SELECT proof FROM events CROSS JOIN anchors ON event = events.id "
        "WHERE short_cid = ?4 AND cid = ?3)",
        [(now, _AHEAD, cid, short(cid)) for cid in covered],
    )


class Evictable:
    """Finds what may make room for time events, in a circle and a bounded part of it at a time.

    That is a time event whose proof is in `not_found`, if nothing that was fully checked builds on
    it; else what does, for it cannot be delivered before. If a signed event is above, nothing is to
    go: the time events below it are backed, and take no room. Whatever else builds on them does not
    count, since it costs nothing.
    """

    def __init__(self) -> None:
        self._after: tuple[bytes, int] = b"", 0
        """The proof and the row of the time event that was looked at last."""

    def find(self, connection: sqlite3.Connection, limit: int) -> dict[int, bool]:
        """Look at some time events; return rows of `events` and whether these are backed."""
        proof, row = self._after
        rows = connection.execute(_OF_SAME_PROOF, (proof, row, limit)).fetchall()
        for after in (proof, b""):
            rows += connection.execute(_OF_LATER_PROOFS, (after, limit - len(rows))).fetchall()
        found: dict[int, bool] = {}
        left = _MOST_ON_TOP
        for proof, row, cid, init, is_backed, state in rows:
            if left <= 0:
                break
            self._after = proof, row
            if is_backed or state < State.UNCOVERED:
                continue
            path, looked_at = [(row, cid)], 0
            while looked_at < left and len(path) <= _HIGHEST:
                on_top = connection.execute(_ON_TOP, (path[-1][1], init, left)).fetchall()
                looked_at += 1 + len(on_top)
                checked = [(above, name) for above, name, _, is_checked in on_top if is_checked]
                if any(is_signed for _, _, is_signed, _ in on_top):
                    found |= dict.fromkeys((below for below, _ in path), True)
                elif checked:
                    path.append(checked[0])
                    continue
                elif looked_at < left:
                    found[path[-1][0]] = False
                break
            left -= looked_at
        return found


_HIGHEST: Final = 64
"""Events on top of each other that `Evictable` looks at."""
_MOST_ON_TOP: Final = 4096
"""Rows of `waits` that it looks at for one transaction, 3 microseconds each."""
_CANDIDATES: Final = (
    "SELECT not_found.proof, events.id, events.cid, init_cid, backed, state "
    "FROM not_found CROSS JOIN anchors USING (proof) CROSS JOIN events ON events.id = event "
    "WHERE position IS NULL AND "
)
_OF_SAME_PROOF: Final = f"{_CANDIDATES} not_found.proof = ?1 AND event > ?2 ORDER BY event LIMIT ?3"
_OF_LATER_PROOFS: Final = (
    f"{_CANDIDATES} not_found.proof > ? ORDER BY not_found.proof, event LIMIT ?"
)
_ON_TOP: Final = f"""
    SELECT later.id, later.cid, later.state >= {State.WAITING.value} AND later.kind = 'data'
        AND later.init_cid = ?2 AND later.id NOT IN (SELECT id FROM faults),
        later.state >= {State.UNCOVERED.value}
    FROM waits CROSS JOIN events AS later ON later.id = waits.event WHERE waits.cid = ?1 LIMIT ?3
    """


def note_backed(connection: sqlite3.Connection, records: Iterable[Record]) -> None:
    """Note which time events are backed."""
    rows = [(record.row,) for record in records if record.is_backed]
    connection.executemany("UPDATE anchors SET backed = 1 WHERE event = ? AND NOT backed", rows)


def delete_anchors(connection: sqlite3.Connection, records: Sequence[Record]) -> int:
    """Remove time events; return how many proofs need no lookup any more."""
    gone = [record for record in records if record.proof is not None]
    if not gone:
        return 0
    connection.executemany(
        "DELETE FROM anchors WHERE event = ?", [(record.row,) for record in gone]
    )
    proofs = [(record.proof,) for record in gone]
    unused = "WHERE proof = ?1 AND NOT EXISTS (SELECT 1 FROM anchors WHERE proof = ?1)"
    connection.executemany(f"DELETE FROM not_found {unused}", proofs)
    done = connection.executemany(
        f"UPDATE proofs SET due = NULL {unused} AND due IS NOT NULL", proofs
    ).rowcount
    connection.executemany(
        f"DELETE FROM proofs {unused} AND block_time IS NULL AND refusal IS NULL", proofs
    )
    return done


def settle_proofs(
    connection: sqlite3.Connection, verdicts: Iterable[tuple[CID, ProofVerdict]]
) -> list[CID]:
    """Keep what lookups led to; return the proofs that were awaiting it."""
    settled = []
    for proof, verdict in verdicts:
        refusal = verdict.reason[:MAX_REASON] if isinstance(verdict, Refusal) else None
        changed = connection.execute(
            "UPDATE proofs SET due = NULL, block_time = ?, refusal = ? "
            "WHERE proof = ? AND due IS NOT NULL",
            (None if refusal is not None else verdict, refusal, proof),
        )
        if changed.rowcount:
            settled.append(proof)
    return settled


def postpone_proofs(connection: sqlite3.Connection, proofs: Iterable[tuple[CID, float]]) -> None:
    """Move proofs whose lookup failed further back in the queue."""
    connection.executemany(
        "UPDATE proofs SET due = ?, tries = tries + 1 WHERE proof = ? AND due IS NOT NULL",
        [(due, proof) for proof, due in proofs],
    )


def forget_far_dues(connection: sqlite3.Connection, now: float) -> None:
    """Treat what is due later than any lookup is postponed as due: the clock was wrong."""
    late = "proofs INDEXED BY proofs_due {} WHERE due > ?"
    latest = now + _LONGEST_DELAY
    count = connection.execute(f"SELECT count(*) FROM {late.format('')}", (latest,))
    if count.fetchone()[0]:  # a start that changes nothing writes nothing
        connection.execute(f"UPDATE {late.format('SET due = ?')}", (now, latest))


def forget_refused_proofs(connection: sqlite3.Connection) -> None:
    """Forget which proofs were found wrong: the rules have changed."""
    connection.execute("UPDATE proofs SET refusal = NULL, tries = 0")


def _insert(connection: sqlite3.Connection, row: int, cid: CID, proof: TimeProof | None) -> None:
    """Write the proof of the time event in that row of `events`."""
    assert proof is not None, "a time event has a proof"
    connection.execute(
        "INSERT OR IGNORE INTO proofs (proof, chain_id, root, tx_hash, tx_type) "
        "VALUES (?, ?, ?, ?, ?)",
        (cid, proof.chain_id, proof.root, proof.tx_hash, proof.tx_type),
    )
    connection.execute("INSERT INTO anchors (event, proof) VALUES (?, ?)", (row, cid))


def add_proofs(connection: sqlite3.Connection) -> None:
    """Create the tables and fill them with the time events of the log: a migration."""
    for statement in _TABLES:
        connection.execute(statement)
    row = 0
    while rows := connection.execute(
        "SELECT id, cid, state, car FROM events JOIN cars USING (id) "
        "WHERE id > ? AND kind = 'time' ORDER BY id LIMIT ?",
        (row, MIGRATED_AT_ONCE),
    ).fetchall():
        for row, cid, state, car in rows:
            _add_proof(connection, row, cid, state, car)
        logger.info("Indexing the time events of an older log", latest=row)


def _add_proof(
    connection: sqlite3.Connection, row: int, cid: bytes, state: int, car: bytes
) -> None:
    try:
        event = parse_event(car)
    except InvalidEventError:  # damaged: it stays pending, as no proof has that CID
        connection.execute("INSERT INTO anchors (event, proof) VALUES (?, ?)", (row, cid))
        return
    proof: CID = event.payload["proof"]
    _insert(connection, row, proof, event.proof)
    if state == State.PENDING:
        connection.execute(
            "UPDATE proofs SET due = ? WHERE proof = ? AND due IS NULL", (time.time(), proof)
        )


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


def no_longer_doubted(
    connection: sqlite3.Connection, before: Mapping[int, EventId]
) -> set[EventId]:
    """Return those of `doubted_by` for which no other proof is doubted. There may be a million
    doubted events, so only what is below these ones is looked at."""
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


def forget_doubts(connection: sqlite3.Connection, settled: Iterable[CID]) -> None:
    """Forget what was noted of proofs that are settled."""
    connection.executemany("DELETE FROM not_found WHERE proof = ?", [(proof,) for proof in settled])


_TIME_EVENTS_AT_ONCE: Final = 100


def note_statements(connection: sqlite3.Connection, records: Iterable[Record]) -> None:
    """Note what those of some time events state whose history has just become known."""
    known = [
        record
        for record in records
        if record.kind is EventKind.TIME
        and record.state >= State.UNCOVERED
        and (record.logged_state is None or record.logged_state < State.UNCOVERED)
    ]
    for record in sorted(known, key=lambda record: record.height):
        _note(connection, record.row, _BELOW)


_BELOW: Final = f"short_cid = {short_of('anchors.prev')} AND cid = anchors.prev"
_BELOW_BEFORE: Final = "cid = anchors.prev"
"""The same in a log of an earlier version."""


def _note(connection: sqlite3.Connection, row: int, below: str) -> None:
    rows = connection.execute(
        "SELECT chain_id, tx_hash, prev, (SELECT statement FROM events "
        f"JOIN anchors AS below ON below.event = events.id WHERE {below} "
        "AND statement NOTNULL) FROM anchors JOIN proofs USING (proof) WHERE event = ?",
        (row,),
    ).fetchone()
    if rows is None or rows[2] is None:  # damaged
        return
    chain_id, tx_hash, prev, stated = rows
    transaction = chain_id.encode() + CID(tx_hash).digest  # whatever the codec that its CID names
    statement = sha256(transaction + (stated or prev)).digest()
    connection.execute("UPDATE anchors SET statement = ? WHERE event = ?", (statement, row))


def add_statements(connection: sqlite3.Connection) -> None:
    """Fill the new columns from the CARs of time events, except damaged ones: a migration."""
    for column in ("prev BLOB", "statement BLOB"):
        connection.execute(f"ALTER TABLE anchors ADD COLUMN {column}")
    connection.execute(
        "CREATE INDEX events_undelivered_by_stream ON events (init_cid) WHERE position IS NULL"
    )
    for rows in read_in_pieces(connection, _TIME_EVENTS, _TIME_EVENTS_AT_ONCE):
        cars = BlockReader(connection).restore_each([car for *_, car in rows])
        connection.executemany(
            "UPDATE anchors SET prev = ? WHERE event = ?",
            ((prev, row[0]) for row, car in zip(rows, cars, strict=True) for prev in _prevs(car)),
        )
    delivered = connection.execute(
        "SELECT id FROM events WHERE kind = 'time' AND position NOTNULL ORDER BY position"
    ).fetchall()
    waiting = connection.execute(
        "SELECT event_id, id FROM events WHERE kind = 'time' AND position IS NULL AND state >= ?",
        (State.UNCOVERED,),
    ).fetchall()
    by_height = sorted((EventId(event_id).height, row) for event_id, row in waiting)
    for row in chain((row for (row,) in delivered), (row for _, row in by_height)):
        _note(connection, row, _BELOW_BEFORE)


_TIME_EVENTS: Final = (
    "SELECT events.id, car FROM events JOIN cars USING (id) "
    "WHERE events.id > ? AND kind = 'time' ORDER BY events.id LIMIT ?"
)


def _prevs(car: bytes | CarError) -> Iterator[CID]:
    try:
        if isinstance(car, bytes):
            yield parse_event(car).prevs[0]
    except InvalidEventError:
        return
