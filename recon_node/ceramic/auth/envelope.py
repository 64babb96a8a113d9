"""The envelope of a signed event: a JWS as DAG-JOSE, `{payload, signatures}`.

Source: https://ipld.io/specs/codecs/dag-jose/spec/ and RFC 7515. The payload is the CID of the
block that is signed; the one signature comes with its protected header, JSON as the signer wrote
it. An unprotected `header` is refused: it is not signed, so anyone could turn someone else's event
into a new one with a new CID.

In memory, DAG-JOSE has a field `link`, the payload's CID, which encoding leaves out. kubo's
`ipfs dag get --output-codec dag-jose` writes it nevertheless, as `link: null`, so files made from
its output hold bytes that do not match the CID. `without_link` restores them.

`read_plain` is a fast path of `parse_event` for events that are signed without a capability, which
are nearly all. It saves an eighth of the time of a check. The header of such a CAR depends only on
the root, and it has two blocks: the payload, and an envelope in which only the payload's CID, the
protected header and the signature vary. The rest is compared byte for byte instead of being
decoded. A CAR that looks different may be right as well, and is decoded.
"""

from __future__ import annotations

import base64
import re
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final, NamedTuple

from recon_node.ceramic import strict
from recon_node.ceramic.auth.did import is_did
from recon_node.ceramic.errors import InvalidEventError
from recon_node.ipld import CID, DAG_CBOR, DAG_JOSE, CidError, DagCborError, car, cid_head, dag_cbor

_ENVELOPE: Final = frozenset({"payload", "signatures"})
_SIGNATURE: Final = frozenset({"protected", "signature"})
# In DAG-CBOR the shortest key comes first, right after the byte that opens the map.
_NULL_LINK: Final = dag_cbor.encode("link") + dag_cbor.encode(None)
_FRAGMENT: Final = re.compile(r"[\w.:%/-]{1,1000}", re.ASCII)
_IPFS: Final = "ipfs://"
_MAX_PROTECTED: Final = 16 * 1024
"""Bytes of a protected header. Real ones have 200 to 400."""
_MAX_CACHED_SIZE: Final = 1024
"""Bytes of a header that is cached; as Python objects it takes twenty times as many."""


class Envelope(NamedTuple):
    """A signature over the CID of an event's payload.

    `protected` is the signed header as bytes, `header` what it says; `capability` the CID of the
    CACAO by which the signer acts for the controller, if it names one.
    """

    payload: CID
    protected: bytes
    header: dict[str, Any]
    signature: bytes
    capability: CID | None

    @property
    def signer(self) -> str:
        """The DID in the header's `kid`, without its fragment."""
        kid: str = self.header["kid"]
        return kid.partition("#")[0]

    @property
    def signing_input(self) -> bytes:
        """The bytes that are signed (RFC 7515, section 5.1)."""
        return _base64url(self.protected) + b"." + _base64url(self.payload)


def is_envelope(block: Any) -> bool:
    """Whether this decoded block looks like an envelope rather than a payload."""
    return isinstance(block, dict) and "signatures" in block


def without_link(block: bytes) -> bytes | None:
    """Return the canonical bytes of an envelope with `link: null`; None for any other block."""
    if not block.startswith(_NULL_LINK, 1):
        return None
    try:
        envelope = dag_cbor.decode(block)
    except DagCborError:
        return None
    if not isinstance(envelope, dict) or envelope.keys() != _ENVELOPE | {"link"}:
        return None
    del envelope["link"]
    return dag_cbor.encode(envelope)


def parse_envelope(block: Any) -> Envelope:
    """Check the decoded root block of a signed event.

    Raises:
        InvalidEventError: not a JWS with exactly one signature and a protected header that names
            `alg` and `kid`.
    """
    envelope = strict.fields(block, "the signed envelope", _ENVELOPE)
    signatures = strict.of_type(envelope["signatures"], list, "the envelope's 'signatures'")
    if len(signatures) != 1:
        raise InvalidEventError(f"an event has exactly one signature, not {len(signatures)}")
    signature = strict.fields(signatures[0], "the signature", _SIGNATURE)
    protected = strict.of_type(signature["protected"], bytes, "the protected header")
    header = parse_protected(protected)
    return Envelope(
        payload=_payload_cid(strict.of_type(envelope["payload"], bytes, "the envelope's payload")),
        protected=protected,
        header=header,
        signature=strict.of_type(signature["signature"], bytes, "the signature"),
        capability=_capability(header),
    )


