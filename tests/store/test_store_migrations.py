"""Logs of earlier versions become logs of this one, and say what they said.

The migration to smaller rows of events goes in pieces, beside readers, broken off and continued;
that it may be killed at any statement is in test_store_kill_upkeep.py.
"""

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from store_helpers import NETWORK, World, check_feed, edit, feed_of, make_version_1, timeless

from recon_node.store import DamagedLogError, StoreSettings, open_store
from recon_node.store.db import event_table, log_schema
from recon_node.store.db.log import EventLog
from recon_node.store.db.migrations import MIGRATIONS, migrate
from recon_node.store.maintenance import check_log

VERSION = MIGRATIONS.index(event_table.slim_events)
STREAM = 10
HEAD = bytes.fromhex("ce010500")
NAMES = "id, event_id, cid, init_cid, kind, state, position"


def of_the_version_before(directory: Path, events: int, seed: int = 1) -> None:
    """A log of made-up events as written before: two of three streams are delivered."""
    rng = random.Random(seed)
    directory.mkdir()
    with closing(sqlite3.connect(directory / log_schema.FILE_NAME, isolation_level=None)) as log:
        log.execute(f"PRAGMA application_id = {log_schema.APPLICATION_ID}")
        migrate(log, MIGRATIONS[:VERSION])
        log.execute("PRAGMA journal_mode = WAL")
        log.execute("PRAGMA synchronous = OFF")
        log.execute("BEGIN")
        log.execute("INSERT INTO meta VALUES ('network_id', ?)", (str(NETWORK.id),))
        log.execute("INSERT INTO meta VALUES ('epoch', '0')")
        log.executemany(
            "INSERT INTO events (id, event_id, cid, init_cid, kind, state, signer, position) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            rows(rng, events),
        )
        log.execute("INSERT INTO cars SELECT id, zeroblob(100) FROM events")
        log.execute("COMMIT")


def rows(rng: random.Random, events: int) -> Iterator[tuple[object, ...]]:
    init, position = b"", 0
    for row in range(1, events + 1):
        cid = b"\x01\x85\x01\x12\x20" + rng.randbytes(32)
        kind = "data"
        if row % STREAM == 1:
            init, kind = cid, "init"
        delivered = (row - 1) // STREAM % 3 > 0
        position += delivered
        event_id = HEAD + rng.randbytes(20) + bytes([row % STREAM]) + cid
        state = 3 if delivered else 0
        yield row, event_id, cid, init, kind, state, "did:key:z6Mk", position if delivered else None


def contents(directory: Path) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(directory / log_schema.FILE_NAME)) as log:
        return log.execute(f"SELECT {NAMES} FROM events ORDER BY id").fetchall()


def check(directory: Path, expected: list[tuple[object, ...]]) -> None:
    """The log is of this version, sound, and says what it said."""
    assert contents(directory) == expected
    with closing(sqlite3.connect(directory / log_schema.FILE_NAME)) as log:
        assert log.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)
        assert log.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        names = {name for (name,) in log.execute("SELECT name FROM sqlite_schema")}
        assert not {name for name in names if "slim" in name}
        wrong = log.execute(
            "SELECT count(*) FROM events LEFT JOIN events AS init ON init.id = events.stream "
            "WHERE (events.position NOTNULL AND init.cid IS NOT events.init_cid) "
            "OR (events.position IS NULL) IS NOT (events.stream IS NULL) "
            "OR (events.position IS NULL) IS NOT (events.signer NOTNULL)"
        )
        assert wrong.fetchone() == (0,)


def test_what_an_earlier_version_changes_in_between_is_not_lost(tmp_path, monkeypatch):
    of_the_version_before(tmp_path / "log", 100)
    before = contents(tmp_path / "log")
    monkeypatch.setattr(event_table, "_COPIED_AT_ONCE", 30)
    interrupt_after(monkeypatch, 3)
    with pytest.raises(Interrupted):
        EventLog(tmp_path / "log", NETWORK, StoreSettings())
    with closing(log_schema.open_reader(tmp_path / "log")) as log:
        assert log.execute(f"SELECT {NAMES} FROM events ORDER BY id").fetchall() == before
    with closing(sqlite3.connect(tmp_path / "log" / log_schema.FILE_NAME)) as log:
        assert log.execute("SELECT count(*) FROM slim").fetchone() == (90,)
        (head,) = log.execute("SELECT max(position) FROM events").fetchone()
        for row in range(1, 11):  # a stream that waited is delivered
            log.execute("UPDATE events SET state = 3, position = ? WHERE id = ?", (head + row, row))
        log.execute("DELETE FROM events WHERE id = 35")  # one that waited is refused
        for row in rows(random.Random(2), 120):
            if row[0] > 100:
                log.execute(
                    "INSERT INTO events VALUES (?, ?, ?, ?, ?, 0, ?, NULL)", (*row[:5], row[6])
                )
        log.commit()
    expected = contents(tmp_path / "log")
    monkeypatch.undo()
    EventLog(tmp_path / "log", NETWORK, StoreSettings()).close()
    check(tmp_path / "log", expected)


