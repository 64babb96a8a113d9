"""The event log as its writer sees it: one connection, one transaction a batch.

Synchronous; one thread at a time. Within a transaction nothing in memory changes but the working
set of the batch: a batch that fails leaves the log and this object as they were.
"""

from __future__ import annotations

import sqlite3
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from recon_node.ceramic import EventId, Network, StreamId
from recon_node.ipld import CID
from recon_node.recon import KeyRange, KeyStore
from recon_node.store.admission.history import History
from recon_node.store.admission.ladder import Ladder, Marks, WaitingRoom
from recon_node.store.admission.records import Record
from recon_node.store.admission.rules import Admission, Bounds, Submission
from recon_node.store.damage.detection import Damage
from recon_node.store.damage.mending import mend
from recon_node.store.db import schema
from recon_node.store.db.ledger import Ledger
from recon_node.store.db.proofs import ProofTable, ProofVerdict
from recon_node.store.db.saved_keys import SavedKeys
from recon_node.store.db.shown_head import ShownHead
from recon_node.store.values import Interest, StoreSettings, Verdict

logger = structlog.get_logger(__name__)

# Raise it when events that were refused may now be accepted (a new kind of signature, say): what
# was remembered as refused under other rules is forgotten when the log is opened.
RULES = 3

_THIS_INTEREST = "(sort_key, sort_value) = (?1, ?2) AND controller IS ?3 AND stream_id IS ?4"


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What a committed batch changed."""

    verdicts: list[Verdict]
    added: list[EventId]
    """Keys that are new."""
    removed: list[EventId]
    """Keys that had waited and turned out wrong."""
    refused: list[EventId]
    """EventIds that are remembered as refused from now on, `removed` among them."""
    marks: Marks
    proofs_added: int = 0
    """Proofs that await a lookup from now on."""
    proofs_done: int = 0
    """Proofs that awaited one and do not any more."""
    mended: Sequence[EventId] = ()
    """Events that were damaged and are whole again."""
    damaged: Sequence[Damage] = ()
    """Events that the batch would have needed, and that are damaged."""


class EventLog:
    """The log, open for writing. The caller holds the directory's lock.

    Args:
        data_dir: where the log is.
        network: of its events.
        settings: of the store.
        clock: Unix seconds; capabilities of local events must hold then.

    Raises:
        StoreError: it cannot be opened, see `recon_node.store.db.schema`.
    """

    def __init__(
        self,
        data_dir: Path,
        network: Network,
        settings: StoreSettings,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.path = data_dir / schema.FILE_NAME
        self._network = network
        self._settings = settings
        self._clock = clock
        self._room = WaitingRoom(settings.max_waiting, settings.max_waiting_bytes)
        self._connection = schema.open_database(data_dir, network, settings.synchronous)
        self._ledger = Ledger(self._connection)
        self._proofs = ProofTable(self._connection)
        self._keys: KeyStore | None = None
        with schema.told_to_people(self.path):
            try:
                self._saved_keys = SavedKeys(data_dir, self._connection)
                self._forget_outdated_refusals()
                self._proofs.forget_far_dues(self._clock())
                self.marks = self._read_marks()
                self.pending_proofs = self._proofs.count()
                self.epoch = schema.read_meta(self._connection, "epoch") or ""
                self._shown_head = ShownHead(data_dir)
                self._begin_epoch_if_shorter()
            except BaseException:
                self._connection.close()
                raise

    def load_keys(self) -> KeyStore:
        """A key store of all EventIds held.

        It is saved when the log is closed: whoever changes it must have all batches in it by then.
        """
        with schema.told_to_people(self.path):
            keys = self._saved_keys.load(self._count())
            if keys is None:
                rows = self._connection.execute("SELECT event_id FROM events ORDER BY event_id")
                keys = KeyStore(event_id for (event_id,) in rows)
        self._keys = keys
        return keys

    def load_refused(self) -> list[EventId]:
        """The EventIds that are remembered as refused, oldest first."""
        with schema.told_to_people(self.path):
            rows = self._connection.execute("SELECT event_id FROM refused ORDER BY id")
            return [EventId(event_id) for (event_id,) in rows]

    def load_interests(self) -> list[Interest]:
        """The interests, in the order in which they were added."""
        with schema.told_to_people(self.path):
            rows = self._connection.execute(
                "SELECT sort_key, sort_value, controller, stream_id FROM interests ORDER BY id"
            )
            return [
                Interest(key, value, controller, None if stream is None else StreamId.parse(stream))
                for key, value, controller, stream in rows
            ]

    def add_interest(self, interest: Interest) -> bool:
        """Keep an interest; False when it is there already.

        Raises:
            StoreError: the disk did not take it.
        """
        with self._transaction():
            added = self._connection.execute(
                "INSERT INTO interests (sort_key, sort_value, controller, stream_id) "
                "SELECT ?1, ?2, ?3, ?4 WHERE NOT EXISTS "
                f"(SELECT 1 FROM interests WHERE {_THIS_INTEREST})",
                _interest_row(interest),
            )
        return added.rowcount == 1

    def remove_interest(self, interest: Interest) -> bool:
        """Forget an interest; False when there was none.

        Raises:
            StoreError: the disk did not take it.
        """
        with self._transaction():
            removed = self._connection.execute(
                f"DELETE FROM interests WHERE {_THIS_INTEREST}", _interest_row(interest)
            )
        return removed.rowcount > 0

    def admit(
        self,
        batch: Sequence[Submission],
        ranges: Sequence[KeyRange],
        damaged: Collection[CID] = (),
    ) -> BatchResult:
        """Admit a batch in one transaction; peers' events must lie in `ranges`. Those of the batch
        that are `damaged` in the log are mended.

        Raises:
            StoreError: the disk did not take it; nothing of the batch is in the log.
        """
        marks = replace(self.marks)
        bounds = Bounds(
            self._network, ranges, self._settings.max_event_bytes, self._room, self._clock()
        )
        with self._transaction():
            history = History(self._ledger)
            event_ids = [each.event_id for each in batch if each.event_id is not None]
            history.load_event_ids(event_ids)
            remembered = self._ledger.refused_event_ids(event_ids)
            admission = Admission(history, marks, bounds, remembered)
            mended = mend(self._connection, batch, damaged) if damaged else []
            admission.resume([event_id.event_cid for event_id in mended])
            verdicts = admission.admit(batch)
            result = self._write(verdicts, history, admission.refused, marks)
        self._move_to(marks)
        return replace(result, mended=mended, damaged=admission.damaged)

    def settle_proofs(self, verdicts: Sequence[tuple[CID, ProofVerdict]]) -> BatchResult:
        """Keep what came of lookups, and deliver or refuse what has waited for it; all or nothing.

        Raises:
            StoreError: the disk did not take it.
        """
        marks = replace(self.marks)
        with self._transaction():
            settled = self._proofs.settle(verdicts)
            history = History(self._ledger)
            anchored = self._ledger.records_by_proof(settled)
            history.load_records(anchored)
            ladder = Ladder(history, marks, self._network, self._room)
            ladder.resume(anchored)
            result = self._write([], history, ladder.refused, marks)
        self._move_to(marks)
        done = result.proofs_done + len(settled)
        return replace(result, proofs_done=done, damaged=ladder.damaged)

    def postpone_proofs(self, proofs: Sequence[tuple[CID, float]]) -> None:
        """Put proofs that were looked up in vain further back in line, each with its new time.

        Raises:
            StoreError: the disk did not take it.
        """
        with self._transaction():
            self._proofs.postpone(proofs)

    def close(self) -> None:
        """Save the keys, bring the write-ahead log into the file and close it.

        Raises:
            StoreError: the disk failed; what was committed is still in the write-ahead log.
        """
        with schema.told_to_people(self.path):
            try:
                self._save_keys()
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            finally:
                self._shown_head.close()
                self._connection.close()

    def _move_to(self, marks: Marks) -> None:
        """Take over where a committed batch left the log, before anyone sees its positions."""
        if marks.head > self.marks.head:
            self._note_head(marks.head)
        self.marks = marks

    def _note_head(self, head: int) -> None:
        try:
            self._shown_head.note(self.epoch, head)
        except OSError as error:  # the batch is committed: it must not fail for this
            logger.warning("The head of the feed could not be noted", reason=str(error))

    def _begin_epoch_if_shorter(self) -> None:
        """Begin a new epoch where readers have seen positions that the log does not have."""
        shown = self._shown_head.of(self.epoch)
        if shown > self.marks.head:
            self.epoch = str(uuid.uuid4())
            with self._transaction():
                self._connection.execute(
                    "UPDATE meta SET value = ? WHERE name = 'epoch'", (self.epoch,)
                )
            logger.warning(
                "The event log has lost its latest events: readers of the feed start anew",
                head=self.marks.head,
                head_before=shown,
                epoch=self.epoch,
            )
        self._note_head(self.marks.head)

    def _write(
        self,
        verdicts: list[Verdict],
        history: History,
        refused: Sequence[Record],
        marks: Marks,
    ) -> BatchResult:
        held = history.touched.values()
        added = [r for r in held if r.logged_state is None and r.refusal is None]
        moved = [r for r in held if r.logged_state not in (None, r.state) and r.refusal is None]
        removed = [r for r in held if r.logged_state is not None and r.refusal is not None]
        self._ledger.insert(added)
        self._proofs.insert(added)
        proofs_added = self._proofs.await_lookup([*added, *moved], self._clock())
        self._ledger.update(moved)
        self._ledger.delete(removed)
        proofs_done = self._proofs.delete(removed)
        if refused:
            self._ledger.remember_refused(refused, self._settings.max_refused)
        return BatchResult(
            verdicts=verdicts,
            added=[r.event_id for r in added],
            removed=[r.event_id for r in removed],
            refused=[r.event_id for r in refused],
            marks=marks,
            proofs_added=proofs_added,
            proofs_done=proofs_done,
        )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Commit what is done inside, or nothing of it."""
        with schema.told_to_people(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                if self._saved_keys.current:
                    self._saved_keys.forget()
                yield
                self._connection.execute("COMMIT")
                self._saved_keys.current = False
            except BaseException:
                self._roll_back()
                raise

    def _count(self) -> int:
        count: int = self._connection.execute("SELECT count(*) FROM events").fetchone()[0]
        return count

    def _save_keys(self) -> None:
        if self._keys is None or len(self._keys) != self._count():
            return
        try:
            self._saved_keys.save(self._keys)
        except (OSError, sqlite3.Error) as error:  # the next start takes longer, and no more
            logger.warning("The keys were not saved for the next start", reason=str(error))

    def _roll_back(self) -> None:
        if self._connection.in_transaction:  # some errors have ended it already
            self._connection.execute("ROLLBACK")

    def _read_marks(self) -> Marks:
        head, row = self._connection.execute(
            "SELECT (SELECT ifnull(max(position), 0) FROM events WHERE position IS NOT NULL), "
            "(SELECT ifnull(max(id), 0) FROM events)"
        ).fetchone()
        waiting, size = self._ledger.waiting()
        return Marks(head=head, row=row, waiting=waiting, waiting_bytes=size)

    def _forget_outdated_refusals(self) -> None:
        if schema.read_meta(self._connection, "rules") == str(RULES):
            return
        with self._transaction():
            self._connection.execute("DELETE FROM refused")
            self._proofs.forget_refusals()
            self._connection.execute(
                "INSERT OR REPLACE INTO meta (name, value) VALUES ('rules', ?)", (str(RULES),)
            )


def _interest_row(interest: Interest) -> tuple[str, str, str | None, str | None]:
    stream = None if interest.stream_id is None else str(interest.stream_id)
    return interest.sort_key, interest.sort_value, interest.controller, stream
