"""The streams on which this node fetches events: one is kept with each peer between two fetches.

A server keeps it for ``event_server.KEPT_FOR``, and earlier ones did so for ``turn_timeout``, the
same by default. So a stream that was not used for ``USED_FOR`` is ended.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import trio

from recon_node.p2p.errors import PeerGoneError
from recon_node.p2p.interfaces import PeerHost
from recon_node.p2p.sync.stream_slots import KeptStreams, OpenStream, StaleStreamError
from recon_node.p2p.transport.framing import FrameStream
from recon_node.p2p.transport.streams import EVENTS_BY_ID_PROTOCOL, EVENTS_PROTOCOL

USED_FOR: Final = 90.0
"""Seconds for which a stream is kept."""


class EventStreams:
    """Opens event streams, and keeps them.

    Args:
        host: opens them.
        max_frame: the largest frame to accept, in bytes.
    """

    def __init__(self, host: PeerHost, max_frame: int) -> None:
        self._host = host
        self._max_frame = max_frame
        self._kept = {
            protocol: KeptStreams(USED_FOR) for protocol in (EVENTS_PROTOCOL, EVENTS_BY_ID_PROTOCOL)
        }

    @asynccontextmanager
    async def open(self, peer_id: str, protocol: str) -> AsyncIterator[FrameStream]:
        """Yield a stream for one fetch. It is kept if the block ends well, with all answers read.

        Raises:
            PeerError: no stream can be opened.
            StaleStreamError: the stream was kept, and had ended.
        """
        opened = await self._kept[protocol].take(peer_id)
        if opened is None:
            stream = await self._host.open_stream(peer_id, protocol)
            opened = OpenStream(
                stream, FrameStream(stream, self._max_frame, account=stream.account)
            )
        opened.frames.start_count()
        try:
            yield opened.frames
        except (PeerGoneError, trio.BrokenResourceError) as error:
            await opened.stream.reset()
            if opened.has_served and not opened.frames.bytes_received:
                raise StaleStreamError(str(error)) from error
            raise
        except BaseException:
            await opened.stream.reset()
            raise
        await self._kept[protocol].put(opened)
