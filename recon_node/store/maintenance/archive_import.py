"""Import the events of an exported CAR (see `archive`) through the normal admission.

The file is read once from start to end, a page at a time. Events that the log already has are
recognized by their EventIds at almost no cost, so an interrupted import is simply started again.
"""

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO, Final

import trio

from recon_node.ceramic import MAX_CAR_SIZE, EventId
from recon_node.ipld import CID, MAX_VARINT, IpldError, dag_cbor, decode_varint, read_cid
from recon_node.store.maintenance.archive import (
    OTHER_CAR,
    ArchiveError,
    ArchiveFormatError,
    ArchivePage,
    Manifest,
    NoExportError,
    event_car,
)
from recon_node.store.maintenance.closed_log import Progress, no_progress
from recon_node.store.opening import open_store
from recon_node.store.values import StoreSettings

_MAX_SECTION_BYTES: Final = 16 * 1024 * 1024
_MAX_PAGE_BYTES: Final = 64 * 1024 * 1024
_MAX_EVENTS_BYTES: Final = 16 * 1024 * 1024
"""Bytes of events that are made of blocks at once: many may have the same blocks."""
_MAX_LISTED: Final = 1000
"""Refused events that are listed; further ones are only counted."""


@dataclass(slots=True)
class ImportResult:
    """The result of an import."""

    events: int = 0
    """Events in the file, according to its manifest."""
    counts: Counter[str] = field(default_factory=Counter)
    """By verdict: "new", "known", "refused"."""
    refused: list[tuple[EventId | CID, str]] = field(default_factory=list)
    """The first 1000 refused events, and why."""

    def note(self, event: EventId | CID, verdict: str, reason: str | None) -> None:
        """Count an event, and list it if it was refused."""
        self.counts[verdict] += 1
        if verdict == "refused" and len(self.refused) < _MAX_LISTED:
            self.refused.append((event, reason or ""))


async def import_events(
    data_dir: Path,
    file: BinaryIO,
    settings: StoreSettings | None = None,
    progress: Progress = no_progress,
    *,
    guarded: bool = False,
) -> ImportResult:
    """Admit the events of a file into the log of a directory, which is created if it is missing.

    The caller must not hold the directory's lock. `guarded` is as in `open_store`.

    Raises:
        ArchiveError: the file is damaged, truncated, or not an export.
        StoreError: the log cannot be opened or written, or belongs to another network.
    """
    intake = ImportResult()
    await trio.lowlevel.checkpoint()  # raises a Ctrl-C that came while trio started
    with closing(_ArchiveReader(file)) as reader:
        manifest = reader.read_manifest()  # here, so that Ctrl-C ends a wait for standard input
        intake.events = manifest.events
        pages = reader.pages(manifest)
        own = replace(settings or StoreSettings(), keep_free=0)  # events of the owner, not of peers
        async with open_store(data_dir, manifest.network, settings=own, guarded=guarded) as store:
            while (page := await trio.to_thread.run_sync(next, pages, None)) is not None:
                for (event_id, _), verdict in zip(
                    page, await store.admit_remote(page), strict=True
                ):
                    intake.note(event_id, verdict.status, verdict.reason)
                progress("importing events", intake.counts.total(), manifest.events)
    return intake


