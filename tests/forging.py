"""Events that are badly signed."""

from recon_node.ceramic import Event, parse_event
from recon_node.ipld import CID, DAG_JOSE, car, dag_cbor


def forged(event: Event, signature: bytes | None = None) -> Event:
    """The event with another signature, by default with one bit of it turned: an event of its own,
    rightly hashed."""
    blocks = dict(car.decode(event.car).blocks)
    envelope = dag_cbor.decode(blocks.pop(event.cid))
    right = envelope["signatures"][0]["signature"]
    envelope["signatures"][0]["signature"] = signature or bytes([right[0] ^ 1]) + right[1:]
    root = dag_cbor.encode(envelope)
    cid = CID.of(DAG_JOSE, root)
    return parse_event(car.encode([cid], {cid: root, **blocks}))
