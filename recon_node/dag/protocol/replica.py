"""Replicas: the state of a DAG at a node, as a log of operations that anyone may continue.

Source: "DAG Replication & Publishing Protocol", sections "Replica" and "DAG State".

Theory of operation. A replica is a DAG-CBOR block `{prior?, change}`: an operation on the state of
the prior replica, named by its CID; a first replica has no `prior`. The state that a replica
describes is the set of all shards that were appended in its history.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from msgspec import ValidationError, convert

from recon_node.dag.protocol.dag_operations import (
    Append,
    Join,
    Operation,
    ReplicaError,
    encode_operation,
)
from recon_node.draw.layout import (
    NodeShape,
    Picture,
    PictureNode,
    Tone,
    count_of,
    missing_node,
    short_name,
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
                "the prior of a join must be the first of the joined replicas, in the order of "
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
        fields = {"prior": None} | value if isinstance(value, dict) else value
        replica: Replica = convert(fields, Replica, builtin_types=(bytes,))
    except (DagCborError, ValidationError) as error:
        raise ReplicaError(f"not a replica: {error}") from None
    if replica.block != block:
        raise ReplicaError("a replica is in its canonical form, without empty or other fields")
    return replica


def replica_picture(title: str, heads: Iterable[CID], replicas: Mapping[CID, Replica]) -> Picture:
    """Draw the history of some replicas, as far as it is in `replicas`."""
    tops = list(dict.fromkeys(heads))
    cids = list(tops)
    seen = set(tops)
    for cid in cids:  # grows while it is walked
        if cid in replicas:
            bases = [base for base in dict.fromkeys(replicas[cid].bases) if base not in seen]
            cids += bases
            seen.update(bases)
    lacking = [str(cid) for cid in cids if cid not in replicas]
    nodes = [_picture_node(cid, replicas[cid], cid in tops) for cid in cids if cid in replicas]
    summary = f"{count_of(len(nodes), 'operation')}, {count_of(len(tops), 'head')}"
    if lacking:
        summary += f", {len(lacking)} missing"
    return Picture(title, summary, (*map(missing_node, lacking), *nodes), (), "operations")


def _picture_node(cid: CID, replica: Replica, is_head: bool) -> PictureNode:
    change = replica.change
    if isinstance(change, Append):
        kind, what = "append", count_of(len(change.shards), "shard")
    elif isinstance(change, Join):
        kind, what = "join", count_of(len(replica.bases), "replica")
    else:
        kind, what = "publish", f"link {short_name(str(change.link))}"
    return PictureNode(
        id=str(cid),
        prev=tuple(map(str, replica.bases)),
        shape=NodeShape.DATA if replica.bases else NodeShape.ROOT,
        tone=Tone.TIP if is_head else Tone.KEPT,
        name=short_name(str(cid)),
        details=(kind, what),
        marks=("head",) if is_head else (),
        keep=is_head,
    )
