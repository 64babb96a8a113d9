"""How a node stands in a pack: what its block says, without what a reader can add.

Readers that lack few of many keys pay for the nodes on the way to them. A fifth of a node's block
says nothing new: CBOR's headers, the first bytes of each CID, and the Ahash of the last child,
which is the parent's less those of the others. So packs have nodes in this form, and a reader makes
the block again, whose CID it checks. The tree itself is one of DAG-CBOR blocks.

    node     level, then a leaf's keys or an inner node's children; numbers are varints
    leaf     for each key: shared << 2 | kind, size, bytes
             kind 0: the bytes are the key behind those that it shares with the key before it
             kind 1, 2: the key ends with a CID (dag-cbor, dag-jose), whose head is left out
    inner    count, count - 1 Ahashes, count digests of CIDs, then count - 1 bounds: shared, size,
             bytes
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from recon_node.ipld import CID, DAG_CBOR, DAG_JOSE, IpldError, varint
from recon_node.ipld.cid import cid_head
from recon_node.recon import Sha256a
from recon_node.recon.keys.ranges import common_prefix
from recon_node.recon.keys.sha256a import DIGEST_BITS, DIGEST_SIZE, spread
from recon_node.snapshot.tree.nodes import (
    LOWEST,
    MAX_KEY,
    Inner,
    Leaf,
    Link,
    Node,
    NodeFormatError,
)

_NODE_HEAD: Final = cid_head(DAG_CBOR)
_HEADS: Final = (b"", cid_head(DAG_CBOR), cid_head(DAG_JOSE))
_LEAST_ITEM: Final = 16
_MOST_TIMES: Final = 8
"""An item takes so many bytes of a packed node, at least, and the items have at most so many times
its bytes: each has the digest of a CID, of 32 bytes, that no other one shares. Otherwise a megabyte
could be unpacked to fifty."""
_ROOM: Final = 4096
"""Bytes more, for small nodes."""
_KIND_BITS: Final = 2
_KINDS: Final = 3
_MODULUS: Final = sum(1 << 32 << slot for slot in range(0, 2 * DIGEST_BITS, 64))
"""2^32 in each lane of a lanes integer."""


def pack(node: Node) -> bytes:
    """Return the packed form of a node."""
    if isinstance(node, Leaf):
        return b"".join((varint.encode(0), *_packed_keys(node.keys)))
    children = node.children
    parts = [
        varint.encode(children[0].level + 1),
        varint.encode(len(children)),
        *(bytes(child.hash) for child in children[:-1]),
        *(child.cid[len(_NODE_HEAD) :] for child in children),
    ]
    before = LOWEST
    for child in children[1:]:
        shared = common_prefix(before, child.lower)
        rest = child.lower[shared:]
        parts += (varint.encode(shared), varint.encode(len(rest)), rest)
        before = child.lower
    return b"".join(parts)


def unpack(data: bytes, total: Sha256a | None) -> bytes:
    """Return the block of a packed node. The caller checks its CID.

    Args:
        data: the packed form.
        total: the Ahash of the node, as its parent has it; a leaf can do without.

    Raises:
        NodeFormatError: this is not a packed node.
    """
    try:
        level, at = varint.decode(data)
        node = _leaf(data, at) if level == 0 else _inner(data, at, level, total)
    except (IpldError, IndexError, ValueError) as error:
        raise NodeFormatError(f"it is not a packed node: {error}") from None
    return node.encode()


def _packed_keys(keys: Sequence[bytes]) -> Iterator[bytes]:
    before = b""
    for key in keys:
        shared = common_prefix(before, key)
        kind, rest = 0, key[shared:]
        for each in (1, 2):
            start = len(key) - DIGEST_SIZE - len(_HEADS[each])
            if start >= shared and key.startswith(_HEADS[each], start):
                kind, rest = each, key[shared:start] + key[-DIGEST_SIZE:]
                break
        yield varint.encode(shared << _KIND_BITS | kind)
        yield varint.encode(len(rest))
        yield rest
        before = key


def _leaf(data: bytes, at: int) -> Leaf:
    keys: list[bytes] = []
    before, size, most = b"", 0, _MOST_TIMES * len(data) + _ROOM
    while at < len(data):
        head, at = varint.decode(data, at)
        rest, at = _take(data, at)
        shared, kind = head >> _KIND_BITS, head & _KINDS
        if kind:
            middle = len(rest) - DIGEST_SIZE
            if middle < 0:
                raise NodeFormatError("a CID is cut off")
            rest = rest[:middle] + _HEADS[kind] + rest[middle:]
        before = _joined(before, shared, rest)
        keys.append(before)
        size += len(before)
        if size > most or _LEAST_ITEM * len(keys) > len(data) + _ROOM:
            raise NodeFormatError("its keys are too many for its bytes, or too long")
    return Leaf(keys)


def _inner(data: bytes, at: int, level: int, total: Sha256a | None) -> Inner:
    count, at = varint.decode(data, at)
    digests_at = at + DIGEST_SIZE * (count - 1)
    bounds_at = digests_at + DIGEST_SIZE * count
    if total is None or not count > 0 or bounds_at > len(data):
        raise NodeFormatError("it has fewer children than it says")
    hashes = [Sha256a(piece) for piece in _pieces(data, at, count - 1)]
    hashes.append(_rest_of(total, hashes))
    lowers, before, at = [LOWEST], LOWEST, bounds_at
    for _ in range(count - 1):
        shared, at = varint.decode(data, at)
        rest, at = _take(data, at)
        before = _joined(before, shared, rest)
        lowers.append(before)
    if at != len(data):
        raise NodeFormatError("bytes follow its end")
    cids = [CID(_NODE_HEAD + digest) for digest in _pieces(data, digests_at, count)]
    return Inner([Link(level - 1, *fields) for fields in zip(lowers, hashes, cids, strict=True)])


def _pieces(data: bytes, start: int, count: int) -> list[bytes]:
    end = start + DIGEST_SIZE * count
    return [data[at : at + DIGEST_SIZE] for at in range(start, end, DIGEST_SIZE)]


def _take(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = varint.decode(data, at)
    if at + size > len(data):
        raise NodeFormatError("it is cut off")
    return data[at : at + size], at + size


def _joined(before: bytes, shared: int, rest: bytes) -> bytes:
    if shared > len(before) or shared + len(rest) > MAX_KEY:
        raise NodeFormatError("a string is longer than the rest of the node")
    return before[:shared] + rest


def _rest_of(total: Sha256a, others: Sequence[Sha256a]) -> Sha256a:
    """Return what is missing of a sum: lane by lane, modulo 2^32."""
    lanes = spread(total) + len(others) * _MODULUS - sum(map(spread, others))
    return Sha256a.from_lanes(lanes)
