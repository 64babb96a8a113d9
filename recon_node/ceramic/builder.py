"""Making events: for the demo, for benchmarks and tests, and for whoever writes to Ceramic.

    key = SigningKey.generate()
    init = init_event(key, model, {"title": "first"})
    change = data_event(key, init, [init.cid], [{"op": "replace", "path": "/title", ...}])

Every builder returns the `Event` as the parser reads it back; its `car` is what goes over the
wire. A key is Ed25519 (`SigningKey`), secp256k1 or P-256, see `auth.signing`. The
same arguments give the same bytes, but for P-256, whose signatures here are not deterministic.
"""

import json
from collections.abc import Sequence
from typing import Any, Final

from recon_node.ceramic.auth.did import DID_KEY
from recon_node.ceramic.auth.envelope import Envelope
from recon_node.ceramic.auth.signing import Key, algorithm_of, controller_of, sign
from recon_node.ceramic.event import Event, parse_event
from recon_node.ceramic.stream_id import METAMODEL, StreamId
from recon_node.ipld import CID, DAG_CBOR, DAG_JOSE, car, dag_cbor, varint

_ETH_TX: Final = 0x93
_KECCAK_256: Final = 0x1B


__all__ = [
    "controller_of",
    "data_event",
    "deterministic_init_event",
    "init_event",
    "model_event",
    "signed_event",
    "time_event",
]


def init_event(
    key: Key,
    model: StreamId,
    data: Any,
    *,
    unique: bytes | None = None,
    context: bytes | None = None,
    should_index: bool | None = None,
) -> Event:
    """A signed init event: the first of a new document of that model, controlled by the key.

    Raises:
        InvalidEventError, DagCborError: the data cannot be an event's.
    """
    header = _header(controller_of(key), model, unique)
    if context is not None:
        header["context"] = context
    if should_index is not None:
        header["shouldIndex"] = should_index
    return signed_event(key, {"header": header, "data": data})


def model_event(key: Key, definition: Any) -> Event:
    """A signed init event of a model: its stream's StreamID is what documents name as theirs."""
    return init_event(key, METAMODEL, definition)


def deterministic_init_event(
    controller: str, model: StreamId, *, unique: bytes | None = None
) -> Event:
    """An unsigned init event without data: the one document of that model, controller, unique."""
    payload = {"header": _header(controller, model, unique), "data": None}
    cid, block = _block(DAG_CBOR, payload)
    return parse_event(car.encode([cid], {cid: block}))


def data_event(
    key: Key,
    init: Event | CID,
    prevs: Sequence[CID],
    data: Any,
    *,
    should_index: bool | None = None,
) -> Event:
    """A signed data event of `init`'s stream. Several prevs merge their branches (CIP-145).

    Raises:
        InvalidEventError, DagCborError: no prevs, one twice, or data that cannot be an event's.
    """
    payload: dict[str, Any] = {
        "id": init.cid if isinstance(init, Event) else init,
        "prev": prevs[0] if len(prevs) == 1 else list(prevs),
        "data": data,
    }
    if should_index is not None:
        payload["header"] = {"shouldIndex": should_index}
    return signed_event(key, payload)


def time_event(
    init: Event | CID,
    prev: CID,
    *,
    siblings: Sequence[CID] = (),
    chain_id: str = "eip155:11155111",
    tx_hash: bytes = bytes(32),
) -> Event:
    """A time event that anchors `prev` by a transaction of that hash, 32 bytes.

    `siblings` are the other leaves on the way up the Merkle tree, the nearest first: `prev` is
    the left child at every level. Without siblings `prev` itself is the tree's root.

    Raises:
        InvalidEventError: `prev` or `init` cannot be an event's CID.
    """
    blocks: dict[CID, bytes] = {}
    root = prev
    for sibling in siblings:
        root, block = _block(DAG_CBOR, [root, sibling])
        blocks[root] = block
    tx_cid = CID(
        varint.encode(1) + varint.encode(_ETH_TX) + bytes([_KECCAK_256, len(tx_hash)]) + tx_hash
    )
    proof = {"chainId": chain_id, "root": root, "txHash": tx_cid, "txType": "f(bytes32)"}
    proof_cid, proof_block = _block(DAG_CBOR, proof)
    init_cid = init.cid if isinstance(init, Event) else init
    path = "/".join("0" for _ in siblings)
    event = {"id": init_cid, "prev": prev, "proof": proof_cid, "path": path}
    cid, block = _block(DAG_CBOR, event)
    return parse_event(car.encode([cid], {cid: block, proof_cid: proof_block, **blocks}))


def signed_event(key: Key, payload: Any, *, capability: bytes | None = None) -> Event:
    """An event with any payload, signed by the key as a JWS.

    `capability` is the block of a CACAO by which the key acts for another.

    Raises:
        InvalidEventError, DagCborError: the payload cannot be an event's.
    """
    payload_cid, payload_block = _block(DAG_CBOR, payload)
    did = controller_of(key)
    header = {"alg": algorithm_of(key), "kid": f"{did}#{did.removeprefix(DID_KEY)}"}
    blocks = {payload_cid: payload_block}
    if capability is not None:
        capability_cid = CID.of(DAG_CBOR, capability)
        header["cap"] = f"ipfs://{capability_cid}"
        blocks[capability_cid] = capability
    protected = json.dumps(header, separators=(",", ":")).encode()
    unsigned = Envelope(payload_cid, protected, header, b"", None)
    envelope = {
        "payload": bytes(payload_cid),
        "signatures": [{"protected": protected, "signature": sign(key, unsigned.signing_input)}],
    }
    cid, block = _block(DAG_JOSE, envelope)
    return parse_event(car.encode([cid], blocks | {cid: block}))


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
