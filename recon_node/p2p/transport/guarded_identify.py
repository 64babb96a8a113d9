"""Remedies for defects in py-libp2p's identify and identify/push; ``hardening`` lists them all.

Stock reads messages of up to 1 MiB, and any number of them from one peer at the same time. If a
message is too long, it reads everything that follows. It remembers a thousand unreadable addresses
of any length forever.
"""

from __future__ import annotations

from typing import Final

import structlog
import trio
from google.protobuf.message import DecodeError
from libp2p.abc import IHost, INetStream, IPeerStore
from libp2p.exceptions import BaseLibp2pError
from libp2p.host import basic_host
from libp2p.identity.identify.pb.identify_pb2 import Identify
from libp2p.identity.identify_push.identify_push import ID_PUSH
from libp2p.identity.update import update_peerstore_from_identify
from libp2p.peer.id import ID
from libp2p.utils.varint import read_varint_prefixed_bytes_limited

log = structlog.get_logger(__name__)

MAX_IDENTIFY: Final = 8 * 1024
"""Maximum bytes of an identify message, as in go-libp2p."""
MAX_AGENT: Final = 256
"""Maximum characters of the name of a peer's software."""
AGENT: Final = "agent_version"
"""The name of the field with what a peer runs, and its key in the peerstore."""
PROTOCOL_VERSION: Final = "protocol_version"
"""The same for the version of its identify protocol."""
_PUSH_LIMIT: Final = 10.0
"""Seconds in which a peer must send its push."""
_REFUSED: Final = (BaseLibp2pError, DecodeError, trio.TooSlowError)
"""The errors of a push that a peer or the connection can cause."""


def bound_identify() -> None:
    """Limit the size of identify messages. Applies to the whole process; idempotent."""
    basic_host.read_length_prefixed_protobuf = _read_bounded  # type: ignore[attr-defined]
    basic_host.update_peerstore_from_identify = _note  # type: ignore[attr-defined, assignment]


async def _read_bounded(
    stream: INetStream, use_varint_format: bool = True, max_length: int = MAX_IDENTIFY
) -> bytes:
    try:
        return await read_varint_prefixed_bytes_limited(stream, min(max_length, MAX_IDENTIFY))
    except Exception:
        await stream.reset()  # otherwise the caller reads what follows without a limit
        raise


async def _note(peerstore: IPeerStore, peer_id: ID, message: Identify) -> None:
    """Note what a peer says about itself; its software, too, which stock leaves out."""
    await update_peerstore_from_identify(peerstore, peer_id, message)
    for key in (AGENT, PROTOCOL_VERSION):
        if message.HasField(key):
            peerstore.put(peer_id, key, getattr(message, key)[:MAX_AGENT])


class IdentifyPushes:
    """Serves identify/push: one message of bounded size at a time from each peer."""

    protocol = ID_PUSH

    def __init__(self, host: IHost) -> None:
        self._host = host
        self._under_way: set[ID] = set()

    async def serve(self, stream: INetStream) -> None:
        """Read a message and note what it says about the peer; a push has no answer."""
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
            await _note(self._host.get_peerstore(), peer, message)
            await stream.close()
        except _REFUSED as error:
            log.debug("Identify push refused", peer=str(peer), error=repr(error))
            await stream.reset()
        finally:
            self._under_way.discard(peer)
