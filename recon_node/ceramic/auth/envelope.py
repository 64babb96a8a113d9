"""The envelope of a signed event, and strict readers for the blocks of strangers.

An envelope is a JWS as DAG-JOSE, `{payload, signatures}`.
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

Unknown fields are refused everywhere: a node that drops what it does not know cannot serve the
event again byte for byte, and its signer meant something by them.

What `json.loads` makes of a text depends on more than the text: on the depth of the call stack, and
on the environment. If one process accepted an event that another cannot read, nodes would not agree
on the set. So JSON is bounded here, far below those limits (RFC 8259; as in I-JSON, RFC 7493, names
are unique within an object).
"""

import base64
import json
import re
from collections.abc import Set
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final, NamedTuple, NoReturn, TypeVar

from recon_node.ceramic.auth.did import is_did
from recon_node.ceramic.errors import InvalidEventError
from recon_node.ipld import CID, DAG_CBOR, DAG_JOSE, CidError, DagCborError, car, cid_head, dag_cbor

T = TypeVar("T")

MAX_BRACKETS: Final = 100
"""Opening brackets in a JSON text, including those in strings: real texts have one or two."""

MIN_INTEGER: Final = -(2**63)
"""The least integer in a payload, as for ceramic-one, which buffers its values. Links, lists of
anchors and other blocks do not matter: nothing there is kept as a number."""
_LOW_INTEGER: Final = re.compile(rb"\x3b[\x80-\xff]")
"""How such an integer begins in DAG-CBOR."""
_LONG_NEGATIVE: Final = b"\x3b"
"""Its first byte, which most blocks do not have: to look for it takes a tenth of the time."""

