"""A fast path of `parse_event`, for events that are signed without a capability: nearly all.

The CAR of an event that is signed without a capability has a header that only depends on the root,
and two blocks: the payload, and an envelope of which only the payload's CID, the protected header
and the signature vary. So all but these is compared byte for byte in place of being decoded. What
looks different may be right as well: it is decoded, as is what is wrong, to say what is wrong.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256
from typing import Any, Final, NamedTuple

from recon_node.ceramic import strict
from recon_node.ceramic.auth.envelope import Envelope, parse_protected
from recon_node.ceramic.errors import InvalidEventError
from recon_node.ipld import CID, DAG_CBOR, DAG_JOSE, DagCborError, car, cid_head, dag_cbor

_DIGEST: Final = slice(-32, None)
_PAYLOAD_HEAD: Final = cid_head(DAG_CBOR)
_ROOT_HEAD: Final = cid_head(DAG_JOSE)
_ROOT_BYTES: Final = len(CID.of(DAG_JOSE, b""))
_PAYLOAD_BYTES: Final = len(CID.of(DAG_CBOR, b""))
# The header of a CAR before and after its root.
_BEFORE_ROOT, _AFTER_ROOT = car.encode([CID.of(DAG_JOSE, b"")], {}).split(CID.of(DAG_JOSE, b""))
_ROOT: Final = slice(len(_BEFORE_ROOT), len(_BEFORE_ROOT) + _ROOT_BYTES)
_FIRST_BLOCK: Final = _ROOT.stop + len(_AFTER_ROOT)
_MAX_ONE_BYTE_VARINT: Final = 127
_MAX_TWO_BYTE_VARINT: Final = 16383

_SIGNATURE_BYTES: Final = 64
_SAMPLE: Final = dag_cbor.encode(
    {
        "payload": bytes(CID.of(DAG_CBOR, b"")),
        "signatures": [{"protected": b"?", "signature": bytes(_SIGNATURE_BYTES)}],
    }
)
# What is in any envelope: before the payload's CID, between it and the protected header, and
# between that and the signature.
_BEFORE_PAYLOAD, _REST = _SAMPLE.split(CID.of(DAG_CBOR, b""))
_AFTER_PAYLOAD, _BEFORE_SIGNATURE = _REST[:-_SIGNATURE_BYTES].split(dag_cbor.encode(b"?"))
_HEADER: Final = slice(
    len(_BEFORE_PAYLOAD) + _PAYLOAD_BYTES + len(_AFTER_PAYLOAD),
    -_SIGNATURE_BYTES - len(_BEFORE_SIGNATURE),
)
"""Where the protected header is in an envelope, encoded as DAG-CBOR."""
_SIGNATURE: Final = slice(-_SIGNATURE_BYTES, None)
_MAX_HEADER: Final = 1024
"""Bytes of a header that is cached."""


class PlainEvent(NamedTuple):
    """A signed event whose CAR has its two blocks, each once, and nothing else."""

    cid: CID
    envelope: Envelope
    payload: Any


def read_plain(data: bytes) -> PlainEvent | None:
    """Return what `parse_event` would find in a CAR; None if it has to look itself.

    The payload's fields are not checked.
    """
    if type(data) is not bytes:  # slices of other types are not hashable
        return None
    if not (data.startswith(_BEFORE_ROOT) and data.startswith(_AFTER_ROOT, _ROOT.stop)):
        return None
    root, at = data[_ROOT], _FIRST_BLOCK
    payload_cid = payload = envelope = b""
    try:
        while at < len(data):
            size, start = data[at], at + 1
            if size > _MAX_ONE_BYTE_VARINT:
                size, start = size & 127 | data[start] << 7, start + 1
                if not _MAX_ONE_BYTE_VARINT < size <= _MAX_TWO_BYTE_VARINT:
                    return None
            at = start + size
            if not envelope and data.startswith(root, start):
                envelope = data[start + _ROOT_BYTES : at]
            elif not payload and data.startswith(_PAYLOAD_HEAD, start):
                block = start + _PAYLOAD_BYTES
                payload_cid, payload = data[start:block], data[block:at]
            else:
                return None
    except IndexError:
        return None
    if not (
        at == len(data)
        and root.startswith(_ROOT_HEAD)
        and envelope.startswith(_BEFORE_PAYLOAD + payload_cid + _AFTER_PAYLOAD)
        and envelope.endswith(_BEFORE_SIGNATURE, None, _SIGNATURE.start)
        and sha256(envelope).digest() == root[_DIGEST]
        and sha256(payload).digest() == payload_cid[_DIGEST]
    ):
        return None
    encoded = envelope[_HEADER]
    signer = _signer(encoded) if len(encoded) <= _MAX_HEADER else None
    if signer is None:
        return None
    try:
        decoded = dag_cbor.decode(payload)
        strict.check_payload(payload, decoded)
    except (DagCborError, InvalidEventError):
        return None
    protected, header = signer
    signed = Envelope(CID(payload_cid), protected, header, envelope[_SIGNATURE], None)
    return PlainEvent(CID(root), signed, decoded)


@lru_cache(maxsize=1024)
def _signer(encoded: bytes) -> tuple[bytes, dict[str, Any]] | None:
    """Return the protected header as bytes, and what it says.

    None if it is wrong or has a capability. All events of a signer have the same one.
    """
    try:
        protected = dag_cbor.decode(encoded)
        if type(protected) is not bytes:
            return None
        header = parse_protected(protected)
    except (DagCborError, InvalidEventError):
        return None
    return None if "cap" in header else (protected, header)
