"""What changes the log, each in one transaction: a batch, the outcome of lookups, a crowd's step.

Any number of events may wait for one that arrives, or for one anchor: a *crowd*. It moves in steps,
because it is too much for one transaction. See `rows` for what is left between two steps.

What a batch has to know of the log is loaded by a `BatchLoader`: a batch of 1,000 events needs a
handful of queries, not thousands.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from typing import Final, TypeVar

from recon_node.base.steps import run_steps
from recon_node.ceramic import EventId, EventKind
from recon_node.ipld import CID
from recon_node.recon import KeyRange
from recon_node.store.admission.ladder import Ladder
from recon_node.store.admission.records import (
    Judgement,
    Known,
    Marks,
    ProofVerdict,
    Record,
    State,
    Steps,
    Want,
)
from recon_node.store.admission.rules import Rules, Terms
from recon_node.store.damage import Damage, check_stored
from recon_node.store.db import proofs
from recon_node.store.db.blocks import BlockReader, cut_out_shared
from recon_node.store.db.log import Committed, EventLog
from recon_node.store.db.proofs import doubted_among, proof_verdicts, select_evictable
from recon_node.store.db.rows import (
    BEGINNING,
    end_releases,
    forgotten_streams,
    note_own_streams,
    read_releases,
    select_records,
    select_records_of,
    select_streams,
    select_waiters,
)
from recon_node.store.db.sql import select_in, short
from recon_node.store.values import Submission
from recon_node.verification import Facts, check_event

T = TypeVar("T")

MAX_WAITERS: Final = 256
"""Waiting events that one transaction loads from the log, some 0.3 ms each."""


class BatchLoader:
    """Answers what a batch has to know, within its transaction.

    Attributes:
        known: what was loaded, and what the batch changed of it.
        left: events and proofs with waiters that were not loaded, and after which row these are.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._room = MAX_WAITERS
        self.left: dict[CID, int] = {}
        # Often there are none. Within the transaction, rows are added only at its end.
        self._any_waits, self._any_refused, any_forgotten = connection.execute(
            "SELECT EXISTS (SELECT 1 FROM waits), EXISTS (SELECT 1 FROM refused), "
            "EXISTS (SELECT 1 FROM forgotten)"
        ).fetchone()
        self.known = Known()
        if any_forgotten:
            self.known.forgotten = forgotten_streams(connection)

    def carry_out(self, steps: Steps[T]) -> T:
        """Take the steps to their end, with all that they want to know; return what they do."""
        return run_steps(steps, self._load)

    def load_uncovered(self, after: int) -> list[Record]:
        """Load the next UNCOVERED records beyond a row that are not badly signed themselves."""
        rows = self._connection.execute(
            "SELECT id FROM events WHERE position IS NULL AND state = ? AND kind != 'data' "
            "AND id > ? ORDER BY id LIMIT ?",
            (State.UNCOVERED, after, MAX_WAITERS),
        )
        return self._load_records("id IN (?) ORDER BY id", [row for (row,) in rows])

    @property
    def has_room(self) -> bool:
        """Whether more waiters may be loaded."""
        return self._room > 0

    def load_released(self, cid: CID, after: int) -> list[Record]:
        """Load what waits for an event or a proof, beyond a row, at most `MAX_WAITERS`."""
        self.known.waited_for.add(cid)
        return self.load_some([cid], after)

    def _load(self, want: Want) -> None:
        if want.event_ids:
            self._load_refused_event_ids(want.event_ids)
        if want.events:
            self._load_events(want.events)
        if want.waiters:
            self._load_waiters(want.waiters)
        if want.proofs:
            self._load_proofs(want.proofs)
        for record in want.cars:
            self.known.cars[record] = self._car(record)
        if want.evictable:
            rows = select_evictable(self._connection, MAX_WAITERS)
            self.known.evictable = self._load_records("id IN (?)", rows)

    def _load_refused_event_ids(self, event_ids: Sequence[EventId]) -> None:
        sql = "SELECT event_id, reason FROM refused WHERE event_id IN (?)"
        for raw, reason in select_in(self._connection, sql, event_ids if self._any_refused else ()):
            self.known.refused_event_ids[EventId(raw)] = reason

    def _load_events(self, cids: Iterable[CID]) -> None:
        known = self.known
        missing = [cid for cid in dict.fromkeys(cids) if cid not in known.events]
        if not missing:
            return
        known.events.update(missing)
        records = select_records_of(self._connection, missing)
        self._adopt(records)
        inits = list({record.cid for record in records if record.kind is EventKind.INIT})
        known.streams |= {stream.init: stream for stream in select_streams(self._connection, inits)}
        sql = "SELECT cid, reason FROM refused WHERE inherent AND cid IN (?)"
        for raw, reason in select_in(self._connection, sql, missing if self._any_refused else ()):
            known.refused[CID(raw)] = reason

    def _load_waiters(self, cids: Iterable[CID]) -> None:
        """Load at most `MAX_WAITERS` in all; what there are more of is in `left`."""
        missing = [cid for cid in dict.fromkeys(cids) if cid not in self.known.waited_for]
        if not missing:
            return
        self.known.waited_for.update(missing)
        if not self._any_waits:
            return
        sql = "SELECT DISTINCT event FROM waits WHERE cid IN (?)"
        # Two parts of a long list may find the same row: such a list must not pass for a whole one.
        stored_rows = [
            row for (row,) in islice(select_in(self._connection, sql, missing), self._room + 1)
        ]
        rows = sorted(set(stored_rows))
        if len(stored_rows) <= self._room:  # nearly always
            self._room -= len(rows)
            self._load_records("id IN (?) ORDER BY id", rows)
        else:
            self.load_some(missing)

    def load_some(self, cids: Iterable[CID], after: int = BEGINNING) -> list[Record]:
        """Load waiters of one event after the other until there is no room."""
        loaded: dict[int, None] = {}
        for cid in cids:
            rows = select_waiters(self._connection, cid, after, self._room + 1)
            taken = rows[: self._room]
            if len(taken) < len(rows):
                self.left[cid] = taken[-1] if taken else after
            self._room -= len(taken)
            loaded.update(dict.fromkeys(taken))
        return self._load_records("id IN (?) ORDER BY id", sorted(loaded))

    def _load_records(self, where: str, values: Sequence[object]) -> list[Record]:
        records = select_records(self._connection, where, values)
        self._adopt(records)
        self._load_events(cid for record in records for cid in (record.cid, *record.builds_on))
        return [self.known.touched[record.event_id] for record in records]

    def _load_proofs(self, proofs: Iterable[CID]) -> None:
        missing = [proof for proof in dict.fromkeys(proofs) if proof not in self.known.verdicts]
        if missing:
            self.known.verdicts |= proof_verdicts(self._connection, missing)
            self.known.doubted |= doubted_among(self._connection, missing)

    def _adopt(self, records: Sequence[Record]) -> None:
        self.known.adopt(records)
        self._load_proofs(record.proof for record in records if record.proof is not None)

    def _car(self, record: Record) -> bytes | Damage:
        sql = (
            "SELECT event_id, cid, position, car FROM events LEFT JOIN cars USING (id) WHERE id = ?"
        )
        *names, stored = self._connection.execute(sql, (record.row,)).fetchone()
        [restored] = BlockReader(self._connection).restore_each([stored])
        return check_stored(restored, *names)


