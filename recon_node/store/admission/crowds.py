"""Crowds move in steps: what one event or one anchor lets move is too much for one transaction.

See `recon_node.store.db.releases` for what is left of a crowd between two steps.
"""

from __future__ import annotations

from dataclasses import replace

from recon_node.store.admission.ladder import Ladder
from recon_node.store.db import releases
from recon_node.store.db.history import MAX_WAITERS, History
from recon_node.store.db.log import Committed, EventLog


def commit_release(log: EventLog) -> Committed:
    """Move the next events of a crowd, as many as one transaction may.

    Raises:
        StoreError: the disk did not take it; nothing is changed then.
    """
    with log.transaction() as marks:
        history = History(log.connection)
        ladder = Ladder(history, marks, log)
        for cid, after in releases.read_releases(log.connection, MAX_WAITERS):
            if not history.has_room:
                break
            releases.end_releases(log.connection, [cid])
            ladder.resume(history.load_released(cid, after))
        committed = log.write(history.touched.values(), ladder.refused, marks, history.left)
        marks.is_releasing = bool(releases.read_releases(log.connection, 1))
    return replace(committed, completed=ladder.completed, damaged=ladder.damaged)


def release_unsigned(log: EventLog) -> None:
    """Move what waits because a write policy decided in whose name streams are: it does no more.

    Raises:
        StoreError: the disk did not take it. What was moved before stays so.
    """
    after = 0
    while History(log.connection).load_uncovered(after):
        with log.transaction() as marks:
            history = History(log.connection)
            ladder = Ladder(history, marks, log)
            waiting = history.load_uncovered(after)
            ladder.resume(waiting)
            log.write(history.touched.values(), ladder.refused, marks, history.left)
        after = waiting[-1].row
