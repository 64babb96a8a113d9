"""Build a sound log from what can be read of a damaged one.

All events whose CARs are intact are admitted into a new log as if peers offered them, in the order
of the old feed. So everything else (states, indexes, what waits for what) is rebuilt, and every
signature is verified again. Results of anchor lookups, the interests, and which streams are the
node's own are copied as far as they can be read.

**Feed positions.** An event that lost its CAR is not in the new log; peers will send it again. If
it had a position, the events after it move up, and those that build on it wait for it. A position
must never change its event, so the new log then gets a new epoch, which tells readers to start
over. If all positions keep their events, the epoch stays.

The damaged file is kept beside the new one, with its write-ahead log: `events.sqlite3.damaged-1`.
"""

import os
import sqlite3
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import groupby, islice
from pathlib import Path
from typing import Final

from trio.to_thread import run_sync

from recon_node.base.files import scratch_folder
from recon_node.ceramic import EventId, Network
from recon_node.store.db import log_schema, saved_keys
from recon_node.store.db.log_schema import refuse_link, replace_log
from recon_node.store.db.sql import explained_errors
from recon_node.store.errors import StoreError
from recon_node.store.maintenance.closed_log import Progress, find_log, no_progress
from recon_node.store.maintenance.log_check import unreadable
from recon_node.store.maintenance.salvage import Salvage, Salvaged
from recon_node.store.opening import open_store
from recon_node.store.store import Store
from recon_node.store.values import StoreSettings

_EVENTS_AT_ONCE: Final = 1000


@dataclass(slots=True)
class Repaired:
    """The result of a repair."""

    damaged_file: Path
    """The name of the damaged file now."""
    epoch: str
    epoch_kept: bool
    """All feed positions have the same events as before."""
    events: int = 0
    """Events in the new log."""
    head: int = 0
    lost: list[EventId] = field(default_factory=list)
    """Events without an intact CAR, which the node will fetch from peers again."""
    nameless: int = 0
    """Rows with neither a readable EventId nor an intact CAR."""
    refused: list[tuple[EventId | None, str]] = field(default_factory=list)
    """Invalid events, and why."""


async def repair_log(
    data_dir: Path,
    settings: StoreSettings | None = None,
    progress: Progress = no_progress,
    *,
    guarded: bool = False,
) -> Repaired:
    """Replace a damaged log with a sound one. Nothing changes until that one is complete.

    `guarded` is as in `open_store`.

    Raises:
        StoreError: nothing can be saved, or the new log cannot be written.
    """
    path = find_log(data_dir)
    refuse_link(path)
    with explained_errors(path), scratch_folder(data_dir) as folder:
        with closing(Salvage(path, folder)) as salvage:  # here, so that Ctrl-C ends it
            settings = settings or StoreSettings()
            repaired = await _rebuild(path, folder, salvage, settings, progress, guarded)
        _swap(path, folder, repaired)
    return repaired


async def _rebuild(
    path: Path,
    folder: Path,
    salvage: Salvage,
    settings: StoreSettings,
    progress: Progress,
    guarded: bool,
) -> Repaired:
    if salvage.network_id is None:
        raise StoreError(
            f"the event log {path} is unreadable: restore a backup, or move it "
            "away to start over (peers will send their events again)"
        )
    network = Network.from_id(salvage.network_id)
    with closing(log_schema.open_database(folder, network, "full")) as connection:
        for table in ("proofs", "forgotten"):
            _copy_rows(connection, table, salvage)
    repaired = Repaired(_free_name(path), "", epoch_kept=False)
    settings = replace(
        settings, max_waiting=salvage.events + 1, max_waiting_bytes=2**62, keep_free=0
    )
    kept = salvage.epoch is not None
    async with open_store(folder, network, settings=settings, guarded=guarded) as store:
        rows = salvage.read()
        total, done = salvage.events, 0
        while piece := await run_sync(lambda: list(islice(rows, _EVENTS_AT_ONCE))):
            kept &= await _admit(store, piece, repaired)
            done += len(piece)
            progress("saving events", done, total)
        repaired.epoch, repaired.events, repaired.head = store.epoch, len(store.keys), store.head
    repaired.epoch_kept = kept
    if kept:
        repaired.epoch = salvage.epoch or ""
    _finish(folder, network, salvage, repaired)
    return repaired


async def _admit(store: Store, piece: list[Salvaged], repaired: Repaired) -> bool:
    """Admit some events; return whether those with a position got the same one again."""
    kept = True
    for (intact, named), run in groupby(piece, _kind):
        events = list(run)
        if not intact:
            repaired.lost += (event.event_id for event in events if event.event_id)
            repaired.nameless += 0 if named else len(events)
            kept &= all(event.position is None for event in events)
            continue
        if named:
            offers = [
                (event.event_id, event.car) for event in events if event.event_id and event.car
            ]
            verdicts = await store.admit_remote(offers)
        else:
            verdicts = await store.admit_local([event.car for event in events if event.car])
        for event, verdict in zip(events, verdicts, strict=True):
            if verdict.status == "refused":
                repaired.refused.append((event.event_id, verdict.reason or ""))
            kept &= event.position in (None, verdict.position)
    return kept


def _kind(event: Salvaged) -> tuple[bool, bool]:
    """Whether an event is intact, and whether it is admitted under its EventId.

    An init event that was delivered had been covered, maybe only by this node's own clients.
    """
    was_covered = event.position is not None and event.event_id and event.event_id.height == 0
    return bool(event.car), bool(event.event_id) and not was_covered


def _finish(folder: Path, network: Network, salvage: Salvage, repaired: Repaired) -> None:
    """Give the new log what events do not show, and its epoch, and merge it into one file."""
    with closing(log_schema.open_database(folder, network, "full")) as connection:
        _copy_rows(connection, "interests", salvage)
        connection.execute("DELETE FROM own_streams")  # what was admitted here as if by a client
        _copy_rows(connection, "own_streams", salvage)
        if repaired.epoch_kept:  # else the positions are new
            connection.execute("DELETE FROM deliveries")
            _copy_rows(connection, "deliveries", salvage)
        sql = "INSERT OR REPLACE INTO meta (name, value) VALUES ('epoch', ?)"
        connection.execute(sql, (repaired.epoch,))
        connection.execute("DELETE FROM meta WHERE name = 'saved_keys'")
        connection.execute("PRAGMA journal_mode = DELETE")


def _copy_rows(connection: sqlite3.Connection, table: str, salvage: Salvage) -> None:
    width = len(connection.execute(f"SELECT * FROM {table}").description)
    for salvaged in salvage.rows(table):
        row = salvaged + (None,) * (width - len(salvaged))  # earlier versions have fewer columns
        if unreadable(table, row):
            continue
        marks = ", ".join("?" * width)
        connection.execute(f"INSERT OR IGNORE INTO {table} VALUES ({marks})", row)


def _free_name(path: Path) -> Path:
    """A free name for the damaged file."""
    number = 1
    while (name := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    return name


def _swap(path: Path, folder: Path, repaired: Repaired) -> None:
    for suffix in ("", "-wal", "-journal"):
        old = path.with_name(path.name + suffix)
        if old.exists():
            os.link(old, f"{repaired.damaged_file}{suffix}")
    for name in (*saved_keys.FILE_NAMES.values(), saved_keys.SUMS_FILE):
        path.with_name(name).unlink(missing_ok=True)
    replace_log(path, folder / log_schema.FILE_NAME)
