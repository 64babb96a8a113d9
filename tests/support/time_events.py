"""Time events as anchors make them, of any tree, chain and transaction."""

from collections.abc import Sequence

from recon_node.ceramic import Event, parse_event
from recon_node.ceramic.builder import proof_block, time_event_car
from recon_node.ipld import CID, DAG_CBOR, dag_cbor


def time_event(
    init: Event | CID,
    prev: CID,
    *,
    siblings: Sequence[CID] = (),
    chain_id: str = "eip155:11155111",
    tx_hash: bytes = bytes(32),
) -> Event:
    """Build a time event that anchors `prev`.

    Args:
        init: of the stream.
        prev: the left child at every level of the Merkle tree; without siblings, its root.
        siblings: the right children on the way up the tree, the nearest first.
        chain_id: of the chain that has the transaction (CAIP-2).
        tx_hash: of the transaction, 32 bytes.

    Raises:
        InvalidEventError: `prev` or `init` cannot be an event's CID.
    """
    blocks: dict[CID, bytes] = {}
    root = prev
    for sibling in siblings:
        block = dag_cbor.encode([root, sibling])
        root = CID.of(DAG_CBOR, block)
        blocks[root] = block
    init_cid = init.cid if isinstance(init, Event) else init
    path = "/".join("0" for _ in siblings)
    return parse_event(
        time_event_car(init_cid, prev, proof_block(chain_id, root, tx_hash), path, blocks)
    )
