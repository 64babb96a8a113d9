"""Streams that are set aside: one bad stream never stops a table.

A stream of which rows cannot be computed (it takes more work than its events pay for, or meets a
fault of this software) is left out of the derived tables from then on, and gets a row in the table
`unprocessed_streams` that says why. Another version of the software takes it up again: its rows are
computed from all of its events.
"""

import time
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from recon_node import __version__
from recon_node.streams import ForgottenError
from spark_sink.derive.streams import Row
from spark_sink.errors import SinkError
from spark_sink.tables.delta import DeltaStore

# What is wrong with the tables or the machine, and not with a stream.
NOT_OF_A_STREAM: Final = (SinkError, OSError, ForgottenError, pa.ArrowException)
_MAX_REASON: Final = 500


@dataclass(frozen=True, slots=True)
class Aside:
    """The streams that are set aside, by their CIDs.

    Attributes:
        by_this: by this version, which leaves them out.
        by_others: by other versions: this one is to take them up again.
    """

    by_this: frozenset[bytes] = frozenset()
    by_others: frozenset[bytes] = frozenset()

    @classmethod
    def read(cls, table: DeltaStore | None) -> "Aside":
        """Read the table `unprocessed_streams`; without one, no stream is set aside."""
        if table is None or not table.position:
            return cls()
        rows = table.select("stream_cid, version", "reason IS NOT NULL").to_pylist()
        mine = {row["stream_cid"] for row in rows if row["version"] == __version__}
        others = {row["stream_cid"] for row in rows} - mine
        return cls(frozenset(mine), frozenset(others))


class ModelSetAsideError(Exception):
    """The model of a document cannot be computed."""


def reason_of(error: Exception) -> str:
    """Say why a stream is set aside."""
    text = str(error) or "no further reason"
    return f"{type(error).__name__}: {text}"[:_MAX_REASON]


def unprocessed(stream_id: str, position: int, reason: str | None) -> Row:
    """Return the row of a stream that is set aside; without a reason, of one taken up again.

    Args:
        stream_id: as text.
        position: of its latest event.
        reason: why.
    """
    return {
        "stream_id": stream_id,
        "reason": reason,
        "since": int(time.time()),
        "version": __version__,
        "position": position,
    }
