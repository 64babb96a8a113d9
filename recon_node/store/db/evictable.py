"""What may make room for time events: those that no lookup can prove, in a circle.

That is a time event whose proof is in `not_found` (`doubts`), if nothing that was fully checked
builds on it; else what does, for it cannot be delivered before. If a signed event is above, nothing
is to go: the time events below it are *backed*, and take no room. Whatever else builds on them does
not count, since it costs nothing.
"""

import sqlite3
from collections.abc import Iterable
from typing import Final

from recon_node.store.admission.records import Record, State

_HIGHEST: Final = 64
"""Events on top of each other that `Evictable` looks at."""
_MOST_ON_TOP: Final = 4096
"""Rows of `waits` that it looks at for one transaction, 3 microseconds each."""
_CANDIDATES: Final = (
    "SELECT not_found.proof, events.id, events.cid, init_cid, backed, state "
    "FROM not_found CROSS JOIN anchors USING (proof) CROSS JOIN events ON events.id = event "
    "WHERE position IS NULL AND "
)
_OF_SAME_PROOF: Final = f"{_CANDIDATES} not_found.proof = ?1 AND event > ?2 ORDER BY event LIMIT ?3"
_OF_LATER_PROOFS: Final = (
    f"{_CANDIDATES} not_found.proof > ? ORDER BY not_found.proof, event LIMIT ?"
)
_ON_TOP: Final = f"""
    SELECT later.id, later.cid, later.state >= {State.WAITING.value} AND later.kind = 'data'
        AND later.init_cid = ?2 AND later.id NOT IN (SELECT id FROM faults),
        later.state >= {State.UNCOVERED.value}
    FROM waits CROSS JOIN events AS later ON later.id = waits.event WHERE waits.cid = ?1 LIMIT ?3
    """


class Evictable:
    """Finds what may make room, a bounded part of it at a time."""

    def __init__(self) -> None:
        self._after: tuple[bytes, int] = b"", 0
        """The proof and the row of the time event that was looked at last."""

    def find(self, connection: sqlite3.Connection, limit: int) -> dict[int, bool]:
        """Look at some time events; return rows of `events` and whether these are backed."""
        proof, row = self._after
        rows = connection.execute(_OF_SAME_PROOF, (proof, row, limit)).fetchall()
        for after in (proof, b""):
            rows += connection.execute(_OF_LATER_PROOFS, (after, limit - len(rows))).fetchall()
        found: dict[int, bool] = {}
        left = _MOST_ON_TOP
        for proof, row, cid, init, is_backed, state in rows:
            if left <= 0:
                break
            self._after = proof, row
            if not is_backed and state >= State.UNCOVERED:
                above, looked_at = _climb(connection, row, cid, init, left)
                found |= above
                left -= looked_at
        return found


def _climb(
    connection: sqlite3.Connection, row: int, cid: bytes, init: bytes, most: int
) -> tuple[dict[int, bool], int]:
    """Climb from a time event to a signed one, or as far as what builds on it is fully checked.

    Returns:
        What `find` returns, of this event alone; and how many rows were looked at, up to `most`.
    """
    path, looked_at = [row], 0
    while looked_at < most and len(path) <= _HIGHEST:
        on_top = connection.execute(_ON_TOP, (cid, init, most)).fetchall()
        looked_at += 1 + len(on_top)
        if any(is_signed for _, _, is_signed, _ in on_top):
            return dict.fromkeys(path, True), looked_at
        checked = [(above, name) for above, name, _, is_checked in on_top if is_checked]
        if not checked:
            return ({row: False} if looked_at < most else {}), looked_at
        row, cid = checked[0]
        path.append(row)
    return {}, looked_at


def note_backed(connection: sqlite3.Connection, records: Iterable[Record]) -> None:
    """Note which time events are backed."""
    rows = [(record.row,) for record in records if record.is_backed]
    connection.executemany("UPDATE anchors SET backed = 1 WHERE event = ? AND NOT backed", rows)
