"""The proofs of time events in the log: which await a lookup, and what it led to.

`anchors` says which proof each time event has; `proofs` has one row for each distinct proof: a
proof is looked up once, however many events it serves, and the outcome is kept permanently. A proof
that awaits its lookup has a time at which it is due (`due`, Unix seconds). That is when the first
of its events was fully checked, so that proofs are looked up in that order, and those that have to
be looked up again queue behind earlier ones. Once settled, it has the time of its block
(`block_time`), or the reason why its events are refused (`refusal`).

Nothing here begins or ends a transaction.
"""

import sqlite3
import time
from collections.abc import Collection, Iterable, Sequence
from typing import Final

import structlog

from recon_node.ceramic import EventKind, InvalidEventError, TimeProof, parse_event
from recon_node.ipld import CID
from recon_node.store.admission.records import ProofVerdict, Record, State
from recon_node.store.db.doubts import note_not_asked
from recon_node.store.db.sql import MAX_REASON, MIGRATED_AT_ONCE, select_in, short
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
        if record.proof is not None
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
    note_not_asked(connection, chains or (), checked)
    return added


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
