"""The running node: what is started on what, in which order, and how it ends.

    store  ──▶  API's port  ──▶  chain side  ──▶  network side  ──▶  API  ──▶  "ready"

The store comes first, since its lock says whether another node uses the data directory. The API's
port is taken before the network side starts, so that a taken one is told at once. Everything lives
in one tree of nurseries: whatever fails takes the rest down with it, in the opposite order.

The first SIGTERM or SIGINT asks for an orderly end: the API lets go of long polls and finishes the
requests under way, the network side says goodbye, the store writes what it was given. A second one
cuts that short. Nothing that was acknowledged can be lost by either, nor by kill -9: an event is
acknowledged only after its commit.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import structlog
import trio

from recon_node import __version__
from recon_node.api import (
    Access,
    Listener,
    ListenError,
    Services,
    create_app,
    open_listener,
    serve,
)
from recon_node.ceramic import Network
from recon_node.chain import ChainError, open_anchors
from recon_node.dag import DagError, open_dags
from recon_node.p2p import P2PError, open_p2p
from recon_node.settings import Settings, split_host_port
from recon_node.store import (
    InvalidInterestError,
    Store,
    StoreError,
    format_interest,
    is_of_a_document,
    open_store,
)

log = structlog.get_logger(__name__)


class NodeError(Exception):
    """The node cannot start or go on. The message is for people, on one line."""


FATAL_ERRORS = (NodeError, StoreError, DagError, ChainError, P2PError, ListenError)
"""What can go wrong without a bug: told in one line, never as a traceback."""


class _Ending:
    """Whether the node was asked to end, and what follows from that."""

    def __init__(self, scope: trio.CancelScope, on_ending: Callable[[], None]) -> None:
        self._scope = scope
        self._on_ending = on_ending
        self._asked = trio.Event()
        self.ready = False
        """Whether the node has started. Until then there is nothing to end in good order."""

    def ask(self, reason: str) -> None:
        if self._asked.is_set():
            log.warning("Cutting the end short", reason=reason)
            self._scope.cancel()
            return
        log.info("Stopping", reason=reason)
        self._asked.set()
        self._on_ending()
        if not self.ready:
            self._scope.cancel()

    async def wait(self) -> None:
        await self._asked.wait()


async def run_node(
    settings: Settings,
    *,
    watch_stdin: bool = False,
    on_ending: Callable[[], None] = lambda: None,
) -> None:
    """Run a node until it is told to end.

    Args:
        settings: see `recon_node.settings`.
        watch_stdin: end when standard input, a pipe, closes: for a child that must not outlive
            the process that started it.
        on_ending: called once when the end begins.

    Raises:
        one of `FATAL_ERRORS`: it cannot start or go on. It may be inside of exception groups, as
            nurseries raise them; `fatal_messages` finds it there.
    """
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with trio.open_nursery() as nursery:
            ending = _Ending(nursery.cancel_scope, on_ending)
            nursery.start_soon(_watch_signals, signals, ending)
            if watch_stdin:
                nursery.start_soon(_watch_stdin, ending)
            await _run(settings, ending)
            nursery.cancel_scope.cancel()
    log.info("Stopped")


async def _run(settings: Settings, ending: _Ending) -> None:
    network = Network.parse(settings.network)
    try:
        access = settings.access()
    except ValueError as error:
        raise NodeError(str(error)) from None
    log.info("Starting", version=__version__, network=network.name, data_dir=str(settings.data_dir))
    async with open_store(settings.data_dir, network, settings=settings.store_settings()) as store:
        await _take_up_interests(store, settings)
        listener = await open_listener(*split_host_port(settings.api))
        warn_if_open(listener, access)
        async with (
            open_dags(store, settings.data_dir) as dags,
            open_anchors(settings.chain_settings(), store) as anchors,
            open_p2p(settings.p2p_settings(), store, settings.data_dir) as p2p,
        ):
            services = Services(
                store=store,
                peers=p2p,
                anchors=anchors,
                dags=dags,
                limits=settings.limits(),
                access=access,
            )
            async with trio.open_nursery() as nursery:
                nursery.start_soon(serve, create_app(services), listener, services.closing)
                if settings.peer_id_file is not None:
                    path = settings.peer_id_file.expanduser()
                    await trio.to_thread.run_sync(_write_peer_id, path, p2p.peer_id)
                ending.ready = True
                log.info(
                    "Ready",
                    api=listener.url,
                    peer_id=p2p.peer_id,
                    addresses=list(p2p.addresses),
                    interests=[format_interest(each) for each in store.interests] or "everything",
                    events=len(store.keys),
                    head=store.head,
                )
                await ending.wait()
                services.closing.set()


def _write_peer_id(path: Path, peer_id: str) -> None:
    """Write the peer id beside its place and move it there: others may be reading the file."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        try:
            draft.write_text(f"{peer_id}\n", encoding="ascii")
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise NodeError(
            f"cannot write the peer id to {path}: {error.strerror or error}; check peer_id_file"
        ) from None


async def _take_up_interests(store: Store, settings: Settings) -> None:
    """Set the interests of the settings, before the first sync."""
    try:
        await store.wanted.configure(settings.wanted())
    except InvalidInterestError as error:
        raise NodeError(f"cannot use the setting `interests`: {error}") from None
    for interest in filter(is_of_a_document, store.interests):
        log.warning(
            "No event can ever match an interest, for its model is a document; remove it with "
            "`recon-node interests remove` and add the document's StreamID alone",
            interest=format_interest(interest),
        )


def warn_if_open(listener: Listener, access: Access) -> None:
    """Tell the operator when others can reach the API and nothing asks them who they are."""
    if access.token is None and not listener.is_loopback:
        log.warning(
            "Whoever reaches the API can write to this node: set a token (token_file), or listen "
            "on the loopback alone (api = 127.0.0.1:PORT)",
            api=listener.url,
        )


def fatal_messages(error: BaseException) -> list[str] | None:
    """The messages of all `FATAL_ERRORS` in `error`, or None if there is anything else in it."""
    leaves = list(_leaves(error))
    if not all(isinstance(leaf, FATAL_ERRORS) for leaf in leaves):
        return None
    return list(dict.fromkeys(str(leaf) for leaf in leaves))


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


async def _watch_signals(signals: AsyncIterator[int], ending: _Ending) -> None:
    async for number in signals:
        ending.ask(signal.Signals(number).name)


async def _watch_stdin(ending: _Ending) -> None:
    stdin = sys.stdin.fileno()
    try:
        await trio.lowlevel.wait_readable(stdin)
        while os.read(stdin, 4096):
            await trio.lowlevel.wait_readable(stdin)
    except OSError as error:
        raise NodeError(f"--watch-stdin needs a pipe as standard input: {error}") from error
    ending.ask("standard input closed")
