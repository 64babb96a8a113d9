"""The log of a DAG as a picture: its appends, joins and publishes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from recon_node.dag.protocol.operations import Append, Join
from recon_node.dag.protocol.replica import Replica
from recon_node.draw.layout import Node, Picture, Shape, Tone, count_of, missing, short_name
from recon_node.ipld import CID


def replica_picture(title: str, heads: Iterable[CID], replicas: Mapping[CID, Replica]) -> Picture:
    """Draw the history of some replicas, as far as it is in `replicas`."""
    tops = list(dict.fromkeys(heads))
    found = list(tops)
    seen = set(tops)
    for cid in found:  # grows while it is walked
        if cid in replicas:
            bases = [base for base in dict.fromkeys(replicas[cid].bases) if base not in seen]
            found += bases
            seen.update(bases)
    lacking = [str(cid) for cid in found if cid not in replicas]
    nodes = [_replica(cid, replicas[cid], cid in tops) for cid in found if cid in replicas]
    summary = f"{count_of(len(nodes), 'operation')}, {count_of(len(tops), 'head')}"
    if lacking:
        summary += f", {len(lacking)} missing"
    return Picture(title, summary, (*map(missing, lacking), *nodes), (), "operations")


def _replica(cid: CID, replica: Replica, is_head: bool) -> Node:
    change = replica.change
    if isinstance(change, Append):
        kind, what = "append", count_of(len(change.shards), "shard")
    elif isinstance(change, Join):
        kind, what = "join", count_of(len(replica.bases), "replica")
    else:
        kind, what = "publish", f"link {short_name(str(change.link))}"
    return Node(
        id=str(cid),
        prev=tuple(map(str, replica.bases)),
        shape=Shape.DATA if replica.bases else Shape.ROOT,
        tone=Tone.TIP if is_head else Tone.KEPT,
        name=short_name(str(cid)),
        details=(kind, what),
        marks=("head",) if is_head else (),
        keep=is_head,
    )
