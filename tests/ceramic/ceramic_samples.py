"""Events by hand, block by block, so that tests can build what the builders refuse to."""

import json
from typing import Any

from nacl.signing import SigningKey

from recon_node.ceramic import METAMODEL
from recon_node.ceramic.auth.did import controller_of
from recon_node.ceramic.builder import init_event, model_event
from recon_node.ipld import CID, DAG_CBOR, DAG_JOSE, car, dag_cbor

KEY = SigningKey(bytes(range(32)))
OTHER_KEY = SigningKey(bytes(32))
CONTROLLER = controller_of(KEY)
MODEL = model_event(KEY, {"name": "Note"}).stream_id()
INIT = init_event(KEY, MODEL, {"title": "first"}, unique=b"1")
HEADER = {"controllers": [CONTROLLER], "model": MODEL.to_bytes(), "sep": "model"}
KID = f"{CONTROLLER}#{CONTROLLER.removeprefix('did:key:')}"
METAMODEL_BYTES = METAMODEL.to_bytes()


def block(value: Any, codec: int = DAG_CBOR) -> tuple[CID, bytes]:
    data = dag_cbor.encode(value)
    return CID.of(codec, data), data


def unsigned_car(payload: Any, codec: int = DAG_CBOR) -> bytes:
    cid, data = block(payload, codec)
    return car.encode([cid], {cid: data})


def envelope_car(envelope: Any, *blocks: tuple[CID, bytes], codec: int = DAG_JOSE) -> bytes:
    cid, data = block(envelope, codec)
    return car.encode([cid], dict(blocks) | {cid: data})


def signed_car(
    payload: Any,
    *,
    protected: bytes | dict[str, Any] | None = None,
    signature: bytes | None = None,
    key: SigningKey = KEY,
    **more: Any,
) -> bytes:
    """A signed event whose protected header, signature and envelope fields may be anything."""
    payload_cid, payload_block = block(payload)
    if protected is None:
        protected = {"alg": "EdDSA", "kid": KID}
    if isinstance(protected, dict):
        protected = json.dumps(protected).encode()
    if signature is None:
        signature = key.sign(signing_input(protected, payload_cid)).signature
    envelope = {
        "payload": bytes(payload_cid),
        "signatures": [{"protected": protected, "signature": signature}],
    }
    return envelope_car(envelope | more, (payload_cid, payload_block))


def signing_input(protected: bytes, payload: bytes) -> bytes:
    """RFC 7515, section 5.1, written out by hand: base64url without padding, joined by a dot."""
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"

    def base64url(data: bytes) -> str:
        bits = "".join(f"{byte:08b}" for byte in data)
        bits += "0" * (-len(bits) % 6)
        return "".join(alphabet[int(bits[at : at + 6], 2)] for at in range(0, len(bits), 6))

    return f"{base64url(protected)}.{base64url(payload)}".encode()
