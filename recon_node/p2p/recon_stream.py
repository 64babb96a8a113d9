"""Recon on ``/ceramic/recon/1.0.0``: drives a pure ``Session`` over a stream, one message a frame.

Each turn: read the peer's message, fetch and admit the events of the keys that are new to us,
answer. ``obtain`` does the fetching: it gets keys, and returns those whose events could not be had.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import trio

from recon_node.ceramic import EventId
from recon_node.p2p.errors import PeerGoneError
from recon_node.p2p.framing import FrameStream
from recon_node.p2p.settings import P2PSettings
from recon_node.recon import Message, Session, decode_message, encode_message

Obtain = Callable[[list[EventId]], Awaitable[list[EventId]]]

_LONG_MESSAGE: Final = 32 * 1024
"""Above so many bytes a message is parsed in a worker thread, to keep other streams going."""


async def initiate(
    session: Session, frames: FrameStream, obtain: Obtain, settings: P2PSettings
) -> None:
    """Run a session that we start, to its end in agreement. Raises as ``respond`` does."""
    await _send(frames, session.start(), settings)
    await respond(session, frames, obtain, settings)


async def respond(
    session: Session,
    frames: FrameStream,
    obtain: Obtain,
    settings: P2PSettings,
    on_asked: Callable[[], None] = lambda: None,
) -> None:
    """Take turns with the peer until the session ends in agreement.

    ``on_asked`` is called once, when the peer's first message has been understood. Raises
    PeerProtocolError or RemoteProtocolError when the peer breaks a protocol or is silent for too
    long, PeerGoneError or trio.BrokenResourceError when the stream is lost.
    """
    while not session.done:
        message = await _receive(frames, settings)
        new_keys = session.receive(message)
        if session.rounds == 1:
            on_asked()
        if session.done:
            return
        if new_keys:
            session.give_up(await obtain([EventId(key) for key in new_keys]))
        if session.turn_complete:
            for reply in session.respond():
                await _send(frames, reply, settings)


async def _receive(frames: FrameStream, settings: P2PSettings) -> Message:
    data = await frames.receive(settings.turn_timeout)
    if data is None:
        raise PeerGoneError("the peer ended the stream before the session was over")
    if len(data) <= _LONG_MESSAGE:
        return decode_message(data)
    return await trio.to_thread.run_sync(decode_message, data)


async def _send(frames: FrameStream, message: Message, settings: P2PSettings) -> None:
    await frames.send([encode_message(message)], settings.idle_timeout)
