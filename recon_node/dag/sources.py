"""Where a DAG comes from: a CAR file with its blocks in any order, or a file or directory.

Neither is taken into memory: of a CAR it is remembered where each block lies, of a file where each
of its chunks does; they are read when they are asked for, and checked against their CIDs, so that
a file that was changed meanwhile is noticed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, Protocol

from recon_node.dag.errors import DagError
from recon_node.dag.unixfs import CHUNK_SIZE, Tree, balanced, directory
from recon_node.ipld import CID, RAW, CidError, IpldError, VarintError, car, read_cid, varint

_MAX_HEADER: Final = 1024 * 1024
_MAX_HEAD: Final = 9 + 160  # a section's length and CID


class Source(Protocol):
    """A DAG that can be read block by block."""

    root: CID
    size: int
    """Bytes of its blocks, more or less: for progress."""

    def read(self, cid: CID) -> bytes:
        """A block. Raises `DagError` when it is not there, or not what its CID says."""


class _Slice(NamedTuple):
    """Some bytes of a file."""

    file: int
    offset: int
    size: int


class _Slices:
    """Reads slices of files, the last file kept open."""

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
                "file was changed meanwhile, or is damaged"
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
        root: where the DAG is entered; None takes the one root that the file names.

    Raises:
        DagError: the file cannot be read, is no CARv1, or names several roots.
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

    def read(self, cid: CID) -> bytes:  # noqa: D102 - see Source
        place = self._places.get(cid)
        if place is None:
            raise DagError(
                f"{self._path} lacks the block {cid} of the DAG {self.root}: it holds a part of "
                "the DAG only"
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
    """A file, or a directory with all that is in it, as UnixFS; hidden files count, too.

    Its CID is the one that `ipfs add --cid-version=1 --chunker=size-262144` gives (for directories
    with `--recursive --hidden`), where no directory has so many entries that kubo cuts it up.

    Raises:
        DagError: something cannot be read, is neither file nor directory (a link, a socket), or
            has a name that is no UTF-8.
    """

    def __init__(self, path: Path) -> None:
        self._slices = _Slices()
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

    def read(self, cid: CID) -> bytes:  # noqa: D102 - see Source
        node = self._nodes.get(cid)
        return self._slices.read(cid, self._leaves[cid]) if node is None else node

    def close(self) -> None:
        """Close what is open."""
        self._slices.close()

    def _add(self, path: Path) -> Tree:
        if not stat.S_ISDIR(_mode(path)):
            return self._add_file(path)
        directories = [path]
        for each in directories:  # grows while it is walked: every directory before those in it
            directories += (inner for inner in each.iterdir() if stat.S_ISDIR(_mode(inner)))
        trees: dict[Path, Tree] = {}
        for each in reversed(directories):
            entries = [
                (_name(inner), trees.pop(inner) if inner in trees else self._add_file(inner))
                for inner in each.iterdir()
            ]
            trees[each] = directory(entries, self._nodes.__setitem__)
        return trees[path]

    def _add_file(self, path: Path) -> Tree:
        if not stat.S_ISREG(_mode(path)):
            raise DagError(f"{path} is neither a file nor a directory; such things are not taken")
        number = self._slices.add(path)
        leaves: list[Tree] = []
        with path.open("rb") as file:
            while True:
                offset = file.tell()
                chunk = file.read(CHUNK_SIZE)
                if not chunk and leaves:
                    break
                cid = CID.of(RAW, chunk)
                self._leaves.setdefault(cid, _Slice(number, offset, len(chunk)))
                leaves.append(Tree(cid, len(chunk), len(chunk)))
                if len(chunk) < CHUNK_SIZE:
                    break
        return balanced(leaves, self._nodes.__setitem__)


def open_source(path: Path, root: CID | None = None) -> CarFile | FileTree:
    """The DAG in a CAR file; for a directory, and for a file that is no CAR, its UnixFS.

    Raises:
        DagError: see `CarFile` and `FileTree`.
    """
    try:
        is_car = not path.is_dir() and _looks_like_car(path)
    except OSError as error:
        raise DagError(f"{path} cannot be read: {error.strerror or error}") from None
    return CarFile(path, root) if is_car else FileTree(path)


def _looks_like_car(path: Path) -> bool:
    """By the key of its header, which is in the first bytes of every CAR."""
    with path.open("rb") as file:
        return b"\x65roots" in file.read(32)


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
    head = file.read(9)
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
            raise VarintError(f"the block at byte {at} claims {length} bytes, which are not there")
        yield cid, at + body, size
        at += start + length
