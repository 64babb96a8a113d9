"""Taking in the events of an exported CAR (see `archive`), through the normal admission.

The file is read once, from its beginning to its end, a page at a time. What is here already is
known by its EventId and costs next to nothing: an import that was broken off is started again.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import trio

from recon_node.ceramic import EventId
from recon_node.ipld import CID, IpldError, dag_cbor, read_cid, varint
from recon_node.store.errors import StoreError
from recon_node.store.maintenance.archive import (
    OTHER_CAR,
    ArchiveFormatError,
    Manifest,
    Page,
    event_car,
)
from recon_node.store.maintenance.common import Progress, no_progress
from recon_node.store.opening import open_store
from recon_node.store.values import StoreSettings

_MAX_SECTION = 64 * 1024 * 1024
_MAX_PAGE = 64 * 1024 * 1024
_MOST_REASONS = 1000


class ArchiveError(StoreError):
    """The file cannot be taken in any further; what came before is in the log."""


@dataclass(slots=True)
class Intake:
    """What became of the events of a file."""

    events: int = 0
    """As the file announces them."""
    counts: Counter[str] = field(default_factory=Counter)
    """By verdict: "new", "known", "refused"."""
    refused: list[tuple[EventId, str]] = field(default_factory=list)
    """The first thousand that were refused, and why."""


async def import_events(
    data_dir: Path,
    file: BinaryIO,
    settings: StoreSettings | None = None,
    progress: Progress = no_progress,
) -> Intake:
    """Admit the events of a file into the log of a directory, which is made when there is none.

    The caller does not hold the directory's lock.

    Raises:
        ArchiveError: the file is broken, cut off, or of another kind.
        StoreError: the log cannot be opened or written, or is another network's.
    """
    intake = Intake()
    with closing(_Reader(file)) as reader:
        manifest = await trio.to_thread.run_sync(reader.read_manifest)
        intake.events = manifest.events
        pages = reader.pages(manifest)
        async with open_store(data_dir, manifest.network, settings=settings) as store:
            while (page := await trio.to_thread.run_sync(next, pages, None)) is not None:
                for (event_id, _), verdict in zip(
                    page, await store.admit_remote(page), strict=True
                ):
                    intake.counts[verdict.status] += 1
                    if verdict.status == "refused" and len(intake.refused) < _MOST_REASONS:
                        intake.refused.append((event_id, verdict.reason or ""))
                progress("importing events", intake.counts.total(), manifest.events)
    return intake


class _Reader:
    """Reads the sections of the file in order, and keeps the shared blocks in a file of its own."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._at = 0
        # A database without a name lies in memory, and on the disk when it grows.
        self._shared = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._shared.execute("CREATE TABLE shared (cid BLOB PRIMARY KEY, block BLOB) WITHOUT ROWID")

    def close(self) -> None:
        """Forget the shared blocks."""
        self._shared.close()

    def read_manifest(self) -> Manifest:
        """Read the header and the root."""
        try:
            fields = dag_cbor.decode(self._read_piece() or b"")
            version, roots = fields["version"], list(fields["roots"])
        except (IpldError, KeyError, TypeError, ValueError):
            raise ArchiveError(
                "the file is not a CAR, so `recon-node store export` did not write it; nothing was "
                "imported. `recon-node events add` sends JSON lines of events to a running node"
            ) from None
        try:
            if version != 1 or len(roots) != 1:
                raise ArchiveFormatError("its header names no single root")
            cid, block = self._section()
            if cid != roots[0] or not cid.matches(block):
                raise ArchiveFormatError(
                    f"its first block is not its root, a manifest. {OTHER_CAR}"
                )
            return Manifest.decode(block)
        except (IpldError, KeyError, TypeError, ValueError) as error:
            raise self._broken(error) from error

    def pages(self, manifest: Manifest) -> Iterator[list[tuple[EventId, bytes]]]:
        """The events of page after page, each with its CAR."""
        for cid in manifest.pages:
            events: list[tuple[EventId, bytes]] = []
            try:
                events.extend(self._read_page(Page.decode(self._expect(cid))))
            except (IpldError, ValueError) as error:
                yield events  # what is whole before the damage
                raise self._broken(error) from error
            yield events

    def _read_page(self, page: Page) -> Iterator[tuple[EventId, bytes]]:
        blocks: dict[CID, bytes] = {}
        size = 0
        for event_id, cids in page.events:
            parts: list[tuple[CID, bytes]] = []
            for cid in cids:
                if cid not in blocks and (kept := self._kept(cid)) is not None:
                    blocks[cid] = kept
                while cid not in blocks:
                    read, block = self._section()
                    blocks[read] = block
                    size += len(block)
                    if size > _MAX_PAGE:
                        raise ArchiveFormatError(f"its blocks are in another order: {cid} is late")
                parts.append((cid, blocks[cid]))
            yield event_id, event_car(event_id, parts)
        self._shared.executemany(
            "INSERT OR IGNORE INTO shared (cid, block) VALUES (?, ?)",
            [(cid, blocks[cid]) for cid in page.shared if cid in blocks],
        )

    def _kept(self, cid: CID) -> bytes | None:
        row = self._shared.execute("SELECT block FROM shared WHERE cid = ?", (cid,)).fetchone()
        return None if row is None else row[0]

    def _expect(self, cid: CID) -> bytes:
        """The block of the next section, which must be that one."""
        read, block = self._section()
        if read != cid or not cid.matches(block):
            raise ArchiveFormatError(f"where {cid} should stand, there is {read}")
        return block

    def _section(self) -> tuple[CID, bytes]:
        piece = self._read_piece()
        if piece is None:
            raise ArchiveFormatError("it ends before its last event: it was cut off")
        cid, start = read_cid(piece)
        return cid, piece[start:]

    def _read_piece(self) -> bytes | None:
        """What stands behind the next length; None at the end of the file."""
        prefix = b""
        while not prefix or prefix[-1] & 0x80:
            byte = self._file.read(1)
            if not byte and not prefix:
                return None
            if not byte or len(prefix) >= varint.MAX_BYTES:
                raise ArchiveFormatError("a length is cut off or no number")
            prefix += byte
        length, _ = varint.decode(prefix)
        if length > _MAX_SECTION:
            raise ArchiveFormatError(f"it has a block of {length} bytes")
        piece = self._file.read(length)
        if len(piece) < length:
            raise ArchiveFormatError("it ends in the middle of a block: it was cut off")
        self._at += len(prefix) + length
        return piece

    def _broken(self, error: Exception) -> ArchiveError:
        return ArchiveError(
            f"the file cannot be taken in beyond byte {self._at}: {error}. The events before that "
            "are in the log, and are skipped when a whole file is imported"
        )
