"""Recon on a stream: drives a pure ``Session`` of any version, one message a frame.

Each turn: read what the peer says, fetch and admit the events of the keys that are new to us,
answer. ``obtain`` does the fetching: it gets keys, and returns those whose events could not be had.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import trio

from recon_node.ceramic import EventId
from recon_node.p2p.errors import PeerGoneError
from recon_node.p2p.settings import P2PSettings
from recon_node.p2p.transport.framing import FrameStream
from recon_node.recon.protocols import Protocol
from recon_node.recon.session import Session

Obtain = Callable[[list[EventId]], Awaitable[list[EventId]]]

_LONG_MESSAGE: Final = 32 * 1024
"""Above so many bytes a message is parsed in a worker thread, to keep other streams going."""

_DECODERS: Final = 2
"""Long messages parsed at once: what they take is charged only when it is known."""
_limiter = trio.lowlevel.RunVar[trio.CapacityLimiter]("recon_decoders")


def decoders() -> trio.CapacityLimiter:
    """Return the limiter of the threads that parse long messages, one for each run of trio."""
    try:
        return _limiter.get()
    except LookupError:
        _limiter.set(trio.CapacityLimiter(_DECODERS))
        return _limiter.get()


class StaleStreamError(PeerGoneError):
    """A stream that was kept has ended before the session on it began: open another one."""


@dataclass(frozen=True, slots=True)
class ReconStream:
    """A session, and the stream that it runs on."""

    protocol: Protocol
    session: Session[Any]
    frames: FrameStream
    obtain: Obtain
    settings: P2PSettings
    has_served: bool = False
    """Whether an earlier session has ended on this stream."""

    async def initiate(self) -> None:
        """Run a session that we start, to its end in agreement.

        Raises as ``respond`` does, and StaleStreamError.
        """
        try:
            await self._send([self.session.start()])
            await self.respond()
        except (PeerGoneError, trio.BrokenResourceError) as error:
            if self.has_served and not self.session.rounds:
                raise StaleStreamError(str(error)) from error
            raise

    async def respond(self, on_asked: Callable[[], None] = lambda: None) -> None:
        """Take turns with the peer until the session ends in agreement, but for keys left out.

        ``on_asked`` is called when the peer's first message has been understood. Raises
        PeerProtocolError or RemoteProtocolError when the peer breaks a protocol or takes too long,
        PeerGoneError or trio.BrokenResourceError when the stream is lost.
        """
        session, account = self.session, self.frames.account
        held = 0
        while not session.done:
            received = await self._receive()
            if received is None:
                break
            message, weight = received
            held += weight
            account.hold("turns", held)
            new_keys = session.receive(message)
            del message, received
            if session.rounds == 1:
                on_asked()
            if new_keys:
                session.give_up(await self.obtain([EventId(key) for key in new_keys]))
            if session.turn_complete and not session.done:
                answer = await self._answer()
                held = 0
                account.hold("turns", held)
                await self._send(answer)
                del answer
        account.hold("turns", 0)

    async def _answer(self) -> list[Any]:
        """Compute the answer, which may take a while, without keeping other tasks waiting."""
        steps = self.session.respond_in_steps()
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return list(end.value)
            await trio.lowlevel.checkpoint()

    async def _receive(self) -> tuple[Any, int] | None:
        """Return the peer's next message and the memory it takes, in bytes; None at a good end."""
        # Only an answer takes work, and only before its first byte: what opens a session does not,
        # nor does the rest of a turn.
        session = self.session
        answers = session.turn_complete or (session.initiates and not session.rounds)
        until_begun = self.settings.turn_timeout if answers else 0.0
        data = await self.frames.receive(self.settings.idle_timeout, until_begun)
        if data is None:
            if session.end_of_stream():
                return None
            raise PeerGoneError("the peer ended the stream before the session was over")
        if len(data) <= _LONG_MESSAGE:
            return self._decode(data)
        self.frames.account.hold("messages", len(data))
        decoded = await trio.to_thread.run_sync(self._decode, data, limiter=decoders())
        self.frames.account.hold("messages", 0)
        return decoded

    def _decode(self, data: bytes) -> tuple[Any, int]:
        message = self.protocol.decode(data)
        return message, self.protocol.weigh(message)

    async def _send(self, messages: list[Any]) -> None:
        try:
            await self._send_all(messages)
        except trio.BrokenResourceError:
            if not self.session.done:  # else the peer has had its last word, and needs not ours
                raise

    async def _send_all(self, messages: list[Any]) -> None:
        # In a turn of several messages the peer fetches the events of one before it reads the next.
        several, settings = len(messages) > 1, self.settings
        patience = settings.turn_timeout if several else settings.idle_timeout
        account = self.frames.account
        account.hold("answers", sum(map(self.protocol.weigh, messages)))
        await self.frames.send(map(self.protocol.encode, messages), patience)
        account.hold("answers", 0)
