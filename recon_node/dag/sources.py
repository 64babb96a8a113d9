"""Where a DAG comes from: a CAR file with its blocks in any order, or a file or directory.

Neither is loaded into memory, only the position of each block in a CAR and of each chunk in a file.
They are read on demand and checked against their CIDs, which detects a file changed in between.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, Protocol

from recon_node.dag.errors import DagError
from recon_node.dag.unixfs import Layout, UnixFsEntry, balanced, directory
from recon_node.ipld import (
    CID,
    MAX_DIGEST,
    RAW,
    CidError,
    IpldError,
    VarintError,
    car,
    dag_cbor,
    read_cid,
    varint,
)

_MAX_HEADER: Final = 1024 * 1024
"""Bytes of a CAR's header."""
_MAX_CID: Final = 4 * varint.MAX_BYTES + MAX_DIGEST
_MAX_HEAD: Final = varint.MAX_BYTES + _MAX_CID
"""Bytes of a section's length and CID."""
_CAR_KEY: Final = dag_cbor.encode("roots")
_CAR_KEY_WITHIN: Final = 32
"""Bytes of a file among which a CAR has this key."""


class DagSource(Protocol):
    """A DAG that can be read block by block."""

    root: CID
    size: int
    """Approximate bytes of its blocks, for progress."""

    def read(self, cid: CID) -> bytes:
        """Read a block.

        Raises:
            DagError: it is missing, or does not match its CID.
        """


class _Slice(NamedTuple):
    """A part of a file: the file's number, and offset and size in bytes."""

    file: int
    offset: int
    size: int


class _Slices:
    """Reads slices of files, keeping the last file open."""

    def __init__(self) -> None:
        self._paths: list[Path] = []
        self._open: tuple[int, BinaryIO] | None = None

    def add(self, path: Path) -> int:
        self._paths.append(path)
        return len(self._paths) - 1

    def read(self, cid: CID, place: _Slice) -> bytes:
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
        if not _matches(cid, block):
            raise DagError(
                f"{path}: the {place.size} bytes at {place.offset} are not the block {cid}: the "
                "file has been changed, or is damaged"
            )
        return block

    def close(self) -> None:
        if self._open is not None:
            self._open[1].close()
            self._open = None


class CarFile:
    """A DAG in a CARv1 file.

    Args:
        path: the file.
        root: of the DAG; None for the one root that the file names.

    Raises:
        DagError: the file cannot be read, is not a CARv1, or names several roots.
    """

    def __init__(self, path: Path, root: CID | None = None) -> None:
        self._path = path
        self._slices = _Slices()
        number = self._slices.add(path)
        self._places: dict[CID, _Slice] = {}
        try:
            with path.open("rb") as file:
                self.size = os.fstat(file.fileno()).st_size
                self.roots = _read_header(file)
                for cid, offset, size in _sections(file, self.size):
                    self._places[cid] = _Slice(number, offset, size)
        except OSError as error:
            raise DagError(f"{path} cannot be read: {error.strerror or error}") from None
        except IpldError as error:
            raise DagError(f"{path} is not a CARv1 that can be read here: {error}") from None
        self.root = root or self._only_root()

    def read(self, cid: CID) -> bytes:  # noqa: D102 - see DagSource
        place = self._places.get(cid)
        if place is None:
            raise DagError(
                f"{self._path} lacks the block {cid} of the DAG {self.root}: it holds only a "
                "part of the DAG"
            )
        return self._slices.read(cid, place)

    def close(self) -> None:
        """Close the file."""
        self._slices.close()

    def _only_root(self) -> CID:
        if len(self.roots) > 1:
            named = ", ".join(map(str, self.roots[:10]))
            raise DagError(f"{self._path} names {len(self.roots)} roots; say which: {named}")
        return self.roots[0]


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
        self._slices = _Slices()
        self._layout = layout
        self._leaves: dict[CID, _Slice] = {}
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
                self._leaves.setdefault(cid, _Slice(number, offset, len(chunk)))
                leaves.append(UnixFsEntry(cid, len(chunk), len(chunk)))
                if len(chunk) < self._layout.chunk:
                    break
        return balanced(leaves, self._nodes.__setitem__, self._layout.links)


def open_source(
    path: Path, root: CID | None = None, max_block: int | None = None
) -> CarFile | FileTree:
    """Open the DAG in a CAR file; for a directory or any other file, its UnixFS.

    Args:
        path: what to open.
        root: of the DAG, for a CAR file with several.
        max_block: bytes that a block of a file may have; by default, files are cut as usual.

    Raises:
        DagError: see `CarFile` and `FileTree`.
    """
    try:
        is_car = not path.is_dir() and _looks_like_car(path)
    except OSError as error:
        raise DagError(f"{path} cannot be read: {error.strerror or error}") from None
    if is_car:
        return CarFile(path, root)
    return FileTree(path, Layout() if max_block is None else Layout.within(max_block))


def _looks_like_car(path: Path) -> bool:
    """By a key of its header, which is in the first bytes of every CAR."""
    with path.open("rb") as file:
        return _CAR_KEY in file.read(_CAR_KEY_WITHIN)


def _mode(path: Path) -> int:
    return path.lstat().st_mode


def _name(path: Path) -> str:
    try:
        path.name.encode()
    except UnicodeEncodeError:
        raise DagError(f"the name of {str(path)!r} is not UTF-8") from None
    return path.name


def _matches(cid: CID, block: bytes) -> bool:
    try:
        return cid.matches(block)
    except CidError as error:
        raise DagError(str(error)) from None


def _read_header(file: BinaryIO) -> tuple[CID, ...]:
    head = file.read(varint.MAX_BYTES)
    length, start = varint.decode(head)
    if length > _MAX_HEADER:
        raise CidError(f"its header claims {length} bytes")
    file.seek(0)
    roots = car.read_roots(file.read(start + length))
    file.seek(start + length)
    return roots


def _sections(file: BinaryIO, end: int) -> Iterator[tuple[CID, int, int]]:
    """The CID of each block, its offset and its size."""
    at = file.tell()
    while at < end:
        file.seek(at)
        head = file.read(_MAX_HEAD)
        length, start = varint.decode(head)
        cid, body = read_cid(head, start)
        size = length - (body - start)
        if size < 0 or at + start + length > end:
            raise VarintError(
                f"the block at byte {at} claims {length} bytes, more than the file has"
            )
        yield cid, at + body, size
        at += start + length
