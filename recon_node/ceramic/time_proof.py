"""The proof of a time event: its `prev` is a leaf of a Merkle tree whose root is on a chain.

What can be known without asking the chain is checked here: that the path leads from the proof's
root, through blocks that are lists of links, to the time event's prev.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Self

from recon_node.ceramic import shape
from recon_node.ceramic.errors import InvalidEventError
from recon_node.ipld import CID

# A tree of this depth has room for 2^64 events; anchor services make far smaller ones.
MAX_PATH_DEPTH: Final = 64

_PROOF: Final = frozenset({"chainId", "root", "txHash", "txType"})
_NO_FIELDS: Final[frozenset[str]] = frozenset()
_INDEX: Final = re.compile(r"0|[1-9][0-9]{0,3}", re.ASCII)


@dataclass(frozen=True, slots=True)
class TimeProof:
    """Where the root of the Merkle tree was written: chain (CAIP-2), transaction and its kind."""

    chain_id: str
    root: CID
    tx_hash: CID
    tx_type: str

    @classmethod
    def from_fields(cls, value: Any) -> Self:
        """Check the decoded proof block of a time event.

        Raises:
            InvalidEventError: a field is missing, unknown or of a wrong type.
        """
        proof = shape.fields(value, "the proof", _PROOF, _NO_FIELDS)
        return cls(
            chain_id=shape.of_type(proof["chainId"], str, "the proof's 'chainId'"),
            root=shape.of_type(proof["root"], CID, "the proof's 'root'"),
            tx_hash=shape.of_type(proof["txHash"], CID, "the proof's 'txHash'"),
            tx_type=shape.of_type(proof["txType"], str, "the proof's 'txType'"),
        )


def check_path(root: CID, path: str, prev: CID, read_block: Callable[[CID, str], Any]) -> None:
    """Walk from `root` along `path` ("0/1/0"), which must end at `prev`.

    `read_block` gives the decoded block of a CID; its second argument names the block for people.
    An empty path means that the tree has one leaf only, its root.

    Raises:
        InvalidEventError: it does not end there, or cannot be walked.
    """
    indexes = path.split("/") if path else []
    if len(indexes) > MAX_PATH_DEPTH:
        raise InvalidEventError(
            f"the proof's path is {len(indexes)} deep; the limit is {MAX_PATH_DEPTH}"
        )
    cid = root
    for position, index in enumerate(indexes):
        node = shape.of_type(read_block(cid, f"node {position}"), list, f"node {position}")
        if not _INDEX.fullmatch(index) or int(index) >= len(node):
            raise InvalidEventError(f"the proof's path {path[:200]!r} leaves the Merkle tree")
        cid = shape.of_type(node[int(index)], CID, f"entry {index} of node {position}")
    if cid != prev:
        raise InvalidEventError(f"the proof's path ends at {cid}, not at the prev {prev}")
