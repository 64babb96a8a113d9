"""Looking into a DAG that the node has in part or whole: what a path in it leads to.

Nothing is unpacked and little is read: of a directory the names, of a file its beginning. The
blocks may be anybody's, so what one answer reads is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final, Literal

from recon_node.dag.errors import DagError
from recon_node.dag.unixfs import NodeType, Read, UnixFs, entry_name, read_node
from recon_node.ipld import CID, DAG_CBOR, DAG_PB, IDENTITY, RAW, dag_cbor
from recon_node.ipld.dag_pb import PbLink

MAX_ENTRIES: Final = 1_000
"""Entries of a directory in one answer."""
MAX_BYTES: Final = 8 * 1024 * 1024
"""Bytes that one answer reads: of blocks on the path, shards of a directory, leaves of a file."""
_LEAST: Final = 4096
"""Bytes that a small block counts as."""
MAX_TEXT: Final = 16_384
"""Bytes of a file that are shown."""

_DIRECTORIES: Final = (NodeType.DIRECTORY, NodeType.HAMT)


@dataclass(frozen=True, slots=True)
class DirectoryEntry:
    """A name in a directory, what it leads to, and the bytes of all blocks below that."""

    name: str
    cid: CID
    size: int


@dataclass(frozen=True, slots=True)
class DagEntry:
    """What a path in a DAG leads to.

    Attributes:
        kind: data is a block that is not part of a file or directory.
        cid: of its block.
        size: bytes of a file's content, where its node says it.
        text: the beginning of a file, or a symlink's target; None if it is not UTF-8.
        value: of a block of data, if it is DAG-CBOR.
        entries: of a directory, in its order; the first 1,000.
        is_cut: whether the directory has more.
    """

    kind: Literal["directory", "file", "symlink", "data"]
    cid: CID
    size: int | None = None
    text: str | None = None
    value: Any = None
    entries: list[DirectoryEntry] = field(default_factory=list)
    is_cut: bool = False


class Browser:
    """Looks into one DAG, once.

    Args:
        block: returns a block of the DAG; raises `DagError` if it is not here.
    """

    def __init__(self, block: Read) -> None:
        self._block = block
        self._left = MAX_BYTES

    def look(self, root: CID, path: tuple[str, ...]) -> DagEntry:
        """Return what a path from the root leads to.

        Raises:
            DagError: a block of it is missing or malformed, no such entry, or too much to read.
            IpldError: a block cannot be decoded.
        """
        cid = root
        for number, part in enumerate(path):
            for entry in self._entries(cid):
                if entry.name == part:
                    cid = entry.cid
                    break
            else:
                raise DagError(f"no entry {part!r} in /{'/'.join(path[:number])}")
        return self._entry(cid)

    def _entry(self, cid: CID) -> DagEntry:
        if cid.codec not in (DAG_PB, RAW):
            block = self._read(cid)
            value = dag_cbor.decode(block) if cid.codec == DAG_CBOR else None
            return DagEntry("data", cid, len(block), value=value)
        data, _ = self._node(cid)
        if data.type in _DIRECTORIES:
            found = islice(self._entries(cid), MAX_ENTRIES + 1)
            entries = [replace(each, name=_written(each.name)) for each in found]
            is_cut = len(entries) > MAX_ENTRIES
            return DagEntry("directory", cid, entries=entries[:MAX_ENTRIES], is_cut=is_cut)
        if data.type is NodeType.SYMLINK:
            return DagEntry("symlink", cid, len(data.data), _as_text(data.data, is_whole=True))
        size = len(data.data) if data.file_size is None else data.file_size
        start = bytearray()
        self._read_start(cid, start)
        return DagEntry("file", cid, size, _as_text(bytes(start), is_whole=len(start) < MAX_TEXT))

    def _entries(self, cid: CID) -> Iterator[DirectoryEntry]:
        """Yield the entries of a directory, which may be in shards."""
        left = [cid]
        while left:
            data, links = self._node(left.pop())
            if data.type not in _DIRECTORIES:
                raise DagError(f"{cid} is not a directory")
            shards = []
            for link in links:
                name = entry_name(data, link)
                if name is None:
                    shards.append(link.cid)
                else:
                    yield DirectoryEntry(name, link.cid, link.size)
            left += reversed(shards)

    def _read_start(self, cid: CID, start: bytearray) -> None:
        """Add the content below a node to `start`, up to its limit."""
        left = [cid]
        while left and len(start) < MAX_TEXT:
            data, links = self._node(left.pop())
            if data.type not in (NodeType.FILE, NodeType.RAW):
                kind = data.type.name.lower()
                raise DagError(f"{cid} has a {kind} in it, which is not supported")
            start += data.data[: MAX_TEXT - len(start)]
            left += (link.cid for link in reversed(links))

    def _node(self, cid: CID) -> tuple[UnixFs, tuple[PbLink, ...]]:
        block = self._read(cid)
        return read_node(cid, lambda _: block)

    def _read(self, cid: CID) -> bytes:
        if cid.hash_code == IDENTITY:
            return cid.digest
        if self._left <= 0:
            raise DagError(f"more than {MAX_BYTES:,} bytes are to be read: pull the DAG to see it")
        block = self._block(cid)
        self._left -= max(len(block), _LEAST)
        return block


def _written(name: str) -> str:
    """A name as text: bytes that are not UTF-8 are replaced."""
    return name.encode(errors="surrogateescape").decode(errors="replace")


def _as_text(content: bytes, *, is_whole: bool) -> str | None:
    """Return UTF-8 as text; of a beginning, the last character may be incomplete."""
    for cut in range(1 if is_whole else 4):
        try:
            text = content[: len(content) - cut].decode()
        except UnicodeDecodeError:
            continue
        return None if "\0" in text else text
    return None
