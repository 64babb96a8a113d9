"""What the store's tests share: streams made from a seed, and an oracle of their delivery."""

import sqlite3
from collections import defaultdict
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random

from hypothesis import HealthCheck, settings
from nacl.signing import SigningKey
from support.time_events import time_event

from recon_node.ceramic import Event, EventId, InitHeader, Network, StreamId, StreamType
from recon_node.ceramic.auth.did import controller_of
from recon_node.ceramic.builder import data_event, init_event
from recon_node.ceramic.heightless_event_id import HeightlessEventId
from recon_node.ipld import CID, DAG_CBOR
from recon_node.store import FeedRow, Store, StoreSettings
from recon_node.store.db import log_schema, migrations
from recon_node.store.db.blocks import BlockReader
from recon_node.store.db.log import EventLog

NETWORK = Network.local(7)
KEYS = [SigningKey(bytes([n]) * 32) for n in range(1, 5)]
MODEL = StreamId(StreamType.MODEL, CID.of(DAG_CBOR, b"model"))
OTHER_MODEL = StreamId(StreamType.MODEL, CID.of(DAG_CBOR, b"other model"))
DATA = Path(__file__).parent.parent / "data"
SETTINGS = StoreSettings(verifiers=0)
QUICK = StoreSettings(verifiers=0, synchronous="normal")
SLOW = settings(
    max_examples=settings().max_examples // 8, suppress_health_check=[HealthCheck.too_slow]
)
"""An example is a whole life of a store: an eighth of the profile's examples."""


class World:
    """Random streams, and what an oracle knows of them: heights and ancestors, from the DAG alone.

    Forks are common, and an event may merge up to three others. With `time_events`, some events are
    anchored, and others build on the anchor.
    """

    def __init__(
        self, seed: int, *, streams: int = 3, events: int = 30, time_events: bool = False
    ) -> None:
        self.random = random = Random(seed)
        self.events: dict[CID, Event] = {}
        self.headers: dict[CID, InitHeader] = {}
        self.heights: dict[CID, int] = {}
        self.keys: dict[CID, SigningKey] = {}
        for n in range(streams):
            self.start(random.choice(KEYS), f"{seed}/{n}".encode())
        for n in range(events):
            init = random.choice(list(self.headers))
            mine = [cid for cid, event in self.events.items() if event.init == init]
            prevs = random.sample(mine[-6:], min(len(mine[-6:]), random.choice([1, 1, 1, 2, 3])))
            if time_events and random.random() < 0.2:
                self.add(time_event(init, prevs[0], tx_hash=random.randbytes(32)))
            else:
                self.extend(init, prevs, {"n": n})

    def start(self, key: SigningKey, unique: bytes, model: StreamId = MODEL) -> Event:
        event = init_event(key, model, {"title": "a document"}, unique=unique)
        self.headers[event.cid] = event.header
        self.keys[event.cid] = key
        return self.add(event)

    def extend(self, init: CID, prevs: Iterable[CID], data: object) -> Event:
        return self.add(data_event(self.keys[init], init, list(prevs), data))

    def add(self, event: Event) -> Event:
        self.events[event.cid] = event
        self.heights[event.cid] = max((self.heights[cid] + 1 for cid in event.prevs), default=0)
        return event

    def event_id(self, event: Event, *, height: int | None = None) -> EventId:
        height = self.heights[event.cid] if height is None else height
        return event.event_id(NETWORK, self.headers[event.init], height)

    def offer(self, event: Event, *, height: int | None = None) -> tuple[EventId, bytes]:
        """The event as a peer offers it."""
        return self.event_id(event, height=height), event.car

    def offers(self) -> list[tuple[EventId, bytes]]:
        return [self.offer(event) for event in self.events.values()]

    def deliverable(self, here: Iterable[CID]) -> set[CID]:
        """Which of the events that are here have all their ancestors here, and no time event."""
        present, whole = set(here), set()
        for cid, event in self.events.items():  # made in causal order
            here_and_whole = cid in present and all(prev in whole for prev in event.prevs)
            if here_and_whole and event.proof is None:
                whole.add(cid)
        return whole

    def waiting(self, here: Iterable[CID]) -> set[CID]:
        """Which of the events that are here lack an ancestor, time events being no obstacle."""
        present, whole = set(here), set()
        for cid, event in self.events.items():
            if cid in present and all(prev in whole for prev in event.prevs):
                whole.add(cid)
        return present - whole


def offer(event: Event, init: Event | None = None, height: int = 0) -> tuple[EventId, bytes]:
    """An event of a stream as a peer offers it."""
    return event.event_id(NETWORK, (init or event).header, height), event.car


OLD_STATE = "state + (position IS NULL AND state < 2)"
"""The state of a row of `events` as earlier versions wrote it; they had no UNCOVERED."""


def contents(directory: Path) -> dict[str, bytes]:
    """The files of a data directory, but for the lock and the note of the feed's head."""
    aside = ("lock", "feed.head")
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.name not in aside}


