"""Where the events of a snapshot come from: a log on disk, or a running node's store.

SQLite lets any number of processes read a log while the node that owns it writes (its write-ahead
log), so `snapshot create` needs no lock, and works beside a running node. It reads all keys once,
in one transaction: they are those of one moment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Final, Self

import trio

from recon_node.ceramic import EventId
from recon_node.recon import KeyRange, KeyStore, Sha256a
from recon_node.snapshot.feed_pages import Row
from recon_node.snapshot.tree.update import matcher
from recon_node.store import Interest, Store, format_interest
from recon_node.store.db import log_schema
from recon_node.store.db.rows import select_withheld
from recon_node.store.db.sql import explained_errors
from recon_node.store.kept_interests import key_ranges
from recon_node.store.maintenance import find_log, network_of
from recon_node.store.reading import Reader
from recon_node.store.reading.feed_rows import read_head, read_positions
from recon_node.store.reading.single_events import read_cars_for_peers

_PAGE: Final = 1000


class LogSource:
    """The log in a data directory, of a running node or not. A context manager.

    Raises:
        StoreError: there is no log, or it cannot be read.
    """

    def __init__(self, data_dir: Path, interests: Sequence[Interest] = ()) -> None:
        self._path = find_log(data_dir)
        self.network = network_of(self._path)
        self.interests: Sequence[str] = [format_interest(interest) for interest in interests]
        self.ranges: Sequence[KeyRange] = key_ranges(self.network, interests)
        with explained_errors(self._path):
            self._reader = Reader(data_dir, self.network)
            sql = "SELECT event_id FROM events WHERE event_id > ? AND event_id < ? ORDER BY 1"
            self._keys = KeyStore()
            kept: list[bytes] = []
            connection = self._reader.connection
            connection.execute("BEGIN")
            with closing(connection.cursor()) as cursor:
                withheld = set(select_withheld(connection, orphans=False))
                for range_ in self.ranges:
                    keys = (key for (key,) in cursor.execute(sql, tuple(range_)))
                    kept += [key for key in keys if key not in withheld]
                self._epoch = log_schema.read_meta(connection, "epoch") or ""
                self._reader.head = read_head(self._reader)
            connection.execute("COMMIT")
            self._keys.load(kept)
        self._matches = matcher(self._keys, self.ranges)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._reader.connection.close()

    def count(self) -> int:  # noqa: D102 - see Source
        return len(self._keys)

    def matches(self, bounds: KeyRange, expected: Sha256a) -> bool:  # noqa: D102
        return self._matches(bounds, expected)

    def keys(self, bounds: KeyRange) -> Iterator[bytes]:  # noqa: D102
        return self._keys.keys(bounds)

    def cars(self, event_ids: Sequence[EventId]) -> list[bytes | None]:  # noqa: D102
        with explained_errors(self._path):
            return read_cars_for_peers(self._reader, event_ids)

    def feed_end(self) -> tuple[str, int]:  # noqa: D102
        return self._epoch, self._reader.head

    def feed_rows(self, after: int, upto: int) -> list[Row]:  # noqa: D102
        with explained_errors(self._path):
            return read_positions(self._reader, after, upto)


class StoreSource:
    """The store of a running node, with its interests; used from a thread that trio started."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.network = store.network
        self.interests: Sequence[str] = [format_interest(interest) for interest in store.wanted.all]
        self.ranges: Sequence[KeyRange] = list(store.wanted.ranges)
        self._matches = matcher(store.keys, self.ranges)

    def count(self) -> int:  # noqa: D102 - see Source
        return trio.from_thread.run_sync(
            lambda: sum(self._store.keys.count(range_) for range_ in self.ranges)
        )

    def matches(self, bounds: KeyRange, expected: Sha256a) -> bool:  # noqa: D102
        return trio.from_thread.run_sync(self._matches, bounds, expected)

    def keys(self, bounds: KeyRange) -> Iterator[bytes]:  # noqa: D102
        for range_ in self.ranges:
            part = range_.intersect(bounds)
            while part is not None:
                page = trio.from_thread.run_sync(self._page, part)
                yield from page
                part = KeyRange(page[-1], part.upper) if len(page) == _PAGE else None

    def cars(self, event_ids: Sequence[EventId]) -> list[bytes | None]:  # noqa: D102
        return trio.from_thread.run(self._store.reader.cars_for_peers, event_ids)

    def feed_end(self) -> tuple[str, int]:  # noqa: D102
        return trio.from_thread.run_sync(lambda: (self._store.epoch, self._store.head))

    def feed_rows(self, after: int, upto: int) -> list[Row]:  # noqa: D102
        return trio.from_thread.run(self._store.reader.positions, after, upto)

    def _page(self, part: KeyRange) -> list[bytes]:
        return list(islice(self._store.keys.keys(part), _PAGE))
