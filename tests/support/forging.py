"""Events that are badly signed."""

from recon_node.ceramic import Event, parse_event
from recon_node.ipld import CID, DAG_JOSE, car, dag_cbor

ORDERS = {
    "ES256K": 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141,
    "ES256": 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551,
}
"""The orders of the groups of secp256k1 and P-256 (SEC 2)."""


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


def other_form(event: Event) -> Event:
    """The event with the other form of its ECDSA signature, (r, n - s): anybody can make it."""
    signature = event.envelope.signature
    order = ORDERS[event.envelope.header["alg"]]
    s = order - int.from_bytes(signature[32:])
    return forged(event, signature[:32] + s.to_bytes(32))
