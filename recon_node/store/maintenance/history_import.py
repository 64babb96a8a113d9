"""Import events out of blocks, wherever these come from: kubo, js-ceramic, CARs, JSON lines.

Blocks come in any order, and nothing says which of them are events. So they are gathered first, in
a file beside the log; a block is an event if it looks like a signed envelope, a time event, or an
init event that no envelope names. The events are put together, and admitted stream by stream, each
after those that it builds on. It is history that the operator brings: everything is checked as for
local events, but capabilities count that have expired since.
"""

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from graphlib import TopologicalSorter
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import trio

from recon_node.base.chunks import in_chunks
from recon_node.base.files import scratch_folder
from recon_node.ceramic import InvalidEventError, Network, assemble_event
from recon_node.ceramic.event import TIME_FIELDS
from recon_node.ipld import CID, DAG_CBOR, DAG_JOSE, CidError, DagCborError, cid_head, dag_cbor
from recon_node.store.maintenance.archive_import import ImportResult
from recon_node.store.maintenance.closed_log import Progress, no_progress
from recon_node.store.opening import open_store

_BATCH: Final = 500
_BATCH_BYTES: Final = 16 * 1024 * 1024
"""Events that are admitted at once, and how many bytes of CARs."""
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
            scratch_folder(data_dir) as folder,
            closing(_Gathered(folder / "blocks.sqlite3", progress)) as gathered,
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
                self._report("reading blocks", number, None)
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

    def _report(self, step: str, done: int, total: int | None) -> None:
        trio.from_thread.check_cancelled()  # by Ctrl-C: all blocks may take hours
        self._progress(step, done, total)

    def put_together(self, result: ImportResult) -> None:
        """Make events of the blocks; note the events that lack a block."""
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
                self._report("putting events together", number, result.events)
        self._execute("COMMIT")

    def batches(self) -> Iterator[list[tuple[CID, bytes]]]:
        """Yield the events with their CARs, stream by stream, each after what it builds on.

        A CAR is put together again when it is yielded: many events can have one large payload.
        """
        events = ((cid, assemble_event(cid, self._read).car) for cid in self._in_order())
        return in_chunks(events, lambda event: len(event[1]), _BATCH_BYTES, _BATCH)

    def _in_order(self) -> Iterator[CID]:
        rows = self._execute("SELECT init, cid, prevs FROM events ORDER BY init")
        for init, stream in groupby(rows, key=lambda row: CID(row[0])):
            order: dict[CID, list[CID]] = {}
            for _, cid, prevs in stream:
                order[CID(cid)] = [] if cid == init else [init, *dag_cbor.decode(prevs)]
            # No cycles: no hash can be part of what it is the hash of.
            yield from filter(order.__contains__, TopologicalSorter(order).static_order())

    def _read(self, cid: CID) -> bytes | None:
        row = self._execute("SELECT block FROM blocks WHERE digest = ?", (cid.digest,)).fetchone()
        return None if row is None else row[0]


def _codec_of_event(value: Any) -> int | None:
    """Return the codec in the CID of an event with that root block; None if it is not an event."""
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
