"""The Merkle tree of a batch of CIDs, as Ceramic's anchor service builds it.

The leaves are sorted by their text. A list of leaves is halved (the left half is the smaller one if
their number is odd) until it has one; a node is the DAG-CBOR list of its two children's CIDs. A
tree of one leaf has a root as well, `[leaf, null]`: so the root is always DAG-CBOR, which is all
that a contract call says of it. The path of a leaf names the child at each level, `1/0/1`.

Source: `MerkleTreeFactory` and `IpfsMerge` in js-ceramic's package anchor-utils, and `CIDSort` in
ceramic-anchor-service. Its trees have had no third child, `metadata`, since 2023. ceramic-one
builds trees of another shape (a Merkle mountain range) and, like this node, accepts both: what
counts is that the path leads from the root to the event.
"""

from collections.abc import Iterable, Sequence

from recon_node.ipld import CID, DAG_CBOR, dag_cbor


class MerkleTree:
    """A tree over some CIDs, at least one; repeated ones count once.

    Attributes:
        leaves: in their order in the tree.
        root: the CID to be anchored.

    Raises:
        ValueError: there is no leaf.
    """

    def __init__(self, leaves: Iterable[CID]) -> None:
        self.leaves: Sequence[CID] = sorted(set(leaves), key=str)
        if not self.leaves:
            raise ValueError("a Merkle tree needs a leaf")
        # The nodes from the root down, each before its left and then its right sub-tree: a sub-tree
        # of n leaves has n - 1 nodes, so indices follow from the number of leaves.
        self._nodes = [self.leaves[0]] * (len(self.leaves) - 1)
        self.root = (
            _node(self.leaves[0], None)[0]
            if len(self.leaves) == 1
            else self._build(0, len(self.leaves), 0)
        )

    def _build(self, start: int, end: int, at: int) -> CID:
        if end - start == 1:
            return self.leaves[start]
        middle = _middle(start, end)
        left = self._build(start, middle, at + 1)
        right = self._build(middle, end, at + middle - start)
        cid, _ = _node(left, right)
        self._nodes[at] = cid
        return cid

    def proof(self, index: int) -> tuple[str, dict[CID, bytes]]:
        """Return the path of a leaf, and the blocks of the nodes on it, the root first."""
        start, end, at = 0, len(self.leaves), 0
        if end == 1:
            return "0", dict([_node(self.leaves[0], None)])
        blocks: dict[CID, bytes] = {}
        path: list[str] = []
        while end - start > 1:
            middle = _middle(start, end)
            left, right = at + 1, at + middle - start
            cid, block = _node(self._cid(start, middle, left), self._cid(middle, end, right))
            blocks[cid] = block
            path.append("0" if index < middle else "1")
            start, end, at = (start, middle, left) if index < middle else (middle, end, right)
        return "/".join(path), blocks

    def _cid(self, start: int, end: int, at: int) -> CID:
        return self.leaves[start] if end - start == 1 else self._nodes[at]


def _middle(start: int, end: int) -> int:
    return start + (end - start) // 2


def _node(left: CID, right: CID | None) -> tuple[CID, bytes]:
    block = dag_cbor.encode([left, right])
    return CID.of(DAG_CBOR, block), block
