"""The ends of long streams, kept in memory from one short step to the next.

A stream of 50,000 events takes seconds to read back, and nearly always its next event builds on its
tip. `recon_node.streams.StreamEnd` is what such an event needs of the others. Nothing depends on an
end being here: without one, after a start for example, the stream is read whole once.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from recon_node.streams import StreamEnd
from spark_sink.derive.streams import FeedStream

#: Events of a stream whose end is kept.
LONG: Final = 512
# Bytes of ends, about.
_MAX_BYTES: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class KeptEnd:
    """The end of a stream, complete up to a position."""

    end: StreamEnd
    position: int


class Ends:
    """The ends of streams; of too many, those that were used last."""

    def __init__(self) -> None:
        self._ends: dict[bytes, KeptEnd] = {}
        self._bytes = 0

    def take(self, streams: Iterable[bytes], after: int) -> dict[bytes, KeptEnd]:
        """Remove the ends of streams that get events; return those that are not ahead of a step."""
        taken = {cid: self._ends.pop(cid) for cid in streams if cid in self._ends}
        self._bytes -= sum(kept.end.weight for kept in taken.values())
        return {cid: kept for cid, kept in taken.items() if kept.position <= after}

    def keep(self, stream: FeedStream, position: int) -> None:
        """Keep the end of a stream that is complete up to a position, if it is long."""
        # Models are read whole for their documents anyway.
        if stream.stream.count < LONG or stream.is_model:
            return
        end = stream.stream.end()
        if end is None or end.weight > _MAX_BYTES:
            return
        self._ends[stream.cid] = KeptEnd(end, position)
        self._bytes += end.weight
        while self._bytes > _MAX_BYTES:
            self._bytes -= self._ends.pop(next(iter(self._ends))).end.weight

    def clear(self) -> None:
        """Forget all."""
        self._ends.clear()
        self._bytes = 0
