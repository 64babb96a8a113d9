"""Making a sound log out of what can be read of a damaged one.

All events whose CARs are whole are admitted into a new log, as if peers offered them, in the order
of the old feed. So everything else in it (states, indexes, what waits for what) is right because it
is made anew, and a signature that was checked is checked again. What was learned of the proofs of
time events, and the interests, are taken over as far as they can be read.

**Feed positions.** An event that lost its CAR is not in the new log; peers will send it again. If
it had a position, the events behind it move up, and those that build on it wait for it. A position
must never mean another event than before: so the new log has a new epoch then, by which readers
notice that they have to start anew. If all positions mean what they meant, the epoch stays.

The damaged file is kept beside the new one, with its write-ahead log: `events.sqlite3.damaged-1`.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TypeVar

import trio

from recon_node.ceramic import EventId, Network
from recon_node.store.db import saved_keys, schema
from recon_node.store.db.replacement import replace_log
from recon_node.store.errors import StoreError
from recon_node.store.maintenance.common import Progress, find_log, no_progress
from recon_node.store.maintenance.salvage import Salvage, Salvaged
from recon_node.store.opening import open_store
from recon_node.store.store import Store
from recon_node.store.values import StoreSettings

T = TypeVar("T")

_PIECE = 1000


@dataclass(slots=True)
class Repaired:
    """What became of a damaged log."""

    damaged_file: Path
    """Where the damaged file is kept."""
    epoch: str
    epoch_kept: bool
    """All feed positions mean the events that they meant."""
    events: int = 0
    """Events in the new log."""
    head: int = 0
    lost: list[EventId] = field(default_factory=list)
    """Events without a whole CAR: they are fetched from peers again."""
    nameless: int = 0
    """Rows of which not even the EventId could be read, nor a whole CAR."""
    refused: list[tuple[EventId | None, str]] = field(default_factory=list)
    """Events that are not valid, and why."""


async def repair_log(
    data_dir: Path, settings: StoreSettings | None = None, progress: Progress = no_progress
) -> Repaired:
    """Put a sound log in the place of a damaged one. Until that is whole, nothing is changed.

    Raises:
        StoreError: nothing can be saved, or the disk does not take it.
    """
    path = find_log(data_dir)
    place = data_dir / "repair"
    with schema.told_to_people(path):
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        try:
            salvage = await _in_thread(lambda: Salvage(path, place))
            with closing(salvage):
                settings = settings or StoreSettings()
                repaired = await _rebuild(path, place, salvage, settings, progress)
            await _in_thread(lambda: _swap(path, place, repaired))
        finally:
            shutil.rmtree(place, ignore_errors=True)
    return repaired


async def _rebuild(
    path: Path, place: Path, salvage: Salvage, settings: StoreSettings, progress: Progress
) -> Repaired:
    if salvage.network_id is None:
        raise StoreError(
            f"nothing of the event log {path} can be read: put a backup in its place, or move it "
            "away to start anew (peers will send their events again)"
        )
    network = Network.from_id(salvage.network_id)
    _take_over(place, network, salvage)
    repaired = Repaired(_free_name(path), "", epoch_kept=False)
    settings = replace(settings, max_waiting=salvage.events + 1, max_waiting_bytes=2**62)
    kept = True
    async with open_store(place, network, settings=settings) as store:
        rows = salvage.read()
        total, done = salvage.events, 0
        while piece := await _in_thread(lambda: list(islice(rows, _PIECE))):
            kept &= await _admit(store, piece, repaired)
            done += len(piece)
            progress("saving events", done, total)
        repaired.epoch, repaired.events, repaired.head = store.epoch, len(store.keys), store.head
    repaired.epoch_kept = kept and salvage.epoch is not None
    if repaired.epoch_kept:
        repaired.epoch = salvage.epoch or ""
    _finish(place, network, salvage, repaired)
    return repaired


async def _admit(store: Store, piece: list[Salvaged], repaired: Repaired) -> bool:
    """Admit some events; return whether those that had a position have the same again."""
    whole = [each for each in piece if each.car is not None]
    for each in piece:
        if each.car is None and each.event_id is not None:
            repaired.lost.append(each.event_id)
        elif each.car is None:
            repaired.nameless += 1
    kept = all(each.position is None for each in piece if each.car is None)
    for named, group in _groups(whole):
        cars = [each.car or b"" for each in group]
        if named:
            names = [each.event_id or EventId(b"") for each in group]
            verdicts = await store.admit_remote(list(zip(names, cars, strict=True)))
        else:
            verdicts = await store.admit_local(cars)
        for each, verdict in zip(group, verdicts, strict=True):
            if verdict.status == "refused":
                repaired.refused.append((each.event_id, verdict.reason or ""))
            kept &= each.position in (None, verdict.position)
    return kept


def _groups(events: list[Salvaged]) -> Iterator[tuple[bool, list[Salvaged]]]:
    """Runs of events that have their EventIds, and of events that do not."""
    start = 0
    for at in range(1, len(events) + 1):
        named = events[start].event_id is not None
        if at == len(events) or (events[at].event_id is not None) is not named:
            yield named, events[start:at]
            start = at


def _take_over(place: Path, network: Network, salvage: Salvage) -> None:
    """Make the new log, with the proofs that were looked up."""
    with closing(schema.open_database(place, network, "full")) as connection:
        _copy_rows(connection, "proofs", salvage)


def _finish(place: Path, network: Network, salvage: Salvage, repaired: Repaired) -> None:
    """Give the new log the interests and its epoch, and bring all of it into one file."""
    with closing(schema.open_database(place, network, "full")) as connection:
        _copy_rows(connection, "interests", salvage)
        sql = "INSERT OR REPLACE INTO meta (name, value) VALUES ('epoch', ?)"
        connection.execute(sql, (repaired.epoch,))
        connection.execute("DELETE FROM meta WHERE name = 'saved_keys'")
        connection.execute("PRAGMA journal_mode = DELETE")


def _copy_rows(connection: sqlite3.Connection, table: str, salvage: Salvage) -> None:
    for row in salvage.rows(table):
        marks = ", ".join("?" * len(row))
        connection.execute(f"INSERT OR IGNORE INTO {table} VALUES ({marks})", row)


def _free_name(path: Path) -> Path:
    """A name for the damaged file that is not taken."""
    number = 1
    while (name := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    return name


def _swap(path: Path, place: Path, repaired: Repaired) -> None:
    for suffix in ("", "-wal", "-journal"):
        old = path.with_name(path.name + suffix)
        if old.exists():
            os.link(old, f"{repaired.damaged_file}{suffix}")
    path.with_name(saved_keys.FILE_NAME).unlink(missing_ok=True)
    replace_log(path, place / schema.FILE_NAME)


async def _in_thread(work: Callable[[], T]) -> T:
    return await trio.to_thread.run_sync(work)
