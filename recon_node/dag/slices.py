"""Blocks that are parts of files: read where they are, and checked against their CIDs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, NamedTuple

from recon_node.dag.errors import DagError
from recon_node.ipld import CID, CidError


class Slice(NamedTuple):
    """A part of a file: the file's number, and offset and size in bytes."""

    file: int
    offset: int
    size: int


class Slices:
    """Reads slices of files, keeping the last file open."""

    def __init__(self) -> None:
        self._paths: list[Path] = []
        self._open: tuple[int, BinaryIO] | None = None

    def add(self, path: Path) -> int:
        """Add a file, and return its number."""
        self._paths.append(path)
        return len(self._paths) - 1

    def read(self, cid: CID, place: Slice, wrap: Callable[[bytes], bytes] | None = None) -> bytes:
        """Read the block at a place; if only its content is there, `wrap` makes the block of it.

        Raises:
            DagError: the file cannot be read, or has something else there.
        """
        path = self._paths[place.file]
        try:
            if self._open is None or self._open[0] != place.file:
                self.close()
                self._open = place.file, path.open("rb")
            file = self._open[1]
            file.seek(place.offset)
            block = file.read(place.size)
        except OSError as error:
            raise DagError(f"{path} cannot be read: {error.strerror or error}") from None
        if wrap is not None:
            block = wrap(block)
        if not _matches(cid, block):
            raise DagError(
                f"{path}: the {place.size} bytes at byte {place.offset} are not the block {cid}: "
                "the file has been changed, or is damaged"
            )
        return block

    def close(self) -> None:
        """Close the file that is open."""
        if self._open is not None:
            self._open[1].close()
            self._open = None


def _matches(cid: CID, block: bytes) -> bool:
    try:
        return cid.matches(block)
    except CidError as error:
        raise DagError(str(error)) from None
