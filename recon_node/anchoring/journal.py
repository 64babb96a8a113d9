"""The file `anchors.sqlite3`: which events are to be anchored, and how far that has come.

    requests      one row for each event that is to be anchored; of a CID that is not an event of
                  this node, one for each stream that others say it belongs to
    trees         the Merkle trees; at most one of them is open. Its leaves are the requests' CIDs
    transactions  what was signed for a tree, before it was sent: so no restart signs another

A request is *waiting*, then *in a tree*, then *anchored*. It is *covered* if a later event, or a
time event of somebody else, made it needless meanwhile; only waiting ones can be.

Everything is on the disk before anything follows from it: what was read of the feed in one
transaction with the feed position, a tree before its root is sent, a signed transaction before it
is sent, and the time of a tree before time events are made of it. What is made twice after a crash
is made of the same bytes. Synchronous; threads take turns.
"""

import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, Final

from recon_node.anchoring.machine import Attempt
from recon_node.ipld import CID

FILE_NAME: Final = "anchors.sqlite3"
_APPLICATION_ID: Final = 0x52454341  # "RECA"
_VERSION: Final = 1
_REQUESTS: Final = """
    CREATE TABLE requests (
        cid     BLOB NOT NULL,
        of      TEXT NOT NULL,     -- '': an event of this node; else the same as stream
        init    BLOB,              -- null: not an event of this node
        stream  TEXT,              -- what the other node called it
        asker   TEXT,              -- the network that asked first
        state   INTEGER NOT NULL,
        tree    INTEGER,
        made_at REAL NOT NULL,
        event   BLOB,              -- the time event
        car     BLOB,              -- the time event itself, if it is not in the event log
        PRIMARY KEY (cid, of)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX requests_by_state ON requests (state, made_at);
    CREATE INDEX requests_by_tree ON requests (tree) WHERE tree IS NOT NULL;
"""
_INDEX: Final = (
    "CREATE INDEX IF NOT EXISTS requests_by_asker ON requests (cid, asker) WHERE init IS NULL"
)
_TABLES: Final = """
    CREATE TABLE marks (one INTEGER PRIMARY KEY CHECK (one = 1), epoch TEXT, position INTEGER);
    CREATE TABLE trees (
        id         INTEGER PRIMARY KEY,
        root       BLOB NOT NULL,
        chain_id   TEXT NOT NULL,
        made_at    REAL NOT NULL,
        leaves     INTEGER NOT NULL,
        tx_hash    BLOB,           -- from here on null until the tree is anchored
        block_time INTEGER,
        cost       TEXT,           -- wei
        is_done    INTEGER NOT NULL DEFAULT 0
    ) STRICT;
    CREATE TABLE transactions (
        tx_hash TEXT PRIMARY KEY,
        root    BLOB NOT NULL,
        account TEXT NOT NULL,
        nonce   INTEGER NOT NULL,
        max_fee TEXT NOT NULL,
        tip     TEXT NOT NULL,
        raw     BLOB NOT NULL,
        made_at REAL NOT NULL
    ) STRICT;
    CREATE INDEX transactions_by_root ON transactions (root);
"""
_FROM_0: Final = f"""
    DROP INDEX requests_by_state;
    DROP INDEX requests_by_tree;
    ALTER TABLE requests RENAME TO before;
    {_REQUESTS}
    INSERT INTO requests (cid, of, init, stream, state, tree, made_at, event, car)
    SELECT cid, iif(init IS NULL, coalesce(stream, ''), ''), init, stream, state, tree, made_at,
        event, car
    FROM before;
    DROP TABLE before;
"""
"""Until then, there was one request for each CID."""


class JournalError(Exception):
    """The journal cannot be used. The message is user-facing."""


class RequestState(IntEnum):
    """How far a request has come."""

    WAITING = 0
    IN_TREE = 1
    ANCHORED = 2
    COVERED = 3


@dataclass(frozen=True, slots=True)
class AnchorRequest:
    """An event, or another CID, that is to be anchored."""

    cid: CID
    of: str
    """Which of the requests for this CID: that for the stream of another node; "" for an event of
    this node."""
    init: CID | None
    """Of its stream; None if it is not an event of this node."""
    stream: str | None
    """What another node said that it belongs to."""
    state: RequestState
    tree: int | None
    made_at: float
    """Unix seconds."""
    event: CID | None
    """The time event; known before the request is anchored if it came from elsewhere."""


