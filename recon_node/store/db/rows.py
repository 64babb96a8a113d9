"""Records (`recon_node.store.admission.records`) as rows of the log.

`faults` has a row for each badly signed event that is held, under its `id` in `events`, and says
what is wrong with its signature. Such an event is never a tip, but it keeps covering what it
covers. It is delivered once a valid data event covers it (`recon_node.store.admission.ladder`).

`own_streams` has the streams that the node's own clients have written to: those whose events its
API admitted. Time events do not count, since anybody can make them.

Statements are run for many events at once: what a batch has to know of the log is loaded by a
`BatchLoader`. Nothing here begins or ends a transaction.
"""

import sqlite3
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from recon_node.base.steps import run_steps
from recon_node.ceramic import EventId, EventKind, parse_event
from recon_node.ceramic.event import INIT
from recon_node.ipld import CID, CidError
from recon_node.store.admission.records import (
    DELIVERED,
    ORPHAN,
    PENDING,
    UNCOVERED,
    Inquiry,
    Known,
    Moved,
    Recent,
    Record,
    State,
    StreamRecord,
    Want,
    builds_on,
)
from recon_node.store.damage import FORGOTTEN, Damage, check_stored
from recon_node.store.db import releases
from recon_node.store.db.blocks import BlockReader, cut_out_shared, full_size, trim
from recon_node.store.db.doubts import doubted_among
from recon_node.store.db.evictable import Evictable
from recon_node.store.db.proofs import proof_verdicts
from recon_node.store.db.sql import MAX_REASON, blob, insert_rows, select_in, select_named
from recon_node.store.errors import DamagedRowError
from recon_node.verification import Facts

T = TypeVar("T")

FAULT: Final = "(SELECT reason FROM faults WHERE faults.id = events.id)"
"""The fault of a row of `events` in a SELECT; null if there is none."""

_OF_POSITIONS: Final = (
    "SELECT position, reason FROM events CROSS JOIN faults USING (id) WHERE position IN (?)"
)
_UNWAITED: Final = (
    "SELECT column1 FROM (VALUES (?)) "
    "WHERE NOT EXISTS (SELECT 1 FROM waits WHERE waits.cid = column1)"
)

_SELECT: Final = (
    "SELECT id, event_id, cid, init_cid, kind, signer, state, position, "
    "(SELECT proof FROM anchors WHERE event = events.id AND kind = 'time'), "
    "(SELECT backed FROM anchors WHERE event = events.id AND kind = 'time'), "
    f"{FAULT} FROM events WHERE "
)
_NAMED: Final = f"{_SELECT} short_cid IN (?)"
_CID: Final = 2
_KINDS: Final = {kind.value: kind for kind in EventKind}
_STATES: Final[Mapping[int, State]] = {state.value: state for state in State}
"""Found at once: to make an Enum of a value takes Python half a microsecond."""


def select_records(
    connection: sqlite3.Connection, where: str, values: Sequence[object]
) -> list[Record]:
    """Return the records that match a WHERE clause whose `(?)` takes all the values.

    Raises:
        DamagedRowError: a row has values that this program never writes.
    """
    return _records(connection, list(select_in(connection, _SELECT + where, values)))


def select_records_of(connection: sqlite3.Connection, cids: Sequence[CID]) -> list[Record]:
    """Return the records of some events; otherwise as `select_records`.

    They come without what they build on, unless they may move when they are covered: others may
    build on many that wait for many, and it is needed of none of these.
    """
    rows = list(select_named(connection, _NAMED, cids, _CID))
    return _records(connection, rows, [row[0] for row in rows if row[6] == UNCOVERED])


def _records(
    connection: sqlite3.Connection,
    rows: Sequence[tuple[Any, ...]],
    moving: Sequence[int] | None = None,
) -> list[Record]:
    """Make records of rows; `moving` are the ids of those that may move, by default all."""
    undelivered = [row[0] for row in rows if row[6] != DELIVERED]
    below: defaultdict[int, list[CID]] = defaultdict(list)
    names: dict[bytes, CID] = {}  # many may wait for the same 256 events, and a CID is dear to make
    watches: defaultdict[int, list[CID]] = defaultdict(list)
    sql = "SELECT event, cid, watched FROM waits WHERE event IN (?)"
    unreadable: set[int] = set()
    for row, cid, watched in select_in(connection, sql, undelivered if moving is None else moving):
        name = names.get(cid)
        if name is None:
            try:
                name = names[cid] = CID(cid)
            except (CidError, TypeError, AttributeError):
                unreadable.add(row)
                continue
        below[row].append(name)
        if watched:
            watches[row].append(name)
    for row in unreadable:  # else every batch would fail that brings what the event waits for
        below[row] = list(_builds_on_by_car(connection, row))
    sql = "SELECT id, substr(car, 1, 9), length(car) FROM cars WHERE id IN (?)"
    sizes = {row: full_size(*car) for row, *car in select_in(connection, sql, undelivered)}
    records = [_record(row, tuple(below.get(row[0], ())), sizes.get(row[0], 0)) for row in rows]
    for record in records:
        if len(watched := watches.get(record.row, ())) == 1:  # more in a log of an earlier version
            record.watch = record.logged_watch = watched[0]
    return records


