"""A file or a directory as a DAG: UnixFS with the CIDs that kubo gives it.

The content of files is not loaded into memory, only the position of each chunk. Chunks are read on
demand and checked against their CIDs, which detects a file changed in between.

As kubo does, a directory is sharded (HAMT) if the names and CIDs of its entries have more than 256
KiB. In a shard, an entry is at the index that a byte of its name's hash says: the first byte in the
root shard, the next one in the shards below it. An index that several entries share leads to a
further shard. Source: https://specs.ipfs.tech/unixfs/#hamt-directory.

The hash is `murmur3-x64-64` of the multicodec table: the first 64 bits of MurmurHash3_x64_128 with
the seed 0. Not for secrets.
"""

import os
import stat
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import mmh3

from recon_node.base.errors import reason_of
from recon_node.dag.car_source import Extent, ExtentReader
from recon_node.dag.errors import DagError, Omissions, UnixFsError, path_text
from recon_node.dag.protocol.shards import walk
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
from recon_node.ipld.dag_pb import PbLink, name_bytes


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
        self._files = ExtentReader()
        self._layout = layout
        self._preserve = preserve
        self._leaves: dict[CID, tuple[Extent, UnixFs | None]] = {}
        self._nodes: dict[CID, bytes] = {}
        self._skipped: list[str] = []
        try:
            tree = self._add(path)
        except OSError as error:
            name = path_text(error.filename or path)
            raise DagError(f"{name} cannot be read: {reason_of(error)}") from None
        except UnixFsError as error:
            raise DagError(str(error)) from None
        if tree is None:
            raise DagError(f"{path_text(path)} is neither a file nor a directory")
        self.root = tree.cid
        self.size = tree.total

    def read(self, cid: CID) -> bytes:  # noqa: D102 - see CarFile
        node = self._nodes.get(cid)
        if node is not None:
            return node
        extent, wrapping = self._leaves[cid]
        wrap = None if wrapping is None else partial(leaf_node, wrapping)
        return self._files.read(cid, extent, wrap)

    def blocks(self) -> Iterator[tuple[CID, bytes]]:  # noqa: D102 - see CarFile
        return walk(self.root, self.read)

    def left_out(self) -> Omissions | None:  # noqa: D102 - see CarFile
        return Omissions.of(
            self._skipped,
            "entries are sockets, FIFOs or devices and were not pushed",
            "entry is a socket, FIFO or device and was not pushed",
        )

    def close(self) -> None:
        """Close the file that is open."""
        self._files.close()

    def _add(self, path: Path) -> UnixFsEntry | None:
        if not stat.S_ISDIR(path.lstat().st_mode):
            return self._add_other(path)
        directories = [path]
        for folder in directories:  # grows during the loop: every directory precedes those in it
            directories += (Path(e) for e in os.scandir(folder) if e.is_dir(follow_symlinks=False))
        trees: dict[Path, UnixFsEntry] = {}
        for folder in reversed(directories):
            entries: list[tuple[str, UnixFsEntry]] = []
            for inner in folder.iterdir():
                tree = trees.pop(inner) if inner in trees else self._add_other(inner)
                if tree is None:
                    self._skipped.append(path_text(inner))
                else:
                    entries.append((inner.name, tree))
            trees[folder] = directory(entries, self._put, self._attributes(folder.stat()))
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
        number = self._files.add(path)
        attributes = self._attributes(status)
        leaves: list[UnixFsEntry] = []
        size = self._layout.chunk
        with path.open("rb") as file:
            offset, chunk = 0, file.read(size)
            while True:
                following = file.read(size) if len(chunk) == size else b""
                wrapping = None  # a raw block
                if self._preserve:
                    own = attributes if not offset and not following else NO_ATTRIBUTES
                    wrapping = UnixFs(NodeType.FILE, attributes=own)
                leaves.append(self._add_leaf(Extent(number, offset, len(chunk)), chunk, wrapping))
                if not following:
                    break
                offset, chunk = offset + size, following
        return balanced(leaves, self._put, self._layout.links, attributes)

    def _add_leaf(self, extent: Extent, chunk: bytes, wrapping: UnixFs | None) -> UnixFsEntry:
        block = chunk if wrapping is None else leaf_node(wrapping, chunk)
        cid = CID.of(RAW if wrapping is None else DAG_PB, block)
        self._leaves.setdefault(cid, (extent, wrapping))
        return UnixFsEntry(cid, len(chunk), len(block))

    def _attributes(self, status: os.stat_result) -> Attributes:
        return Attributes(
            stat.S_IMODE(status.st_mode) or None if self._preserve.mode else None,
            status.st_mtime_ns if self._preserve.mtime else None,
        )

    def _put(self, cid: CID, block: bytes) -> None:
        self._nodes[cid] = block


CODE: Final = 0x22
"""The multicodec of murmur3-x64-64."""


def name_hash(name: str) -> bytes:
    """Return the hash of an entry's name: 8 bytes, the most significant first."""
    first, _ = mmh3.hash64(name_bytes(name), signed=False)
    return first.to_bytes(8, "big")


MAX_ESTIMATE: Final = 256 * 1024
"""Bytes of the names and CIDs in a directory of one node."""
FANOUT: Final = 256
"""Entries of a shard: one for each value of a byte."""

Put = Callable[[CID, bytes], None]


class _Entry(NamedTuple):
    """An entry of a sharded directory, and the hash of its name."""

    hash: bytes
    name: str
    tree: UnixFsEntry


def directory(
    entries: Iterable[tuple[str, UnixFsEntry]], put: Put, attributes: Attributes = NO_ATTRIBUTES
) -> UnixFsEntry:
    """Build a directory from the names of its entries and their trees; `put` gets its nodes.

    Raises:
        UnixFsError: two of very many names have the same hash.
    """
    named = list(entries)
    estimate = sum(len(name_bytes(name)) + len(tree.cid) for name, tree in named)
    if estimate > MAX_ESTIMATE:
        hashed = [_Entry(name_hash(name), name, tree) for name, tree in named]
        return _shard(hashed, 0, put, attributes)
    links = tuple(PbLink(tree.cid, name, tree.total) for name, tree in named)
    return put_node(links, UnixFs(NodeType.DIRECTORY, attributes=attributes), put)


def _shard(
    entries: Sequence[_Entry], depth: int, put: Put, attributes: Attributes = NO_ATTRIBUTES
) -> UnixFsEntry:
    by_index: defaultdict[int, list[_Entry]] = defaultdict(list)
    for entry in entries:
        if depth == len(entry.hash):
            raise UnixFsError(f"a directory has several names with the hash of {entry.name!r}")
        by_index[entry.hash[depth]].append(entry)
    links = []
    for index, here in sorted(by_index.items()):
        _, name, tree = here[0]
        if len(here) > 1:
            name, tree = "", _shard(here, depth + 1, put)
        links.append(PbLink(tree.cid, f"{index:02X}{name}", tree.total))
    occupied = sum(1 << index for index in by_index)
    bitfield = occupied.to_bytes((occupied.bit_length() + 7) // 8, "big")
    data = UnixFs(NodeType.HAMT, bitfield, hash_type=CODE, fanout=FANOUT, attributes=attributes)
    return put_node(tuple(links), data, put)
