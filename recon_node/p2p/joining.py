"""Starting the network side of a node, and the file of its peer book, ``peers.json``."""

from __future__ import annotations

import json
import os
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog
import trio
from libp2p.crypto.keys import KeyPair
from nacl.signing import SigningKey

from recon_node.exception_groups import unwrapped
from recon_node.files import draft_of, move_into_place
from recon_node.p2p.errors import MISBEHAVED
from recon_node.p2p.network_side import P2P
from recon_node.p2p.peers.book import PeerBook
from recon_node.p2p.peers.dht import LibraryDht
from recon_node.p2p.settings import P2PSettings
from recon_node.p2p.transport.addresses import check_dialable, parse_address, peer_id_in
from recon_node.p2p.transport.budget import REFUSED_FOR
from recon_node.p2p.transport.host import open_host
from recon_node.p2p.transport.identity import open_identity
from recon_node.p2p.transport.private_network import fingerprint, read_swarm_key
from recon_node.p2p.transport.streams import shielded
from recon_node.recon import VERSIONS, Version
from recon_node.recon.ring.peer_ring import PeerRing
from recon_node.store import Store

log = structlog.get_logger(__name__)

SEED_SIZE: Final = 32
"""Bytes of an Ed25519 seed, which a private key begins with."""
_SAVE_INTERVAL: Final = 60.0
"""Seconds between two looks whether the peer book must be saved."""
_SAVE_LIMIT: Final = 1.0
"""Seconds in which the peer book is saved at the end."""


@asynccontextmanager
async def open_p2p(
    settings: P2PSettings,
    store: Store,
    data_dir: Path,
    versions: Sequence[Version[Any]] = VERSIONS,
) -> AsyncIterator[P2P]:
    """Take part in the network of a store until the block ends.

    Args:
        settings: how to take part.
        store: its events are exchanged with peers.
        data_dir: the directory of the identity and of the known peers.
        versions: the versions of recon to speak, best first.

    Raises:
        P2PError: the identity or the swarm key cannot be used, an address cannot be listened on, or
            a bootstrap address is not valid.
    """
    if store.ring_keys is not None:  # public bootstrap nodes speak only the rings
        settings = settings.joining(store.network)
    for address in settings.bootstrap:
        peer_id_in(address)
        check_dialable(parse_address(address))
    identity = await trio.to_thread.run_sync(open_identity, data_dir)
    swarm_key = await _read_swarm_key(settings.swarm_key_file)
    book = PeerBook(settings.max_known_peers)
    await load_peers(book, data_dir)
    with unwrapped():
        async with (
            open_host(settings, identity, partial(_note_cut_off, book), swarm_key) as host,
            trio.open_nursery() as nursery,
        ):
            peer_ring = None if store.ring_keys is None else _peer_ring(identity, book)
            p2p = P2P(host, store, book, settings, versions, nursery, peer_ring)
            if settings.discovery:
                p2p.discover_by(partial(LibraryDht, host, store.network))
            nursery.start_soon(_save_from_time_to_time, book, data_dir)
            log.info("Listening for peers", peer_id=p2p.peer_id, addresses=p2p.addresses)
            try:
                yield p2p
            finally:
                nursery.cancel_scope.cancel()
                with shielded(_SAVE_LIMIT):
                    await save_peers(book, data_dir)


async def _read_swarm_key(path: Path | None) -> bytes | None:
    if path is None:
        return None
    key = await trio.to_thread.run_sync(read_swarm_key, path)
    log.info("This node is in a private network", swarm_key_fingerprint=fingerprint(key))
    return key


def _peer_ring(identity: KeyPair, book: PeerBook) -> PeerRing:
    def was_connected(peer_id: str) -> bool:
        peer = book.get(peer_id)
        return peer is not None and peer.last_sync is not None

    seed = identity.private_key.to_bytes()[:SEED_SIZE]
    return PeerRing(SigningKey(seed), pick=random.randrange, was_connected=was_connected)


def _note_cut_off(book: PeerBook, peer_id: str) -> None:
    """Leave a peer alone that was cut off because of its memory, as long as it is refused."""
    if book.get(peer_id) is not None:
        book.failed(peer_id, severity=MISBEHAVED, at_least=REFUSED_FOR)


async def _save_from_time_to_time(book: PeerBook, data_dir: Path) -> None:
    saved = book.version
    while True:
        await trio.sleep(_SAVE_INTERVAL)
        if book.version != saved:
            saved = book.version
            await save_peers(book, data_dir)


PEERS_FILE: Final = "peers.json"
_UNUSABLE: Final = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)
"""What reading a file of any content may raise."""


async def load_peers(book: PeerBook, data_dir: Path) -> None:
    """Load the book from its file, if there is one. A file that cannot be used is renamed."""
    path = data_dir / PEERS_FILE
    try:
        text = await trio.to_thread.run_sync(path.read_text)
        book.load(json.loads(text)["peers"])
    except FileNotFoundError:
        return
    except (*_UNUSABLE, OSError) as error:
        aside = path.with_suffix(".broken")
        log.warning("Cannot read the peer book; starting without it", path=str(path),
                    error=str(error), kept_as=str(aside))  # fmt: skip
        if not isinstance(error, OSError):
            await trio.to_thread.run_sync(os.replace, path, aside)


async def save_peers(book: PeerBook, data_dir: Path) -> None:
    """Save the book. If the disk fails, this is logged and the node continues."""
    content = json.dumps({"peers": book.to_json()}, indent=1)
    path = data_dir / PEERS_FILE
    try:
        await trio.to_thread.run_sync(_write, path, content)
    except OSError as error:
        log.warning("Cannot write the peer book", path=str(path), error=str(error))


def _write(path: Path, content: str) -> None:
    # At the end of the node, an earlier save may still be under way in its thread.
    with draft_of(path, wait=True) as draft:
        draft.write_text(content)
        move_into_place(draft, path)
