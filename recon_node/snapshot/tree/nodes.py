"""The nodes of the tree as DAG-CBOR blocks (CIP-124, appendix C).

A leaf lists its keys; an inner node lists its children, with a bound between each two:

    leaf     [0, shared, rest, shared, rest, ...]
    inner    [level, Ahash, CID, shared, rest, Ahash, CID, shared, rest, Ahash, CID, ...]

A key or bound is front-coded: `shared` says how many bytes it has in common with the one before it
in the node, and `rest` are its other bytes. A bound is a shortest string between the last key on
its left and the first key on its right. So no key equals a bound, a child's keys are those strictly
between two bounds, as in Recon's ranges, and the bounds at both ends of a node are in its parent.

The Ahash (Sha256a) of a child covers all keys below it: a reader compares it with its own keys
between the same bounds, and skips the child if they are equal.

A node ends before an item whose rank is the smallest for some items around. The rank of an item is
the length of the bound between it and the item before, then its hash. So boundaries look random,
but they follow from the set alone, and they lie where bounds are short: at the first event of a
stream rather than between two of its events. They are *local minima* (Bjørner, Blass and Gurevich,
2010): an item starts a node if no rank among the `NEIGHBOURS` items on either side is smaller than
its own. So

- a node has at least `NEIGHBOURS` + 1 items, except the last of a level, and about 2 `NEIGHBOURS`
  + 1 on average, with few far from it: half of what Merkle search trees waste by uneven nodes;
- whether an item starts a node depends on its neighbours only: a change moves no boundary
  further away than `NEIGHBOURS` + 1 items (the bound below an item depends on the one before it).

The second property is what makes updates local: beside each changed node, one unchanged neighbour
on either side is enough context.

In a pack, a node is what its block says, without what a reader can add. Readers that lack few of
many keys pay for the nodes on the way to them. A fifth of a node's block says nothing new: CBOR's
headers, the first bytes of each CID, and the Ahash of the last child, which is the parent's less
those of the others. A reader makes the block again, whose CID it checks. The tree itself is one of
DAG-CBOR blocks.

    packed   level, then a leaf's keys or an inner node's children; numbers are varints
    leaf     for each key: shared << 2 | kind, size, bytes
             kind 0: the bytes are the key behind those that it shares with the key before it
             kind 1, 2: the key ends with a CID (dag-cbor, dag-jose), whose head is left out
    inner    count, count - 1 Ahashes, count digests of CIDs, then count - 1 bounds: shared, size,
             bytes
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain
from typing import Any, Final, NamedTuple

from recon_node.ipld import (
    CID,
    DAG_CBOR,
    DAG_JOSE,
    DagCborError,
    IpldError,
    dag_cbor,
    decode_varint,
    encode_varint,
)
from recon_node.ipld.cid import cid_head
from recon_node.recon import KeyRange, Sha256a
from recon_node.recon.keys.ordered_keys import common_prefix
from recon_node.recon.keys.sha256a import DIGEST_BITS, DIGEST_SIZE, lanes_of, spread

NEIGHBOURS: Final = 3
"""Items on either side with which an item is compared. Part of the format: it decides every CID."""

ALWAYS_SMALLER: Final = b""
"""Stands for the rank of an item that is known to start a node."""


def rank(item: bytes, bound: bytes) -> bytes:
    """Return the rank of an item: a key, or a node by its lower bound.

    `bound` is the shortest string between the item and the one before it.
    """
    return bytes((min(len(bound), 255),)) + sha256(item).digest()


def starts(ranks: Sequence[bytes], first: int, end: int) -> Iterator[int]:
    """Yield the indices from `first` to before `end` that start a node.

    Index 0 is known to start one, and no other node starts within `NEIGHBOURS` items of it. So
    levels get smaller, up to a single node.
    """
    for at in range(max(NEIGHBOURS + 1, first), end):
        own = ranks[at]
        if own < ranks[at - 1] and own == min(ranks[at - NEIGHBOURS : at + NEIGHBOURS + 1]):
            yield at


LOWEST: Final = b""
HIGHEST: Final = b"\xff" * 64
"""Bounds of the whole tree: all EventIds lie between them."""
MAX_LEVEL: Final = 40
"""A node has at least two children, except by accident, so this is more than any set needs."""
MAX_KEY: Final = 256
"""Bytes of a key or bound: without a limit, front-coding lets a few bytes stand for gigabytes."""
_CHILD_ITEMS: Final = 4


class NodeFormatError(ValueError):
    """A block is not a node of the tree, or not the one that its parent describes."""


class Link(NamedTuple):
    """A node as its parent sees it."""

    level: int
    """0: a leaf."""
    lower: bytes
    """The bound below its keys."""
    hash: Sha256a
    cid: CID


@dataclass(frozen=True, slots=True)
class Root:
    """A whole tree."""

    link: Link
    count: int
    """Keys."""


@dataclass(frozen=True, slots=True)
class LeafNode:
    """A node with keys, ascending."""

    keys: Sequence[bytes]

    @property
    def hash(self) -> Sha256a:
        """Of its keys."""
        return Sha256a.from_lanes(sum(map(lanes_of, self.keys)))

    def encode(self) -> bytes:
        """Return its block."""
        return dag_cbor.encode([0, *chain.from_iterable(_front_coded(self.keys))])


@dataclass(frozen=True, slots=True)
class InnerNode:
    """A node with children, in order."""

    children: Sequence[Link]

    def encode(self) -> bytes:
        """Return its block."""
        first, *others = self.children
        fields: list[Any] = [first.level + 1, bytes(first.hash), first.cid]
        bounds = _front_coded(link.lower for link in others)
        for bound, link in zip(bounds, others, strict=True):
            fields += (*bound, bytes(link.hash), link.cid)
        return dag_cbor.encode(fields)


Node = LeafNode | InnerNode


def node_cid(block: bytes) -> CID:
    """Return the CID of a node's block."""
    return CID.of(DAG_CBOR, block)


