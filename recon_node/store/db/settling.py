"""Changes of the log that bring no event, but move those that wait.

Events wait for a lookup of their anchor (`note_chains`, `commit_proofs`, `postpone_proofs`,
`forget_far_dues`), or for others. Any number may wait for one that arrives, or for one anchor, and
that is too much for one transaction: `releases` says how these *releases* are kept, and
`commit_releases` continues them. Unsigned events wait as long as the log is guarded (`lift_guard`).

Each raises `StoreError` if the disk does not take it: nothing is changed then.
"""

from collections.abc import Collection, Iterable, Sequence

from recon_node.ipld import CID
from recon_node.store.admission.records import REFUSED, ProofVerdict
from recon_node.store.db import doubts, proofs
from recon_node.store.db.log import Change, Committed, EventLog
from recon_node.store.db.releases import (
    delete_release,
    has_releases,
    select_guarded,
    select_releases,
)
from recon_node.store.db.sql import explained_errors


def note_chains(log: EventLog, chains: Collection[str]) -> None:
    """Note which chains are asked about anchors (CAIP-2)."""
    log.chains = chains
    with explained_errors(log.path):
        are_noted = doubts.are_noted(log.connection, chains)
    if not are_noted:  # a start that changes nothing writes nothing
        with log.transaction():
            doubts.note_chains(log.connection, chains)


def commit_proofs(log: EventLog, verdicts: Sequence[tuple[CID, ProofVerdict]]) -> Committed:
    """Keep what lookups of proofs led to, and deliver or refuse what has waited for it."""
    with log.transaction() as marks:
        was_doubted = doubts.doubted_among(log.connection, [proof for proof, _ in verdicts])
        before = doubts.doubted_by(log.connection, was_doubted)
        settled = proofs.settle_proofs(log.connection, verdicts)
        change = Change(log, marks)
        change.move(change.loader.load_waiters([(proof, REFUSED) for proof in settled]))
        committed = change.write()
        committed.trusted = doubts.forget_doubts(log.connection, settled, before)
    committed.proofs_done += len(settled)
    return committed


def postpone_proofs(
    log: EventLog, due: Sequence[tuple[CID, float]], not_found: Iterable[CID]
) -> Committed:
    """Move proofs whose lookup failed further back in the queue.

    `due` says when each is to be looked up again, in Unix seconds. Of those in `not_found`, the
    chain does not have the transaction.
    """
    with log.transaction() as marks:
        proofs.postpone_proofs(log.connection, due)
        doubted = doubts.doubt(log.connection, not_found)
    return Committed(marks, doubted=doubted)


def forget_far_dues(log: EventLog, now: float) -> Committed:
    """Treat what is due later than any lookup is postponed as due."""
    with log.transaction() as marks:
        proofs.forget_far_dues(log.connection, now)
    return Committed(marks)


def commit_releases(log: EventLog, *, alone: bool = False) -> Committed:
    """Continue with the releases: move as many waiting events as one transaction may.

    `alone` has it continue with the next release only, so that one which fails takes back no other.
    """
    with log.transaction() as marks:
        change = Change(log, marks)
        for cid, after in select_releases(log.connection, log.last_release)[: 1 if alone else None]:
            if not change.loader.has_room:
                break
            log.last_release = cid
            delete_release(log.connection, cid)
            change.move(change.loader.load_released(CID(cid), after))
        committed = change.write()
        marks.has_releases = has_releases(log.connection)
    return committed


def lift_guard(log: EventLog) -> None:
    """Move the unsigned events that are UNCOVERED since the log was guarded: it is no longer.

    Raises:
        StoreError: the disk did not take it, or the log is damaged. What was moved before stays so.
    """
    after = 0
    with explained_errors(log.path):
        while guarded := select_guarded(log.connection, after):
            with log.transaction() as marks:
                change = Change(log, marks)
                change.move(change.loader.load(guarded))
                change.write()
            after = guarded[-1]
