"""A file or a directory as a DAG: UnixFS with the CIDs that kubo gives it.

The content of files is not loaded into memory, only the position of each chunk. Chunks are read on
demand and checked against their CIDs, which detects a file changed in between.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from recon_node.dag.directories import directory
from recon_node.dag.errors import DagError, LeftOut, UnixFsError
from recon_node.dag.protocol.shards import walk
from recon_node.dag.slices import Slice, Slices
from recon_node.dag.unixfs import (
    NO_ATTRIBUTES,
    Attributes,
    FileLayout,
    NodeType,
    UnixFs,
    UnixFsEntry,
    balanced,
    leaf_node,
    put_node,
)
from recon_node.ipld import CID, DAG_PB, RAW

_MAX_NAMED: Final = 10
"""Paths that a note names."""


@dataclass(frozen=True, slots=True)
class Preserve:
    """Which attributes of files and directories are kept, as `ipfs add --preserve-...` does."""

    mode: bool = False
    mtime: bool = False

    def __bool__(self) -> bool:
        return self.mode or self.mtime


class FileTree:
    """A file, or a directory with everything in it, as UnixFS; including hidden files.

    Its CID is that of `ipfs add --cid-version=1 --chunker=size-262144` (for directories with
    `--recursive --hidden`), unless the layout is another one. Symlinks in directories are kept as
    they are. Sockets, FIFOs and devices are left out.

    Raises:
        DagError: something cannot be read, or `path` is neither a file nor a directory.
    """

    def __init__(
        self,
        path: Path,
        layout: FileLayout = FileLayout(),  # noqa: B008 - immutable
        preserve: Preserve = Preserve(),
    ) -> None:
        self._slices = Slices()
        self._layout = layout
        self._preserve = preserve
        self._leaves: dict[CID, tuple[Slice, UnixFs | None]] = {}
        self._nodes: dict[CID, bytes] = {}
        self._skipped: list[str] = []
        try:
            tree = self._add(path)
        except OSError as error:
            raise DagError(
                f"{_shown(error.filename or path)} cannot be read: {error.strerror or error}"
            ) from None
        except UnixFsError as error:
            raise DagError(str(error)) from None
        if tree is None:
            raise DagError(f"{_shown(path)} is neither a file nor a directory")
        self.root = tree.cid
        self.size = tree.total

    def read(self, cid: CID) -> bytes:  # noqa: D102 - see DagSource
        node = self._nodes.get(cid)
        if node is not None:
            return node
        place, wrapping = self._leaves[cid]
        if wrapping is None:
            return self._slices.read(cid, place)
        return self._slices.read(cid, place, partial(leaf_node, wrapping))

    def blocks(self) -> Iterator[tuple[CID, bytes]]:  # noqa: D102 - see DagSource
        return walk(self.root, self.read)

    def left_out(self) -> LeftOut | None:  # noqa: D102 - see DagSource
        if not self._skipped:
            return None
        what = "entries are sockets, FIFOs or devices and were not pushed"
        if len(self._skipped) == 1:
            what = "entry is a socket, FIFO or device and was not pushed"
        return LeftOut(len(self._skipped), what, tuple(self._skipped[:_MAX_NAMED]))

    def close(self) -> None:
        """Close the file that is open."""
        self._slices.close()

    def _add(self, path: Path) -> UnixFsEntry | None:
        if not stat.S_ISDIR(path.lstat().st_mode):
            return self._add_other(path)
        directories = [path]
        for each in directories:  # grows during the loop: every directory precedes those in it
            directories += (Path(e) for e in os.scandir(each) if e.is_dir(follow_symlinks=False))
        trees: dict[Path, UnixFsEntry] = {}
        for each in reversed(directories):
            entries: list[tuple[str, UnixFsEntry]] = []
            for inner in each.iterdir():
                tree = trees.pop(inner) if inner in trees else self._add_other(inner)
                if tree is None:
                    self._skipped.append(_shown(inner))
                else:
                    entries.append((inner.name, tree))
            trees[each] = directory(entries, self._put, self._attributes(each.stat()))
        return trees[path]

    def _add_other(self, path: Path) -> UnixFsEntry | None:
        """A file or a symlink; None for anything else, which is not opened."""
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode):
            target = os.fsencode(path.readlink())
            attributes = replace(self._attributes(status), mode=None)
            return put_node((), UnixFs(NodeType.SYMLINK, target, attributes=attributes), self._put)
        return self._add_file(path, status) if stat.S_ISREG(status.st_mode) else None

    def _add_file(self, path: Path, status: os.stat_result) -> UnixFsEntry:
        number = self._slices.add(path)
        attributes = self._attributes(status)
        leaves: list[UnixFsEntry] = []
        size = self._layout.chunk
        with path.open("rb") as file:
            offset, chunk = 0, file.read(size)
            while True:
                following = file.read(size) if len(chunk) == size else b""
                is_whole = not offset and not following
                wrapping = self._wrapping(attributes if is_whole else NO_ATTRIBUTES)
                leaves.append(self._add_leaf(Slice(number, offset, len(chunk)), chunk, wrapping))
                if not following:
                    break
                offset, chunk = offset + size, following
        return balanced(leaves, self._put, self._layout.links, attributes)

    def _wrapping(self, attributes: Attributes) -> UnixFs | None:
        """The data of a chunk's node, without the chunk; None if it is a raw block."""
        return UnixFs(NodeType.FILE, attributes=attributes) if self._preserve else None

    def _add_leaf(self, place: Slice, chunk: bytes, wrapping: UnixFs | None) -> UnixFsEntry:
        block = chunk if wrapping is None else leaf_node(wrapping, chunk)
        cid = CID.of(RAW if wrapping is None else DAG_PB, block)
        self._leaves.setdefault(cid, (place, wrapping))
        return UnixFsEntry(cid, len(chunk), len(block))

    def _attributes(self, status: os.stat_result) -> Attributes:
        return Attributes(
            stat.S_IMODE(status.st_mode) or None if self._preserve.mode else None,
            status.st_mtime_ns if self._preserve.mtime else None,
        )

    def _put(self, cid: CID, block: bytes) -> None:
        self._nodes[cid] = block


def _shown(path: Path | str | bytes) -> str:
    """A path as text, with bytes that are not UTF-8 escaped."""
    return os.fsencode(path).decode(errors="backslashreplace")