class Interrupted(BaseException):
    """As if the process had been killed."""


def interrupt_after(monkeypatch: pytest.MonkeyPatch, commits: int) -> None:
    commit, left = event_table._commit, iter(range(commits - 1))

    def interrupted(connection: sqlite3.Connection) -> None:
        commit(connection)
        if next(left, None) is None:
            raise Interrupted

    monkeypatch.setattr(event_table, "_commit", interrupted)


def test_a_damaged_row_is_reported_and_the_table_stays(tmp_path: Path) -> None:
    of_the_version_before(tmp_path / "log", 50)
    change = "PRAGMA writable_schema = ON; UPDATE sqlite_schema SET sql = replace(sql, {}, {})"
    strict, loose = "'kind     TEXT NOT NULL'", "'kind     TEXT'"
    for statement in (
        *change.format(strict, loose).split("; "),
        "UPDATE events SET kind = NULL WHERE id = 7",
        *change.format(loose, strict).split("; "),
    ):
        with closing(sqlite3.connect(tmp_path / "log" / log_schema.FILE_NAME)) as log:
            log.execute("PRAGMA writable_schema = ON")
            log.execute(statement)
            log.commit()
    expected = contents(tmp_path / "log")
    with pytest.raises(DamagedLogError, match="store check --repair"):
        EventLog(tmp_path / "log", NETWORK, StoreSettings())
    assert contents(tmp_path / "log") == expected


@pytest.mark.parametrize("damaged", [False, True])
async def test_a_log_of_version_1_is_brought_up_to_date(tmp_path: Path, damaged: bool) -> None:
    """Also one in which a CAR is damaged: that of a time event, whose proof is not known then."""
    world = World(3, streams=6, events=100, time_events=True)
    anchors = [event for event in world.events.values() if event.proof is not None]
    missing = next(iter(anchors[0].prevs))  # one of them waits for its history
    offers = [offer for offer in world.offers() if offer[0].event_cid != missing]
    async with open_store(tmp_path / "new", NETWORK) as store:
        await store.admit_remote(offers)
        proofs = {proof.cid for proof in await store.reader.pending_proofs(1_000)}
        before = (timeless(await feed_of(store)), [*store.keys], store.epoch, store.waiting)
        pending = store.pending
    assert 0 < len(proofs) < len(anchors)
    make_version_1(tmp_path / "new", tmp_path / "old")
    spoilt = anchors[-1]
    if damaged:
        sql = "UPDATE cars SET car = x'0102' WHERE id = (SELECT id FROM events WHERE cid = ?)"
        assert edit(tmp_path / "old", sql, spoilt.cid) == 1
        proofs.discard(spoilt.payload["proof"])
    async with open_store(tmp_path / "old", NETWORK) as store:
        assert before == (await feed_of(store), [*store.keys], store.epoch, store.waiting)
        assert store.pending == pending
        assert {proof.cid for proof in await store.reader.pending_proofs(1_000)} == proofs
        connection = store._writer.log.connection
        sql = "SELECT count(*) FROM cars WHERE substr(car, 1, 1) = x'00'"
        assert connection.execute(sql).fetchone() == (len(anchors) - damaged,), "they are packed"
        await store.admit_remote([world.offer(world.events[missing])])
        while left := await store.reader.pending_proofs(1_000):
            await store.settle_proofs([(proof.cid, 1_700_000_000) for proof in left])
        rows = await feed_of(store)
        check_feed(rows, world.events)
        assert damaged or len(rows) == len(world.events)
        assert (spoilt.cid in {row.event_cid for row in rows}) is not damaged
    faults = [fault.message for fault in check_log(tmp_path / "old").faults]
    assert len(faults) == 2 * damaged
    assert all(map(str.startswith, faults, ("row ", "the proof "))), "and that of its proof"