def _builds_on_by_car(connection: sqlite3.Connection, row: int) -> tuple[CID, ...]:
    """Return what an event builds on whose rows of `waits` are damaged; its CAR says so, too."""
    car = _stored_car(connection, row)
    if isinstance(car, Damage):
        raise DamagedRowError(f"the rows of the event {row} in the table waits: {car}")
    return builds_on(parse_event(car))


def _stored_car(connection: sqlite3.Connection, row: int) -> bytes | Damage:
    sql = "SELECT event_id, cid, position, car FROM events LEFT JOIN cars USING (id) WHERE id = ?"
    *names, stored = connection.execute(sql, (row,)).fetchone()
    [restored] = BlockReader(connection).restore_each([stored])
    return check_stored(restored, *names)


def select_withheld(connection: sqlite3.Connection, *, orphans: bool) -> list[EventId]:
    """Return the EventIds that are not offered to peers, see `Record.is_withheld`."""
    rows = connection.execute(
        "SELECT event_id FROM events WHERE position IS NULL AND state IN (?1, ?2) "
        "UNION SELECT event_id FROM faults CROSS JOIN events USING (id) "
        "WHERE position IS NULL AND state < ?3",
        (UNCOVERED, ORPHAN if orphans else UNCOVERED, PENDING),
    )
    return [EventId(event_id) for (event_id,) in rows]


def select_streams(
    connection: sqlite3.Connection, init_cids: Sequence[CID]
) -> Iterator[StreamRecord]:
    """Return the streams of these init events."""
    sql = "SELECT init_cid, controller, sep_key, sep_value FROM streams WHERE init_cid IN (?)"
    for init, *fields in select_in(connection, sql, init_cids):
        yield StreamRecord(CID(init), *fields)


def stream_rows(
    connection: sqlite3.Connection, records: Iterable[Record], known: Iterable[Record]
) -> dict[CID, int]:
    """Return the rows of the init events of the streams of delivered records, by their CIDs.

    Args:
        connection: asked for those that are not known.
        records: whose streams.
        known: among them nearly always these init events.
    """
    rows = {r.cid: r.row for r in known if r.kind is INIT and r.state is DELIVERED}
    missing = list({r.init for r in records if r.state is DELIVERED} - rows.keys())
    sql = "SELECT cid, id FROM events WHERE short_cid IN (?) AND position NOTNULL"
    rows.update((CID(cid), row) for cid, row in select_named(connection, sql, missing))
    return rows


def insert_records(
    connection: sqlite3.Connection,
    records: Sequence[Record],
    streams_at: Mapping[CID, int],
    forgotten: Collection[bytes],
) -> None:
    """Write records that are new, with their streams and, but for forgotten ones, their CARs."""
    insert_rows(
        connection,
        "INSERT INTO events (id, name, cid, init, kind, signer, state, position, stream) VALUES",
        (
            (
                r.row,
                blob(r.event_id[: -len(r.cid)]),
                blob(r.cid),
                None if r.kind is INIT else blob(r.init),
                r.kind.value,
                None if r.state is DELIVERED else r.signer,
                int(r.state),  # SQLite's module takes three times as long for an Enum
                r.position,
                streams_at[r.init] if r.state is DELIVERED else None,
            )
            for r in records
        ),
    )
    events = {r.row: r.event for r in records if r.event is not None}
    _insert_cars(connection, events, forgotten)
    insert_rows(
        connection,
        "INSERT INTO waits (event, cid, watched) VALUES",
        (
            (r.row, cid, r.watch in (None, cid))
            for r in records
            if r.state < DELIVERED
            for cid in r.builds_on
        ),
    )
    insert_faults(connection, _faults(records))
    streams = [StreamRecord.of(init) for init in events.values() if init.kind is INIT]
    insert_rows(
        connection,
        "INSERT INTO streams (init_cid, controller, sep_key, sep_value) VALUES",
        ((blob(s.init), s.controller, s.sort_key, s.sort_value) for s in streams),
    )


