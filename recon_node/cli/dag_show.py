"""`recon-node dag show`."""

from __future__ import annotations

from typing import Any

import click

from recon_node.cli.client import NodeApi, ask, node_options
from recon_node.cli.drawing import Drawing, drawing_options, show_picture
from recon_node.cli.errors import CommandError


@click.command("show")
@click.argument("cid")
@node_options
@drawing_options
def show(cid: str, node: NodeApi, drawing: Drawing) -> None:
    """Draw the log of the DAG CID at a node: who appended shards to what, and joins.

    The newest is at the top; heads are the replicas that no other one continues. What they build
    on and is not at the node is marked.

    \b
    Example:
      recon-node dag show bafybei... --svg log.svg
    """
    from recon_node.dag.picture import replica_picture
    from recon_node.dag.protocol.operations import ReplicaError
    from recon_node.dag.protocol.replica import decode_replica
    from recon_node.ipld import IpldError, multibase

    if not cid.isalnum():
        raise CommandError(f"{cid!r} is not a CID")
    answer: dict[str, Any] = ask(node, "GET", f"/ceramic/dag/{cid}/replicas").json()
    try:
        decoded = [decode_replica(multibase.decode(each["data"])) for each in answer["replicas"]]
    except (IpldError, ReplicaError) as error:
        raise CommandError(f"the node's answer cannot be read: {error}") from None
    replicas = {each.cid: each for each in decoded}
    if not replicas:
        raise CommandError(f"no replica of the DAG {cid} is at the node")
    continued = {base for each in decoded for base in each.bases}
    heads = sorted(replicas.keys() - continued, key=str)
    show_picture(replica_picture(f"DAG {answer['root']}", heads, replicas), drawing)
