"""Remedies for py-libp2p's identify and identify/push: see ``hardening`` for the whole.

Stock reads messages of 1 MiB, any number of a peer's at once, falls back to reading all that comes
where a message is too long, and remembers a thousand unreadable addresses of any length for ever.
"""

from __future__ import annotations

from typing import Final

import structlog
import trio
from google.protobuf.message import DecodeError
from libp2p.abc import IHost, INetStream
from libp2p.exceptions import ParseError
from libp2p.host import basic_host
from libp2p.identity.identify.pb.identify_pb2 import Identify
from libp2p.identity.identify_push.identify_push import ID_PUSH
from libp2p.identity.update import update_peerstore_from_identify
from libp2p.io.exceptions import IncompleteReadError, MessageTooLarge
from libp2p.network.stream.exceptions import StreamError
from libp2p.peer.id import ID
from libp2p.stream_muxer.exceptions import MuxedStreamError
from libp2p.utils.varint import read_varint_prefixed_bytes_limited

log = structlog.get_logger(__name__)

MAX_IDENTIFY: Final = 8 * 1024
"""Bytes of an identify message at most; go-libp2p's limit."""
_PUSH_LIMIT: Final = 10.0
_REFUSED: Final = (
    DecodeError,
    IncompleteReadError,
    MessageTooLarge,
    MuxedStreamError,
    ParseError,
    StreamError,
    trio.TooSlowError,
)
"""What a push can be wrong with, or come to."""


def bound_identify() -> None:
    """Read identify messages up to their limit only. Applies to the whole process; idempotent."""
    basic_host.read_length_prefixed_protobuf = _read_bounded  # type: ignore[attr-defined]


async def _read_bounded(
    stream: INetStream, use_varint_format: bool = True, max_length: int = MAX_IDENTIFY
) -> bytes:
    try:
        return await read_varint_prefixed_bytes_limited(stream, min(max_length, MAX_IDENTIFY))
    except Exception:
        await stream.reset()  # or the caller would take all that comes for a message without length
        raise


class IdentifyPushes:
    """Takes what peers push about themselves: one message at a time of each, of bounded size."""

    protocol = ID_PUSH

    def __init__(self, host: IHost) -> None:
        self._host = host
        self._under_way: set[ID] = set()

    async def serve(self, stream: INetStream) -> None:
        """Read a message, and note what it says about the peer; the push has no answer."""
        peer = stream.muxed_conn.peer_id
        if peer in self._under_way:
            await stream.reset()
            return
        self._under_way.add(peer)
        try:
            with trio.fail_after(_PUSH_LIMIT):
                raw = await read_varint_prefixed_bytes_limited(stream, MAX_IDENTIFY)
            message = Identify()
            message.ParseFromString(raw)
            await update_peerstore_from_identify(self._host.get_peerstore(), peer, message)
            await stream.close()
        except _REFUSED as error:
            log.debug("Identify push refused", peer=str(peer), error=repr(error))
            await stream.reset()
        finally:
            self._under_way.discard(peer)
