"""UnixFS: files and directories as DAG-PB nodes (https://specs.ipfs.tech/unixfs/).

    message Data {
        required DataType Type = 1;       0 raw, 1 directory, 2 file, 4 symlink, 5 HAMT (part of a
                                          large directory)
        optional bytes Data = 2;          content that is in the node itself; a symlink's target
        optional uint64 filesize = 3;     bytes of the whole file
        repeated uint64 blocksizes = 4;   bytes of content below each link
        optional uint64 hashType = 5; optional uint64 fanout = 6;     of a HAMT
        optional uint32 mode = 7;         permissions
        optional UnixTime mtime = 8;      {int64 Seconds = 1; fixed32 FractionalNanoseconds = 2}
    }

`balanced` builds what `ipfs add --cid-version=1 --chunker=size-262144` builds: chunks as raw
leaves, below nodes of at most 174 links, in levels that are full except for their last nodes. With
mode or time, the leaves are nodes, too, as with `--preserve-mode` or `--preserve-mtime`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

from recon_node.dag.errors import DagError, UnixFsError
from recon_node.ipld import CID, DAG_PB, IDENTITY, RAW, VarintError, dag_pb, encode_varint
from recon_node.ipld.dag_pb import PbLink, PbNode, decode_number

CHUNK_SIZE: Final = 256 * 1024
"""Bytes of a file in one leaf; 1 MiB, the other common size, would not fit into an event."""
MAX_LINKS: Final = 174
"""Links of a file's node: it then has some 8 KiB."""
_LINK_SIZE: Final = 64
"""Bytes that a link adds to a file's node at most: the CID, two sizes of files below 2^63."""
_NODE_SIZE: Final = 64
"""Bytes of a file's node without its links, at most."""

_TYPE, _DATA, _FILE_SIZE, _BLOCK_SIZE, _HASH_TYPE, _FANOUT = 0x08, 0x12, 0x18, 0x20, 0x28, 0x30
_MODE, _MTIME = 0x38, 0x42
_SECONDS, _NANOSECONDS = 0x08, 0x15  # of the time; the second is a fixed32
_VARINT, _DELIMITED = 0, 2
_WIRE_TYPE: Final = 0b111
"""The bits of a tag that say how the value is encoded."""
_GIGA: Final = 10**9
_PERMISSIONS: Final = 0o7777


