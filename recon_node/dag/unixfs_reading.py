"""Reading the nodes of a UnixFS DAG that may be anybody's."""

from __future__ import annotations

from collections.abc import Callable

from recon_node.dag import unixfs
from recon_node.dag.errors import DagError
from recon_node.dag.unixfs import NodeType, UnixFs
from recon_node.ipld import CID, DAG_PB, IDENTITY, RAW, dag_pb
from recon_node.ipld.dag_pb import PbLink

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
    return unixfs.decode(node.data), node.links


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