def _insert_cars(
    connection: sqlite3.Connection, events: Mapping[int, Facts], forgotten: Collection[bytes]
) -> None:
    """Write the CARs of events, by their rows, without the blocks that they share with others."""
    stored = {
        row: FORGOTTEN if event.init in forgotten else trim(event.car)
        for row, event in events.items()
    }
    # Those who sign in their own name share no block with other events.
    sharing = [
        row for row, event in events.items() if event.signer is None and event.init not in forgotten
    ]
    if sharing:
        cut = cut_out_shared(connection, [events[row] for row in sharing])
        stored.update(zip(sharing, cut, strict=True))
    cars = zip(stored, map(blob, stored.values()), strict=True)
    insert_rows(connection, "INSERT INTO cars (id, car) VALUES", cars)


def update_records(
    connection: sqlite3.Connection, records: Sequence[Record], streams_at: Mapping[CID, int]
) -> None:
    """Write the new states of records that are in the log; otherwise as `insert_records`."""
    connection.executemany(
        "UPDATE events SET state = ?1, position = ?2, signer = iif(?2 IS NULL, signer, NULL), "
        "stream = ?3 WHERE id = ?4",
        (
            (r.state, r.position, streams_at[r.init] if r.state is DELIVERED else None, r.row)
            for r in records
        ),
    )
    insert_faults(connection, _faults(records))
    _delete_waits(connection, (r for r in records if r.state is DELIVERED))


def update_watches(connection: sqlite3.Connection, records: Iterable[Record]) -> None:
    """Write what records watch that are in the log."""
    connection.executemany(
        "UPDATE waits SET watched = NOT watched WHERE event = ?2 AND watched != (cid = ?1)",
        (
            (r.watch, r.row)
            for r in records
            if r.watch != r.logged_watch and r.logged_state is not None and r.state < DELIVERED
        ),
    )


def delete_records(connection: sqlite3.Connection, records: Sequence[Record]) -> None:
    """Remove records from the log."""
    for table in ("events", "cars", "faults"):
        connection.executemany(f"DELETE FROM {table} WHERE id = ?", ((r.row,) for r in records))
    _delete_waits(connection, records)


def remember_refused(connection: sqlite3.Connection, records: Sequence[Record], limit: int) -> None:
    """Remember the EventIds of refused records, and forget the oldest beyond `limit` of them."""
    connection.executemany(
        "INSERT OR IGNORE INTO refused (event_id, cid, inherent, reason) VALUES (?, ?, ?, ?)",
        (
            (r.event_id, r.cid, r.refusal.inherent, r.refusal.reason[:MAX_REASON])
            for r in records
            if r.refusal is not None
        ),
    )
    connection.execute(
        "DELETE FROM refused WHERE id <= (SELECT max(id) FROM refused) - ?", (limit,)
    )


def _faults(records: Sequence[Record]) -> Iterator[tuple[int, str]]:
    return ((r.row, r.fault[:MAX_REASON]) for r in records if r.fault is not None)


def _delete_waits(connection: sqlite3.Connection, records: Iterable[Record]) -> None:
    connection.executemany("DELETE FROM waits WHERE event = ?", ((r.row,) for r in records))


def _record(row: tuple[Any, ...], builds_on: tuple[CID, ...], size: int) -> Record:
    row_id, event_id, cid, init, kind, signer, number, position, proof, backed, fault = row
    try:
        state = _STATES[number]
        named = EventId(event_id)
        record = Record(
            row=row_id,
            event_id=named,
            height=named.height,
            cid=CID(cid),
            init=CID(init),
            kind=_KINDS[kind],
            signer=signer,
            state=state,
            builds_on=builds_on,
            position=position,
            fault=fault,
            proof=None if proof is None else CID(proof),
            logged_state=state,
            size=size,
            is_backed=bool(backed),
        )
        record.was_withheld = record.is_withheld
        return record
    except (ValueError, TypeError, KeyError) as error:
        raise DamagedRowError(f"row {row_id} of the table events: {error}") from error


def insert_faults(connection: sqlite3.Connection, faults: Iterable[tuple[int, str]]) -> None:
    """Note what is wrong with some events, by their ids; no-op for those that it was noted of."""
    if rows := list(faults):  # of nearly all batches, none
        connection.executemany("INSERT OR IGNORE INTO faults (id, reason) VALUES (?, ?)", rows)


def faults_of(
    connection: sqlite3.Connection, positions: Sequence[int], kinds: Sequence[str]
) -> Sequence[str | None]:
    """Return the faults of delivered events, None for the valid ones."""
    none = (None,) * len(positions)
    if connection.execute("SELECT 1 FROM faults LIMIT 1").fetchone() is None:  # nearly all logs
        return none
    signed = [at for at, kind in zip(positions, kinds, strict=True) if kind == EventKind.DATA.value]
    by_position = dict(select_in(connection, _OF_POSITIONS, signed))
    return [by_position.get(at) for at in positions] if by_position else none