def level_of(block: bytes) -> int:
    """Return the level that a block claims.

    Raises:
        NodeFormatError: it is not a node.
    """
    try:
        level = dag_cbor.decode(block)[0]
    except (DagCborError, TypeError, LookupError) as error:
        raise NodeFormatError(str(error)) from None
    if type(level) is not int:
        raise NodeFormatError("it has no level")
    return level


def decode(block: bytes, level: int, bounds: KeyRange) -> Node:
    """Parse a block and check it against what is known of it from its parent.

    The block matches its CID, and its keys must lie strictly between `bounds`.

    Raises:
        NodeFormatError: it is not that node.
    """
    try:
        fields = dag_cbor.decode(block)
    except DagCborError as error:
        raise NodeFormatError(str(error)) from None
    if not isinstance(fields, list) or not fields or fields[0] != level or level > MAX_LEVEL:
        raise NodeFormatError(f"it is not a node of level {level}")
    try:
        return _leaf(fields, bounds) if level == 0 else _inner(fields, bounds)
    except (TypeError, ValueError, IndexError) as error:
        raise NodeFormatError(f"it is not a node of level {level}: {error}") from None


def _leaf(fields: list[Any], bounds: KeyRange) -> LeafNode:
    keys = _decoded(fields[1::2], fields[2::2], bounds)
    if not keys:
        raise NodeFormatError("it has no keys")
    return LeafNode(keys)


def _inner(fields: list[Any], bounds: KeyRange) -> InnerNode:
    hashes, cids, shared, rests = (fields[at::_CHILD_ITEMS] for at in (1, 2, 3, 4))
    lowers = [bounds.lower, *_decoded(shared, rests, bounds)]
    if not all(isinstance(cid, CID) for cid in cids):
        raise NodeFormatError("a child has no CID")
    facts = zip(lowers, map(Sha256a, hashes), cids, strict=True)
    return InnerNode([Link(fields[0] - 1, *child) for child in facts])


