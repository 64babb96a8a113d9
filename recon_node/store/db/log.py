"""The event log, open for writing: one connection, one transaction for each change.

Synchronous; one thread at a time. Within a transaction nothing in memory changes but the working
set of the batch: a batch that fails leaves the log and this object as they were.

The log is changed by a batch of events (`commit_batch`), by the outcomes of lookups, and by what
either leaves to be done (`settling`).

**A log that lost its end.** A kill never loses a commit. But a log can still become shorter than
its readers know it: a byte of the write-ahead log flips and SQLite drops everything after it, the
power fails with `synchronous = "normal"`, or an operator restores an older copy. New events would
then get positions that readers have seen on other events. So the file `feed.head` keeps the epoch
and the head of each commit before the head is shown. A log that is opened with a lower head gets a
new epoch, with which readers start over.
"""

import os
import sqlite3
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from recon_node.ceramic import EventId, EventKind, Network
from recon_node.ceramic.event import TIME
from recon_node.ipld import CID
from recon_node.recon import KeyRange, KeyStore, KeyView
from recon_node.store.admission.ladder import Ladder
from recon_node.store.admission.records import ORPHAN, PENDING, Completed, Recent, Record, State
from recon_node.store.admission.rules import Judgement, Rules, Terms
from recon_node.store.admission.shares import Amount, Marks, Share, share_limits, share_of
from recon_node.store.damage import Damage
from recon_node.store.db import log_schema, proofs
from recon_node.store.db.blocks import cut_out_shared, full_size
from recon_node.store.db.evictable import Evictable, note_backed
from recon_node.store.db.releases import has_releases, keep_releases
from recon_node.store.db.rows import (
    FAULT,
    BatchLoader,
    delete_records,
    insert_records,
    note_own_streams,
    remember_refused,
    select_withheld,
    stream_rows,
    update_records,
    update_watches,
)
from recon_node.store.db.saved_keys import SavedKeys, forget_keys
from recon_node.store.db.sql import explained_errors, short
from recon_node.store.db.statements import note_statements
from recon_node.store.errors import StoreError
from recon_node.store.values import StoreSettings, Submission, Verdict
from recon_node.verification import Facts, check_event

logger = structlog.get_logger(__name__)

# Raise it when events that were refused may now be accepted (a new kind of signature, say): what
# was remembered as refused under other rules is forgotten when the log is opened.
RULES = 7

HEAD_FILE: Final = "feed.head"

_OWN_STREAMS: Final = 4096
"""Streams, by their init events, after which they are forgotten in memory."""


@dataclass(slots=True)
class Committed:
    """What a commit changed, for those who keep a part of it in memory."""

    marks: Marks
    added: Sequence[EventId] = ()
    """EventIds that are keys from now on."""
    removed: Sequence[EventId] = ()
    """Keys that had waited and turned out wrong."""
    withheld: Sequence[EventId] = ()
    """EventIds that are held but withheld from peers from now on; some may have been keys."""
    refused: Sequence[EventId] = ()
    """EventIds that are remembered as refused from now on, `removed` among them."""
    proofs_added: int = 0
    """Proofs that await a lookup from now on."""
    proofs_done: int = 0
    """Proofs that do not await one any more."""
    verdicts: Sequence[Verdict] = ()
    """On the events of a batch, in their order."""
    completed: Iterable[Completed] = ()
    """Keys whose history is complete now, found out once: few nodes have somebody to tell. Not
    those of streams with another sort key."""
    sort_keys: Collection[str] = ()
    """Those of the streams whose init event was delivered."""
    doubted: Collection[EventId] = ()
    """Keys that leave the model ring, see `recon_node.store.db.doubts`."""
    trusted: Collection[EventId] = ()
    """Keys that return to it, if they were not removed."""
    repaired: Sequence[EventId] = ()
    """Events that were damaged and are whole again."""
    damaged: Sequence[Damage] = ()
    """Damaged events that the change would have needed."""