def forgotten_streams(connection: sqlite3.Connection) -> frozenset[bytes]:
    """Return the init events of the streams that the operator had forgotten: nearly always none."""
    rows = connection.execute("SELECT init_cid FROM forgotten")
    return frozenset(init for (init,) in rows)


def note_own_streams(connection: sqlite3.Connection, inits: Collection[CID]) -> None:
    """Note that a client wrote to the streams that some init events start."""
    connection.executemany(
        "INSERT OR IGNORE INTO own_streams (init_cid) VALUES (?)", [(init,) for init in inits]
    )


class BatchLoader:
    """Answers what a batch has to know, within its transaction, by a handful of queries: not by
    thousands for 1,000 events.

    Attributes:
        known: what was loaded, and what the batch changed of it.
        releases: events and proofs with waiters that were not loaded, and after which row these
            are.
    """

    def __init__(
        self, connection: sqlite3.Connection, recent: Recent, evictable: Evictable
    ) -> None:
        self._connection = connection
        self._recent = recent
        self._evictable = evictable
        self._room = releases.MAX_WAITERS
        self.releases: dict[CID, int] = {}
        # Often there are none. Within the transaction, rows are added only at its end.
        self._any_waits, self._any_refused, any_forgotten = connection.execute(
            "SELECT EXISTS (SELECT 1 FROM waits), EXISTS (SELECT 1 FROM refused), "
            "EXISTS (SELECT 1 FROM forgotten)"
        ).fetchone()
        self.known = Known()
        if any_forgotten:
            self.known.forgotten = forgotten_streams(connection)

    def carry_out(self, inquiry: Inquiry[T]) -> T:
        """Run a computation to its end, loading whatever it wants; return its result."""
        return run_steps(inquiry, self._load)

    def load(self, rows: Sequence[int]) -> list[Record]:
        """Load the records in some rows."""
        return self._load_records("id IN (?) ORDER BY id", rows)

    @property
    def has_room(self) -> bool:
        """Whether more waiters may be loaded."""
        return self._room > 0

    def _load(self, want: Want) -> None:
        known = self.known
        if want.event_ids:
            self._load_refused_event_ids(want.event_ids)
        if want.events:
            self._load_events(want.events)
        if want.unwaited:
            self._load_unwaited(want.unwaited)
        if want.waiters and self._any_waits:
            moved = dict.fromkeys(want.waiters)
            self.load_waiters([pair for pair in moved if pair not in known.waited_for])
        if want.proofs:
            self._load_proofs(want.proofs)
        if want.moving:
            self.load([record.row for record in want.moving])
        for record in want.cars:
            known.cars[record] = _stored_car(self._connection, record.row)
        if want.evictable:
            found = self._evictable.find(self._connection, releases.MAX_WAITERS)
            records = self._load_records("id IN (?)", list(found))
            known.evictable = [(record, found[record.row]) for record in records]

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
        missing = self._recent.recall(missing, known)
        records = select_records_of(self._connection, missing)
        self._adopt(records)
        inits = list({record.cid for record in records if record.kind is EventKind.INIT})
        known.streams |= {stream.init: stream for stream in select_streams(self._connection, inits)}
        sql = "SELECT cid, reason FROM refused WHERE inherent AND cid IN (?)"
        for raw, reason in select_in(self._connection, sql, missing if self._any_refused else ()):
            known.refused[CID(raw)] = reason

    def _load_unwaited(self, cids: Sequence[CID]) -> None:
        """Find those of some events on which nothing in the log builds that is undelivered."""
        if self._any_waits:
            rows = select_in(self._connection, _UNWAITED, cids, between="), (")
            cids = [CID(cid) for (cid,) in rows]
        self.known.unwaited.update(cids)

    def load_waiters(self, moved: Sequence[Moved], after: int = 0) -> list[Record]:
        """Load what waits for some events or proofs, beyond a row, one after the other until there
        is no room; those that moved and have further waiters are in `releases` then."""
        self.known.waited_for.update(moved)
        loaded: dict[int, None] = {}
        for cid, stream in moved:
            rows = releases.select_waiters(self._connection, (cid, stream), after, self._room + 1)
            taken = rows[: self._room]
            if len(taken) < len(rows) and stream is not None:
                self.releases[cid] = taken[-1] if taken else after
            self._room -= len(taken)
            loaded.update(dict.fromkeys(taken))
        return self._load_records("id IN (?) ORDER BY id", sorted(loaded))

    def load_released(self, cid: CID, after: int) -> list[Record]:
        """Load the waiters of a release, as `load_waiters` does."""
        self._load_events([cid])
        return self.load_waiters([self.known.moved(cid)], after)

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