@dataclass(frozen=True, slots=True)
class FileLayout:
    """How a file is cut: bytes of a leaf, and links of a node, at most."""

    chunk: int = CHUNK_SIZE
    links: int = MAX_LINKS

    @classmethod
    def within(cls, block_size: int, *, nodes: bool = False) -> FileLayout:
        """Return the layout that is closest to the usual one, with blocks of at most that size.

        Args:
            block_size: bytes, at least 256.
            nodes: whether leaves are nodes, which have more than their chunk.
        """
        room = block_size - _NODE_SIZE if nodes else block_size
        chunk = min(CHUNK_SIZE, 1 << (room.bit_length() - 1))
        return cls(chunk, min(MAX_LINKS, (block_size - _NODE_SIZE) // _LINK_SIZE))


class NodeType(IntEnum):
    """The kind of a UnixFS node."""

    RAW = 0
    DIRECTORY = 1
    FILE = 2
    METADATA = 3
    SYMLINK = 4
    HAMT = 5


DIRECTORIES: Final = (NodeType.DIRECTORY, NodeType.HAMT)
MAX_DEPTH: Final = 64
"""Levels of nodes in a file, or in a sharded directory: far more than real ones have."""


@dataclass(frozen=True, slots=True)
class Attributes:
    """What UnixFS 1.5 keeps of a file or directory: permissions, and time of change.

    `mtime` is in nanoseconds since 1970. None: not known.
    """

    mode: int | None = None
    mtime: int | None = None


NO_ATTRIBUTES: Final = Attributes()


@dataclass(frozen=True, slots=True)
class UnixFs:
    """The data of a DAG-PB node that is part of a file or a directory."""

    type: NodeType
    data: bytes = b""
    file_size: int | None = None
    block_sizes: tuple[int, ...] = ()
    hash_type: int | None = None
    fanout: int | None = None
    attributes: Attributes = NO_ATTRIBUTES


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
        parts.append(bytes([_DATA]) + encode_varint(len(value.data)) + value.data)
    if value.file_size is not None:
        parts.append(bytes([_FILE_SIZE]) + encode_varint(value.file_size))
    parts += (bytes([_BLOCK_SIZE]) + encode_varint(size) for size in value.block_sizes)
    numbers = {_HASH_TYPE: value.hash_type, _FANOUT: value.fanout, _MODE: value.attributes.mode}
    for tag, number in numbers.items():
        if number is not None:
            parts.append(bytes([tag]) + encode_varint(number))
    if value.attributes.mtime is not None:
        time = _encode_time(value.attributes.mtime)
        parts.append(bytes([_MTIME, len(time)]) + time)
    return b"".join(parts)


def decode(data: bytes) -> UnixFs:
    """Decode a node's data.

    Raises:
        UnixFsError: not UnixFS.
    """
    numbers: dict[int, int] = {}
    texts: dict[int, bytes] = {}
    block_sizes: list[int] = []
    try:
        for tag, number, raw in _fields(data):
            if tag == _BLOCK_SIZE:
                block_sizes.append(number)
            elif tag & _WIRE_TYPE == _VARINT:
                numbers[tag] = number
            else:
                texts[tag] = raw
        type_ = NodeType(numbers[_TYPE]) if _TYPE in numbers else None
        mtime = _decode_time(texts[_MTIME]) if _MTIME in texts else None
    except (VarintError, ValueError) as error:
        raise UnixFsError(f"not UnixFS: {error}") from None
    if type_ is None:
        raise UnixFsError("not UnixFS: the type is missing")
    mode = numbers.get(_MODE)
    return UnixFs(
        type_,
        texts.get(_DATA, b""),
        numbers.get(_FILE_SIZE),
        tuple(block_sizes),
        numbers.get(_HASH_TYPE),
        numbers.get(_FANOUT),
        Attributes(None if mode is None else mode & _PERMISSIONS, mtime),
    )


def balanced(
    leaves: Iterable[UnixFsEntry],
    put: Callable[[CID, bytes], None],
    max_links: int = MAX_LINKS,
    attributes: Attributes = NO_ATTRIBUTES,
) -> UnixFsEntry:
    """Build the tree of a file over its leaves, at least one, in their order.

    `put` gets every node above the leaves, from the bottom up. A node has at most `max_links`. If
    there is only one leaf, it must have the attributes of the file.
    """
    level = list(leaves)
    while len(level) > 1:
        groups = [level[at : at + max_links] for at in range(0, len(level), max_links)]
        of_these = attributes if len(groups) == 1 else NO_ATTRIBUTES
        level = [_file_node(group, put, of_these) for group in groups]
    [root] = level
    return root


def put_node(
    links: tuple[PbLink, ...], data: UnixFs, put: Callable[[CID, bytes], None], content: int = 0
) -> UnixFsEntry:
    """Build a node, and give it to `put`; `content` is the bytes of content below it."""
    block = dag_pb.encode(PbNode(links, encode(data)))
    cid = CID.of(DAG_PB, block)
    put(cid, block)
    return UnixFsEntry(cid, content, len(block) + sum(link.size for link in links))


def leaf_node(data: UnixFs, chunk: bytes) -> bytes:
    """Return the block of a node that has a chunk of a file in it."""
    return dag_pb.encode(PbNode((), encode(replace(data, data=chunk, file_size=len(chunk)))))


def _file_node(
    children: Sequence[UnixFsEntry], put: Callable[[CID, bytes], None], attributes: Attributes
) -> UnixFsEntry:
    content = sum(child.content for child in children)
    sizes = tuple(child.content for child in children)
    data = UnixFs(NodeType.FILE, file_size=content, block_sizes=sizes, attributes=attributes)
    links = tuple(PbLink(child.cid, "", child.total) for child in children)
    return put_node(links, data, put, content)


def _encode_time(nanoseconds: int) -> bytes:
    seconds, rest = divmod(nanoseconds, _GIGA)
    out = bytearray([_SECONDS])
    seconds %= 2**64  # as two's complement
    while seconds >= 0x80:
        out.append(seconds & 0x7F | 0x80)
        seconds >>= 7
    out.append(seconds)
    return bytes(out) + (bytes([_NANOSECONDS]) + rest.to_bytes(4, "little") if rest else b"")


def _decode_time(data: bytes) -> int | None:
    """A time in nanoseconds; None if it is not one, as kubo has it."""
    if data[:1] != bytes([_SECONDS]):
        return None
    seconds = at = 0
    for at, byte in enumerate(data[1:11]):
        seconds |= (byte & 0x7F) << 7 * at
        if byte < 0x80:
            break
    seconds = (seconds + 2**63) % 2**64 - 2**63
    rest = data[at + 2 :]
    nanoseconds = int.from_bytes(rest[1:], "little")
    if rest and (rest[0] != _NANOSECONDS or len(rest) != 5 or not 0 < nanoseconds < _GIGA):
        return None
    return seconds * _GIGA + nanoseconds


def _fields(data: bytes) -> Iterable[tuple[int, int, bytes]]:
    """The fields of a message: tag, and the value as a number or as bytes."""
    offset = 0
    while offset < len(data):
        tag, offset = decode_number(data, offset)
        if tag & _WIRE_TYPE not in (_VARINT, _DELIMITED):
            raise UnixFsError(f"a field of the wire type {tag & _WIRE_TYPE}")
        value, offset = decode_number(data, offset)
        if tag & _WIRE_TYPE == _VARINT:
            yield tag, value, b""
            continue
        if value > len(data) - offset:
            raise UnixFsError("the bytes end within a field")
        yield tag, 0, data[offset : offset + value]
        offset += value


Read = Callable[[CID], bytes]
"""Returns the block of a CID."""


def read_node(cid: CID, read: Read) -> tuple[UnixFs, tuple[PbLink, ...]]:
    """Return the data of a node and its links; a raw block is a part of a file.

    Raises:
        DagError: it is not UnixFS.
        IpldError: it cannot be decoded.
    """
    block = cid.digest if cid.hash_code == IDENTITY else read(cid)
    if cid.codec == RAW:
        return UnixFs(NodeType.RAW, block), ()
    if cid.codec != DAG_PB:
        raise DagError(
            f"{cid} is not a file or directory: its codec {cid.codec:#x} is neither DAG-PB nor raw"
        )
    node = dag_pb.decode(block)
    if node.data is None:
        raise DagError(f"{cid} is not a file or directory: its node has no data")
    return decode(node.data), node.links


def directory_entries(cid: CID, read: Read, depth: int = 0) -> Iterator[tuple[str, PbLink]]:
    """Yield the entries of a directory, which may be in shards.

    Raises:
        DagError: it is not a directory, or its shards are nested too deeply.
        IpldError: a node cannot be decoded.
    """
    _check_depth(depth)
    data, links = read_node(cid, read)
    if data.type not in DIRECTORIES:
        raise DagError(f"{cid} is not a directory, or a part of one")
    for link in links:
        name = entry_name(data, link)
        if name is None:
            yield from directory_entries(link.cid, read, depth + 1)
        else:
            yield name, link


def file_content(cid: CID, read: Read, depth: int = 0) -> Generator[bytes, None, int]:
    """Yield the content below a node of a file, in pieces; return its size in bytes.

    Raises:
        DagError: it is not of a file, does not have its size, or is nested too deeply.
        IpldError: a node cannot be decoded.
    """
    _check_depth(depth)
    data, links = read_node(cid, read)
    if data.type not in (NodeType.FILE, NodeType.RAW):
        raise DagError(f"{cid} is a {data.type.name.lower()}, which is not supported")
    yield data.data
    size = len(data.data)
    for link in links:
        size += yield from file_content(link.cid, read, depth + 1)
    if data.file_size is not None and data.file_size != size:
        raise DagError(f"{cid} should have {data.file_size} bytes of content, and has {size}")
    return size


def _check_depth(depth: int) -> None:
    if depth > MAX_DEPTH:
        raise DagError(f"the nodes of a file are nested deeper than {MAX_DEPTH}")


def entry_name(data: UnixFs, link: PbLink) -> str | None:
    """Return the name of a directory's entry; None for a link to more of the node itself.

    In a sharded directory, names start with a position in hex, and a name that is just a position
    links to a shard.

    Raises:
        DagError: a sharded directory does not say how long positions are.
    """
    if data.type is NodeType.DIRECTORY:
        return link.name
    if data.type is not NodeType.HAMT:
        return None
    if not data.fanout:
        raise DagError("a sharded directory has no fanout")
    return link.name[len(f"{data.fanout - 1:x}") :] or None
