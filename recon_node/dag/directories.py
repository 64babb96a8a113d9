"""Directories as UnixFS builds them: one node, or for many entries a tree of shards (HAMT).

As kubo does, a directory is sharded if the names and CIDs of its entries have more than 256 KiB. In
a shard, an entry is at the place that a byte of its name's hash says: the first byte in the root
shard, the next one in the shards below it. Places that several entries share lead to a further
shard. Source: https://specs.ipfs.tech/unixfs/#hamt-directory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from recon_node.dag.errors import UnixFsError
from recon_node.dag.murmur3 import CODE, murmur3_x64_64
from recon_node.dag.unixfs import NO_ATTRIBUTES, Attributes, NodeType, UnixFs, UnixFsEntry, put_node
from recon_node.ipld import CID
from recon_node.ipld.dag_pb import PbLink, name_bytes

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