class _ArchiveReader:
    """Reads the sections of the file in order, and keeps the shared blocks."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._at = 0
        # SQLite keeps a database without a name in memory, and moves it to the disk as it grows.
        self._shared = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._shared.execute("CREATE TABLE shared (cid BLOB PRIMARY KEY, block BLOB) WITHOUT ROWID")

    def close(self) -> None:
        """Drop the shared blocks."""
        self._shared.close()

    def read_manifest(self) -> Manifest:
        """Read the header and the root.

        Raises:
            NoExportError: the file is not an export.
            ArchiveError: it is damaged.
        """
        try:
            fields = dag_cbor.decode(self._read_piece() or b"")
            version, roots = fields["version"], list(fields["roots"])
        except (IpldError, KeyError, TypeError, ValueError):
            raise NoExportError(
                "the file is not a CAR, so it is not an export; nothing was imported. To send JSON "
                "lines of events to a running node, use `recon-node events add`"
            ) from None
        try:
            cid, block = self._section()
            if version != 1 or roots != [cid] or not cid.matches(block):
                raise NoExportError(OTHER_CAR)
            return Manifest.decode(block)
        except (IpldError, KeyError, TypeError, ValueError) as error:
            raise ArchiveError(f"the file cannot be imported: {error}") from error

    def pages(self, manifest: Manifest) -> Iterator[list[tuple[EventId, bytes]]]:
        """Yield the events of each page with their CARs, a few at once."""
        for cid in manifest.pages:
            events: list[tuple[EventId, bytes]] = []
            size = 0
            try:
                for event_id, event in self._read_page(ArchivePage.decode(self._expect(cid))):
                    events.append((event_id, event))
                    size += len(event)
                    if size >= _MAX_EVENTS_BYTES:
                        yield events
                        events, size = [], 0
            except (IpldError, ValueError) as error:
                yield events  # the intact ones before the damage
                raise self._broken(error) from error
            yield events

    def _read_page(self, page: ArchivePage) -> Iterator[tuple[EventId, bytes]]:
        blocks: dict[CID, bytes] = {}
        size = 0
        for event_id, cids in page.events:
            parts: list[tuple[CID, bytes]] = []
            length = 0
            for cid in cids:
                if cid not in blocks and (kept := self._kept(cid)) is not None:
                    blocks[cid] = kept
                while cid not in blocks:
                    read, block = self._section()
                    blocks[read] = block
                    size += len(block)
                    if size > _MAX_PAGE_BYTES:
                        raise ArchiveFormatError(
                            f"its blocks are out of order: {cid} comes too late"
                        )
                parts.append((cid, blocks[cid]))
                length += len(cid) + len(blocks[cid])
                if length > MAX_CAR_SIZE:
                    raise ArchiveFormatError(f"the event {event_id} is larger than any may be")
            yield event_id, event_car(event_id, parts)
        self._shared.executemany(
            "INSERT OR IGNORE INTO shared (cid, block) VALUES (?, ?)",
            [(cid, blocks[cid]) for cid in page.shared if cid in blocks],
        )

    def _kept(self, cid: CID) -> bytes | None:
        row = self._shared.execute("SELECT block FROM shared WHERE cid = ?", (cid,)).fetchone()
        return None if row is None else row[0]

    def _expect(self, cid: CID) -> bytes:
        """Return the block of the next section, which must have this CID."""
        read, block = self._section()
        if read != cid or not cid.matches(block):
            raise ArchiveFormatError(f"it has {read} where there should be {cid}")
        return block

    def _section(self) -> tuple[CID, bytes]:
        piece = self._read_piece()
        if piece is None:
            raise ArchiveFormatError("it ends before its last event: it was truncated")
        cid, start = read_cid(piece)
        return cid, piece[start:]

    def _read_piece(self) -> bytes | None:
        """Return the bytes after the next length; None at the end of the file."""
        prefix = b""
        while not prefix or prefix[-1] & 0x80:
            byte = self._file.read(1)
            if not byte and not prefix:
                return None
            if not byte or len(prefix) >= MAX_VARINT:
                raise ArchiveFormatError("a length is truncated or invalid")
            prefix += byte
        length, _ = decode_varint(prefix)
        if length > _MAX_SECTION_BYTES:
            raise ArchiveFormatError(f"it has a block of {length} bytes")
        piece = self._file.read(length)
        if len(piece) < length:
            raise ArchiveFormatError("it ends in the middle of a block: it was truncated")
        self._at += len(prefix) + length
        return piece

    def _broken(self, error: Exception) -> ArchiveError:
        return ArchiveError(
            f"the file cannot be imported beyond byte {self._at}: {error}. The events before that "
            "are in the log, and will be skipped when an intact file is imported"
        )
