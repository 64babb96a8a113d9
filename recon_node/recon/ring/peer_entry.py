"""Peer entries: the keys of the peer ring, which tell nodes where other nodes can be reached.

    <expiry: 11 digits, Unix seconds>.<JWS>

The JWS is compact. Its header is {"alg": "EdDSA", "kid": "<multibase of the public key>"}, its
payload {"id": {"public_ed25519_key_bytes": [32 integers]}, "expiration", "addresses"}. An entry is
signed by the key that it is about, so that any peer can pass it on. Entries sort by their expiry:
those that have not expired yet are one range of keys.

Source: ceramic-one 0.58.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass
from typing import Any, Final

from nacl.signing import SigningKey

from recon_node.ceramic.auth.did import Ed25519Key, ed25519_did
from recon_node.ipld import multibase
from recon_node.recon.keys.ranges import KeyRange

MAX_EXPIRY: Final = 99_999_999_999
"""The latest expiry, in Unix seconds: eleven digits."""
MAX_ENTRY: Final = 4096
"""Bytes of an entry at most; one with two addresses has about 700."""
MAX_ADDRESSES: Final = 32
"""Addresses in an entry at most."""
MAX_ADDRESS: Final = 512
"""Characters of an address at most."""

_DIGITS: Final = 11
_KEY_SIZE: Final = 32
"""Bytes of an Ed25519 public key."""
_ENTRY: Final = re.compile(rb"([0-9]{11})\.([\w-]+)\.([\w-]+)\.([\w-]+)", re.ASCII)
_BOUND: Final = re.compile(rb"[0-9]{11}", re.ASCII)
_PEER_ID_HEAD: Final = bytes.fromhex("0024080112") + b"\x20"
"""Identity multihash of the protobuf of an Ed25519 public key, before its 32 bytes."""


class PeerEntryError(ValueError):
    """Bytes that are not a valid peer entry; the text says why."""


@dataclass(frozen=True, slots=True)
class PeerEntry:
    """Where a node can be reached, and until when it says so.

    Args:
        public_key: the node's Ed25519 key, 32 bytes.
        expiry: Unix seconds.
        addresses: multiaddrs as text, usually with `/p2p/` and the peer ID at their end.
    """

    public_key: bytes
    expiry: int
    addresses: tuple[str, ...]

    @property
    def peer_id(self) -> str:
        """The libp2p peer ID in base58."""
        return multibase.encode(_PEER_ID_HEAD + self.public_key, "base58btc")[1:]


def sign_entry(key: SigningKey, expiry: int, addresses: tuple[str, ...]) -> bytes:
    """Return a node's own entry, signed: a key of the peer ring.

    Args:
        key: the node's identity.
        expiry: Unix seconds.
        addresses: multiaddrs as text.

    Raises:
        PeerEntryError: the expiry or the addresses are out of bounds.
    """
    public_key = bytes(key.verify_key)
    header = {"alg": "EdDSA", "kid": ed25519_did(public_key).removeprefix("did:key:")}
    payload = {
        "id": {"public_ed25519_key_bytes": list(public_key)},
        "expiration": expiry,
        "addresses": list(addresses),
    }
    texts = (json.dumps(part, separators=(",", ":")) for part in (header, payload))
    signed = b".".join(_to_base64(text.encode()) for text in texts)
    signature = _to_base64(key.sign(signed).signature)
    entry = expiry_bound(expiry) + b"." + signed + b"." + signature
    parse_entry(entry)
    return entry


def parse_entry(entry: bytes) -> PeerEntry:
    """Read an entry and check its signature; the caller compares the expiry with a clock.

    Raises:
        PeerEntryError: malformed, too large, or not signed by the node that it is about.
    """
    if len(entry) > MAX_ENTRY:
        raise PeerEntryError(f"a peer entry of {len(entry)} bytes; the limit is {MAX_ENTRY}")
    match = _ENTRY.fullmatch(entry)
    if match is None:
        raise PeerEntryError("a peer entry that is not 11 digits, a full stop and a JWS")
    expiry, header, payload, signature = match.groups()
    if _object(header, "header").get("alg") != "EdDSA":
        raise PeerEntryError("a peer entry that is not signed with EdDSA")
    parsed = _parse_payload(_object(payload, "payload"))
    if parsed.expiry != int(expiry):
        raise PeerEntryError(
            f"a peer entry whose JWS expires at {parsed.expiry}, not {int(expiry)}"
        )
    key = Ed25519Key.from_bytes(parsed.public_key)
    if not key.verify(header + b"." + payload, _from_base64(signature, "signature")):
        raise PeerEntryError(f"the peer entry of {parsed.peer_id} has a wrong signature")
    return parsed


def is_bound(bound: bytes) -> bool:
    """Tell whether a bound is a fencepost of the peer ring: an expiry alone."""
    return _BOUND.fullmatch(bound) is not None


def expiry_bound(expiry: int) -> bytes:
    """Return the fencepost below all entries that expire at a time (Unix seconds) or later.

    Raises:
        PeerEntryError: the time is negative or has more than eleven digits.
    """
    if not 0 <= expiry <= MAX_EXPIRY:
        raise PeerEntryError(f"an expiry is from 0 to {MAX_EXPIRY} Unix seconds, not {expiry}")
    return str(expiry).zfill(_DIGITS).encode()


def unexpired(now: int) -> KeyRange:
    """Return the range of the entries that have not expired at a time (Unix seconds).

    Raises:
        PeerEntryError: the time is negative or has more than eleven digits.
    """
    return KeyRange(expiry_bound(now), expiry_bound(MAX_EXPIRY))


def _parse_payload(payload: dict[str, Any]) -> PeerEntry:
    identity, expiry = payload.get("id"), payload.get("expiration")
    addresses = payload.get("addresses")
    numbers = identity.get("public_ed25519_key_bytes") if isinstance(identity, dict) else None
    try:
        public_key = bytes(numbers) if isinstance(numbers, list) else b""
    except (TypeError, ValueError):
        public_key = b""
    if len(public_key) != _KEY_SIZE:
        raise PeerEntryError("a peer entry without an Ed25519 key of 32 bytes")
    if type(expiry) is not int or not 0 <= expiry <= MAX_EXPIRY:
        raise PeerEntryError("a peer entry whose expiration is not a number of Unix seconds")
    if (
        not isinstance(addresses, list)
        or len(addresses) > MAX_ADDRESSES
        or not all(type(each) is str and len(each) <= MAX_ADDRESS for each in addresses)
    ):
        raise PeerEntryError(f"a peer entry whose addresses are not at most {MAX_ADDRESSES} texts")
    return PeerEntry(public_key, expiry, tuple(addresses))


def _object(part: bytes, what: str) -> dict[str, Any]:
    try:
        value = json.loads(_from_base64(part, what))
    except (ValueError, RecursionError):
        raise PeerEntryError(f"a peer entry whose {what} is not JSON") from None
    if type(value) is not dict:
        raise PeerEntryError(f"a peer entry whose {what} is not a JSON object")
    return value


def _to_base64(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def _from_base64(part: bytes, what: str) -> bytes:
    try:
        data = base64.b64decode(part + b"=" * (-len(part) % 4), altchars=b"-_", validate=True)
    except ValueError:
        raise PeerEntryError(f"a peer entry whose {what} is not base64url") from None
    # The last character may have bits that mean nothing. One entry must not have several keys.
    if _to_base64(data) != part:
        raise PeerEntryError(f"a peer entry whose {what} is not canonical base64url")
    return data
