"""What the commands about DAGs ask of a node."""

from __future__ import annotations

from typing import Any

from nacl.signing import SigningKey

from recon_node.cli.client import NodeApi, ask
from recon_node.dag import SORT_KEY, Identifier, Subject, replica_event, sort_value
from recon_node.ipld import CID, multibase


def state_of(node: NodeApi, root: CID) -> dict[str, Any]:
    """What the node says of a DAG."""
    return dict(ask(node, "GET", f"/ceramic/dag/{root}").json())


def publication_of(node: NodeApi, identifier: Identifier) -> dict[str, Any]:
    """What the node says of an identifier."""
    return dict(ask(node, "GET", f"/ceramic/dag/publish/{identifier}").json())


def contained(node: NodeApi, link: CID, origin: CID) -> dict[str, Any]:
    """What the node says of whether the DAG that a replica describes contains a block."""
    return dict(ask(node, "GET", f"/ceramic/dag/{link}/contained/{origin}").json())


def want(node: NodeApi, subject: Subject) -> None:
    """Make the node want a DAG, or the publishes of an identifier.

    What it does not want it neither gets from peers nor tells them of. A node without interests
    wants everything, and is left so: its first interest would narrow that.
    """
    if ask(node, "GET", "/ceramic/experimental/interests").json()["interests"]:
        body = {"sep": SORT_KEY, "sepValue": sort_value(subject)}
        ask(node, "POST", "/ceramic/interests", json=body)


def post_replica(node: NodeApi, key: SigningKey, subject: Subject, block: bytes) -> None:
    """Send an operation on a DAG, or a publish.

    Raises:
        CommandError: the node refuses it, or does not answer.
    """
    event = replica_event(key, subject, block)
    ask(node, "POST", "/ceramic/events", json={"data": multibase.encode(event.car)})
