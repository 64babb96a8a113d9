"""How much of a disk a UnixFS DAG takes, added up before anything is written.

A DAG of two megabytes can name petabytes: a node may link to one child thousands of times, at
several levels. So each node is looked at once, and what is below it is multiplied, not walked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from recon_node.dag.unixfs_reading import Read, entry_name, read_node
from recon_node.ipld import CID

MAX_EXTENT: Final = 1 << 60
"""Bytes and entries above this are not counted any more: 1 EiB."""
_ENTRY_SIZE: Final = 4096
"""Bytes that a file, directory or symlink takes beside its content, on most file systems."""
_NODE_SIZE: Final = 256
"""Bytes that a node counts as at least: endless tiny ones take time, if not space."""


class Extent(NamedTuple):
    """What a DAG takes when it is written."""

    size: int
    """Bytes of a disk."""
    entries: int
    """Files, directories and symlinks."""


@dataclass(slots=True)
class _Node:
    cid: CID
    content: int
    links: list[tuple[CID, bool]]
    """The nodes below, and whether each is an entry of a directory."""
    unseen: Iterator[CID]


def measure(root: CID, read: Read) -> Extent:
    """Return what the file, directory or symlink `root` takes.

    Raises:
        DagError: a node is not UnixFS.
        IpldError: a node cannot be decoded.
    """
    measured: dict[CID, Extent] = {}
    path = [_open(root, read)]
    while path:
        node = path[-1]
        child = next((cid for cid in node.unseen if cid not in measured), None)
        if child is not None:
            path.append(_open(child, read))
            continue
        measured[node.cid] = _sum(node, measured)
        path.pop()
    return _as_entry(measured[root])


def _open(cid: CID, read: Read) -> _Node:
    data, found = read_node(cid, read)
    links = [(link.cid, entry_name(data, link) is not None) for link in found]
    return _Node(cid, len(data.data), links, iter(dict.fromkeys(child for child, _ in links)))


def _sum(node: _Node, measured: dict[CID, Extent]) -> Extent:
    size, entries = max(node.content, _NODE_SIZE), 0
    for cid, is_entry in node.links:
        below = _as_entry(measured[cid]) if is_entry else measured[cid]
        size, entries = size + below.size, entries + below.entries
    return Extent(min(size, MAX_EXTENT), min(entries, MAX_EXTENT))


def _as_entry(extent: Extent) -> Extent:
    return Extent(extent.size + _ENTRY_SIZE, extent.entries + 1)
