"""Sessions with peers, as initiator and as responder: their slots, and the streams they run on.

What a session is about is up to the protocol of its stream: ``Reconciler`` has those that reconcile
in turns, ``Rings`` those of ceramic-one. How a session runs is in session_run.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import trio

from recon_node.p2p.errors import BROKEN_PROTOCOL, MISBEHAVED, PEER_FAILURES
from recon_node.p2p.interfaces import PeerHost
from recon_node.p2p.peers.book import PeerBook
from recon_node.p2p.settings import P2PSettings
from recon_node.p2p.sync.reports import Counters, SyncHistory
from recon_node.p2p.sync.session_run import Run, run_session
from recon_node.p2p.sync.stream_slots import (
    KEPT_FOR,
    KeptStreams,
    OpenStream,
    Slots,
    StaleStreamError,
)
from recon_node.p2p.transport.framing import FrameStream
from recon_node.p2p.transport.streams import PeerStream
from recon_node.store import StoreError

R = TypeVar("R", bound=Run[Any])


class Answerer(Protocol):
    """Answers the sessions of some protocols."""

    slots: Slots
    """For the sessions that peers start."""

    def keeps_stream(self, protocol: str) -> bool:
        """Return whether a stream may carry another session after one that ended well."""
        ...

    def answer(self, opened: OpenStream) -> Run[Any]:
        """Begin a session that a peer starts."""
        ...


class Sessions:
    """Runs all sessions of the node.

    Args:
        host: opens streams to peers, and takes theirs.
        book: records how peers behave.
        settings: the limits.
        history: gets a report of each session.
        counters: counts what is not in a report.
    """

    def __init__(
        self,
        host: PeerHost,
        book: PeerBook,
        settings: P2PSettings,
        history: SyncHistory,
        counters: Counters,
    ) -> None:
        self._host = host
        self._book = book
        self._settings = settings
        self._history = history
        self._counters = counters
        self._answerers: dict[str, Answerer] = {}
        self._kept = KeptStreams()
        self._waiting = Slots(settings.max_connections, 1)
        """Streams that peers opened and that wait for their next session."""

    def speak(self, protocols: Sequence[str], answerer: Answerer) -> None:
        """Answer sessions of some protocols from now on, and start them."""
        for protocol in protocols:
            self._answerers[protocol] = answerer
            self._host.handle(protocol, self.serve)

    async def initiate(
        self, peer_id: str, protocols: Sequence[str], begin: Callable[[OpenStream], R]
    ) -> R:
        """Run a session on the stream that is kept with a peer, or on a new one; return it.

        Args:
            peer_id: a connected peer.
            protocols: what to speak, the best first; streams of all of them are kept, or of none.
            begin: makes the session.

        Raises:
            Exception: one of ``PEER_FAILURES`` if the session fails, or StoreError.
        """
        opened = await self._kept.take(peer_id) if self._keeps_stream(protocols[0]) else None
        if opened is None:
            stream = await self._host.open_stream(peer_id, *protocols)
            opened = OpenStream(stream, self._frames(stream))
        run = begin(opened)
        try:
            await run_session(run, self._settings.session_timeout, self._history)
        except StaleStreamError:  # the kept stream is gone; this opens a new one
            await opened.stream.reset()
            return await self.initiate(peer_id, protocols, begin)
        except BaseException:
            del run  # what the session holds
            await opened.stream.reset()
            raise
        if self._keeps_stream(opened.stream.protocol):
            await self._kept.put(opened)
        else:
            await opened.stream.aclose()
        return run

    async def serve(self, stream: PeerStream) -> None:
        """Answer the sessions that a peer starts on a stream, one after another."""
        opened = OpenStream(stream, self._frames(stream))
        while await self._serve_session(opened) and self._keeps_stream(stream.protocol):
            is_kept = False
            with (
                trio.CancelScope() as scope,
                self._waiting.taken_by(stream.peer_id, stream.address, scope.cancel) as has_slot,
            ):
                is_kept = has_slot and await opened.frames.wait_for_frame(KEPT_FOR)
            if not is_kept:
                return

    async def _serve_session(self, opened: OpenStream) -> bool:
        """Answer a session; return whether it ended well."""
        stream, answerer = opened.stream, self._answerers[opened.stream.protocol]
        scope = trio.CancelScope()
        with answerer.slots.taken_by(stream.peer_id, stream.address, scope.cancel) as has_slot:
            if not has_slot:
                self._counters.sessions_refused += 1
                await stream.reset()
                return False
            run = answerer.answer(opened)
            try:
                await run_session(run, self._settings.session_timeout, self._history, scope)
            except (*PEER_FAILURES, StoreError) as error:  # reported already
                if isinstance(error, BROKEN_PROTOCOL):
                    self._book.failed(stream.peer_id, severity=MISBEHAVED)
                del run  # what the session holds
                await stream.reset()
                return False
        self._book.was_visited(stream.peer_id, time.time())
        if run.tally.undelivered:
            self._book.failed(stream.peer_id, misled=True)
        return True

    def _keeps_stream(self, protocol: str) -> bool:
        return self._answerers[protocol].keeps_stream(protocol)

    def _frames(self, stream: PeerStream) -> FrameStream:
        return FrameStream(stream, self._settings.max_frame, account=stream.account)
