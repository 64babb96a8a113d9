"""Putting whole copies of damaged events in the place of what is in the log.

An event is what its CID says, so any sound CAR of it will do, from whomever it comes: nothing else
of the event is looked at again, and nothing but its bytes changes. Position, state and key stay.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable

from recon_node.ceramic import EventId
from recon_node.ipld import CID
from recon_node.store.admission.rules import Submission
from recon_node.store.db.blocks import BlockWriter
from recon_node.verification import Facts, check


def mend(
    connection: sqlite3.Connection, batch: Iterable[Submission], damaged: Collection[CID]
) -> list[EventId]:
    """Write the events of a batch that are damaged in the log; return their EventIds.

    Within a transaction. Blocks that the events share with others are mended for those, too.
    """
    mended: list[EventId] = []
    for submission in batch:
        facts = _facts(submission, damaged)
        if facts is None:
            continue
        [stored] = BlockWriter(connection).store([facts])
        rows = connection.execute(
            "SELECT id, event_id FROM events WHERE cid = ?", (facts.cid,)
        ).fetchall()
        connection.executemany(
            "INSERT OR REPLACE INTO cars (id, car) VALUES (?, ?)",
            ((row, stored) for row, _ in rows),
        )
        mended += (EventId(event_id) for _, event_id in rows)
    return mended


def _facts(submission: Submission, damaged: Collection[CID]) -> Facts | None:
    """What is known of a submission's event, if that is one of the damaged ones."""
    named = submission.event_id
    if named is not None and named.event_cid not in damaged:
        return None
    facts = submission.checked or check(submission.car)
    return facts if isinstance(facts, Facts) and facts.cid in damaged else None
