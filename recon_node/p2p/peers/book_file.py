"""The peer book's file, ``peers.json`` in the data directory."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

import structlog
import trio

from recon_node.files import draft_of, move_into_place
from recon_node.p2p.peers.book import PeerBook

log = structlog.get_logger(__name__)

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
