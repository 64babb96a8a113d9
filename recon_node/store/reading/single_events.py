"""What readers ask about single events, by EventId or CID.

Every CAR is checked before it leaves, see `recon_node.store.damage`.
"""

from collections.abc import Sequence
from itertools import chain, islice, zip_longest
from typing import Any, Final

from recon_node.ceramic import EventId, EventKind, TimeProof
from recon_node.ipld import CID
from recon_node.store.admission.records import StreamRecord
from recon_node.store.damage import Damage, DamagedEventError, check_stored
from recon_node.store.db.rows import select_streams
from recon_node.store.db.sql import select_in, select_named
from recon_node.store.reading import Reader
from recon_node.store.values import PendingProof

_PROOF: Final = "proof, chain_id, root, tx_hash, tx_type, tries, due"
_SHARED_PROOFS: Final = 4_096
"""Proofs at each end of the queue among which the next ones are shared out."""
_CARS: Final = (
    "SELECT event_id, cid, init_cid, kind, car, position FROM events LEFT JOIN cars USING (id) "
    "WHERE short_cid IN (?)"
)
_EVENT_ID, _CID = 0, 1


def read_car(reader: Reader, cid: CID) -> bytes | None:
    """Return the CAR of an event, delivered or not; None when it is not here.

    Raises:
        DamagedEventError: the event is damaged.
    """
    events = _read(reader, [cid], _CID)  # several, where peers claimed several EventIds
    for _, _, car in events:
        if isinstance(car, bytes):
            return car
    if events:
        raise DamagedEventError(*_damaged(events))
    return None


def read_cars(reader: Reader, event_ids: Sequence[EventId]) -> list[bytes | None]:
    """Return the CARs of some EventIds, in their order; None for those that are not here.

    Raises:
        DamagedEventError: one of them is damaged.
    """
    cars = read_cars_for_peers(reader, event_ids)
    if reader.damaged:
        raise DamagedEventError(*reader.damaged)
    return cars


def read_cars_for_peers(reader: Reader, event_ids: Sequence[EventId]) -> list[bytes | None]:
    """Return CARs as `read_cars` does, but None for damaged events, too."""
    return _sound_cars(reader, event_ids, _EVENT_ID)


def read_cars_by_cid(reader: Reader, cids: Sequence[CID]) -> list[bytes | None]:
    """Return the CARs of some events, in their order; None for those that are not here, or are
    damaged."""
    return _sound_cars(reader, cids, _CID)


def _sound_cars(reader: Reader, names: Sequence[bytes], column: int) -> list[bytes | None]:
    events = _read(reader, names, column)
    reader.damaged += _damaged(events)
    cars = {event[column]: car for event in events if isinstance(car := event[-1], bytes)}
    return [cars.get(name) for name in names]


def read_stream_of(reader: Reader, cid: CID) -> CID | None:
    """Return the init event of an event's stream, delivered or not; None if it is not here."""
    sql = "SELECT cid, init_cid FROM events WHERE short_cid IN (?)"
    rows = select_named(reader.connection, sql, [cid])
    return next((CID(init) for _, init in rows), None)


def read_event_ids(reader: Reader, cids: Sequence[CID]) -> dict[CID, tuple[bytes, EventKind]]:
    """Return the EventIds and the kinds of some events, of those that are here."""
    sql = "SELECT cid, event_id, kind FROM events WHERE short_cid IN (?)"
    rows = select_named(reader.connection, sql, cids)
    return {CID(cid): (event_id, EventKind(kind)) for cid, event_id, kind in rows}


def read_stream_headers(reader: Reader, inits: Sequence[CID]) -> list[StreamRecord]:
    """Return what the headers of some init events say, of those that are here."""
    return list(select_streams(reader.connection, inits))


def read_own_streams(reader: Reader, inits: Sequence[CID]) -> set[CID]:
    """Return the init events of some streams, of those to which clients of this node wrote."""
    sql = "SELECT init_cid FROM own_streams WHERE init_cid IN (?)"
    return {CID(init) for (init,) in select_in(reader.connection, sql, inits)}


def read_pending_proofs(
    reader: Reader, limit: int, chain_id: str | None = None, *, shared_before: float | None = None
) -> list[PendingProof]:
    """Return at most `limit` proofs of time events that are to be looked up (of one chain, CAIP-2),
    those that are due first; some may not be due yet.

    With `shared_before`, in Unix seconds: of those due by then, a fair share for the controllers of
    their streams.
    """
    where, values = ("", ()) if chain_id is None else ("AND chain_id = ?", (chain_id,))
    if shared_before is not None:
        return _share_out(reader, where, (*values, shared_before), limit)
    rows = reader.connection.execute(
        f"SELECT {_PROOF} FROM proofs WHERE due IS NOT NULL {where} ORDER BY due, proof LIMIT ?",
        (*values, limit),
    )
    return [_pending_proof(*row) for row in rows]


def _share_out(
    reader: Reader, where: str, values: tuple[object, ...], limit: int
) -> list[PendingProof]:
    """Give each controller a proof, then a second one, and so on; of one controller's proofs, by
    turns the one that is due first and the one that is due last. So proofs that are made up, which
    costs nothing, only delay proofs of the same controller."""
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


def _read(
    reader: Reader, names: Sequence[bytes], column: int
) -> list[tuple[bytes, bytes, bytes | Damage]]:
    """Return the EventIds and CIDs of events, and the CAR of each or what is wrong with it."""
    rows: list[tuple[Any, ...]] = list(select_named(reader.connection, _CARS, names, column))
    if not rows:
        return []
    event_ids, cids, inits, kinds, stored, positions = zip(*rows, strict=True)
    cars: Sequence[Any] = reader.blocks.restore_each(stored)
    fits = reader.fit(event_ids, cids, inits, kinds, cars)
    return [
        (event_id, cid, car if is_sound else check_stored(car, event_id, cid, position))
        for event_id, cid, car, position, is_sound in zip(
            event_ids, cids, cars, positions, fits, strict=True
        )
    ]


def _damaged(events: Sequence[tuple[bytes, bytes, bytes | Damage]]) -> list[Damage]:
    return [car for *_, car in events if isinstance(car, Damage)]
