"""Directories as UnixFS builds them: one node, or for many entries a tree of shards (HAMT).

As kubo does, a directory is sharded if the names and CIDs of its entries have more than 256 KiB. In
a shard, an entry is at the place that a byte of its name's hash says: the first byte in the root
shard, the next one in the shards below it. Places that several entries share lead to a further
shard. Source: https://specs.ipfs.tech/unixfs/#hamt-directory.

The hash is the first 64 bits of MurmurHash3 (x64). Source:
https://github.com/aappleby/smhasher/blob/master/src/MurmurHash3.cpp, MurmurHash3_x64_128 with the
seed 0; in the multicodec table, `murmur3-x64-64` is its first half. Not for secrets.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from recon_node.dag.errors import UnixFsError
from recon_node.dag.unixfs import NO_ATTRIBUTES, Attributes, NodeType, UnixFs, UnixFsEntry, put_node
from recon_node.ipld import CID
from recon_node.ipld.dag_pb import PbLink, name_bytes

CODE: Final = 0x22
"""The multicodec of murmur3-x64-64."""

_MASK: Final = 2**64 - 1
_BLOCK: Final = 16
_C1, _C2 = 0x87C37B91114253D5, 0x4CF5AD432745937F


def murmur3_x64_64(data: bytes) -> bytes:
    """Return the hash, 8 bytes, the most significant first."""
    h1 = h2 = 0
    whole = len(data) - len(data) % _BLOCK
    for at in range(0, whole, _BLOCK):
        h1 ^= _first(int.from_bytes(data[at : at + 8], "little"))
        h1 = (_rotated(h1, 27) + h2) * 5 + 0x52DCE729 & _MASK
        h2 ^= _second(int.from_bytes(data[at + 8 : at + _BLOCK], "little"))
        h2 = (_rotated(h2, 31) + h1) * 5 + 0x38495AB5 & _MASK
    h2 ^= _second(int.from_bytes(data[whole + 8 :], "little"))
    h1 ^= _first(int.from_bytes(data[whole : whole + 8], "little"))
    h1, h2 = h1 ^ len(data), h2 ^ len(data)
    h1 = h1 + h2 & _MASK
    h2 = h2 + h1 & _MASK
    return (_mixed(h1) + _mixed(h2) & _MASK).to_bytes(8, "big")


def _first(word: int) -> int:
    return _rotated(word * _C1 & _MASK, 31) * _C2 & _MASK


def _second(word: int) -> int:
    return _rotated(word * _C2 & _MASK, 33) * _C1 & _MASK


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> (64 - bits)) & _MASK


def _mixed(word: int) -> int:
    word = (word ^ word >> 33) * 0xFF51AFD7ED558CCD & _MASK
    word = (word ^ word >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return word ^ word >> 33


MAX_ESTIMATE: Final = 256 * 1024
"""Bytes of the names and CIDs in a directory of one node."""
FANOUT: Final = 256
"""Places of a shard: one for each value of a byte."""

Put = Callable[[CID, bytes], None]


class _Entry(NamedTuple):
    """An entry of a sharded directory, and the hash of its name."""

    hash: bytes
    name: str
    tree: UnixFsEntry


def directory(
    entries: Iterable[tuple[str, UnixFsEntry]],
    put: Put,
    attributes: Attributes = NO_ATTRIBUTES,
) -> UnixFsEntry:
    """Build a directory from the names of its entries and their trees; `put` gets its nodes.

    Raises:
        UnixFsError: two of very many names have the same hash.
    """
    named = list(entries)
    estimate = sum(len(name_bytes(name)) + len(tree.cid) for name, tree in named)
    if estimate > MAX_ESTIMATE:
        hashed = [_Entry(murmur3_x64_64(name_bytes(name)), name, tree) for name, tree in named]
        return _shard(hashed, 0, put, attributes)
    links = tuple(PbLink(tree.cid, name, tree.total) for name, tree in named)
    return put_node(links, UnixFs(NodeType.DIRECTORY, attributes=attributes), put)


def _shard(
    entries: Sequence[_Entry], depth: int, put: Put, attributes: Attributes = NO_ATTRIBUTES
) -> UnixFsEntry:
    places: defaultdict[int, list[_Entry]] = defaultdict(list)
    for entry in entries:
        if depth == len(entry.hash):
            raise UnixFsError(f"a directory has several names with the hash of {entry.name!r}")
        places[entry.hash[depth]].append(entry)
    links = []
    for place, here in sorted(places.items()):
        tree, name = (
            (here[0].tree, here[0].name) if len(here) == 1 else (_shard(here, depth + 1, put), "")
        )
        links.append(PbLink(tree.cid, f"{place:02X}{name}", tree.total))
    occupied = sum(1 << place for place in places)
    bitfield = occupied.to_bytes((occupied.bit_length() + 7) // 8, "big")
    data = UnixFs(NodeType.HAMT, bitfield, hash_type=CODE, fanout=FANOUT, attributes=attributes)
    return put_node(tuple(links), data, put)
