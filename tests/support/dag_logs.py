"""How the heads of a log of DAGs are joined, by the protocol's words (`dag_state` asks SQL)."""

from collections.abc import Iterable, Mapping

from recon_node.dag.protocol.dag_operations import Join
from recon_node.dag.protocol.replica import Replica
from recon_node.ipld import CID


def join(heads: Iterable[CID], replicas: Mapping[CID, Replica]) -> Replica:
    """Return the replica that has all shards of `heads`: one of them, or a join of several."""
    parted = _take_apart(heads, replicas)
    covered = _history((base for head in parted for base in replicas[head].bases), replicas)
    first, *others = sorted(parted - covered, key=str)
    return Replica(first, Join(tuple(others))) if others else replicas[first]


def _history(heads: Iterable[CID], replicas: Mapping[CID, Replica]) -> set[CID]:
    """The CIDs of these replicas and of everything they continue."""
    left = list(heads)
    cids = set(left)
    while left:
        new = set(replicas[left.pop()].bases) - cids
        cids |= new
        left += new
    return cids


def _take_apart(heads: Iterable[CID], replicas: Mapping[CID, Replica]) -> set[CID]:
    """The heads, with joins replaced by what they joined."""
    left, parted = set(heads), set[CID]()
    while left:
        replica = replicas[left.pop()]
        if isinstance(replica.change, Join):
            left |= set(replica.bases)
        else:
            parted.add(replica.cid)
    return parted
