"""Import the events of an exported CAR (see `archive`) through the normal admission.

The file is read once from start to end, a page at a time. Events that the log already has are
recognized by their EventIds at almost no cost, so an interrupted import is simply started again.

`import_history` takes events out of blocks instead, wherever these come from: kubo, js-ceramic,
CARs, JSON lines. Blocks come in any order, without a word on which of them are events. So they are
gathered first, in a file beside the log; a block is an event if it looks like a signed envelope, a
time event, or an init event that no envelope names. The events are put together, and admitted
stream by stream, each after those that it builds on. It is history that the operator brings:
everything is checked as for local events, but capabilities count that have expired since.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, Final

import trio

from recon_node.ceramic import MAX_CAR_SIZE, EventId, InvalidEventError, Network, assemble_event
from recon_node.ceramic.event import TIME_FIELDS
from recon_node.ipld import (
    CID,
    DAG_CBOR,
    DAG_JOSE,
    MAX_VARINT,
    CidError,
    DagCborError,
    IpldError,
    cid_head,
    dag_cbor,
    decode_varint,
    read_cid,
)
from recon_node.store.errors import StoreError
from recon_node.store.maintenance.archive import (
    OTHER_CAR,
    ArchiveFormatError,
    ArchivePage,
    Manifest,
    OtherCarError,
    event_car,
)
from recon_node.store.maintenance.closed_log import Progress, no_progress
from recon_node.store.store import open_store
from recon_node.store.values import StoreSettings

_MAX_SECTION_BYTES: Final = 16 * 1024 * 1024
_MAX_PAGE_BYTES: Final = 64 * 1024 * 1024
_MAX_EVENTS_BYTES: Final = 16 * 1024 * 1024
"""Bytes of events that are made of blocks at once: many may have the same blocks."""
_MAX_LISTED: Final = 1000
"""Refused events that are listed; further ones are only counted."""


class ArchiveError(StoreError):
    """The file cannot be imported any further; the events before that are in the log."""


class NoExportError(ArchiveError):
    """The file is not an export; nothing was imported."""


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
    with closing(_ArchiveReader(file)) as reader:
        manifest = await trio.to_thread.run_sync(reader.read_manifest)
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
                raise OtherCarError(f"it does not start with a manifest. {OTHER_CAR}")
            return Manifest.decode(block)
        except OtherCarError as error:
            raise NoExportError(f"the file cannot be imported: {error}") from None
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


_BATCH: Final = 500
_BATCH_BYTES: Final = 16 * 1024 * 1024
"""Events that are admitted at once, and about how many bytes of CARs."""
_STEP: Final = 1000
"""Blocks or events between two reports of the progress."""
_CONTAINERS: Final = range(0x80, 0xC0)
"""First bytes of a list or a map: no other block is part of an event."""
_SIGNED, _PLAIN = DAG_JOSE, DAG_CBOR

_TABLES: Final = """
    CREATE TABLE blocks (digest BLOB PRIMARY KEY, block BLOB) WITHOUT ROWID;
    CREATE TABLE roots (digest BLOB PRIMARY KEY, codec INTEGER) WITHOUT ROWID;
    CREATE TABLE payloads (digest BLOB PRIMARY KEY) WITHOUT ROWID;
    CREATE TABLE events (init BLOB, cid BLOB, prevs BLOB);
