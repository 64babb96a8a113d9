"""Attacks by copies of what others signed."""

from __future__ import annotations

import os
from typing import Final

from cryptography.hazmat.primitives.asymmetric import ec
from nacl.signing import SigningKey

from benchmarks.attack.catalogue import attack
from benchmarks.attack.field import Field, document_id, make_model, updated
from recon_node.ceramic import Event, parse_event
from recon_node.ceramic.builder import init_event
from recon_node.client import Ceramic, Key
from recon_node.ipld import CID, DAG_JOSE, car, dag_cbor

_ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""The order of the group of P-256 (SEC 2)."""


def _other_form(event: Event) -> Event:
    """The event with the other form of its signature, (r, n - s)."""
    blocks = dict(car.decode(event.car).blocks)
    envelope = dag_cbor.decode(blocks.pop(event.cid))
    signature = envelope["signatures"][0]["signature"]
    other = _ORDER - int.from_bytes(signature[32:])
    envelope["signatures"][0]["signature"] = signature[:32] + other.to_bytes(32)
    root = dag_cbor.encode(envelope)
    cid = CID.of(DAG_JOSE, root)
    return parse_event(car.encode([cid], {cid: root, **blocks}))


@attack(short=True)
def copies_of_signatures(here: Field) -> None:
    """Anybody can make a second event of a P-256 signature, which wins over the owner's own."""
    model, model_id = make_model(SigningKey.generate())
    here.add([model])
    turned_back = lost = 0
    with here.attacked():
        for _ in range(4):
            key = ec.generate_private_key(ec.SECP256R1())
            init = init_event(key, model_id, {"a": "v0"}, unique=os.urandom(4))
            chain = updated(key, init, 5)
            here.add(chain)
            here.await_event(chain[-1])
            copies = [_other_form(event) for event in chain[1:]]
            here.add(copies)
            here.await_event(copies[-1])
            stream = document_id(init)
            turned_back += here.content(stream) != {"a": "v5"}
            with Ceramic(here.url, key=Key(key)) as client:
                before = client.read(stream).content
                client.update(stream, patch=[{"op": "replace", "path": "/a", "value": "v6"}])
            lost += before != {"a": "v5"} or here.content(stream) != {"a": "v6"}
    here.expect("streams turned back", 0, turned_back)
    here.expect("updates on old content", 0, lost)