class ShownHead:
    """The file that keeps the last feed position that was shown to anyone.

    It is one line, rewritten in place by a single write, so that a kill leaves the old or the new
    line. It is not synced: it only has to be as new as what the operating system keeps of the log.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(self, data_dir: Path) -> None:
        path = data_dir / HEAD_FILE
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def of(self, epoch: str) -> int:
        """Return the last position of that epoch that may have been shown; 0 if none is known."""
        fields = os.pread(self._descriptor, 100, 0).split()
        if len(fields) != 2 or fields[0] != epoch.encode() or not fields[1].isdigit():
            return 0
        return int(fields[1])

    def note(self, epoch: str, head: int) -> None:
        """Keep the head of a commit, before anyone sees it."""
        os.pwrite(self._descriptor, f"{epoch} {head:020d}\n".encode("ascii"), 0)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


class EventLog:
    """The log, open for writing. The caller holds the directory's lock.

    Args:
        data_dir: where the log is.
        network: of its events.
        settings: of the store.
        now: returns the Unix time in seconds.
        guarded: whether a write policy decides in whose name streams are: then an unsigned init
            event and a time event need more to count, see `recon_node.store.admission.ladder`.

    Attributes:
        connection: for statements within a `transaction`.
        limits: how large each share of events may be that cost their maker nothing.
        marks: where the log stands after the last commit.
        recent: the latest delivered events.
        own_streams: streams of which it is noted that a client wrote to them.
        last_release: the CID of the release that was looked at last.
        evictable: finds what may make room for time events.
        chains: those that are asked about anchors (CAIP-2); None: it is not known which.
        epoch: a UUID; feed positions are meaningful only together with it.

    Raises:
        StoreError: it cannot be opened, see `recon_node.store.db.log_schema`.
    """

    def __init__(
        self,
        data_dir: Path,
        network: Network,
        settings: StoreSettings,
        now: Callable[[], float] = time.time,
        *,
        guarded: bool = False,
    ) -> None:
        self._data_dir = data_dir
        self.path = data_dir / log_schema.FILE_NAME
        self.network = network
        self.settings = settings
        self.now = now
        self.guarded = guarded
        self.limits = share_limits(settings, guarded=guarded)
        self.own_streams: set[CID] = set()
        self.recent = Recent()
        self.last_release = b""
        self.evictable = Evictable()
        self.chains: Collection[str] | None = None
        self.connection = log_schema.open_database(data_dir, network, settings.synchronous)
        with explained_errors(self.path), ExitStack() as opened:
            opened.callback(self.connection.close)
            self.marks = self._read_marks()
            self._delivered_at = self._read_delivered_at()
            self._saved_keys = SavedKeys(data_dir, self.connection, guarded=guarded)
            self.epoch = log_schema.read_meta(self.connection, "epoch") or ""
            self._shown_head = ShownHead(data_dir)
            opened.callback(self._shown_head.close)
            self._file = self._file_at_path()
            self._forget_outdated_refusals()
            proofs.forget_far_dues(self.connection, now())
            self.pending_proofs = proofs.count_pending(self.connection)
            self._begin_epoch_if_shorter()
            opened.pop_all()

    def load_keys(self) -> KeyStore:
        """Return a new key store of all EventIds held, but those withheld from peers."""
        with explained_errors(self.path):
            return self._saved_keys.load(self.marks.head)

    def load_withheld(self) -> list[EventId]:
        """Return the EventIds that are not offered to peers."""
        with explained_errors(self.path):
            return select_withheld(self.connection, orphans=self.guarded)

    def load_refused(self) -> list[EventId]:
        """Return the EventIds that are remembered as refused, oldest first."""
        with explained_errors(self.path):
            rows = self.connection.execute("SELECT event_id FROM refused ORDER BY id")
            return [EventId(event_id) for (event_id,) in rows]

    @contextmanager
    def transaction(self) -> Iterator[Marks]:
        """Commit what is done inside, or nothing of it.

        Yields:
            The marks of the log, to be moved on inside: they hold once the commit is done.

        Raises:
            StoreError: the disk did not take it.
        """
        old = self.marks
        marks = Marks(old.head, old.row, old.waiting, dict(old.shares), old.has_releases)
        with explained_errors(self.path):
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                if self._saved_keys.are_current:
                    forget_keys(self.connection)
                yield marks
                self.check_place()
                delivered_at = self._delivered_at
                if marks.head > self.marks.head:
                    delivered_at = self._note_delivery(self.marks.head + 1)
                self.connection.execute("COMMIT")
            except BaseException:
                if self.connection.in_transaction:  # some errors have ended it already
                    self.connection.execute("ROLLBACK")
                raise
        self._saved_keys.are_current = False
        self._delivered_at = delivered_at
        if marks.head > self.marks.head:
            self._note_head(marks.head)
        self.marks = marks

    def check_place(self) -> None:
        """Check that the file which is open is the one that the next start finds.

        Otherwise SQLite goes on without complaint in a file that nobody sees any more, as after a
        restored backup was moved into place, or a disk was mounted over the directory.

        Raises:
            StoreError: it was deleted, moved or replaced.
        """
        if self._file_at_path() != self._file:
            raise StoreError(
                f"the event log {self.path} was deleted, moved or replaced while the node was "
                "using it, so nothing is written any more: stop the node, put the log that you "
                "want to keep into its place, and start the node again"
            )

    def _file_at_path(self) -> tuple[int, int] | None:
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return None
        return status.st_dev, status.st_ino

    def close(self, keys: KeyView | None = None, ring_keys: KeyView | None = None) -> None:
        """Copy the write-ahead log into the file and close it.

        Args:
            keys: all keys of the log, to be saved for the next start.
            ring_keys: those of the model ring, if they were loaded: to be saved as well.

        Raises:
            StoreError: the disk failed; what was committed is still in the write-ahead log.
        """
        with explained_errors(self.path):
            try:
                self.check_place()  # else the keys would stand beside another log
                if keys is not None:
                    self._saved_keys.save(self.marks.head, keys, ring_keys)
                self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            finally:
                self._shown_head.close()
                self.connection.close()

    def _note_delivery(self, position: int) -> int:
        """Note that positions from this one on are given now; return the last time that is noted.

        Times only ascend: while the clock is not beyond the last one, nothing is noted.
        """
        now = int(self.now() * 1000)
        if now <= self._delivered_at:
            return self._delivered_at
        self.connection.execute(
            "INSERT INTO deliveries (position, delivered_at) VALUES (?, ?)", (position, now)
        )
        return now

    def _read_delivered_at(self) -> int:
        sql = "SELECT delivered_at FROM deliveries ORDER BY position DESC LIMIT 1"
        row = self.connection.execute(sql).fetchone()
        return -1 if row is None else int(row[0])

    def _note_head(self, head: int) -> None:
        try:
            self._shown_head.note(self.epoch, head)
        except OSError as error:  # the batch is committed: it must not fail for this
            logger.warning("The head of the feed could not be noted", reason=str(error))

    def _begin_epoch_if_shorter(self) -> None:
        """Begin a new epoch if readers have seen positions that the log does not have."""
        shown = self._shown_head.of(self.epoch)
        if shown > self.marks.head:
            self.epoch = str(uuid.uuid4())
            with self.transaction():
                self.connection.execute(
                    "UPDATE meta SET value = ? WHERE name = 'epoch'", (self.epoch,)
                )
            logger.warning(
                "The event log has lost its latest events: readers of the feed start over",
                head=self.marks.head,
                head_before=shown,
                epoch=self.epoch,
            )
        self._note_head(self.marks.head)

    def _read_marks(self) -> Marks:
        head, row = self.connection.execute(
            "SELECT (SELECT ifnull(max(position), 0) FROM events WHERE position IS NOT NULL), "
            "(SELECT ifnull(max(id), 0) FROM events)"
        ).fetchone()
        undelivered = self.connection.execute(
            f"SELECT kind, state, {FAULT} IS NOT NULL, backed, substr(car, 1, 9), length(car) "
            "FROM events JOIN cars USING (id) LEFT JOIN anchors ON event = events.id "
            "WHERE position IS NULL"
        )
        waiting = 0
        shares: dict[Share, Amount] = {}
        for kind, state, badly_signed, backed, *size in undelivered:
            waiting += state < PENDING
            share = share_of(
                EventKind(kind), State(state), badly_signed=badly_signed, is_backed=bool(backed)
            )
            if share is not None:
                shares[share] = shares.get(share, Amount()) + Amount(1, full_size(*size))
        return Marks(head, row, waiting, shares, has_releases(self.connection))

    def _forget_outdated_refusals(self) -> None:
        if log_schema.read_meta(self.connection, "rules") == str(RULES):
            return
        with self.transaction():
            self.connection.execute("DELETE FROM refused")
            self.connection.execute("UPDATE proofs SET refusal = NULL, tries = 0")
            self.connection.execute(
                "INSERT OR REPLACE INTO meta (name, value) VALUES ('rules', ?)", (str(RULES),)
            )


class Change:
    """One change of the log, within its transaction: what it loads, moves and writes."""

    def __init__(self, log: EventLog, marks: Marks) -> None:
        self._log = log
        self._marks = marks
        self.loader = BatchLoader(log.connection, log.recent, log.evictable)
        self.ladder = Ladder(
            self.loader.known,
            marks,
            log.network,
            log.limits,
            guarded=log.guarded,
            chains=log.chains,
        )

    def move(self, records: Iterable[Record]) -> None:
        """Move records of the log, and what waits for them."""
        self.loader.carry_out(self.ladder.move(records))

    def write(self) -> Committed:
        """Write what became of the records."""
        log, known, refused = self._log, self.loader.known, self.ladder.refused
        connection, touched = log.connection, known.touched.values()
        added, moved, removed = _outcomes(touched)
        changed = added + moved
        streams_at = stream_rows(connection, changed, touched)
        insert_records(connection, added, streams_at, known.forgotten)
        proofs_added = self._write_anchors(added, changed)
        if any(r.state is PENDING for r in changed):
            proofs.look_up_first(connection, changed, log.now())
        if moved:
            update_records(connection, moved, streams_at)
        proofs_done = 0
        if removed:
            delete_records(connection, removed)
            proofs_done = proofs.delete_anchors(connection, removed)
        update_watches(connection, touched)
        if refused:
            remember_refused(connection, refused, log.settings.max_refused)
        if self.loader.releases:
            keep_releases(connection, self.loader.releases)
            self._marks.has_releases = True
        shown, withheld = self._shown_and_withheld(changed)
        return Committed(
            self._marks,
            added=shown,
            removed=[r.event_id for r in removed],
            withheld=withheld,
            refused=[r.event_id for r in refused],
            proofs_added=proofs_added,
            proofs_done=proofs_done,
            completed=self.ladder.completed(),
            sort_keys=self.ladder.sort_keys,
            damaged=self.ladder.damaged,
        )

    def _write_anchors(self, added: Sequence[Record], changed: Sequence[Record]) -> int:
        """Write the anchors of time events; return how many proofs await a lookup now."""
        log, touched = self._log, self.loader.known.touched.values()
        if not any(r.kind is TIME for r in touched):
            return 0
        proofs.insert_proofs(log.connection, added)
        queued = [*changed, *(r for r in touched if r.is_unproven)]
        awaited = proofs.await_lookup(log.connection, queued, log.now(), log.chains)
        note_backed(log.connection, touched)
        note_statements(log.connection, changed)
        return awaited

    def _shown_and_withheld(self, changed: Iterable[Record]) -> tuple[list[EventId], list[EventId]]:
        """Return which keys peers may see from now on, and which no longer, or not yet."""
        is_guarded = self._log.guarded  # then orphans are withheld, too
        shown, withheld = list[EventId](), list[EventId]()
        for record in changed:
            is_withheld = record.is_withheld or (is_guarded and record.state is ORPHAN)
            was = record.was_withheld or (is_guarded and record.logged_state is ORPHAN)
            if record.logged_state is None or was is not is_withheld:
                (withheld if is_withheld else shown).append(record.event_id)
        return shown, withheld


def _outcomes(touched: Iterable[Record]) -> tuple[list[Record], list[Record], list[Record]]:
    """Return which records are new in the log, which have moved, and which are to be removed."""
    added, moved, removed = list[Record](), list[Record](), list[Record]()
    for record in touched:
        if record.logged_state is None:
            if record.refusal is None:
                added.append(record)
        elif record.refusal is not None:
            removed.append(record)
        elif record.logged_state is not record.state:
            moved.append(record)
    return added, moved, removed


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
        change = Change(log, marks)
        rules = Rules(change.loader.known, marks, change.ladder, terms)
        repaired = _repair(log.connection, batch, damaged) if damaged else []
        if repaired:
            names = [event_id.event_cid for event_id in repaired]
            change.loader.carry_out(rules.move_repaired(names))
        verdicts = change.loader.carry_out(rules.judge(batch))
        committed = change.write()
        new_own = rules.own_streams - log.own_streams
        if new_own:
            note_own_streams(log.connection, new_own)
    if len(log.own_streams) > _OWN_STREAMS:
        log.own_streams.clear()  # to note one again does no harm
    log.own_streams |= new_own
    log.recent.keep(change.loader.known)
    committed.verdicts, committed.repaired = verdicts, repaired
    return committed


def _repair(
    connection: sqlite3.Connection, batch: Iterable[Submission], damaged: Collection[CID]
) -> list[EventId]:
    """Write those events of a batch that are damaged in the log, and return their EventIds.

    Blocks that they share with other events are repaired for those, too.
    """
    repaired: list[EventId] = []
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
        repaired += (EventId(event_id) for _, event_id in rows)
    return repaired


def _damaged_event(submission: Submission, damaged: Collection[CID]) -> Facts | None:
    """Return the facts about a submission's event, if it is a damaged one."""
    named = submission.event_id
    if named is not None and named.event_cid not in damaged:
        return None
    facts = submission.finding or check_event(submission.car)
    return facts if isinstance(facts, Facts) and facts.cid in damaged else None
