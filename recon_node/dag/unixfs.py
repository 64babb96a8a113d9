"""UnixFS: files and directories as DAG-PB nodes (https://specs.ipfs.tech/unixfs/).

    message Data {
        required DataType Type = 1;       0 raw, 1 directory, 2 file, 5 directory in shards (HAMT)
        optional bytes Data = 2;          content that is in the node itself
        optional uint64 filesize = 3;     bytes of the whole file
        repeated uint64 blocksizes = 4;   bytes of content below each link
        optional uint64 hashType = 5; optional uint64 fanout = 6;     of a HAMT
        ... mode = 7, mtime = 8, which are ignored
    }

`balanced` builds what `ipfs add --cid-version=1 --chunker=size-262144` builds: chunks as raw
leaves, below nodes of at most 174 links, in levels that are full except for their last nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from recon_node.dag.errors import UnixFsError
from recon_node.ipld import CID, DAG_PB, VarintError, dag_pb, varint
from recon_node.ipld.dag_pb import PbLink, PbNode

CHUNK_SIZE: Final = 256 * 1024
"""Bytes of a file in one leaf; 1 MiB, the other common size, would not fit into an event."""
MAX_LINKS: Final = 174
"""Links of a file's node: it then has some 8 KiB."""
_LINK_SIZE: Final = 64
"""Bytes that a link adds to a file's node at most: the CID, two sizes of files below 2^63."""
_NODE_SIZE: Final = 64
"""Bytes of a file's node without its links, at most."""

_TYPE, _DATA, _FILE_SIZE, _BLOCK_SIZE, _FANOUT = 0x08, 0x12, 0x18, 0x20, 0x30
_VARINT, _DELIMITED = 0, 2
_WIRE_TYPE: Final = 0b111
"""The bits of a tag that say how the value is encoded."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How a file is cut: bytes of a leaf, and links of a node, at most."""

    chunk: int = CHUNK_SIZE
    links: int = MAX_LINKS

    @classmethod
    def within(cls, block_size: int) -> Layout:
        """Return the layout that is closest to the usual one, with blocks of at most that size.

        Args:
            block_size: bytes, at least 256.
        """
        chunk = min(CHUNK_SIZE, 1 << (block_size.bit_length() - 1))
        return cls(chunk, min(MAX_LINKS, (block_size - _NODE_SIZE) // _LINK_SIZE))


class NodeType(IntEnum):
    """The kind of a UnixFS node."""

    RAW = 0
    DIRECTORY = 1
    FILE = 2
    METADATA = 3
    SYMLINK = 4
    HAMT = 5


@dataclass(frozen=True, slots=True)
class UnixFs:
    """The data of a DAG-PB node that is part of a file or a directory."""

    type: NodeType
    data: bytes = b""
    file_size: int | None = None
    block_sizes: tuple[int, ...] = ()
    fanout: int | None = None


@dataclass(frozen=True, slots=True)
class UnixFsEntry:
    """A file, a part of one, or a directory: its CID, and bytes of content and of all blocks."""

    cid: CID
    content: int
    total: int


def encode(value: UnixFs) -> bytes:
    """Encode a node's data as go-unixfs does: fields in order, without absent ones."""
    parts = [bytes([_TYPE, value.type])]
    if value.data:
        parts.append(bytes([_DATA]) + varint.encode(len(value.data)) + value.data)
    if value.file_size is not None:
        parts.append(bytes([_FILE_SIZE]) + varint.encode(value.file_size))
    parts += (bytes([_BLOCK_SIZE]) + varint.encode(size) for size in value.block_sizes)
    return b"".join(parts)


def decode(data: bytes) -> UnixFs:
    """Decode a node's data.

    Raises:
        UnixFsError: not UnixFS.
    """
    type_: NodeType | None = None
    content, file_size, fanout = b"", None, None
    block_sizes: list[int] = []
    try:
        for tag, number, raw in _fields(data):
            if tag == _TYPE:
                type_ = NodeType(number)
            elif tag == _DATA:
                content = raw
            elif tag == _FILE_SIZE:
                file_size = number
            elif tag == _BLOCK_SIZE:
                block_sizes.append(number)
            elif tag == _FANOUT:
                fanout = number
    except (VarintError, ValueError) as error:
        raise UnixFsError(f"not UnixFS: {error}") from None
    if type_ is None:
        raise UnixFsError("not UnixFS: the type is missing")
    return UnixFs(type_, content, file_size, tuple(block_sizes), fanout)


def balanced(
    leaves: Iterable[UnixFsEntry], put: Callable[[CID, bytes], None], max_links: int = MAX_LINKS
) -> UnixFsEntry:
    """Build the tree of a file over its leaves, at least one, in their order.

    `put` gets every node above the leaves, from the bottom up. A node has at most `max_links`.
    """
    level = list(leaves)
    while len(level) > 1:
        groups = (level[at : at + max_links] for at in range(0, len(level), max_links))
        level = [_file_node(group, put) for group in groups]
    [root] = level
    return root


def directory(
    entries: Iterable[tuple[str, UnixFsEntry]], put: Callable[[CID, bytes], None]
) -> UnixFsEntry:
    """Build the node of a directory from the names of its entries and their trees."""
    links = [PbLink(tree.cid, name, tree.total) for name, tree in entries]
    return _put(PbNode(tuple(links), encode(UnixFs(NodeType.DIRECTORY))), 0, put)


def _file_node(children: Sequence[UnixFsEntry], put: Callable[[CID, bytes], None]) -> UnixFsEntry:
    content = sum(child.content for child in children)
    sizes = tuple(child.content for child in children)
    data = encode(UnixFs(NodeType.FILE, file_size=content, block_sizes=sizes))
    links = tuple(PbLink(child.cid, "", child.total) for child in children)
    return _put(PbNode(links, data), content, put)


def _put(node: PbNode, content: int, put: Callable[[CID, bytes], None]) -> UnixFsEntry:
    block = dag_pb.encode(node)
    cid = CID.of(DAG_PB, block)
    put(cid, block)
    return UnixFsEntry(cid, content, len(block) + sum(link.size for link in node.links))


def _fields(data: bytes) -> Iterable[tuple[int, int, bytes]]:
    """The fields of a message: tag, and the value as a number or as bytes."""
    offset = 0
    while offset < len(data):
        tag, offset = varint.decode(data, offset)
        if tag & _WIRE_TYPE not in (_VARINT, _DELIMITED):
            raise UnixFsError(f"not UnixFS: a field of the wire type {tag & _WIRE_TYPE}")
        value, offset = varint.decode(data, offset)
        if tag & _WIRE_TYPE == _VARINT:
            yield tag, value, b""
            continue
        if value > len(data) - offset:
            raise UnixFsError("not UnixFS: the bytes end within a field")
        yield tag, 0, data[offset : offset + value]
        offset += value