"""


async def import_history(
    data_dir: Path,
    network: Network,
    blocks: Iterable[bytes],
    progress: Progress = no_progress,
    *,
    guarded: bool = False,
) -> ImportResult:
    """Admit the events that some blocks make up into the log of a directory.

    The log is created if it is missing. The caller must not hold the directory's lock. `guarded` is
    as in `open_store`.

    Raises:
        StoreError: the log cannot be opened or written, or belongs to another network.
    """
    result = ImportResult()
    async with open_store(data_dir, network, guarded=guarded) as store:
        with (
            TemporaryDirectory(prefix="import-", dir=data_dir) as directory,
            closing(_Gathered(Path(directory) / "blocks.sqlite3", progress)) as gathered,
        ):
            await trio.to_thread.run_sync(gathered.add, blocks)
            await trio.to_thread.run_sync(gathered.put_together, result)
            batches = gathered.batches()
            while (batch := await trio.to_thread.run_sync(next, batches, None)) is not None:
                verdicts = await store.admit_history([car for _, car in batch])
                for (cid, _), verdict in zip(batch, verdicts, strict=True):
                    result.note(cid, verdict.status, verdict.reason)
                progress("importing events", result.counts.total(), result.events)
    return result


class _Gathered:
    """The blocks, and the events that are made of them, in a file of their own."""

    def __init__(self, path: Path, progress: Progress) -> None:
        self._progress = progress
        self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._execute = self._connection.execute
        self._connection.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;")
        self._connection.executescript(_TABLES)

    def close(self) -> None:
        self._connection.close()

    def add(self, blocks: Iterable[bytes]) -> None:
        """Keep the blocks that may be parts of events."""
        self._execute("BEGIN")
        for number, block in enumerate(blocks, 1):
            if block and block[0] in _CONTAINERS:
                self._add_block(block)
            if number % _STEP == 0:
                self._progress("reading blocks", number, None)
        self._execute("COMMIT")

    def _add_block(self, block: bytes) -> None:
        try:
            value = dag_cbor.decode(block)
        except DagCborError:
            return
        digest = sha256(block).digest()
        self._execute("INSERT OR IGNORE INTO blocks VALUES (?, ?)", (digest, block))
        codec = _codec_of_event(value)
        if codec is not None:
            self._execute("INSERT OR IGNORE INTO roots VALUES (?, ?)", (digest, codec))
        if codec == _SIGNED:
            payload = _digest_of_payload(value["payload"])
            self._execute("INSERT OR IGNORE INTO payloads VALUES (?)", (payload,))

    def put_together(self, result: ImportResult) -> None:
        """Make events of the blocks; note those that lack some."""
        roots = "SELECT digest, codec FROM roots WHERE digest NOT IN (SELECT digest FROM payloads)"
        result.events = self._execute(f"SELECT count(*) FROM ({roots})").fetchone()[0]
        self._execute("BEGIN")
        for number, (digest, codec) in enumerate(self._execute(roots), 1):
            cid = CID(cid_head(codec) + digest)
            try:
                event = assemble_event(cid, self._read)
            except InvalidEventError as error:
                result.note(cid, "refused", str(error))
            else:
                row = (event.init, event.cid, dag_cbor.encode(list(event.prevs)))
                self._execute("INSERT INTO events VALUES (?, ?, ?)", row)
            if number % _STEP == 0:
                self._progress("putting events together", number, result.events)
        self._execute("COMMIT")

    def batches(self) -> Iterator[list[tuple[CID, bytes]]]:
        """Yield the events with their CARs, stream by stream, each after what it builds on.

        A CAR is put together again when it is yielded: many events can have one large payload.
        """
        batch: list[tuple[CID, bytes]] = []
        size = 0
        for cid in self._in_order():
            car = assemble_event(cid, self._read).car
            batch.append((cid, car))
            size += len(car)
            if len(batch) == _BATCH or size >= _BATCH_BYTES:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _in_order(self) -> Iterator[CID]:
        rows = self._execute("SELECT init, cid, prevs FROM events ORDER BY init")
        for init, stream in groupby(rows, key=lambda row: CID(row[0])):
            order: dict[CID, list[CID]] = {}
            for _, cid, prevs in stream:
                order[CID(cid)] = [] if cid == init else [init, *dag_cbor.decode(prevs)]
            yield from (cid for cid in _in_causal_order(order) if cid in order)

    def _read(self, cid: CID) -> bytes | None:
        row = self._execute("SELECT block FROM blocks WHERE digest = ?", (cid.digest,)).fetchone()
        return None if row is None else row[0]


def _codec_of_event(value: Any) -> int | None:
    """Return by which codec an event would be named whose root block has that value."""
    if not isinstance(value, dict):
        return None
    if "signatures" in value and "payload" in value:
        return _SIGNED
    return (
        _PLAIN if value.keys() >= TIME_FIELDS or ("header" in value and "id" not in value) else None
    )


def _digest_of_payload(payload: object) -> bytes:
    try:
        return CID(payload).digest if isinstance(payload, bytes) else b""
    except CidError:
        return b""


def _in_causal_order(order: dict[CID, list[CID]]) -> Iterable[CID]:
    try:
        return tuple(TopologicalSorter(order).static_order())
    except CycleError:  # no hash can be part of what it is the hash of
        return order
