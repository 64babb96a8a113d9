"""A file or a directory as a DAG: UnixFS with the CIDs that kubo gives it.

The content of files is not loaded into memory, only the position of each chunk. Chunks are read on
demand and checked against their CIDs, which detects a file changed in between.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

from recon_node.dag.errors import DagError, LeftOut
from recon_node.dag.protocol.shards import walk
from recon_node.dag.slices import Slice, Slices
from recon_node.dag.unixfs import Layout, UnixFsEntry, balanced, directory
from recon_node.ipld import CID, RAW


class FileTree:
    """A file, or a directory with everything in it, as UnixFS; including hidden files.

    Its CID is that of `ipfs add --cid-version=1 --chunker=size-262144` (for directories with
    `--recursive --hidden`), unless kubo shards a directory because of its many entries, or the
    layout is another one.

    Args:
        path: the file or directory.
        layout: how files are cut.

    Raises:
        DagError: something cannot be read, is neither file nor directory (a link, a socket), or
            has a name that is not UTF-8.
    """

    def __init__(self, path: Path, layout: Layout = Layout()) -> None:  # noqa: B008 - immutable
        self._slices = Slices()
        self._layout = layout
        self._leaves: dict[CID, Slice] = {}
        self._nodes: dict[CID, bytes] = {}
        try:
            tree = self._add(path)
        except OSError as error:
            raise DagError(
                f"{error.filename or path} cannot be read: {error.strerror or error}"
            ) from None
        self.root = tree.cid
        self.size = tree.total

    def read(self, cid: CID) -> bytes:  # noqa: D102 - see DagSource
        node = self._nodes.get(cid)
        return self._slices.read(cid, self._leaves[cid]) if node is None else node

    def blocks(self) -> Iterator[tuple[CID, bytes]]:  # noqa: D102 - see DagSource
        return walk(self.root, self.read)

    def left_out(self) -> LeftOut | None:  # noqa: D102 - see DagSource
        return None

    def close(self) -> None:
        """Close the file that is open."""
        self._slices.close()

    def _add(self, path: Path) -> UnixFsEntry:
        if not stat.S_ISDIR(_mode(path)):
            return self._add_file(path)
        directories = [path]
        for each in directories:  # grows during the loop: every directory precedes those in it
            directories += (inner for inner in each.iterdir() if stat.S_ISDIR(_mode(inner)))
        trees: dict[Path, UnixFsEntry] = {}
        for each in reversed(directories):
            entries = [
                (_name(inner), trees.pop(inner) if inner in trees else self._add_file(inner))
                for inner in each.iterdir()
            ]
            trees[each] = directory(entries, self._nodes.__setitem__)
        return trees[path]

    def _add_file(self, path: Path) -> UnixFsEntry:
        if not stat.S_ISREG(_mode(path)):
            raise DagError(f"{path} is neither a file nor a directory")
        number = self._slices.add(path)
        leaves: list[UnixFsEntry] = []
        with path.open("rb") as file:
            while True:
                offset = file.tell()
                chunk = file.read(self._layout.chunk)
                if not chunk and leaves:
                    break
                cid = CID.of(RAW, chunk)
                self._leaves.setdefault(cid, Slice(number, offset, len(chunk)))
                leaves.append(UnixFsEntry(cid, len(chunk), len(chunk)))
                if len(chunk) < self._layout.chunk:
                    break
        return balanced(leaves, self._nodes.__setitem__, self._layout.links)


def _mode(path: Path) -> int:
    return path.lstat().st_mode


def _name(path: Path) -> str:
    try:
        path.name.encode()
    except UnicodeEncodeError:
        raise DagError(f"the name of {str(path)!r} is not UTF-8") from None
    return path.name
