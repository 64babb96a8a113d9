"""What the store's readers ask of the log: `LogReader` has all questions, and each gets a
`Reader`: a connection, and what the question may see and report.

In reading order:

    log_reader          the questions, and the threads that answer them
    feed_rows           rows of the feed and of single streams, and where times and sort keys are
    columns             the same for bulk readers, column by column
    single_events       events by EventId or CID
    block_index         which event holds which block
    stream_lists        lists of streams, and searches by name and by text
    name_prefixes       the beginning of a name as ranges of CIDs
    backlog             what the feed does not have, and why
    ring_index          the keys as ceramic-one nodes have them
"""

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recon_node.ceramic import Network
from recon_node.store.damage import Damage
from recon_node.store.db import log_schema
from recon_node.store.db.blocks import BlockReader

try:
    from recon_node_native import fit
except ImportError:  # it is not installed, or is older than version 0.3.0
    fit = None


class Reader:
    """A read-only connection; used by one thread at a time.

    Attributes:
        data_dir: where the log is.
        blocks: puts shared blocks back into CARs, and remembers those that it read.
        head: the last feed position that a question may show. Readers see a commit as soon as the
            disk has it, and the store shows it a moment later. A position beyond its head must not
            get out: the next request with it would be answered as one of another log.
        damaged: the damaged events that a question met, and answered without.
        native: whether the native core looks first at what is read, where it is installed.
    """

    def __init__(self, data_dir: Path, network: Network, *, native: bool = True) -> None:
        self.data_dir = data_dir
        self.native = native
        self.network = network
        self.connection: sqlite3.Connection = log_schema.open_reader(data_dir)
        self.blocks = BlockReader(self.connection, remember=True)
        self.head = 0
        self.damaged: list[Damage] = []

    def within_head(self, upto: int | None) -> int:
        """Return the last position that may be shown, at most `upto`."""
        return self.head if upto is None else min(upto, self.head)

    def fit(self, *columns: Sequence[Any]) -> Sequence[bool]:
        """Return which rows the native core finds sound, without the interpreter's lock: nearly
        all.

        In Python the checks, two hashes and the names of each row, are a third of what it takes to
        read events. The columns are the EventIds, CIDs, init events, kinds and CARs.
        """
        return [False] * len(columns[0]) if fit is None or not self.native else fit(*columns)
