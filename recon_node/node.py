"""The running node: what it starts, in which order, and how it stops.

    store ──▶ API's port ──▶ indexes ──▶ chains ──▶ anchoring ──▶ peers ──▶ API ──▶ "Ready"

The store comes first, since its lock shows whether another node uses the data directory. The API's
port is taken before the peers are started, so that a port in use is reported at once. Everything
lives in one tree of nurseries: an error anywhere stops the rest, in reverse order.

The first SIGTERM, SIGINT or SIGHUP (a terminal that closes) starts an orderly shutdown: the API
answers long polls and finishes the requests under way, the network side says goodbye, the store
writes what it was given. A second signal cuts that short. Neither can lose an acknowledged event,
nor can kill -9: an event is acknowledged only after its commit.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, closing
from pathlib import Path

import structlog
import trio

from recon_node import __version__
from recon_node.anchoring.anchoring_service import open_anchoring
from recon_node.anchoring.authority import AuthorityError
from recon_node.anchoring.journal import JournalError
from recon_node.api.app import create_app
from recon_node.api.endpoint import Services
from recon_node.api.evaluation import open_evaluation
from recon_node.api.listener import Listener, ListenError, open_listener
from recon_node.api.server import serve
from recon_node.api.settings import Access, ApiSettings, split_host_port
from recon_node.base.errors import leaves, reason_of
from recon_node.base.files import (
    draft_of,
    is_exposed,
    is_shared,
    move_into_place,
    private_directory,
)
from recon_node.base.program import collect_seldom, stop_signals
from recon_node.ceramic import Network, StreamId
from recon_node.chain import ChainError, open_anchors
from recon_node.dag.dag_service import open_dags
from recon_node.feed_index import FeedIndexError
from recon_node.p2p import P2P, P2PError, open_p2p
from recon_node.p2p.transport.identity import open_identity, peer_id_of, signing_key_of
from recon_node.settings import Settings
from recon_node.snapshot.snapshot_service import open_snapshots
from recon_node.store import (
    Interest,
    InvalidInterestError,
    Policy,
    PolicySettings,
    Store,
    StoreError,
    format_interest,
    is_of_a_document,
    open_store,
)
from recon_node.tangles.index import open_tangles

logger = structlog.get_logger(__name__)

_READABLE = 0o644
"""The mode of the file with the peer ID: others are to read it."""


class StartError(Exception):
    """The node cannot start or continue. The message is one user-facing line."""


FATAL_ERRORS = (
    StartError,
    StoreError,
    FeedIndexError,
    ChainError,
    AuthorityError,
    JournalError,
    P2PError,
    ListenError,
)
"""Errors that are not bugs: they are reported in one line, not as a traceback."""


async def run_node(
    settings: Settings, *, watch_stdin: bool = False, on_stopping: Callable[[], None] = lambda: None
) -> None:
    """Run a node until it is stopped.

    Args:
        settings: see `recon_node.settings`.
        watch_stdin: stop when standard input, a pipe, closes: for a child process that must not
            outlive its parent.
        on_stopping: called once when the shutdown starts.

    Raises:
        one of `FATAL_ERRORS`: it cannot start or continue. It may be in exception groups, as
            nurseries raise them; `fatal_messages` finds it there.
    """
    with trio.open_signal_receiver(*stop_signals()) as signals:
        async with trio.open_nursery() as nursery:
            shutdown = _Shutdown(nursery.cancel_scope, on_stopping)
            nursery.start_soon(_watch_signals, signals, shutdown)
            if watch_stdin:
                nursery.start_soon(_watch_stdin, shutdown)
            await _run_services(settings, shutdown)
            nursery.cancel_scope.cancel()
    logger.info("Stopped")


async def _run_services(settings: Settings, shutdown: _Shutdown) -> None:
    """Start everything, in order; wait for the shutdown; stop everything, in reverse order."""
    network = Network.parse(settings.network)
    if settings.chain.development_time and not network.is_local:
        raise StartError(
            f"development_time is for local networks only, not for {network.name}: its times prove "
            "nothing"
        )
    access = _open_access(settings.api)
    logger.info(
        "Starting", version=__version__, network=network.name, data_dir=str(settings.data_dir)
    )
    await trio.to_thread.run_sync(_protect, settings.data_dir)
    policy = _policy_of(settings.policy)
    async with open_store(
        settings.data_dir, network, settings=settings.store, policy=policy
    ) as store:
        await _configure_interests(store, settings.wanted())
        with closing(await open_listener(*split_host_port(settings.api.address))) as listener:
            warn_if_open(listener, access)
            await _run_parts(settings, store, listener, access, shutdown)


async def _run_parts(
    settings: Settings, store: Store, listener: Listener, access: Access, shutdown: _Shutdown
) -> None:
    """Start what needs the store, and serve; see `_run_services`."""
    identity = await trio.to_thread.run_sync(open_identity, settings.data_dir)
    signing_key, peer_id = signing_key_of(identity), peer_id_of(identity)
    async with (
        open_dags(store, settings.data_dir) as dags,
        open_tangles(store, settings.data_dir) as tangles,
        open_anchors(settings.chain, store) as anchors,
        open_anchoring(settings.anchor, settings.chain, store, settings.data_dir) as anchoring,
        open_snapshots(settings.snapshot, store, signing_key) as snapshots,  # before peers are met
        _open_p2p(settings, store) as p2p,
        trio.open_nursery() as nursery,
        trio.open_nursery() as background,
        open_evaluation() as evaluation,
    ):
        services = Services(
            store=store,
            peers=p2p,
            anchors=anchors,
            anchoring=anchoring,
            dags=dags,
            tangles=tangles,
            snapshots=snapshots,
            limits=settings.api.limits,
            access=access,
            always_admit=settings.p2p.always_admit,
            data_dir=settings.data_dir,
            evaluation=evaluation,
        )
        nursery.start_soon(
            serve,
            create_app(services),
            listener,
            services.closing,
            access.hosts,
            services.always_admit,
        )
        background.start_soon(services.loop.run)
        background.start_soon(evaluation.warm_up)
        if settings.peer_id_file is not None:
            await trio.to_thread.run_sync(_write_peer_id, settings.peer_id_file, peer_id)
        collect_seldom()
        logger.info(
            "Ready",
            api=listener.url,
            peer_id=peer_id,
            addresses=[] if p2p is None else list(p2p.addresses),
            interests=[format_interest(interest) for interest in store.wanted.all] or "everything",
            events=len(store.keys),
            head=store.head,
        )
        await shutdown.requested()
        services.closing.set()
        background.cancel_scope.cancel()


class _Shutdown:
    """The request to stop, and what follows from it."""

    def __init__(self, scope: trio.CancelScope, on_stopping: Callable[[], None]) -> None:
        self._scope = scope
        self._on_stopping = on_stopping
        self._request = trio.Event()
        self._can_be_orderly = False

    def request(self, reason: str) -> None:
        """Stop in order; at once if the node is still starting, or if this is the second time."""
        if self._request.is_set():
            logger.warning("Shutdown is taking too long; closing now", reason=reason)
            self._scope.cancel()
            return
        logger.info("Stopping", reason=reason)
        self._request.set()
        self._on_stopping()
        if not self._can_be_orderly:
            self._scope.cancel()

    async def requested(self) -> None:
        """Wait for the request. From now on, the shutdown is orderly."""
        self._can_be_orderly = True
        await self._request.wait()


async def _watch_signals(signals: AsyncIterator[int], shutdown: _Shutdown) -> None:
    async for number in signals:
        shutdown.request(signal.Signals(number).name)


async def _watch_stdin(shutdown: _Shutdown) -> None:
    stdin = sys.stdin.fileno()
    try:
        await trio.lowlevel.wait_readable(stdin)
        while os.read(stdin, 4096):
            await trio.lowlevel.wait_readable(stdin)
    except OSError as error:
        raise StartError(f"--watch-stdin needs a pipe as standard input: {error}") from error
    shutdown.request("standard input closed")


@asynccontextmanager
async def _open_p2p(settings: Settings, store: Store) -> AsyncIterator[P2P | None]:
    """Open the network side, unless the node is to do without."""
    if settings.p2p.offline:
        logger.info("Offline: no peer is dialled, and none can connect")
        yield None
        return
    async with open_p2p(settings.p2p, store, settings.data_dir) as p2p:
        yield p2p


def _protect(data_dir: Path) -> None:
    """Keep other users out of the data directory, and say so if they could read it before."""
    try:
        exposed = private_directory(data_dir)
    except OSError:
        return  # opening the store raises the same error
    if is_shared(data_dir):
        logger.warning(
            "The data directory has other uses, too, so others may read it: give the node its own",
            path=str(data_dir),
        )
    elif exposed:
        logger.warning(
            "Other users could read files of the data directory; now its owner alone can",
            path=str(data_dir),
            files=len(exposed),
        )


def _open_access(settings: ApiSettings) -> Access:
    file = settings.token_file
    if file is not None and is_exposed(file.expanduser()):
        logger.warning("Other users can read the token file: run chmod 600 on it", path=str(file))
    try:
        return settings.access_with_token()
    except ValueError as error:
        raise StartError(str(error)) from None


def _write_peer_id(path: Path, peer_id: str) -> None:
    """Write the peer id, in one step: others may be reading the file."""
    path = path.expanduser()
    try:
        with draft_of(path) as draft:
            draft.write_text(f"{peer_id}\n", encoding="ascii")
            draft.chmod(_READABLE)
            move_into_place(draft, path)
    except OSError as error:
        raise StartError(
            f"cannot write the peer id to {path}: {reason_of(error)}; check peer_id_file"
        ) from None


def _policy_of(settings: PolicySettings) -> Policy:
    """Return the write policy, and say which one it is: it decides what the node keeps."""
    policy = Policy.of(settings)
    if policy:
        logger.info("A write policy applies", **settings.in_use())
    return policy


async def _configure_interests(store: Store, wanted: Iterable[Interest | StreamId]) -> None:
    """Give the store the interests of the settings, before the first sync."""
    try:
        await store.wanted.configure(wanted)
    except InvalidInterestError as error:
        raise StartError(f"cannot use the setting `interests`: {error}") from None
    for interest in filter(is_of_a_document, store.wanted.all):
        logger.warning(
            "No event can match an interest, because its model is a document; remove it with "
            "`recon-node interests remove`, and add the document's StreamID alone",
            interest=format_interest(interest),
        )


def warn_if_open(listener: Listener, access: Access) -> None:
    """Warn the operator if others can reach the API and it has no token."""
    if access.token is None and not listener.is_loopback:
        logger.warning(
            "Everyone who can reach the API can write to this node: set a token (token_file), or "
            "listen on the loopback interface only (api = 127.0.0.1:PORT)",
            api=listener.url,
        )


def fatal_messages(error: BaseException) -> list[str] | None:
    """Return the messages of all `FATAL_ERRORS` in `error`; None if it contains another error."""
    causes = list(leaves(error))
    if not all(isinstance(cause, FATAL_ERRORS) for cause in causes):
        return None
    return list(dict.fromkeys(map(str, causes)))
