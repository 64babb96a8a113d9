"""What readers ask of the log, in SQL; each function runs in a thread.

Every CAR is checked before it leaves, see `recon_node.store.damage.detection`.

For bulk readers of the feed, see `recon_node.store.db.columns`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, islice, zip_longest
from typing import Final

from recon_node.ceramic import EventId, EventKind, TimeProof
from recon_node.ipld import CID, CarError
from recon_node.store.damage.detection import (
    Damage,
    DamagedEventError,
    check_stored,
    name_damage,
)
from recon_node.store.db.columns import COLUMNS, ROWS, anchors, damage_of, first_hole, select
from recon_node.store.db.deliveries import DELIVERED_AT
from recon_node.store.db.faults import FAULT, faults_of
from recon_node.store.db.reader import Reader
from recon_node.store.db.records import State, StreamRecord, select_streams
from recon_node.store.db.sql import select_in
from recon_node.store.values import FeedPlace, FeedRow, HeldRow, PendingProof

_LAST: Final = 2**63 - 1  # the greatest integer that SQLite has


def read_car(cid: CID, reader: Reader) -> bytes | None:
    """Return the CAR of an event, by any of its rows; None when it has none.

    Raises:
        DamagedEventError: all copies are damaged.
    """
    rows = reader.connection.execute(
        "SELECT event_id, position, car FROM events LEFT JOIN cars USING (id) WHERE cid = ?", (cid,)
    ).fetchall()
    damage = None
    for event_id, position, stored in rows:  # several, where peers claimed several EventIds
        [restored] = reader.blocks.restore_each([stored])
        found = check_stored(restored, event_id, cid, position)
        if isinstance(found, bytes):
            return found
        damage = found
    if damage is not None:
        raise DamagedEventError(damage)
    return None


def read_cars(
    event_ids: Sequence[EventId], reader: Reader
) -> tuple[list[bytes | None], Sequence[Damage]]:
    """Return the CARs of some EventIds, in their order, and which are damaged: None, too."""
    sql = (
        "SELECT event_id, cid, position, car FROM events LEFT JOIN cars USING (id) "
        "WHERE event_id IN (?)"
    )
    rows = list(select_in(reader.connection, sql, event_ids))
    restored = reader.blocks.restore_each([stored for *_, stored in rows])
    found = {row[0]: check_stored(car, *row[:3]) for row, car in zip(rows, restored, strict=True)}
    cars = (found.get(event_id) for event_id in event_ids)
    damaged = [each for each in found.values() if isinstance(each, Damage)]
    return [car if isinstance(car, bytes) else None for car in cars], damaged


def read_cars_by_cid(
    cids: Sequence[CID], reader: Reader
) -> tuple[list[bytes | None], Sequence[Damage]]:
    """Return the CARs of some events, in their order, and which are damaged: None, too."""
    sql = (
        "SELECT event_id, cid, position, car FROM events LEFT JOIN cars USING (id) WHERE cid IN (?)"
    )
    rows = list(select_in(reader.connection, sql, cids))
    restored = reader.blocks.restore_each([stored for *_, stored in rows])
    found = [check_stored(car, *row[:3]) for row, car in zip(rows, restored, strict=True)]
    cars = {row[1]: car for row, car in zip(rows, found, strict=True) if isinstance(car, bytes)}
    return [cars.get(cid) for cid in cids], [each for each in found if isinstance(each, Damage)]


def read_event_ids(cids: Sequence[CID], reader: Reader) -> dict[CID, tuple[bytes, EventKind]]:
    """Return the EventIds and the kinds of those of some events that are here."""
    sql = "SELECT cid, event_id, kind FROM events WHERE cid IN (?)"
    rows = select_in(reader.connection, sql, cids)
    return {CID(cid): (event_id, EventKind(kind)) for cid, event_id, kind in rows}


_PROOF: Final = "proof, chain_id, root, tx_hash, tx_type, tries, due"
_SHARED_PROOFS: Final = 4_096
"""Proofs at each end of the queue among which the next ones are shared out."""


def read_pending_proofs(
    chain_id: str | None, limit: int, shared_before: float | None, reader: Reader
) -> list[PendingProof]:
    """Return the proofs of a chain, or of all, that await their lookup, in the order of `due`; or,
    of those that are due by a time, a fair share for the controllers of their streams."""
    where, values = ("", ()) if chain_id is None else ("AND chain_id = ?", (chain_id,))
    if shared_before is not None:
        return _share_out(where, (*values, shared_before), limit, reader)
    rows = reader.connection.execute(
        f"SELECT {_PROOF} FROM proofs WHERE due IS NOT NULL {where} ORDER BY due, proof LIMIT ?",
        (*values, limit),
    )
    return [_pending_proof(*row) for row in rows]


def _share_out(
    where: str, values: tuple[object, ...], limit: int, reader: Reader
) -> list[PendingProof]:
    """Give each controller a proof, then a second one, and so on; of one controller's, by turns
    those that are due first and last: made-up ones cost nothing, and keep back their like alone."""
    controller = (
        "(SELECT controller FROM events JOIN streams USING (init_cid) WHERE events.id = "
        "(SELECT min(event) FROM anchors WHERE anchors.proof = proofs.proof))"
    )
    sql = (
        f"SELECT {_PROOF}, {controller} FROM proofs "
        f"WHERE due IS NOT NULL {where} AND due <= ? ORDER BY due {{}}, proof LIMIT ?"
    )
    ends = [
        reader.connection.execute(sql.format(order), (*values, _SHARED_PROOFS)).fetchall()
        for order in ("ASC", "DESC")
    ]
    shares: dict[str | None, dict[bytes, PendingProof]] = {}
    for row in chain.from_iterable(zip_longest(*ends)):
        if row is not None:
            *proof, owner = row
            shares.setdefault(owner, {}).setdefault(proof[0], _pending_proof(*proof))
    turns = zip_longest(*(share.values() for share in shares.values()))
    return list(islice((proof for turn in turns for proof in turn if proof is not None), limit))


def _pending_proof(
    cid: bytes, chain_id: str, root: bytes, tx_hash: bytes, tx_type: str, tries: int, due: float
) -> PendingProof:
    proof = TimeProof(chain_id, CID(root), CID(tx_hash), tx_type)
    return PendingProof(CID(cid), proof, tries, due)


def read_stream_header(init: CID, reader: Reader) -> StreamRecord | None:
    """Return what the init event of a stream says in its header; None when it is not here."""
    return next(select_streams(reader.connection, [init]), None)


def read_stream_headers(inits: Sequence[CID], reader: Reader) -> list[StreamRecord]:
    """Return the same for some streams; those that are not here are not among them."""
    return list(select_streams(reader.connection, inits))


def read_feed(
    after: int, limit: int, upto: int, max_bytes: int | None, reader: Reader
) -> list[FeedRow]:
    """Return delivered events of the positions (after, upto]; they end before a damaged one.

    Raises:
        DamagedEventError: the first of them is damaged.
    """
    found, damage = read_feed_or_damage(after, limit, upto, max_bytes, reader)
    if damage is not None and not found:  # else it stands at the beginning of the next page
        raise DamagedEventError(damage)
    return found


def read_feed_or_damage(
    after: int, limit: int, upto: int, max_bytes: int | None, reader: Reader
) -> tuple[list[FeedRow], Damage | None]:
    """Return the same, and the damaged one."""
    sql = ROWS + "WHERE position > ? AND position <= ? ORDER BY position LIMIT ?"
    values = (min(after, _LAST), upto, min(limit, _LAST))
    found, damage = _read_rows(sql, values, max_bytes, reader)
    hole = first_hole([row.position for row in found], after)
    if hole is not None and hole.position is not None:
        found, damage = found[: hole.position - after - 1], hole
    return found, damage


def read_head(reader: Reader) -> int:
    """Return the last position of the feed."""
    [head] = reader.connection.execute("SELECT coalesce(max(position), 0) FROM events").fetchone()
    return int(head)


def read_positions(after: int, upto: int, reader: Reader) -> list[FeedPlace]:
    """Return the positions (after, upto]."""
    sql = (
        f"SELECT position, event_id, block_time, chain_id, {DELIVERED_AT}, {FAULT} FROM events "
        "LEFT JOIN anchors ON anchors.event = events.id LEFT JOIN proofs USING (proof) "
        "WHERE position > ? AND position <= ? ORDER BY position"
    )
    return reader.connection.execute(sql, (after, upto)).fetchall()


def read_sort_key(
    sort_key: str, after: int, upto: int, limit: int, max_bytes: int, reader: Reader
) -> list[FeedRow]:
    """Return init events with that sort key of the positions (after, upto].

    Raises:
        DamagedEventError: one of them is damaged.
    """
    sql = (
        f"SELECT {COLUMNS} FROM events "
        "CROSS JOIN streams USING (init_cid) LEFT JOIN cars USING (id) "
        "WHERE position > ? AND position <= ? AND kind = 'init' AND sep_key = ? "
        "ORDER BY position LIMIT ?"
    )
    return _whole(*_read_rows(sql, (after, upto, sort_key, limit), max_bytes, reader))


def read_signed(
    init: CID, upto: int, limit: int | None, max_bytes: int | None, reader: Reader
) -> list[FeedRow]:
    """Return events of the stream that `init` starts, of the positions up to `upto`, without the
    time events that `time_statements` has.

    Raises:
        DamagedEventError: one of them is damaged.
    """
    sql = (
        f"{ROWS} LEFT JOIN anchors ON anchors.event = events.id "
        "WHERE init_cid = ? AND position <= ? AND prev IS NULL ORDER BY position LIMIT ?"
    )
    values = (init, upto, -1 if limit is None else min(limit, _LAST))
    return _whole(*_read_rows(sql, values, max_bytes, reader))


def read_held(
    init: CID, limit: int, max_bytes: int, well_signed: bool, reader: Reader
) -> list[HeldRow]:
    """Return events of a stream that are not delivered, without time events, by how soon they may
    be: those that are rightly signed, or the others.

    Raises:
        DamagedEventError: one of them is damaged.
    """
    rows = reader.connection.execute(
        f"SELECT id, event_id, cid, state, {FAULT} AS fault FROM events "
        "INDEXED BY events_undelivered_by_stream WHERE init_cid = ? AND position IS NULL "
        "AND kind != 'time' AND (fault IS NULL AND state >= 0) = ? "
        "ORDER BY state DESC, id LIMIT ?",
        (init, well_signed, limit),
    ).fetchall()
    found: list[HeldRow] = []
    left = max_bytes
    for row, event_id, cid, state, fault in rows:
        stored = reader.connection.execute("SELECT car FROM cars WHERE id = ?", (row,)).fetchone()
        [restored] = reader.blocks.restore_each([None if stored is None else stored[0]])
        car = check_stored(restored, event_id, cid, None)
        if isinstance(car, Damage):
            raise DamagedEventError(car)
        found.append(HeldRow(EventId(event_id), car, State(state) is State.PENDING, fault))
        left -= len(car)
        if left <= 0:
            break
    return found


def _read_rows(
    sql: str, values: Sequence[object], max_bytes: int | None, reader: Reader
) -> tuple[list[FeedRow], Damage | None]:
    """Return the events up to the one that takes the CARs to `max_bytes`, or to a damaged one."""
    columns = select(sql, values, max_bytes, reader)
    positions, _, _, _, kinds, stored, delivered = columns
    found: list[FeedRow] = []
    for position, event_id, cid, init, kind, car, *facts in zip(
        *columns[:5],
        reader.blocks.restore_each(stored),
        *anchors(positions, kinds, reader),
        delivered,
        faults_of(reader.connection, positions, kinds),
        strict=True,
    ):
        damage = damage_of(position, event_id, cid, init, kind, car)
        if isinstance(car, CarError) or damage is not None:
            return found, damage
        try:
            key, init_cid = EventId(event_id), CID(init)
        except ValueError as error:
            return found, name_damage(str(error), None, cid, position)
        found.append(FeedRow(position, key, CID(cid), init_cid, EventKind(kind), car, *facts))
    return found, None


def _whole(rows: list[FeedRow], damage: Damage | None) -> list[FeedRow]:
    """Return rows of which none may be left out."""
    if damage is not None:
        raise DamagedEventError(damage)
    return rows
