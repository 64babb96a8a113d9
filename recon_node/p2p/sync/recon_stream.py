"""Recon on a stream: drives a pure ``Session`` of any version, one message a frame.

Each turn: read what the peer says, fetch and admit the events of the keys that are new to us,
answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass, field
from typing import Any, Final

import trio

from recon_node.ceramic import EventId
from recon_node.p2p.errors import PeerError, PeerGoneError
from recon_node.p2p.settings import P2PSettings
from recon_node.p2p.sync.steps import in_steps
from recon_node.p2p.sync.stream_slots import StaleStreamError
from recon_node.p2p.transport.framing import FrameStream
from recon_node.recon import Missing, Session, Version

Obtain = Callable[[list[EventId]], Awaitable[list[EventId]]]
ObtainById = Callable[[Missing], Awaitable[tuple[list[EventId], list[bytes]]]]

MAX_UNWANTED: Final = 500_000
"""Maximum keys that a peer may list in a session and that we refuse or do not want."""
UNWANTED_WEIGHT: Final = 160
"""Bytes of memory that such a key takes."""


@dataclass(frozen=True, slots=True)
class ReconStream:
    """A session, and the stream that it runs on."""

    version: Version[Any]
    session: Session[Any]
    frames: FrameStream
    obtain: Obtain
    """Gets the events of some keys; returns the keys for which it failed."""
    settings: P2PSettings
    decoders: trio.CapacityLimiter
    """Bounds how many long messages are decoded at once: their memory is charged afterwards."""
    has_served: bool = False
    """Whether an earlier session has ended on this stream."""
    is_excused: Callable[[EventId], bool] = lambda key: False
    """Whether it is our choice that the event of a key is not here: other nodes may take it."""
    unwanted: list[EventId] = field(default_factory=list)
    """Those keys, as far as the peer has listed them in this session."""
    in_steps: Callable[[Generator[None, None, Any]], Awaitable[Any]] = in_steps
    """Does a computation, as fast as the peer may have it done."""
    obtain_by_id: ObtainById | None = None
    """Gets events by their ids; returns the keys of those refused, and the ids of those that the
    peer did not deliver. None if keys have to be seen before events."""

    async def initiate(self) -> None:
        """Run a session that we start, until both sides agree.

        Raises:
            StaleStreamError: the stream was kept, and has ended before the session began.
            Exception: as ``respond`` does.
        """
        try:
            await self._send(await self.in_steps(self.session.start()))
            await self.respond()
        except (PeerGoneError, trio.BrokenResourceError) as error:
            if self.has_served and not self.session.side.rounds:
                raise StaleStreamError(str(error)) from error
            raise

    async def respond(self, on_asked: Callable[[], None] = lambda: None) -> None:
        """Take turns with the peer until both sides agree on all keys except those left out.

        ``on_asked`` is called when the peer's first message has been understood.

        Raises:
            PeerProtocolError: the peer takes too long, or its bytes are not frames.
            RemoteProtocolError: the peer breaks the recon protocol.
            PeerGoneError: the stream ended too early.
            PeerError: the peer holds too much that we do not want.
            trio.BrokenResourceError: the stream was lost.
        """
        session, side, account = self.session, self.session.side, self.frames.account
        held = 0
        while not side.done:
            received = await self._receive()
            if received is None:
                break
            message, weight = received
            held += weight
            account.hold("turns", held)
            new_keys = session.receive(message)
            del message, received
            if side.rounds == 1:
                on_asked()
            if new_keys:
                missing = await self.obtain([EventId(key) for key in new_keys])
                self._leave_out([key for key in missing if self.is_excused(key)])
                side.give_up(missing)
            if side.answer_due:
                if self.obtain_by_id is not None:
                    await self._fetch_by_id(self.obtain_by_id)
                answer = await self.in_steps(session.respond())
                held = 0
                account.hold("turns", held)
                await self._send(answer)
                del answer
        account.hold("turns", 0)
        account.hold("unwanted keys", 0)

    def _leave_out(self, keys: list[EventId]) -> None:
        """Leave out keys that we refuse or do not want; nobody is to blame for them."""
        if not keys:
            return
        self.unwanted.extend(keys)
        if len(self.unwanted) > MAX_UNWANTED:
            raise PeerError(
                f"the peer holds more than {MAX_UNWANTED:,} events that this node or its write "
                "policy refuses, or that cost their makers nothing: narrow the node's interests"
            )
        self.frames.account.hold("unwanted keys", UNWANTED_WEIGHT * len(self.unwanted))
        self.session.side.leave_out(keys)

    async def _fetch_by_id(self, obtain: ObtainById) -> None:
        """Get the events that the peer's turn names by id."""
        missing = await self.in_steps(self.session.find_missing())
        if missing is not None:
            refused, undelivered = await obtain(missing)
            self._leave_out([key for key in refused if self.is_excused(key)])
            self.session.side.give_up(refused)
            self.session.give_up_ids(undelivered)

    async def _receive(self) -> tuple[Any, int] | None:
        """Return the peer's next message and its bytes of memory; None if the stream ended well."""
        # Only an answer takes work, and only before its first byte: the first message of a session
        # does not, nor does the rest of a turn.
        until_begun = self.settings.turn_timeout if self.session.side.awaits_answer else 0.0
        data = await self.frames.receive(self.settings.idle_timeout, until_begun)
        if data is None:
            if self.session.end_of_stream():
                return None
            raise PeerGoneError("the peer ended the stream before the session was over")
        if len(data) <= self.settings.long_message:
            return self._decode(data)
        self.frames.account.hold("messages", len(data))
        decoded = await trio.to_thread.run_sync(self._decode, data, limiter=self.decoders)
        self.frames.account.hold("messages", 0)
        return decoded

    def _decode(self, data: bytes) -> tuple[Any, int]:
        message = self.version.decode(data)
        return message, self.version.weigh(message)

    async def _send(self, messages: list[Any]) -> None:
        try:
            await self._send_all(messages)
        except trio.BrokenResourceError:
            if not self.session.side.done:  # else the peer has said its last word
                raise

    async def _send_all(self, messages: list[Any]) -> None:
        # In a turn of several messages the peer fetches the events of one before it reads the next.
        several, settings = len(messages) > 1, self.settings
        patience = settings.turn_timeout if several else settings.idle_timeout
        account = self.frames.account
        account.hold("answers", sum(map(self.version.weigh, messages)))
        await self.frames.send(map(self.version.encode, messages), patience)
        account.hold("answers", 0)
