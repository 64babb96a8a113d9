"""What a log holds, in a few numbers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from recon_node.ceramic import Network
from recon_node.store.admission.records import State
from recon_node.store.db import schema
from recon_node.store.maintenance.common import find_log, network_of, opened_log


@dataclass(frozen=True, slots=True)
class LogInfo:
    """A log in a few numbers; sizes in bytes."""

    path: Path
    network: Network
    schema: int
    epoch: str
    events: int
    head: int
    waiting: int
    pending: int
    shared_blocks: int
    refused: int
    size: int
    free: int
    """Of `size`, what is free for new events; `compact` gives it back to the disk."""


def read_info(data_dir: Path) -> LogInfo:
    """Count what the log holds.

    Raises:
        StoreError: there is no log, or it cannot be opened.
    """
    path = find_log(data_dir)
    network = network_of(path)
    with opened_log(data_dir) as connection:

        def number(sql: str) -> int:
            return int(connection.execute(sql).fetchone()[0])

        undelivered = "SELECT count(*) FROM events WHERE position IS NULL AND state"
        page_size = number("PRAGMA page_size")
        return LogInfo(
            path=path,
            network=network,
            schema=number("PRAGMA user_version"),
            epoch=schema.read_meta(connection, "epoch") or "",
            events=number("SELECT count(*) FROM events"),
            head=number("SELECT coalesce(max(position), 0) FROM events WHERE position IS NOT NULL"),
            waiting=number(f"{undelivered} < {State.PENDING}"),
            pending=number(f"{undelivered} = {State.PENDING}"),
            shared_blocks=number("SELECT count(*) FROM blocks"),
            refused=number("SELECT count(*) FROM refused"),
            size=number("PRAGMA page_count") * page_size,
            free=number("PRAGMA freelist_count") * page_size,
        )
