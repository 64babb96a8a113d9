"""The peer book on disk: ``peers.json`` in the data directory, written whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

import structlog
import trio

from recon_node.p2p.peers.book import PeerBook

log = structlog.get_logger(__name__)

PEERS_FILE: Final = "peers.json"


async def load_peers(book: PeerBook, data_dir: Path) -> None:
    """Fill the book from the file, if there is one. A file that cannot be used is put aside."""
    path = data_dir / PEERS_FILE
    try:
        text = await trio.to_thread.run_sync(path.read_text)
        book.load(json.loads(text)["peers"])
    except FileNotFoundError:
        return
    except (OSError, ValueError, TypeError, LookupError) as error:
        aside = path.with_suffix(".broken")
        log.warning("The peer book cannot be read; starting without it", path=str(path),
                    error=str(error), kept_as=str(aside))  # fmt: skip
        if not isinstance(error, OSError):
            await trio.to_thread.run_sync(os.replace, path, aside)


async def save_peers(book: PeerBook, data_dir: Path) -> None:
    """Write the book. A disk that does not take it is logged: the node runs on without."""
    content = json.dumps({"peers": book.to_json()}, indent=1)
    path = data_dir / PEERS_FILE
    try:
        await trio.to_thread.run_sync(_write, path, content)
    except OSError as error:
        log.warning("The peer book cannot be written", path=str(path), error=str(error))


def _write(path: Path, content: str) -> None:
    draft = path.with_suffix(".new")
    draft.write_text(content)
    draft.replace(path)
