"""DAG-PB: the codec of files and directories in IPFS (https://ipld.io/specs/codecs/dag-pb/spec/).

    message PBNode { repeated PBLink Links = 2; optional bytes Data = 1; }    links come first
    message PBLink { optional bytes Hash = 1; optional string Name = 2; optional uint64 Tsize = 3; }

A node is written in this order. Reading is strict, too, except that the data may come first, as
some programs write it (https://github.com/ipfs/specs/pull/550), and that numbers are protobuf's: of
64 bits, and not always in their shortest form.

Names should be UTF-8, but those of old file systems are not. As in `os.fsdecode`, their other bytes
become lone surrogates, so that writing a name restores it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from recon_node.ipld.cid import CID, MAX_VARINT_64, cid_of_block, decode_varint, encode_varint
from recon_node.ipld.errors import CidError, DagPbError, VarintError

_DATA, _LINK = 0x0A, 0x12  # the tags of PBNode's fields 1 and 2, both length-delimited
_HASH, _NAME, _SIZE = 0x0A, 0x12, 0x18
_OTHER_BYTES: Final = "surrogateescape"


@dataclass(frozen=True, slots=True)
class PbLink:
    """A link to a node: its CID, its name in a directory, and the bytes of all blocks below it."""

    cid: CID
    name: str = ""
    size: int = 0


@dataclass(frozen=True, slots=True)
class PbNode:
    """A node: links, and data for the layer above (usually UnixFS)."""

    links: tuple[PbLink, ...]
    data: bytes | None = None


def encode(node: PbNode) -> bytes:
    """Write a node, its links stably sorted by name as the codec demands."""
    parts: list[bytes] = []
    for link in sorted(node.links, key=lambda link: name_bytes(link.name)):
        body = b"".join(
            (
                _field(_HASH, link.cid),
                _field(_NAME, name_bytes(link.name)),
                bytes([_SIZE]) + encode_varint(link.size),
            )
        )
        parts.append(_field(_LINK, body))
    if node.data is not None:
        parts.append(_field(_DATA, node.data))
    return b"".join(parts)


def name_bytes(name: str) -> bytes:
    """Return the name of a link as it is written."""
    return name.encode(errors=_OTHER_BYTES)


def decode(block: bytes) -> PbNode:
    """Read a node. Links by CIDv0 become the CIDv1 of the same block.

    Raises:
        DagPbError: not DAG-PB, or fields that are repeated, unknown or elsewhere.
    """
    try:
        return _decode_node(block)
    except (VarintError, CidError) as error:
        raise DagPbError(f"not DAG-PB: {error}") from None


def _decode_node(block: bytes) -> PbNode:
    links: list[PbLink] = []
    data: bytes | None = None
    links_end = False
    for tag, value in _fields(block, {_DATA, _LINK}, set()):
        if tag == _LINK:
            if links_end:
                raise DagPbError("not DAG-PB: the node's data is between its links")
            links.append(_decode_link(value))
        elif data is None:
            data, links_end = value, bool(links)
        else:
            raise DagPbError("not DAG-PB: the node has data twice")
    return PbNode(tuple(links), data)


def _decode_link(body: bytes) -> PbLink:
    cid: CID | None = None
    name, size, last = "", 0, 0
    for tag, value in _fields(body, {_HASH, _NAME}, {_SIZE}):
        if tag <= last:
            raise DagPbError("not DAG-PB: the fields of a link are repeated or out of order")
        last = tag
        if tag == _HASH:
            cid = cid_of_block(value)
        elif tag == _NAME:
            name = value.decode(errors=_OTHER_BYTES)
        else:
            size, _ = decode_number(value)
    if cid is None:
        raise DagPbError("not DAG-PB: a link without its hash")
    return PbLink(cid, name, size)


def _fields(data: bytes, delimited: set[int], numbers: set[int]) -> Iterable[tuple[int, bytes]]:
    offset = 0
    while offset < len(data):
        tag = data[offset]
        if tag not in delimited | numbers:
            raise DagPbError(f"not DAG-PB: an unknown field at byte {offset}")
        value, start = decode_number(data, offset + 1)
        if tag in numbers:
            yield tag, data[offset + 1 : start]
            offset = start
            continue
        offset = start + value
        if offset > len(data):
            raise DagPbError(f"not DAG-PB: {offset - len(data)} bytes are missing at the end")
        yield tag, data[start:offset]


def decode_number(data: bytes, offset: int = 0) -> tuple[int, int]:
    """Read a number of protobuf; return it and the offset after it.

    Raises:
        VarintError: the bytes end within it, or it does not fit in 64 bits.
    """
    return decode_varint(data, offset, MAX_VARINT_64, in_any_form=True)


def _field(tag: int, value: bytes) -> bytes:
    return bytes([tag]) + encode_varint(len(value)) + value
