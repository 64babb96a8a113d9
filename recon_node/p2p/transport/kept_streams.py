"""Streams that are kept between two uses, because opening one costs more than a short session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import trio

from recon_node.p2p.transport.framing import FrameStream, PeerStream

RECON_KEPT_FOR: Final = 300.0
"""Seconds for which a responder keeps a stream for the initiator's next session."""
RECON_USED_FOR: Final = 240.0
"""Seconds after which an initiator no longer relies on that."""


@dataclass(frozen=True, slots=True)
class OpenStream:
    """A stream of a protocol of ours, opened by either side, with its frames."""

    stream: PeerStream
    frames: FrameStream
    has_served: bool = False
    """Whether it was kept: a session, or a fetch, has ended on it."""


class KeptStreams:
    """The streams that this node has opened and keeps between two uses, at most one for each peer.

    A recon stream may carry one session after another, because opening a stream costs both sides
    more than the rest of a session that finds nothing to do. A stream that is kept takes no slot.

    Args:
        used_for: seconds after which a kept stream is ended.
    """

    def __init__(self, used_for: float = RECON_USED_FOR) -> None:
        self._used_for = used_for
        self._kept: dict[str, tuple[float, OpenStream]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    async def take(self, peer_id: str) -> OpenStream | None:
        """Return the stream kept with a peer, if it can still be used."""
        await self._end_useless()
        _, kept = self._kept.pop(peer_id, (0.0, None))
        return kept

    async def put(self, open_stream: OpenStream) -> None:
        """Keep a stream after a session; end it if another one is kept with its peer."""
        peer_id, stream = open_stream.stream.peer_id, open_stream.stream
        if peer_id in self._kept or not stream.is_open:
            await stream.aclose()
            return
        used = OpenStream(stream, open_stream.frames, has_served=True)
        self._kept[peer_id] = trio.current_time(), used

    async def _end_useless(self) -> None:
        """End the streams that are lost or were not used for long, all at once.

        Ending one may take a while if the peer is frozen.
        """
        expired = trio.current_time() - self._used_for
        useless = [
            peer_id
            for peer_id, (since, kept) in self._kept.items()
            if since <= expired or not kept.stream.is_open
        ]
        async with trio.open_nursery() as nursery:
            for peer_id in useless:
                _, kept = self._kept.pop(peer_id)
                nursery.start_soon(kept.stream.aclose)