class _Change:
    """What is known and moved within a transaction."""

    def __init__(self, log: EventLog, marks: Marks) -> None:
        self._log = log
        self._marks = marks
        self.loader = BatchLoader(log.connection)
        self.ladder = Ladder(self.loader.known, marks, log.network, log.limits, guarded=log.guarded)

    def resume(self, records: Iterable[Record]) -> None:
        """Move held records for which something other than an event was missing."""
        self.loader.carry_out(self.ladder.resume(records))

    def write(self) -> Committed:
        """Write what became of the records."""
        known, left = self.loader.known, self.loader.left
        committed = self._log.write(
            known.touched.values(), self.ladder.refused, self._marks, left, known.forgotten
        )
        committed.completed = self.ladder.completed
        committed.sort_keys = self.ladder.sort_keys
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
        rules = Rules(change.loader.known, marks, change.ladder, terms)
        mended = _mend(log.connection, batch, damaged) if damaged else []
        if mended:
            names = [event_id.event_cid for event_id in mended]
            change.loader.carry_out(rules.resume(names))
        verdicts = change.loader.carry_out(rules.judge(batch))
        committed = change.write()
        new_own = [init for init in rules.own_streams if init not in log.own_streams]
        if new_own:
            note_own_streams(log.connection, new_own)
    log.own_streams.update(dict.fromkeys(new_own))
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
        change.resume(change.loader.load_some(settled))
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

    `due` says when each is to be looked up again, in Unix seconds. Of those in `not_found`, the
    chain does not have the transaction.

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
        for cid, after in read_releases(log.connection, MAX_WAITERS):
            if not change.loader.has_room:
                break
            end_releases(log.connection, [cid])
            change.resume(change.loader.load_released(cid, after))
        committed = change.write()
        marks.is_releasing = bool(read_releases(log.connection, 1))
    return committed


def release_unsigned(log: EventLog) -> None:
    """Move what waits because a write policy decided in whose name streams are: it does no more.

    Raises:
        StoreError: the disk did not take it. What was moved before stays so.
    """
    after = 0
    while BatchLoader(log.connection).load_uncovered(after):
        with log.transaction() as marks:
            change = _Change(log, marks)
            waiting = change.loader.load_uncovered(after)
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
            "SELECT id, event_id FROM events WHERE short_cid = ? AND cid = ?",
            (short(facts.cid), facts.cid),
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