def _payload_cid(raw: bytes) -> CID:
    try:
        cid = CID(raw)
    except CidError as error:
        raise InvalidEventError(f"the envelope's payload is not a CID: {error}") from None
    return strict.block_cid(cid, "the payload")


def parse_protected(protected: bytes) -> dict[str, Any]:
    """Return the decoded protected header; all events of a signer have the same one.

    Raises:
        InvalidEventError: it does not name `alg` and `kid`, or is too large.
    """
    return (_remembered if len(protected) <= _MAX_CACHED_SIZE else _read_protected)(protected)


def _read_protected(protected: bytes) -> dict[str, Any]:
    if len(protected) > _MAX_PROTECTED:
        raise InvalidEventError(f"the protected header has {len(protected)} bytes, too many")
    try:
        header = strict.json_value(protected)
    except ValueError as error:
        raise InvalidEventError(f"the protected header is not valid JSON: {error}") from None
    if not isinstance(header, dict):
        raise InvalidEventError("the protected header is not a JSON object")
    for name in ("alg", "kid"):
        if not isinstance(header.get(name), str):
            raise InvalidEventError(f"the protected header lacks {name!r}")
    did, hash_sign, fragment = header["kid"].partition("#")
    if not is_did(did) or (hash_sign and not _FRAGMENT.fullmatch(fragment)):
        raise InvalidEventError(f"the key {header['kid'][:100]!r} is not named by a DID")
    return header


def _capability(header: dict[str, Any]) -> CID | None:
    uri = header.get("cap")
    if uri is None or uri == "":  # as for js-ceramic and ceramic-one
        return None
    if not isinstance(uri, str) or not uri.startswith(_IPFS):
        raise InvalidEventError("the protected header's 'cap' is not 'ipfs://' and a CID")
    try:
        cid = _remembered_cid(uri.removeprefix(_IPFS))
    except CidError as error:
        raise InvalidEventError(
            f"the protected header's 'cap' does not name a CID: {error}"
        ) from None
    return strict.block_cid(cid, "the capability")


def _base64url(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


_remembered = lru_cache(maxsize=1024)(_read_protected)
# Reading a CID from text takes longer than reading the rest of an event.
_remembered_cid = lru_cache(maxsize=1024)(CID.parse)

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
_SIGNATURE_IN_ENVELOPE: Final = slice(-_SIGNATURE_BYTES, None)
_MAX_HEADER: Final = 1024
"""Bytes of a header that is cached."""


def read_plain(data: bytes) -> tuple[CID, Envelope, Any] | None:
    """Return what `parse_event` would find in a CAR: the event's CID, its envelope and its payload,
    whose fields are not checked. None if it has to look itself.

    Such a CAR has the event's two blocks, each once, and nothing else.
    """
    if type(data) is not bytes:  # slices of other types are not hashable
        return None
    if not (data.startswith(_BEFORE_ROOT) and data.startswith(_AFTER_ROOT, _ROOT.stop)):
        return None
    root, at, end = data[_ROOT], _FIRST_BLOCK, len(data)
    payload_cid = payload = envelope = b""
    try:
        while at < end:
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
        at == end
        and root.startswith(_ROOT_HEAD)
        and envelope.startswith(_BEFORE_PAYLOAD + payload_cid + _AFTER_PAYLOAD)
        and envelope.endswith(_BEFORE_SIGNATURE, None, _SIGNATURE_IN_ENVELOPE.start)
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
    # Both have the head and the digest of such a CID: to check that again takes as long as a hash.
    of_root, of_payload = bytes.__new__(CID, root), bytes.__new__(CID, payload_cid)
    signed = Envelope(of_payload, protected, header, envelope[_SIGNATURE_IN_ENVELOPE], None)
    return of_root, signed, decoded


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
