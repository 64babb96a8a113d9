"""A DAG in a CAR file, whose blocks may be in any order.

Of the file, only the position of each block is in memory. Blocks are read on demand, and checked
against their CIDs.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NamedTuple

from recon_node.base.errors import reason_of
from recon_node.dag.errors import MAX_NAMED, DagError, Omissions
from recon_node.dag.protocol.shards import walk
from recon_node.ipld import CID, IDENTITY, CarError, CidError, links
from recon_node.ipld.car import read_layout, sections


class CarFile:
    """A DAG in a CAR file (CARv1, or CARv2, of which the index is ignored).

    Args:
        path: the file.
        root: of the DAG; None for the one root that the file names.
        all_blocks: whether `blocks` has those that are not below the root, too; then the file may
            lack some that are.

    Raises:
        DagError: the file cannot be read, is not an intact CAR, or names no root or several.
    """

    def __init__(self, path: Path, root: CID | None = None, *, all_blocks: bool = False) -> None:
        self._path = path
        self._files = ExtentReader()
        self._all_blocks = all_blocks
        self._extents: dict[CID, Extent] = {}
        number = self._files.add(path)
        try:
            with path.open("rb") as file:
                layout = read_layout(file)
                for cid, offset, size in sections(file, layout):
                    if cid.hash_code != IDENTITY:
                        self._extents[cid] = Extent(number, offset, size)
        except OSError as error:
            raise DagError(f"{path} cannot be read: {reason_of(error)}") from None
        except CarError as error:
            raise DagError(f"{path} is not a CAR that can be read: {error}") from None
        self.size = layout.end - layout.start
        """Approximate bytes of its blocks, for progress."""
        self.roots = tuple(dict.fromkeys(layout.roots))
        self.root = self._only_root() if root is None else root
        if self.root.hash_code == IDENTITY and not all_blocks:
            self._check_identity()
        self._passed: set[CID] = set()

    def read(self, cid: CID) -> bytes:
        """Read a block.

        Raises:
            DagError: it is missing, or does not match its CID.
        """
        extent = self._extents.get(cid)
        if extent is None:
            raise DagError(
                f"{self._path} lacks the block {cid} of the DAG {self.root}: it holds only a "
                "part of the DAG"
            )
        return self._files.read(cid, extent)

    def blocks(self) -> Iterator[tuple[CID, bytes]]:
        """Yield the blocks to push, each once, those below the root depth first.

        Raises:
            DagError: see `read`.
            LinksError: the links of a block cannot be read.
        """
        read = self._read_if_here if self._all_blocks else self.read
        for cid, block in walk(self.root, read):
            self._passed.add(cid)
            yield cid, block
        if self._all_blocks:
            for cid in self._others():
                block = self.read(cid)
                links(cid, block)  # nodes only take shards whose links they can read
                self._passed.add(cid)
                yield cid, block

    def left_out(self) -> Omissions | None:
        """Return what `blocks` has left out, once it has been exhausted."""
        hint = "--all-blocks pushes all"
        return Omissions.of(
            self._others(),
            f"blocks of the file are not below the root and were not pushed; {hint}",
            f"block of the file is not below the root and was not pushed; {hint}",
        )

    def close(self) -> None:
        """Close the file."""
        self._files.close()

    def _read_if_here(self, cid: CID) -> bytes | None:
        return self.read(cid) if cid in self._extents else None

    def _others(self) -> list[CID]:
        """The blocks that `blocks` has not yielded."""
        return [cid for cid in self._extents if cid not in self._passed]

    def _only_root(self) -> CID:
        if len(self.roots) == 1:
            return self.roots[0]
        named = ", ".join(map(str, self.roots[:MAX_NAMED]))
        raise DagError(
            f"{self._path} names {len(self.roots)} roots; say which with --root: {named}"
            if self.roots
            else f"{self._path} names no root; say which block is the root with --root CID"
        )

    def _check_identity(self) -> None:
        """Refuse a root whose block is inside its CID, if the DAG has other blocks."""
        if links(self.root, self.root.digest):
            raise DagError(
                f"the root {self.root} of {self._path} is inside its own CID: such a root cannot "
                "have links here"
            )
        if self._extents:
            first = ", ".join(map(str, islice(self._extents, 3)))
            count = f"{len(self._extents):,} block{'s' * (len(self._extents) > 1)}"
            raise DagError(
                f"{self._path} names the root {self.root}, which is inside its own CID and has no "
                f"links, so that none of its {count} would be pushed; say which block is the "
                f"root with --root CID (the first are {first})"
            )


class Extent(NamedTuple):
    """A part of a file: the file's number, and offset and size in bytes."""

    file: int
    offset: int
    size: int


class ExtentReader:
    """Reads extents of files, keeping the last file open."""

    def __init__(self) -> None:
        self._paths: list[Path] = []
        self._open: tuple[int, BinaryIO] | None = None

    def add(self, path: Path) -> int:
        """Add a file, and return its number."""
        self._paths.append(path)
        return len(self._paths) - 1

    def read(self, cid: CID, extent: Extent, wrap: Callable[[bytes], bytes] | None = None) -> bytes:
        """Read the block of an extent; if only its content is there, `wrap` makes the block of it.

        Raises:
            DagError: the file cannot be read, or has something else there.
        """
        path = self._paths[extent.file]
        try:
            if self._open is None or self._open[0] != extent.file:
                self.close()
                self._open = extent.file, path.open("rb")
            file = self._open[1]
            file.seek(extent.offset)
            block = file.read(extent.size)
        except OSError as error:
            raise DagError(f"{path} cannot be read: {reason_of(error)}") from None
        if wrap is not None:
            block = wrap(block)
        if not _matches(cid, block):
            raise DagError(
                f"{path}: the {extent.size} bytes at byte {extent.offset} are not the block {cid}: "
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
