"""Replicas: the state of a DAG at a node, as a log of operations that anyone may continue.

Source: "DAG Replication & Publishing Protocol", sections "Replica" and "DAG State".

Theory of operation. A replica is a DAG-CBOR block `{prior?, change}`: an operation on the state of
the prior replica, named by its CID; a first replica leaves `prior` out. The state that a replica
describes is the set of all shards that were appended in its history.

`join` gives the same CID to every node, in whatever order and grouping the heads came together:
the prior of a join is the first of the joined heads in the order of their base32 text, and the
others are its forks. Joins carry no shards of their own, so a join among the heads is taken apart
into what it had joined; and a head that another one builds on is left out. What remains depends on
the operations alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from recon_node.dag.protocol.operations import (
    Append,
    Join,
    Operation,
    Publish,
    ReplicaError,
    check_fields,
    check_link,
    decode_operation,
    encode_operation,
)
from recon_node.ipld import CID, DAG_CBOR, DagCborError, dag_cbor


@dataclass(frozen=True, slots=True)
class Replica:
    """One operation of a log, on the state of `prior` (None: on the empty one)."""

    prior: CID | None
    change: Operation

    def __post_init__(self) -> None:
        if isinstance(self.change, Join) and (
            self.prior is None or str(self.prior) >= str(self.change.forks[0])
        ):
            raise ReplicaError(
                "the prior of a join must be the first of all that it joins, in the order of "
                "their base32 text"
            )

    @property
    def bases(self) -> tuple[CID, ...]:
        """The replicas that this one continues."""
        prior = () if self.prior is None else (self.prior,)
        return prior + (self.change.forks if isinstance(self.change, Join) else ())

    @property
    def block(self) -> bytes:
        """The replica as DAG-CBOR."""
        change = {"change": encode_operation(self.change)}
        return dag_cbor.encode(change if self.prior is None else {"prior": self.prior, **change})

    @property
    def cid(self) -> CID:
        """The CID of `block`."""
        return CID.of(DAG_CBOR, self.block)


def decode_replica(block: bytes) -> Replica:
    """Read a replica.

    Raises:
        ReplicaError: not DAG-CBOR, another shape, or not the canonical form.
    """
    try:
        value = dag_cbor.decode(block)
    except DagCborError as error:
        raise ReplicaError(f"no replica: {error}") from None
    fields = check_fields(value, "a replica", {"change"}, {"prior"})
    prior = check_link(fields["prior"], "the 'prior' of a replica") if "prior" in fields else None
    return Replica(prior, decode_operation(fields["change"]))


def join(heads: Iterable[CID], replicas: Mapping[CID, Replica]) -> Replica:
    """The replica that has all of the shards of `heads`: one of them, or a join of several.

    `replicas` must have the history of every head. The same state gives the same replica.

    Raises:
        ReplicaError: no head, or a history that is not whole.
    """
    parted = _take_apart(heads, replicas)
    covered = history((base for head in parted for base in replicas[head].bases), replicas)
    first, *others = sorted(parted - covered, key=str)
    return Replica(first, Join(tuple(others))) if others else _get(replicas, first)


def shards_of(head: CID, replicas: Mapping[CID, Replica]) -> frozenset[CID]:
    """The state of a replica: the shards of its whole history.

    Raises:
        ReplicaError: the history is not whole, or that of an identifier.
    """
    changes = [replicas[each].change for each in history([head], replicas)]
    if any(isinstance(change, Publish) for change in changes):
        raise ReplicaError(f"{head} is a log of publishes, which has no shards")
    return frozenset(
        shard for change in changes if isinstance(change, Append) for shard in change.shards
    )


def history(heads: Iterable[CID], replicas: Mapping[CID, Replica]) -> set[CID]:
    """The CIDs of these replicas and of all that they continue.

    Raises:
        ReplicaError: the history is not whole.
    """
    left = list(heads)
    found = set(left)
    while left:
        for base in _get(replicas, left.pop()).bases:
            if base not in found:
                found.add(base)
                left.append(base)
    return found


def missing(heads: Iterable[CID], replicas: Mapping[CID, Replica]) -> set[CID]:
    """What the history of these heads needs and `replicas` lacks, as far as that can be seen."""
    left = list(heads)
    seen = set(left)
    lacking: set[CID] = set()
    while left:
        cid = left.pop()
        replica = replicas.get(cid)
        if replica is None:
            lacking.add(cid)
            continue
        bases = set(replica.bases) - seen
        seen |= bases
        left.extend(bases)
    return lacking


def _take_apart(heads: Iterable[CID], replicas: Mapping[CID, Replica]) -> set[CID]:
    """The heads, with joins replaced by what they joined."""
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
        raise ReplicaError(f"the replica {cid} is not here: the history is not whole")
    return replica
