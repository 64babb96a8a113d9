"""The proofs of time events in the log: which await a lookup, and what came of it.

`anchors` says which proof each time event has; `proofs` has a row for each distinct one: a proof is
looked up once, whatever number of events it serves, and its outcome is kept for good. A proof that
awaits its lookup has a time at which it is due (`due`, Unix seconds): from the moment at which the
first of its events is wholly checked, so that proofs are looked up in that order, and those that
have to be asked for again stand in line behind what came before. Settled, it has the time of its
block (`block_time`), or the reason for which its events are refused (`refusal`).
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Sequence
from typing import Final

import structlog

from recon_node.ceramic import EventKind, InvalidEventError, TimeProof, parse_event
from recon_node.ipld import CID
from recon_node.store.admission.records import Record, Refusal, State
from recon_node.store.values import PendingProof

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

_PIECE: Final = 1000
_MAX_REASON: Final = 500
_LONGEST_DELAY: Final = 2 * 86_400.0

ProofVerdict = int | Refusal
"""The time of a proof's block in Unix seconds, or why its events are refused."""


class ProofTable:
    """The proofs, by the writer's connection. Nothing here begins or ends a transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def count(self) -> int:
        """How many proofs await their lookup."""
        count: int = self._connection.execute(
            "SELECT count(*) FROM proofs WHERE due IS NOT NULL"
        ).fetchone()[0]
        return count

    def verdict(self, proof: CID) -> ProofVerdict | None:
        """What came of a proof's lookup, None when nothing has."""
        row = self._connection.execute(
            "SELECT block_time, refusal FROM proofs WHERE proof = ?", (proof,)
        ).fetchone()
        if row is None or row == (None, None):
            return None
        return row[0] if row[1] is None else Refusal(row[1], inherent=True)

    def insert(self, records: Iterable[Record]) -> None:
        """Write the proofs of new time events."""
        for record in records:
            if record.proof is not None and record.event is not None:
                self.insert_one(record.row, record.proof, record.event.proof)

    def await_lookup(self, records: Iterable[Record], now: float) -> int:
        """Put the proofs of time events in line that are wholly checked since this batch.

        Returns the number of proofs that were not in line before.
        """
        checked = dict.fromkeys(
            record.proof
            for record in records
            if record.kind is EventKind.TIME and record.state is State.PENDING
        )
        if not checked:
            return 0
        return self._connection.executemany(
            "UPDATE proofs SET due = ? "
            "WHERE proof = ? AND due IS NULL AND block_time IS NULL AND refusal IS NULL",
            [(now, proof) for proof in checked],
        ).rowcount

    def delete(self, records: Sequence[Record]) -> int:
        """Take out time events; returns how many proofs need no lookup any more."""
        gone = [record for record in records if record.proof is not None]
        if not gone:
            return 0
        self._connection.executemany(
            "DELETE FROM anchors WHERE event = ?", [(record.row,) for record in gone]
        )
        return self._connection.executemany(
            "UPDATE proofs SET due = NULL WHERE proof = ?1 AND due IS NOT NULL "
            "AND NOT EXISTS (SELECT 1 FROM anchors WHERE proof = ?1)",
            [(record.proof,) for record in gone],
        ).rowcount

    def settle(self, verdicts: Iterable[tuple[CID, ProofVerdict]]) -> list[CID]:
        """Keep what came of lookups; returns the proofs that were awaiting it."""
        settled = []
        for proof, verdict in verdicts:
            refusal = verdict.reason[:_MAX_REASON] if isinstance(verdict, Refusal) else None
            changed = self._connection.execute(
                "UPDATE proofs SET due = NULL, block_time = ?, refusal = ? "
                "WHERE proof = ? AND due IS NOT NULL",
                (None if refusal is not None else verdict, refusal, proof),
            )
            if changed.rowcount:
                settled.append(proof)
        return settled

    def postpone(self, proofs: Iterable[tuple[CID, float]]) -> None:
        """Put proofs that were looked up in vain further back in line."""
        self._connection.executemany(
            "UPDATE proofs SET due = ?, tries = tries + 1 WHERE proof = ? AND due IS NOT NULL",
            [(due, proof) for proof, due in proofs],
        )

    def forget_far_dues(self, now: float) -> None:
        """Take what is due later than any lookup is postponed to as due: the clock was wrong."""
        late = "proofs INDEXED BY proofs_due {} WHERE due > ?"
        latest = now + _LONGEST_DELAY
        count = self._connection.execute(f"SELECT count(*) FROM {late.format('')}", (latest,))
        if count.fetchone()[0]:  # a start that changes nothing writes nothing
            self._connection.execute(f"UPDATE {late.format('SET due = ?')}", (now, latest))

    def forget_refusals(self) -> None:
        """Forget which proofs were found wrong: the rules have changed."""
        self._connection.execute("UPDATE proofs SET refusal = NULL, tries = 0")

    def insert_one(self, row: int, cid: CID, proof: TimeProof | None) -> None:
        """Write the proof of the time event in that row of `events`."""
        assert proof is not None, "a time event has a proof"
        self._connection.execute(
            "INSERT OR IGNORE INTO proofs (proof, chain_id, root, tx_hash, tx_type) "
            "VALUES (?, ?, ?, ?, ?)",
            (cid, proof.chain_id, proof.root, proof.tx_hash, proof.tx_type),
        )
        self._connection.execute("INSERT INTO anchors (event, proof) VALUES (?, ?)", (row, cid))


def add_proofs(connection: sqlite3.Connection) -> None:
    """Make the tables, and bring in the time events that were in the log before; a migration."""
    for statement in _TABLES:
        connection.execute(statement)
    proofs = ProofTable(connection)
    row = 0
    while rows := connection.execute(
        "SELECT id, cid, state, car FROM events JOIN cars USING (id) "
        "WHERE id > ? AND kind = 'time' ORDER BY id LIMIT ?",
        (row, _PIECE),
    ).fetchall():
        for row, cid, state, car in rows:
            _add_proof(proofs, connection, row, cid, state, car)
        logger.info("Indexing the time events of an older log", latest=row)


def _add_proof(
    proofs: ProofTable, connection: sqlite3.Connection, row: int, cid: bytes, state: int, car: bytes
) -> None:
    try:
        event = parse_event(car)
    except InvalidEventError:  # damaged: it stays pending for want of a proof of that name
        connection.execute("INSERT INTO anchors (event, proof) VALUES (?, ?)", (row, cid))
        return
    proof: CID = event.payload["proof"]
    proofs.insert_one(row, proof, event.proof)
    if state == State.PENDING:
        connection.execute(
            "UPDATE proofs SET due = ? WHERE proof = ? AND due IS NULL", (time.time(), proof)
        )


def pending_proofs(
    chain_id: str | None, limit: int, connection: sqlite3.Connection
) -> list[PendingProof]:
    """The proofs of a chain, or of all, that await their lookup: first those due first."""
    where, values = ("", ()) if chain_id is None else ("AND chain_id = ?", (chain_id,))
    rows = connection.execute(
        "SELECT proof, chain_id, root, tx_hash, tx_type, tries, due FROM proofs "
        f"WHERE due IS NOT NULL {where} ORDER BY due, proof LIMIT ?",
        (*values, limit),
    )
    return [
        PendingProof(CID(cid), TimeProof(chain, CID(root), CID(tx_hash), tx_type), tries, due)
        for cid, chain, root, tx_hash, tx_type, tries, due in rows
    ]
