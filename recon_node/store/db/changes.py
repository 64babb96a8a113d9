"""What changes the log, each in one transaction: a batch, the outcome of lookups, a crowd's step.

Any number of events may wait for one that arrives, or for one anchor: a *crowd*. It moves in steps,
because it is too much for one transaction. See `records` for what is left between two steps.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Sequence

from recon_node.ceramic import EventId
from recon_node.ipld import CID
from recon_node.recon import KeyRange
from recon_node.store.admission.judgement import Judgement
from recon_node.store.admission.ladder import Ladder
from recon_node.store.admission.records import Marks, ProofVerdict, Record
from recon_node.store.admission.rules import Rules, Terms
from recon_node.store.db import proofs, records
from recon_node.store.db.blocks import cut_out_shared
from recon_node.store.db.history import MAX_WAITERS, History
from recon_node.store.db.log import Committed, EventLog
from recon_node.store.values import Submission
from recon_node.verification import Facts, check_event


class _Change:
    """What is known and moved within a transaction."""

    def __init__(self, log: EventLog, marks: Marks) -> None:
        self._log = log
        self._marks = marks
        self.history = History(log.connection)
        self.ladder = Ladder(
            self.history.known, marks, log.network, log.limits, guarded=log.guarded
        )

    def resume(self, records: Iterable[Record]) -> None:
        """Move held records for which something other than an event was missing."""
        self.history.carry_out(self.ladder.resume(records))

    def write(self) -> Committed:
        """Write what became of the records."""
        touched, left = self.history.known.touched.values(), self.history.left
        committed = self._log.write(touched, self.ladder.refused, self._marks, left)
        committed.completed = self.ladder.completed
        committed.damaged = self.ladder.damaged
        return committed


def commit_batch(
    log: EventLog,
    batch: Sequence[Submission],
    ranges: Sequence[KeyRange],
    damaged: Collection[CID] = (),
    judgement: Judgement | None = None,
) -> Committed:
    """Judge a batch and write what follows from it.

    Args:
        log: in whose transaction.
        batch: in this order.
        ranges: of the node's interests, ascending and apart: peers' events must lie in them.
        damaged: events that are damaged in the log: a sound copy in the batch replaces them.
        judgement: what the write policy says of the batch, if there is one.

    Returns:
        What changed, with a verdict on each event of the batch.

    Raises:
        StoreError: the disk did not take it; nothing of the batch is in the log.
    """
    terms = Terms(log.network, log.settings.max_event_bytes, log.now(), ranges, judgement)
    with log.transaction() as marks:
        change = _Change(log, marks)
        rules = Rules(change.history.known, marks, change.ladder, terms)
        mended = _mend(log.connection, batch, damaged) if damaged else []
        if mended:
            names = [event_id.event_cid for event_id in mended]
            change.history.carry_out(rules.resume(names))
        verdicts = change.history.carry_out(rules.judge(batch))
        committed = change.write()
        records.note_own_streams(log.connection, rules.own_streams)
    committed.verdicts, committed.mended = verdicts, mended
    return committed


def commit_proofs(log: EventLog, verdicts: Sequence[tuple[CID, ProofVerdict]]) -> Committed:
    """Keep what lookups of proofs led to, and deliver or refuse what has waited for it.

    Raises:
        StoreError: the disk did not take it; nothing is changed then.
    """
    with log.transaction() as marks:
        was_doubted = proofs.doubted_among(log.connection, [proof for proof, _ in verdicts])
        before = proofs.doubted_events(log.connection) if was_doubted else set()
        settled = proofs.settle_proofs(log.connection, verdicts)
        change = _Change(log, marks)
        change.resume(change.history.load_anchored(settled))
        committed = change.write()
        proofs.forget_doubts(log.connection, settled)
        if was_doubted:
            committed.trusted = before - proofs.doubted_events(log.connection)
    committed.proofs_done += len(settled)
    return committed


def postpone_proofs(
    log: EventLog, due: Sequence[tuple[CID, float]], not_found: Iterable[CID]
) -> Committed:
    """Move proofs whose lookup failed further back in the queue.

    Args:
        log: in whose transaction.
        due: the proofs, and when each is to be looked up again, in Unix seconds.
        not_found: those of them whose transaction the chain does not have.

    Raises:
        StoreError: the disk did not take it; nothing is changed then.
    """
    with log.transaction() as marks:
        proofs.postpone_proofs(log.connection, due)
        doubted = proofs.doubt(log.connection, not_found)
        committed = log.write((), (), marks)
    committed.doubted = doubted
    return committed


def commit_release(log: EventLog) -> Committed:
    """Move the next events of a crowd, as many as one transaction may.

    Raises:
        StoreError: the disk did not take it; nothing is changed then.
    """
    with log.transaction() as marks:
        change = _Change(log, marks)
        for cid, after in records.read_releases(log.connection, MAX_WAITERS):
            if not change.history.has_room:
                break
            records.end_releases(log.connection, [cid])
            change.resume(change.history.load_released(cid, after))
        committed = change.write()
        marks.is_releasing = bool(records.read_releases(log.connection, 1))
    return committed


def release_unsigned(log: EventLog) -> None:
    """Move what waits because a write policy decided in whose name streams are: it does no more.

    Raises:
        StoreError: the disk did not take it. What was moved before stays so.
    """
    after = 0
    while History(log.connection).load_uncovered(after):
        with log.transaction() as marks:
            change = _Change(log, marks)
            waiting = change.history.load_uncovered(after)
            change.resume(waiting)
            change.write()
        after = waiting[-1].row


def _mend(
    connection: sqlite3.Connection, batch: Iterable[Submission], damaged: Collection[CID]
) -> list[EventId]:
    """Write those events of a batch that are damaged in the log, and return their EventIds.

    Blocks that they share with other events are mended for those, too.
    """
    mended: list[EventId] = []
    for submission in batch:
        facts = _damaged_event(submission, damaged)
        if facts is None:
            continue
        [stored] = cut_out_shared(connection, [facts])
        rows = connection.execute(
            "SELECT id, event_id FROM events WHERE cid = ?", (facts.cid,)
        ).fetchall()
        connection.executemany(
            "INSERT OR REPLACE INTO cars (id, car) VALUES (?, ?)",
            ((row, stored) for row, _ in rows),
        )
        mended += (EventId(event_id) for _, event_id in rows)
    return mended


def _damaged_event(submission: Submission, damaged: Collection[CID]) -> Facts | None:
    """Return the facts about a submission's event, if it is a damaged one."""
    named = submission.event_id
    if named is not None and named.event_cid not in damaged:
        return None
    facts = submission.finding or check_event(submission.car)
    return facts if isinstance(facts, Facts) and facts.cid in damaged else None