def _front_coded(strings: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    before = b""
    for string in strings:
        shared = common_prefix(before, string)
        yield shared, string[shared:]
        before = string


def _decoded(shared: list[int], rests: list[bytes], bounds: KeyRange) -> list[bytes]:
    strings: list[bytes] = []
    before, last = b"", bounds.lower
    for size, rest in zip(shared, rests, strict=True):
        if not 0 <= size <= len(before):
            raise NodeFormatError("a string shares more bytes than the one before it has")
        if size + len(rest) > MAX_KEY:
            raise NodeFormatError(f"a string has more than {MAX_KEY} bytes")
        before = before[:size] + rest
        if not last < before < bounds.upper:
            raise NodeFormatError("its keys or bounds do not ascend between its own bounds")
        strings.append(before)
        last = before
    return strings


_NODE_HEAD: Final = cid_head(DAG_CBOR)
_HEADS: Final = (b"", cid_head(DAG_CBOR), cid_head(DAG_JOSE))
_LEAST_ITEM: Final = 16
_MOST_TIMES: Final = 8
"""An item takes at least this many bytes of a packed node, and the items have at most this many
times its bytes: each has the digest of a CID, of 32 bytes, that no other one shares. Otherwise a
megabyte could be unpacked to fifty."""
_ROOM: Final = 4096
"""Bytes more, for small nodes."""
_KIND_BITS: Final = 2
_KINDS: Final = 3
_MODULUS: Final = sum(1 << 32 << slot for slot in range(0, 2 * DIGEST_BITS, 64))
"""2^32 in each lane of a lanes integer."""


def pack(node: Node) -> bytes:
    """Return the packed form of a node."""
    if isinstance(node, LeafNode):
        return b"".join((encode_varint(0), *_packed_keys(node.keys)))
    children = node.children
    parts = [
        encode_varint(children[0].level + 1),
        encode_varint(len(children)),
        *(bytes(child.hash) for child in children[:-1]),
        *(child.cid[len(_NODE_HEAD) :] for child in children),
    ]
    for shared, rest in _front_coded(child.lower for child in children[1:]):
        parts += (encode_varint(shared), encode_varint(len(rest)), rest)
    return b"".join(parts)


def unpack(data: bytes, total: Sha256a | None) -> bytes:
    """Return the block of a packed node. The caller checks its CID.

    `total` is the Ahash of the node, as its parent has it; a leaf can do without.

    Raises:
        NodeFormatError: this is not a packed node.
    """
    try:
        level, at = decode_varint(data)
        node = _unpacked_leaf(data, at) if level == 0 else _unpacked_inner(data, at, level, total)
    except (IpldError, IndexError, ValueError) as error:
        raise NodeFormatError(f"it is not a packed node: {error}") from None
    return node.encode()


def _packed_keys(keys: Sequence[bytes]) -> Iterator[bytes]:
    for key, (shared, rest) in zip(keys, _front_coded(keys), strict=True):
        kind = 0
        for candidate in (1, 2):
            start = len(key) - DIGEST_SIZE - len(_HEADS[candidate])
            if start >= shared and key.startswith(_HEADS[candidate], start):
                kind, rest = candidate, key[shared:start] + key[-DIGEST_SIZE:]
                break
        yield encode_varint(shared << _KIND_BITS | kind)
        yield encode_varint(len(rest))
        yield rest


def _unpacked_leaf(data: bytes, at: int) -> LeafNode:
    keys: list[bytes] = []
    before, size, most = b"", 0, _MOST_TIMES * len(data) + _ROOM
    while at < len(data):
        head, at = decode_varint(data, at)
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
    return LeafNode(keys)


def _unpacked_inner(data: bytes, at: int, level: int, total: Sha256a | None) -> InnerNode:
    count, at = decode_varint(data, at)
    digests_at = at + DIGEST_SIZE * (count - 1)
    bounds_at = digests_at + DIGEST_SIZE * count
    if total is None or not count > 0 or bounds_at > len(data):
        raise NodeFormatError("it has fewer children than it says")
    hashes = [Sha256a(piece) for piece in _pieces(data, at, count - 1)]
    hashes.append(_rest_of(total, hashes))
    lowers, before, at = [LOWEST], LOWEST, bounds_at
    for _ in range(count - 1):
        shared, at = decode_varint(data, at)
        rest, at = _take(data, at)
        before = _joined(before, shared, rest)
        lowers.append(before)
    if at != len(data):
        raise NodeFormatError("bytes follow its end")
    cids = [CID(_NODE_HEAD + digest) for digest in _pieces(data, digests_at, count)]
    return InnerNode(
        [Link(level - 1, *fields) for fields in zip(lowers, hashes, cids, strict=True)]
    )


def _pieces(data: bytes, start: int, count: int) -> list[bytes]:
    end = start + DIGEST_SIZE * count
    return [data[at : at + DIGEST_SIZE] for at in range(start, end, DIGEST_SIZE)]


def _take(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = decode_varint(data, at)
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
