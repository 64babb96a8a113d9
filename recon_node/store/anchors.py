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
from typing import TYPE_CHECKING, Final

import structlog

from recon_node.ceramic import EventKind, TimeProof, parse_event
from recon_node.ipld import CID
from recon_node.store.model import PendingProof
from recon_node.store.records import Record, Refusal, State

if TYPE_CHECKING:
    from recon_node.store.ledger import Ledger

logger = structlog.get_logger(__name__)

MIGRATION: Final = """
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
    ) STRICT;
    CREATE INDEX proofs_due ON proofs (chain_id, due) WHERE due IS NOT NULL;
    CREATE TABLE anchors (
        event INTEGER PRIMARY KEY,  -- events.id
        proof BLOB NOT NULL
    ) STRICT;
    CREATE INDEX anchors_by_proof ON anchors (proof);
    """

_INDEXED: Final = "time_events_indexed"
_PIECE: Final = 1000
_MAX_REASON: Final = 500

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
        self._insert(
            (record.row, record.proof, record.event.proof)
            for record in records
            if record.proof is not None and record.event is not None
        )

    def await_lookup(self, records: Iterable[Record], now: float) -> int:
        """Put the proofs of time events in line that are wholly checked since this batch.

        Returns the number of proofs that were not in line before.
        """
        checked = dict.fromkeys(
            record.proof
            for record in records
            if record.kind is EventKind.TIME and record.state is State.PENDING
        )
        return (
            self._connection.executemany(
                "UPDATE proofs SET due = ? "
                "WHERE proof = ? AND due IS NULL AND block_time IS NULL AND refusal IS NULL",
                [(now, proof) for proof in checked],
            ).rowcount
            if checked
            else 0
        )

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

    def forget_refusals(self) -> None:
        """Forget which proofs were found wrong: the rules have changed."""
        self._connection.execute("UPDATE proofs SET refusal = NULL, tries = 0")

    def _insert(self, rows: Iterable[tuple[int, CID, TimeProof | None]]) -> None:
        for row, cid, proof in rows:
            assert proof is not None, "a time event has a proof"
            self._connection.execute(
                "INSERT OR IGNORE INTO proofs (proof, chain_id, root, tx_hash, tx_type) "
                "VALUES (?, ?, ?, ?, ?)",
                (cid, proof.chain_id, proof.root, proof.tx_hash, proof.tx_type),
            )
            self._connection.execute("INSERT INTO anchors (event, proof) VALUES (?, ?)", (row, cid))

    def index(self, ledger: Ledger) -> None:
        """Bring in the time events of a log that was written before there were proofs in it.

        What is done is kept if it is broken off: the next start goes on from there.
        """
        if self._meta_is_set():
            return
        (total,) = self._connection.execute(_UNINDEXED.format("count(*)")).fetchone()
        done = 0
        while rows := self._connection.execute(
            _UNINDEXED.format("events.id, state") + f" LIMIT {_PIECE}"
        ).fetchall():
            self._index_piece(ledger, rows)
            done += len(rows)
            logger.info("Indexing the time events of an older log", done=done, of=total)
        self._connection.execute("INSERT INTO meta (name, value) VALUES (?, '1')", (_INDEXED,))

    def _meta_is_set(self) -> bool:
        found = self._connection.execute("SELECT 1 FROM meta WHERE name = ?", (_INDEXED,))
        return found.fetchone() is not None

    def _index_piece(self, ledger: Ledger, rows: Sequence[tuple[int, int]]) -> None:
        events = [parse_event(ledger.car(row)) for row, _ in rows]
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            self._insert(
                (row, event.payload["proof"], event.proof)
                for (row, _), event in zip(rows, events, strict=True)
            )
            self._connection.executemany(
                "UPDATE proofs SET due = ? WHERE proof = ? AND due IS NULL",
                [
                    (time.time(), event.payload["proof"])
                    for (_, state), event in zip(rows, events, strict=True)
                    if state == State.PENDING
                ],
            )
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise


_UNINDEXED: Final = (
    "SELECT {} FROM events LEFT JOIN anchors ON anchors.event = events.id "
    "WHERE position IS NULL AND kind = 'time' AND anchors.event IS NULL"
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
