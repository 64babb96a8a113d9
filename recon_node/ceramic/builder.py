"""Builders of events: for writing to Ceramic, for anchors, for benchmarks and tests.

    key = SigningKey.generate()
    init = init_event(key, model, {"title": "first"})
    change = data_event(key, init, [init.cid], [{"op": "replace", "path": "/title", ...}])

Every builder returns the `Event` as the parser reads it; its `car` is what goes over the wire. A
key is Ed25519 (`SigningKey`), secp256k1 or P-256, see `auth.did`. The same arguments give the same
bytes, except with P-256, whose signatures are not deterministic here.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from recon_node.ceramic.auth.capability import parse_cacao
from recon_node.ceramic.auth.did import DID_KEY, PrivateKey, algorithm_of, controller_of, sign
from recon_node.ceramic.auth.envelope import Envelope
from recon_node.ceramic.event import Event, parse_event
from recon_node.ceramic.init_header import METAMODEL, StreamId
from recon_node.ipld import CID, DAG_CBOR, DAG_JOSE, car, dag_cbor, encode_varint

_ETH_TX: Final = 0x93
_KECCAK_256: Final = 0x1B


def init_event(
    key: PrivateKey,
    model: StreamId,
    data: Any,
    *,
    unique: bytes | None = None,
    context: bytes | None = None,
    should_index: bool | None = None,
    model_version: CID | None = None,
    capability: bytes | None = None,
) -> Event:
    """Build a signed init event: the first of a new document of that model, controlled by the key.

    With a `capability` (see `signed_event`), its issuer controls the document.

    Raises:
        InvalidEventError: the event would be invalid, or too large.
        DagCborError: the data cannot be represented in DAG-CBOR.
    """
    controller = controller_of(key)
    if capability is not None:
        controller = parse_cacao(dag_cbor.decode(capability)).issuer
    header = _header(controller, model, unique)
    if context is not None:
        header["context"] = context
    if should_index is not None:
        header["shouldIndex"] = should_index
    if model_version is not None:
        header["modelVersion"] = model_version
    return signed_event(key, {"header": header, "data": data}, capability=capability)


def model_event(key: PrivateKey, definition: Any) -> Event:
    """Build a signed init event of a model; documents name its StreamID as their `model`."""
    return init_event(key, METAMODEL, definition)


def deterministic_init_event(
    controller: str, model: StreamId, *, unique: bytes | None = None
) -> Event:
    """Build an unsigned init event without data: of the one document for these arguments."""
    payload = {"header": _header(controller, model, unique), "data": None}
    cid, block = _block(DAG_CBOR, payload)
    return parse_event(car.encode([cid], {cid: block}))


def data_event(
    key: PrivateKey,
    init: Event | CID,
    prevs: Sequence[CID],
    data: Any,
    *,
    should_index: bool | None = None,
    model_version: CID | None = None,
    capability: bytes | None = None,
) -> Event:
    """Build a signed data event of `init`'s stream. Several prevs merge their branches (CIP-145).

    Raises:
        InvalidEventError: no prevs, a repeated prev, or an event that would be too large.
        DagCborError: the data cannot be represented in DAG-CBOR.
    """
    payload: dict[str, Any] = {
        "id": init.cid if isinstance(init, Event) else init,
        "prev": prevs[0] if len(prevs) == 1 else list(prevs),
        "data": data,
    }
    header: dict[str, Any] = {}
    if should_index is not None:
        header["shouldIndex"] = should_index
    if model_version is not None:
        header["modelVersion"] = model_version
    if header:
        payload["header"] = header
    return signed_event(key, payload, capability=capability)


def proof_block(chain_id: str, root: CID, tx_hash: bytes) -> tuple[CID, bytes]:
    """Return the proof that a contract call anchored `root`: a block, and its CID."""
    tx_cid = CID(
        encode_varint(1) + encode_varint(_ETH_TX) + bytes([_KECCAK_256, len(tx_hash)]) + tx_hash
    )
    proof = {"chainId": chain_id, "root": root, "txHash": tx_cid, "txType": "f(bytes32)"}
    return _block(DAG_CBOR, proof)


def time_event_car(
    init: CID, prev: CID, proof: tuple[CID, bytes], path: str, nodes: Mapping[CID, bytes]
) -> bytes:
    """Return the CAR of the time event that anchors `prev`."""
    proof_cid, block = proof
    cid, event = _block(DAG_CBOR, {"id": init, "prev": prev, "proof": proof_cid, "path": path})
    return car.encode([cid], {cid: event, proof_cid: block, **nodes})


def signed_event(key: PrivateKey, payload: Any, *, capability: bytes | None = None) -> Event:
    """Build an event with any payload, signed by the key as a JWS.

    `capability` is the block of a CACAO that lets the key act for another DID.

    Raises:
        InvalidEventError: the event would be invalid, or too large.
        DagCborError: the payload cannot be represented in DAG-CBOR.
    """
    payload_cid, payload_block = _block(DAG_CBOR, payload)
    blocks, further = {payload_cid: payload_block}, {}
    if capability is not None:
        capability_cid = CID.of(DAG_CBOR, capability)
        further["cap"] = f"ipfs://{capability_cid}"
        blocks[capability_cid] = capability
    cid, block = signed_envelope(key, payload_cid, **further)
    return parse_event(car.encode([cid], blocks | {cid: block}))


def signed_envelope(key: PrivateKey, payload: CID, **further: str) -> tuple[CID, bytes]:
    """Return a block that signs another one as a JWS, and its CID.

    `further` is what its header has beside the algorithm and the key.
    """
    did = controller_of(key)
    header = {"alg": algorithm_of(key), "kid": f"{did}#{did.removeprefix(DID_KEY)}", **further}
    protected = json.dumps(header, separators=(",", ":")).encode()
    unsigned = Envelope(payload, protected, header, b"", None)
    signature = sign(key, unsigned.signing_input)
    signatures = [{"protected": protected, "signature": signature}]
    return _block(DAG_JOSE, {"payload": bytes(payload), "signatures": signatures})


def _header(controller: str, model: StreamId, unique: bytes | None) -> dict[str, Any]:
    header: dict[str, Any] = {
        "controllers": [controller],
        "model": model.to_bytes(),
        "sep": "model",
    }
    if unique is not None:
        header["unique"] = unique
    return header


def _block(codec: int, value: Any) -> tuple[CID, bytes]:
    block = dag_cbor.encode(value)
    return CID.of(codec, block), block
