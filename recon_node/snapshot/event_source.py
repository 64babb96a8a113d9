"""The events that a snapshot is of: a running node's store, or the log on disk.

SQLite lets any number of processes read a log while the node that owns it writes (its write-ahead
log), so `snapshot create` needs no lock, and works beside a running node. `LogSource` reads all
keys once, in one transaction: they are those of one moment.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, Self

import trio

from recon_node.ceramic import EventId, Network
from recon_node.recon import KeyRange, KeyStore, KeyView, Sha256a
from recon_node.snapshot.root import Row
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
"""Keys read at once."""


class EventSource(ABC):
    """Events to make a snapshot of. Every method may block.

    Attributes:
        ranges: what the snapshot covers, ascending and apart.
    """

    def __init__(
        self,
        network: Network,
        interests: Iterable[Interest],
        ranges: Iterable[KeyRange],
        keys: KeyView,
        call: Callable[..., Any],
    ) -> None:
        self.network = network
        self.interests = [format_interest(interest) for interest in interests]
        self.ranges = list(ranges)
        self._keys = keys
        self._call = call
        """Calls a function in the thread that the keys belong to."""
        self._matches = matcher(keys, self.ranges)

    def count(self) -> int:
        """Return about how many keys there are in the ranges."""
        count: int = self._call(lambda: sum(map(self._keys.count, self.ranges)))
        return count

    def matches(self, bounds: KeyRange, expected: Sha256a) -> bool:
        """Return whether the keys between two bounds, in the ranges, have that hash."""
        is_equal: bool = self._call(self._matches, bounds, expected)
        return is_equal

    def keys(self, bounds: KeyRange) -> Iterator[bytes]:
        """Yield the keys between two bounds, in the ranges, ascending."""
        for range_ in self.ranges:
            part = range_.intersect(bounds)
            while part is not None:
                page = self._call(lambda within: list(self._keys.keys(within, _PAGE)), part)
                yield from page
                part = KeyRange(page[-1], part.upper) if len(page) == _PAGE else None

    @abstractmethod
    def cars(self, event_ids: Sequence[EventId]) -> list[bytes | None]:
        """Return the CARs of events; None for those that are not here, or damaged."""

    @abstractmethod
    def feed_end(self) -> tuple[str, int]:
        """Return the epoch of the log and a position, up to which `keys` has all of its feed."""

    @abstractmethod
    def feed_rows(self, after: int, upto: int) -> list[Row]:
        """Return the positions (after, upto] of the feed."""


class LogSource(EventSource):
    """The log in a data directory, of a running node or not. A context manager.

    Raises:
        StoreError: there is no log, or it cannot be read.
    """

    def __init__(self, data_dir: Path, interests: Sequence[Interest] = ()) -> None:
        self._path = find_log(data_dir)
        network = network_of(self._path)
        ranges = key_ranges(network, interests)
        keys = KeyStore()
        with explained_errors(self._path):
            self._reader = Reader(data_dir, network)
            sql = "SELECT event_id FROM events WHERE event_id > ? AND event_id < ? ORDER BY 1"
            kept: list[bytes] = []
            connection = self._reader.connection
            connection.execute("BEGIN")
            with closing(connection.cursor()) as cursor:
                withheld = set(select_withheld(connection, orphans=False))
                for range_ in ranges:
                    rows = cursor.execute(sql, tuple(range_))
                    kept += [key for (key,) in rows if key not in withheld]
                self._epoch = log_schema.read_meta(connection, "epoch") or ""
                self._reader.head = read_head(self._reader)
            connection.execute("COMMIT")
            keys.load(kept)
        super().__init__(network, interests, ranges, keys, lambda work, *given: work(*given))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._reader.connection.close()

    def cars(self, event_ids: Sequence[EventId]) -> list[bytes | None]:  # noqa: D102 - see EventSource
        with explained_errors(self._path):
            return read_cars_for_peers(self._reader, event_ids)

    def feed_end(self) -> tuple[str, int]:  # noqa: D102
        return self._epoch, self._reader.head

    def feed_rows(self, after: int, upto: int) -> list[Row]:  # noqa: D102
        with explained_errors(self._path):
            return read_positions(self._reader, after, upto)


class StoreSource(EventSource):
    """The store of a running node, with its interests; used from a thread that trio started."""

    def __init__(self, store: Store) -> None:
        self._store = store
        wanted, call = store.wanted, trio.from_thread.run_sync
        super().__init__(store.network, wanted.all, wanted.ranges, store.keys, call)

    def cars(self, event_ids: Sequence[EventId]) -> list[bytes | None]:  # noqa: D102 - see EventSource
        return trio.from_thread.run(self._store.reader.cars_for_peers, event_ids)

    def feed_end(self) -> tuple[str, int]:  # noqa: D102
        return trio.from_thread.run_sync(lambda: (self._store.epoch, self._store.head))

    def feed_rows(self, after: int, upto: int) -> list[Row]:  # noqa: D102
        return trio.from_thread.run(self._store.reader.positions, after, upto)
