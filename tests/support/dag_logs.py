"""Logs of DAGs in memory: what they have, and how their heads are joined (`dag_state` asks SQL)."""

from collections.abc import Iterable, Mapping

from recon_node.dag.protocol.dag_operations import Join, ReplicaError
from recon_node.dag.protocol.replica import Replica
from recon_node.ipld import CID


def join(heads: Iterable[CID], replicas: Mapping[CID, Replica]) -> Replica:
    """Return the replica that has all shards of `heads`: one of them, or a join of several.

    The same heads give the same replica.

    Raises:
        ReplicaError: there are no heads, or a history is incomplete.
    """
    parted = _take_apart(heads, replicas)
    covered = history((base for head in parted for base in replicas[head].bases), replicas)
    first, *others = sorted(parted - covered, key=str)
    return Replica(first, Join(tuple(others))) if others else _get(replicas, first)


def history(heads: Iterable[CID], replicas: Mapping[CID, Replica]) -> set[CID]:
    """Return the CIDs of these replicas and of everything they continue.

    Raises:
        ReplicaError: the history is incomplete.
    """
    left = list(heads)
    cids = set(left)
    while left:
        for base in _get(replicas, left.pop()).bases:
            if base not in cids:
                cids.add(base)
                left.append(base)
    return cids


def _take_apart(heads: Iterable[CID], replicas: Mapping[CID, Replica]) -> set[CID]:
    """Return the heads, with joins replaced by what they joined."""
    left = list(heads)
    if not left:
        raise ReplicaError("nothing to join: a join needs at least one replica")
    parted: set[CID] = set()
    seen: set[CID] = set()
    while left:
        cid = left.pop()
        if cid in seen:
            continue
        seen.add(cid)
        replica = _get(replicas, cid)
        if isinstance(replica.change, Join):
            left.extend(replica.bases)
        else:
            parted.add(cid)
    return parted


def _get(replicas: Mapping[CID, Replica], cid: CID) -> Replica:
    replica = replicas.get(cid)
    if replica is None:
        raise ReplicaError(f"the replica {cid} is missing: the history is incomplete")
    return replica
