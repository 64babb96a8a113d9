"""What comes of lookups of anchors: time events and what builds on them move, or are refused."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from recon_node.ipld import CID
from recon_node.store.admission.ladder import Ladder
from recon_node.store.db import doubts, proofs
from recon_node.store.db.history import History
from recon_node.store.db.log import Committed, EventLog


def commit_proofs(log: EventLog, verdicts: Sequence[tuple[CID, proofs.ProofVerdict]]) -> Committed:
    """Keep what lookups of proofs led to, and deliver or refuse what has waited for it.

    Raises:
        StoreError: the disk did not take it; nothing is changed then.
    """
    with log.transaction() as marks:
        was_doubted = doubts.is_doubted(log.connection, *(proof for proof, _ in verdicts))
        before = doubts.doubted_events(log.connection) if was_doubted else set()
        settled = proofs.settle_proofs(log.connection, verdicts)
        history = History(log.connection)
        ladder = Ladder(history, marks, log)
        ladder.resume(history.load_anchored(settled))
        committed = log.write(history.touched.values(), ladder.refused, marks, history.left)
        doubts.forget(log.connection, settled)
        trusted = before - doubts.doubted_events(log.connection) if was_doubted else ()
    return replace(
        committed,
        proofs_done=committed.proofs_done + len(settled),
        completed=ladder.completed,
        trusted=trusted,
        damaged=ladder.damaged,
    )


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
        doubted = doubts.doubt(log.connection, not_found)
        committed = log.write((), (), marks)
    return replace(committed, doubted=doubted)