def edit(directory: Path, sql: str, *values: object) -> int:
    """Change a log by SQL, behind the back of the store; return how many rows were changed."""
    with closing(sqlite3.connect(directory / log_schema.FILE_NAME)) as connection:
        changed = connection.execute(sql, values).rowcount
        connection.commit()
    return changed


def pages_of(file: Path, name: str, kind: str) -> list[int]:
    """The numbers of the pages of a table or index that are of a kind: `leaf` or `internal`."""
    with closing(sqlite3.connect(file)) as connection:
        sql = "SELECT pageno FROM dbstat WHERE name = ? AND pagetype = ? ORDER BY pageno"
        return [page for (page,) in connection.execute(sql, (name, kind))]


async def feed_of(store: Store) -> list[FeedRow]:
    return await store.reader.feed(0, 1_000_000)


async def in_ring(store: Store) -> set[CID]:
    """The events in the model ring."""
    return {HeightlessEventId(key).event_cid for key in await store.load_ring_keys()}


def timeless(rows: list[FeedRow]) -> list[FeedRow]:
    """The same rows in a log of a version that did not note when it delivered them."""
    return [replace(row, delivered_at=None) for row in rows]


def check_feed(rows: list[FeedRow], events: dict[CID, Event]) -> None:
    """Positions are dense from 1, each event stands there once, after all it builds on."""
    assert [row.position for row in rows] == list(range(1, len(rows) + 1))
    seen: set[CID] = set()
    for row in rows:
        event = events[row.event_cid]
        assert row.event_cid not in seen
        assert seen.issuperset(event.prevs)
        assert row.event_id.event_cid == row.event_cid
        assert (row.stream_cid, row.kind, row.car) == (event.init, event.kind, event.car)
        seen.add(row.event_cid)


def check_tables(store: Store) -> None:
    """The log's tables and counts agree with each other: nothing is left over, nothing missing."""
    check_log_tables(store._writer.log)


def check_log_tables(log: EventLog) -> None:
    connection, counted = log.connection, log._read_marks()
    assert (log.marks.head, log.marks.waiting) == (counted.head, counted.waiting)
    assert {s: a for s, a in log.marks.shares.items() if a.events} == counted.shares
    events = {row for (row,) in connection.execute("SELECT id FROM events")}
    waiting = {
        row
        for (row,) in connection.execute(
            "SELECT id FROM events WHERE position IS NULL AND kind != 'init'"
        )
    }
    cars = {row for (row,) in connection.execute("SELECT id FROM cars")}
    waits = {row for (row,) in connection.execute("SELECT event FROM waits")}
    faults = {row for (row,) in connection.execute("SELECT id FROM faults")}
    assert cars == events >= faults
    assert waits == waiting
    if not log.marks.has_releases:
        check_watches(connection)


def check_watches(connection: sqlite3.Connection) -> None:
    """Each event that waits for others watches one of those for which it has to wait."""
    lacking: defaultdict[int, set[bytes]] = defaultdict(set)
    watches: defaultdict[int, set[bytes]] = defaultdict(set)
    for row, cid, watched, is_lacking in connection.execute(
        "SELECT event, waits.cid, watched, iif(state < 0, waits.cid = init_cid, "
        "ifnull((SELECT max(state) FROM events AS base WHERE base.cid = waits.cid), 0) "
        "<= max(state, 0)) FROM waits JOIN events ON events.id = event"
    ):
        watches[row] |= {cid} if watched else set()
        lacking[row] |= {cid} if is_lacking else set()
    for row, cids in lacking.items():
        assert watches[row]
        assert not cids or watches[row] & cids, row


def controller(n: int) -> str:
    return controller_of(KEYS[n])


TABLES = {
    "meta": "name, value",
    "events": "id, event_id, cid, init_cid, kind, signer, position, state",
    "waits": "event, cid",
    "streams": "init_cid, controller, sep_key, sep_value",
    "refused": "id, event_id, cid, inherent, reason",
    "interests": "id, sort_key, sort_value, controller, stream_id",
}


def make_version_1(source: Path, directory: Path) -> None:
    """A log as the first version wrote it, with the rows of another log."""
    directory.mkdir()
    with (
        closing(sqlite3.connect(source / log_schema.FILE_NAME)) as old,
        closing(sqlite3.connect(directory / log_schema.FILE_NAME)) as new,
    ):
        first = migrations.MIGRATIONS[0]
        new.executescript(first)
        new.execute(f"PRAGMA application_id = {log_schema.APPLICATION_ID}")
        new.execute("PRAGMA user_version = 1")
        for table, columns in TABLES.items():
            old_columns = columns.replace("state", OLD_STATE)
            rows = old.execute(f"SELECT {old_columns} FROM {table}").fetchall()
            marks = ", ".join("?" * (columns.count(",") + 1))
            new.executemany(f"INSERT INTO {table} ({columns}) VALUES ({marks})", rows)
        cars = old.execute("SELECT id, car FROM cars").fetchall()
        whole = BlockReader(old).restore([car for _, car in cars])
        rows = [(row, car) for (row, _), car in zip(cars, whole, strict=True)]
        new.executemany("INSERT INTO cars (id, car) VALUES (?, ?)", rows)
        new.commit()
        new.execute("PRAGMA journal_mode = WAL")