@dataclass(frozen=True, slots=True)
class Tree:
    """A tree whose root is to be anchored, or was."""

    id: int
    root: CID
    chain_id: str
    made_at: float
    """Unix seconds."""
    leaves: int
    tx_hash: bytes | None
    """Of the final transaction; None until there is one."""
    block_time: int | None
    cost: int | None
    """Wei."""
    is_done: bool
    """Whether all time events are made."""


@dataclass(slots=True)
class Selection:
    """What follows from a part of the feed."""

    added: dict[CID, CID] = field(default_factory=dict)
    """Events to anchor, and the init events of their streams."""
    covered: list[CID] = field(default_factory=list)
    """Events that need no anchor any more, as later ones cover them."""
    timed: list[tuple[CID, CID]] = field(default_factory=list)
    """Events that are anchored, each with its time event."""


class Journal:
    """The open journal of a data directory, which the caller has locked.

    Raises:
        JournalError: it cannot be read.
    """

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / FILE_NAME
        self._turn = threading.RLock()
        with self._explained():
            options: Any = {"isolation_level": None, "check_same_thread": False}
            self._connection = sqlite3.connect(self._path, **options)
            self._path.chmod(0o600)
            self._prepare()

    def _prepare(self) -> None:
        (application_id,) = self._connection.execute("PRAGMA application_id").fetchone()
        tables = self._connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
        if application_id not in (0, _APPLICATION_ID) or (tables and not application_id):
            raise JournalError(f"{self._path} is a file of another program: move it away")
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        if version > _VERSION:
            raise JournalError(
                f"{self._path} is of a later version of recon-node: use that version"
            )
        if not tables or version < _VERSION:
            tables_made = _FROM_0 if tables else _TABLES + _REQUESTS
            self._connection.executescript(
                f"BEGIN; {tables_made} PRAGMA application_id = {_APPLICATION_ID}; "
                f"PRAGMA user_version = {_VERSION}; COMMIT"
            )
        self._connection.execute(_INDEX)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def position(self, epoch: str) -> int:
        """Return the feed position up to which a log was read; 0 for a log of another epoch."""
        positions = self._rows("SELECT position FROM marks WHERE epoch = ?", epoch)
        return int(positions[0][0]) if positions else 0

    def note_feed(self, epoch: str, position: int, selection: Selection, now: float) -> None:
        """Take over what the feed of a log has up to a position; `now` is in Unix seconds."""
        with self._transaction() as connection:
            connection.executemany(
                "INSERT INTO requests (cid, of, init, state, made_at) VALUES (?, '', ?, 0, ?) "
                "ON CONFLICT DO UPDATE SET init = excluded.init",
                [(cid, init, now) for cid, init in selection.added.items()],
            )
            connection.executemany(
                "UPDATE requests SET state = 3 WHERE cid = ? AND state = 0",
                [(cid,) for cid in selection.covered],
            )
            connection.executemany(
                "UPDATE requests SET event = ?2, state = iif(state = 0, 3, state) "
                "WHERE cid = ?1 AND state IN (0, 1)",
                selection.timed,
            )
            sql = "INSERT OR REPLACE INTO marks (one, epoch, position) VALUES (1, ?, ?)"
            connection.execute(sql, (epoch, position))

    def request(
        self, cid: CID, init: CID | None, stream: str, asker: str, now: float
    ) -> AnchorRequest:
        """Request an anchor, unless there is a request for it; return the request.

        `init` is that of its stream, if it is an event of this node; `stream` what the asker says,
        an address block; `now` is in Unix seconds.
        """
        of = stream if init is None else ""
        with self._transaction() as connection:
            connection.execute(
                "INSERT INTO requests (cid, of, init, stream, asker, state, made_at) "
                "VALUES (?, ?, ?, ?, ?, 0, ?) "
                "ON CONFLICT DO UPDATE SET state = iif(state = 3 AND event IS NULL, 0, state), "
                "stream = excluded.stream, init = excluded.init",
                (cid, of, init, stream, asker, now),
            )
        inserted = self._requests("WHERE (cid, of) = (?, ?)", cid, of)
        assert inserted, "it was inserted"
        return inserted[0]

    def find(self, cid: CID, asker: str = "", stream: str | None = None) -> AnchorRequest | None:
        """Return the request for a CID: that for a stream, if one is named; else that for the event
        of this node, or for a stream that the asker's address block named, or any."""
        where = "WHERE cid = ?1 AND of IN ('', ?2) ORDER BY of LIMIT 1"
        found = self._requests(where, cid, stream or "")
        if not found and stream is None:  # others have named any number of streams
            by_asker = "INDEXED BY requests_by_asker WHERE (cid, asker) = (?, ?) AND init IS NULL"
            found = self._requests(f"{by_asker} LIMIT 1", cid, asker)
            found = found or self._requests("WHERE cid = ? LIMIT 1", cid)
        return found[0] if found else None

    def requests(self, states: Sequence[RequestState], limit: int) -> list[AnchorRequest]:
        """Return some requests, the latest first."""
        marks = ", ".join(str(int(state)) for state in states)
        return self._requests(f"WHERE state IN ({marks}) ORDER BY made_at DESC LIMIT ?", limit)

    def oldest_waiting(self) -> float | None:
        """Return since when the oldest waiting request waits, in Unix seconds."""
        [(oldest,)] = self._rows("SELECT min(made_at) FROM requests WHERE state = 0")
        return None if oldest is None else float(oldest)

    def waiting(self, limit: int) -> list[CID]:
        """Return the CIDs that wait for a tree, the oldest first."""
        sql = "SELECT cid FROM requests WHERE state = 0 ORDER BY made_at LIMIT ?"
        return [CID(cid) for (cid,) in self._rows(sql, limit)]

    def are_waiting(self, count: int) -> bool:
        """Return whether at least this many requests wait."""
        sql = "SELECT 1 FROM requests WHERE state = 0 LIMIT 1 OFFSET ?"
        return bool(self._rows(sql, count - 1))

    def counts(self, states: Sequence[RequestState]) -> Mapping[RequestState, int]:
        """Return how many requests are in each of some states.

        Each request that is counted takes time, and those that are anchored get more and more.
        """
        marks = ", ".join(str(int(state)) for state in states)
        sql = f"SELECT state, count(*) FROM requests WHERE state IN ({marks}) GROUP BY state"
        return dict.fromkeys(states, 0) | {RequestState(s): n for s, n in self._rows(sql)}

    def open_tree(self, root: CID, leaves: Sequence[CID], chain_id: str, now: float) -> None:
        """Put waiting requests into a new tree, also those that were covered since it was built."""
        with self._transaction() as connection:
            tree = connection.execute(
                "INSERT INTO trees (root, chain_id, made_at, leaves) VALUES (?, ?, ?, ?)",
                (root, chain_id, now, len(leaves)),
            ).lastrowid
            connection.executemany(
                "UPDATE requests SET state = 1, tree = ? WHERE cid = ? AND state IN (0, 3)",
                [(tree, leaf) for leaf in leaves],
            )

    def unfinished_tree(self) -> Tree | None:
        """Return the tree that is not done; None if there is none."""
        return next(iter(self._trees("WHERE NOT is_done ORDER BY id LIMIT ?", 1)), None)

    def tree(self, number: int) -> Tree | None:
        """Return a tree."""
        return next(iter(self._trees("WHERE id = ?", number)), None)

    def latest_trees(self, limit: int) -> list[Tree]:
        """Return the latest trees, the latest first."""
        return self._trees("ORDER BY id DESC LIMIT ?", limit)

    def leaves(self, tree: int) -> list[CID]:
        """Return what is in a tree."""
        rows = self._rows("SELECT DISTINCT cid FROM requests WHERE tree = ?", tree)
        return [CID(cid) for (cid,) in rows]

    def in_tree(self, tree: int, after: AnchorRequest | None, limit: int) -> list[AnchorRequest]:
        """Return requests in a tree, in the order of their keys, those after another one."""
        cid, of = (b"", "") if after is None else (after.cid, after.of)
        where = "WHERE tree = ? AND (cid, of) > (?, ?) ORDER BY cid, of LIMIT ?"
        return self._requests(where, tree, cid, of, limit)

    def move_tree(self, tree: int, chain_id: str) -> None:
        """Have a tree for which nothing was signed anchored on another chain."""
        with self._transaction() as connection:
            connection.execute("UPDATE trees SET chain_id = ? WHERE id = ?", (chain_id, tree))

    def note_anchored(self, tree: int, tx_hash: bytes, block_time: int, cost: int) -> None:
        """Keep which transaction anchored a tree, and what it cost in wei."""
        with self._transaction() as connection:
            sql = "UPDATE trees SET tx_hash = ?, block_time = ?, cost = ? WHERE id = ?"
            connection.execute(sql, (tx_hash, block_time, str(cost), tree))

    def finish_requests(self, events: Iterable[tuple[AnchorRequest, CID, bytes | None]]) -> None:
        """Keep that some requests have these time events; with the CARs of those that are not in
        the event log."""
        with self._transaction() as connection:
            connection.executemany(
                "UPDATE requests SET state = 2, event = coalesce(event, ?3), car = ?4 "
                "WHERE (cid, of) = (?1, ?2)",
                [(request.cid, request.of, event, car) for request, event, car in events],
            )

    def car(self, request: AnchorRequest) -> bytes | None:
        """Return the time event of a CID that is not an event of this node."""
        sql = "SELECT car FROM requests WHERE (cid, of) = (?, ?)"
        cars = [car for (car,) in self._rows(sql, request.cid, request.of)]
        return cars[0] if cars else None

    def finish_tree(self, tree: int, most: int) -> None:
        """Keep that a tree is done, and the latest `most` of what was anchored for other nodes."""
        with self._transaction() as connection:
            connection.execute("UPDATE trees SET is_done = 1 WHERE id = ?", (tree,))
            connection.execute(
                "DELETE FROM requests WHERE (cid, of) IN (SELECT cid, of FROM requests "
                "WHERE state = 2 AND init IS NULL ORDER BY made_at DESC LIMIT -1 OFFSET ?)",
                (most,),
            )

    def attempts(self, root: CID) -> list[Attempt]:
        """Return the transactions that were signed for a root, the oldest first."""
        sql = "SELECT tx_hash, nonce, max_fee, tip, raw, made_at FROM transactions"
        rows = self._rows(f"{sql} WHERE root = ? ORDER BY rowid", root)
        return [Attempt(h, nonce, int(fee), int(tip), *rest) for h, nonce, fee, tip, *rest in rows]

    def accounts(self, root: CID) -> set[str]:
        """Return the addresses of the accounts that signed for a root."""
        rows = self._rows("SELECT DISTINCT account FROM transactions WHERE root = ?", root)
        return {account for (account,) in rows}

    def add_attempt(self, root: CID, account: str, attempt: Attempt) -> None:
        """Keep a transaction that is about to be sent."""
        fees = (str(attempt.max_fee), str(attempt.tip))
        row = (attempt.tx_hash, root, account, attempt.nonce, *fees, attempt.raw, attempt.signed_at)
        with self._transaction() as connection:
            connection.execute(
                f"INSERT INTO transactions VALUES ({', '.join('?' * len(row))})", row
            )

    def spent(self) -> tuple[int, int]:
        """Return how many trees were anchored, and what that cost in wei."""
        rows = self._rows("SELECT cost FROM trees WHERE cost IS NOT NULL")
        return len(rows), sum(int(cost) for (cost,) in rows)

    def _requests(self, where: str, *values: object) -> list[AnchorRequest]:
        sql = f"SELECT cid, of, init, stream, state, tree, made_at, event FROM requests {where}"
        return [
            AnchorRequest(CID(c), of, _cid(init), stream, RequestState(s), tree, at, _cid(event))
            for c, of, init, stream, s, tree, at, event in self._rows(sql, *values)
        ]

    def _trees(self, where: str, value: object) -> list[Tree]:
        columns = "id, root, chain_id, made_at, leaves, tx_hash, block_time, cost, is_done"
        sql = f"SELECT {columns} FROM trees {where}"
        return [
            Tree(i, CID(root), chain, at, leaves, tx, time, cost and int(cost), bool(done))
            for i, root, chain, at, leaves, tx, time, cost, done in self._rows(sql, value)
        ]

    def _rows(self, sql: str, *values: object) -> list[Any]:
        with self._explained():
            rows: list[Any] = self._connection.execute(sql, values).fetchall()
        return rows

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._explained():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            with self._turn:
                yield
        except (sqlite3.Error, OSError) as error:
            raise JournalError(f"the journal of anchors {self._path} failed: {error}") from error


def _cid(raw: Any) -> CID | None:
    return None if raw is None else CID(raw)
