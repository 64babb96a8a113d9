"""What `recon-node store export` writes: one CARv1 that any CAR tool can read.

    header      its one root is the manifest
    manifest    {type: "recon-node/events", version: 1, network, events, pages: [CID, ...]}
    page        {events: [[EventId, [CID, ...]], ...], shared: [CID, ...]}
    blocks of the page's events; then the next page and its blocks, and so on

The events come in the order of the feed, followed by those that are not delivered yet. A page lists
an event's EventId and the CIDs of its blocks in the order of the event's own CAR, whose root is the
event. So every event's CAR can be restored byte for byte, and the root links to everything in the
file, as tools that walk DAGs expect. The links are DAG-CBOR links; EventIds are bytes.

Each block is written once, with the first page that has it. `shared` names the blocks of a page
that later pages may need, for a reader to keep. So reading takes the memory of a page (at most
2,000 events, or 8 MiB and one event) and that of the shared blocks, which may be on the disk.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeGuard

from recon_node.ceramic import EventId, EventIdError, Network, NetworkError
from recon_node.ipld import CID, DAG_CBOR, DagCborError, car, dag_cbor
from recon_node.recon import KeyRange, covers
from recon_node.store.damage import FORGOTTEN, Damage, DamagedEventError, car_fault
from recon_node.store.db.blocks import BlockReader, full_size, references, section, sections
from recon_node.store.db.sql import CARS_AT_ONCE, read_in_pieces, select_in
from recon_node.store.errors import StoreError
from recon_node.store.kept_interests import key_ranges
from recon_node.store.maintenance.closed_log import Progress, no_progress, opened_log
from recon_node.store.values import Interest

TYPE: Final = "recon-node/events"
_TYPE: Final = dag_cbor.encode("type") + dag_cbor.encode(TYPE)
"""With what the map of a manifest begins: DAG-CBOR has the shortest name first."""
VERSION: Final = 1
PAGE_EVENTS: Final = 2000
PAGE_BYTES: Final = 8 * 1024 * 1024

OTHER_CAR: Final = (
    "the file cannot be imported: it does not start with a manifest. This CAR was not written by "
    "`recon-node store export`; to add a CAR of one event to a running node, use "
    "`recon-node events add`"
)


_SHARED: Final = "SELECT cid, id FROM blocks WHERE id IN (?)"


class ArchiveFormatError(ValueError):
    """A file or block does not have this format."""


class ArchiveError(StoreError):
    """The file cannot be imported any further; the events before that are in the log."""


class NoExportError(ArchiveError):
    """The file is not an export; nothing was imported."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The root of the file: which pages follow."""

    network: Network
    events: int
    pages: tuple[CID, ...]

    def encode(self) -> bytes:
        """Return the manifest as a DAG-CBOR block."""
        fields = {
            "type": TYPE,
            "version": VERSION,
            "network": self.network.id,
            "events": self.events,
            "pages": list(self.pages),
        }
        return dag_cbor.encode(fields)

    @classmethod
    def decode(cls, block: bytes) -> Manifest:
        """Parse a block.

        Raises:
            NoExportError: it is not a manifest.
            ArchiveFormatError: it is not a manifest of this version.
        """
        if not block[1:].startswith(_TYPE):  # else it is anybody's, and may unfold to gigabytes
            raise NoExportError(OTHER_CAR)
        fields = _map(block, "the root")
        if fields.get("version") != VERSION:
            raise ArchiveFormatError(
                f"it has format version {fields.get('version')}; this program reads {VERSION}"
            )
        pages, events = fields.get("pages"), fields.get("events")
        if not _all_cids(pages) or type(events) is not int:
            raise ArchiveFormatError("its manifest is invalid")
        try:
            return cls(Network.from_id(fields["network"]), events, tuple(pages))
        except (KeyError, TypeError, NetworkError) as error:
            raise ArchiveFormatError(f"its manifest has no valid network: {error}") from None


@dataclass(frozen=True, slots=True)
class ArchivePage:
    """Some events, and those of their blocks that later pages may need."""

    events: Sequence[tuple[EventId, Sequence[CID]]]
    shared: Sequence[CID]

    def encode(self) -> bytes:
        """Return the page as a DAG-CBOR block."""
        events = [[bytes(event_id), list(cids)] for event_id, cids in self.events]
        return dag_cbor.encode({"events": events, "shared": list(self.shared)})

    @classmethod
    def decode(cls, block: bytes) -> ArchivePage:
        """Parse a block.

        Raises:
            ArchiveFormatError: it is not a page.
        """
        fields = _map(block, "a page")
        events, shared = fields.get("events"), fields.get("shared")
        if not isinstance(events, list) or not _all_cids(shared):
            raise ArchiveFormatError("a page is invalid")
        pairs = []
        for entry in events:
            if not (isinstance(entry, list) and len(entry) == 2 and _all_cids(entry[1])):
                raise ArchiveFormatError("a page has an invalid list of events")
            try:
                pairs.append((EventId(entry[0]), entry[1]))
            except (EventIdError, TypeError) as error:
                raise ArchiveFormatError(f"a page has an invalid EventId: {error}") from None
        return cls(pairs, shared)


