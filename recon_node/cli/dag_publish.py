"""Publishing a DAG that is at a node under an identifier."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from nacl.signing import SigningKey

from recon_node.cli.client import NodeApi
from recon_node.cli.dag_node import contained, post_replica, publication_of, want
from recon_node.cli.dag_push import join_heads
from recon_node.cli.errors import CommandError
from recon_node.dag import Identifier
from recon_node.dag.protocol.publishing import check_publish, make_publish
from recon_node.dag.protocol.replica import Replica
from recon_node.dag.protocol.ucan import parse_ucan
from recon_node.ipld import CID


class Published(NamedTuple):
    """What a publish did."""

    identifier: Identifier
    link: CID
    replica: CID


def publish_dag(
    node: NodeApi,
    key: SigningKey,
    *,
    root: CID,
    identifier: Identifier | None,
    proofs: Sequence[str],
    origin: CID | None,
    expires: int | None,
) -> Published:
    """Publish the DAG below `root`, after what the node knows to be published already.

    Args:
        node: where the DAG is.
        key: signs; it is the identifier's, or `proofs` (UCANs) grant it this.
        root: the DAG's root.
        identifier: None: the key's own.
        proofs: see `key`.
        origin: the replica that describes the DAG; None: all that the node knows of it.
        expires: Unix seconds; None: as long as the proofs hold.

    Raises:
        CommandError: the node knows no replica of the DAG, or not all of it; the replica does not
            contain the root; the node refuses the publish, or does not answer.
        UcanError: the key may not publish under the identifier.
    """
    identifier = identifier or Identifier(bytes(key.verify_key))
    origin = origin or join_heads(node, key, root)
    if origin is None:
        raise CommandError(
            f"the node knows no replica of {root}: `recon-node dag push` it, or pull it first"
        )
    _check_contained(node, root, origin)
    if expires is None:
        bounds = [bound for proof in proofs if (bound := parse_ucan(proof).expires) is not None]
        expires = min(bounds, default=None)
    change = make_publish(key, identifier.key, root, origin, expires=expires, proofs=proofs)
    check_publish(change, int(time.time()))
    want(node, identifier)
    order = publication_of(node, identifier)["order"]
    replica = Replica(CID.parse(order[-1]) if order else None, change)
    post_replica(node, key, identifier, replica.block)
    _check(node, identifier, replica.cid)
    return Published(identifier, root, replica.cid)


def _check_contained(node: NodeApi, root: CID, origin: CID) -> None:
    found = contained(node, root, origin)
    if found["contains"]:
        return
    if found["contains"] is None:
        missing = ", ".join(found["waiting_for"][:3])
        raise CommandError(
            f"the node cannot tell whether the replica {origin} contains {root}: it does not have "
            f"{missing}"
        )
    raise CommandError(
        f"the replica {origin} does not contain {root}: no node would accept the publish. Push the "
        "DAG first, or name the replica that has its shards (`recon-node dag show` lists them)"
    )


def _check(node: NodeApi, identifier: Identifier, replica: CID) -> None:
    found = publication_of(node, identifier)
    reasons = {each["cid"]: each["reason"] for each in found["refused"]}
    if str(replica) not in found["order"] or str(replica) in reasons:
        reason = reasons.get(str(replica), "it is not among those that it knows")
        raise CommandError(f"the node does not accept the publish {replica}: {reason}")
