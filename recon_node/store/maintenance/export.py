"""Write the events of a log to one CAR (see `archive`).

The log is read twice, because the root comes first and names the pages by their CIDs. Takes the
memory of a page and a number per shared block.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

from recon_node.ceramic import EventId
from recon_node.ipld import CID
from recon_node.recon import KeyRange, covers
from recon_node.store.damage import FORGOTTEN, Damage, DamagedEventError, car_fault
from recon_node.store.db.blocks import BlockReader, full_size, references, section, sections
from recon_node.store.db.sql import read_in_pieces
from recon_node.store.errors import StoreError
from recon_node.store.interests import key_ranges
from recon_node.store.maintenance.archive import (
    PAGE_BYTES,
    PAGE_EVENTS,
    Manifest,
    Page,
    cid_of,
    header,
)
from recon_node.store.maintenance.closed_log import Progress, no_progress, opened_log
from recon_node.store.values import Interest

_PIECE_ROWS: Final = 500


@dataclass(slots=True)
class _PageWithBlocks:
    """A page and the blocks that are written with it."""

    events: list[tuple[EventId, list[CID]]] = field(default_factory=list)
    shared: dict[CID, None] = field(default_factory=dict)
    blocks: dict[CID, bytes] = field(default_factory=dict)
    size: int = 0

    def encode(self) -> bytes:
        return Page(self.events, list(self.shared)).encode()


def export_events(
    data_dir: Path,
    file: BinaryIO,
    interests: Sequence[Interest] = (),
    progress: Progress = no_progress,
) -> int:
    """Write the events of a log to a file: those of some interests, or all if none are given.

    Returns:
        The number of events.

    Raises:
        StoreError: there is no log, it is damaged, or it holds no such events.
        OSError: the file cannot be written.
    """
    with opened_log(data_dir) as log:
        connection, ranges = log.connection, key_ranges(log.network, interests)
        connection.execute("BEGIN")  # one view of the log for both readings
        (total,) = connection.execute("SELECT count(*) FROM events").fetchone()
        pages: list[CID] = []
        events = 0
        for page, done in _pages(connection, ranges):
            pages.append(cid_of(page.encode()))
            events += len(page.events)
            progress("listing events", done, total)
        if not events:
            which = f"none of the {total} events in {data_dir} matches the interest"
            empty = f"the event log in {data_dir} holds no events"
            raise StoreError(f"nothing to export: {which if total else empty}")
        manifest = Manifest(log.network, events, tuple(pages)).encode()
        root = cid_of(manifest)
        file.write(header(root) + section(root, manifest))
        for page, done in _pages(connection, ranges):
            block = page.encode()
            file.write(section(cid_of(block), block))
            file.writelines(section(cid, block) for cid, block in page.blocks.items())
            progress("writing events", done, total)
    return events


def _pages(
    connection: sqlite3.Connection, ranges: Sequence[KeyRange]
) -> Iterator[tuple[_PageWithBlocks, int]]:
    """Yield the pages, each with the number of the log's events that were read."""
    reader = BlockReader(connection, remember=True)
    seen: set[int] = set()  # rows of shared blocks that this page or an earlier one has
    page, done = _PageWithBlocks(), 0
    for done, (event_id, stored) in enumerate(_events(connection), 1):
        if not covers(ranges, event_id):
            continue
        if len(page.events) >= PAGE_EVENTS or (
            page.events and page.size + full_size(stored) > PAGE_BYTES
        ):
            yield page, done
            page = _PageWithBlocks()
        _fill(page, event_id, stored, reader, seen)
    if page.events:
        yield page, done


def _fill(
    page: _PageWithBlocks, event_id: EventId, stored: bytes, reader: BlockReader, seen: set[int]
) -> None:
    [car] = reader.restore([stored])
    fault = car_fault(car, event_id.event_cid)
    if fault is not None:
        raise DamagedEventError(Damage(fault, None, event_id.event_cid))
    rows = dict(zip(reader.cids(stored), references(stored), strict=True))
    cids = []
    for cid, _, block, end in sections(car):
        cids.append(cid)
        row = rows.get(cid)
        if row is None:
            page.blocks.setdefault(cid, car[block:end])
        elif row not in seen:
            seen.add(row)
            page.shared[cid] = None
            page.blocks[cid] = car[block:end]
    page.events.append((event_id, cids))
    page.size += len(car)


def _events(connection: sqlite3.Connection) -> Iterator[tuple[EventId, bytes]]:
    """Yield all EventIds and stored CARs: the feed, then what is not delivered yet."""
    select = (
        "SELECT {0}, event_id, car FROM events CROSS JOIN cars USING (id) "
        f"WHERE {{0}} > ? AND car != x'{FORGOTTEN.hex()}'"
    )
    for column, more in (("position", ""), ("id", " AND position IS NULL")):
        sql = f"{select.format(column)}{more} ORDER BY {column} LIMIT ?"
        for rows in read_in_pieces(connection, sql, _PIECE_ROWS):
            for _, event_id, car in rows:
                yield EventId(event_id), car