def cid_of(block: bytes) -> CID:
    """Return the CID of a manifest or a page."""
    return CID.of(DAG_CBOR, block)


def header(root: CID) -> bytes:
    """Return the header of a CARv1 with that root."""
    return car.encode([root], {})


def event_car(event_id: EventId, blocks: Sequence[tuple[CID, bytes]]) -> bytes:
    """Return an event's own CAR."""
    return header(event_id.event_cid) + b"".join(section(cid, block) for cid, block in blocks)


def _map(block: bytes, what: str) -> dict[str, Any]:
    try:
        fields = dag_cbor.decode(block)
    except DagCborError as error:
        raise ArchiveFormatError(f"{what} is {error}") from None
    if not isinstance(fields, dict):
        raise ArchiveFormatError(f"{what} is not a map")
    return fields


def _all_cids(value: Any) -> TypeGuard[list[CID]]:
    return isinstance(value, list) and all(isinstance(item, CID) for item in value)


@dataclass(slots=True)
class _PageWithBlocks:
    """A page and the blocks that are written with it."""

    events: list[tuple[EventId, list[CID]]] = field(default_factory=list)
    shared: dict[CID, None] = field(default_factory=dict)
    blocks: dict[CID, bytes] = field(default_factory=dict)
    size: int = 0

    def encode(self) -> bytes:
        return ArchivePage(self.events, list(self.shared)).encode()

    def add(self, event_id: EventId, car: bytes, rows: Mapping[CID, int], seen: set[int]) -> None:
        """Add an event. `rows` are those of its shared blocks, `seen` those that a page has."""
        fault = car_fault(car, event_id.event_cid)
        if fault is not None:
            raise DamagedEventError(Damage(fault, None, event_id.event_cid))
        cids = []
        for cid, _, block, end in sections(car):
            cids.append(cid)
            row = rows.get(cid)
            if row is None:
                self.blocks.setdefault(cid, car[block:end])
            elif row not in seen:
                seen.add(row)
                self.shared[cid] = None
                self.blocks[cid] = car[block:end]
        self.events.append((event_id, cids))
        self.size += len(car)


def export_events(
    data_dir: Path,
    file: BinaryIO,
    interests: Sequence[Interest] = (),
    progress: Progress = no_progress,
) -> int:
    """Write the events of a log to a file: those of some interests, or all if none are given.

    The log is read twice, because the root comes first and names the pages by their CIDs. Takes the
    memory of a page and a number per shared block.

    Returns:
        The number of events.

    Raises:
        StoreError: there is no log, it is damaged, or it holds no such events.
        OSError: the file cannot be written.
    """
    events = 0
    with closing(_export(data_dir, interests, progress)) as parts:
        for counted in parts:  # what is raised there is about the log, here about the file
            events, part = counted
            file.write(part)
    return events


def _export(
    data_dir: Path, interests: Sequence[Interest], progress: Progress
) -> Generator[tuple[int, bytes]]:
    """Yield the parts of the file, each with the number of its events."""
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
        yield events, header(root) + section(root, manifest)
        for page, done in _pages(connection, ranges):
            block = page.encode()
            yield events, section(cid_of(block), block)
            for cid, block in page.blocks.items():
                yield events, section(cid, block)
            progress("writing events", done, total)


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
        [car] = reader.restore([stored])
        shared = select_in(connection, _SHARED, references(stored))
        page.add(event_id, car, {CID(cid): row for cid, row in shared}, seen)
    if page.events:
        yield page, done


def _events(connection: sqlite3.Connection) -> Iterator[tuple[EventId, bytes]]:
    """Yield all EventIds and stored CARs: the feed, then what is not delivered yet."""
    select = (
        "SELECT {0}, event_id, car FROM events CROSS JOIN cars USING (id) "
        f"WHERE {{0}} > ? AND car != x'{FORGOTTEN.hex()}'"
    )
    for column, more in (("position", ""), ("id", " AND position IS NULL")):
        sql = f"{select.format(column)}{more} ORDER BY {column} LIMIT ?"
        for rows in read_in_pieces(connection, sql, CARS_AT_ONCE):
            for _, event_id, stored in rows:
                yield EventId(event_id), stored