_MAX_LISTED: Final = 10
"""Field names that an error lists."""
_MAX_NAME: Final = 100
"""Characters of each of them."""
_NONE: Final[Set[str]] = frozenset()
_BLOCK_HEAD: Final = cid_head(DAG_CBOR)
# Clients look for this sentence, which is ceramic-one's.
_NO_ROUND_TRIP: Final = (
    "Event bytes do not round-trip. This most likely means the event contains unexpected fields."
)
# RFC 3339, which CAIP-74 asks for: not a date alone, nor a time without a zone. Hours and minutes
# are checked here, because how strict Python is with those depends on its version.
_CLOCK: Final = r"([01]\d|2[0-3]):[0-5]\d"
_DATE_TIME: Final = re.compile(
    rf"\d{{4}}-\d\d-\d\dT{_CLOCK}:[0-5]\d(\.\d{{1,9}})?(Z|[+-]{_CLOCK})", re.ASCII
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_TIME: Final = 100
"""Characters of a time that an error quotes."""
_TYPE_NAMES: Final = {
    CID: "a link",
    bytes: "bytes",
    str: "a string",
    dict: "a map",
    list: "a list",
    bool: "a boolean",
    int: "an integer",
}


def fields_of(
    value: Any, what: str, required: Set[str] = _NONE, optional: Set[str] = _NONE
) -> dict[str, Any]:
    """Return `value`, a map with all required fields and no others than these.

    `what` names the value in errors: "the header".

    Raises:
        InvalidEventError: not a map, or a field is missing or unknown.
    """
    if type(value) is not dict:
        raise InvalidEventError(f"{what} is {_kind(value)}, not a map")
    names = value.keys()
    if names == required:
        return value
    if missing := required - names:
        raise InvalidEventError(f"{what} lacks {_listed(missing)}")
    if unknown := names - required - optional:
        raise InvalidEventError(
            f"{what} has unknown fields, which are refused: {_listed(unknown)}. {_NO_ROUND_TRIP}"
        )
    return value


def of_type(value: Any, expected: type[T], what: str) -> T:
    """Return `value`, which must be exactly of that type: a link is not bytes here.

    Raises:
        InvalidEventError: it is of another type.
    """
    if type(value) is not expected:
        raise InvalidEventError(f"{what} is {_kind(value)}, not {_TYPE_NAMES[expected]}")
    return value


def block_cid(cid: CID, what: str) -> CID:
    """Return `cid`, which must be of a DAG-CBOR block, hashed with sha2-256.

    Raises:
        InvalidEventError: another codec or hash.
    """
    if not cid.startswith(_BLOCK_HEAD):
        raise InvalidEventError(f"{what} {cid} must be DAG-CBOR (0x71) with sha2-256")
    return cid


def check_payload(block: bytes, value: Any) -> None:
    """Check the integers of a payload, which is decoded already.

    Raises:
        InvalidEventError: one is less than `MIN_INTEGER`.
    """
    if _LONG_NEGATIVE not in block or _LOW_INTEGER.search(block) is None:  # nearly always
        return
    left = [value]
    while left:
        item = left.pop()
        if type(item) is int and item < MIN_INTEGER:
            raise InvalidEventError(f"the payload has the integer {item}; the least is -2^63")
        if type(item) is dict:
            left += item.values()
        elif type(item) is list:
            left += item


def json_value(data: bytes) -> Any:
    """Decode a JSON text in UTF-8; all numbers become `float`.

    Raises:
        ValueError: not JSON, a repeated field in an object, or more than `MAX_BRACKETS`.
    """
    if data.count(b"{") + data.count(b"[") > MAX_BRACKETS:
        raise ValueError(f"it has more than {MAX_BRACKETS} objects and arrays")
    return _JSON.decode(data.decode())


def unix_seconds(text: str) -> int:
    """Read a date and time of RFC 3339, rounded down to the second.

    Raises:
        ValueError: not such a text, or not a date of the calendar.
    """
    upper = text.upper()
    if not _DATE_TIME.fullmatch(upper):
        raise ValueError(f"{text[:_MAX_TIME]!r} is not a date and time of RFC 3339")
    try:
        time = datetime.fromisoformat(upper).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{text[:_MAX_TIME]!r} is not a date and time: {error}") from None
    return (time - _EPOCH) // timedelta(seconds=1)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("it has a field twice")
    return members


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_JSON: Final = json.JSONDecoder(  # made once: that takes as long as to read a header
    object_pairs_hook=_without_duplicates,
    parse_int=float,  # of any length
    parse_constant=_refuse_constant,
)


def _kind(value: Any) -> str:
    return "missing" if value is None else _TYPE_NAMES.get(type(value), type(value).__name__)


def _listed(names: Set[str]) -> str:
    return ", ".join(repr(name[:_MAX_NAME]) for name in sorted(names)[:_MAX_LISTED])


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
    envelope = fields_of(block, "the signed envelope", _ENVELOPE)
    signatures = of_type(envelope["signatures"], list, "the envelope's 'signatures'")
    if len(signatures) != 1:
        raise InvalidEventError(f"an event has exactly one signature, not {len(signatures)}")
    signature = fields_of(signatures[0], "the signature", _SIGNATURE)
    protected = of_type(signature["protected"], bytes, "the protected header")
    header = parse_protected(protected)
    return Envelope(
        payload=_payload_cid(of_type(envelope["payload"], bytes, "the envelope's payload")),
        protected=protected,
        header=header,
        signature=of_type(signature["signature"], bytes, "the signature"),
        capability=_capability(header),
    )


def _payload_cid(raw: bytes) -> CID:
    try:
        cid = CID(raw)
    except CidError as error:
        raise InvalidEventError(f"the envelope's payload is not a CID: {error}") from None
    return block_cid(cid, "the payload")


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
        header = json_value(protected)
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
    return block_cid(cid, "the capability")


def _base64url(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


_remembered = lru_cache(maxsize=1024)(_read_protected)
# Reading a CID from text takes longer than reading the rest of an event.
_remembered_cid = lru_cache(maxsize=1024)(CID.parse)

_DIGEST: Final = slice(-32, None)
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
    root = data[_ROOT]
    blocks = _two_blocks(data, root)
    if blocks is None:
        return None
    envelope, payload_cid, payload = blocks
    if not (
        root.startswith(_ROOT_HEAD)
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
        check_payload(payload, decoded)
    except (DagCborError, InvalidEventError):
        return None
    protected, header = signer
    # Both have the head and the digest of such a CID: to check that again takes as long as a hash.
    of_root, of_payload = bytes.__new__(CID, root), bytes.__new__(CID, payload_cid)
    signed = Envelope(of_payload, protected, header, envelope[_SIGNATURE_IN_ENVELOPE], None)
    return of_root, signed, decoded


def _two_blocks(data: bytes, root: bytes) -> tuple[bytes, bytes, bytes] | None:
    """Return the block of the root, and the CID and the bytes of the other block of a CAR; None if
    it has other blocks than two such."""
    payload_cid = payload = envelope = b""
    at, end = _FIRST_BLOCK, len(data)
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
            elif not payload and data.startswith(_BLOCK_HEAD, start):
                block = start + _PAYLOAD_BYTES
                payload_cid, payload = data[start:block], data[block:at]
            else:
                return None
    except IndexError:
        return None
    return (envelope, payload_cid, payload) if at == end else None


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
